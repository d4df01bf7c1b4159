"""The side that owns time, network, disks and verdict, and never loads a line of a peer.

To the simulation a guest is a node with one task, `Guest.drive()`: it tells the guest what has arrived, and does what
the guest has done, deed after deed, as if the peer's own threads did it here and now. So a crash in the middle of its
deeds (a crash point at a save, say) leaves the rest undone.

Promise: whatever a guest sends is decoded into the types of guest/protocol.py, or ends the run as its failure.
Not promised: that a guest's own words about its threads are true. They are shown as such and decide nothing.

Start at `Guest.drive()`. Its process is in processes.py; who makes guests is launcher.py.
"""

from __future__ import annotations

import os
import signal
from collections import deque
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from time import monotonic
from typing import TYPE_CHECKING, Any, NoReturn

import msgspec

import labgob
from labrpc import ClientEnd, Message, Network, Server
from labrpc.network import PendingCall
from labsim import (
    LOG,
    Deadlock,
    Event,
    Livelock,
    LogLine,
    Node,
    RealWorldError,
    Simulation,
    SimulationError,
    Task,
    TaskFailed,
    Unresponsive,
    WaitKind,
)
from raftapi import ApplyMsg
from raftlab.check.failure import PeerProcessFailed
from raftlab.guest import protocol
from raftlab.guest.protocol import (
    ApplyChLength,
    ApplyChMessage,
    ApplyChOtherValue,
    Arrival,
    DiskReady,
    DroppedText,
    ExitReport,
    IncomingReply,
    IncomingRequest,
    InterceptedCall,
    InterceptedResult,
    MessageTaken,
    MethodCall,
    MethodResult,
    OutgoingReply,
    OutgoingRequest,
    PeerEffect,
    PeerLog,
    PeerOutput,
    PeerSetup,
    SaveFinished,
    SaveStarted,
    ThreadQuery,
    ThreadReport,
    TimeSlice,
    TypeDeclaration,
)
from raftlab.harness.producers import ApplyProducers
from raftlab.sandbox.message_types import MessageType, message_type
from raftlab.sandbox.processes import ForkServerLost, PeerProcessKilled

if TYPE_CHECKING:
    from raftlab.sandbox.launcher import SandboxedLauncher

_THREAD_QUERY_S = 5.0

# What a guest can say that it ended with. What it cannot (that it died, or misbehaved) is for the host to say.
_KINDS = frozenset(
    error.__name__
    for error in (TaskFailed, RealWorldError, Livelock, Deadlock, Unresponsive, SimulationError, MemoryError)
)


class PeerTimeout(PeerProcessFailed):
    """Over a limit of real time."""


class PeerNotLoadable(PeerProcessFailed):
    """Its files cannot be executed, or have no peer in them."""


class UnencodableValue:
    """A value that a guest could not send, as it looks there."""

    def __init__(self, text: str) -> None:
        self._text = text

    def __repr__(self) -> str:
        return self._text


class _PendingMethodCall:
    """A call of the tester's that has not returned."""

    __slots__ = ("caller", "id", "method", "returned")

    def __init__(self, id_: int, method: str, caller: Task) -> None:
        self.id = id_
        self.method = method
        self.caller = caller
        self.returned: MethodResult | None = None

    def describe_wait(self, waiter: Task) -> str:
        return f"{self.method}() of its guest to return"

    def wait_kind(self, waiter: Task) -> WaitKind:
        return WaitKind.TASK_END


