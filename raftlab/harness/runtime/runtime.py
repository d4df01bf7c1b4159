"""What the harness asks of virtual and of real time alike."""

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
    clock: str  # what follows a time in a report

    @property
    def now(self) -> float: ...

    def node(self, name: str) -> Node:
        """The next incarnation of that name."""

    def call(
        self, node: Node | None, fn: Callable[..., T], *args: Any, entry_point: str, limit_s: float, name: str = ""
    ) -> T:
        """Run a method of a peer on its node. Raises `CallTimeout` after `limit_s`. `name`: what a report calls it.

        In virtual time NodeKilled if the node goes down under the call.
        """

    def wait_for(self, node: Node | None, fn: Callable[..., T], *args: Any, entry_point: str, limit_s: float) -> T:
        """As call(), of something that may well wait: what it waits for is not noted."""

    def spawn(self, node: Node | None, fn: Callable[[], None], *, name: str) -> None: ...

    def usable_s(self, node: Node | None, since_s: float) -> float:
        """How much of the time since then the node could use: without what the lab has taken from it."""

    def wait_for_disk(self, duration_ns: int) -> None:
        """The calling peer waits. A disk goes by the runtime's clock, whatever the peer's does."""

    def choose(self, point: ChoicePoint, ordinal: int, distribution: Distribution[T]) -> T: ...

    def after(self, delay_s: float, fn: Callable[[], None]) -> None: ...

    def fail(self, failure: BaseException) -> NoReturn:
        """End the run with this failure."""

    def test_step(self) -> list[str]:
        """The step of the test that is under way, whichever task asks: a line for each frame."""

    def snapshot(self, states: Mapping[str, ReportedState]) -> ClusterSnapshot:
        """As of now. `states`: what the tester has last got from get_state()."""


def test_frames(frame: FrameType | None) -> list[str]:
    """The test's own frames; none if it is over."""
    if not any(is_user_code(one.f_code.co_filename) for one in user_frames(frame)):
        return []
    return describe_stack(frame, indent="    ").splitlines()[:3]
