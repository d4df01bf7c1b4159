"""Ends of a command that has processes of its own: whoever asks it to stop gets all of them stopped.

A thread looks after each of these processes, and the main thread waits for what they have to say in futures. An
interrupt that is raised while the main thread has hold of a future's lock would leave it locked: the thread with the
answer waits for that lock, the main thread for the thread, and the command never ends. So all that touches futures or
their pool is done here, or is `defer_interrupts()`.

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

# How long an interrupt may wait, and how often whoever watches gets a turn.
TICK_S = 0.2


@contextmanager
def sigterm_as_interrupt() -> Iterator[None]:
    """`kill` and `timeout` get the summary, as Ctrl-C does."""
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
    """An interrupt that comes within is raised at the end. For what is short: nobody can end it."""
    if threading.current_thread() is not threading.main_thread():
        yield  # signals are the main thread's
        return
    came: list[int] = []
    before = {number: signal.getsignal(number) for number in (signal.SIGINT, signal.SIGTERM)}
    # Not one that is ignored, or ends the process by itself.
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
    """Those that have ended, as soon as one has; none when a tick has passed before."""
    with defer_interrupts():
        return wait(futures, timeout=TICK_S, return_when=FIRST_COMPLETED).done


def result_of(future: Future[T]) -> T:
    while not first_done([future]):
        pass
    return future.result()
