"""The supervisor of a sandboxed peer: owns time, network, disks and verdict, and never loads the peer's code.

In the simulation a peer is a node with one task, `PeerSupervisor.drive()`. It sends what has arrived to the peer
process and applies its effects, one by one. A crash between two effects (a crash point at a save) discards the rest.
Promise: a message that is not valid in guest/protocol.py ends the run as a failure of the peer.
Not promised: that a peer's report of its own threads is true. It is shown in reports and never affects the verdict.

Start at `PeerSupervisor.drive()`. processes.py has the processes; launcher.py starts them.
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
    ApplyReaderReady,
    Arrival,
    DiskReady,
    DroppedText,
    ExitReport,
    IncomingReply,
    IncomingRequest,
    InterceptedCall,
    InterceptedResult,
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
    ThreadQueryResult,
    TimeSlice,
    TypeDeclaration,
)
from raftlab.harness.producers import ApplyProducers
from raftlab.sandbox.message_types import MessageType, message_type
from raftlab.sandbox.processes import ForkServerLost, PeerProcessKilled

if TYPE_CHECKING:
    from raftlab.sandbox.launcher import SandboxedLauncher

_THREAD_QUERY_S = 5.0

# The kinds that an ExitReport may have. Others ("Died", "Misbehaved") are set only here.
_KINDS = frozenset(
    error.__name__
    for error in (TaskFailed, RealWorldError, Livelock, Deadlock, Unresponsive, SimulationError, MemoryError)
)


class PeerTimeout(PeerProcessFailed):
    """The peer exceeded a limit of real time or CPU time."""


class PeerNotLoadable(PeerProcessFailed):
    """The peer's files cannot be executed, or do not have the required classes."""


class UnencodableValue:
    """Stands for a value that cannot be encoded: has its text."""

    def __init__(self, text: str) -> None:
        self._text = text

    def __repr__(self) -> str:
        return self._text


class _PendingMethodCall:
    """A call by the tester that has not returned."""

    __slots__ = ("caller", "id", "method", "returned")

    def __init__(self, id_: int, method: str, caller: Task) -> None:
        self.id = id_
        self.method = method
        self.caller = caller
        self.returned: MethodResult | None = None

    def describe_wait(self, waiter: Task) -> str:
        return f"{self.method}() in the sandbox"

    def wait_kind(self, waiter: Task) -> WaitKind:
        return WaitKind.TASK_END


class SandboxedApplyCh:
    """Replaces apply_ch for a service outside the sandbox; for one inside, reports what the service takes."""

    def __init__(self, supervisor: PeerSupervisor, simulation: Simulation) -> None:
        self._supervisor = supervisor
        self._simulation = simulation
        self._messages: deque[Any] = deque()
        self._reader: Task | None = None
        self._unacknowledged = 0  # messages for which the peer process waits for ApplyReaderReady
        self._waiting = 0  # messages in the apply_ch of the peer process
        self._on_offered: Callable[[], None] | None = None  # None: the service is outside
        self.producers = ApplyProducers()
        self.on_message: Callable[[Any], None] = self.put  # for each ApplyChMessage

    def put(self, message: Any) -> None:
        self._messages.append(message)
        if self._reader is not None:
            reader, self._reader = self._reader, None
            self._simulation.wake(reader)

    def get(self) -> Any:
        """The next message. A reader that asks for it has handled the previous one."""
        if self._unacknowledged:
            self._unacknowledged -= 1
            self._supervisor.on_taken()
        while not self._messages:
            self._reader = self._simulation.current
            self._simulation.park(self)
        self._unacknowledged += self._supervisor.lockstep
        return self._messages.popleft()

    def intercept(self, on_taken: Callable[[Any], None], on_offered: Callable[[], None]) -> None:
        self.on_message, self._on_offered = on_taken, on_offered

    def waiting(self) -> int:
        return self._waiting

    def set_length(self, messages: int) -> bool:
        """Returns False if the service is not in the peer process."""
        if self._on_offered is None:
            return False
        self._waiting = messages
        if messages:
            self._on_offered()
        return True

    def describe_wait(self, waiter: Task) -> str:
        return "an item in apply_ch"

    def wait_kind(self, waiter: Task) -> WaitKind:
        return WaitKind.ITEM


