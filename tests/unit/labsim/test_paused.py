"""A node can be stopped, like a process with SIGSTOP, and its clock can be frozen: two independent things."""

import pytest

from labsim import Deadlock, NodeKilled, Simulation, SimulationError, queue, threading, time


def simulate(body, seed=1):
    sim = Simulation(seed)
    return sim.run(lambda: body(sim))


def ticker(seen, every=0.1):
    while True:
        time.sleep(every)
        seen.append(round(time.monotonic(), 6))


# ---- stopped ---------------------------------------------------------------------------------------------------


def test_nothing_of_a_paused_node_runs_and_its_clock_goes_on():
    def body(sim):
        node, seen = sim.node("a"), []
        sim.spawn(ticker, seen, node=node)
        time.sleep(0.25)
        sim.pause(node)
        time.sleep(1)
        assert seen == [0.1, 0.2]
        sim.resume(node)
        time.sleep(0.15)
        # The timer that was overdue fires at once, at the time it is; the next one a tenth of a second later.
        assert seen == [0.1, 0.2, 1.25, 1.35]

    simulate(body)


def test_other_nodes_run_on():
    def body(sim):
        node, other, seen = sim.node("a"), sim.node("b"), []
        sim.spawn(ticker, seen, node=other)
        sim.pause(node)
        time.sleep(0.35)
        assert seen == [0.1, 0.2, 0.3]

    simulate(body)


def test_a_task_that_is_spawned_or_woken_waits_too():
    def body(sim):
        node, seen, box = sim.node("a"), [], queue.Queue()
        sim.spawn(lambda: seen.append(box.get()), node=node)
        time.sleep(0.1)
        sim.pause(node)
        sim.spawn(lambda: seen.append("spawned"), node=node)
        box.put("woken")
        time.sleep(1)
        assert seen == []
        sim.resume(node)
        time.sleep(0.1)
        assert sorted(seen) == ["spawned", "woken"]

    simulate(body)


def test_what_arrives_waits_and_comes_in_its_order():
    def body(sim):
        node, seen = sim.node("a"), []
        sim.when_running(node, seen.append, 0)
        sim.pause(node)
        for number in (1, 2, 3):
            sim.when_running(node, seen.append, number)
        assert seen == [0]
        sim.resume(node)
        assert seen == [0, 1, 2, 3]

    simulate(body)


def test_a_wait_with_a_timeout_ends_when_the_node_continues():
    def body(sim):
        node, ended = sim.node("a"), []

        def wait():
            ended.append((threading.Event().wait(0.5), time.monotonic()))

        sim.spawn(wait, node=node)
        time.sleep(0.1)
        sim.pause(node)
        time.sleep(2)
        sim.resume(node)
        time.sleep(0.1)
        assert ended == [(False, 2.1)]

    simulate(body)


def test_a_task_may_pause_its_own_node():
    def body(sim):
        node, seen = sim.node("a"), []

        def stop_here():
            sim.pause(node)
            seen.append(time.monotonic())

        sim.spawn(stop_here, node=node)
        time.sleep(1)
        assert seen == []
        sim.resume(node)
        time.sleep(0.1)
        assert seen == [1.0]

    simulate(body)


def test_a_paused_node_can_be_killed_and_its_lock_goes_on():
    def body(sim):
        node, lock, seen = sim.node("a"), threading.Lock(), []

        def hold():
            with lock:
                time.sleep(10)

        sim.spawn(hold, node=node)
        time.sleep(0.1)
        sim.pause(node)
        sim.kill(node)
        with lock:
            seen.append("mine")
        with pytest.raises(NodeKilled, match=r"^resume\(\): node a is dead$"):
            sim.resume(node)
        with pytest.raises(NodeKilled, match=r"^pause\(\): node a is dead$"):
            sim.pause(node)
        # The next one runs, and nobody counts a dead one as paused.
        sim.spawn(seen.append, "next", node=sim.node("a"))
        time.sleep(0.1)
        assert seen == ["mine", "next"]

    simulate(body)


