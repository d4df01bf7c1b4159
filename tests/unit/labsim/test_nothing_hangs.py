"""A run that cannot go on says so, and says who, where and why: deadlock, livelock, a busy loop, an exception."""

import contextlib
import re
import signal
import subprocess
import sys
import textwrap
import threading as real_threading
import time as real_time

import pytest

from labsim import (
    Deadlock,
    Livelock,
    Simulation,
    TaskFailed,
    Unresponsive,
    WaitKind,
    current_simulation,
    queue,
    threading,
    time,
)
from labsim.blocked import node_threads
from labsim.waits import wait_of

# ---- deadlock ----------------------------------------------------------------------------------------------------

TWO_LOCKS = """\
from labsim import threading, time


def take(first, second):
    with first:
        time.sleep(1)
        with second:
            pass


def main(simulation):
    a = threading.Lock()
    b = threading.Lock()
    node = simulation.node("peer-0")
    simulation.spawn(take, a, b, name="upward", node=node)
    simulation.spawn(take, b, a, name="downward", node=node)
    time.sleep(3)
    never = threading.Event()
    never.wait()
"""


@pytest.fixture
def program(tmp_path, monkeypatch):
    """Writes a module, imports it and returns it; paths in reports are relative to where it is."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.syspath_prepend(tmp_path)
    monkeypatch.setattr(sys, "dont_write_bytecode", True)
    names = []

    def write(source, name="student"):
        (tmp_path / f"{name}.py").write_text(textwrap.dedent(source))
        sys.modules.pop(name, None)
        names.append(name)
        return __import__(name)

    yield write
    for name in names:
        sys.modules.pop(name, None)


def report_of(caught):
    return str(caught.value).splitlines()


def test_deadlock_names_tasks_waits_holders_and_stacks(program):
    student = program(TWO_LOCKS)
    sim = Simulation(1)
    with pytest.raises(Deadlock) as caught:
        sim.run(lambda: student.main(sim))
    assert [re.sub("  +", "  ", line.rstrip()) for line in report_of(caught)[:9]] == [
        "Deadlock at 3.000000 s: every task waits and no timer is set.",
        "  main has waited 0.000 s for an Event made at student.py:18 to be set",
        "  student.py:19 in main  never.wait()",
        f"  {report_of(caught)[3].strip()}",  # this file's own lambda
        "  upward of peer-0 has waited 2.000 s for a Lock made at student.py:13, held by downward of peer-0",
        "  student.py:7 in take  with second:",
        "  downward of peer-0 has waited 2.000 s for a Lock made at student.py:12, held by upward of peer-0",
        "  student.py:7 in take  with second:",
    ]


def test_a_lock_taken_twice_is_held_by_itself():
    def main():
        lock = threading.Lock()
        lock.acquire()
        lock.acquire()

    with pytest.raises(Deadlock) as caught:
        Simulation(1).run(main)
    assert re.fullmatch(
        r"  main has waited 0\.000 s for a Lock made at .*test_nothing_hangs\.py:\d+, held by itself",
        report_of(caught)[1],
    )
    assert report_of(caught)[2].endswith("lock.acquire()")


def test_a_lock_that_was_never_released_is_held_by_who_has_ended():
    def main():
        lock = threading.Lock()
        taker = threading.Thread(target=lock.acquire, name="taker")
        taker.start()
        taker.join()
        lock.acquire()

    with pytest.raises(Deadlock) as caught:
        Simulation(1).run(main)
    assert report_of(caught)[1].endswith(", held by taker, which has ended")
    assert [wait.kind for wait in caught.value.waits] == [WaitKind.LOST_LOCK]


def test_a_wait_for_a_time_says_how_much_is_left():
    def main():
        simulation = current_simulation()
        sleeper = threading.Thread(target=time.sleep, args=(10,))
        waiter = threading.Thread(target=threading.Event().wait)
        sleeper.start()
        waiter.start()
        time.sleep(4)
        return [wait_of(simulation, task) for task in simulation.tasks() if task.thread in (sleeper, waiter)]

    assert [(wait.waited_ns, wait.left_ns) for wait in Simulation(1).run(main)] == [
        (4_000_000_000, 6_000_000_000),
        (4_000_000_000, None),
    ]


@pytest.mark.parametrize(
    ("wait", "words"),
    [
        (lambda: queue.Queue().get(), "an item in a Queue made at {here}"),
        (lambda: [q := queue.Queue(1), q.put(1), q.put(2)], "space in a Queue made at {here}"),
        (lambda: [q := queue.Queue(1), q.put(1), q.join()], "task_done() in a Queue made at {here}"),
        (lambda: threading.Semaphore(0).acquire(), "a Semaphore made at {here} to be released"),
        (lambda: [c := threading.Condition(), c.acquire(), c.wait()], "a Condition made at {here} to be notified"),
        (
            lambda: [t := threading.Thread(target=threading.Event().wait, name="idle"), t.start(), t.join()],
            "idle to end",
        ),
    ],
)
def test_a_deadlock_says_what_is_waited_for(wait, words):
    with pytest.raises(Deadlock) as caught:
        Simulation(1).run(wait)
    expected = "  main has waited 0.000 s for " + re.escape(words).replace(
        r"\{here\}", r"\S*test_nothing_hangs\.py:\d+"
    )
    assert re.fullmatch(expected, report_of(caught)[1]), report_of(caught)[1]


def test_a_deadlock_shows_the_readers_lines_and_not_the_librarys():
    """Barrier.wait() is the standard library's code on our Condition."""

    def main():
        threading.Barrier(2).wait()

    with pytest.raises(Deadlock) as caught:
        Simulation(1).run(main)
    assert "threading.py" not in str(caught.value).replace("labsim", "")
    assert report_of(caught)[2].endswith("threading.Barrier(2).wait()")