@dataclass
class Bindings:
    """What the effects of a peer act on: network, server, disk, and interceptors of calls."""

    network: Network
    server: Server
    ends: Sequence[ClientEnd]
    disk: DiskBinding | None = None
    intercepted: Mapping[str, CallInterceptor] = field(default_factory=dict)  # by method


@dataclass
class CallInterceptor:
    """A method of the peer whose calls by its service are reported: argument types and callback."""

    argument_types: tuple[type, ...]
    on_call: Callable[..., Callable[[Any], None] | None]  # returns a callback for the result, or None


@dataclass
class DiskBinding:
    """The disk of a server. A clerk has none, and no apply_ch."""

    begin_save: Callable[[int], int]  # on a slow disk: returns how long the save takes, in ns
    save: Callable[[int, bytes, bytes | None], None]
    is_slow: Callable[[], bool]


class PeerSupervisor:
    """Supervises one incarnation of a peer. stubs.py has the methods that the tester calls."""

    def __init__(
        self,
        launcher: SandboxedLauncher,
        simulation: Simulation,
        node: Node,
        bindings: Bindings,
        setup: PeerSetup,
        label: str,
    ) -> None:
        """`label`: its name in reports."""
        self._launcher = launcher
        self._simulation = simulation
        self._node = node
        self._bindings = bindings
        self._label = label
        self.lockstep = setup.lockstep
        self.server = bindings.server
        self.channel = SandboxedApplyCh(self, simulation)
        self._arrivals: list[Arrival] = []
        self._driver: Task | None = None
        self._waiting = False
        self._pending: dict[int, _PendingMethodCall] = {}
        self._call_ids = 0
        self._requests: dict[int, Message] = {}
        self._request_ids = 0
        self._types: list[MessageType] = []
        self._dropped = 0
        self._slow_disk = False  # as sent with this time slice
        self._saves = 0
        self._saves_started: dict[int, int] = {}  # on slow disks: the label from the peer -> the number of the save
        self._saves_due: dict[int, int] = {}  # may finish now
        self._intercepted_results: dict[int, Callable[[Any], None]] = {}
        self._unresponsive = False  # it did not answer a ThreadQuery
        self._handlers: dict[type, Callable[[Any], None]] = {
            TypeDeclaration: self._on_type_declaration,
            OutgoingRequest: self._on_outgoing_request,
            OutgoingReply: self._on_outgoing_reply,
            MethodResult: self._on_method_result,
            SaveStarted: self._on_save_started,
            SaveFinished: self._on_save_finished,
            ApplyChMessage: self._on_apply_message,
            ApplyChOtherValue: self._on_other_value,
            ApplyChLength: self._on_apply_length,
            InterceptedCall: self._on_intercepted_call,
            InterceptedResult: self._on_intercepted_result,
            PeerLog: self._on_log,
            PeerOutput: self._on_output,
            DroppedText: self._on_dropped_text,
            ExitReport: self._on_exit_report,
        }
        if launcher.race:
            from raftlab.sandbox.race_supervisor import RaceSupervisor  # most runs need none

            race = RaceSupervisor(
                simulation, node, launcher.files, self._deliver, self._protocol_violation, launcher.add_benign_race
            )
            self._handlers |= race.handlers
            setup.first_preemptions = race.first_batches()
        self._process = self._with_limits(lambda: launcher.start_process(self))
        self._with_limits(lambda: self._process.set_up(setup, launcher.limits.slice_s))
        node.remote, node.on_kill = self, self.end

    # ---- time slices -------------------------------------------------------------------------------------------------

    def drive(self) -> None:
        """The only task of the node."""
        simulation, node = self._simulation, self._node
        self._driver = simulation.current
        while True:
            if simulation.now_ns and monotonic() > self._launcher.deadline_s:
                self._fail(PeerTimeout(f"The run took longer than {self._launcher.limits.real_s:g} s of real time"))
            arrivals, self._arrivals = self._arrivals, []
            now_ns = simulation.time_of(node)
            self._slow_disk = self._disk_is_slow()
            time_slice = TimeSlice(now_ns, self._slow_disk, arrivals)
            result = self._with_limits(lambda time_slice=time_slice: self._process.run_slice(time_slice))  # type: ignore[misc]
            if len(result.effects) > protocol.EFFECTS_MAX:
                self._protocol_violation(
                    f"{len(result.effects):,} effects in one time slice; at most {protocol.EFFECTS_MAX:,} are allowed"
                )
            if self._launcher.bytes_of_ended + self._process.bytes_read > protocol.RUN_BYTES_MAX:
                self._protocol_violation(f"more than {protocol.RUN_BYTES_MAX:,} bytes in one run")
            for effect in result.effects:
                self._handlers.get(effect.__class__, self._on_unexpected)(effect)
            if self._arrivals:
                continue
            due_ns = result.next_ns
            if due_ns is not None and due_ns <= now_ns:
                self._protocol_violation("a wake-up time in the past")
            self._waiting = True
            # An endless sleep: longer than any run.
            simulation.park("its peer process", None if due_ns is None else min(due_ns - now_ns, 1 << 60))
            self._waiting = False

    def _disk_is_slow(self) -> bool:
        return self._bindings.disk is not None and self._bindings.disk.is_slow()

    def _deliver(self, arrival: Arrival) -> None:
        self._arrivals.append(arrival)
        if self._waiting:
            self._waiting = False
            assert self._driver is not None
            self._simulation.wake(self._driver)

    def _with_limits(self, step: Callable[[], Any]) -> Any:
        try:
            return step()
        except TimeoutError:
            limit_s = self._launcher.limits.slice_s
            self._fail(PeerTimeout(f"{self._label} did not finish its time slice within {limit_s:g} s of real time"))
        except EOFError:
            self._with_limits(self._on_process_end)
        except ForkServerLost as lost:
            self._simulation.fail(lost)  # in any task: this is not a failure of the peer
        except (ValueError, msgspec.MsgspecError) as error:
            self._protocol_violation(str(error))

    def _on_process_end(self) -> NoReturn:
        ended = self._process.wait_exit()
        if ended is None:
            self._protocol_violation("it closed its connection")
        code = os.waitstatus_to_exitcode(ended.status)
        limits = self._launcher.limits
        if code == -signal.SIGKILL and ended.cpu_s < limits.cpu_s - 0.5:
            self._simulation.fail(PeerProcessKilled(f"the process of {self._label} was killed from outside"))
        if code in (-signal.SIGKILL, -signal.SIGXCPU):
            self._fail(PeerTimeout(f"{self._label} used more than {limits.cpu_s} s of processor time"))
        how = f"with exit status {code}" if code >= 0 else f"by {signal.Signals(-code).name}"
        self._fail(PeerProcessFailed(f"{self._label} ended its own process, {how}", kind="Died"))

    def _protocol_violation(self, what: str) -> NoReturn:
        self._fail(PeerProcessFailed(f"{self._label} violated the sandbox protocol: {what[:200]}", kind="Misbehaved"))

    def _on_unexpected(self, effect: PeerEffect) -> NoReturn:
        self._protocol_violation(f"an unexpected {type(effect).__name__}")

    def _fail(self, failure: PeerProcessFailed) -> NoReturn:
        failure.node = self._node.name
        self._simulation.fail(failure)

    def end(self) -> None:
        """End the process: its node was killed, or the run is over."""
        self._process.kill()
        self._launcher.on_ended(self, self._process.bytes_read)

    # ---- messages to the peer process --------------------------------------------------------------------------------

    def call(self, method: str, *args: Any) -> Any:
        """Call a method, such as "Raft.start", and wait for its result."""
        self._call_ids = id_ = self._call_ids + 1
        pending = self._pending[id_] = _PendingMethodCall(id_, method, self._simulation.current)
        self._deliver(MethodCall(id_, method, labgob.encode(list(args))))
        self._simulation.park(pending)
        returned = pending.returned
        assert returned is not None
        return self._decode_result(returned, method)

    def _decode_result(self, result: MethodResult | InterceptedResult, method: str) -> Any:
        if result.numbers is not None:
            return tuple(result.numbers)
        if result.data is None:
            return UnencodableValue(result.text[: protocol.NAME_MAX])
        return self._decode_values(result.data, f"an undecodable result of {method}()")[0]

    def _decode_values(self, data: bytes, otherwise: str) -> list[Any]:
        try:
            values = labgob.decode(data, list[Any])
        except (labgob.DecodeError, ValueError):
            self._protocol_violation(otherwise)
        if not values:
            self._protocol_violation(otherwise)
        return values

    def deliver(self, message: Message) -> None:
        """Deliver an RPC request to the handlers in the peer process."""
        self._request_ids = id_ = self._request_ids + 1
        self._requests[id_] = message
        type_name = self._launcher.type_names.get(message.args_type, "")
        self._deliver(IncomingRequest(id_, message.service_method, message.source, type_name, message.request))

    def on_taken(self) -> None:
        self._deliver(ApplyReaderReady())

    # ---- effects of the peer -----------------------------------------------------------------------------------------

    def _on_type_declaration(self, effect: TypeDeclaration) -> None:
        if len(self._types) >= protocol.TYPES_MAX or len(effect.fields) + len(effect.entries) > protocol.FIELDS_MAX:
            self._protocol_violation("too many types")
        try:
            type_ = message_type(effect.name[: protocol.NAME_MAX], tuple(effect.fields), tuple(effect.entries))
        except (ValueError, TypeError) as error:
            self._protocol_violation(str(error))
        self._types.append(type_)
        if effect.fields:
            for each in (type_.typed, type_.untyped):
                self._launcher.type_names[each] = type_.name

    def _type_of(self, number: int, data: bytes) -> Any:
        if not 0 <= number < len(self._types):
            self._protocol_violation("a message of an undeclared type")
        try:
            return self._types[number].class_for(data)
        except ValueError as error:
            self._protocol_violation(str(error))

    def _on_outgoing_request(self, effect: OutgoingRequest) -> None:
        if not 0 <= effect.end < len(self._bindings.ends) or len(effect.method) > protocol.NAME_MAX:
            self._protocol_violation(f"an invalid call: {effect.method[:40]!r} to peer {effect.end}")
        id_ = effect.id

        def ended(call: PendingCall) -> None:
            self._deliver(IncomingReply(id_, None if call.answer is None else call.answer.reply))

        args_type = self._type_of(effect.type_number, effect.data)
        self._bindings.network.begin(self._bindings.ends[effect.end], effect.method, effect.data, args_type, ended)

    def _on_outgoing_reply(self, effect: OutgoingReply) -> None:
        message = self._requests.pop(effect.id, None)
        if message is None:
            self._protocol_violation("a reply without a request")
        reply_type = None if effect.data is None else self._type_of(effect.type_number, effect.data)
        self._bindings.network.answer(message, self._bindings.server, effect.data, reply_type)

    def _on_method_result(self, effect: MethodResult) -> None:
        pending = self._pending.pop(effect.id, None)
        if pending is None:
            self._protocol_violation("a result without a call")
        pending.returned = effect
        self._simulation.wake(pending.caller)

    # Rules need the order of saves, so the supervisor numbers them. A number from the peer is only a label.

    def _on_save_started(self, effect: SaveStarted) -> None:
        name, disk = effect.number, self._bindings.disk
        if disk is None or not self._slow_disk or name in self._saves_started or name in self._saves_due:
            self._protocol_violation("an invalid start of a save")
        self._saves += 1
        self._saves_started[name] = self._saves
        self._simulation.call_later(disk.begin_save(self._saves), self._save_is_due, name)

    def _save_is_due(self, name: int) -> None:
        self._saves_due[name] = self._saves_started.pop(name)
        self._deliver(DiskReady(name))

    def _on_save_finished(self, effect: SaveFinished) -> None:
        number = self._saves_due.pop(effect.number, None)
        if self._bindings.disk is None:
            self._protocol_violation("a save without a disk")
        if number is None:
            if self._slow_disk:
                self._protocol_violation("a save that was not due")
            self._saves = number = self._saves + 1
        self._bindings.disk.save(number, effect.raft_state, effect.snapshot)

    def _on_apply_message(self, effect: ApplyChMessage) -> None:
        command = None
        if effect.command_valid:
            command = self._decode_values(effect.command, "an undecodable command")[0]
        self._channel().on_message(
            ApplyMsg(
                effect.command_valid,
                command,
                effect.command_index,
                effect.snapshot_valid,
                effect.snapshot,
                effect.snapshot_term,
                effect.snapshot_index,
            )
        )

    def _on_other_value(self, effect: ApplyChOtherValue) -> None:
        self._channel().on_message(UnencodableValue(effect.text[: protocol.NAME_MAX]))

    def _channel(self) -> SandboxedApplyCh:
        if self._bindings.disk is None:
            self._protocol_violation("a message for apply_ch without an apply_ch")
        return self.channel

    def _on_apply_length(self, effect: ApplyChLength) -> None:
        if effect.messages < 0 or not self._channel().set_length(effect.messages):
            self._protocol_violation("an invalid length of apply_ch")

    def _on_intercepted_call(self, effect: InterceptedCall) -> None:
        otherwise = f"an invalid intercepted call of {effect.method[:40]}()"
        interceptor, args = self._bindings.intercepted.get(effect.method), self._decode_values(effect.args, otherwise)
        if (
            interceptor is None
            or len(args) != len(interceptor.argument_types)
            or not all(map(isinstance, args, interceptor.argument_types))
        ):
            self._protocol_violation(otherwise)
        on_result = interceptor.on_call(*args)
        if on_result is not None:
            self._intercepted_results[effect.id] = on_result

    def _on_intercepted_result(self, effect: InterceptedResult) -> None:
        on_result = self._intercepted_results.pop(effect.id, None)
        if on_result is None:
            self._protocol_violation("the result of an unknown intercepted call")
        on_result(self._decode_result(effect, "start"))

    def _on_log(self, effect: PeerLog) -> None:
        simulation, node = self._simulation, self._node
        if simulation.trace is not None and self._launcher.keep_text(len(effect.text)):
            # Not emit(): log lines are not part of the digest.
            line = LogLine(effect.topic[: protocol.NAME_MAX], effect.text[: protocol.TEXT_MAX])
            simulation.record(Event(simulation.now_ns, LOG, node.name, node.incarnation, 0, line))

    def _on_output(self, effect: PeerOutput) -> None:
        if self._launcher.keep_text(len(effect.text)):
            self._launcher.print_text(effect.text)

    def _on_dropped_text(self, effect: DroppedText) -> None:
        self._launcher.dropped_chars += max(0, effect.chars - self._dropped)
        self._dropped = effect.chars

    def _on_exit_report(self, effect: ExitReport) -> None:
        if effect.kind == "PeerCodeError":
            self._simulation.fail(PeerNotLoadable(effect.text[: protocol.TEXT_MAX], lines=effect.lines))
        self._fail(
            PeerProcessFailed(
                effect.text[: protocol.TEXT_MAX] or effect.kind,
                kind=effect.kind if effect.kind in _KINDS else SimulationError.__name__,
                name=effect.name[: protocol.NAME_MAX],
                lines=[line[: protocol.TEXT_MAX] for line in effect.lines],
                where=effect.where,
                task=effect.task[: protocol.NAME_MAX],
                entry_point=effect.entry_point[: protocol.NAME_MAX],
                returned=effect.returned,
                in_snapshot=effect.in_snapshot,
            )
        )

    # ---- thread states for reports -----------------------------------------------------------------------------------

    def observe(self, asked: Task | None = None) -> ThreadQueryResult | None:
        """The state of its threads, as it reports them; None without a reply. `asked`: a call that did not return."""
        if self._unresponsive:
            return None
        pending = next((p for p in self._pending.values() if p.caller is asked), None)
        time_slice = TimeSlice(
            self._simulation.time_of(self._node), self._disk_is_slow(), [ThreadQuery(pending.id if pending else 0)]
        )
        with suppress(EOFError, TimeoutError, ValueError, OSError, msgspec.MsgspecError):
            for effect in self._process.run_slice(time_slice, _THREAD_QUERY_S).effects:
                if isinstance(effect, ThreadQueryResult):
                    return effect
        self._unresponsive = True
        return None
