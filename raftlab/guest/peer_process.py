"""A peer process: runs the threads of one peer on a simulation whose clock, network and disk belong to the supervisor.

Promise: between two time slices no line of the peer runs, and within one the peer sees one time. The effects of its
threads are sent in the order in which they happened. Not promised: that they are true. The peer can change anything in
this process, so the supervisor trusts nothing here, and owns network, disk and clock itself.

Start at `run_peer_process()`, then `PeerSimulation._advance()`, where this process waits for its supervisor.
"""

from __future__ import annotations

import os
import signal
import sys
from collections.abc import Callable
from contextlib import suppress
from dataclasses import fields, is_dataclass
from heapq import heappop
from random import Random
from types import FrameType
from typing import TYPE_CHECKING, Any, NoReturn, TypeVar, get_args, get_type_hints

import msgspec

import labgob
from labrpc import RpcError, Server
from labrpc import Service as RpcService
from labrpc.server import full_name
from labsim import (
    Event,
    Node,
    Simulation,
    Task,
    Unresponsive,
    WaitKind,
    queue,
)
from labsim.blocked import blocked, held_locks, node_threads
from labsim.choices import SeededSource
from labsim.guard import forbid_exit
from labsim.stacks import is_user_code, location_of, user_frames
from labsim.watchdog import describe_unresponsive
from raftapi import Persister
from raftlab.check.failure import short
from raftlab.check.task_errors import point_into_peer
from raftlab.guest import protocol
from raftlab.guest.compiled_peer import CompiledPeer, PeerCodeError
from raftlab.guest.contract import call_peer, renamed_rpcs
from raftlab.guest.exit_report import encodable, exit_report
from raftlab.guest.protocol import (
    ApplyChMessage,
    ApplyChOtherValue,
    ApplyReaderReady,
    DiskReady,
    DroppedText,
    ExitReport,
    IncomingReply,
    IncomingRequest,
    MethodCall,
    MethodResult,
    OutgoingReply,
    OutgoingRequest,
    PeerEffect,
    PeerLog,
    PeerOutput,
    PeerSetup,
    PreemptionBatch,
    RaceFound,
    ResumeThread,
    SaveFinished,
    SaveStarted,
    ThreadQuery,
    ThreadQueryResult,
    TimeSlice,
    TimeSliceResult,
    TypeDeclaration,
)
from raftlab.guest.service import ApplyChInterceptor, InterceptedPeer

if TYPE_CHECKING:
    from raftlab.guest.race_client import RaceClient

# CPU time after which a thread that does not wait is reported.
_UNRESPONSIVE_S = 5
_DECISIONS_MAX = 16_384
_NUMBERS = frozenset((int, bool))
_NUMBER_MAX = 1 << 63
_setup_decoder, _slice_decoder = msgspec.msgpack.Decoder(PeerSetup), msgspec.msgpack.Decoder(TimeSlice)
INIT, LOAD = "__init__", "__load__"
PEER, SERVICE, CLERK = "Raft", "KVServer", "Clerk"  # the objects of a peer process

T = TypeVar("T", bound=msgspec.Struct)


class SupervisorConnection:
    """The socket to the supervisor: frames, one at a time."""

    def __init__(self, fd: int) -> None:
        self._fd = fd
        self._reader = protocol.FrameReader(fd)

    def read(self, decoder: msgspec.msgpack.Decoder[T]) -> T:
        """The next frame. Exits the process if the supervisor has ended."""
        try:
            return decoder.decode(self._reader.read())
        except (EOFError, OSError):
            os._exit(0)

    def write(self, message: msgspec.Struct) -> None:
        data = protocol.encode_frame(message)
        while data:
            data = data[os.write(self._fd, data) :]


# ---- the objects that a peer gets ------------------------------------------------------------------------------------


class SandboxedClientEnd:
    """The peer's view of a ClientEnd."""

    __slots__ = ("_number", "_simulation")

    def __init__(self, simulation: PeerSimulation, number: int) -> None:
        self._simulation = simulation
        self._number = number

    def call(self, service_method: str, args: Any) -> Any:
        """Send a request and wait. Returns the reply, or None if there will be none."""
        return self._simulation.send_request(self._number, service_method, args)

    def __repr__(self) -> str:
        return f"<ClientEnd {self._simulation.me}->{self._number}>"


class _OutgoingCall:
    """A call that has not returned."""

    __slots__ = ("caller", "data", "method", "target")

    def __init__(self, caller: Task, target: int, method: str) -> None:
        self.caller = caller
        self.target = target
        self.method = method
        self.data: bytes | None = None

    def wait_kind(self, waiter: Task) -> WaitKind:
        return WaitKind.REPLY

    def describe_wait(self, waiter: Task) -> str:
        return f"the reply of {self.target} to {self.method}"


