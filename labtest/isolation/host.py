"""The side that owns time, network, disks and verdict, and never loads a line of a peer.

`GuestProgram` is used where the class Raft would be: each `start()` is a new incarnation, in a process of its own. To
the simulation a guest is a node with one task, `Guest.drive()`: it tells the guest what has arrived, and does what the
guest has done, deed after deed, as if the peer's own threads did it here and now. So a crash in the middle of its deeds
(a crash point at a save, say) leaves the rest undone.

Promise: whatever a guest says, it is decoded into the types of protocol.py or ends the run as that guest's failure.
Not promised: that a guest's own words about its threads are true. They are shown as such and decide nothing.

Start at `Guest.drive()`.
"""

from __future__ import annotations

import ctypes
import os
import select
import signal
import socket
import subprocess
import sys
from collections import deque
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, make_dataclass
from functools import lru_cache
from keyword import iskeyword
from pathlib import Path
from struct import pack
from time import monotonic
from typing import Any, NoReturn

import msgspec

import labgob
from labrpc import ClientEnd, Message, Network, Server
from labrpc.network import Call
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
from labsim.stacks import short_path
from labtest.failure import GuestFailed
from labtest.isolation import protocol, walls
from labtest.isolation.protocol import (
    Answer,
    Arrival,
    Ask,
    Declare,
    Deed,
    Done,
    Dropped,
    Failed,
    Log,
    Look,
    Print,
    Put,
    PutOther,
    Reply,
    Request,
    Returned,
    Save,
    Saved,
    Saving,
    Seen,
    Send,
    Setup,
    Taken,
    Turn,
)
from labtest.loading import LoadError
from labtest.records import files_of
from labtest.rooms import ROOT
from raft.messages import ApplyMsg

_START_LIMIT_S = 60.0
_END_LIMIT_S = 1.0
_LOOK_LIMIT_S = 5.0
_SPARES = 3
_NS = 1_000_000_000
INIT, LOAD = "__init__", "__load__"
_decode_done = msgspec.msgpack.Decoder(Done).decode


# What a guest can say that it ended with. What it cannot (that it died, or misbehaved) is for the host to say.
_KINDS = frozenset(
    error.__name__
    for error in (TaskFailed, RealWorldError, Livelock, Deadlock, Unresponsive, SimulationError, MemoryError)
)


class NurseryLost(SimulationError):
    """The nursery is gone, or cannot be started: no peer's doing."""


class GuestKilled(SimulationError):
    """Somebody outside has ended a guest's process: the run says nothing, and is to be repeated."""


@dataclass(frozen=True)
class Limits:
    """What one run's guests may use."""

    turn_s: float = 30.0  # real seconds for one turn of one guest
    cpu_s: int = 60  # processor seconds of one guest
    memory_mb: int = 1024  # of all guests that live at one time, beyond what a guest begins with
    real_s: float = 600.0  # of the whole run


class TooLong(GuestFailed):
    """Over a limit of real time."""


# ---- processes ---------------------------------------------------------------------------------------------------


