"""The pure core: an immutable State, and step(state, event, now) -> (state, effects).

Effects are data. The shell in raft.py executes them, and saves first if one of them is a Save.
"""

from __future__ import annotations

from bisect import bisect_left, bisect_right
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field, replace
from enum import Enum, IntEnum, auto, unique
from functools import partial, reduce
from itertools import takewhile
from operator import attrgetter
from typing import Any, Final, TypeAlias, TypeVar

from .messages import (
    AppendEntriesArgs,
    AppendEntriesReply,
    ApplyMsg,
    InstallSnapshotArgs,
    InstallSnapshotReply,
    LogEntry,
    RequestVoteArgs,
    RequestVoteReply,
)

ELECTION_S: Final = (0.400, 0.850)
PULSE_S: Final = 0.100
FLUSH_S: Final = 0.002
RESEND_S: Final = 0.080

T = TypeVar("T")
_term_of = attrgetter("term")


@unique
class Role(Enum):
    FOLLOWER = auto()
    CANDIDATE = auto()
    LEADER = auto()
    HALTED = auto()


class Clock(IntEnum):
    ELECTION = 0
    PULSE = 1  # a leader's heartbeat; a candidate asks again
    FLUSH = 2  # a leader waits a moment for more commands before it sends


# ---- What happens ------------------------------------------------------------------------------------

Request: TypeAlias = RequestVoteArgs | AppendEntriesArgs | InstallSnapshotArgs
Response: TypeAlias = RequestVoteReply | AppendEntriesReply | InstallSnapshotReply


@dataclass(frozen=True, slots=True)
class Boot:
    """The first event of a life."""


@dataclass(frozen=True, slots=True)
class Halt:
    """The last one."""


@dataclass(frozen=True, slots=True)
class Inquire:
    """get_state(): our term, and whether we lead."""


@dataclass(frozen=True, slots=True)
class Start:
    command: Any


@dataclass(frozen=True, slots=True)
class Compact:
    index: int
    data: bytes


@dataclass(frozen=True, slots=True)
class Timeout:
    clock: Clock
    ticket: int


@dataclass(frozen=True, slots=True)
class Asked:
    args: Request


@dataclass(frozen=True, slots=True)
class Answered:
    peer: int
    args: Request
    asked_at: float
    reply: Response


Event: TypeAlias = Boot | Halt | Inquire | Start | Compact | Timeout | Asked | Answered


# ---- What is to be done ------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Save:
    with_snapshot: bool


@dataclass(frozen=True, slots=True)
class Send:
    peer: int
    method: str
    args: Request
    at: float


@dataclass(frozen=True, slots=True)
class Reply:
    value: Any


@dataclass(frozen=True, slots=True)
class Apply:
    messages: tuple[ApplyMsg, ...]


@dataclass(frozen=True, slots=True)
class SetTimer:
    clock: Clock
    ticket: int
    low: float
    high: float


@dataclass(frozen=True, slots=True)
class CancelTimer:
    clock: Clock


Effect: TypeAlias = Save | Send | Reply | Apply | SetTimer | CancelTimer
Result: TypeAlias = "tuple[State, tuple[Effect, ...]]"


# ---- The log -----------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Log:
    """What follows the entry base_index, which is of base_term and, with all before it, in the snapshot."""

    base_index: int = 0
    base_term: int = 0
    entries: tuple[LogEntry, ...] = ()

    @property
    def last_index(self) -> int:
        return self.base_index + len(self.entries)

    @property
    def last_term(self) -> int:
        return self.entries[-1].term if self.entries else self.base_term

    def term_at(self, index: int) -> int | None:
        """None if there is no entry, or it was discarded."""
        if index == self.base_index:
            return self.base_term
        if self.base_index < index <= self.last_index:
            return self.entries[index - self.base_index - 1].term
        return None

    def between(self, after: int, upto: int) -> tuple[LogEntry, ...]:
        return self.entries[after - self.base_index : upto - self.base_index]

    def after(self, index: int) -> tuple[LogEntry, ...]:
        return self.entries[index - self.base_index :]

    def spliced(self, prev: int, new: tuple[LogEntry, ...]) -> Log:
        """Rules 3 and 4 of AppendEntries: only a conflict cuts, and only what is not there is appended."""
        if prev < self.base_index:
            new, prev = new[self.base_index - prev :], self.base_index
        pairs = zip(self.after(prev), new, strict=False)
        same = sum(1 for _ in takewhile(lambda pair: pair[0].term == pair[1].term, pairs))
        if same == len(new):
            return self
        return replace(self, entries=self.between(self.base_index, prev + same) + new[same:])

    def cut(self, index: int, term: int) -> Log:
        """The log after a snapshot of index: what follows stays if the entry at index is the snapshot's."""
        kept = self.after(index) if self.term_at(index) == term else ()
        return Log(index, term, kept)

    def first_of(self, term: int) -> int:
        return self.base_index + 1 + bisect_left(self.entries, term, key=_term_of)

    def last_of(self, term: int) -> int | None:
        index = self.base_index + bisect_right(self.entries, term, key=_term_of)
        return index if self.term_at(index) == term else None