def test_a_deadlock_of_very_many_tasks_stays_readable():
    def main():
        event = threading.Event()
        for _ in range(1000):
            threading.Thread(target=event.wait).start()
        event.wait()

    with pytest.raises(Deadlock) as caught:
        Simulation(1).run(main)
    assert report_of(caught)[-1] == "  ... and 971 more tasks"
    assert len(report_of(caught)) < 150


def test_a_deadlock_cannot_be_swallowed():
    def main():
        while True:
            with contextlib.suppress(BaseException):
                threading.Event().wait()

    with pytest.raises(Deadlock):
        Simulation(1).run(main)


def test_a_deadlock_after_the_only_other_task_was_killed():
    sim = Simulation(1)

    def main():
        node = sim.node("peer-0")
        event = threading.Event()
        sim.spawn(lambda: (time.sleep(1), event.set()), node=node)
        sim.call_later(1, sim.kill, node)
        event.wait()

    with pytest.raises(Deadlock, match="for an Event made at"):
        sim.run(main)


# ---- livelock ----------------------------------------------------------------------------------------------------


def test_a_livelock_names_the_limit_the_fix_and_who_takes_turns():
    sim = Simulation(1, livelock_switches=1000)

    def main():
        def poll():
            while True:
                time.sleep(0)

        sim.spawn(poll, name="poller", node=sim.node("peer-0"))
        sim.spawn(time.sleep, 100, name="innocent")
        time.sleep(5)

    with pytest.raises(Livelock) as caught:
        sim.run(main)
    assert report_of(caught)[:3] == [
        "Livelock at 0.000000 s: tasks have switched 1,000 times and virtual time has not advanced. "
        "Wait on a Condition, or sleep for more than 0 s.",
        "These tasks run in turn:",
        "  poller of peer-0 is ready to run",
    ]
    assert report_of(caught)[3].endswith("time.sleep(0)")
    assert len(report_of(caught)) == 4


def test_a_livelock_of_two_who_wake_each_other_names_both():
    def main():
        ping, pong = threading.Event(), threading.Event()

        def echo():
            while True:
                ping.wait()
                ping.clear()
                pong.set()

        threading.Thread(target=echo, name="echo").start()
        while True:
            ping.set()
            pong.wait()
            pong.clear()

    with pytest.raises(Livelock) as caught:
        Simulation(1, livelock_switches=1000).run(main)
    assert "  main " in str(caught.value) and "  echo " in str(caught.value)


