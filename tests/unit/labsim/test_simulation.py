"""The runtime itself: what run() promises, the clock, the timers, the streams, and that nothing is left behind."""

import contextlib
import decimal
import gc
import sys
import threading as real_threading
import tracemalloc

import pytest
from greenlet import greenlet

from labsim import Simulation, SimulationError, TaskFailed, current_simulation, random, threading, time
from labsim.choices import UniformInt

NS_PER_S = 1_000_000_000


# ---- running -------------------------------------------------------------------------------------------------


def test_run_returns_the_value_of_main():
    assert Simulation(1).run(lambda: "done") == "done"


def test_an_exception_of_main_comes_out_as_it_is():
    error = KeyError("mine")

    def main():
        time.sleep(1)
        raise error

    with pytest.raises(KeyError) as caught:
        Simulation(1).run(main)
    assert caught.value is error
    assert caught.traceback[-1].name == "main"


def test_a_simulation_runs_once():
    sim = Simulation(1)
    sim.run(lambda: None)
    with pytest.raises(SimulationError) as caught:
        sim.run(lambda: None)
    assert (
        str(caught.value)
        == "run(): this Simulation has run already; to repeat a run, make a new Simulation with the same seed"
    )


def test_a_simulation_that_failed_does_not_run_again():
    sim = Simulation(1)
    with pytest.raises(ZeroDivisionError):
        sim.run(lambda: 1 / 0)
    with pytest.raises(SimulationError, match="has run already"):
        sim.run(lambda: None)


def test_simulations_do_not_nest():
    with pytest.raises(SimulationError) as caught:
        Simulation(1).run(lambda: Simulation(2).run(lambda: None))
    assert str(caught.value) == "run(): a simulation is running in this thread already; simulations cannot be nested"


def test_a_refused_inner_run_leaves_the_outer_one_running():
    def main():
        with pytest.raises(SimulationError):
            Simulation(2).run(lambda: None)
        time.sleep(3)
        return time.monotonic()

    assert Simulation(1).run(main) == 3


@pytest.mark.parametrize(
    ("arguments", "error", "text"),
    [
        ({"seed": "7"}, TypeError, "Simulation(): seed must be an int, got '7'"),
        (
            {"seed": 7, "livelock_switches": 0},
            ValueError,
            "Simulation(): livelock_switches must be at least 1, got 0",
        ),
        (
            {"seed": 7, "unresponsive_s": 0},
            ValueError,
            "Simulation(): unresponsive_s must be above 0, or None, got 0",
        ),
    ],
)
def test_bad_arguments_are_refused(arguments, error, text):
    with pytest.raises(error) as caught:
        Simulation(**arguments)
    assert str(caught.value) == text


def test_current_simulation_is_known_inside_only():
    sim = Simulation(1)
    assert sim.run(current_simulation) is sim
    assert current_simulation() is None


def test_two_simulations_in_two_os_threads_do_not_meet():
    def one_run(digests, seed):
        sim = Simulation(seed)

        def main():
            threads = [threading.Thread(target=time.sleep, args=(random.random(),)) for _ in range(200)]
            for thread in threads:
                thread.start()
            for thread in threads:
                thread.join()

        sim.run(main)
        digests.append(sim.digest())

    alone: list[str] = []
    one_run(alone, 5)
    together: list[str] = []
    real_threads = [real_threading.Thread(target=one_run, args=(together, 5)) for _ in range(4)]
    for thread in real_threads:
        thread.start()
    for thread in real_threads:
        thread.join()
    assert together == alone * 4


# ---- the clock -------------------------------------------------------------------------------------------------


def test_the_clock_moves_only_when_all_wait():
    sim = Simulation(1)
    seen_ns = []

    def busy():
        for _ in range(50):
            time.sleep(0)
            seen_ns.append(sim.now_ns)

    def main():
        threading.Thread(target=time.sleep, args=(0.000001,)).start()
        worker = threading.Thread(target=busy)
        worker.start()
        worker.join()
        assert sim.now_ns == 0  # busy was ready all the time, so the sleeper's microsecond never passed
        time.sleep(5)

    sim.run(main)
    assert set(seen_ns) == {0}
    assert sim.now_ns == 5 * NS_PER_S
    assert sim.now == 5.0


def test_the_clock_goes_straight_to_the_next_timer():
    def main():
        sim = current_simulation()
        before = sim.switches
        time.sleep(1_000_000)
        return sim.switches - before

    assert Simulation(1).run(main) == 1


def test_everything_due_at_one_instant_is_ordered_by_the_seed():
    def order(seed):
        woken = []

        def main():
            threads = [threading.Thread(target=lambda i=i: (time.sleep(1), woken.append(i))) for i in range(5)]
            for thread in threads:
                thread.start()
            time.sleep(2)

        Simulation(seed).run(main)
        return tuple(woken)

    assert len({order(seed) for seed in range(20)}) > 5