class GuestProcess:
    """One process that runs one incarnation, as far as bytes go."""

    def __init__(self, nursery_: Nursery, pid: int, line: int, process: int) -> None:
        self._nursery = nursery_
        self._pid = pid
        self._line = line
        self._process = process
        self._reader = protocol.FrameReader(line)
        self.bytes_read = 0

    def begin(self, setup: Setup, turn_s: float) -> None:
        socket_ = socket.socket(fileno=os.dup(self._line))
        socket_.setsockopt(socket.SOL_SOCKET, socket.SO_RCVTIMEO, pack("ll", int(turn_s), int(turn_s % 1 * 1e6)))
        socket_.setsockopt(socket.SOL_SOCKET, socket.SO_SNDTIMEO, pack("ll", int(turn_s), int(turn_s % 1 * 1e6)))
        socket_.close()
        self._write(protocol.frame(setup))
        self._read()

    def turn(self, turn: Turn, limit_s: float | None = None) -> Done:
        """EOFError: the process is gone. TimeoutError: it does not answer. ValueError: it said what cannot be.

        A limit of its own is for questions that need not be answered.
        """
        self._write(protocol.frame(turn))
        if limit_s is not None and not select.select([self._line], [], [], limit_s)[0]:
            raise TimeoutError
        return self._read()

    def _write(self, data: bytes) -> None:
        try:
            while data:
                data = data[os.write(self._line, data) :]
        except BlockingIOError:
            raise TimeoutError from None
        except OSError:
            raise EOFError from None

    def _read(self) -> Done:
        try:
            data = self._reader.read()
            self.bytes_read += len(data)
            return _decode_done(data)
        except BlockingIOError:
            raise TimeoutError from None
        except OSError:
            raise EOFError from None

    def end(self) -> None:
        """Now, whatever it is at."""
        if self._line >= 0:
            with suppress(ProcessLookupError):
                signal.pidfd_send_signal(self._process, signal.SIGKILL)
            self.close()

    def close(self) -> None:
        os.close(self._line)
        os.close(self._process)
        self._line = self._process = -1

    def obituary(self) -> protocol.Ended | None:
        """How it ended; None if it lives, and only its line is closed."""
        if not select.select([self._process], [], [], _END_LIMIT_S)[0]:
            return None
        return self._nursery.ended(self._pid)


def _home_cpu() -> int:
    """The processor that a run keeps to, host and guests.

    One of them runs at a time, and waking somebody on another processor costs more than most turns do. Workers beside
    each other have different ones.
    """
    ours = sorted(os.sched_getaffinity(0))
    worker = os.environ.get("RAFTLAB_WORKER") or os.environ.get("PYTEST_XDIST_WORKER", "").removeprefix("gw")
    if worker.isdecimal():
        return ours[int(worker) % len(ours)]
    return int(ctypes.CDLL(None).sched_getcpu())


class Nursery:
    """The process that guests are forked from, seen from outside."""

    def __init__(self, files: Mapping[str, bytes], raft: str) -> None:
        if walls.closed():
            raise NurseryLost(walls.closed())
        ours, theirs = socket.socketpair()
        self._process = subprocess.Popen(
            walls.nursery_command(),
            stdin=theirs.fileno(),
            stdout=subprocess.DEVNULL,
            stderr=subprocess.PIPE,
            env=walls.environment(),
            cwd=ROOT,  # not /, to which every path would be relative
            start_new_session=True,  # Ctrl-C is for whoever started it
        )
        theirs.close()
        self._socket = ours
        ours.settimeout(_START_LIMIT_S)
        self.cpu = _home_cpu()
        greeting = protocol.Greeting(dict(files), raft, walls.guest_filter(), self.cpu, walls.nobody())
        try:
            ours.sendall(protocol.frame(greeting))
            self._read_frame(protocol.Ready)
        except OSError:
            _, text = self._end()
            raise NurseryLost(f"the process that peers are to run in does not start: {text}") from None
        try:
            self._read_frame(protocol.Ready)
        except OSError:
            number, text = self._end()
            if number == signal.SIGKILL:
                raise NurseryLost("the process that peers are to run in was killed") from None
            how = f"was ended by {signal.Signals(number).name}" if number else "did not come to an end"
            raise LoadError(f"{raft}: it cannot be compiled: the compiler {how}") from None
        self._ordered = 0

    def _end(self) -> tuple[int, str]:
        """End it where it has not ended: the signal that did, 0 if none did before, and its last words."""
        code = self._process.poll() if not select.select([self._socket], [], [], 0)[0] else self._process.wait()
        self._process.kill()
        _, said = self._process.communicate()
        self._socket.close()
        # bubblewrap tells of a signal as a shell does.
        number = 0 if code is None else -code if code < 0 else max(code - 128, 0)
        return number, said.decode(errors="replace").strip()[-2000:] or "it says nothing"

    def order(self, number: int) -> None:
        """Have that many guests forked, ahead of need."""
        self._ordered += number
        try:
            self._socket.sendall(protocol.FORK * number)
        except OSError:
            raise NurseryLost("the process that peers are forked from is gone") from None

    def guest(self) -> GuestProcess:
        """A fresh one, which knows nothing yet."""
        if self._ordered < 1:
            self.order(1)
        try:
            data, fds, _, _ = socket.recv_fds(self._socket, protocol.PID_BYTES, 2)
        except OSError:
            data, fds = b"", []
        self._ordered -= 1
        if len(fds) != 2:
            raise NurseryLost("the process that peers are forked from is gone")
        return GuestProcess(self, int.from_bytes(data, "big"), *fds)

    def ended(self, pid: int) -> protocol.Ended:
        # What is ordered is on its way, and is told first.
        spares = [self.guest() for _ in range(self._ordered)]
        for spare in spares:
            spare.end()
        try:
            self._socket.sendall(protocol.WAIT + pid.to_bytes(protocol.PID_BYTES, "big"))
            ended: protocol.Ended = self._read_frame(protocol.Ended)
            return ended
        except OSError:
            raise NurseryLost("the process that peers are forked from is gone") from None

    def _read_frame(self, type_: type[Any]) -> Any:
        head = self._exactly(protocol.LENGTH_BYTES)
        return msgspec.msgpack.decode(self._exactly(int.from_bytes(head, "big")), type=type_)

    def _exactly(self, size: int) -> bytes:
        data = b""
        while len(data) < size:
            more = self._socket.recv(size - len(data))
            if not more:
                raise ConnectionError
            data += more
        return data

    def close(self) -> None:
        """It, and every guest with it."""
        self._socket.close()
        try:
            # It ends when nobody speaks to it any more, and so do its guests.
            self._process.wait(_END_LIMIT_S)
        except subprocess.TimeoutExpired:
            self._process.kill()
            self._process.wait()
        if self._process.stderr is not None:
            self._process.stderr.close()


