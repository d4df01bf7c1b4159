"""The messages between supervisor and peer process.

The supervisor sends a `TimeSlice`: the time and what has arrived. The peer process runs its threads until all of them
wait, and replies with a `TimeSliceResult`: their effects in order, and the time of the next timer. It never sends
anything else, and virtual time does not pass while it runs.

Nothing here depends on Raft: a peer is one or two objects with methods, which may have a disk and an apply_ch.
A frame is its length (four bytes, big-endian) and a msgpack message; values in it are encoded by labgob. Messages from
a peer process are untrusted: fields are typed, sizes limited, and a violation ends the run as a failure of that peer.
"""

from __future__ import annotations

import os

import msgspec

from labsim.stacks import CodeLocation
from labsim.waits import Wait
from raftlab.races.data_race import BenignRace, DataRace

LENGTH_BYTES = 4
FRAME_BYTES_MAX = 16 << 20
RUN_BYTES_MAX = 512 << 20  # from all peer processes of a run
EFFECTS_MAX = 100_000  # in one time slice
NAME_MAX = 200  # characters of a name: a method's, a type's, a task's
TEXT_MAX = 20_000  # characters of a text
FIELDS_MAX = 100  # of one type
TYPES_MAX = 200  # declared by one peer process
HELD_LOCKS_MAX = 20  # locks held at an access
BENIGN_RACES_MAX = 100  # of one peer process
LOG_CHARS_MAX = 4_000_000  # log lines and output of a run; more is dropped and counted


class _Message(msgspec.Struct, array_like=True, tag=True, gc=False, eq=False):
    """Encoded as an array: field names would be half of every message."""


# ---- supervisor and fork server --------------------------------------------------------------------------------------

FORK, WAIT = b"f", b"w"
PID_BYTES = 4


class ForkServerSetup(msgspec.Struct):
    """The first frame to the fork server."""

    files: dict[str, bytes]  # by path as shown to users
    modules: dict[str, str]  # the path of each module, by name
    filter: bytes  # of system calls, for each peer process; b"" for none
    cpu: int  # the processor for all of them
    uid: int = 0  # switch to this user, if root; 0: do not
    race: bool = False  # rewrite the files for --race


class ForkServerReady(msgspec.Struct):
    """Sent twice: at the start, and when the peer's files are compiled."""


class ProcessExit(msgspec.Struct, array_like=True):
    """How a peer process ended: the status of waitpid(), and the CPU time used."""

    status: int
    cpu_s: float


# ---- supervisor to peer process --------------------------------------------------------------------------------------


class PeerSetup(msgspec.Struct, array_like=True):
    """The first frame to a peer process. Its reply is a TimeSliceResult."""

    name: str  # of the node
    incarnation: int
    me: int
    ends: int  # the number of peers, including this one
    seed: int  # of its random numbers and of the order of its threads
    now_ns: int
    raft_state: bytes
    snapshot: bytes
    lockstep: bool  # an ApplyChMessage waits for an ApplyReaderReady, because the reader may be busy
    has_service: bool = False  # the reader of apply_ch is in this process, too
    memory_mb: int = 0  # beyond the memory at its start; 0: no limit
    cpu_s: int = 0
    first_preemptions: dict[str, list[tuple[int, int]]] | None = None  # with --race, by kind


class MethodCall(_Message):
    """The tester calls a method: "Raft.start". `args` is a labgob list."""

    id: int
    method: str
    args: bytes


class IncomingRequest(_Message):
    """An RPC request has arrived."""

    id: int
    method: str  # as in "Raft.request_vote"
    source: str
    type_name: str  # of the argument, as declared by the sender; "" for a plain value
    data: bytes


class IncomingReply(_Message):
    """The reply to an OutgoingRequest, or None if there will be none."""

    id: int
    data: bytes | None


class ApplyReaderReady(_Message):
    """The reader of apply_ch is ready for the next message."""


class DiskReady(_Message):
    """On a slow disk: the save of that number may finish."""

    number: int


class ThreadQuery(_Message):
    """Asks where the threads are, for the report of a failed run."""

    call_id: int  # the MethodCall that has not returned; 0: none


class PreemptionBatch(_Message):
    """With --race: the next blocks of a kind. For each, the statement at which a thread is preempted (0: none), and
    1 if it is delayed until a ResumeThread."""

    kind: str
    blocks: list[tuple[int, int]]


class ResumeThread(_Message):
    """The thread that was preempted and delayed there continues."""

    kind: str
    block: int


Arrival = (
    MethodCall
    | IncomingRequest
    | IncomingReply
    | ApplyReaderReady
    | DiskReady
    | ThreadQuery
    | PreemptionBatch
    | ResumeThread
)


class TimeSlice(msgspec.Struct, array_like=True, gc=False):
    now_ns: int  # on this node's clock
    slow_disk: bool
    arrivals: list[Arrival]


# ---- peer process to supervisor --------------------------------------------------------------------------------------


class TypeDeclaration(_Message):
    """Declares a message type before its first use. Types are numbered from 0 in this order."""

    name: str
    fields: list[str]
    entries: list[str]  # fields of the items of its field `entries`, if any


class OutgoingRequest(_Message):
    id: int
    end: int
    method: str
    type_number: int
    data: bytes


class OutgoingReply(_Message):
    """To a Request. Without data: the peer was killed, and sends no reply."""

    id: int
    type_number: int
    data: bytes | None