def test_semaphore_handed_to_a_dying_paused_node_is_passed_on():
    def body(sim):
        node, gate, seen = sim.node("a"), threading.Semaphore(0), []
        sim.spawn(gate.acquire, node=node)
        time.sleep(0.1)
        sim.pause(node)
        gate.release()
        sim.spawn(lambda: seen.append(gate.acquire(timeout=5)))
        time.sleep(0.1)
        sim.kill(node)
        time.sleep(0.1)
        assert seen == [True]

    simulate(body)


def test_pausing_twice_and_resuming_what_runs_are_refused():
    def body(sim):
        node = sim.node("a")
        with pytest.raises(SimulationError, match=r"^resume\(\): node a is not paused; pause\(\) it first$"):
            sim.resume(node)
        sim.pause(node)
        with pytest.raises(SimulationError, match=r"^pause\(\): node a is paused already; resume\(\) it first$"):
            sim.pause(node)

    simulate(body)


def test_a_deadlock_says_who_is_paused():
    def body(sim):
        node = sim.node("a")
        sim.spawn(time.sleep, 1, node=node)
        sim.pause(node)
        threading.Event().wait()

    with pytest.raises(Deadlock, match=r"no timer is set\. Node a is paused\.\n") as raised:
        simulate(body)
    assert "sleep of a is ready to run, and its node is paused" in str(raised.value)


def test_the_digest_is_the_same_every_time():
    def body(sim):
        nodes = [sim.node(name) for name in "abc"]
        seen = []
        for node in nodes:
            sim.spawn(ticker, seen, 0.01, node=node)
            sim.spawn(ticker, seen, 0.01, node=node)
        for _ in range(5):
            time.sleep(0.1)
            sim.pause(nodes[0])
            sim.freeze_clock(nodes[1])
            time.sleep(0.1)
            sim.resume(nodes[0])
            sim.unfreeze_clock(nodes[1])
        return sim.digest()

    assert simulate(body, 5) == simulate(body, 5)
    assert simulate(body, 5) != simulate(body, 6)


# ---- frozen clock ----------------------------------------------------------------------------------------------


def test_frozen_clock_stops_and_timers_keep_their_remaining_time():
    def body(sim):
        node, seen = sim.node("a"), []
        sim.spawn(ticker, seen, node=node)
        time.sleep(0.25)
        sim.freeze_clock(node)
        time.sleep(3600)
        assert seen == [0.1, 0.2]
        assert sim.call_on(node, time.monotonic) == 0.25
        assert sim.call_on(node, time.time) == sim.call_on(node, time.time_ns) / 1e9
        sim.unfreeze_clock(node)
        time.sleep(0.051)
        # It had 50 ms left, of its own time.
        assert seen == [0.1, 0.2, 0.3]
        assert round(sim.call_on(node, time.monotonic), 6) == 0.301
        assert round(time.monotonic(), 6) == 3600.301

    simulate(body)


def test_its_tasks_run_while_it_is_held():
    def body(sim):
        node, box, seen = sim.node("a"), queue.Queue(), []

        def serve():
            while True:
                seen.append((box.get(), time.monotonic()))

        sim.spawn(serve, node=node)
        sim.freeze_clock(node)
        for number in range(3):
            time.sleep(1)
            box.put(number)
        time.sleep(1)
        assert seen == [(0, 0.0), (1, 0.0), (2, 0.0)]

    simulate(body)


def test_timers_set_while_it_is_held_run_when_it_goes_on():
    def body(sim):
        node, ended = sim.node("a"), []

        def wait(how):
            how()
            ended.append(round(time.monotonic(), 6))

        sim.freeze_clock(node)
        empty = queue.Queue()

        def get():
            with pytest.raises(queue.Empty):
                empty.get(timeout=0.3)

        def wait_for():
            condition = threading.Condition()
            with condition:
                condition.wait_for(lambda: False, timeout=0.4)

        for how in (lambda: time.sleep(0.1), lambda: threading.Event().wait(0.2), get, wait_for):
            sim.spawn(wait, how, node=node)
        threading_timer = []
        sim.spawn(lambda: threading.Timer(0.5, threading_timer.append, ["rang"]).start(), node=node)
        time.sleep(100)
        assert ended == []
        sim.unfreeze_clock(node)
        time.sleep(0.25)
        sim.freeze_clock(node)
        time.sleep(100)
        assert ended == [0.1, 0.2]
        sim.unfreeze_clock(node)
        time.sleep(1)
        assert ended == [0.1, 0.2, 0.3, 0.4]
        assert threading_timer == ["rang"]

    simulate(body)


