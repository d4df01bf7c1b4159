"""The side that runs a peer: its threads, on a simulation whose clock and whose world are the host's.

Promise: between two turns of the host not a line of the peer runs, and within one the peer sees one time. What its
threads do is told in the order in which they did it.

Not promised: that any of it is true. The peer can change whatever is in this process, and speak for itself. Nothing
here is trusted by anybody: what would be a lie to the network, the disk or the clock cannot be said, because the host
owns those.

Start at `be_guest()`, then `PeerSimulation._advance()`: that is where the guest waits for its host.
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
from raftlab.guest.compiled_peer import CodeError, CompiledPeer
from raftlab.guest.contract import call_peer, renamed_rpcs
from raftlab.guest.exit_report import encodable, exit_report
from raftlab.guest.protocol import (
    ApplyChMessage,
    ApplyChOtherValue,
    DiskReady,
    DroppedText,
    ExitReport,
    IncomingReply,
    IncomingRequest,
    MessageTaken,
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
    ThreadReport,
    TimeSlice,
    TimeSliceResult,
    TypeDeclaration,
)
from raftlab.guest.service import ApplyChInterceptor, InterceptedPeer

if TYPE_CHECKING:
    from raftlab.guest.race_client import RaceClient

# A thread of the peer that has run for so long without waiting will not wait any more.
_UNRESPONSIVE_S = 5
_DECISIONS_MAX = 16_384
_NUMBERS = frozenset((int, bool))
_NUMBER_MAX = 1 << 63
_setup_decoder, _slice_decoder = msgspec.msgpack.Decoder(PeerSetup), msgspec.msgpack.Decoder(TimeSlice)
INIT, LOAD = "__init__", "__load__"
PEER, SERVICE, CLERK = "Raft", "KVServer", "Clerk"  # what a program's objects are called

T = TypeVar("T", bound=msgspec.Struct)


class SupervisorConnection:
    """To the host: frames, one at a time."""

    def __init__(self, fd: int) -> None:
        self._fd = fd
        self._reader = protocol.FrameReader(fd)

    def read(self, decoder: msgspec.msgpack.Decoder[T]) -> T:
        """The next frame. Where there is none any more, the host is gone, and so is this process."""
        try:
            return decoder.decode(self._reader.read())
        except (EOFError, OSError):
            os._exit(0)

    def write(self, message: msgspec.Struct) -> None:
        data = protocol.encode_frame(message)
        while data:
            data = data[os.write(self._fd, data) :]


# ---- what the peer is given ------------------------------------------------------------------------------------


class SandboxedClientEnd:
    """A ClientEnd, to the peer."""

    __slots__ = ("_guest", "_number")

    def __init__(self, guest: PeerSimulation, number: int) -> None:
        self._guest = guest
        self._number = number

    def call(self, service_method: str, args: Any) -> Any:
        """Send a request and wait: the reply, or None if there will be none."""
        return self._guest.call_out(self._number, service_method, args)

    def __repr__(self) -> str:
        return f"<ClientEnd {self._guest.me}->{self._number}>"


class _OutgoingCall:
    """A request that is under way."""

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
    """In the place of stdout and stderr."""

    encoding = "utf-8"

    def __init__(self, guest: PeerSimulation) -> None:
        self._guest = guest

    def write(self, text: str) -> int:
        self._guest.say(str(text), PeerOutput)
        return len(text)

    def flush(self) -> None:
        """Nothing is kept back."""

    def isatty(self) -> bool:
        return False


# ---- the world, as far as it is in here ------------------------------------------------------------------------


class PeerSimulation(Simulation):
    """One peer's threads. Time and whatever else comes from outside is the host's."""

    def __init__(self, line: SupervisorConnection, setup: PeerSetup, code: CompiledPeer) -> None:
        super().__init__(setup.seed, choice_source=SeededSource(setup.seed), unresponsive_s=None)
        self.now_ns = setup.now_ns
        self.me = setup.me
        self.turns = 0
        self._line = line
        self._code = code
        self._name = setup.name
        self._node = Node(setup.name, setup.incarnation, Random(setup.seed))
        self._deeds: list[PeerEffect] = []
        self._ends = [SandboxedClientEnd(self, number) for number in range(setup.ends)]
        self._server = Server(self._node)
        self._objects: dict[str, Any] = {}  # by name: Raft, KVServer, Clerk
        self._types: dict[Any, int] = {}
        self._reply_types: dict[str, Any] = {}
        self._calls: dict[int, _OutgoingCall] = {}
        self._call_ids = 0
        self._saving: dict[int, Task] = {}
        self._asks: dict[int, Task] = {}
        self._slow_disk = False
        self._lockstep = setup.lockstep
        self._reads_itself = setup.reads_itself
        self._tapped: ApplyChInterceptor | None = None  # apply_ch, if it is read in here
        self._channel_task: Task | None = None  # who reads apply_ch for a service that is elsewhere
        self._reader: Task | None = None  # the same, while it waits
        self._chars_left = protocol.LOG_CHARS_MAX
        self._chars_dropped = 0
        self._disk = Persister()
        self._disk.save(setup.raft_state, setup.snapshot)
        self._disk._begun = 0
        self._disk.before_save = self._begin_save
        self._disk.on_save = self._save
        self._apply_ch: queue.Queue[Any] | None = None
        self._arrive: dict[type, Callable[[Any], None]] = {
            MethodCall: self._asked,
            IncomingRequest: self._requested,
            IncomingReply: self._replied,
            MessageTaken: self._taken,
            DiskReady: self._saved,
            ThreadQuery: self._looked_at,
        }
        self.race: RaceClient | None = None  # with --race
        if code.race is not None and setup.losses is not None:
            from raftlab.guest.race_client import RaceClient  # most guests need none

            self.race = race = RaceClient(self, code.race, setup.losses)
            self._arrive |= {PreemptionBatch: race.handed_out, ResumeThread: race.given_back}
        self._make: dict[str, Callable[..., None]] = {
            PEER: self._make_peer,
            SERVICE: self._make_service,
            CLERK: self._make_clerk,
        }

    def serve(self) -> None:
        """The first task. It waits for ever; all others are the peer's."""
        self._apply_ch = queue.Queue(1)
        self.park("the end")

    def record(self, event: Event) -> None:
        """The peer's own lines go to the host; there are no other events in here."""
        self.say(event.detail.text, lambda text: PeerLog(event.detail.topic[: protocol.NAME_MAX], text))

    # ---- turns -------------------------------------------------------------------------------------------------

    def _advance(self) -> None:
        """Nobody is ready: wake who is due, or hand over to the host until something has arrived."""
        ready = self._ready
        while True:
            self._wake_due()
            if ready:
                return
            if len(self._decisions) > _DECISIONS_MAX:
                self._decisions.clear()
                self._collect_garbage()
            if self._tapped is not None and (waiting := self._tapped.news()) is not None:
                self._deeds.append(waiting)
            if self.race is not None:
                self._deeds += self.race.news()
            self.turns += 1
            self._hand_over(self._next_timer_ns())

    def _hand_over(self, next_ns: int | None) -> None:
        """To the host, and back."""
        deeds, self._deeds = self._deeds, []
        self._line.write(TimeSliceResult(deeds, next_ns))
        turn = self._line.read(_slice_decoder)
        if turn.now_ns != self.now_ns:
            self.now_ns = turn.now_ns
            self._livelock_at = self.switches + self._livelock_switches
        self._slow_disk = turn.slow_disk
        for arrival in turn.arrivals:
            self._arrive[arrival.__class__](arrival)

    def ask_host(self, deed: PeerEffect) -> None:
        """In the middle of a turn. What else has arrived by then may do so now."""
        self._deeds.append(deed)
        self._hand_over(None)

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

    # ---- what arrives ------------------------------------------------------------------------------------------

    def _asked(self, ask: MethodCall) -> None:
        object_, _, method = ask.method.rpartition(".")
        name = f"{object_ if method == INIT else method}()"
        # A service elsewhere calls snapshot() after it has taken what was put before.
        after = self._channel_task if method == "snapshot" else None
        self._asks[ask.id] = self._begin(self._answer_ask, ask, name, method, after=after)

    def _begin(self, fn: Callable[..., None], arrival: Any, name: str, entry_point: str, *, after: Task | None) -> Task:
        """A task that somebody outside has the program begin: after that one, and after nobody who waits now."""
        waiting, self.current = self.current, after or self._clock
        task = self.spawn(fn, arrival, name=name, node=self._node, entry_point=entry_point)
        self.current = waiting
        return task

    def _answer_ask(self, ask: MethodCall) -> None:
        object_, _, method = ask.method.rpartition(".")
        args = labgob.decode(ask.args, list[Any])
        value: Any = None
        if method == LOAD:
            value = self._load()
        elif method == INIT:
            self._make[object_](*args)
            if self.race is not None:
                self.race.made(one_at_a_time=object_ == CLERK)
        else:
            if method == "kill":
                self._server.killed = True
            value = call_peer(getattr(self._objects[object_], method), tuple(args))
        numbers, data, shown = self.encode_result(value)
        del self._asks[ask.id]
        self._deeds.append(MethodResult(ask.id, numbers, data, shown))

    def encode_result(self, value: Any) -> tuple[list[int | bool] | None, bytes | None, str]:
        """A result, as the host is told it."""
        if isinstance(value, str):
            value = str.__str__(value)  # and not what a class of its own makes of one
        if value.__class__ is tuple and _NUMBERS.issuperset(map(type, value)):
            return list(value), None, ""
        try:
            return None, labgob.encode([value]), ""
        except labgob.GobError:
            return None, None, encodable(short(value))

    def _load(self) -> tuple[str, list[str], dict[str, str]]:
        """What keeps it from being tested, or '', what methods its peer has, and which serve an RPC of another name."""
        try:
            self._code.load_all()
        except CodeError as error:
            return str(error)[: protocol.TEXT_MAX], [], {}
        peer_class = self._code.classes[PEER]
        methods = [name for name in dir(peer_class) if callable(getattr(peer_class, name, None))]
        return "", methods, renamed_rpcs(peer_class)

    def _class(self, name: str) -> Any:
        try:
            return self._code.load_class(name)
        except CodeError as error:
            self.fail(error)

    def _make_peer(self) -> None:
        apply_ch = self._apply_ch
        assert apply_ch is not None
        peer_class = self._class(PEER)
        if self._reads_itself:
            self._tapped = ApplyChInterceptor(self, apply_ch)
            self._class(SERVICE)  # a peer that restarts reads its log, and the classes of what is in there are these
        peer = self._objects[PEER] = call_peer(peer_class, (self._ends, self.me, self._disk, apply_ch))
        self._server.add_service(RpcService(peer, PEER))
        if not self._reads_itself:
            name = f"service {self._name}"
            self._channel_task = self.spawn(self._read_channel, apply_ch, name=name, node=self._node)

    def _make_service(self, max_raft_state: int | None) -> None:
        peer = InterceptedPeer(self, self._objects[PEER])
        args = (self._ends, self.me, peer, self._apply_ch, self._disk, max_raft_state)
        service = self._objects[SERVICE] = call_peer(self._class(SERVICE), args)
        self._server.add_service(RpcService(service, SERVICE))

    def _make_clerk(self) -> None:
        self._objects[CLERK] = call_peer(self._class(CLERK), (self._ends,))

    def _requested(self, request: IncomingRequest) -> None:
        name = f"{request.method} from {request.source}"
        entry_point = request.method.rpartition(".")[2]
        self._begin(self._answer_request, request, name, entry_point, after=None)

    def _answer_request(self, request: IncomingRequest) -> None:
        reply, reply_type = self._server.handle(
            request.method, request.data, request.type_name, request.source, self._name
        )
        self._deeds.append(OutgoingReply(request.id, self._number_of(reply_type), reply))

    def _replied(self, reply: IncomingReply) -> None:
        call = self._calls.pop(reply.id, None)
        if call is not None:
            call.data = reply.data
            self.wake(call.caller)

    def _taken(self, taken: MessageTaken) -> None:
        if self._reader is not None:
            reader, self._reader = self._reader, None
            self.wake(reader)

    def _saved(self, saved: DiskReady) -> None:
        self.wake(self._saving.pop(saved.number))

    def _looked_at(self, look: ThreadQuery) -> None:
        held = held_locks(self).get(self._name)
        waits = blocked(self, self._asks.get(look.asked))
        self._deeds.append(ThreadReport(waits[:20], node_threads(self), "" if held is None else held.name))

    # ---- what the peer does ------------------------------------------------------------------------------------

    def call_out(self, number: int, service_method: str, args: Any) -> Any:
        data = labgob.encode(args)
        type_number = self._number_of(args.__class__)
        self._call_ids = id_ = self._call_ids + 1
        call = self._calls[id_] = _OutgoingCall(self.current, number, service_method)
        self._deeds.append(OutgoingRequest(id_, number, service_method, type_number, data))
        self.park(call)
        if call.data is None:
            return None
        try:
            return labgob.decode(call.data, self._reply_type(service_method))
        except labgob.DecodeError as error:
            raise RpcError(f"{service_method} of {number} returned what {self._name} cannot read: {error}") from error

    def _reply_type(self, service_method: str) -> Any:
        """As its own handler of that name promises: whoever answered runs the same program."""
        if service_method not in self._reply_types:
            reply_type: Any = Any
            object_, _, method = service_method.rpartition(".")
            with suppress(Exception):
                reply_type = get_type_hints(getattr(self._code.load_class(object_), method))["return"]
            self._reply_types[service_method] = reply_type
        return self._reply_types[service_method]

    def _number_of(self, type_: Any) -> int:
        number = self._types.get(type_)
        if number is None:
            number = self._types[type_] = len(self._types)
            names = _field_names(type_)
            entries: list[str] = []
            if "entries" in names:
                with suppress(Exception):
                    (entry_type,) = get_args(get_type_hints(type_)["entries"])
                    entries = _field_names(entry_type)
            self._deeds.append(TypeDeclaration(full_name(type_)[: protocol.NAME_MAX], names, entries))
        return number

    def _begin_save(self, number: int) -> None:
        """Runs in the peer's own task, at the beginning of a save."""
        if self._slow_disk:
            self._deeds.append(SaveStarted(number))
            self._saving[number] = self.current
            self.park("a save on a slow disk")

    def _save(self, number: int, raft_state: bytes, snapshot: bytes) -> None:
        unchanged = snapshot is self._disk.read_snapshot()
        self._deeds.append(SaveFinished(number, bytes(raft_state), None if unchanged else bytes(snapshot)))

    def _read_channel(self, apply_ch: queue.Queue[Any]) -> None:
        """A task: what the peer puts on apply_ch goes to the service, which is elsewhere."""
        while True:
            self.tell_put(apply_ch.get())
            if self._lockstep:
                self._reader = self.current
                self.park("the service to take its message")

    def tell_put(self, message: Any) -> None:
        self._deeds.append(_apply_effect(message))

    @property
    def can_wait(self) -> bool:
        """Not in the clock's calls, nor when garbage is collected."""
        return self._state == "running"

    def do(self, deed: PeerEffect) -> None:
        self._deeds.append(deed)

    def say(self, text: str, deed: Callable[[str], PeerEffect]) -> None:
        # Neither more lines in a turn than its host takes deeds.
        kept = encodable(text[: self._chars_left]) if len(self._deeds) < protocol.EFFECTS_MAX // 2 else ""
        self._chars_left -= len(kept)
        for begin in range(0, len(kept), protocol.TEXT_MAX):
            self._deeds.append(deed(kept[begin : begin + protocol.TEXT_MAX]))
        if len(kept) < len(text):
            self._chars_dropped += len(text) - len(kept)
            # Each time: a peer that prints without end must not be taken for one that is silent, nor fill a frame.
            if self._deeds and isinstance(self._deeds[-1], DroppedText):
                self._deeds.pop()
            self._deeds.append(DroppedText(self._chars_dropped))

    def tell(self, failed: ExitReport | RaceFound) -> None:
        """The last words, after what was done before them, unless that is what cannot be said."""
        try:
            self._line.write(TimeSliceResult([*self._deeds, failed], None))
        except (TypeError, ValueError, OverflowError, RecursionError):
            self._line.write(TimeSliceResult([failed], None))


