"""Nodes: their tasks live and die together. A kill is a power cut, and the living must not suffer from it."""

import contextlib
from random import Random

import pytest

from labsim import NodeKilled, Simulation, TaskFailed, current_simulation, queue, random, threading, time
from labsim.choices import NodeSeed, SeededSource

SEEDS = range(12)
NS_PER_S = 1_000_000_000


def on_every_seed(body):
    """`body(sim)` as main, under several schedules."""
    for seed in SEEDS:
        sim = Simulation(seed)
        try:
            sim.run(lambda sim=sim: body(sim))
        except BaseException as error:
            error.add_note(f"seed {seed}")
            raise


# ---- belonging -------------------------------------------------------------------------------------------------


def test_threads_belong_to_the_node_that_starts_them():
    def body(sim):
        node = sim.node("peer-0")
        seen = []

        def peer():
            seen.append(sim.current.node)
            grandchild = threading.Thread(target=lambda: seen.append(sim.current.node))
            child = threading.Thread(target=lambda: (grandchild.start(), seen.append(sim.current.node)))
            child.start()
            threading.Timer(1, lambda: seen.append(sim.current.node)).start()

        sim.spawn(peer, node=node)
        time.sleep(2)
        assert seen == [node] * 4
        assert sim.current.node is None

    on_every_seed(body)


def test_a_node_knows_its_incarnation():
    sim = Simulation(1)
    first, second, other = sim.node("peer-0"), sim.node("peer-0"), sim.node("peer-1")
    assert [str(first), str(second), str(other)] == ["peer-0", "peer-0 (incarnation 2)", "peer-1"]
    assert [first.incarnation, second.incarnation, other.incarnation] == [1, 2, 1]


def test_the_next_incarnation_draws_from_a_fresh_stream():
    sim = Simulation(1)

    def main():
        draws = []
        for _ in range(3):
            node = sim.node("peer-0")
            draws.append(sim.call_on(node, random.random))
            sim.kill(node)
        return draws

    draws = sim.run(main)
    assert len(set(draws)) == 3
    assert draws[1] == Random(SeededSource(1).choose(("node", "peer-0"), 2, NodeSeed("peer-0", 2))).random()


# ---- calling a node ----------------------------------------------------------------------------------------------


def test_call_on_runs_on_the_node_and_returns_the_value():
    def body(sim):
        node = sim.node("peer-0")
        assert sim.call_on(node, lambda x: (sim.current.node, x), 7) == (node, 7)

    on_every_seed(body)


def test_call_on_a_node_that_dies_meanwhile():
    def body(sim):
        node = sim.node("peer-0")
        sim.call_later(NS_PER_S, sim.kill, node)
        with pytest.raises(NodeKilled) as caught:
            sim.call_on(node, time.sleep, 5, name="start")
        assert str(caught.value) == "start: node peer-0 died before the call returned"
        assert sim.now == 1

    on_every_seed(body)


def test_call_on_a_dead_node():
    def body(sim):
        node = sim.node("peer-0")
        sim.kill(node)
        with pytest.raises(NodeKilled) as caught:
            sim.call_on(node, time.sleep, 5, name="start")
        assert str(caught.value) == "spawn(start): node peer-0 is dead"

    on_every_seed(body)


def test_a_node_that_kills_itself_in_a_call():
    def body(sim):
        node = sim.node("peer-0")
        with pytest.raises(NodeKilled):
            sim.call_on(node, lambda: sim.kill(sim.current.node))

    on_every_seed(body)


def test_unhandled_node_killed_fails_the_task():
    sim = Simulation(1)

    def main():
        node = sim.node("peer-0")
        sim.kill(node)
        sim.spawn(lambda: sim.call_on(node, time.sleep, 1), name="caller")
        time.sleep(1)

    with pytest.raises(TaskFailed) as caught:
        sim.run(main)
    assert str(caught.value).startswith("task caller ended with an exception at 0.000000 s:\n")
    assert isinstance(caught.value.__cause__, NodeKilled)


# ---- a killed task runs no further line ----------------------------------------------------------------------------


def _wait_in(what):
    """One kind of wait each; all of them are for ever."""
    if what == "sleep":
        time.sleep(1e6)
    elif what == "lock":
        lock = threading.Lock()
        lock.acquire()
        lock.acquire()
    elif what == "condition":
        with threading.Condition() as _, threading.Condition() as _:
            condition = threading.Condition()
            with condition:
                condition.wait()
    elif what == "event":
        threading.Event().wait()
    elif what == "semaphore":
        threading.Semaphore(0).acquire()
    elif what == "queue":
        queue.Queue().get(timeout=1e6)
    elif what == "join":
        thread = threading.Thread(target=threading.Event().wait)
        thread.start()
        thread.join()
    elif what == "timer":
        threading.Timer(1e6, print).run()
    elif what == "barrier":
        threading.Barrier(2).wait()
    else:
        raise AssertionError(what)