# ---- types of messages -------------------------------------------------------------------------------------------

_INTS = (
    "term",
    "candidate_id",
    "last_log_index",
    "last_log_term",
    "leader_id",
    "prev_log_index",
    "prev_log_term",
    "leader_commit",
    "last_included_index",
    "last_included_term",
)
_PAPERS_TYPES: dict[str, Any] = {
    **dict.fromkeys(_INTS, int),
    **dict.fromkeys(("vote_granted", "success"), bool),
    "data": bytes,
}


@dataclass(frozen=True)
class MessageType:
    """How the host reads messages of a type that a guest has declared: by the names of their fields, in types of its
    own."""

    name: str  # in full, as the guest says
    papers: Any  # with the types that the paper's fields have
    loose: Any  # with any

    def of(self, data: bytes) -> Any:
        """The one of both that these bytes can be read with; ValueError if there is none."""
        for type_ in (self.papers, self.loose):
            with suppress(labgob.DecodeError):
                labgob.decode(data, type_)
                return type_
        raise ValueError(f"a {self.name} that cannot be read")


@lru_cache(maxsize=1000)
def message_type(name: str, fields: tuple[str, ...], entries: tuple[str, ...]) -> MessageType:
    """Cached, so that what two guests declare alike is one type here."""
    for field in (*fields, *entries):
        if not field.isidentifier() or iskeyword(field) or field.startswith("__"):
            raise ValueError(f"a type with a field {field[:40]!r}")
    short_name = name.rpartition(".")[2]
    if not short_name.isidentifier() or iskeyword(short_name):
        short_name = "Message"
    if not fields:
        return MessageType(name, Any, make_dataclass(short_name, []))
    entry: Any = Any
    if entries:
        types = {"term": int, "command": Any}
        entry = make_dataclass("LogEntry", [(field, types.get(field, Any)) for field in entries])
    typed = {**_PAPERS_TYPES, "entries": list[entry]} if entries else _PAPERS_TYPES
    return MessageType(
        name,
        make_dataclass(short_name, [(field, typed.get(field, Any)) for field in fields]),
        make_dataclass(short_name, [(field, Any) for field in fields]),
    )


# ---- one guest ---------------------------------------------------------------------------------------------------


class Shown:
    """A value that a guest could not send, as it looks there."""

    def __init__(self, text: str) -> None:
        self._text = text

    def __repr__(self) -> str:
        return self._text