@dataclass(frozen=True, slots=True)
class Durable:
    """Figure 2's persistent state, as it goes to the disk."""

    term: int
    voted_for: int | None
    base_index: int
    base_term: int
    entries: tuple[LogEntry, ...]


# ---- The state ---------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class State:
    me: int
    size: int
    term: int = 0
    voted_for: int | None = None
    log: Log = field(default_factory=Log)
    snapshot: bytes = b""

    role: Role = Role.FOLLOWER
    commit_index: int = 0
    last_applied: int = 0
    ticket: int = 0  # the last that was given to a timer
    armed: tuple[int, ...] = (0,) * len(Clock)  # the ticket of each timer that runs; 0: it does not
    ballots: tuple[bool | None, ...] = ()  # of a candidate
    next_index: tuple[int, ...] = ()  # of a leader, with the next two
    match_index: tuple[int, ...] = ()
    sent_at: tuple[float | None, ...] = ()  # when each was sent something that it has not answered yet

    @classmethod
    def load(cls, me: int, size: int, saved: Durable | None, snapshot: bytes) -> State:
        match saved:
            case None:
                return cls(me, size)
            case Durable(term, voted_for, base_index, base_term, entries):
                log = Log(base_index, base_term, entries)
                return cls(me, size, term, voted_for, log, snapshot, commit_index=base_index, last_applied=base_index)

    @property
    def durable(self) -> Durable:
        return Durable(self.term, self.voted_for, self.log.base_index, self.log.base_term, self.log.entries)

    @property
    def leads(self) -> bool:
        return self.role is Role.LEADER

    @property
    def others(self) -> Iterable[int]:
        return (peer for peer in range(self.size) if peer != self.me)

    def majority(self, votes: int) -> bool:
        return 2 * votes > self.size


def _with(values: tuple[T, ...], at: int, value: T) -> tuple[T, ...]:
    return (*values[:at], value, *values[at + 1 :])


def _run(state: State, *parts: Callable[[State], Result]) -> Result:
    """One part after the other; their effects in that order."""

    def then(result: Result, part: Callable[[State], Result]) -> Result:
        state, more = part(result[0])
        return state, result[1] + more

    return reduce(then, parts, (state, ()))


def _emit(*effects: Effect) -> Callable[[State], Result]:
    return lambda state: (state, effects)


def _change(**fields: Any) -> Callable[[State], Result]:
    return lambda state: (replace(state, **fields), ())


# ---- Timers ------------------------------------------------------------------------------------------


def _arm(clock: Clock, low: float, high: float | None = None) -> Callable[[State], Result]:
    def arm(state: State) -> Result:
        ticket = state.ticket + 1
        state = replace(state, ticket=ticket, armed=_with(state.armed, clock, ticket))
        return state, (SetTimer(clock, ticket, low, low if high is None else high),)

    return arm


def _disarm(*clocks: Clock) -> Callable[[State], Result]:
    def disarm(state: State) -> Result:
        running = tuple(clock for clock in clocks if state.armed[clock])
        armed = reduce(lambda armed, clock: _with(armed, clock, 0), running, state.armed)
        return replace(state, armed=armed), tuple(map(CancelTimer, running))

    return disarm


