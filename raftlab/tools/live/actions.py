"""What can be done at the current moment of a live run: steps of the scenario language, and why others cannot.

An action is the text of a step, parsed as in a file. Nothing here calls a peer, so asking what can be done does not
change the run.

Start at `actions_of()`.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import msgspec

from labrpc.network import QueuedMessage
from labsim import Event
from raftlab.scenarios.in_flight import Selector, SelectorError, describe, direction, kind_of
from raftlab.scenarios.scenario import Scenario
from raftlab.trace.calls import CallJoin, JoinedCall
from raftlab.trace.cluster_view import LEADER, ClusterView
from raftlab.trace.events import MESSAGE_KINDS

_ENDED = "the run has ended here; go back to an earlier step"


class Action(msgspec.Struct, omit_defaults=True):
    """A step, and why it cannot be made now. One that ends in a space needs a word more, which the reader types."""

    step: str
    why_not: str = ""


class MessageAction(msgspec.Struct):
    """A message in flight."""

    id: int
    reply: bool
    text: str
    source: int
    target: int
    actions: list[Action]


class Actions(msgspec.Struct):
    all: list[Action]
    peers: list[list[Action]]
    links: list[list[Action]]  # of each peer
    messages: list[MessageAction]


class _Call(JoinedCall):
    """One call with the values that the cluster view reads."""

    __slots__ = ()

    @property
    def args(self) -> Any:
        return self.message.decode_args()

    @property
    def reply(self) -> Any:
        return self.message.decode_reply()


class RoleObserver:
    """Who leads, as seen on the wire."""

    def __init__(self) -> None:
        self._join = CallJoin(_Call)
        self._view = ClusterView(())

    def observe(self, event: Event) -> None:
        if event.node and event.node.isdigit() and event.node not in self._view.peers:
            known = self._view
            self._view = ClusterView(sorted({*known.peers, event.node}))
            self._view.peers |= known.peers
            self._view.cut = known.cut
        call = self._join.take(event) if event.kind in MESSAGE_KINDS else None
        self._view.take(event, call)

    def leads(self, i: int) -> bool:
        peer = self._view.peers.get(str(i))
        return peer is not None and peer.up and peer.role == LEADER

    def is_cut(self, source: int, target: int) -> bool:
        return (str(source), str(target)) in self._view.cut


def actions_of(scenario: Scenario, roles: RoleObserver, *, snapshots: bool, ended: bool = False) -> Actions:
    """All that can be done now, or cannot."""
    queued = [] if ended else scenario.queued
    peers = range(scenario.config.n)
    actions = Actions(
        [*_of_all(scenario, queued)],
        [[*_of_peer(scenario, roles, i, snapshots=snapshots)] for i in peers],
        [[*_of_links(scenario, roles, i)] for i in peers],
        [_of_message(one) for one in queued],
    )
    if ended:
        for action in _each(actions):
            action.why_not = _ENDED
    return actions


def _each(actions: Actions) -> Iterator[Action]:
    yield from actions.all
    for those in (*actions.peers, *actions.links):
        yield from those


def _of_all(scenario: Scenario, queued: list[QueuedMessage]) -> Iterator[Action]:
    nothing = "" if queued else "nothing is in flight"
    runs = any(_why_not_awake(scenario, i) == "" for i in range(scenario.config.n))
    yield Action("run until send", "" if runs else "no peer is up and running")
    yield Action("run 100ms")
    yield Action("run 1s")
    yield Action("deliver", nothing)
    yield Action("drop", nothing)
    cut = scenario.config.network.conditions.links or any(_is_unplugged(scenario, i) for i in range(scenario.config.n))
    yield Action("heal", "" if cut else "no link is cut")
    yield Action("partition ")


def _of_peer(scenario: Scenario, roles: RoleObserver, i: int, *, snapshots: bool) -> Iterator[Action]:
    config = scenario.config
    down = "" if config.is_up(i) else f"peer {i} is down"
    asleep = _why_not_awake(scenario, i)
    leads = roles.leads(i)
    must_lead = "" if leads else f"peer {i} does not lead"
    yield Action(f"campaign {i}", asleep or (f"peer {i} leads already" if leads else ""))
    yield Action(f"heartbeat {i}", asleep or must_lead)
    yield Action(f"start {i} ", asleep or must_lead)
    yield Action(f"run {i} 100ms", asleep)
    armed = f"peer {i} is to crash already" if not down and config.is_armed(i) else ""
    yield Action(f"crash {i}", down)
    for when in ("before save", "after save", "after reply"):
        yield Action(f"crash {i} {when}", down or armed)
    yield Action(f"restart {i}", "" if down else f"peer {i} is up")
    paused = not down and config.is_paused(i)
    yield Action(f"pause {i}", down or (f"peer {i} is paused already" if paused else ""))
    yield Action(f"resume {i}", down or ("" if paused else f"peer {i} is not paused"))
    no_snapshot = "" if snapshots else "the run has no snapshots (2D)"
    nothing = "" if config.applied(i) else f"peer {i} has applied nothing"
    yield Action(f"snapshot {i} ", no_snapshot or asleep or nothing)


def _of_links(scenario: Scenario, roles: RoleObserver, i: int) -> Iterator[Action]:
    others = scenario.config.others(i)
    cut = [other for other in others if roles.is_cut(i, other) or roles.is_cut(other, i)]
    whole = [other for other in others if not (roles.is_cut(i, other) and roles.is_cut(other, i))]
    yield Action(f"cut {i}", "" if whole else f"every link of peer {i} is cut already")
    yield Action(f"heal {i}", "" if cut or _is_unplugged(scenario, i) else f"no link of peer {i} is cut")
    for other in others:
        yield Action(f"{'heal' if other in cut else 'cut'} {i} {other}")
        one_way = "" if not roles.is_cut(i, other) else f"what peer {i} sends to {other} is cut already"
        yield Action(f"cut {i}->{other}", one_way)


def _is_unplugged(scenario: Scenario, i: int) -> bool:
    return scenario.config.is_up(i) and not scenario.config.connected(i)


def _why_not_awake(scenario: Scenario, i: int) -> str:
    if not scenario.config.is_up(i):
        return f"peer {i} is down; restart it"
    return f"peer {i} is paused; resume it" if scenario.config.is_paused(i) else ""


def _of_message(queued: QueuedMessage) -> MessageAction:
    message = queued.message
    source, target = direction(message, is_reply=queued.is_reply)
    name = f"{source}->{target} {kind_of(message.rpc)}{' reply' if queued.is_reply else ''} {message.ordinal}"
    unnamed = ""
    try:
        Selector.read(name)
    except SelectorError:
        unnamed = f"no step can name a message of {message.rpc}"
    once = "a reply arrives once: its call is over then" if queued.is_reply else ""
    return MessageAction(
        message.id,
        queued.is_reply,
        describe(queued),
        source,
        target,
        [
            Action(f"deliver {name}", unnamed),
            Action(f"drop {name}", unnamed),
            Action(f"duplicate {name}", unnamed or once),
        ],
    )
