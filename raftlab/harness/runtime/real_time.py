"""Peers on real threads and the real clock, without a trace.

A thread cannot be ended from outside, so a crash is done as in MIT's lab: kill() is called, the peer is disconnected,
and its disk is copied before the peer can write to it again.
"""

from __future__ import annotations

import random
import sys
import threading
import time
from collections.abc import Callable, Mapping
from typing import Any, NoReturn, TypeVar

from labsim import Node, TaskFailed, Wait, WaitKind, work_for
from labsim.choices import ChoicePoint, Distribution
from labsim.stacks import describe_stack, is_user_code, user_frames
from raftlab.check.cluster_snapshot import ClusterSnapshot, ReportedState
from raftlab.check.failure import Failure
from raftlab.guest.contract import call_peer
from raftlab.harness.runtime.runtime import CallTimeout, test_frames

T = TypeVar("T")


class RealTimeRuntime:
    """One Config's real threads. While it is open, an exception in any thread fails the test."""

    clock = ""

    def __init__(self) -> None:
        self._began_s = time.monotonic()
        self._random = random.Random()
        self._failure: BaseException | None = None
        self._timers: list[threading.Timer] = []
        self._pending: list[threading.Thread] = []  # calls of peers that have not returned
        self._excepthook = threading.excepthook
        threading.excepthook = self._thread_failed

    def _thread_failed(self, args: threading.ExceptHookArgs) -> None:
        error = args.exc_value
        # A TaskFailed reports the failure of another thread, which was handled when that thread failed.
        if self._failure is None and error is not None and not isinstance(error, (TaskFailed, SystemExit)):
            if isinstance(error, Failure):
                self._failure = error
                return
            name = args.thread.name if args.thread is not None else "a thread"
            self._failure = TaskFailed(f"{name} ended with an exception: {error!r}", task=name, node=None)
            self._failure.__cause__ = error

    @property
    def now(self) -> float:
        return time.monotonic() - self._began_s

    def node(self, name: str) -> Node:
        """Used for its name and its program; its random stream is not used here."""
        return Node(name, 1, random.Random())

    def call(
        self, node: Node | None, fn: Callable[..., T], *args: Any, entry_point: str, limit_s: float, name: str = ""
    ) -> T:
        """Call in a new thread, so that a peer that does not return cannot block the tester."""
        results: list[T] = []
        errors: list[BaseException] = []
        name = name or f"{entry_point}()"

        def run() -> None:
            work_for(node)
            try:
                results.append(call_peer(fn, args))
            except BaseException as error:
                errors.append(error)

        thread = threading.Thread(target=run, name=name, daemon=True)
        self._pending.append(thread)
        thread.start()
        thread.join(limit_s)
        if not thread.is_alive():
            self._pending.remove(thread)
        if errors:
            error = errors[0]
            text = f"{name} ended with an exception: {error!r}"
            raise TaskFailed(text, task=name, node=None, entry_point=entry_point) from error
        if not results:
            raise CallTimeout
        return results[0]

    def wait_for(self, node: Node | None, fn: Callable[..., T], *args: Any, entry_point: str, limit_s: float) -> T:
        return self.call(node, fn, *args, entry_point=entry_point, limit_s=limit_s)

    def spawn(self, node: Node | None, fn: Callable[[], None], *, name: str) -> None:
        def run() -> None:
            work_for(node)
            fn()

        threading.Thread(target=run, name=name, daemon=True).start()

    def usable_s(self, node: Node | None, since_s: float) -> float:
        return self.now - since_s

    def wait_for_disk(self, duration_ns: int) -> None:
        time.sleep(duration_ns / 1e9)

    def choose(self, point: ChoicePoint, ordinal: int, distribution: Distribution[T]) -> T:
        return distribution.sample(self._random.getrandbits(64))

    def after(self, delay_s: float, fn: Callable[[], None]) -> None:
        timer = threading.Timer(delay_s, fn)
        timer.daemon = True
        timer.start()
        self._timers.append(timer)

    def fail(self, failure: BaseException) -> NoReturn:
        if self._failure is None:
            self._failure = failure
        raise failure

    def raise_if_failed(self) -> None:
        """Raise the failure of another thread in the test's thread."""
        if self._failure is not None:
            raise self._failure

    def test_step(self) -> list[str]:
        return test_frames(sys._current_frames().get(threading.main_thread().ident or 0))

    def snapshot(self, states: Mapping[str, ReportedState]) -> ClusterSnapshot:
        """All threads in a peer's code, blocked or not.

        A real lock does not know its holder, nor a real thread its peer.
        """
        frames = sys._current_frames()
        found = []
        for thread in threading.enumerate():
            frame = frames.get(thread.ident or 0)
            in_peer = any(is_user_code(f.f_code.co_filename) for f in user_frames(frame))
            if in_peer and thread is not threading.main_thread():
                text = f"  {thread.name} is here\n{describe_stack(frame)}"
                found.append((thread not in self._pending, text, Wait(thread.name, None, WaitKind.NOTHING, 0, text)))
        # The call that did not return comes first.
        blocked = tuple(wait for _, _, wait in sorted(found, key=lambda one: one[:2]))
        return ClusterSnapshot(blocked, states=states)

    def close(self) -> None:
        for timer in self._timers:
            timer.cancel()
        threading.excepthook = self._excepthook
