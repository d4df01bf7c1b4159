"""What host and guest say to each other: bytes, decoded into the types below and into nothing else.

The host speaks first. Its `Turn` says what time it is and what has arrived. The guest runs its threads until all of
them wait, and answers with `Done`: what they did, in order, and when the next of them wants to be woken. So the guest
never speaks unasked, and for as long as it runs, the host's clock stands still.

Nothing here knows about Raft. A program is one object with methods, or two, one above the other. Calls come in: from
the tester (`Ask`) and over the network (`Request`). Calls go out (`Send`), and what they bring comes back (`Reply`). It
may have a disk (`Save`) and a channel to whoever reads what it puts there (`Put`). Where that is its own upper object,
the host hears what passes between the two: what is taken (`Put` too), what waits (`Waiting`), and what the upper one
calls (`Calls`, `CameBack`). Values inside are labgob's bytes.

Frames are msgpack behind their length, four bytes, big-endian. What a guest says is data from an enemy: every field
has a type, every frame, list and text a limit, and what breaks one ends the run as the guest's own failure.
"""

from __future__ import annotations

import os

import msgspec

from labsim.stacks import CodeLocation
from labsim.waits import Wait
from raftlab.races.data_race import BenignRace, DataRace

LENGTH_BYTES = 4
FRAME_BYTES_MAX = 16 << 20
RUN_BYTES_MAX = 512 << 20  # from all guests of a run
EFFECTS_MAX = 100_000  # in one turn
NAME_MAX = 200  # characters of a name: a method's, a type's, a task's
TEXT_MAX = 20_000  # characters of a text
FIELDS_MAX = 100  # of one type
TYPES_MAX = 200  # declared by one guest
HELD_LOCKS_MAX = 20  # locks that a thread held
BENIGN_RACES_MAX = 100  # of one guest
LOG_CHARS_MAX = 4_000_000  # of a guest's own lines, and of what it prints; what is beyond is dropped and counted


class _Message(msgspec.Struct, array_like=True, tag=True, gc=False, eq=False):
    """Arrays, because field names would be half of every message."""


# ---- host and nursery, from which guests are forked --------------------------------------------------------------

FORK, WAIT = b"f", b"w"
PID_BYTES = 4


class ForkServerSetup(msgspec.Struct):
    """The first frame."""

    files: dict[str, bytes]  # by the path that the reader knows
    modules: dict[str, str]  # what is imported under which name: the path of each module of the program
    filter: bytes  # of system calls, for each guest; b"" for none
    cpu: int  # the processor to keep to: see host.home_cpu()
    uid: int = 0  # to become, if this process is root; 0 to stay
    race: bool = False  # whether the files are rewritten, so that threads may lose their turns


class ForkServerReady(msgspec.Struct):
    """The answer, twice: when the nursery is there, and when the peer's files are compiled."""


class ProcessExit(msgspec.Struct, array_like=True):
    """How a guest ended: as waitpid() says, and the processor time it took."""

    status: int
    cpu_s: float


# ---- host to guest ---------------------------------------------------------------------------------------------


class PeerSetup(msgspec.Struct, array_like=True):
    """The first frame: who the guest is. It answers with its first Done."""

    name: str  # of the node
    incarnation: int
    me: int
    ends: int  # how many peers it can call, itself among them
    seed: int  # of its own chance, and of the order in which its threads run
    now_ns: int
    raft_state: bytes
    snapshot: bytes
    lockstep: bool  # whether whoever reads the channel may be busy: then a Put waits for its Taken
    has_service: bool = False  # whether the channel's reader is in the guest, too
    memory_mb: int = 0  # beyond what it begins with; 0: as much as it likes
    cpu_s: int = 0
    first_preemptions: dict[str, list[tuple[int, int]]] | None = None  # with --race: by kind, the first Losses


class MethodCall(_Message):
    """The tester calls a method of the program, by its object and name: "Raft.start". `args` is a labgob list."""

    id: int
    method: str
    args: bytes


class IncomingRequest(_Message):
    """A call over the network has arrived."""

    id: int
    method: str  # with its service: "Raft.request_vote"
    source: str
    type_name: str  # of the argument, as the sender has declared it; "" for a plain value
    data: bytes


class IncomingReply(_Message):
    """What came of a Send: its reply, or None if there will be none."""

    id: int
    data: bytes | None


class MessageTaken(_Message):
    """Whoever reads the channel is ready for the next message."""


class DiskReady(_Message):
    """On a slow disk: the save of that number has had its time."""

    number: int


