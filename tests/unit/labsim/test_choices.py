"""Choice sources: choices have keys, can be recorded and replayed, and become the default where nothing fits."""

from collections import Counter
from itertools import pairwise
from random import Random

import pytest

from labsim import Simulation, choices, queue, random, threading, time
from labsim.choices import (
    Choices,
    Constant,
    DefaultSource,
    NodeSeed,
    OverridingSource,
    RecordingSource,
    SeededSource,
    UniformInt,
)

DELAY = UniformInt(0, 10**9)
HERE = ("request", "0->1", "Raft.append_entries")
THERE = ("request", "1->0", "Raft.append_entries")


def ask(choice_source, point, ordinals):
    return [choice_source.choose(point, ordinal, DELAY) for ordinal in ordinals]


# ---- SeededSource ----------------------------------------------------------------------------------------------


def test_choice_depends_on_seed_point_and_ordinal_only():
    expected = ask(SeededSource(7), HERE, range(1, 20))
    assert len(set(expected)) == len(expected)
    assert ask(SeededSource(7), THERE, range(1, 20)) != expected
    assert ask(SeededSource(8), HERE, range(1, 20)) != expected
    disturbed = SeededSource(7)
    interleaved = []
    for ordinal in range(1, 20):
        ask(disturbed, THERE, range(1, ordinal))
        interleaved += ask(disturbed, HERE, [ordinal])
    assert interleaved == expected


@pytest.mark.parametrize(
    "ordinals", [[5], [1, 2, 4], [9, 3], [2, 2, 2], [4, 1, 2, 3, 9]], ids=lambda ordinals: str(ordinals)
)
def test_choice_can_be_asked_for_out_of_order(ordinals):
    expected = ask(SeededSource(7), HERE, range(1, 10))
    assert ask(SeededSource(7), HERE, ordinals) == [expected[ordinal - 1] for ordinal in ordinals]


def test_asking_out_of_order_does_not_restart_the_stream(monkeypatch):
    """Drawing each point's stream from the beginning again would make long runs take forever."""
    expected = ask(SeededSource(7), HERE, range(1, 5001))
    begun = []
    generator = choices._random.Random
    monkeypatch.setattr(choices._random, "Random", lambda seed: begun.append(seed) or generator(seed))
    choice_source = SeededSource(7)
    arriving = sorted(range(1, 5001), key=lambda ordinal: ordinal + 100 * (ordinal * 0.618 % 1))
    assert arriving != sorted(arriving)
    assert [ask(choice_source, HERE, [ordinal])[0] for ordinal in arriving] == [expected[n - 1] for n in arriving]
    assert len(begun) == 1


def picks(seed, instants, tasks=3, rounds=1):
    choice_source = SeededSource(seed)
    return [choice_source.pick(now_ns, range(tasks)) for now_ns in instants for _ in range(rounds)]


def test_pick_does_not_depend_on_earlier_instants():
    instants = [n * 10_000_000 for n in range(50)]
    whole = dict(zip(instants, picks(3, instants), strict=True))
    assert picks(3, instants[7::5]) == [whole[now_ns] for now_ns in instants[7::5]]


@pytest.mark.parametrize("step_ns", [1, 10_000_000, 123_457])
def test_picks_are_uniform_and_independent_across_instants(step_ns):
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
    die = UniformInt(1, 6)
    thrown = Counter(die.sample(Random(n).getrandbits(64)) for n in range(6000))
    assert sorted(thrown) == [1, 2, 3, 4, 5, 6]
    assert all(800 < n < 1200 for n in thrown.values()), thrown
    assert die.sample(0) == 1
    assert die.sample(2**64 - 1) == 6


# ---- what the tester draws -------------------------------------------------------------------------------------


def draws_of(choice_source, further=False):
    def main():
        drawn = []
        for _ in range(5):
            drawn.append(random.random())
            if further:
                random.random()
        return drawn

    return Simulation(1, choice_source=choice_source).run(main)


def test_tester_draw_is_keyed_by_its_call():
    once, twice = draws_of(SeededSource(4)), draws_of(SeededSource(4), further=True)
    assert once == twice, "draws in another line change nothing here"
    assert len(set(once)) == 5
    assert draws_of(SeededSource(5)) != once


def test_default_draw_is_the_lowest_value():
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

    assert Simulation(1, choice_source=DefaultSource()).run(main) == (0.0, 3, 3, 2.0, "a", 0, 0.0)
    assert 0.0 not in Simulation(1).run(main)


def test_no_function_of_random_hangs_on_default_numbers():
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

    assert Simulation(1, choice_source=DefaultSource()).run(main) == Simulation(2, choice_source=DefaultSource()).run(
        main
    )


def test_numbers_within_one_draw_are_uniform():
    def main():
        return [random.sample(range(10), 10) for _ in range(3000)]

    orders = Simulation(1).run(main)
    for place in range(10):
        seen = Counter(order[place] for order in orders)
        assert sum((n - 300) ** 2 / 300 for n in seen.values()) < 35, (place, seen)