class _Pending:
    """A call of the tester's that has not returned."""

    __slots__ = ("caller", "id", "method", "returned")

    def __init__(self, id_: int, method: str, caller: Task) -> None:
        self.id = id_
        self.method = method
        self.caller = caller
        self.returned: Returned | None = None

    def describe_wait(self, waiter: Task) -> str:
        return f"{self.method}() of its guest to return"

    def wait_kind(self, waiter: Task) -> WaitKind:
        return WaitKind.TASK_END


class Channel:
    """What the service reads in the place of apply_ch."""

    def __init__(self, guest: Guest, simulation: Simulation) -> None:
        self._guest = guest
        self._simulation = simulation
        self._messages: deque[Any] = deque()
        self._reader: Task | None = None
        self._owed = 0  # messages for which the guest waits to hear that they were taken

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

    def describe_wait(self, waiter: Task) -> str:
        return "an item in apply_ch"

    def wait_kind(self, waiter: Task) -> WaitKind:
        return WaitKind.ITEM


@dataclass
class Ties:
    """What binds a guest to its place: what happens when it does something."""

    network: Network
    server: Server
    ends: Sequence[ClientEnd]
    saving: Callable[[int], int]  # a save begins on a slow disk: how long it takes, in ns
    save: Callable[[int, bytes, bytes | None], None]
    slow_disk: Callable[[], bool]