WAITS = ["sleep", "lock", "condition", "event", "semaphore", "queue", "join", "timer", "barrier"]


@pytest.mark.parametrize("what", WAITS)
def test_no_line_runs_after_the_kill_whatever_the_task_waits_in(what):
    def body(sim):
        lines = []

        @contextlib.contextmanager
        def managed():
            try:
                yield
            finally:
                lines.append("with")

        def victim():
            try:
                with managed():
                    _wait_in(what)
            except BaseException:
                lines.append("except")
                raise
            finally:
                lines.append("finally")

        node = sim.node("peer-0")
        task = sim.spawn(victim, node=node)
        time.sleep(1)
        assert not task.dead
        sim.kill(node)
        assert task.dead
        time.sleep(1000)
        assert lines == []
        return lines

    on_every_seed(body)


def test_the_frozen_tasks_are_unwound_after_the_run():
    unwound = []
    sim = Simulation(1)

    def main():
        def victim():
            try:
                time.sleep(100)
            finally:
                unwound.append("finally")
                time.sleep(1)
                unwound.append("a wait returned")

        node = sim.node("peer-0")
        sim.spawn(victim, node=node)
        time.sleep(1)
        sim.kill(node)
        time.sleep(1)
        assert unwound == []

    sim.run(main)
    assert unwound == ["finally"]


def test_a_task_that_kills_its_own_node_does_not_return():
    def body(sim):
        lines = []
        node = sim.node("peer-0")

        def suicide():
            try:
                lines.append("before")
                sim.kill(node)
                lines.append("after")
            except BaseException:
                lines.append("except")
            finally:
                lines.append("finally")

        sim.spawn(lambda: (time.sleep(5), lines.append("sibling")), node=node)
        task = sim.spawn(suicide, node=node)
        sim.join(task)
        time.sleep(10)
        assert lines == ["before"]
        assert not node.alive

    on_every_seed(body)


def test_tasks_that_have_not_begun_never_begin():
    def body(sim):
        ran = []
        node = sim.node("peer-0")
        for i in range(5):
            sim.spawn(ran.append, i, node=node)
        sim.kill(node)
        time.sleep(1)
        assert ran == []

    on_every_seed(body)


def test_killing_twice_is_killing_once():
    def body(sim):
        node = sim.node("peer-0")
        sim.spawn(time.sleep, 5, node=node)
        time.sleep(1)
        sim.kill(node)
        sim.kill(node)
        assert list(sim.tasks()) == [sim.current]

    on_every_seed(body)


def test_killing_one_node_leaves_the_other_alone():
    def body(sim):
        ended = []
        a, b = sim.node("a"), sim.node("b")
        for node in (a, b):
            sim.spawn(lambda node=node: (time.sleep(2), ended.append(node.name)), node=node)
        time.sleep(1)
        sim.kill(a)
        time.sleep(2)
        assert ended == ["b"]

    on_every_seed(body)


def test_two_nodes_that_kill_each_other_at_one_instant():
    def body(sim):
        a, b = sim.node("a"), sim.node("b")
        sim.spawn(lambda: (time.sleep(1), sim.kill(b), time.sleep(1)), node=a)
        sim.spawn(lambda: (time.sleep(1), sim.kill(a), time.sleep(1)), node=b)
        time.sleep(5)
        assert [a.alive, b.alive] in ([True, False], [False, True])

    on_every_seed(body)


def test_kill_from_call_later_on_the_nodes_own_stack_returns():
    """The clock's functions run on the stack of whoever waited last, often a task of the node they kill."""

    def body(sim):
        after = []
        node = sim.node("peer-0")

        def crash():
            sim.kill(node)
            after.append(sim.now)

        sim.call_later(NS_PER_S, crash)
        for _ in range(3):
            sim.spawn(time.sleep, 10, node=node)
        sim.spawn(lambda: None, node=node)
        time.sleep(20)
        assert after == [1.0]

    on_every_seed(body)


def test_kill_from_call_later_while_a_finished_task_switches():
    def body(sim):
        begun = []
        node = sim.node("peer-0")

        def crash():
            sim.kill(node)
            sim.spawn(begun.append, "new task")

        def last_to_run():
            sim.call_later(0, crash)

        sim.spawn(last_to_run, node=node)
        time.sleep(1)
        assert begun == ["new task"]

    on_every_seed(body)