class MethodResult(_Message):
    """The result of a MethodCall: a tuple of numbers; or another value, in a labgob list; or the text of a value that
    cannot be encoded."""

    id: int
    numbers: list[int | bool] | None
    data: bytes | None = None
    text: str = ""


class SaveStarted(_Message):
    """On a slow disk: a save starts, and its thread waits for DiskReady."""

    number: int  # only a label: the supervisor counts saves itself


class SaveFinished(_Message):
    """A save takes effect. Without `snapshot`, the previous one stays."""

    number: int
    raft_state: bytes
    snapshot: bytes | None


class ApplyChMessage(_Message):
    """An ApplyMsg was put into apply_ch, or taken from it by a service in this process.

    `command` is a labgob list of one item.
    """

    command_valid: bool
    command: bytes
    command_index: int
    snapshot_valid: bool
    snapshot: bytes
    snapshot_term: int
    snapshot_index: int


class ApplyChLength(_Message):
    """The length of an apply_ch that is read in this process. Sent at the end of a time slice, if it has changed."""

    messages: int


class InterceptedCall(_Message):
    """The service calls its peer. `args` is a labgob list."""

    id: int
    method: str
    args: bytes


class InterceptedResult(_Message):
    """The result of an InterceptedCall, if it is needed. As MethodResult."""

    id: int
    numbers: list[int | bool] | None
    data: bytes | None = None
    text: str = ""


class ApplyChOtherValue(_Message):
    """Something else was put into apply_ch: its text."""

    text: str


class PeerLog(_Message):
    """A log line of the peer, for the trace."""

    topic: str
    text: str


class PeerOutput(_Message):
    text: str


class DroppedText(_Message):
    """The number of characters of log lines and output that were dropped so far."""

    chars: int


class ThreadQueryResult(_Message):
    """The reply to a ThreadQuery. Only for reports: it is not verified."""

    blocked: list[Wait]
    threads: list[Wait]
    held_lock: str  # a WaitKind's name, "" if no lock is held


class ExitReport(_Message):
    """The peer has ended with an error. This is its last message.

    `kind` is the error's class in labsim, `name` that of the exception inside a TaskFailed. `lines` are for
    the report.
    """

    kind: str
    name: str
    text: str
    lines: list[str]
    where: list[CodeLocation]
    task: str = ""
    entry_point: str = ""
    returned: str = ""  # of an RpcError: the name of the wrong type that a handler returned
    in_snapshot: bool = False  # the peer's snapshot() is on the stack


class PreemptionRequest(_Message):
    """With --race: asks for the next PreemptionBatch of that kind, and waits for it."""

    kind: str


class PreemptionReached(_Message):
    """A thread is preempted: the number of the block, from 1, and the line."""

    kind: str
    block: int
    task: str
    file: str
    line: int


class RaceFound(_Message):
    """Two threads have a data race. This is the last message."""

    race: DataRace


class BenignRaceFound(_Message):
    """The same, but not a failure."""

    race: BenignRace


PeerEffect = (
    TypeDeclaration
    | OutgoingRequest
    | OutgoingReply
    | MethodResult
    | SaveStarted
    | SaveFinished
    | ApplyChMessage
    | ApplyChOtherValue
    | ApplyChLength
    | InterceptedCall
    | InterceptedResult
    | PeerLog
    | PeerOutput
    | DroppedText
    | ThreadQueryResult
    | ExitReport
    | PreemptionRequest
    | PreemptionReached
    | RaceFound
    | BenignRaceFound
)


class TimeSliceResult(msgspec.Struct, array_like=True, gc=False):
    effects: list[PeerEffect]
    next_ns: int | None  # when its next timer is due, on its own clock


class FrameReader:
    """Reads frames from a side that sends one only in reply.

    Reuses one buffer, because allocating one for each frame would cost more than everything else.
    """

    def __init__(self, fd: int) -> None:
        self._fd = fd
        self._buffer = bytearray(1 << 16)

    def read(self, bytes_max: int = FRAME_BYTES_MAX) -> memoryview:
        """The content of the next frame, valid until the next call. Raises EOFError; ValueError if it is invalid."""
        view = memoryview(self._buffer)
        have = os.readv(self._fd, (view,))
        size = int.from_bytes(view[:LENGTH_BYTES], "big") + LENGTH_BYTES
        while have < LENGTH_BYTES or have < size:
            if not have or (have >= LENGTH_BYTES and size > bytes_max):
                raise (
                    EOFError
                    if not have
                    else ValueError(f"a message of {size:,} bytes; at most {bytes_max:,} are allowed")
                )
            if have >= LENGTH_BYTES and size > len(view):
                self._buffer = bytearray(size)
                self._buffer[:have] = view[:have]
                view = memoryview(self._buffer)
            more = os.readv(self._fd, (view[have:],))
            if not more:
                raise EOFError
            have += more
            size = int.from_bytes(view[:LENGTH_BYTES], "big") + LENGTH_BYTES
        if have > size:
            raise ValueError("more than one message")
        return view[LENGTH_BYTES:size]


ENCODER = msgspec.msgpack.Encoder()


def encode_frame(message: msgspec.Struct) -> bytes:
    data = ENCODER.encode(message)
    return len(data).to_bytes(LENGTH_BYTES, "big") + data
