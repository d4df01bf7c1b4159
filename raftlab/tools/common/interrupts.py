"""Ctrl-C and SIGTERM in commands that have worker processes.

A thread serves each process, and the main thread waits for their results in futures. An interrupt that is raised while
the main thread holds a future's lock would leave the lock held and deadlock the command. So code that touches futures
or their pool is in this module or runs under `defer_interrupts()`.

Start at `sigterm_as_interrupt()`.
"""

from __future__ import annotations

import signal
import threading
from collections.abc import Collection, Iterator
from concurrent.futures import FIRST_COMPLETED, Future, wait  # noqa: TID251  # held back below
from contextlib import contextmanager
from typing import TypeVar

T = TypeVar("T")

# The longest time that an interrupt is deferred while waiting for futures.
TICK_S = 0.2


@contextmanager
def sigterm_as_interrupt() -> Iterator[None]:
    """`kill` and `timeout` end the command with its summary, as Ctrl-C does."""
    if threading.current_thread() is not threading.main_thread():
        yield
        return
    previous = signal.signal(signal.SIGTERM, signal.default_int_handler)
    try:
        yield
    finally:
        signal.signal(signal.SIGTERM, previous)


@contextmanager
def defer_interrupts() -> Iterator[None]:
    """Raise an interrupt that arrives in this block at its end. Only for short blocks: they cannot be interrupted."""
    if threading.current_thread() is not threading.main_thread():
        yield  # only the main thread receives signals
        return
    came: list[int] = []
    before = {number: signal.getsignal(number) for number in (signal.SIGINT, signal.SIGTERM)}
    # Only Python handlers: SIG_IGN and SIG_DFL are not callable.
    handlers = {int(number): handler for number, handler in before.items() if callable(handler)}
    try:
        for number in handlers:
            signal.signal(number, lambda number, _: came.append(number))
        yield
    finally:
        for number, handler in handlers.items():
            signal.signal(number, handler)
        if came:
            handlers[came[0]](came[0], None)


def first_done(futures: Collection[Future[T]]) -> set[Future[T]]:
    """The finished futures, as soon as there is one; an empty set after one tick."""
    with defer_interrupts():
        return wait(futures, timeout=TICK_S, return_when=FIRST_COMPLETED).done


def result_of(future: Future[T]) -> T:
    while not first_done([future]):
        pass
    return future.result()
