"""The interface of both runtimes: virtual time and real time."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from types import FrameType
from typing import Any, NoReturn, Protocol, TypeVar

from labsim import Node
from labsim.choices import ChoicePoint, Distribution
from labsim.stacks import describe_stack, is_user_code, user_frames
from raftlab.check.cluster_snapshot import ClusterSnapshot, ReportedState

T = TypeVar("T")


class CallTimeout(Exception):
    """A call on a peer did not return in time."""


class Runtime(Protocol):
    clock: str  # the suffix of a time in a report

    @property
    def now(self) -> float: ...

    def node(self, name: str) -> Node:
        """The next incarnation of this name."""

    def call(
        self, node: Node | None, fn: Callable[..., T], *args: Any, entry_point: str, limit_s: float, name: str = ""
    ) -> T:
        """Run a method of a peer on its node. Raises `CallTimeout` after `limit_s`. `name`: what a report calls it.

        In virtual time, raises NodeKilled if the node crashes during the call.
        """

    def wait_for(self, node: Node | None, fn: Callable[..., T], *args: Any, entry_point: str, limit_s: float) -> T:
        """Like call(), for a call that is expected to wait: what it waits for is not recorded."""

    def spawn(self, node: Node | None, fn: Callable[[], None], *, name: str) -> None: ...

    def usable_s(self, node: Node | None, since_s: float) -> float:
        """The time since then in which the node could run: without pauses and preemptions by the lab."""

    def wait_for_disk(self, duration_ns: int) -> None:
        """The calling peer waits. A disk uses the runtime's clock, even if the peer's clock is frozen."""

    def choose(self, point: ChoicePoint, ordinal: int, distribution: Distribution[T]) -> T: ...

    def after(self, delay_s: float, fn: Callable[[], None]) -> None: ...

    def fail(self, failure: BaseException) -> NoReturn:
        """End the run with this failure."""

    def test_step(self) -> list[str]:
        """The current line of the test, for whichever task calls: a line for each frame."""

    def snapshot(self, states: Mapping[str, ReportedState]) -> ClusterSnapshot:
        """The cluster now. `states`: the last results of get_state()."""


def test_frames(frame: FrameType | None) -> list[str]:
    """The test's frames; empty if it is over."""
    if not any(is_user_code(one.f_code.co_filename) for one in user_frames(frame)):
        return []
    return describe_stack(frame, indent="    ").splitlines()[:3]
