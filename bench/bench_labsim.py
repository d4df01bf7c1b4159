"""The cost of labsim's operations, compared with the same operations on real threads.

Ours is processor time; the baseline is wall time where it waits for another thread. Rounds of both alternate and the
best of each counts, because the machine may be busy.
"""

from __future__ import annotations

import queue as real_queue
import resource
import threading as real_threading
import time as real_time
from collections.abc import Callable
from typing import Any

from labsim import Simulation, current_simulation, queue, random, threading, time

_ROUNDS = 5


def _simulated(main: Callable[[], Any], operations: int) -> float:
    began_s = real_time.process_time()
    Simulation(1).run(main)
    return (real_time.process_time() - began_s) / operations * 1e6


def _real(main: Callable[[], Any], operations: int) -> float:
    began_s = real_time.perf_counter()
    main()
    return (real_time.perf_counter() - began_s) / operations * 1e6


def _pair(
    name: str, ours: Callable[[], Any], ours_n: int, baseline: str, theirs: Callable[[], Any], theirs_n: int
) -> dict[str, Any]:
    ours_us, theirs_us = [], []
    for _ in range(_ROUNDS):
        ours_us.append(_simulated(ours, ours_n))
        theirs_us.append(_real(theirs, theirs_n))
    return {"name": name, "ours_us": min(ours_us), "baseline_us": min(theirs_us), "baseline": baseline}


def _hand_over(threads: Any, lock_type: Any, turns: int) -> Callable[[], None]:
    """Two threads alternate by means of two locks: each turn is one switch."""

    def main() -> None:
        a, b = lock_type(), lock_type()
        b.acquire()

        def other() -> None:
            for _ in range(turns // 2):
                b.acquire()
                a.release()

        thread = threads.Thread(target=other)
        thread.start()
        for _ in range(turns // 2):
            a.acquire()
            b.release()
        thread.join()

    return main


def _yield_turns(turns: int) -> Callable[[], None]:
    def main() -> None:
        def other() -> None:
            for _ in range(turns // 2):
                time.sleep(0)

        thread = threading.Thread(target=other)
        thread.start()
        other()
        thread.join()

    return main


def _sleep(sleep: Callable[[float], None], count: int, seconds: float) -> Callable[[], None]:
    def main() -> None:
        for _ in range(count):
            sleep(seconds)

    return main


def _start_to_finish(threads: Any, count: int) -> Callable[[], None]:
    def main() -> None:
        for _ in range(count):
            thread = threads.Thread(target=int)
            thread.start()
            thread.join()

    return main


def _uncontended(lock_type: Any, count: int) -> Callable[[], None]:
    def main() -> None:
        lock = lock_type()
        for _ in range(count):
            with lock:
                pass

    return main


def _put_and_get(threads: Any, queues: Any, count: int) -> Callable[[], None]:
    def main() -> None:
        q = queues.Queue(1)

        def producer() -> None:
            for i in range(count):
                q.put(i)

        thread = threads.Thread(target=producer)
        thread.start()
        for _ in range(count):
            q.get()
        thread.join()

    return main


def _pending_timers(pending: int, count: int) -> Callable[[], None]:
    """Sleep while ten thousand other timers are pending."""

    def main() -> None:
        simulation = current_simulation()
        assert simulation is not None
        for i in range(pending):
            simulation.call_later((10**6 + i) * 10**9, int)
        for _ in range(count):
            time.sleep(0.001)

    return main


def measure() -> list[dict[str, Any]]:
    switch = "hand-over between two real threads"
    return [
        _pair(
            "task switch",
            _yield_turns(40_000),
            40_000,
            switch,
            _hand_over(real_threading, real_threading.Lock, 4_000),
            4_000,
        ),
        _pair(
            "lock hand-over",
            _hand_over(threading, lambda: threading.Lock(), 20_000),
            20_000,
            switch,
            _hand_over(real_threading, real_threading.Lock, 4_000),
            4_000,
        ),
        _pair(
            "sleep and wake",
            _sleep(time.sleep, 20_000, 0.001),
            20_000,
            "time.sleep(1 µs)",
            _sleep(real_time.sleep, 500, 1e-6),
            500,
        ),
        _pair(
            "thread start to finish",
            _start_to_finish(threading, 5_000),
            5_000,
            "real thread start and join",
            _start_to_finish(real_threading, 500),
            500,
        ),
        _pair(
            "uncontended lock",
            _uncontended(lambda: threading.Lock(), 50_000),
            50_000,
            "threading.Lock",
            _uncontended(real_threading.Lock, 50_000),
            50_000,
        ),
        _pair(
            "Queue(1) put and get",
            _put_and_get(threading, queue, 10_000),
            10_000,
            "queue.Queue, two real threads",
            _put_and_get(real_threading, real_queue, 2_000),
            2_000,
        ),
        _pair(
            "sleep, 10,000 timers pending",
            _pending_timers(10_000, 20_000),
            20_000,
            "time.sleep(1 µs)",
            _sleep(real_time.sleep, 500, 1e-6),
            500,
        ),
    ]


def _million_sleeps() -> None:
    def sleeper() -> None:
        for _ in range(1_000):
            time.sleep(random.random())

    threads = [threading.Thread(target=sleeper) for _ in range(1_000)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()


def facts() -> list[str]:
    """Figures without a baseline: one million sleeps, and memory over ten simulations in one process."""
    began_s = real_time.process_time()
    Simulation(1).run(_million_sleeps)
    lines = [f"one million sleeps over 1,000 tasks: {real_time.process_time() - began_s:.2f} s of CPU"]

    def small() -> None:
        threads = [threading.Thread(target=time.sleep, args=(random.random(),)) for _ in range(2_000)]
        for thread in threads:
            thread.start()

    peaks = []
    for seed in range(11):
        Simulation(seed).run(small)
        peaks.append(resource.getrusage(resource.RUSAGE_SELF).ru_maxrss)
    lines.append(
        f"memory after 1 and after 11 simulations of 2,000 tasks: {peaks[0] // 1024} and {peaks[-1] // 1024} MB"
    )
    return lines
