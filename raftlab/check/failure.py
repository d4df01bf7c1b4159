"""A test's verdict against a peer, in words for the person who has to find the bug."""

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
    """What was expected and what was seen, in one or two sentences; `evidence` is the rest, a line each.

    - `rule`: the rule of the protocol that was broken, if it is more than a test that waited in vain
    - `variety`: in which way, if there are several; mistakes of one rule are told apart by it
    - `peer`: the one that broke it, where that is known
    - `messages`: those among the evidence, each with the time of the event that is meant
    - `awaited`: the index that the test waited for in vain
    - `costs`: whether too much was sent
    - `snapshot`: the cluster when it was noticed. `blocked` there is part of the report
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
        """The same, with what is known only later: more evidence, a peer where none is named, another snapshot."""
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
        """The peer's lines that it is about, where it is about some."""
        return [wait.where for wait in self.snapshot.blocked if wait.where is not None]


class PeerProcessFailed(SimulationError):
    """A peer in a process of its own has ended with an error, or had to be ended. Its words, except for `kind`.

    `kind`: the class of the error there (TaskFailed, RealWorldError, ...), or what the supervisor has seen (Died, ...).
    `name`: of a TaskFailed, the class of the exception in it. `told`: what a report shows. `where`: the peer's own
    lines, innermost first. The others are as those of TaskFailed and RpcError.
    """

    def __init__(
        self,
        text: str,
        *,
        kind: str = "",
        name: str = "",
        told: Sequence[str] = (),
        where: Sequence[CodeLocation] = (),
        task: str = "",
        entry_point: str = "",
        returned: str = "",
        in_snapshot: bool = False,
    ) -> None:
        super().__init__(text)
        self.kind = kind or type(self).__name__
        self.name = name
        self.told = list(told) or [text]
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
    """A value in a sentence: its repr, cut where it would drown the rest."""
    text = repr(value)
    return text if len(text) <= width else f"{text[: width - 3]}..."
