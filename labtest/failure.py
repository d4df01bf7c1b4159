"""A test's verdict against a peer, in words for the person who has to find the bug."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import NamedTuple

from labrpc import Message
from labsim import SimulationError, TaskFailed, Wait, WaitKind
from labsim.stacks import Place

__all__ = ["Failure", "GuestFailed", "State", "short"]


class State(NamedTuple):
    """What get_state() returned, and when."""

    term: int
    is_leader: bool
    asked_ns: int


class Failure(AssertionError):
    """What was expected and what was seen, in one or two sentences; `evidence` is the rest, a line each.

    `rule` names the rule of the protocol that was broken, where one was seen to be, and not merely a test that
    waited in vain. `peer` names the one that broke it, where that is known. `stuck` are the tasks that wait where they
    should not. For whoever looks for the cause:

    - `variety`: in which way the rule was broken, where it can be in several; mistakes of one rule are told apart by it
    - `states`: what peers told when they were last asked
    - `kept_locks`: by peer, what the keeper of a lock waits for while others wait for that lock (world.kept_locks())
    - `held_up`: what a call that should not wait waited for (VirtualWorld.held_up())
    - `threads`: what the peers' own threads are at
    - `awaited`: the index that the test waited for in vain
    - `costs`: whether too much was sent
    - `messages`: those among the evidence, each with the time of the event that is meant
    - `places`: the peer's lines that it is about, where it is about some
    """

    def __init__(
        self,
        text: str,
        evidence: list[str] | None = None,
        *,
        rule: str | None = None,
        variety: str = "",
        peer: str | None = None,
        stuck: Sequence[Wait] = (),
        states: Mapping[str, State] | None = None,
        kept_locks: Mapping[str, WaitKind] | None = None,
        held_up: Sequence[Wait] = (),
        threads: Sequence[Wait] = (),
        awaited: int | None = None,
        costs: bool = False,
        messages: Sequence[tuple[int, Message]] = (),
        places: Sequence[Place] = (),
    ) -> None:
        super().__init__(text)
        self.text = text
        self.evidence = evidence or []
        self.rule = rule
        self.variety = variety
        self.peer = peer
        self.stuck = stuck
        self.states = states or {}
        self.kept_locks = kept_locks or {}
        self.held_up = held_up
        self.threads = threads
        self.awaited = awaited
        self.costs = costs
        self.messages = messages
        self.places = places


class GuestFailed(SimulationError):
    """A peer in a process of its own has ended with an error, or had to be ended. Its words, except for `kind`.

    `kind`: the class of the error there (TaskFailed, RealWorldError, ...), or what the host has seen (Died, ...).
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
        where: Sequence[Place] = (),
        task: str = "",
        entry: str = "",
        returned: str = "",
        in_snapshot: bool = False,
    ) -> None:
        super().__init__(text)
        self.kind = kind or type(self).__name__
        self.name = name
        self.told = list(told) or [text]
        self.where = list(where)
        self.task = task
        self.entry = entry
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