class _CapturedOutput:
    """Replaces stdout and stderr."""

    encoding = "utf-8"

    def __init__(self, simulation: PeerSimulation) -> None:
        self._simulation = simulation

    def write(self, text: str) -> int:
        self._simulation.add_text(str(text), PeerOutput)
        return len(text)

    def flush(self) -> None:
        """Nothing is buffered."""

    def isatty(self) -> bool:
        return False


# ---- the simulation --------------------------------------------------------------------------------------------------


class PeerSimulation(Simulation):
    """Runs the threads of one peer. Time and all input come from the supervisor."""

    def __init__(self, connection: SupervisorConnection, setup: PeerSetup, code: CompiledPeer) -> None:
        super().__init__(setup.seed, choice_source=SeededSource(setup.seed), unresponsive_s=None)
        self.now_ns = setup.now_ns
        self.me = setup.me
        self.slices = 0
        self._connection = connection
        self._code = code
        self._name = setup.name
        self._node = Node(setup.name, setup.incarnation, Random(setup.seed))
        self._effects: list[PeerEffect] = []
        self._ends = [SandboxedClientEnd(self, number) for number in range(setup.ends)]
        self._server = Server(self._node)
        self._objects: dict[str, Any] = {}  # by name: Raft, KVServer, Clerk
        self._types: dict[Any, int] = {}
        self._reply_types: dict[str, Any] = {}
        self._outgoing_calls: dict[int, _OutgoingCall] = {}
        self._last_call_id = 0
        self._waiting_saves: dict[int, Task] = {}
        self._method_calls: dict[int, Task] = {}
        self._slow_disk = False
        self._lockstep = setup.lockstep
        self._has_service = setup.has_service
        self._apply_ch_interceptor: ApplyChInterceptor | None = None  # if the service is in this process
        self._apply_ch_reader: Task | None = None  # reads apply_ch for a service outside
        self._waiting_reader: Task | None = None  # the same task, while it waits
        self._chars_left = protocol.LOG_CHARS_MAX
        self._chars_dropped = 0
        self._disk = Persister()
        self._disk.save(setup.raft_state, setup.snapshot)
        self._disk._begun = 0
        self._disk.before_save = self._start_save
        self._disk.on_save = self._finish_save
        self._apply_ch: queue.Queue[Any] | None = None
        self._handlers: dict[type, Callable[[Any], None]] = {
            MethodCall: self._on_method_call,
            IncomingRequest: self._on_request,
            IncomingReply: self._on_reply,
            ApplyReaderReady: self._on_message_taken,
            DiskReady: self._on_disk_ready,
            ThreadQuery: self._on_thread_query,
        }
        self.race: RaceClient | None = None  # with --race
        if code.race is not None and setup.first_preemptions is not None:
            from raftlab.guest.race_client import RaceClient  # only with --race

            self.race = race = RaceClient(self, code.race, setup.first_preemptions)
            self._handlers |= {PreemptionBatch: race.on_batch, ResumeThread: race.on_resume}
        self._constructors: dict[str, Callable[..., None]] = {
            PEER: self._make_peer,
            SERVICE: self._make_service,
            CLERK: self._make_clerk,
        }

    def serve(self) -> None:
        """The first task. It waits forever; all others belong to the peer."""
        self._apply_ch = queue.Queue(1)
        self.park("the end")

    def record(self, event: Event) -> None:
        """Send the peer's log lines to the supervisor. There are no other events in this process."""
        self.add_text(event.detail.text, lambda text: PeerLog(event.detail.topic[: protocol.NAME_MAX], text))

    # ---- time slices -------------------------------------------------------------------------------------------------

    def _advance(self) -> None:
        """No task is ready: wake tasks whose timers are due, or end the time slice."""
        ready = self._ready
        while True:
            self._wake_due()
            if ready:
                return
            if len(self._decisions) > _DECISIONS_MAX:
                self._decisions.clear()
                self._collect_garbage()
            if (
                self._apply_ch_interceptor is not None
                and (waiting := self._apply_ch_interceptor.length_effect()) is not None
            ):
                self._effects.append(waiting)
            if self.race is not None:
                self._effects += self.race.new_benign_races()
            self.slices += 1
            self._exchange(self._next_timer_ns())

    def _exchange(self, next_ns: int | None) -> None:
        """Send the result of this time slice, and wait for the next one."""
        effects, self._effects = self._effects, []
        self._connection.write(TimeSliceResult(effects, next_ns))
        time_slice = self._connection.read(_slice_decoder)
        if time_slice.now_ns != self.now_ns:
            self.now_ns = time_slice.now_ns
            self._livelock_at = self.switches + self._livelock_switches
        self._slow_disk = time_slice.slow_disk
        for arrival in time_slice.arrivals:
            self._handlers[arrival.__class__](arrival)

    def request_from_supervisor(self, effect: PeerEffect) -> None:
        """Ask the supervisor within a time slice. Handles whatever else has arrived."""
        self._effects.append(effect)
        self._exchange(None)

    def _wake_due(self) -> None:
        timers = self._timers
        while timers and timers[0][0] <= self.now_ns:
            _, seq, due = heappop(timers)
            if due.timer != seq:
                self._stale_timers -= 1
            elif due.__class__ is Task:
                due.timer = -1  # as in Simulation._advance()
                due.woken = False
                self._ready.append(due)
            else:
                due.timer = 0
                self._fire(due)  # type: ignore[arg-type]

    def _next_timer_ns(self) -> int | None:
        timers = self._timers
        while timers and timers[0][2].timer != timers[0][1]:
            heappop(timers)
            self._stale_timers -= 1
        return timers[0][0] if timers else None

    # ---- what arrives ------------------------------------------------------------------------------------------------

    def _on_method_call(self, call: MethodCall) -> None:
        object_, _, method = call.method.rpartition(".")
        name = f"{object_ if method == INIT else method}()"
        # A service outside calls snapshot() after it has taken earlier messages.
        after = self._apply_ch_reader if method == "snapshot" else None
        self._method_calls[call.id] = self._spawn(self._run_method_call, call, name, method, after=after)

    def _spawn(self, fn: Callable[..., None], arrival: Any, name: str, entry_point: str, *, after: Task | None) -> Task:
        """Spawn a task for a call from outside. For --race it is ordered after `after`, and after no other task."""
        waiting, self.current = self.current, after or self._clock
        task = self.spawn(fn, arrival, name=name, node=self._node, entry_point=entry_point)
        self.current = waiting
        return task

    def _run_method_call(self, call: MethodCall) -> None:
        object_, _, method = call.method.rpartition(".")
        args = labgob.decode(call.args, list[Any])
        value: Any = None
        if method == LOAD:
            value = self._load()
        elif method == INIT:
            self._constructors[object_](*args)
            if self.race is not None:
                self.race.on_constructed(one_at_a_time=object_ == CLERK)
        else:
            if method == "kill":
                self._server.killed = True
            value = call_peer(getattr(self._objects[object_], method), tuple(args))
        numbers, data, text = self.encode_result(value)
        del self._method_calls[call.id]
        self._effects.append(MethodResult(call.id, numbers, data, text))

    def encode_result(self, value: Any) -> tuple[list[int | bool] | None, bytes | None, str]:
        """A result as sent to the supervisor: numbers, or encoded data, or text for a value that cannot be encoded."""
        if isinstance(value, str):
            value = str.__str__(value)  # a subclass of str may override anything
        if value.__class__ is tuple and _NUMBERS.issuperset(map(type, value)):
            return list(value), None, ""
        try:
            return None, labgob.encode([value]), ""
        except labgob.GobError:
            return None, None, encodable(short(value))

    def _load(self) -> tuple[str, list[str], dict[str, str]]:
        """The load error ("" if none), the methods of Raft, and the RPCs that it serves under other names."""
        try:
            self._code.load_all()
        except PeerCodeError as error:
            return str(error)[: protocol.TEXT_MAX], [], {}
        peer_class = self._code.classes[PEER]
        methods = [name for name in dir(peer_class) if callable(getattr(peer_class, name, None))]
        return "", methods, renamed_rpcs(peer_class)

    def _class(self, name: str) -> Any:
        try:
            return self._code.load_class(name)
        except PeerCodeError as error:
            self.fail(error)

    def _make_peer(self) -> None:
        apply_ch = self._apply_ch
        assert apply_ch is not None
        peer_class = self._class(PEER)
        if self._has_service:
            self._apply_ch_interceptor = ApplyChInterceptor(self, apply_ch)
            self._class(SERVICE)  # registers the classes that are in the log of a peer that restarts
        peer = self._objects[PEER] = call_peer(peer_class, (self._ends, self.me, self._disk, apply_ch))
        self._server.add_service(RpcService(peer, PEER))
        if not self._has_service:
            name = f"service {self._name}"
            self._apply_ch_reader = self.spawn(self._forward_apply_ch, apply_ch, name=name, node=self._node)

    def _make_service(self, max_raft_state: int | None) -> None:
        peer = InterceptedPeer(self, self._objects[PEER])
        args = (self._ends, self.me, peer, self._apply_ch, self._disk, max_raft_state)
        service = self._objects[SERVICE] = call_peer(self._class(SERVICE), args)
        self._server.add_service(RpcService(service, SERVICE))

    def _make_clerk(self) -> None:
        self._objects[CLERK] = call_peer(self._class(CLERK), (self._ends,))

    def _on_request(self, request: IncomingRequest) -> None:
        name = f"{request.method} from {request.source}"
        entry_point = request.method.rpartition(".")[2]
        self._spawn(self._run_request, request, name, entry_point, after=None)

    def _run_request(self, request: IncomingRequest) -> None:
        reply, reply_type = self._server.handle(
            request.method, request.data, request.type_name, request.source, self._name
        )
        self._effects.append(OutgoingReply(request.id, self._type_number(reply_type), reply))

    def _on_reply(self, reply: IncomingReply) -> None:
        call = self._outgoing_calls.pop(reply.id, None)
        if call is not None:
            call.data = reply.data
            self.wake(call.caller)

    def _on_message_taken(self, taken: ApplyReaderReady) -> None:
        if self._waiting_reader is not None:
            reader, self._waiting_reader = self._waiting_reader, None
            self.wake(reader)

    def _on_disk_ready(self, saved: DiskReady) -> None:
        self.wake(self._waiting_saves.pop(saved.number))

    def _on_thread_query(self, query: ThreadQuery) -> None:
        held = held_locks(self).get(self._name)
        waits = blocked(self, self._method_calls.get(query.call_id))
        self._effects.append(ThreadQueryResult(waits[:20], node_threads(self), "" if held is None else held.name))

    # ---- what the peer does ------------------------------------------------------------------------------------------

    def send_request(self, number: int, service_method: str, args: Any) -> Any:
        data = labgob.encode(args)
        type_number = self._type_number(args.__class__)
        self._last_call_id = id_ = self._last_call_id + 1
        call = self._outgoing_calls[id_] = _OutgoingCall(self.current, number, service_method)
        self._effects.append(OutgoingRequest(id_, number, service_method, type_number, data))
        self.park(call)
        if call.data is None:
            return None
        try:
            return labgob.decode(call.data, self._reply_type(service_method))
        except labgob.DecodeError as error:
            raise RpcError(
                f"{service_method} of {number} returned a value that {self._name} cannot decode: {error}"
            ) from error

    def _reply_type(self, service_method: str) -> Any:
        """The return type of the peer's own handler: all peers run the same code."""
        if service_method not in self._reply_types:
            reply_type: Any = Any
            object_, _, method = service_method.rpartition(".")
            with suppress(Exception):
                reply_type = get_type_hints(getattr(self._code.load_class(object_), method))["return"]
            self._reply_types[service_method] = reply_type
        return self._reply_types[service_method]

    def _type_number(self, type_: Any) -> int:
        number = self._types.get(type_)
        if number is None:
            number = self._types[type_] = len(self._types)
            names = _field_names(type_)
            entries: list[str] = []
            if "entries" in names:
                with suppress(Exception):
                    (entry_type,) = get_args(get_type_hints(type_)["entries"])
                    entries = _field_names(entry_type)
            self._effects.append(TypeDeclaration(full_name(type_)[: protocol.NAME_MAX], names, entries))
        return number

    def _start_save(self, number: int) -> None:
        """Runs in the task of the peer that saves."""
        if self._slow_disk:
            self._effects.append(SaveStarted(number))
            self._waiting_saves[number] = self.current
            self.park("a save on a slow disk")

    def _finish_save(self, number: int, raft_state: bytes, snapshot: bytes) -> None:
        unchanged = snapshot is self._disk.read_snapshot()
        self._effects.append(SaveFinished(number, bytes(raft_state), None if unchanged else bytes(snapshot)))

    def _forward_apply_ch(self, apply_ch: queue.Queue[Any]) -> None:
        """A task: forwards apply_ch to the service, which is outside."""
        while True:
            self.add_apply_message(apply_ch.get())
            if self._lockstep:
                self._waiting_reader = self.current
                self.park("the service to take its message")

    def add_apply_message(self, message: Any) -> None:
        self._effects.append(_apply_effect(message))

    @property
    def can_wait(self) -> bool:
        """False in timer callbacks and during garbage collection."""
        return self._state == "running"

    def add_effect(self, effect: PeerEffect) -> None:
        self._effects.append(effect)

    def add_text(self, text: str, effect: Callable[[str], PeerEffect]) -> None:
        # No more lines in a time slice than half of the allowed effects.
        kept = encodable(text[: self._chars_left]) if len(self._effects) < protocol.EFFECTS_MAX // 2 else ""
        self._chars_left -= len(kept)
        for begin in range(0, len(kept), protocol.TEXT_MAX):
            self._effects.append(effect(kept[begin : begin + protocol.TEXT_MAX]))
        if len(kept) < len(text):
            self._chars_dropped += len(text) - len(kept)
            # One current count: endless output must neither look like silence nor fill a frame.
            if self._effects and isinstance(self._effects[-1], DroppedText):
                self._effects.pop()
            self._effects.append(DroppedText(self._chars_dropped))

    def send_exit_report(self, failed: ExitReport | RaceFound) -> None:
        """Send the pending effects and the exit report; the report alone if the effects cannot be encoded."""
        try:
            self._connection.write(TimeSliceResult([*self._effects, failed], None))
        except (TypeError, ValueError, OverflowError, RecursionError):
            self._connection.write(TimeSliceResult([failed], None))