_await_leader: Final = _arm(Clock.ELECTION, *ELECTION_S)


# ---- Roles -------------------------------------------------------------------------------------------


def _follow(state: State, term: int) -> Result:
    """As a follower in this term, which is ours or a higher one. The election timer runs on, if it runs."""
    state, effects = _run(
        state,
        _change(role=Role.FOLLOWER, term=term, voted_for=state.voted_for if term == state.term else None),
        _disarm(Clock.PULSE, Clock.FLUSH),
    )
    if not state.armed[Clock.ELECTION]:
        state, more = _await_leader(state)
        effects += more
    return state, effects


def _observe_term(term: int) -> Callable[[State], Result]:
    """§5.1: adopt a higher term."""
    return lambda state: _follow(state, term) if term > state.term else (state, ())


def _hear(term: int) -> Callable[[State], Result]:
    """A word of the leader of this term, which is not below ours."""
    return lambda state: _run(state, partial(_follow, term=term), _await_leader)


def _campaign(state: State, now: float) -> Result:
    ballots = tuple(True if peer == state.me else None for peer in range(state.size))
    return _run(
        state,
        _change(role=Role.CANDIDATE, term=state.term + 1, voted_for=state.me, ballots=ballots),
        _await_leader,
        partial(_canvass, now=now),
        partial(_count_votes, now=now),
    )


def _canvass(state: State, now: float) -> Result:
    args = RequestVoteArgs(state.term, state.me, state.log.last_index, state.log.last_term)
    unheard = (peer for peer in state.others if state.ballots[peer] is None)
    sends = tuple(Send(peer, "Raft.request_vote", args, now) for peer in unheard)
    return _run(state, _emit(*sends), _arm(Clock.PULSE, PULSE_S))


def _count_votes(state: State, now: float) -> Result:
    if not state.majority(state.ballots.count(True)):
        return state, ()
    last = state.log.last_index
    return _run(
        state,
        _change(
            role=Role.LEADER,
            next_index=(last + 1,) * state.size,
            match_index=_with((0,) * state.size, state.me, last),
            sent_at=(None,) * state.size,
        ),
        _disarm(Clock.ELECTION),
        partial(_pulse, now=now),
    )


# ---- A leader's work ---------------------------------------------------------------------------------


def _pulse(state: State, now: float) -> Result:
    return _run(
        state,
        *(partial(_replicate, peer=peer, now=now, idle=True) for peer in state.others),
        _arm(Clock.PULSE, PULSE_S),
    )


def _flush(state: State, now: float) -> Result:
    return _run(state, *(partial(_replicate, peer=peer, now=now) for peer in state.others))


def _replicate(state: State, peer: int, now: float, idle: bool = False) -> Result:
    """What this peer lacks, one message at a time; `idle`: if there is nothing to send, a heartbeat."""
    log, following = state.log, state.next_index[peer]
    waiting = state.sent_at[peer] is not None
    if not waiting and following <= log.base_index:
        args: Request = InstallSnapshotArgs(state.term, state.me, log.base_index, log.base_term, state.snapshot)
        state = replace(state, sent_at=_with(state.sent_at, peer, now))
        return state, (Send(peer, "Raft.install_snapshot", args, now),)
    prev = max(following - 1, log.base_index)
    prev_term = log.term_at(prev)
    assert prev_term is not None
    entries = () if waiting else log.after(prev)
    if not entries and not idle:
        return state, ()
    if entries:
        state = replace(state, sent_at=_with(state.sent_at, peer, now))
    args = AppendEntriesArgs(state.term, state.me, prev, prev_term, list(entries), state.commit_index)
    return state, (Send(peer, "Raft.append_entries", args, now),)


def _settle(event: Answered, now: float) -> Callable[[State], Result]:
    """This answer may be to what we are waiting for, or say that it was lost; then the peer may be sent more."""

    def settle(state: State) -> Result:
        match state.sent_at[event.peer]:
            case float(sent) if event.asked_at == sent or (event.asked_at > sent and now - sent > RESEND_S):
                state = replace(state, sent_at=_with(state.sent_at, event.peer, None))
        return _replicate(state, event.peer, now)

    return settle