class ThreadQuery(_Message):
    """What are your threads at? Asked when a run has failed, for the report."""

    call_id: int  # the Ask that has not returned, 0 for none


class PreemptionBatch(_Message):
    """With --race: the next blocks of a kind. At which statement of each the turn is lost, 0 for none, and 1 if its
    thread gets it back when the host says so."""

    kind: str
    blocks: list[tuple[int, int]]


class ResumeThread(_Message):
    """The thread that lost its turn there, late, gets it back."""

    kind: str
    block: int


Arrival = (
    MethodCall
    | IncomingRequest
    | IncomingReply
    | MessageTaken
    | DiskReady
    | ThreadQuery
    | PreemptionBatch
    | ResumeThread
)


class TimeSlice(msgspec.Struct, array_like=True, gc=False):
    now_ns: int  # on the guest's own clock
    slow_disk: bool
    arrivals: list[Arrival]


# ---- guest to host ---------------------------------------------------------------------------------------------


class TypeDeclaration(_Message):
    """A type of its own, before the first message that has it. Its number is the how many-th it is, from 0."""

    name: str
    fields: list[str]
    entries: list[str]  # of what is in its field `entries`, if it has one


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
    """From an Ask: a tuple of numbers, as most are; another value, in a labgob list; or, where that is none that can
    travel, how it looks."""

    id: int
    numbers: list[int | bool] | None
    data: bytes | None = None
    text: str = ""


class SaveStarted(_Message):
    """On a slow disk: a save begins, and its thread waits for Saved."""

    number: int  # the guest's name for it; the host counts for itself


class SaveFinished(_Message):
    """It has taken effect. No snapshot: the one that is there stays."""

    number: int
    raft_state: bytes
    snapshot: bytes | None


class ApplyChMessage(_Message):
    """Into the channel, or out of one that is read in the guest: an ApplyMsg, field by field.

    `command` is a labgob list of one.
    """

    command_valid: bool
    command: bytes
    command_index: int
    snapshot_valid: bool
    snapshot: bytes
    snapshot_term: int
    snapshot_index: int


class ApplyChLength(_Message):
    """At the end of a turn, if it has changed: so many messages are in a channel that is read in the guest."""

    messages: int


class InterceptedCall(_Message):
    """One object of the program calls the one below it. `args` is a labgob list."""

    id: int
    method: str
    args: bytes


class InterceptedResult(_Message):
    """From such a call, if it is one whose result is asked for: as Returned."""

    id: int
    numbers: list[int | bool] | None
    data: bytes | None = None
    text: str = ""


class ApplyChOtherValue(_Message):
    """Into the channel: something else, as it looks."""

    text: str


class PeerLog(_Message):
    """One of its own lines, for the trace."""

    topic: str
    text: str


class PeerOutput(_Message):
    text: str


class DroppedText(_Message):
    """So many characters of lines and output were too much, so far."""

    chars: int


class ThreadQueryResult(_Message):
    """The answer to a Look, in the guest's own words."""

    blocked: list[Wait]
    threads: list[Wait]
    held_lock: str  # a WaitKind's name, "" if no lock is held


class ExitReport(_Message):
    """It has ended, and why. Nothing comes after this.

    `kind` is the error's class in labsim, `name` that of the exception inside a TaskFailed. `told` is what the report
    shows of it.
    """

    kind: str
    name: str
    text: str
    told: list[str]
    where: list[CodeLocation]
    task: str = ""
    entry_point: str = ""
    returned: str = ""  # of an RpcError: the name of the type that a handler returned instead of the right one
    in_snapshot: bool = False  # whether the peer's snapshot() is on the stack


class PreemptionRequest(_Message):
    """With --race: the Losses of that kind are used up. It says nothing more until it has got the next ones."""

    kind: str


class PreemptionReached(_Message):
    """A thread has come to a loss: which one, by the number of its block from 1, and where."""

    kind: str
    block: int
    task: str
    file: str
    line: int


class RaceFound(_Message):
    """Two of its threads have touched something without order. Nothing comes after this."""

    race: DataRace


class BenignRaceFound(_Message):
    """The same, but no failure."""

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
    next_ns: int | None  # on its own clock: when its next timer is due


class FrameReader:
    """Reads one frame after another, from whoever speaks only when it is asked.

    Into one buffer that stays: an object that is new for each frame costs more than all the rest.
    """

    def __init__(self, fd: int) -> None:
        self._fd = fd
        self._buffer = bytearray(1 << 16)

    def read(self, bytes_max: int = FRAME_BYTES_MAX) -> memoryview:
        """The next frame's content, which is there until the next call. EOFError; ValueError if it is none."""
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