def test_a_wake_at_the_instant_of_the_timeout_wakes_once():
    """Both happen at 1 s. Whatever the order, the task must not be ready twice: its next sleep would end early."""

    def main():
        event = threading.Event()
        slept_s = []

        def waiter():
            event.wait(1)
            began_s = time.monotonic()
            time.sleep(5)
            slept_s.append(time.monotonic() - began_s)

        thread = threading.Thread(target=waiter)
        thread.start()
        time.sleep(1)
        event.set()
        thread.join()
        return slept_s

    for seed in range(20):
        assert Simulation(seed).run(main) == [5.0]


def test_lock_handed_over_at_the_timeout_is_not_lost():
    def main():
        lock = threading.Lock()
        outcomes = []

        def waiter():
            outcomes.append(lock.acquire(timeout=1))
            if outcomes[0]:
                lock.release()

        with lock:
            thread = threading.Thread(target=waiter)
            thread.start()
            time.sleep(1)
        thread.join()
        assert lock.acquire(timeout=1), f"nobody holds it, after acquire() gave {outcomes}"
        return outcomes[0]

    assert {Simulation(seed).run(main) for seed in range(20)} == {True, False}


# ---- timers ----------------------------------------------------------------------------------------------------


def test_call_later_calls_at_its_time_unless_cancelled():
    sim = Simulation(1)
    calls = []

    def main():
        sim.call_later(2 * NS_PER_S, calls.append, "late")
        sim.call_later(1 * NS_PER_S, lambda: calls.append(sim.now))
        sim.cancel(sim.call_later(1 * NS_PER_S, calls.append, "cancelled"))
        time.sleep(3)

    sim.run(main)
    assert calls == [1.0, "late"]


def test_cancelling_a_call_twice_or_late_is_harmless():
    sim = Simulation(1)

    def main():
        fired = sim.call_later(1, lambda: None)
        other = sim.call_later(5, lambda: None)
        time.sleep(0.5)
        for _ in range(500):
            sim.cancel(fired)
            sim.cancel(other)
        time.sleep(1)
        return sim._stale_timers

    assert sim.run(main) == 0


def test_cancelled_timers_do_not_pile_up():
    sim = Simulation(1)

    def main():
        asked, answered = threading.Event(), threading.Event()
        largest = 0

        def answerer():
            while True:
                asked.wait(3600)
                asked.clear()
                answered.set()

        threading.Thread(target=answerer).start()
        for _ in range(50_000):
            asked.set()
            assert answered.wait(3600)
            answered.clear()
            largest = max(largest, len(sim._timers))
        return largest

    assert sim.run(main) < 300
    assert sim.switches >= 100_000


def test_cancelled_calls_do_not_pile_up():
    sim = Simulation(1)

    def main():
        keep = [sim.call_later(10 * NS_PER_S, lambda: None) for _ in range(10)]
        for _ in range(10_000):
            sim.cancel(sim.call_later(5 * NS_PER_S, lambda: None))
        assert len(sim._timers) < 300
        time.sleep(11)
        return [call.timer for call in keep]

    assert sim.run(main) == [0] * 10  # those that were not cancelled were called


def test_a_failing_call_later_ends_the_run_and_names_the_clock():
    sim = Simulation(1)

    def broken():
        raise ValueError("bad timer")

    def main():
        sim.call_later(NS_PER_S, broken)
        try:
            time.sleep(2)
        except ValueError:
            pytest.fail("it surfaced in the task that happened to wait")

    with pytest.raises(TaskFailed) as caught:
        sim.run(main)
    assert str(caught.value).splitlines()[0] == "task clock ended with an exception at 1.000000 s:"
    assert str(caught.value).splitlines()[-1] == "ValueError: bad timer"
    assert isinstance(caught.value.__cause__, ValueError)


def test_a_function_of_call_later_must_not_wait():
    sim = Simulation(1)

    def waits():
        with contextlib.suppress(Exception):
            time.sleep(1)

    def main():
        sim.call_later(NS_PER_S, waits)
        time.sleep(5)

    with pytest.raises(SimulationError) as caught:
        sim.run(main)
    assert str(caught.value) == (
        "call_later(): the function must not wait, but it waits in sleep; let it spawn() a task that waits"
    )


def test_a_function_of_call_later_is_nobodys_task():
    """It runs on the stack of a task that is about to wait, whose node and random stream are not its own."""
    sim = Simulation(1)
    seen = []

    def call():
        seen.append((sim.current.node, threading.current_thread().name))
        threading.Thread(target=lambda: seen.append(sim.current.node)).start()

    def main():
        node = sim.node("peer")
        sim.call_later(NS_PER_S, call)
        sim.spawn(time.sleep, 0.5, node=node)
        sim.spawn(time.sleep, 1.5, node=node)
        sim.call_on(node, time.sleep, 3)

    sim.run(main)
    assert seen == [(None, "clock"), None]