def test_turns_are_counted_from_the_last_step_of_the_clock():
    def main():
        for _ in range(20):
            for _ in range(80):
                time.sleep(0)
            time.sleep(0.001)

    Simulation(1, livelock_switches=100).run(main)


# ---- a task that never waits ---------------------------------------------------------------------------------------

LIMIT_S = 0.1
PATIENCE_S = 60.0  # with a busy machine
real_lock = real_threading.Lock()


def spin():
    while True:
        pass


def spin_and_swallow():
    while True:
        try:
            for _ in range(1000):
                pass
        except BaseException:
            pass


def spin_in_finally():
    try:
        time.sleep(100)
    finally:
        spin()


def block_on_a_real_lock():
    real_lock.acquire()


def run_with(worker):
    sim = Simulation(1, unresponsive_s=LIMIT_S)

    def main():
        time.sleep(2.5)
        sim.spawn(worker, name="worker", node=sim.node("peer-0"))
        time.sleep(1)

    sim.run(main)


ADVICE = (
    "Virtual time does not advance while a task runs. Every loop must wait (time.sleep, Condition.wait, Queue.get); "
    "use only labsim's locks, and make them inside the simulation."
)


@pytest.mark.parametrize("worker", [spin, spin_and_swallow])
def test_a_busy_loop_is_shown(worker):
    with pytest.raises(Unresponsive) as caught:
        run_with(worker)
    assert report_of(caught)[0] == (
        "task worker of peer-0 has run for 0.1 s of processor time without waiting, at 2.500000 s (virtual). "
        "It is here:"
    )
    assert re.match(rf" +\S*test_nothing_hangs\.py:\d+ in {worker.__name__} ", report_of(caught)[1])
    assert report_of(caught)[-1] == ADVICE


@pytest.mark.parametrize("worker", [spin, spin_and_swallow])
def test_busy_loop_is_reported_in_another_os_thread(worker):
    caught = []

    def in_thread():
        try:
            run_with(worker)
        except BaseException as error:
            caught.append(error)
        # Nothing may be on its way to this thread any more.
        end = real_time.monotonic() + 2 * LIMIT_S
        while real_time.monotonic() < end:
            pass
        caught.append("fine after")

    thread = real_threading.Thread(target=in_thread)
    thread.start()
    thread.join(PATIENCE_S)
    assert caught[1:] == ["fine after"]
    [first, where, *_] = str(caught[0]).splitlines()
    assert isinstance(caught[0], Unresponsive)
    assert first.startswith("task worker of peer-0 has run for 0.1 s of processor time without waiting, at 2.500000 s")
    assert f" in {worker.__name__} " in where


def test_a_real_lock_that_blocks_is_shown():
    with real_lock, pytest.raises(Unresponsive) as caught:
        run_with(block_on_a_real_lock)
    assert report_of(caught)[0] == (
        "task worker of peer-0 has been blocked for 0.6 s of real time in a real call, at 2.500000 s (virtual). "
        "It is here:"
    )
    assert report_of(caught)[1].endswith("real_lock.acquire()")
    assert report_of(caught)[2] == ADVICE


def test_real_lock_in_another_os_thread_is_reported_on_stderr(capfd):
    """Python cannot interrupt it there, but it must not hang silently."""
    caught = []

    def in_thread():
        try:
            run_with(block_on_a_real_lock)
        except BaseException as error:
            caught.append(error)

    real_lock.acquire()
    thread = real_threading.Thread(target=in_thread)
    thread.start()
    try:
        text = ""
        end = real_time.monotonic() + PATIENCE_S
        while "real_lock.acquire()" not in text and real_time.monotonic() < end:
            real_time.sleep(0.05)
            text += capfd.readouterr().err
    finally:
        real_lock.release()
    thread.join(PATIENCE_S)
    assert text.startswith("labsim: task worker of peer-0 has been blocked for 0.6 s of real time in a real call")
    # As soon as the call returns, the run ends.
    assert isinstance(caught[0], Unresponsive)
    real_lock.acquire(blocking=False)  # held by the task that got it, or free; either way
    real_lock.release()


def test_spinning_finally_does_not_hang_the_end_of_the_run():
    with pytest.raises(Unresponsive, match="in spin "):
        run_with(spin_in_finally)


