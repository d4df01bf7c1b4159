"""What is known of a peer from outside: whether it is there, its role and its term, read off the wire.

Who sends RequestVote in term T campaigns in T, who sends AppendEntries leads T, who answers with a newer term follows
it. So it holds for any peer, whatever its fields are called. `Peer` tells what an event would make of it; whoever tells
the run decides when, and in which words.
"""

from __future__ import annotations

from collections.abc import Collection

from raftlab.tools.timeline.rows import Mark
from raftlab.trace.events import BOOT, CONNECT, CRASH, DISCONNECT, PAUSE, RESTART, RESUME

_ROLES = {"vote": "candidate", "append": "leader", "snapshot": "leader"}


class Peer:
    def __init__(self, name: str) -> None:
        self.name = name
        self.up = False
        self.unplugged = True
        self.paused = False
        self.isolated = False  # every link to or from it is cut
        self.role = "follower"
        self.term = 0

    @property
    def mark(self) -> Mark:
        if not self.up:
            return Mark("down", False)
        return Mark("paused" if self.paused else self.role, self.unplugged or self.isolated)

    def role_shown_by(self, kind: str, term: int) -> str | None:
        """What whoever sends this must be, of that term; None if it tells nothing."""
        role = _ROLES.get(kind)
        # A thread of a leader may be late with a request that it was to send as a candidate.
        late = role == "candidate" and self.role == "leader" and term == self.term
        return role if term >= self.term and not late else None

    def follows_when_it_answers(self, kind: str, asked_term: int, term: int) -> bool:
        """Whoever answers with a newer term, or takes a leader's entries in its own, follows."""
        heard_leader = kind in ("append", "snapshot") and term == self.term == asked_term
        return term > self.term or (heard_leader and self.role == "candidate")

    def role_told_by_start(self, term: int, *, is_leader: bool) -> str | None:
        """What start() has told of it, if that is news."""
        if is_leader:
            return "leader" if self.role != "leader" or term > self.term else None
        return "follower" if term > self.term or (self.role == "leader" and term >= self.term) else None

    def is_struck(self, act: str) -> None:
        """The tester has done this to it: one of SERVER_ACTS."""
        if act in (BOOT, RESTART):
            self.up, self.role = True, "follower"
            if act == BOOT:
                self.term = 0
        elif act == CRASH:
            self.up, self.unplugged, self.paused = False, True, False
        elif act in (PAUSE, RESUME):
            self.paused = act == PAUSE
        elif act in (CONNECT, DISCONNECT):
            self.unplugged = act == DISCONNECT


def is_isolated(name: str, everyone: Collection[str], cut: Collection[tuple[str, str]]) -> bool:
    """Whether every link to and from it is cut."""
    others = [other for other in everyone if other != name]
    return bool(others) and all((name, o) in cut and (o, name) in cut for o in others)