class Guest:
    """One incarnation of a peer, and the node's only task. To the tester it is the peer."""

    def __init__(self, program: GuestProgram, simulation: Simulation, node: Node, ties: Ties, setup: Setup) -> None:
        self._program = program
        self._simulation = simulation
        self._node = node
        self._ties = ties
        self._peer = setup.me
        self.lockstep = setup.lockstep
        self.server = ties.server
        self.channel = Channel(self, simulation)
        self._arrivals: list[Arrival] = []
        self._driver: Task | None = None
        self._waiting = False
        self._pending: dict[int, _Pending] = {}
        self._asks = 0
        self._requests: dict[int, Message] = {}
        self._request_ids = 0
        self._types: list[MessageType] = []
        self._dropped = 0
        self._slow_disk = False  # as it was told for this turn
        self._saves = 0
        self._saves_under_way: dict[int, int] = {}  # on slow disks: the guest's name of it -> its number
        self._saves_due: dict[int, int] = {}  # may take effect now
        self._silent = False  # it was asked what its threads are at, and did not tell
        self._deeds: dict[type, Callable[[Any], None]] = {
            Declare: self._declare,
            Send: self._send,
            Answer: self._answer,
            Returned: self._returned,
            Saving: self._saving,
            Save: self._save,
            Put: self._put,
            PutOther: self._put_other,
            Log: self._log,
            Print: self._print,
            Dropped: self._note_dropped,
            Failed: self._failed,
        }
        self._process = self._in_time(lambda: program.take_guest(self))
        self._in_time(lambda: self._process.begin(setup, program.limits.turn_s))

    # ---- its turns -----------------------------------------------------------------------------------------------

    def drive(self) -> None:
        """The task of its node."""
        simulation, node = self._simulation, self._node
        self._driver = simulation.current
        while True:
            if simulation.now_ns and monotonic() > self._program.deadline_s:
                self._fail(TooLong(f"The run took longer than {self._program.limits.real_s:g} s of real time"))
            arrivals, self._arrivals = self._arrivals, []
            now_ns = simulation.time_of(node)
            self._slow_disk = self._ties.slow_disk()
            turn = Turn(now_ns, self._slow_disk, arrivals)
            done = self._in_time(lambda turn=turn: self._process.turn(turn))  # type: ignore[misc]
            if len(done.deeds) > protocol.DEEDS_MAX:
                self._misbehaves(f"{len(done.deeds):,} deeds in one turn; at most {protocol.DEEDS_MAX:,} are")
            if self._program.bytes_before + self._process.bytes_read > protocol.RUN_BYTES_MAX:
                self._misbehaves(f"more than {protocol.RUN_BYTES_MAX:,} bytes in one run")
            for deed in done.deeds:
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
            self._fail(TooLong(f"peer {self._peer} has not given up its turn within {limit_s:g} s of real time"))
        except EOFError:
            self._in_time(self._gone)
        except NurseryLost as lost:
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
            self._simulation.fail(GuestKilled(f"the process of peer {self._peer} was killed from outside"))
        if code in (-signal.SIGKILL, -signal.SIGXCPU):
            self._fail(TooLong(f"peer {self._peer} used more than {limits.cpu_s} s of processor time"))
        how = f"with exit status {code}" if code >= 0 else f"by {signal.Signals(-code).name}"
        self._fail(GuestFailed(f"peer {self._peer} ended its own process, {how}", kind="Died"))

    def _misbehaves(self, what: str) -> NoReturn:
        self._fail(GuestFailed(f"peer {self._peer} told its host what no peer tells: {what[:200]}", kind="Misbehaved"))

    def _unasked(self, deed: Deed) -> NoReturn:
        self._misbehaves(f"{type(deed).__name__}, unasked")

    def _fail(self, failure: GuestFailed) -> NoReturn:
        failure.node = self._node.name
        self._simulation.fail(failure)

    def end(self) -> None:
        """Its node is dead, or the run is over."""
        self._process.end()
        self._program.forget(self, self._process.bytes_read)

    # ---- what arrives --------------------------------------------------------------------------------------------

    def ask(self, method: str, *args: Any) -> Any:
        """Call a method of the program, and wait for what it returns."""
        self._asks = id_ = self._asks + 1
        pending = self._pending[id_] = _Pending(id_, method, self._simulation.current)
        self._arrive(Ask(id_, method, labgob.encode(list(args))))
        self._simulation.park(pending)
        returned = pending.returned
        assert returned is not None
        if returned.numbers is not None:
            return tuple(returned.numbers)
        if returned.data is None:
            return Shown(returned.shown[: protocol.NAME_MAX])
        try:
            (value,) = labgob.decode(returned.data, list[Any])
        except (labgob.DecodeError, ValueError):
            self._misbehaves(f"a result of {method}() that cannot be read")
        return value

    def start(self, command: Any) -> Any:
        return self.ask("start", command)

    def get_state(self) -> Any:
        return self.ask("get_state")

    def snapshot(self, index: int, snapshot: bytes) -> None:
        self.ask("snapshot", index, snapshot)

    def kill(self) -> None:
        self.ask("kill")

    def deliver(self, message: Message) -> None:
        """A request of the network's, for the server whose handlers are in the guest."""
        self._request_ids = id_ = self._request_ids + 1
        self._requests[id_] = message
        type_name = self._program.type_names.get(message.args_type, "")
        self._arrive(Request(id_, message.service_method, message.source, type_name, message.request))

    def taken(self) -> None:
        self._arrive(Taken())

    # ---- what it does --------------------------------------------------------------------------------------------

    def _declare(self, deed: Declare) -> None:
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

    def _send(self, deed: Send) -> None:
        if not 0 <= deed.end < len(self._ties.ends) or len(deed.method) > protocol.NAME_MAX:
            self._misbehaves(f"a call of {deed.method[:40]!r} of peer {deed.end}")
        id_ = deed.id

        def ended(call: Call) -> None:
            self._arrive(Reply(id_, None if call.answer is None else call.answer.reply))

        args_type = self._type_of(deed.type_number, deed.data)
        self._ties.network.begin(self._ties.ends[deed.end], deed.method, deed.data, args_type, ended)

    def _answer(self, deed: Answer) -> None:
        message = self._requests.pop(deed.id, None)
        if message is None:
            self._misbehaves("an answer that nobody asked for")
        reply_type = self._type_of(deed.type_number, deed.data)
        self._ties.network.answer(message, self._ties.server, deed.data, reply_type)

    def _returned(self, deed: Returned) -> None:
        pending = self._pending.pop(deed.id, None)
        if pending is None:
            self._misbehaves("a result that nobody asked for")
        pending.returned = deed
        self._simulation.wake(pending.caller)

    # Which save began before which is for the host to say: a rule goes by it. To a guest its number is a name.

    def _saving(self, deed: Saving) -> None:
        name = deed.number
        if not self._slow_disk or name in self._saves_under_way or name in self._saves_due:
            self._misbehaves("a save that cannot begin")
        self._saves += 1
        self._saves_under_way[name] = self._saves
        self._simulation.call_later(self._ties.saving(self._saves), self._save_is_due, name)

    def _save_is_due(self, name: int) -> None:
        self._saves_due[name] = self._saves_under_way.pop(name)
        self._arrive(Saved(name))

    def _save(self, deed: Save) -> None:
        number = self._saves_due.pop(deed.number, None)
        if number is None:
            if self._slow_disk:
                self._misbehaves("a save that has not begun, or takes longer")
            self._saves = number = self._saves + 1
        self._ties.save(number, deed.raft_state, deed.snapshot)

    def _put(self, deed: Put) -> None:
        command = None
        if deed.command_valid:
            try:
                (command,) = labgob.decode(deed.command, list[Any])
            except (labgob.DecodeError, ValueError):
                self._misbehaves("a command that cannot be read")
        self.channel.put(
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

    def _put_other(self, deed: PutOther) -> None:
        self.channel.put(Shown(deed.shown[: protocol.NAME_MAX]))

    def _log(self, deed: Log) -> None:
        simulation, node = self._simulation, self._node
        if simulation.trace is not None and self._program.may_say(len(deed.text)):
            # Not emit(): that would put the line into the digest.
            line = LogLine(deed.topic[: protocol.NAME_MAX], deed.text[: protocol.TEXT_MAX])
            simulation.trace.append(Event(simulation.now_ns, LOG, node.name, node.incarnation, 0, line))

    def _print(self, deed: Print) -> None:
        if self._program.may_say(len(deed.text)):
            self._program.show(deed.text)

    def _note_dropped(self, deed: Dropped) -> None:
        self._program.dropped += max(0, deed.chars - self._dropped)
        self._dropped = deed.chars

    def _failed(self, deed: Failed) -> None:
        if deed.kind == "CodeError":
            self._simulation.fail(CannotLoad(deed.text[: protocol.TEXT_MAX], told=deed.told))
        self._fail(
            GuestFailed(
                deed.text[: protocol.TEXT_MAX] or deed.kind,
                kind=deed.kind if deed.kind in _KINDS else SimulationError.__name__,
                name=deed.name[: protocol.NAME_MAX],
                told=[line[: protocol.TEXT_MAX] for line in deed.told],
                where=deed.where,
                task=deed.task[: protocol.NAME_MAX],
                entry=deed.entry[: protocol.NAME_MAX],
                returned=deed.returned,
                in_snapshot=deed.in_snapshot,
            )
        )

    # ---- looking inside, for a report ----------------------------------------------------------------------------

    def look(self, asked: Task | None = None) -> Seen | None:
        """What its threads are at, in its own words; None if it does not tell. `asked`: a call that did not return."""
        if self._silent:
            return None
        pending = next((p for p in self._pending.values() if p.caller is asked), None)
        turn = Turn(self._simulation.time_of(self._node), self._ties.slow_disk(), [Look(pending.id if pending else 0)])
        with suppress(EOFError, TimeoutError, ValueError, OSError, msgspec.MsgspecError):
            for deed in self._process.turn(turn, _LOOK_LIMIT_S).deeds:
                if isinstance(deed, Seen):
                    return deed
        self._silent = True
        return None


class CannotLoad(GuestFailed):
    """Its files cannot be executed, or have no peer in them."""


# ---- the program -------------------------------------------------------------------------------------------------


class GuestProgram:
    """A peer's files, to be run as guests. Used where the class Raft would be."""

    __name__ = "Raft"

    def __init__(
        self,
        files: Mapping[str, bytes],
        raft: str,
        *,
        limits: Limits | None = None,
        show: Callable[[str], object] | None = None,
    ) -> None:
        """`files` by the path that the reader knows; `raft` is that of raft.py. `show` gets what guests print."""
        self.limits = Limits() if limits is None else limits
        self.deadline_s = float("inf")
        self.dropped = 0  # characters that guests wanted to say and nobody kept
        self.bytes_before = 0  # that came, in this run, from guests that are gone
        # How each type of message is called by who has declared it. A plain value's type is told by its bytes.
        self.type_names: dict[Any, str] = {}
        self.show = sys.stdout.write if show is None else show
        self._files = dict(files)
        self._raft = raft
        self._nursery: Nursery | None = None
        self._living: dict[Guest, None] = {}
        self._methods: list[str] = []
        self._cpus: set[int] = set()  # that this process had before a run
        self._chars_left = protocol.LOG_CHARS_MAX

    def load(self) -> None:
        """Try whether it can be loaded: LoadError if not."""
        problem = self._try_to_load()
        if problem:
            raise LoadError(problem)

    def __getattr__(self, name: str) -> Any:
        """Whoever asks what the peer has, asks the class; its methods can be asked for, and not called."""
        if name in self.__dict__.get("_methods", ()):
            return Guest.ask
        raise AttributeError(name)

    def _try_to_load(self) -> str:
        process = self._fresh()
        setup = Setup("0", 1, 0, 0, 0, 0, b"", b"", lockstep=False)
        try:
            process.begin(setup, self.limits.turn_s)
            done = process.turn(Turn(0, False, [Ask(1, LOAD, labgob.encode([]))]))
            for deed in done.deeds:
                if isinstance(deed, Returned) and deed.data is not None:
                    problem, *self._methods = labgob.decode(deed.data, list[list[str]])[0]
                    return problem
                if isinstance(deed, Failed):
                    return f"{self._raft}: {deed.text}"
        except TimeoutError:
            return f"{self._raft}: importing it has not ended after {self.limits.turn_s:g} s"
        except (EOFError, ValueError, msgspec.MsgspecError):
            pass
        finally:
            process.end()
        return f"{self._raft}: importing it ends the program"

    # ---- runs ----------------------------------------------------------------------------------------------------

    def begin_run(self) -> None:
        self.end_run()
        if self._nursery is None:
            self._begin_nursery()
        assert self._nursery is not None
        self._cpus = os.sched_getaffinity(0)
        os.sched_setaffinity(0, {self._nursery.cpu})
        self.bytes_before = 0
        self.deadline_s = monotonic() + self.limits.real_s
        self.dropped = 0
        self._chars_left = protocol.LOG_CHARS_MAX

    def end_run(self) -> None:
        """No guest of it lives any more."""
        if self._cpus:
            os.sched_setaffinity(0, self._cpus)
            self._cpus = set()
        for guest in list(self._living):
            guest.end()

    def may_say(self, chars: int) -> bool:
        """Whether that much more is kept, of all that a run's guests say."""
        self._chars_left -= chars
        if self._chars_left < 0:
            self.dropped += chars
        return self._chars_left >= 0

    def take_guest(self, guest: Guest) -> GuestProcess:
        process = self._fresh()
        self._living[guest] = None
        return process

    def forget(self, guest: Guest, bytes_read: int) -> None:
        if guest in self._living:
            del self._living[guest]
            self.bytes_before += bytes_read

    def _fresh(self) -> GuestProcess:
        if self._nursery is None:
            self._begin_nursery()
        assert self._nursery is not None
        self._nursery.order(1)
        return self._nursery.guest()

    def _begin_nursery(self) -> None:
        self._nursery = Nursery(self._files, self._raft)
        self._nursery.order(_SPARES)

    def __del__(self) -> None:
        with suppress(Exception):
            self.close()

    def close(self) -> None:
        """End every process of it."""
        self.end_run()
        if self._nursery is not None:
            self._nursery.close()
            self._nursery = None


def load_guests(path: Path, *, limits: Limits | None = None) -> GuestProgram:
    """As labtest.loading.load_peer_class(), but not a line of the file is run in this process."""
    if not hasattr(os, "pidfd_open"):
        raise LoadError("isolated runs need Linux: their walls are made of Linux's means; leave --isolated out")
    if path.is_dir():
        path = path / "raft.py"
    if not path.is_file():
        raise LoadError(f"{short_path(str(path))}: no such file; RAFT must name a raft.py")
    files = {short_path(str(file.resolve())): file.read_bytes() for file in files_of(path)}
    program = GuestProgram(files, short_path(str(path.resolve())), limits=limits)
    try:
        program.load()
    except NurseryLost as error:
        program.close()
        raise LoadError(str(error)) from None
    except LoadError:
        program.close()
        raise
    return program