def _matches(peer: int, index: int) -> Callable[[State], Result]:
    """The peer's log is ours, up to this index at least. Figure 2, the last rule for leaders."""

    def matches(state: State) -> Result:
        match_index = _with(state.match_index, peer, max(state.match_index[peer], index))
        following = max(state.next_index[peer], match_index[peer] + 1)
        state = replace(state, match_index=match_index, next_index=_with(state.next_index, peer, following))
        return _commit(state)

    return matches


def _commit(state: State) -> Result:
    agreed = sorted(state.match_index, reverse=True)[state.size // 2]
    if agreed > state.commit_index and state.log.term_at(agreed) == state.term:
        state = replace(state, commit_index=agreed)
    return _apply(state)


def _apply(state: State) -> Result:
    if state.commit_index <= state.last_applied:
        return state, ()
    due = enumerate(state.log.between(state.last_applied, state.commit_index), state.last_applied + 1)
    messages = tuple(ApplyMsg(command_valid=True, command=entry.command, command_index=index) for index, entry in due)
    return replace(state, last_applied=state.commit_index), (Apply(messages),)


def _step_back(peer: int, prev: int, reply: AppendEntriesReply) -> Callable[[State], Result]:
    """A refusal (§5.3, last page): over a whole term at once, and never below what is known to match."""

    def step_back(state: State) -> Result:
        if prev != state.next_index[peer] - 1:  # of an earlier attempt
            return state, ()
        ours = state.log.last_of(reply.conflict_term) if reply.conflict_term else None
        following = min(prev, reply.conflict_index if ours is None else ours + 1)
        following = max(following, state.match_index[peer] + 1, 1)
        return replace(state, next_index=_with(state.next_index, peer, following)), ()

    return step_back


# ---- Requests ----------------------------------------------------------------------------------------


def _on_request_vote(args: RequestVoteArgs) -> Callable[[State], Result]:
    def vote(state: State) -> Result:
        theirs, ours = (args.last_log_term, args.last_log_index), (state.log.last_term, state.log.last_index)
        if args.term < state.term or state.voted_for not in (None, args.candidate_id) or theirs < ours:
            return state, (Reply(RequestVoteReply(state.term, False)),)
        granted = Reply(RequestVoteReply(state.term, True))
        return _run(state, _change(voted_for=args.candidate_id), _await_leader, _emit(granted))

    return vote


def _on_append_entries(args: AppendEntriesArgs) -> Callable[[State], Result]:
    def append(state: State) -> Result:
        log, prev = state.log, args.prev_log_index
        match log.term_at(prev):
            case None if prev > log.last_index:
                return state, (Reply(AppendEntriesReply(state.term, False, 0, log.last_index + 1)),)
            case int(term) if term != args.prev_log_term:
                return state, (Reply(AppendEntriesReply(state.term, False, term, log.first_of(term))),)
        commit = max(state.commit_index, min(args.leader_commit, prev + len(args.entries)))
        return _run(
            state,
            _change(log=log.spliced(prev, tuple(args.entries)), commit_index=commit),
            _apply,
            _emit(Reply(AppendEntriesReply(state.term, True))),
        )

    def answer(state: State) -> Result:
        if args.term < state.term:
            return state, (Reply(AppendEntriesReply(state.term, False)),)
        return _run(state, _hear(args.term), append)

    return answer


def _on_install_snapshot(args: InstallSnapshotArgs) -> Callable[[State], Result]:
    index, term = args.last_included_index, args.last_included_term

    def install(state: State) -> Result:
        if index <= state.commit_index:
            return state, ()
        message = ApplyMsg(snapshot_valid=True, snapshot=args.data, snapshot_index=index, snapshot_term=term)
        state = replace(
            state, log=state.log.cut(index, term), snapshot=args.data, commit_index=index, last_applied=index
        )
        return state, (Apply((message,)),)

    def answer(state: State) -> Result:
        reply = _emit(Reply(InstallSnapshotReply(state.term)))
        return reply(state) if args.term < state.term else _run(state, _hear(args.term), install, reply)

    return answer


# ---- step --------------------------------------------------------------------------------------------


def _dispatch(state: State, event: Event, now: float) -> Result:
    match event:
        case Boot():
            return _await_leader(state)
        case Halt():
            return _run(state, _disarm(*Clock), _change(role=Role.HALTED), _emit(Reply(None)))
        case Inquire():
            return state, (Reply((state.term, state.leads)),)

        case Start(command) if state.leads:
            log = replace(state.log, entries=(*state.log.entries, LogEntry(state.term, command)))
            return _run(
                state,
                _change(log=log, match_index=_with(state.match_index, state.me, log.last_index)),
                _commit,  # a cluster of one has a majority already
                _emit() if state.armed[Clock.FLUSH] else _arm(Clock.FLUSH, FLUSH_S),
                _emit(Reply((log.last_index, state.term, True))),
            )
        case Start():
            return state, (Reply((-1, state.term, False)),)

        case Compact(index, data):
            term = state.log.term_at(index)
            if index > state.log.base_index and index <= state.commit_index and term is not None:
                state = replace(state, log=state.log.cut(index, term), snapshot=data)
            return state, (Reply(None),)

        case Timeout(clock, ticket) if ticket != state.armed[clock]:
            return state, ()
        case Timeout(clock, _):
            state = replace(state, armed=_with(state.armed, clock, 0))
            match clock, state.role:
                case Clock.ELECTION, Role.FOLLOWER | Role.CANDIDATE:
                    return _campaign(state, now)
                case Clock.PULSE, Role.CANDIDATE:
                    return _canvass(state, now)
                case Clock.PULSE, Role.LEADER:
                    return _pulse(state, now)
                case Clock.FLUSH, Role.LEADER:
                    return _flush(state, now)
            return state, ()

        case Asked(RequestVoteArgs() as args):
            return _run(state, _observe_term(args.term), _on_request_vote(args))
        case Asked(AppendEntriesArgs() as args):
            return _run(state, _observe_term(args.term), _on_append_entries(args))
        case Asked(InstallSnapshotArgs() as args):
            return _run(state, _observe_term(args.term), _on_install_snapshot(args))

        case Answered(reply=reply) if reply.term > state.term:
            return _follow(state, reply.term)
        case Answered(args=args) if args.term != state.term:
            return state, ()
        case Answered(peer, RequestVoteArgs(), _, RequestVoteReply(vote_granted=granted)):
            if state.role is not Role.CANDIDATE:
                return state, ()
            ballots = _with(state.ballots, peer, granted)
            return _run(state, _change(ballots=ballots), partial(_count_votes, now=now))
        case Answered() if not state.leads:
            return state, ()
        case Answered(
            peer, AppendEntriesArgs(prev_log_index=prev, entries=entries), _, AppendEntriesReply(success=True)
        ):
            return _run(state, _matches(peer, prev + len(entries)), _settle(event, now))
        case Answered(peer, AppendEntriesArgs(prev_log_index=prev), _, AppendEntriesReply() as reply):
            return _run(state, _step_back(peer, prev, reply), _settle(event, now))
        case Answered(peer, InstallSnapshotArgs(last_included_index=index), _, InstallSnapshotReply()):
            return _run(state, _matches(peer, index), _settle(event, now))
    raise TypeError(f"what is {event!r}?")


def _after_death(state: State, event: Event) -> Result:
    match event:
        case Asked(RequestVoteArgs()):
            return state, (Reply(RequestVoteReply(state.term, False)),)
        case Asked(AppendEntriesArgs()):
            return state, (Reply(AppendEntriesReply(state.term, False)),)
        case Asked(InstallSnapshotArgs()):
            return state, (Reply(InstallSnapshotReply(state.term)),)
        case Start():
            return state, (Reply((-1, state.term, False)),)
        case Inquire():
            return state, (Reply((state.term, False)),)
    return state, (Reply(None),)


def step(state: State, event: Event, now: float) -> Result:
    """Handle one event. If it changes persistent state, the first effect saves it."""
    if state.role is Role.HALTED:
        return _after_death(state, event)
    after, effects = _dispatch(state, event, now)
    if (after.term, after.voted_for) == (state.term, state.voted_for) and after.log is state.log:
        return after, effects
    return after, (Save(after.snapshot is not state.snapshot), *effects)
