"""Garbage is collected where the run says: no __del__ and no weak reference can tell a run from its repeat."""

import gc
import weakref
from itertools import pairwise

import pytest

from labsim import RealWorldError, Simulation, SimulationError, garbage, random, time

MANY = 40_000  # sleeps, enough for a run to collect several times


class Cycle:
    """Freed by the collector only."""

    def __init__(self):
        self.me = self


class CycleThatDraws(Cycle):
    def __del__(self):
        random.random()


def digest_of_a_run_with_a_del():
    def main():
        for number in range(MANY):
            if number % 10 == 0:
                CycleThatDraws()
            time.sleep(random.random())

    sim = Simulation(1)
    sim.run(main)
    return sim.digest()


def test_del_in_a_cycle_is_independent_of_earlier_runs():
    digests = set()
    for before in (0, 100, 350):
        kept = [[] for _ in range(before)]  # what Python's own collector would count
        digests.add(digest_of_a_run_with_a_del())
        del kept
    assert len(digests) == 1


def test_garbage_of_before_does_not_act_in_the_run():
    draws = []

    class Leftover(Cycle):
        def __del__(self):
            draws.append(gone_after)

    gone_after = "before the run"
    gc.disable()
    try:
        Leftover()

        def main():
            nonlocal gone_after
            gone_after = "in the run"
            for _ in range(MANY):
                time.sleep(1)

        Simulation(1).run(main)
    finally:
        gc.enable()
    assert draws == ["before the run"]


def test_a_run_collects_its_garbage_as_it_goes():
    alive = []

    def main():
        made = weakref.WeakSet()
        for _ in range(MANY):
            made.add(Cycle())
            time.sleep(1)
            alive.append(len(made))

    Simulation(1).run(main)
    assert max(alive) < MANY / 2
    assert sum(now < before for before, now in pairwise(alive)) > 1


class CycleThatSleeps(Cycle):
    def __del__(self):
        time.sleep(1)


def run_with_a_del_that_waits():
    def main():
        CycleThatSleeps()
        for _ in range(MANY):
            time.sleep(1)

    sim = Simulation(1)
    with pytest.raises(SimulationError) as caught:
        sim.run(main)
    return weakref.ref(sim), str(caught.value)


def test_a_del_that_waits_ends_the_run_with_a_sentence():
    _, said = run_with_a_del_that_waits()
    assert said.startswith("__del__() must not wait when garbage is collected, but it waits in sleep:\n")
    assert "test_garbage.py" in said and "time.sleep(1)" in said


def test_a_run_ended_by_a_del_leaves_nothing_behind():
    sim, _ = run_with_a_del_that_waits()
    gc.collect()
    assert sim() is None


def test_collecting_by_hand_is_refused():
    with pytest.raises(RealWorldError, match=r"gc\.collect\(\) .*remove this call"):
        Simulation(1).run(lambda: gc.collect())


def test_long_runs_do_not_pile_up_in_memory():
    def long_run():
        class Holder(Cycle):
            """Outlives a look, and is garbage when the run is over."""

        def main():
            sim.kept = Holder()
            for _ in range(MANY):
                time.sleep(1)

        sim = Simulation(1)
        sim.myself = sim
        sim.run(main)
        return weakref.ref(sim)

    runs = [long_run() for _ in range(12)]
    assert sum(run() is not None for run in runs) <= 6


def test_several_runs_at_a_time_leave_it_to_python():
    with garbage.controlled_gc():
        alone = gc.get_threshold()
        with garbage.controlled_gc():
            cycle = weakref.ref(Cycle())
            garbage.collect()  # what is garbage may be another run's
            assert cycle() is not None
            assert gc.get_threshold() != alone


def test_collector_is_restored_after_the_last_run():
    python_s = gc.get_threshold()
    first, second = garbage.controlled_gc(), garbage.controlled_gc()
    first.__enter__()
    second.__enter__()
    first.__exit__(None, None, None)
    second.__exit__(None, None, None)
    assert gc.get_threshold() == python_s
    with garbage.controlled_gc():
        assert gc.get_threshold() != python_s


def test_an_interrupt_before_the_run_changes_nothing(monkeypatch):
    python_s = gc.get_threshold()

    def interrupted(generation=2):
        raise KeyboardInterrupt

    with monkeypatch.context() as patched:
        patched.setattr(gc, "collect", interrupted)
        with pytest.raises(KeyboardInterrupt):
            Simulation(1).run(int)
    assert gc.get_threshold() == python_s
    assert Simulation(1).run(gc.get_threshold) != python_s


def test_a_run_that_fails_gives_the_collector_back():
    python_s = gc.get_threshold()
    in_the_run = []

    def main():
        in_the_run.append(gc.get_threshold())
        raise ZeroDivisionError

    with pytest.raises(ZeroDivisionError):
        Simulation(1).run(main)
    assert in_the_run[0] != python_s == gc.get_threshold()