def test_bits_within_one_draw_are_uniform():
    def main():
        return random.getrandbits(1_000_001), random.randbytes(80_000), random.getrandbits(65)

    bits, drawn, few = Simulation(1).run(main)
    assert 999_960 < bits.bit_length() <= 1_000_001
    assert few.bit_length() <= 65
    for of_each in range(8):  # a generator's lower bits may be poor, and come round soon
        lows = [byte & 1 for byte in drawn[of_each::8]]
        assert abs(sum(lows) - 5000) < 200
        assert abs(sum(a ^ b for a, b in pairwise(lows)) - 5000) < 200


# ---- recording, overriding ---------------------------------------------------------------------------------------


def run_a_few_tasks(choice_source):
    """(digest, what it came to) of a run that makes every kind of choice that labsim itself has."""
    sim = Simulation(0, choice_source=choice_source)

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


def test_recorded_run_is_replayed_without_its_seed():
    recording = RecordingSource(SeededSource(11))
    original = run_a_few_tasks(recording)
    assert run_a_few_tasks(SeededSource(11)) == original, "recording changes nothing"
    assert run_a_few_tasks(OverridingSource(DefaultSource(), recording.choices)) == original
    assert run_a_few_tasks(DefaultSource()) != original


@pytest.mark.parametrize("seed", range(10))
def test_recording_works_for_any_thread_names(seed):
    def main():
        order = []
        for number, name in enumerate(["sender", "sender", "sender #2", "sender", "sender #3", "sender #2 #2"]):
            threading.Thread(target=order.append, args=(number,), name=name).start()
        time.sleep(1)
        return order

    recording = RecordingSource(SeededSource(seed))
    order = Simulation(0, choice_source=recording).run(main)
    assert Simulation(0, choice_source=OverridingSource(DefaultSource(), recording.choices)).run(main) == order


def test_defaults_are_not_recorded():
    recording = RecordingSource(DefaultSource())
    run_a_few_tasks(recording)
    assert not recording.choices.chosen
    assert not recording.choices.picked


def test_overriding_one_choice_leaves_others_alone():
    choices = Choices()
    choices.chosen[HERE, 3] = 42
    expected = ask(SeededSource(7), HERE, range(1, 9))
    expected[2] = 42
    assert ask(OverridingSource(SeededSource(7), choices), HERE, range(1, 9)) == expected


def test_choice_that_does_not_fit_is_left_to_the_inner_source():
    choices = Choices()
    choices.chosen[HERE, 1] = "a word, where a number is asked for"
    assert ask(OverridingSource(DefaultSource(), choices), HERE, [1]) == [DELAY.default]
    choices.chosen[HERE, 1] = -1
    assert ask(OverridingSource(DefaultSource(), choices), HERE, [1]) == [DELAY.default], (
        "nor is it a number that can be drawn"
    )
    choices.chosen[HERE, 1] = 2**64
    assert ask(OverridingSource(DefaultSource(), choices), HERE, [1]) == [DELAY.default]
    choices.picked[5, 0] = "nobody of that name"
    assert OverridingSource(DefaultSource(), choices).pick(5, ["a", "b"]) == 0
    choices.picked[5, 0] = "b"
    assert OverridingSource(DefaultSource(), choices).pick(5, ["a", "b"]) == 1
    choices.picked[5, 0] = "b #2"
    assert OverridingSource(DefaultSource(), choices).pick(5, ["b", "a", "b"]) == 2


def test_overriding_a_pick_does_not_shift_later_picks():
    choices = Choices()
    tasks = ["a", "b", "c"]
    expected = [tasks[i] for i in picks(7, [5], rounds=6)]
    expected[2] = "c" if expected[2] != "c" else "a"
    choices.picked[5, 2] = expected[2]
    choice_source = OverridingSource(SeededSource(7), choices)
    assert [tasks[choice_source.pick(5, tasks)] for _ in range(6)] == expected


def test_default_task_order_is_order_of_arrival():
    def main():
        done = queue.Queue()
        for number in range(20):
            threading.Thread(target=done.put, args=(number,)).start()
        time.sleep(1)
        return [done.get() for _ in range(20)]

    assert Simulation(1, choice_source=DefaultSource()).run(main) == list(range(20))
    assert Simulation(1).run(main) != list(range(20))


def test_default_node_seeds_differ():
    seeds = {NodeSeed(name, incarnation).default for name in "0123456" for incarnation in range(1, 5)}
    assert len(seeds) == 28


def test_constant_can_be_overridden():
    choices = Choices()
    assert SeededSource(1).choose(("crash", "0", "after save"), 1, Constant(3)) == 3
    choices.chosen[("crash", "0", "after save"), 1] = 5
    assert OverridingSource(SeededSource(1), choices).choose(("crash", "0", "after save"), 1, Constant(3)) == 5