def test_a_task_under_a_debugger_is_left_alone():
    namespace = {"__name__": "pdb", "clock": real_time.thread_time}
    exec("def prompt(end_s):\n while clock() < end_s: pass", namespace)

    def main():
        namespace["prompt"](real_time.thread_time() + 2.5 * LIMIT_S)
        time.sleep(1)
        return "left alone"

    sim = Simulation(1, unresponsive_s=LIMIT_S)
    with pytest.MonkeyPatch.context() as patch:
        # The real clock is for this test's own use; the guard is tested elsewhere.
        patch.setattr("labsim.guard._RULES", ())
        assert sim.run(main) == "left alone"


def test_a_task_that_waits_now_and_then_is_left_alone():
    def main():
        for _ in range(800):
            for _ in range(10_000):
                pass
            time.sleep(0.001)
        return "left alone"

    assert Simulation(1, unresponsive_s=LIMIT_S).run(main) == "left alone"


def test_a_busy_machine_accuses_nobody():
    """Another thread uses as much of the processor; only the simulation's own share counts."""
    stop = []

    def hog():
        while not stop:
            pass

    def main():
        end_s = real_time.thread_time() + 0.7 * LIMIT_S
        while real_time.thread_time() < end_s:
            pass

    thread = real_threading.Thread(target=hog)
    thread.start()
    try:
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr("labsim.guard._RULES", ())
            Simulation(1, unresponsive_s=LIMIT_S).run(main)
    finally:
        stop.append(1)
        thread.join()


def test_the_watch_can_be_switched_off():
    def main():
        end = real_time_of_thread() + 2 * LIMIT_S
        while real_time_of_thread() < end:
            pass

    real_time_of_thread = real_time.thread_time
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("labsim.guard._RULES", ())
        Simulation(1, unresponsive_s=None).run(main)


def test_the_signal_handler_is_put_back():
    def own(*_):
        pass

    before = signal.signal(signal.SIGURG, own)
    try:
        Simulation(1).run(lambda: time.sleep(1))
        assert signal.getsignal(signal.SIGURG) is own
        with pytest.raises(Unresponsive):
            run_with(spin)
        assert signal.getsignal(signal.SIGURG) is own
    finally:
        signal.signal(signal.SIGURG, before)


def test_process_ends_after_a_task_that_catches_everything():
    source = """
        from labsim import Simulation, threading, time

        def stubborn():
            while True:
                try:
                    time.sleep(1)
                except BaseException:
                    pass

        def main():
            node = simulation.node("peer-0")
            simulation.spawn(stubborn, node=node)
            simulation.spawn(stubborn)
            time.sleep(1)
            simulation.kill(node)
            time.sleep(1)
            return "ended"

        simulation = Simulation(1)
        print(simulation.run(main))
    """
    done = subprocess.run([sys.executable, "-c", textwrap.dedent(source)], capture_output=True, text=True, check=False)
    assert (done.returncode, done.stdout, done.stderr) == (0, "ended\n", "")


# ---- exceptions ----------------------------------------------------------------------------------------------------


def test_exception_in_any_task_ends_the_run_with_its_traceback(program):
    student = program(
        """
        def apply(entry):
            return entry["index"]


        def applier():
            apply({})
        """
    )
    sim = Simulation(1)
    later = []

    def main():
        node = sim.node("peer-2")
        time.sleep(1.5)
        sim.spawn(student.applier, name="applier", node=node)
        try:
            time.sleep(1)
        finally:
            later.append(sim.now)

    with pytest.raises(TaskFailed) as caught:
        sim.run(main)
    lines = report_of(caught)
    assert lines[0] == "task applier of node peer-2 ended with an exception at 1.500000 s:"
    assert lines[1] == "Traceback (most recent call last):"
    assert lines[2].endswith('student.py", line 7, in applier')
    assert lines[3].strip() == "apply({})"
    assert lines[-1] == "KeyError: 'index'"
    assert "labsim" not in str(caught.value)
    assert (caught.value.task, caught.value.node) == ("applier", "peer-2")
    assert isinstance(caught.value.__cause__, KeyError)
    assert caught.value.__cause__.__traceback__.tb_frame.f_code.co_name == "applier"
    assert later == [1.5]  # at once: main did not get to its time