def test_a_timeout_of_nothing_is_over_at_once_even_then():
    def body(sim):
        node = sim.node("a")
        sim.freeze_clock(node)
        lock = threading.Lock()
        lock.acquire()
        return sim.call_on(node, lock.acquire, True, 0)

    assert simulate(body) is False


@pytest.mark.parametrize("seed", range(5))
def test_zero_timeout_fires_when_the_clock_freezes_at_once(seed):
    def body(sim):
        node, event, polled = sim.node("a"), threading.Event(), []
        sim.spawn(lambda: polled.append(event.wait(0)), node=node)
        sim.spawn(sim.freeze_clock, node)
        time.sleep(1)
        assert polled == [False]

    simulate(body, seed)


def test_a_wait_that_is_woken_while_held_forgets_its_timer():
    def body(sim):
        node, event, results = sim.node("a"), threading.Event(), []
        sim.spawn(lambda: results.append(event.wait(5)), node=node)
        time.sleep(1)
        sim.freeze_clock(node)
        event.set()
        time.sleep(10)
        assert results == [True]
        sim.unfreeze_clock(node)
        time.sleep(10)
        assert results == [True]

    simulate(body)


def test_many_stale_timers_of_a_held_node_confuse_nobody():
    def body(sim):
        node, done = sim.node("a"), []

        def work():
            for _ in range(300):
                event = threading.Event()
                threading.Thread(target=event.set).start()
                event.wait(50)
            time.sleep(1)
            done.append(round(time.monotonic(), 6))

        sim.spawn(work, node=node)
        sim.spawn(work)
        sim.freeze_clock(node)
        time.sleep(10)
        sim.unfreeze_clock(node)
        time.sleep(10)
        assert done == [1.0, 1.0]

    simulate(body)


def test_paused_and_held_at_once():
    def body(sim):
        node, seen = sim.node("a"), []
        sim.spawn(ticker, seen, node=node)
        time.sleep(0.05)
        sim.freeze_clock(node)
        sim.pause(node)
        time.sleep(1)
        sim.unfreeze_clock(node)
        time.sleep(1)
        assert seen == []
        sim.resume(node)
        time.sleep(0.01)
        # Released, its clock has gone on while it was stopped.
        assert seen == [1.05]

    simulate(body)


def test_what_was_taken_from_a_node_is_counted_once():
    def body(sim):
        node = sim.node("a")
        time.sleep(1)
        sim.pause(node)
        time.sleep(1)
        sim.freeze_clock(node)
        time.sleep(1)
        sim.resume(node)
        time.sleep(1)
        sim.unfreeze_clock(node)
        time.sleep(1)
        sim.pause(node)
        time.sleep(1)
        return [sim.lost_time_ns(node, int(since * 1e9)) / 1e9 for since in (0, 2.5, 4, 5.5)], sim.lost_time_ns(None, 0)

    assert simulate(body) == ([4.0, 2.5, 1.0, 0.5], 0)


def test_freezing_twice_is_refused():
    def body(sim):
        node = sim.node("a")
        with pytest.raises(SimulationError, match=r"^unfreeze_clock\(\): the clock of node a is not frozen;"):
            sim.unfreeze_clock(node)
        sim.freeze_clock(node)
        with pytest.raises(SimulationError, match=r"^freeze_clock\(\): the clock of node a is frozen already;"):
            sim.freeze_clock(node)
        sim.spawn(time.sleep, 1, node=node)
        threading.Event().wait()

    with pytest.raises(Deadlock, match=r"no timer is set\. Node a has a frozen clock\.\n"):
        simulate(body)