class ApplyChannel:
    """What the service reads in the place of apply_ch; or, of a service in the guest, what is heard of its reading."""

    def __init__(self, guest: PeerSupervisor, simulation: Simulation) -> None:
        self._guest = guest
        self._simulation = simulation
        self._messages: deque[Any] = deque()
        self._reader: Task | None = None
        self._owed = 0  # messages for which the guest waits to hear that they were taken
        self._waiting = 0  # messages that are in it in the guest
        self._offered: Callable[[], None] | None = None  # None: nobody reads it in the guest
        self.producers = ApplyProducers()
        self.take: Callable[[Any], None] = self.put  # what the guest says that it has put, or taken

    def put(self, message: Any) -> None:
        self._messages.append(message)
        if self._reader is not None:
            reader, self._reader = self._reader, None
            self._simulation.wake(reader)

    def get(self) -> Any:
        """Whoever asks for the next message is done with the one before."""
        if self._owed:
            self._owed -= 1
            self._guest.taken()
        while not self._messages:
            self._reader = self._simulation.current
            self._simulation.park(self)
        self._owed += self._guest.lockstep
        return self._messages.popleft()

    def intercept(self, taken: Callable[[Any], None], offered: Callable[[], None]) -> None:
        self.take, self._offered = taken, offered

    def waiting(self) -> int:
        return self._waiting

    def note_waiting(self, messages: int) -> bool:
        """The guest says how many there are; False if it does not read them."""
        if self._offered is None:
            return False
        self._waiting = messages
        if messages:
            self._offered()
        return True

    def describe_wait(self, waiter: Task) -> str:
        return "an item in apply_ch"

    def wait_kind(self, waiter: Task) -> WaitKind:
        return WaitKind.ITEM


@dataclass
class Bindings:
    """What binds a guest to its place: what happens when it does something."""

    network: Network
    server: Server
    ends: Sequence[ClientEnd]
    disk: DiskBinding | None = None
    calls: Mapping[str, CallInterceptor] = field(
        default_factory=dict
    )  # by method: what one object of it calls of another


@dataclass
class CallInterceptor:
    """A method that one object of a guest calls of another: the types of its arguments, and who hears of a call."""

    types: tuple[type, ...]
    called: Callable[..., Callable[[Any], None] | None]  # what it returns hears of the result


@dataclass
class DiskBinding:
    """The disk of a guest that has one, and a channel with it."""

    saving: Callable[[int], int]  # a save begins on a slow disk: how long it takes, in ns
    save: Callable[[int, bytes, bytes | None], None]
    slow: Callable[[], bool]


