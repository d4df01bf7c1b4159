"""Deciders: choices are keyed and not counted, can be recorded and replayed, and are plain where nothing fits."""

from collections import Counter
from itertools import pairwise
from random import Random

import pytest

from labsim import Simulation, choices, queue, random, threading, time
from labsim.choices import (
    Between,
    Changed,
    Choices,
    NodeSeed,
    Plain,
    Recording,
    Seeded,
    Settled,
)

DELAY = Between(0, 10**9)
HERE = ("request", "0->1", "Raft.append_entries")
THERE = ("request", "1->0", "Raft.append_entries")


def ask(decider, place, ordinals):
    return [decider.choose(place, ordinal, DELAY) for ordinal in ordinals]


# ---- the seeded one --------------------------------------------------------------------------------------------


def test_a_choice_depends_on_seed_place_and_ordinal_and_on_nothing_else():
    expected = ask(Seeded(7), HERE, range(1, 20))
    assert len(set(expected)) == len(expected)
    assert ask(Seeded(7), THERE, range(1, 20)) != expected
    assert ask(Seeded(8), HERE, range(1, 20)) != expected
    disturbed = Seeded(7)
    interleaved = []
    for ordinal in range(1, 20):
        ask(disturbed, THERE, range(1, ordinal))
        interleaved += ask(disturbed, HERE, [ordinal])
    assert interleaved == expected


@pytest.mark.parametrize(
    "ordinals", [[5], [1, 2, 4], [9, 3], [2, 2, 2], [4, 1, 2, 3, 9]], ids=lambda ordinals: str(ordinals)
)
def test_a_choice_may_be_asked_for_out_of_turn(ordinals):
    expected = ask(Seeded(7), HERE, range(1, 10))
    assert ask(Seeded(7), HERE, ordinals) == [expected[ordinal - 1] for ordinal in ordinals]


def test_replies_that_overtake_each_other_cost_no_more_than_others(monkeypatch):
    """Each would have its place's stream drawn from the beginning again: a long run would take for ever."""
    expected = ask(Seeded(7), HERE, range(1, 5001))
    begun = []
    generator = choices._random.Random
    monkeypatch.setattr(choices._random, "Random", lambda seed: begun.append(seed) or generator(seed))
    decider = Seeded(7)
    arriving = sorted(range(1, 5001), key=lambda ordinal: ordinal + 100 * (ordinal * 0.618 % 1))
    assert arriving != sorted(arriving)
    assert [ask(decider, HERE, [ordinal])[0] for ordinal in arriving] == [expected[n - 1] for n in arriving]
    assert len(begun) == 1


def picks(seed, instants, tasks=3, rounds=1):
    decider = Seeded(seed)
    return [decider.pick(now_ns, range(tasks)) for now_ns in instants for _ in range(rounds)]


def test_a_pick_depends_on_its_instant_and_not_on_those_before_it():
    instants = [n * 10_000_000 for n in range(50)]
    whole = dict(zip(instants, picks(3, instants), strict=True))
    assert picks(3, instants[7::5]) == [whole[now_ns] for now_ns in instants[7::5]]


@pytest.mark.parametrize("step_ns", [1, 10_000_000, 123_457])
def test_picks_are_uniform_and_independent_from_instant_to_instant(step_ns):
    """Over seeds, for any two instants: hashing that is linear would tie them together."""
    seeds = 3000
    for first, second in ((0, step_ns), (step_ns, 2 * step_ns), (7 * step_ns, 1000 * step_ns)):
        pairs = Counter(tuple(picks(seed, (first, second))) for seed in range(seeds))
        assert len(pairs) == 9
        # 333 on average; chi square with 8 degrees of freedom is above 26.1 once in a thousand.
        assert sum((n - seeds / 9) ** 2 / (seeds / 9) for n in pairs.values()) < 40
    # And within one seed: three instants in a row, so that a regular sequence would show.
    row = picks(1, range(0, 30_000 * step_ns, step_ns))
    triples = Counter(zip(row[::3], row[1::3], row[2::3], strict=True))
    expected = len(row) / 3 / 27
    assert sum((n - expected) ** 2 / expected for n in triples.values()) < 70
    # And within one instant.
    same = Counter(zip(*[iter(picks(1, [5 * step_ns], rounds=6000))] * 2, strict=True))
    assert sum((n - 3000 / 9) ** 2 / (3000 / 9) for n in same.values()) < 40


