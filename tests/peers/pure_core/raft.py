"""A pure core (core.py) in a shell of threads.

Every input is an event in `_inbox`. The thread that added one takes the lock and handles all waiting events: step() for
each, one save for all of them, and then their effects: replies, requests, timers, entries to apply.
"""

from __future__ import annotations

import weakref
from collections.abc import Iterator
from concurrent.futures import Future
from contextlib import contextmanager, suppress
from functools import partial
from itertools import chain
from typing import Any, TypeVar

import labgob
from labrpc import ClientEnd
from labsim import queue, random, threading, time

from .core import (
    Answered,
    Apply,
    Asked,
    Boot,
    CancelTimer,
    Clock,
    Compact,
    Durable,
    Effect,
    Event,
    Halt,
    Inquire,
    Reply,
    Save,
    Send,
    SetTimer,
    Start,
    State,
    Timeout,
    step,
)
from .messages import (
    AppendEntriesArgs,
    AppendEntriesReply,
    ApplyMsg,
    InstallSnapshotArgs,
    InstallSnapshotReply,
    RequestVoteArgs,
    RequestVoteReply,
)
from .persister import Persister

T = TypeVar("T")


class Batch:
    """Some events, and the state and the effects that they lead to. Nothing has happened yet."""

    __slots__ = ("effects", "now", "state")

    def __init__(self, state: State, now: float) -> None:
        self.state = state
        self.now = now
        self.effects: list[tuple[Effect, Future[Any]]] = []

    def feed(self, event: Event, slot: Future[Any]) -> None:
        self.state, effects = step(self.state, event, self.now)
        self.effects.extend((effect, slot) for effect in effects)

    @property
    def saves(self) -> list[Save]:
        return [effect for effect, _ in self.effects if isinstance(effect, Save)]


class Raft:
    """One peer. `peers[me]` is this one; committed commands and received snapshots go to `apply_ch`."""

    __slots__ = (
        "__weakref__",
        "_inbox",
        "_mu",
        "_outbox",
        "_state",
        "_timers",
        "apply_ch",
        "dead",
        "me",
        "peers",
        "persister",
    )

    def __init__(self, peers: list[ClientEnd], me: int, persister: Persister, apply_ch: queue.Queue[ApplyMsg]) -> None:
        self.peers = peers
        self.me = me
        self.persister = persister
        self.apply_ch = apply_ch
        self.dead = threading.Event()
        self._mu = threading.Lock()  # guards _state and _timers, and is kept while we save
        self._timers: dict[Clock, threading.Timer] = {}
        self._inbox: queue.SimpleQueue[tuple[Event, Future[Any]]] = queue.SimpleQueue()
        self._outbox: queue.SimpleQueue[tuple[ApplyMsg, ...] | None] = queue.SimpleQueue()
        data = persister.read_raft_state()
        saved = labgob.decode(data, Durable) if data else None
        self._state = State.load(me, len(peers), saved, persister.read_snapshot())

        threading.Thread(target=_hand_up, args=(self._outbox, apply_ch, self.dead), daemon=True).start()
        self._drive(Boot())

    # ---- What the service calls ----------------------------------------------------------------------

    def start(self, command: Any) -> tuple[int, int, bool]:
        return self._ask(Start(command))

    def get_state(self) -> tuple[int, bool]:
        return self._ask(Inquire())

    def snapshot(self, index: int, snapshot: bytes) -> None:
        self._ask(Compact(index, snapshot))

    def kill(self) -> None:
        self.dead.set()
        self._ask(Halt())
        self._outbox.put(None)

    # ---- RPC handlers --------------------------------------------------------------------------------

    def request_vote(self, args: RequestVoteArgs) -> RequestVoteReply:
        return self._ask(Asked(args))

    def append_entries(self, args: AppendEntriesArgs) -> AppendEntriesReply:
        return self._ask(Asked(args))

    def install_snapshot(self, args: InstallSnapshotArgs) -> InstallSnapshotReply:
        return self._ask(Asked(args))

    # ---- The shell -----------------------------------------------------------------------------------

    def _ask(self, event: Event) -> Any:
        return self._drive(event).result()

    def _drive(self, event: Event) -> Future[Any]:
        """Handle this event, in this thread or in the one that holds the lock. It is handled when this returns."""
        slot: Future[Any] = Future()
        self._inbox.put((event, slot))
        with self._batch() as batch:
            for waiting in _drained(self._inbox):
                batch.feed(*waiting)
        return slot

    @contextmanager
    def _batch(self) -> Iterator[Batch]:
        """With the lock: what is fed to the batch is saved, then it counts, and then its effects are carried out."""
        with self._mu:
            batch = Batch(self._state, time.monotonic())
            yield batch
            if saves := batch.saves:
                with_snapshot = any(save.with_snapshot for save in saves)
                data = labgob.encode(batch.state.durable)
                self.persister.save(data, batch.state.snapshot if with_snapshot else None)
            self._state = batch.state
            for effect, slot in batch.effects:
                self._perform(effect, slot)

    def _perform(self, effect: Effect, slot: Future[Any]) -> None:
        """The caller holds the lock. Nothing in here waits."""
        match effect:
            case Reply(value):
                slot.set_result(value)
            case Send(peer=peer):
                args = (weakref.ref(self), self.peers[peer], effect)
                threading.Thread(target=_call, args=args, daemon=True).start()
            case Apply(messages):
                self._outbox.put(messages)
            case SetTimer(clock, ticket, low, high):
                self._cancel(clock)
                ring = partial(_ring, weakref.WeakMethod(self._drive), Timeout(clock, ticket))
                self._timers[clock] = timer = threading.Timer(random.uniform(low, high), ring)
                timer.daemon = True
                timer.start()
            case CancelTimer(clock):
                self._cancel(clock)

    def _cancel(self, clock: Clock) -> None:
        """The caller holds the lock. A timer that rings just now has a ticket that no longer counts."""
        if timer := self._timers.pop(clock, None):
            timer.cancel()


# These hold the peer by a weak reference, so that a dropped peer is freed.


def _ring(drive: weakref.WeakMethod[Any], event: Timeout) -> None:
    if method := drive():
        method(event)


def _call(raft: weakref.ref[Raft], end: ClientEnd, send: Send) -> None:
    peer = raft()
    if peer is None or peer.dead.is_set():
        return
    del peer
    reply = end.call(send.method, send.args)
    if reply is not None and (peer := raft()) is not None and not peer.dead.is_set():
        peer._drive(Answered(send.peer, send.args, send.at, reply))


def _hand_up(outbox: queue.SimpleQueue[Any], apply_ch: queue.Queue[ApplyMsg], dead: threading.Event) -> None:
    """The one thread that puts into apply_ch, until it finds None."""
    for message in chain.from_iterable(iter(outbox.get, None)):
        while not dead.is_set():
            with suppress(queue.Full):
                apply_ch.put(message, timeout=0.1)
                break


def _drained(inbox: queue.SimpleQueue[T]) -> Iterator[T]:
    with suppress(queue.Empty):
        while True:
            yield inbox.get_nowait()
