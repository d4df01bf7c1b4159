"""A failed run as a value: a broken rule or an unmet expectation, with its evidence."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

from labrpc import Message
from labsim import SimulationError, TaskFailed
from labsim.stacks import CodeLocation
from raftlab.check.cluster_snapshot import ClusterSnapshot

__all__ = ["Failure", "PeerProcessFailed", "short"]

_NO_SNAPSHOT = ClusterSnapshot()


class Failure(AssertionError):
    """What was expected and what happened, in one or two sentences; `evidence` has the details, a line each.

    - `rule`: the name of the broken rule; None if an expectation of the test was not met
    - `variety`: in which way it was broken, to tell mistakes of one rule apart
    - `peer`: the one that broke it, if known
    - `messages`: those among the evidence, each with the time of its event
    - `awaited`: the index that the test waited for
    - `costs`: whether too much was sent
    - `snapshot`: the cluster at that time; the report shows its `blocked`
    """

    def __init__(
        self,
        text: str,
        evidence: Sequence[str] = (),
        *,
        rule: str | None = None,
        variety: str = "",
        peer: str | None = None,
        messages: Sequence[tuple[int, Message]] = (),
        awaited: int | None = None,
        costs: bool = False,
        snapshot: ClusterSnapshot = _NO_SNAPSHOT,
    ) -> None:
        super().__init__(text)
        self.text: Final = text
        self.evidence: Final = tuple(evidence)
        self.rule: Final = rule
        self.variety: Final = variety
        self.peer: Final = peer
        self.messages: Final = tuple(messages)
        self.awaited: Final = awaited
        self.costs: Final = costs
        self.snapshot: Final = snapshot

    def extended(
        self, *, evidence: Sequence[str] = (), peer: str | None = None, snapshot: ClusterSnapshot | None = None
    ) -> Failure:
        """A copy with more evidence, another snapshot, and `peer` if none is known yet."""
        return Failure(
            self.text,
            [*self.evidence, *evidence],
            rule=self.rule,
            variety=self.variety,
            peer=self.peer or peer,
            messages=self.messages,
            awaited=self.awaited,
            costs=self.costs,
            snapshot=snapshot or self.snapshot,
        )

    @property
    def places(self) -> Sequence[CodeLocation]:
        """The lines of the peer where tasks are blocked."""
        return [wait.where for wait in self.snapshot.blocked if wait.where is not None]


class PeerProcessFailed(SimulationError):
    """A sandboxed peer's process ended with an error, or was ended. Everything but `kind` comes from that process.

    `kind`: the class of the error there (TaskFailed, RealWorldError, ...), or what the supervisor saw (Died, ...).
    `name`: of a TaskFailed, the class of its exception. `lines`: what a report shows. `where`: the peer's own lines of
    code, innermost first. The other fields are as in TaskFailed and RpcError.
    """

    def __init__(
        self,
        text: str,
        *,
        kind: str = "",
        name: str = "",
        lines: Sequence[str] = (),
        where: Sequence[CodeLocation] = (),
        task: str = "",
        entry_point: str = "",
        returned: str = "",
        in_snapshot: bool = False,
    ) -> None:
        super().__init__(text)
        self.kind = kind or type(self).__name__
        self.name = name
        self.lines = list(lines) or [text]
        self.where = list(where)
        self.task = task
        self.entry_point = entry_point
        self.returned = returned
        self.in_snapshot = in_snapshot
        self.node: str | None = None

    @property
    def is_exception(self) -> bool:
        """Whether a task of the peer ended with an exception."""
        return self.kind == TaskFailed.__name__


def short(value: object, width: int = 60) -> str:
    """The repr of a value for a sentence, cut to `width`."""
    text = repr(value)
    return text if len(text) <= width else f"{text[: width - 3]}..."