def _field_names(type_: Any) -> list[str]:
    if is_dataclass(type_):
        return [field.name for field in fields(type_)]
    return list(getattr(type_, "__struct_fields__", getattr(type_, "_fields", ())))


def _apply_effect(message: Any) -> ApplyChMessage | ApplyChOtherValue:
    # By name: a peer with its own messages.py has its own ApplyMsg.
    if type(message).__name__ != "ApplyMsg":
        return ApplyChOtherValue(encodable(short(message)))
    numbers = {name: getattr(message, name, 0) for name in ("command_index", "snapshot_term", "snapshot_index")}
    for name, number in numbers.items():
        if not isinstance(number, int) or not -_NUMBER_MAX <= number < _NUMBER_MAX:
            return ApplyChOtherValue(encodable(f"an ApplyMsg whose {name} is {short(number)}"))
    snapshot = getattr(message, "snapshot", b"") or b""
    if not isinstance(snapshot, bytes | bytearray | memoryview):
        return ApplyChOtherValue(encodable(f"an ApplyMsg whose snapshot is {short(snapshot)}"))
    return ApplyChMessage(
        bool(message.command_valid),
        labgob.encode([message.command]) if message.command_valid else b"",
        int(message.command_index),
        bool(getattr(message, "snapshot_valid", False)),
        bytes(snapshot),
        int(numbers["snapshot_term"]),
        int(numbers["snapshot_index"]),
    )