# ---- tasks -----------------------------------------------------------------------------------------------------


def test_greenlets_are_reused():
    seen = set()

    def main():
        for _ in range(100):
            thread = threading.Thread(target=lambda: seen.add(id(current_simulation().current.greenlet)))
            thread.start()
            thread.join()

    Simulation(1).run(main)
    assert len(seen) == 1


def test_a_reused_greenlet_does_not_carry_context_over():
    def main():
        def spoil():
            decimal.getcontext().prec = 3

        sim = current_simulation()
        sim.join(sim.spawn(spoil))
        task = sim.spawn(lambda: decimal.getcontext().prec)
        sim.join(task)
        return task.value

    assert Simulation(1).run(main) == 28


def test_tasks_are_known_until_they_end():
    sim = Simulation(1)

    def main():
        short = sim.spawn(time.sleep, 1, name="short")
        sim.spawn(time.sleep, 10, name="long")
        before = [str(task) for task in sim.tasks()]
        sim.join(short)
        return before, [str(task) for task in sim.tasks()]

    assert sim.run(main) == (["main", "short", "long"], ["main", "long"])
    assert list(sim.tasks()) == []


def test_join_gives_up_after_its_timeout_and_can_be_repeated():
    sim = Simulation(1)

    def main():
        task = sim.spawn(time.sleep, 10)
        assert not sim.join(task, 3 * NS_PER_S)
        assert sim.now == 3
        assert sim.join(task, 60 * NS_PER_S)
        assert sim.now == 10
        assert sim.join(task)

    sim.run(main)


def test_ten_thousand_tasks():
    sim = Simulation(1)
    ended = []

    def main():
        def work():
            time.sleep(random.random())
            ended.append(1)

        for task in [sim.spawn(work) for _ in range(10_000)]:
            sim.join(task)

    sim.run(main)
    assert len(ended) == 10_000


def test_a_deep_chain_of_beginnings_costs_no_recursion_depth():
    """Each task starts the next and waits for it; a greenlet must not inherit the depth of who started it."""

    def main():
        def link(left):
            if left:
                thread = threading.Thread(target=link, args=(left - 1,))
                thread.start()
                thread.join()

        link(2 * sys.getrecursionlimit())
        return "no RecursionError"

    assert Simulation(1).run(main) == "no RecursionError"


def test_a_task_may_recurse_as_deeply_as_main():
    def depth(n=0):
        try:
            return depth(n + 1)
        except RecursionError:
            return n

    def main():
        depths = []

        def at_some_depth(left):
            if left:
                return at_some_depth(left - 1)
            thread = threading.Thread(target=lambda: depths.append(depth()))
            thread.start()
            return thread.join()

        at_some_depth(0)
        at_some_depth(300)
        return depths

    shallow, deep = Simulation(1).run(main)
    assert abs(shallow - deep) < 10


def test_endless_recursion_fails_the_task_with_a_short_report():
    def endless():
        endless()

    def main():
        threading.Thread(target=endless, name="loop").start()
        time.sleep(1)

    with pytest.raises(TaskFailed) as caught:
        Simulation(1).run(main)
    assert isinstance(caught.value.__cause__, RecursionError)
    assert len(str(caught.value).splitlines()) < 40


def test_a_task_may_wait_inside_a_generator():
    def main():
        def ticks():
            try:
                while True:
                    time.sleep(1)
                    yield time.monotonic()
            finally:
                time.sleep(5)  # runs on close(), in whichever task closes it

        generator = ticks()
        first = [next(generator), next(generator)]
        rest = []
        thread = threading.Thread(target=lambda: rest.append(next(generator)))
        thread.start()
        thread.join()
        generator.close()
        return first, rest, time.monotonic()

    assert Simulation(1).run(main) == ([1.0, 2.0], [3.0], 8.0)


def test_a_handled_exception_stays_with_its_task():
    def main():
        seen = []

        def other():
            seen.append(sys.exc_info()[0])
            time.sleep(1)

        try:
            raise ValueError
        except ValueError:
            thread = threading.Thread(target=other)
            thread.start()
            thread.join()
            seen.append(sys.exc_info()[0])
        return seen

    assert Simulation(1).run(main) == [None, ValueError]


# ---- chance ----------------------------------------------------------------------------------------------------


