"""The timeline model: rows of cells, a column per peer; and the filter that selects rows."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import NamedTuple

from raftlab.tools.timeline.labels import LabelTexts
from raftlab.trace.cluster_view import PeerView

TOPICS = ("election", "log", "snapshot", "persist", "apply", "network", "client", "preemption")


class Mark(NamedTuple):
    """What the left edge of a column shows."""

    role: str  # leader, candidate, follower, paused, down
    cut: bool  # disconnected

    @classmethod
    def of(cls, peer: PeerView) -> Mark:
        if not peer.up:
            return cls("down", False)
        return cls("paused" if peer.paused else peer.role, not peer.plugged or peer.isolated)


class Label(NamedTuple):
    """One item in a cell: its tone (which decides the color) and its text in several lengths, longest first."""

    tone: str
    texts: LabelTexts


@dataclass(slots=True)
class Row:
    at_ns: int
    marks: dict[str, Mark]
    cells: dict[str, list[Label]] = field(default_factory=dict)
    banner: str = ""  # across all columns, instead of cells
    tone: str = ""  # of the banner
    fault: str = ""  # kind of the fault in the banner
    affected: list[str] = field(default_factory=list)  # peers that the fault affects
    local: bool = False  # holds only local events of peers, so others of the same instant may join


@dataclass(frozen=True, slots=True)
class RowFilter:
    """Which rows to show. The default shows all rows, with repetitions collapsed."""

    everything: bool = False
    peers: frozenset[str] = frozenset()
    topics: frozenset[str] = frozenset()
    from_ns: int = 0
    to_ns: int | None = None
    term: int | None = None
    follow: int | None = None


@dataclass(slots=True)
class TimelineModel:
    peers: list[str]
    rows: list[Row]
    events: int
    collapsed: int  # calls and starts that are only counted
    topics: list[str]  # topics of log() lines, in order of appearance


def peer_order(names: Iterable[str]) -> list[str]:
    return sorted(names, key=lambda name: (not name.isdigit(), int(name) if name.isdigit() else 0, name))
