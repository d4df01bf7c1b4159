"""One seed and one program give one run: digest for digest, under any hash seed, in any process, traced or not."""

import os
import subprocess
import sys
import textwrap
from pathlib import Path

import pytest

from labsim import Event, Simulation, SimulationError, log, queue, random, threading, time

ROOT = Path(__file__).parents[3]


def busy_world(sim):
    """A little of everything: locks, queues, timers, kills, chance, events, and a set, whose order is not ours."""
    shared = queue.Queue(2)
    lock = threading.Lock()
    condition = threading.Condition()

    def peer(name):
        while True:
            time.sleep(random.uniform(0.001, 0.02))
            with lock:
                time.sleep(0.001)
            with condition:
                condition.notify()
            shared.put(name)
            sim.emit("said", sim.current.node, name, random.getrandbits(30))

    def waiter():
        while True:
            with condition:
                condition.wait(0.005)

    names = {"alpha", "beta", "gamma", "delta"}
    nodes = [sim.node(name) for name in sorted(names)]
    for node in nodes:
        sim.spawn(peer, node.name, node=node)
        sim.spawn(waiter, node=node)
    threading.Timer(0.05, sim.kill, [nodes[1]]).start()
    sim.call_later(30_000_000, sim.kill, nodes[2])
    return [shared.get() for _ in range(40)]


def digest_of(seed, **options):
    sim = Simulation(seed, **options)
    sim.run(lambda: busy_world(sim))
    return sim.digest()


def digests_in_new_processes(source, hash_seeds):
    """What `source` prints in processes that differ in PYTHONHASHSEED, run side by side."""
    running = [
        subprocess.Popen(
            [sys.executable, "-c", textwrap.dedent(source)],
            env={**os.environ, "PYTHONHASHSEED": hash_seed, "PYTHONPATH": f"{ROOT}{os.pathsep}{Path(__file__).parent}"},
            stdout=subprocess.PIPE,
            text=True,
        )
        for hash_seed in hash_seeds
    ]
    printed = [process.communicate(timeout=60)[0] for process in running]
    assert [process.returncode for process in running] == [0] * len(running)
    return printed


def test_equal_seeds_give_equal_digests_in_any_process():
    source = "import test_determinism; print(test_determinism.digest_of(7))"
    printed = digests_in_new_processes(source, ["0", "1", "12345"])
    assert printed == [f"{digest_of(7)}\n"] * 3


def test_the_hundredth_simulation_of_a_process_is_like_the_first():
    first = digest_of(7)
    for seed in range(98):
        digest_of(seed)
    assert digest_of(7) == first


def test_a_failed_or_unfinished_run_before_changes_nothing():
    first = digest_of(7)
    with pytest.raises(ZeroDivisionError):
        Simulation(7).run(lambda: 1 / 0)
    Simulation(7)
    assert digest_of(7) == first


def test_different_seeds_give_different_digests():
    assert len({digest_of(seed) for seed in range(50)}) == 50


def test_the_digest_is_the_same_traced_or_not():
    assert digest_of(7, trace=True) == digest_of(7, trace=False)


def test_reading_the_digest_midway_does_not_change_it():
    sim = Simulation(7)

    def main():
        sim.call_later(1, sim.digest)
        return busy_world(sim)

    other = Simulation(7)

    def same_without_reading():
        other.call_later(1, int)
        return busy_world(other)

    sim.run(main)
    other.run(same_without_reading)
    assert sim.digest() == other.digest() == sim.digest()


def test_a_thousand_tasks_sleeping_for_a_virtual_hour():
    source = """
        from labsim import Simulation, random, threading, time

        def sleeper():
            while time.monotonic() < 3600:
                time.sleep(random.uniform(20, 60))

        def main():
            threads = [threading.Thread(target=sleeper) for _ in range(1000)]
            for thread in threads:
                thread.start()
            for thread in threads:
                thread.join()

        simulation = Simulation(11)
        simulation.run(main)
        print(simulation.digest(), simulation.now_ns, simulation.switches)
    """
    first, second = digests_in_new_processes(source, ["1", "2"])
    assert first == second
    assert int(first.split()[2]) > 80_000


# ---- what counts ---------------------------------------------------------------------------------------------------


def digest_with(*emits, sleep_s=1.0):
    sim = Simulation(1)

    def main():
        for emit in emits:
            sim.emit(*emit)
        time.sleep(sleep_s)

    sim.run(main)
    return sim.digest()