def _field_names(type_: Any) -> list[str]:
    if is_dataclass(type_):
        return [field.name for field in fields(type_)]
    return list(getattr(type_, "__struct_fields__", getattr(type_, "_fields", ())))


def _apply_effect(message: Any) -> ApplyChMessage | ApplyChOtherValue:
    # By name: a peer with a messages.py of its own has an ApplyMsg of its own.
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


# ---- a guest's life ----------------------------------------------------------------------------------------------


def run_peer_process(fd: int, code: CompiledPeer, lock: Callable[[PeerSetup], None]) -> NoReturn:
    """In a process of its own, and never back. `lock` puts up the walls, once the guest knows who it is."""
    line = SupervisorConnection(fd)
    setup = line.read(_setup_decoder)
    guest = PeerSimulation(line, setup, code)
    sys.stdout = sys.stderr = _CapturedOutput(guest)
    _start_watchdog(guest)
    lock(setup)  # before the first line of the peer. There is no timer any more after it
    try:
        with forbid_exit(), labgob.carrying_unknown():
            guest.run(guest.serve)
    except BaseException as error:
        signal.signal(signal.SIGPROF, signal.SIG_IGN)
        with suppress(Exception):
            point_into_peer(error, *code.classes.values())
        guest.tell(exit_report(error))
    # Not sys.exit(): a peer's atexit functions have no say in how this ends.
    os._exit(0)


def _start_watchdog(guest: PeerSimulation) -> None:
    """Every second of this process's own time: has any thread waited since? A signal, because threads are none here."""
    last_seen, idle_s = (-1, -1), 0

    def look(_: int, frame: FrameType | None) -> None:
        nonlocal last_seen, idle_s
        seen = (guest.switches, guest.turns)
        idle_s = idle_s + 1 if seen == last_seen else 0
        last_seen = seen
        if idle_s >= _UNRESPONSIVE_S:
            where = next((location_of(f) for f in user_frames(frame) if is_user_code(f.f_code.co_filename)), None)
            what = f"has run for {_UNRESPONSIVE_S} s of processor time without waiting"
            guest.fail(Unresponsive(describe_unresponsive(guest, what, frame), where=where))

    signal.signal(signal.SIGPROF, look)
    signal.setitimer(signal.ITIMER_PROF, 1.0, 1.0)