def test_between_reaches_both_ends_and_nothing_beyond():
    die = Between(1, 6)
    thrown = Counter(die.draw(Random(n).getrandbits(64)) for n in range(6000))
    assert sorted(thrown) == [1, 2, 3, 4, 5, 6]
    assert all(800 < n < 1200 for n in thrown.values()), thrown
    assert die.draw(0) == 1
    assert die.draw(2**64 - 1) == 6


# ---- what the tester draws -------------------------------------------------------------------------------------


def draws_of(decider, further=False):
    def main():
        drawn = []
        for _ in range(5):
            drawn.append(random.random())
            if further:
                random.random()
        return drawn

    return Simulation(1, decider=decider).run(main)


def test_a_draw_of_the_testers_is_keyed_by_its_line():
    once, twice = draws_of(Seeded(4)), draws_of(Seeded(4), further=True)
    assert once == twice, "draws in another line change nothing here"
    assert len(set(once)) == 5
    assert draws_of(Seeded(5)) != once


def test_every_function_draws_from_the_choice_and_a_plain_one_draws_the_first():
    def main():
        return (
            random.random(),
            random.randrange(3, 9),
            random.randint(3, 9),
            random.uniform(2, 4),
            random.choice("abc"),
            random.getrandbits(64),
            random.expovariate(1),
        )

    assert Simulation(1, decider=Plain()).run(main) == (0.0, 3, 3, 2.0, "a", 0, 0.0)
    assert 0.0 not in Simulation(1).run(main)


def test_no_function_of_random_hangs_on_plain_numbers():
    def main():
        population = list(range(9))
        random.shuffle(population)
        return (
            random.sample(population, 4),
            random.gauss(0, 1),
            random.normalvariate(0, 1),
            random.gammavariate(0.5, 1),
            random.gammavariate(2, 1),
            random.betavariate(2, 3),
            random.vonmisesvariate(1, 2),
            random.choices(population, k=3),
            random.randbytes(5),
        )

    assert Simulation(1, decider=Plain()).run(main) == Simulation(2, decider=Plain()).run(main)


def test_a_draw_may_take_many_numbers_and_all_are_good():
    def main():
        return [random.sample(range(10), 10) for _ in range(3000)]

    orders = Simulation(1).run(main)
    for place in range(10):
        seen = Counter(order[place] for order in orders)
        assert sum((n - 300) ** 2 / 300 for n in seen.values()) < 35, (place, seen)


def test_a_draw_may_take_any_number_of_bits_and_all_are_good():
    def main():
        return random.getrandbits(1_000_001), random.randbytes(80_000), random.getrandbits(65)

    bits, drawn, few = Simulation(1).run(main)
    assert 999_960 < bits.bit_length() <= 1_000_001
    assert few.bit_length() <= 65
    for of_each in range(8):  # a generator's lower bits may be poor, and come round soon
        lows = [byte & 1 for byte in drawn[of_each::8]]
        assert abs(sum(lows) - 5000) < 200
        assert abs(sum(a ^ b for a, b in pairwise(lows)) - 5000) < 200


# ---- recording, changing ----------------------------------------------------------------------------------------