# ---- the living: joining -----------------------------------------------------------------------------------------


def test_join_on_a_killed_task_returns():
    def body(sim):
        node = sim.node("peer-0")
        threads = []

        def peer():
            thread = threading.Thread(target=time.sleep, args=(100,))
            threads.append(thread)
            thread.start()
            time.sleep(100)

        sim.spawn(peer, node=node)
        time.sleep(1)
        sim.call_later(NS_PER_S, sim.kill, node)
        threads[0].join()
        assert sim.now == 2
        assert not threads[0].is_alive()
        threads[0].join()

    on_every_seed(body)


def test_killed_task_that_joined_a_killed_task_stays_dead():
    """Ending the one wakes who joins it, who is dying too and must not run, let alone from the start."""

    def body(sim):
        lines = []
        node = sim.node("peer-0")
        sleeper = sim.spawn(time.sleep, 100, node=node)

        def joiner():
            lines.append("begun")
            sim.join(sleeper)
            lines.append("joined")

        sim.spawn(joiner, node=node)
        time.sleep(1)
        sim.kill(node)
        time.sleep(1)
        assert lines == ["begun"]

    on_every_seed(body)


def test_killed_while_joining_the_living():
    def body(sim):
        node = sim.node("peer-0")
        worker = sim.spawn(time.sleep, 5)
        sim.spawn(sim.join, worker, node=node)
        sim.spawn(sim.join, worker, 60 * NS_PER_S, node=node)
        time.sleep(1)
        sim.kill(node)
        sim.join(worker)
        assert sim.now == 5

    on_every_seed(body)


# ---- the living: locks -------------------------------------------------------------------------------------------

LOCKS = [threading.Lock, threading.RLock]


@pytest.mark.parametrize("make", LOCKS)
def test_a_lock_held_by_the_killed_goes_to_those_who_wait(make):
    def body(sim):
        lock = make()
        node = sim.node("peer-0")
        sim.spawn(lambda: (lock.acquire(), time.sleep(100)), node=node)
        time.sleep(1)
        got = []

        def survivor():
            with lock:
                got.append(sim.now)
                time.sleep(1)

        for _ in range(3):
            sim.spawn(survivor)
        time.sleep(1)
        assert got == []
        sim.kill(node)
        time.sleep(10)
        assert got == [2.0, 3.0, 4.0]

    on_every_seed(body)


@pytest.mark.parametrize("make", LOCKS)
def test_lock_held_by_a_killed_task_is_free_later(make):
    def body(sim):
        lock = make()
        node = sim.node("peer-0")
        sim.spawn(lambda: (lock.acquire(), time.sleep(100)), node=node)
        time.sleep(1)
        assert not lock.acquire(blocking=False)
        sim.kill(node)
        if make is threading.Lock:
            assert not lock.locked()
        assert lock.acquire(blocking=False)
        lock.release()
        with lock:
            pass
        assert lock.acquire(timeout=1)

    on_every_seed(body)


def test_rlock_of_a_killed_task_is_held_once_by_the_next():
    def body(sim):
        lock = threading.RLock()
        node = sim.node("peer-0")
        sim.spawn(lambda: (lock.acquire(), lock.acquire(), lock.acquire(), time.sleep(100)), node=node)
        time.sleep(1)
        sim.kill(node)
        lock.acquire()
        lock.release()
        other = []
        thread = threading.Thread(target=lambda: other.append(lock.acquire(blocking=False)))
        thread.start()
        thread.join()
        assert other == [True]

    on_every_seed(body)


@pytest.mark.parametrize("make", LOCKS)
def test_a_lock_handed_to_a_task_killed_before_it_ran_goes_on(make):
    def body(sim):
        lock = make()
        node = sim.node("peer-0")
        lock.acquire()
        sim.spawn(lock.acquire, node=node)
        time.sleep(1)  # it waits, alone, so the release below is for it
        got = []
        lock.release()
        sim.spawn(lambda: (lock.acquire(), got.append(sim.now)))
        sim.kill(node)
        time.sleep(1)
        assert got == [1.0]

    on_every_seed(body)