class PeerSupervisor:
    """One incarnation of a program, and the node's only task. What the tester calls of it is in stubs.py."""

    def __init__(
        self, program: SandboxedLauncher, simulation: Simulation, node: Node, ties: Bindings, setup: PeerSetup, who: str
    ) -> None:
        """`who` is what a report calls it."""
        self._program = program
        self._simulation = simulation
        self._node = node
        self._ties = ties
        self._who = who
        self.lockstep = setup.lockstep
        self.server = ties.server
        self.channel = ApplyChannel(self, simulation)
        self._arrivals: list[Arrival] = []
        self._driver: Task | None = None
        self._waiting = False
        self._pending: dict[int, _PendingMethodCall] = {}
        self._asks = 0
        self._requests: dict[int, Message] = {}
        self._request_ids = 0
        self._types: list[MessageType] = []
        self._dropped = 0
        self._slow_disk = False  # as it was told for this turn
        self._saves = 0
        self._saves_under_way: dict[int, int] = {}  # on slow disks: the guest's name of it -> its number
        self._saves_due: dict[int, int] = {}  # may take effect now
        self._calls_within: dict[int, Callable[[Any], None]] = {}
        self._silent = False  # it was asked what its threads are at, and did not tell
        self._deeds: dict[type, Callable[[Any], None]] = {
            TypeDeclaration: self._declare,
            OutgoingRequest: self._send,
            OutgoingReply: self._answer,
            MethodResult: self._returned,
            SaveStarted: self._saving,
            SaveFinished: self._save,
            ApplyChMessage: self._put,
            ApplyChOtherValue: self._put_other,
            ApplyChLength: self._waiting_in_channel,
            InterceptedCall: self._calls,
            InterceptedResult: self._came_back,
            PeerLog: self._log,
            PeerOutput: self._print,
            DroppedText: self._note_dropped,
            ExitReport: self._failed,
        }
        if program.race:
            from raftlab.sandbox.race_supervisor import RaceSupervisor  # most runs need none

            race = RaceSupervisor(simulation, node, program.files, self._arrive, self._misbehaves, program.remark)
            self._deeds |= race.effects
            setup.losses = race.first()
        self._process = self._in_time(lambda: program.take_guest(self))
        self._in_time(lambda: self._process.begin(setup, program.limits.turn_s))
        node.remote, node.on_kill = self, self.end

    # ---- its turns -----------------------------------------------------------------------------------------------

    def drive(self) -> None:
        """The task of its node."""
        simulation, node = self._simulation, self._node
        self._driver = simulation.current
        while True:
            if simulation.now_ns and monotonic() > self._program.deadline_s:
                self._fail(PeerTimeout(f"The run took longer than {self._program.limits.real_s:g} s of real time"))
            arrivals, self._arrivals = self._arrivals, []
            now_ns = simulation.time_of(node)
            self._slow_disk = self._disk_is_slow()
            turn = TimeSlice(now_ns, self._slow_disk, arrivals)
            done = self._in_time(lambda turn=turn: self._process.turn(turn))  # type: ignore[misc]
            if len(done.effects) > protocol.EFFECTS_MAX:
                self._misbehaves(f"{len(done.effects):,} deeds in one turn; at most {protocol.EFFECTS_MAX:,} are")
            if self._program.bytes_before + self._process.bytes_read > protocol.RUN_BYTES_MAX:
                self._misbehaves(f"more than {protocol.RUN_BYTES_MAX:,} bytes in one run")
            for deed in done.effects:
                self._deeds.get(deed.__class__, self._unasked)(deed)
            if self._arrivals:
                continue
            due_ns = done.next_ns
            if due_ns is not None and due_ns <= now_ns:
                self._misbehaves("a thread that is to be woken in the past")
            self._waiting = True
            # A thread that sleeps for ever sleeps longer than any run.
            simulation.park("its guest", None if due_ns is None else min(due_ns - now_ns, 1 << 60))
            self._waiting = False

    def _disk_is_slow(self) -> bool:
        return self._ties.disk is not None and self._ties.disk.slow()

    def _arrive(self, arrival: Arrival) -> None:
        self._arrivals.append(arrival)
        if self._waiting:
            self._waiting = False
            assert self._driver is not None
            self._simulation.wake(self._driver)

    def _in_time(self, step: Callable[[], Any]) -> Any:
        try:
            return step()
        except TimeoutError:
            limit_s = self._program.limits.turn_s
            self._fail(PeerTimeout(f"{self._who} has not given up its turn within {limit_s:g} s of real time"))
        except EOFError:
            self._in_time(self._gone)
        except ForkServerLost as lost:
            self._simulation.fail(lost)  # as it is, whoever's task this is
        except (ValueError, msgspec.MsgspecError) as error:
            self._misbehaves(str(error))

    def _gone(self) -> NoReturn:
        ended = self._process.obituary()
        if ended is None:
            self._misbehaves("nothing any more: it has closed its line")
        code = os.waitstatus_to_exitcode(ended.status)
        limits = self._program.limits
        if code == -signal.SIGKILL and ended.cpu_s < limits.cpu_s - 0.5:
            self._simulation.fail(PeerProcessKilled(f"the process of {self._who} was killed from outside"))
        if code in (-signal.SIGKILL, -signal.SIGXCPU):
            self._fail(PeerTimeout(f"{self._who} used more than {limits.cpu_s} s of processor time"))
        how = f"with exit status {code}" if code >= 0 else f"by {signal.Signals(-code).name}"
        self._fail(PeerProcessFailed(f"{self._who} ended its own process, {how}", kind="Died"))

    def _misbehaves(self, what: str) -> NoReturn:
        self._fail(PeerProcessFailed(f"{self._who} told its host what no peer tells: {what[:200]}", kind="Misbehaved"))

    def _unasked(self, deed: PeerEffect) -> NoReturn:
        self._misbehaves(f"{type(deed).__name__}, unasked")

    def _fail(self, failure: PeerProcessFailed) -> NoReturn:
        failure.node = self._node.name
        self._simulation.fail(failure)

    def end(self) -> None:
        """Its node is dead, or the run is over."""
        self._process.end()
        self._program.forget(self, self._process.bytes_read)

    # ---- what arrives --------------------------------------------------------------------------------------------

    def ask(self, method: str, *args: Any) -> Any:
        """Call a method of the program, "Raft.start" say, and wait for what it returns."""
        self._asks = id_ = self._asks + 1
        pending = self._pending[id_] = _PendingMethodCall(id_, method, self._simulation.current)
        self._arrive(MethodCall(id_, method, labgob.encode(list(args))))
        self._simulation.park(pending)
        returned = pending.returned
        assert returned is not None
        return self._value(returned, method)

    def _value(self, told: MethodResult | InterceptedResult, method: str) -> Any:
        if told.numbers is not None:
            return tuple(told.numbers)
        if told.data is None:
            return UnencodableValue(told.shown[: protocol.NAME_MAX])
        return self._decoded(told.data, f"a result of {method}() that cannot be read")[0]

    def _decoded(self, data: bytes, otherwise: str) -> list[Any]:
        try:
            values = labgob.decode(data, list[Any])
        except (labgob.DecodeError, ValueError):
            self._misbehaves(otherwise)
        if not values:
            self._misbehaves(otherwise)
        return values

    def deliver(self, message: Message) -> None:
        """A request of the network's, for the server whose handlers are in the guest."""
        self._request_ids = id_ = self._request_ids + 1
        self._requests[id_] = message
        type_name = self._program.type_names.get(message.args_type, "")
        self._arrive(IncomingRequest(id_, message.service_method, message.source, type_name, message.request))

    def taken(self) -> None:
        self._arrive(MessageTaken())

    # ---- what it does --------------------------------------------------------------------------------------------

    def _declare(self, deed: TypeDeclaration) -> None:
        if len(self._types) >= protocol.TYPES_MAX or len(deed.fields) + len(deed.entries) > protocol.FIELDS_MAX:
            self._misbehaves("too many types")
        try:
            type_ = message_type(deed.name[: protocol.NAME_MAX], tuple(deed.fields), tuple(deed.entries))
        except (ValueError, TypeError) as error:
            self._misbehaves(str(error))
        self._types.append(type_)
        if deed.fields:
            for each in (type_.papers, type_.loose):
                self._program.type_names[each] = type_.name

    def _type_of(self, number: int, data: bytes) -> Any:
        if not 0 <= number < len(self._types):
            self._misbehaves("a message of a type that it has not declared")
        try:
            return self._types[number].of(data)
        except ValueError as error:
            self._misbehaves(str(error))

    def _send(self, deed: OutgoingRequest) -> None:
        if not 0 <= deed.end < len(self._ties.ends) or len(deed.method) > protocol.NAME_MAX:
            self._misbehaves(f"a call of {deed.method[:40]!r} of peer {deed.end}")
        id_ = deed.id

        def ended(call: PendingCall) -> None:
            self._arrive(IncomingReply(id_, None if call.answer is None else call.answer.reply))

        args_type = self._type_of(deed.type_number, deed.data)
        self._ties.network.begin(self._ties.ends[deed.end], deed.method, deed.data, args_type, ended)

    def _answer(self, deed: OutgoingReply) -> None:
        message = self._requests.pop(deed.id, None)
        if message is None:
            self._misbehaves("an answer that nobody asked for")
        reply_type = None if deed.data is None else self._type_of(deed.type_number, deed.data)
        self._ties.network.answer(message, self._ties.server, deed.data, reply_type)

    def _returned(self, deed: MethodResult) -> None:
        pending = self._pending.pop(deed.id, None)
        if pending is None:
            self._misbehaves("a result that nobody asked for")
        pending.returned = deed
        self._simulation.wake(pending.caller)

    # Which save began before which is for the host to say: a rule goes by it. To a guest its number is a name.

    def _saving(self, deed: SaveStarted) -> None:
        name, disk = deed.number, self._ties.disk
        if disk is None or not self._slow_disk or name in self._saves_under_way or name in self._saves_due:
            self._misbehaves("a save that cannot begin")
        self._saves += 1
        self._saves_under_way[name] = self._saves
        self._simulation.call_later(disk.saving(self._saves), self._save_is_due, name)

    def _save_is_due(self, name: int) -> None:
        self._saves_due[name] = self._saves_under_way.pop(name)
        self._arrive(DiskReady(name))

    def _save(self, deed: SaveFinished) -> None:
        number = self._saves_due.pop(deed.number, None)
        if self._ties.disk is None:
            self._misbehaves("a save, and it has no disk")
        if number is None:
            if self._slow_disk:
                self._misbehaves("a save that has not begun, or takes longer")
            self._saves = number = self._saves + 1
        self._ties.disk.save(number, deed.raft_state, deed.snapshot)

    def _put(self, deed: ApplyChMessage) -> None:
        command = None
        if deed.command_valid:
            command = self._decoded(deed.command, "a command that cannot be read")[0]
        self._channel().take(
            ApplyMsg(
                deed.command_valid,
                command,
                deed.command_index,
                deed.snapshot_valid,
                deed.snapshot,
                deed.snapshot_term,
                deed.snapshot_index,
            )
        )

    def _put_other(self, deed: ApplyChOtherValue) -> None:
        self._channel().take(UnencodableValue(deed.shown[: protocol.NAME_MAX]))

    def _channel(self) -> ApplyChannel:
        if self._ties.disk is None:
            self._misbehaves("a message for apply_ch, and it has none")
        return self.channel

    def _waiting_in_channel(self, deed: ApplyChLength) -> None:
        if deed.messages < 0 or not self._channel().note_waiting(deed.messages):
            self._misbehaves("how much is in a channel that it does not read")

    def _calls(self, deed: InterceptedCall) -> None:
        otherwise = f"a call of {deed.method[:40]}() within it, which is none"
        within, args = self._ties.calls.get(deed.method), self._decoded(deed.args, otherwise)
        if within is None or len(args) != len(within.types) or not all(map(isinstance, args, within.types)):
            self._misbehaves(otherwise)
        noted = within.called(*args)
        if noted is not None:
            self._calls_within[deed.id] = noted

    def _came_back(self, deed: InterceptedResult) -> None:
        noted = self._calls_within.pop(deed.id, None)
        if noted is None:
            self._misbehaves("the result of a call that it has not made")
        noted(self._value(deed, "start"))

    def _log(self, deed: PeerLog) -> None:
        simulation, node = self._simulation, self._node
        if simulation.trace is not None and self._program.may_say(len(deed.text)):
            # Not emit(): that would put the line into the digest.
            line = LogLine(deed.topic[: protocol.NAME_MAX], deed.text[: protocol.TEXT_MAX])
            simulation.record(Event(simulation.now_ns, LOG, node.name, node.incarnation, 0, line))

    def _print(self, deed: PeerOutput) -> None:
        if self._program.may_say(len(deed.text)):
            self._program.show(deed.text)

    def _note_dropped(self, deed: DroppedText) -> None:
        self._program.dropped += max(0, deed.chars - self._dropped)
        self._dropped = deed.chars

    def _failed(self, deed: ExitReport) -> None:
        if deed.kind == "CodeError":
            self._simulation.fail(PeerNotLoadable(deed.text[: protocol.TEXT_MAX], told=deed.told))
        self._fail(
            PeerProcessFailed(
                deed.text[: protocol.TEXT_MAX] or deed.kind,
                kind=deed.kind if deed.kind in _KINDS else SimulationError.__name__,
                name=deed.name[: protocol.NAME_MAX],
                told=[line[: protocol.TEXT_MAX] for line in deed.told],
                where=deed.where,
                task=deed.task[: protocol.NAME_MAX],
                entry_point=deed.entry_point[: protocol.NAME_MAX],
                returned=deed.returned,
                in_snapshot=deed.in_snapshot,
            )
        )

    # ---- looking inside, for a report ----------------------------------------------------------------------------

    def observe(self, asked: Task | None = None) -> ThreadReport | None:
        """What its threads are at, in its own words; None if it does not tell. `asked`: a call that did not return."""
        if self._silent:
            return None
        pending = next((p for p in self._pending.values() if p.caller is asked), None)
        turn = TimeSlice(
            self._simulation.time_of(self._node), self._disk_is_slow(), [ThreadQuery(pending.id if pending else 0)]
        )
        with suppress(EOFError, TimeoutError, ValueError, OSError, msgspec.MsgspecError):
            for deed in self._process.turn(turn, _THREAD_QUERY_S).effects:
                if isinstance(deed, ThreadReport):
                    return deed
        self._silent = True
        return None