# ---- the process -----------------------------------------------------------------------------------------------------


def run_peer_process(fd: int, code: CompiledPeer, lock: Callable[[PeerSetup], None]) -> NoReturn:
    """Run the peer in this process, and exit. `lock` applies the limits of the PeerSetup."""
    connection = SupervisorConnection(fd)
    setup = connection.read(_setup_decoder)
    simulation = PeerSimulation(connection, setup, code)
    sys.stdout = sys.stderr = _CapturedOutput(simulation)
    _start_watchdog(simulation)
    lock(setup)  # before any code of the peer runs; timers cannot be set afterwards
    try:
        with forbid_exit(), labgob.carrying_unknown():
            simulation.run(simulation.serve)
    except BaseException as error:
        signal.signal(signal.SIGPROF, signal.SIG_IGN)
        with suppress(Exception):
            point_into_peer(error, *code.classes.values())
        simulation.send_exit_report(exit_report(error))
    # Not sys.exit(): that would run atexit functions of the peer.
    os._exit(0)


def _start_watchdog(simulation: PeerSimulation) -> None:
    """Each second of CPU time, check whether any thread has waited. Uses a signal: the sandbox forbids threads."""
    last_progress, idle_s = (-1, -1), 0

    def on_signal(_: int, frame: FrameType | None) -> None:
        nonlocal last_progress, idle_s
        progress = (simulation.switches, simulation.slices)
        idle_s = idle_s + 1 if progress == last_progress else 0
        last_progress = progress
        if idle_s >= _UNRESPONSIVE_S:
            where = next((location_of(f) for f in user_frames(frame) if is_user_code(f.f_code.co_filename)), None)
            what = f"has run for {_UNRESPONSIVE_S} s of processor time without waiting"
            simulation.fail(Unresponsive(describe_unresponsive(simulation, what, frame), where=where))

    signal.signal(signal.SIGPROF, on_signal)
    signal.setitimer(signal.ITIMER_PROF, 1.0, 1.0)