def run_a_few_tasks(decider):
    """(digest, what it came to) of a run that makes every kind of choice that labsim itself has."""
    sim = Simulation(0, decider=decider)

    def main():
        node = sim.node("a")
        done = []
        lock = threading.Lock()

        def work(number):
            for _ in range(3):
                time.sleep(random.choice([0.01, 0.02]))
                with lock:
                    time.sleep(0.005)
                    done.append(number)

        threads = [threading.Thread(target=work, args=(number,)) for number in range(5)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        return done, sim.call_on(node, random.random), random.sample(range(100), 5)

    return sim.run(main), sim.digest()


def test_a_recorded_run_is_repeated_without_its_seed():
    recording = Recording(Seeded(11))
    original = run_a_few_tasks(recording)
    assert run_a_few_tasks(Seeded(11)) == original, "recording changes nothing"
    assert run_a_few_tasks(Changed(Plain(), recording.choices)) == original
    assert run_a_few_tasks(Plain()) != original


@pytest.mark.parametrize("seed", range(10))
def test_threads_may_be_called_whatever_they_like(seed):
    def main():
        order = []
        for number, name in enumerate(["sender", "sender", "sender #2", "sender", "sender #3", "sender #2 #2"]):
            threading.Thread(target=order.append, args=(number,), name=name).start()
        time.sleep(1)
        return order

    recording = Recording(Seeded(seed))
    order = Simulation(0, decider=recording).run(main)
    assert Simulation(0, decider=Changed(Plain(), recording.choices)).run(main) == order


def test_what_is_plain_is_not_recorded():
    recording = Recording(Plain())
    run_a_few_tasks(recording)
    assert not recording.choices.chosen
    assert not recording.choices.picked


def test_one_changed_choice_leaves_the_others_alone():
    choices = Choices()
    choices.chosen[HERE, 3] = 42
    expected = ask(Seeded(7), HERE, range(1, 9))
    expected[2] = 42
    assert ask(Changed(Seeded(7), choices), HERE, range(1, 9)) == expected


def test_a_choice_that_does_not_fit_is_left_to_the_next_decider():
    choices = Choices()
    choices.chosen[HERE, 1] = "a word, where a number is asked for"
    assert ask(Changed(Plain(), choices), HERE, [1]) == [DELAY.plain]
    choices.chosen[HERE, 1] = -1
    assert ask(Changed(Plain(), choices), HERE, [1]) == [DELAY.plain], "nor is it a number that can be drawn"
    choices.chosen[HERE, 1] = 2**64
    assert ask(Changed(Plain(), choices), HERE, [1]) == [DELAY.plain]
    choices.picked[5, 0] = "nobody of that name"
    assert Changed(Plain(), choices).pick(5, ["a", "b"]) == 0
    choices.picked[5, 0] = "b"
    assert Changed(Plain(), choices).pick(5, ["a", "b"]) == 1
    choices.picked[5, 0] = "b #2"
    assert Changed(Plain(), choices).pick(5, ["b", "a", "b"]) == 2


def test_a_changed_pick_does_not_shift_those_after_it():
    choices = Choices()
    tasks = ["a", "b", "c"]
    expected = [tasks[i] for i in picks(7, [5], rounds=6)]
    expected[2] = "c" if expected[2] != "c" else "a"
    choices.picked[5, 2] = expected[2]
    decider = Changed(Seeded(7), choices)
    assert [tasks[decider.pick(5, tasks)] for _ in range(6)] == expected


def test_plain_tasks_go_in_the_order_of_coming():
    def main():
        done = queue.Queue()
        for number in range(20):
            threading.Thread(target=done.put, args=(number,)).start()
        time.sleep(1)
        return [done.get() for _ in range(20)]

    assert Simulation(1, decider=Plain()).run(main) == list(range(20))
    assert Simulation(1).run(main) != list(range(20))


def test_plain_seeds_of_nodes_differ_from_each_other():
    seeds = {NodeSeed(name, incarnation).plain for name in "0123456" for incarnation in range(1, 5)}
    assert len(seeds) == 28


def test_what_is_settled_can_still_be_changed():
    choices = Choices()
    assert Seeded(1).choose(("crash", "0", "after save"), 1, Settled(3)) == 3
    choices.chosen[("crash", "0", "after save"), 1] = 5
    assert Changed(Seeded(1), choices).choose(("crash", "0", "after save"), 1, Settled(3)) == 5