def _draws(extra_draws):
    """What every stream gives in a run in which the node `a` draws a few times more than it needs."""
    sim = Simulation(9)
    drawn = {}

    def main():
        a, b = sim.node("a"), sim.node("b")
        sim.call_on(a, lambda: [random.random() for _ in range(extra_draws)])
        drawn["a message"] = sim.choice_source.choose(("request", "a->b", "Echo.say"), 1, UniformInt(0, 10**9))
        drawn["main"] = random.random()
        drawn["b"] = sim.call_on(b, random.random)
        drawn["a, next incarnation"] = sim.call_on(sim.node("a"), random.random)
        drawn["a"] = sim.call_on(a, random.random)

    sim.run(main)
    return drawn


def test_an_extra_draw_in_one_node_changes_no_other_stream():
    without, with_extra = _draws(0), _draws(3)
    assert without.pop("a") != with_extra.pop("a")
    assert without == with_extra
    assert len(set(without.values())) == len(without)


def test_draws_differ_by_seed_and_repeat_with_it():
    def draw(seed):
        return Simulation(seed).run(random.random)

    assert draw(1) == draw(1)
    assert len({draw(seed) for seed in range(100)}) == 100


# ---- the end ---------------------------------------------------------------------------------------------------


def test_everything_spawned_is_gone_after_the_run():
    ran_on = []

    def main():
        def for_ever():
            while True:
                time.sleep(1)
                ran_on.append(time.monotonic())

        for _ in range(5):
            threading.Thread(target=for_ever).start()
        threading.Timer(100, ran_on.append, ["timer"]).start()
        time.sleep(2.5)

    gc.collect()
    before = _count(greenlet)
    Simulation(1).run(main)
    gc.collect()
    assert _count(greenlet) == before
    assert sorted(ran_on) == [1.0] * 5 + [2.0] * 5


def test_a_failed_run_leaves_nothing_behind_either():
    def main():
        threading.Thread(target=time.sleep, args=(9,)).start()
        threading.Thread(target=lambda: 1 / 0).start()
        time.sleep(1)

    gc.collect()
    before = _count(greenlet), _count(Simulation)
    for seed in range(5):
        with pytest.raises(TaskFailed):
            Simulation(seed).run(main)
    gc.collect()
    assert (_count(greenlet), _count(Simulation)) == before


def _count(cls):
    return sum(isinstance(thing, cls) for thing in gc.get_objects())


def test_leftover_tasks_are_unwound_without_effect_on_the_run():
    sim = Simulation(1)
    unwound = []

    def main():
        def leftover():
            try:
                time.sleep(100)
            except BaseException as error:
                unwound.append(type(error).__name__)
                sim.emit("late", None, None, 1)
                sim.spawn(unwound.append, "spawned")
                raise
            finally:
                unwound.append("finally")
                time.sleep(1)
                unwound.append("a wait returned")

        threading.Thread(target=leftover).start()
        time.sleep(1)
        assert unwound == []
        return sim.digest()

    digest = sim.run(main)
    assert unwound == ["GreenletExit", "finally"]
    assert sim.digest() == digest
    assert sim.trace == []
    assert sim.now == 1


def test_what_a_dying_task_raises_concerns_nobody():
    def main():
        def leftover():
            try:
                time.sleep(100)
            finally:
                raise ValueError("too late")

        threading.Thread(target=leftover).start()
        time.sleep(1)
        return "fine"

    assert Simulation(1).run(main) == "fine"


def test_task_that_swallows_everything_does_not_hang_the_end():
    def main():
        def stubborn():
            while True:
                with contextlib.suppress(BaseException):
                    time.sleep(1)

        threading.Thread(target=stubborn).start()
        time.sleep(3)
        return "ended"

    assert Simulation(1).run(main) == "ended"


def test_waiting_for_a_lock_of_an_ended_simulation_is_an_error():
    lock = Simulation(1).run(threading.Lock)
    event = Simulation(2).run(threading.Event)
    lock.acquire()
    with pytest.raises(SimulationError) as caught:
        lock.acquire()
    assert str(caught.value) == "this object belongs to a simulation that has ended; make a new one"
    with pytest.raises(SimulationError, match="a simulation that has ended"):
        Simulation(3).run(event.wait)


def test_memory_stays_flat_over_many_simulations():
    def main():
        lock = threading.Lock()

        def work():
            for _ in range(20):
                with lock:
                    time.sleep(0.01)

        threads = [threading.Thread(target=work) for _ in range(20)]
        for thread in threads:
            thread.start()
        time.sleep(1)  # some are left over
        node = current_simulation().node("peer")
        current_simulation().spawn(work, node=node)
        time.sleep(0.01)
        current_simulation().kill(node)

    def in_use():
        gc.collect()
        return tracemalloc.get_traced_memory()[0]

    for seed in range(3):
        Simulation(seed).run(main)
    tracemalloc.start()
    try:
        Simulation(0).run(main)
        before = in_use()
        for seed in range(10):
            Simulation(seed).run(main)
        grown = in_use() - before
    finally:
        tracemalloc.stop()
    assert grown < 20_000, f"ten simulations left {grown} bytes behind"