@pytest.mark.parametrize("make", LOCKS)
def test_lock_handed_to_a_killed_task_goes_to_another_waiter(make):
    def body(sim):
        lock = make()
        node = sim.node("peer-0")
        lock.acquire()
        got = []
        for i in range(4):
            sim.spawn(lock.acquire, node=node if i % 2 else None, name=f"w{i}")
        sim.spawn(lambda: (time.sleep(2), lock.acquire(timeout=1) or got.append("taken")))
        time.sleep(1)
        lock.release()
        sim.kill(node)
        time.sleep(5)
        # Exactly one survivor has it; it never releases it, so the last in line found it taken.
        assert got == ["taken"]
        assert sum(task.name.startswith("w") for task in sim.tasks()) == 1

    on_every_seed(body)


def test_lock_of_a_finished_thread_is_held_until_its_node_dies():
    """As in the standard library: only a power cut frees a lock, forgetting to release it does not."""

    def body(sim):
        lock = threading.Lock()
        node = sim.node("peer-0")
        sim.call_on(node, lock.acquire)
        assert lock.locked()
        assert not lock.acquire(timeout=1)
        sim.kill(node)
        assert not lock.locked()
        assert lock.acquire(timeout=1)

    on_every_seed(body)


# ---- the living: everything else one can wait for ------------------------------------------------------------------


def _killed_and_living(sim, wait, *, killed=3, living=1):
    """Tasks of a node and then tasks of the tester in `wait()`; a list that grows as the living return."""
    node = sim.node("peer-0")
    returned = []
    for _ in range(killed):
        sim.spawn(wait, node=node)
    time.sleep(1)
    for _ in range(living):
        sim.spawn(lambda: (wait(), returned.append(sim.now)))
    time.sleep(1)
    return node, returned


def _waits_and_wakes():
    """How to wait, and how to wake exactly one waiter, made inside the simulation."""

    def on_queue(kind):
        def make():
            q = kind()
            return q.get, lambda: q.put(1)

        return make

    def on_full_queue():
        q = queue.Queue(1)
        q.put(0)
        return (lambda: q.put(1)), q.get

    def on_condition():
        condition = threading.Condition()

        def wait():
            with condition:
                condition.wait()

        def wake():
            with condition:
                condition.notify()

        return wait, wake

    def on_semaphore():
        semaphore = threading.Semaphore(0)
        return semaphore.acquire, semaphore.release

    def on_bounded_semaphore():
        semaphore = threading.BoundedSemaphore(1)
        semaphore.acquire()
        return semaphore.acquire, semaphore.release

    def on_event():
        event = threading.Event()
        return event.wait, event.set

    return {
        "Queue": on_queue(queue.Queue),
        "LifoQueue": on_queue(queue.LifoQueue),
        "PriorityQueue": on_queue(queue.PriorityQueue),
        "SimpleQueue": on_queue(queue.SimpleQueue),
        "full Queue": on_full_queue,
        "Condition": on_condition,
        "Semaphore": on_semaphore,
        "BoundedSemaphore": on_bounded_semaphore,
        "Event": on_event,
    }


@pytest.mark.parametrize("kind", _waits_and_wakes())
def test_killed_waiters_do_not_consume_wake_ups(kind):
    def body(sim):
        wait, wake = _waits_and_wakes()[kind]()
        node, returned = _killed_and_living(sim, wait)
        sim.kill(node)
        wake()
        time.sleep(1)
        assert returned == [2.0]

    on_every_seed(body)


@pytest.mark.parametrize("kind", _waits_and_wakes())
def test_task_killed_after_wake_up_passes_it_on(kind):
    def body(sim):
        wait, wake = _waits_and_wakes()[kind]()
        node, returned = _killed_and_living(sim, wait, killed=1)
        wake()
        sim.kill(node)
        time.sleep(1)
        assert returned == [2.0]

    on_every_seed(body)


@pytest.mark.parametrize("kind", _waits_and_wakes())
def test_passed_on_wake_up_is_kept_for_later_tasks(kind):
    """Not for a Condition, of course, which remembers nothing."""

    def body(sim):
        wait, wake = _waits_and_wakes()[kind]()
        node, returned = _killed_and_living(sim, wait, killed=1, living=0)
        wake()
        sim.kill(node)
        sim.spawn(lambda: (wait(), returned.append(sim.now)))
        time.sleep(1)
        assert returned == ([] if kind == "Condition" else [2.0])

    on_every_seed(body)


def test_a_unit_of_a_semaphore_is_passed_on_once_only():
    def body(sim):
        semaphore = threading.Semaphore(0)
        node, returned = _killed_and_living(sim, semaphore.acquire, killed=2, living=3)
        semaphore.release(3)  # two to the doomed, one to the living
        sim.kill(node)
        time.sleep(1)
        assert returned == [2.0] * 3
        assert not semaphore.acquire(blocking=False)

    on_every_seed(body)