def test_an_exception_in_a_testers_thread_names_the_thread():
    def main():
        def broken():
            raise ValueError("oops")

        threading.Thread(target=broken, name="helper").start()
        time.sleep(1)

    with pytest.raises(TaskFailed) as caught:
        Simulation(1).run(main)
    assert report_of(caught)[0] == "task helper ended with an exception at 0.000000 s:"
    assert caught.value.node is None


def test_an_exception_in_a_timers_function():
    def main():
        def ring():
            raise ValueError("ring")

        threading.Timer(3, ring).start()
        time.sleep(5)

    with pytest.raises(TaskFailed, match=r"task Thread-1 ended with an exception at 3\.000000 s:"):
        Simulation(1).run(main)


def test_the_first_of_two_exceptions_counts():
    def main():
        def broken(text):
            try:
                raise ValueError(text)
            finally:
                if text == "first":
                    threading.Thread(target=broken, args=("second",)).start()

        broken_thread = threading.Thread(target=broken, args=("first",))
        broken_thread.start()
        broken_thread.join()

    with pytest.raises(TaskFailed, match="first"):
        Simulation(1).run(main)


def test_an_exception_that_cannot_be_printed():
    class Unprintable(Exception):
        def __str__(self):
            raise RuntimeError("no words")

    def main():
        def broken():
            raise Unprintable

        threading.Thread(target=broken).start()
        time.sleep(1)

    with pytest.raises(TaskFailed) as caught:
        Simulation(1).run(main)
    assert isinstance(caught.value.__cause__, Unprintable)


def test_an_exception_group_keeps_its_parts():
    def main():
        def broken():
            raise ExceptionGroup("several", [ValueError("one"), KeyError("two")])

        threading.Thread(target=broken).start()
        time.sleep(1)

    with pytest.raises(TaskFailed) as caught:
        Simulation(1).run(main)
    assert "ValueError: one" in str(caught.value)


@pytest.mark.parametrize("in_main", [True, False])
def test_ctrl_c_comes_out_as_it_is(in_main):
    def interrupted():
        signal.raise_signal(signal.SIGINT)
        time.sleep(1)

    def main():
        if in_main:
            interrupted()
        threading.Thread(target=interrupted).start()
        time.sleep(5)

    with pytest.raises(KeyboardInterrupt):
        Simulation(1).run(main)


def test_ctrl_c_in_the_finally_of_a_leftover_task_comes_out_too():
    def main():
        def leftover():
            try:
                time.sleep(100)
            finally:
                signal.raise_signal(signal.SIGINT)

        threading.Thread(target=leftover).start()
        time.sleep(1)

    with pytest.raises(KeyboardInterrupt):
        Simulation(1).run(main)


def test_a_test_runners_outcome_in_a_task_comes_out_as_it_is():
    """pytest.fail(), pytest.skip() and pytest-timeout raise what is no Exception, in whichever task is running."""

    def main():
        threading.Thread(target=lambda: pytest.fail("told so")).start()
        time.sleep(1)

    with pytest.raises(pytest.fail.Exception, match="told so"):
        Simulation(1).run(main)


def test_system_exit_ends_its_thread_only():
    def main():
        thread = threading.Thread(target=sys.exit, args=(3,))
        thread.start()
        thread.join()
        time.sleep(1)
        return "went on"

    assert Simulation(1).run(main) == "went on"


def test_system_exit_in_main_comes_out():
    with pytest.raises(SystemExit) as caught:
        Simulation(1).run(lambda: sys.exit(3))
    assert caught.value.code == 3


def test_only_the_oldest_threads_of_each_node_are_described():
    simulation = Simulation(1)

    def main():
        nodes = [simulation.node("0"), simulation.node("1")]
        for node in nodes:
            simulation.spawn(sleepers, node=node)
        time.sleep(1)
        return [(wait.node, wait.task) for wait in node_threads(simulation)]

    def sleepers():
        for i in range(60):
            threading.Thread(target=time.sleep, args=(9,), name=f"t{i}", daemon=True).start()

    assert simulation.run(main) == [(node, f"t{i}") for node in "01" for i in range(50)]