def test_events_count_into_the_digest():
    digests = [
        digest_with(),
        digest_with(("send", None, None, 5, 1)),
        digest_with(("send", None, None, 6, 1)),
        digest_with(("drop", None, None, 5, 1)),
        digest_with(("send", None, None, 5, 1), ("send", None, None, 5, 1)),
        digest_with(("send", None, None, 5, 1), ("drop", None, None, 6, 1)),
        digest_with(("drop", None, None, 6, 1), ("send", None, None, 5, 1)),
    ]
    assert len(set(digests)) == len(digests)


def test_steps_of_the_clock_count_into_the_digest():
    assert digest_with(sleep_s=1.0) != digest_with(sleep_s=1.000000001)


def test_turns_count_into_the_digest():
    def digest(turns):
        sim = Simulation(1)
        sim.run(lambda: [time.sleep(0) for _ in range(turns)])
        return sim.digest()

    assert digest(3) != digest(4)


def test_a_long_run_is_digested_in_parts_without_a_seam():
    """The digest is folded every so many decisions, of which more than one lot happen here."""

    def digest(read_at):
        sim = Simulation(1)

        def main():
            for i in range(20_000):
                time.sleep(0.001)
                if i == read_at:
                    sim.digest()

        sim.run(main)
        return sim.digest()

    assert digest(None) == digest(9_999) == digest(16_384)


def test_the_trace_is_what_was_emitted_in_order():
    sim = Simulation(1)

    def main():
        node = sim.node("peer-0")
        sim.emit("begin", None, None, 0)
        time.sleep(1.5)
        sim.emit("send", node, {"term": 1}, 9, 3)

    sim.run(main)
    assert sim.trace == [
        Event(at_ns=0, kind="begin", node="", incarnation=0, message=0, detail=None),
        Event(at_ns=1_500_000_000, kind="send", node="peer-0", incarnation=1, message=3, detail={"term": 1}),
    ]


def test_no_trace_is_kept_when_it_is_off():
    sim = Simulation(1, trace=False)
    sim.run(lambda: sim.emit("begin", None, None, 0))
    assert sim.trace is None


def in_chunks(chunk, emissions):
    """The kinds that a listener gets, a list for each time it is called, and the simulation."""
    sim, heard = Simulation(1), []
    sim.subscribe(lambda events: heard.append([event.kind for event in events]), chunk=chunk)
    sim.run(lambda: emissions(sim))
    return heard, sim


def emit_abc(sim):
    for kind in "abc":
        sim.emit(kind, None, None, 0)


@pytest.mark.parametrize(("chunk", "heard"), [(1, [["a"], ["b"], ["c"]]), (2, [["a", "b"]]), (4, [])])
def test_a_listener_gets_new_events_a_chunk_at_a_time(chunk, heard):
    got, sim = in_chunks(chunk, emit_abc)
    assert got == heard
    assert [event.kind for event in sim.trace] == ["a", "b", "c"]


def test_log_lines_complete_no_chunk():
    def emissions(sim):
        sim.emit("a", None, None, 0)
        log("topic", "text")
        sim.emit("b", None, None, 0)

    assert in_chunks(2, emissions)[0] == [["a", "log", "b"]]
    assert in_chunks(1, emissions)[0] == [["a"], ["log"], ["b"]]


def test_a_chunk_may_be_delivered_before_it_is_complete():
    def emissions(sim):
        sim.emit("a", None, None, 0)
        sim.deliver_now()
        sim.deliver_now()
        emit_abc(sim)

    assert in_chunks(2, emissions)[0] == [["a"], ["a", "b"]]


def test_a_listener_gets_what_happens_after_it_subscribes():
    def emissions(sim):
        emit_abc(sim)
        sim.subscribe(lambda events: late.append([event.kind for event in events]))
        sim.emit("d", None, None, 0)

    late = []
    assert in_chunks(2, emissions)[0] == [["a", "b"], ["c", "d"]]
    assert late == [["d"]]


def test_a_listener_may_end_the_run():
    sim = Simulation(1)
    sim.subscribe(lambda events: sim.fail(ValueError("enough")), chunk=2)
    with pytest.raises(ValueError, match="enough"):
        sim.run(lambda: emit_abc(sim))
    assert [event.kind for event in sim.trace] == ["a", "b"]


def test_subscribing_needs_a_trace():
    with pytest.raises(SimulationError, match=r"subscribe\(\): this simulation has no trace"):
        Simulation(1, trace=False).subscribe(print)
    with pytest.raises(ValueError, match=r"subscribe\(\): chunk must be at least 1, got 0"):
        Simulation(1).subscribe(print, chunk=0)