def test_task_killed_after_its_timeout_passes_nothing_on():
    def body(sim):
        semaphore = threading.Semaphore(0)
        node = sim.node("peer-0")
        sim.spawn(semaphore.acquire, True, 1, node=node)
        sim.call_later(NS_PER_S, lambda: None)
        time.sleep(1)
        sim.kill(node)
        assert not semaphore.acquire(blocking=False)

    on_every_seed(body)


def test_an_item_taken_by_the_killed_is_gone_and_the_rest_is_not():
    def body(sim):
        q = queue.Queue()
        node = sim.node("peer-0")
        sim.spawn(lambda: (q.get(), time.sleep(100)), node=node)
        q.put("first")
        q.put("second")
        time.sleep(1)
        sim.kill(node)
        assert q.get(timeout=1) == "second"

    on_every_seed(body)


def test_timers_of_a_killed_node_never_fire():
    def body(sim):
        fired = []
        node = sim.node("peer-0")

        def peer():
            for i in range(200):
                threading.Timer(2 + i, fired.append, [i]).start()

        sim.spawn(peer, node=node)
        time.sleep(1)
        sim.kill(node)
        assert len(sim._timers) < 150
        time.sleep(300)
        assert fired == []

    on_every_seed(body)


def test_many_incarnations_in_a_row():
    """As a stress test does it: crash and restart, with tasks in every kind of wait."""

    def body(sim):
        started = []
        shared = queue.Queue()

        def peer():
            started.append(sim.current.node.incarnation)
            for what in WAITS:
                threading.Thread(target=_wait_in, args=(what,)).start()
            while True:
                shared.get()

        for _ in range(10):
            node = sim.node("peer-0")
            sim.spawn(peer, node=node)
            for _ in range(3):
                shared.put(1)
                time.sleep(0.1)
            sim.kill(node)
            assert node.tasks == {}
        assert started == list(range(1, 11))
        assert current_simulation() is sim

    on_every_seed(body)


@pytest.mark.parametrize("seed", range(6))
def test_anything_at_any_time_with_kills_in_between(seed):
    """Random use of everything, many things at one instant. What must hold whatever happens is asserted inside."""
    sim = Simulation(seed)

    def main():
        locks = [threading.Lock() for _ in range(3)]
        holders = [None] * 3
        items, units, event = queue.Queue(3), threading.Semaphore(2), threading.Event()
        condition = threading.Condition()

        def a_moment():
            return random.choice([0, 0.001, 0.002])

        def sleep():
            began_s, length_s = sim.now, a_moment()
            time.sleep(length_s)
            assert abs(sim.now - began_s - length_s) < 1e-9

        def lock():
            i = random.randrange(3)
            if locks[i].acquire(timeout=random.choice([-1, 0.001, 0.002])):
                assert holders[i] is None or holders[i].killed, f"{holders[i]} holds it too"
                holders[i] = sim.current
                time.sleep(a_moment())
                assert holders[i] is sim.current
                holders[i] = None
                locks[i].release()

        def put():
            with contextlib.suppress(queue.Full):
                items.put(1, timeout=a_moment())

        def get():
            with contextlib.suppress(queue.Empty):
                items.get(timeout=a_moment())

        def wait():
            with condition:
                condition.wait(a_moment())

        def notify():
            with condition:
                condition.notify(random.randrange(1, 3))

        def take_unit():
            if units.acquire(timeout=a_moment()):
                time.sleep(0.001)
                units.release()

        def wait_for_event():
            event.wait(a_moment())
            event.clear()

        def start_and_join():
            event.set()
            thread = threading.Thread(target=lambda: time.sleep(a_moment()))
            thread.start()
            thread.join(random.choice([None, 0, 0.001]))

        def peer():
            while True:
                random.choice([sleep, lock, put, get, wait, notify, take_unit, wait_for_event, start_and_join])()

        def start(name):
            node = sim.node(name)
            for _ in range(4):
                sim.spawn(peer, node=node)
            return node

        nodes = [start(f"peer-{i}") for i in range(4)]
        for _ in range(4):
            sim.spawn(peer)
        for _ in range(40):
            time.sleep(random.choice([0.0005, 0.001, 0.002]))
            i = random.randrange(4)
            sim.kill(nodes[i])
            nodes[i] = start(nodes[i].name)
            assert len(sim._ready) == len(set(sim._ready)), "a task is ready twice"
            assert not any(task.dead for task in sim._ready)

    sim.run(main)
