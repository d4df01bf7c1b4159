"""Choice sources: they decide which ready task runs next, what happens to a message, and what a test draws.

Promise: a choice is keyed by its choice point (where it is made) and its ordinal there, never by a count over the whole
run. So changing one choice leaves all others alone. `SeededSource` takes every choice from a seed. `RecordingSource`
records the choices of another source, `OverridingSource` replaces some of them, and `DefaultSource` always takes the
default. `OverridingSource(DefaultSource(), choices)` replays a recorded run without its seed. A recorded choice that no
longer fits, because the run has changed, becomes the default.

Defaults: the task that has waited longest runs next. For everything else each `Distribution` defines its default: the
middle of a range; an event that may or may not happen does not. A number that the tester draws from is 0.

Not promised: that a peer's own random draws are choices. Each node has its own random stream, whose seed is the choice.

Start at `ChoiceSource`.
"""

from __future__ import annotations

import random as _random
from collections.abc import Sequence
from enum import StrEnum
from hashlib import blake2b
from types import FrameType
from typing import TYPE_CHECKING, Any, Protocol, Self, TypeVar

import msgspec

from labsim.callsite import call_site

if TYPE_CHECKING:
    from labsim.task import Task

T = TypeVar("T")
T_co = TypeVar("T_co", covariant=True)

# Where a choice is made: its kind, then what distinguishes it within that kind. ("request", "0->1", "Raft.vote")
ChoicePoint = tuple[str, ...]


class ChoiceKind(StrEnum):
    """Every kind of choice. The meaning of seeds and choice files depends on these names."""

    NODE = "node"  # the seed of a node's own stream
    TESTER = "tester"  # what the tester draws
    FAULT = "fault"  # whether a fault that the test requests happens
    REQUEST = "request"
    REPLY = "reply"
    REPLY_TO_DUPLICATE = "reply to duplicate"
    NO_REPLY = "no reply"  # when the caller gives up
    SAVE = "save"  # how long a save takes
    CRASH = "crash"  # at which save or reply a server crashes
    # Where a thread is preempted: before any statement; after it releases a lock; before it acquires that lock again.
    PREEMPT = "preempt"
    PREEMPT_UNLOCKED = "preempt unlocked"
    PREEMPT_RELOCK = "preempt relock"


_64_BITS = 2**64 - 1


def next_bits(bits: int) -> int:
    """The next 64 bits, for a sample that needs more than one number: Knuth's MMIX generator. Use the upper bits."""
    return (bits * 6364136223846793005 + 1442695040888963407) & _64_BITS


class Distribution(Protocol[T_co]):
    """The possible values of a choice and their probabilities. Values are plain data, so that a file can hold them."""

    @property
    def default(self) -> T_co: ...

    def sample(self, bits: int) -> T_co:
        """The value for these 64 random bits."""


class ChoiceSource(Protocol):
    """What a simulation asks for its choices. A source may wrap another one and delegate to it."""

    def pick(self, now_ns: int, tasks: Sequence[Task]) -> int:
        """The index of the task that runs next or gets the lock, out of at least two, in order of arrival."""

    def choose(self, point: ChoicePoint, ordinal: int, distribution: Distribution[T]) -> T:
        """A value of this distribution, for the `ordinal`-th choice at this point. The caller counts."""


# ---- distributions -------------------------------------------------------------------------------------------


class UniformInt(msgspec.Struct, frozen=True):
    """Integers from `low` to `high`, both included, all equally likely."""

    low: int
    high: int

    @property
    def default(self) -> int:
        return (self.low + self.high) // 2

    def sample(self, bits: int) -> int:
        return self.low + ((self.high - self.low + 1) * bits >> 64)


class Constant(msgspec.Struct, frozen=True):
    """A single value. A source that overrides choices may still replace it."""

    default: Any

    def sample(self, bits: int) -> Any:
        return self.default


class _Uint64:
    """The 64 bits behind one random draw of the tester."""

    default = 0

    def sample(self, bits: int) -> int:
        return bits


_UINT64 = _Uint64()


class NodeSeed(msgspec.Struct, frozen=True):
    """The seed of a node's random stream. Defaults differ between nodes, or all would have the same timeouts."""

    name: str
    incarnation: int

    @property
    def default(self) -> int:
        return _bits_of(self.name, self.incarnation)

    def sample(self, bits: int) -> int:
        return bits


def _bits_of(*parts: str | int) -> int:
    return int.from_bytes(blake2b(" ".join(map(str, parts)).encode(), digest_size=8).digest(), "little")


# ---- sources -------------------------------------------------------------------------------------------------


_SKIPPED_MAX = 1000


class _Stream:
    """The random numbers of one choice point: the n-th is for the n-th choice there."""

    __slots__ = ("bits", "next", "seed", "skipped")

    def __init__(self, seed: str) -> None:
        self.seed = seed
        self.next = 1
        self.bits = _random.Random(seed).getrandbits
        # Numbers skipped lately. Replies overtake each other, and rewinding costs as much as all that came before.
        self.skipped: dict[int, int] = {}

    def seek(self, ordinal: int) -> int:
        """A caller asks out of order, or a wrapping source has skipped some choices."""
        if ordinal < self.next:
            bits = self.skipped.pop(ordinal, None)
            if bits is not None:
                return bits
            self.__init__(self.seed)  # type: ignore[misc]  # from the beginning again
        skipped = self.skipped
        while self.next < ordinal:
            skipped[self.next] = self.bits(64)
            self.next += 1
            if len(skipped) > _SKIPPED_MAX:
                del skipped[next(iter(skipped))]
        self.next += 1
        return self.bits(64)


class SeededSource:
    """Takes every choice from one seed."""

    def __init__(self, seed: int) -> None:
        self._seed = seed
        self._streams: dict[ChoicePoint, _Stream] = {}
        self._pick_bits = _bits_of(seed, "pick")
        self._instant_ns = -1
        self._picked = 0  # at this instant

    def pick(self, now_ns: int, tasks: Sequence[Task]) -> int:
        if now_ns != self._instant_ns:
            self._instant_ns = now_ns
            self._picked = 0
        else:
            self._picked += 1
        # SplitMix64 (Steele, Lea and Flood, 2014): keeping one stream for each instant would cost too much memory.
        z = (self._pick_bits + now_ns * 0xD1342543DE82EF95 + self._picked * 0x9E3779B97F4A7C15) & _64_BITS
        z = ((z ^ (z >> 30)) * 0xBF58476D1CE4E5B9) & _64_BITS
        z = ((z ^ (z >> 27)) * 0x94D049BB133111EB) & _64_BITS
        return (z >> 32) * len(tasks) >> 32

    def choose(self, point: ChoicePoint, ordinal: int, distribution: Distribution[T]) -> T:
        stream = self._streams.get(point)
        if stream is None:
            stream = self._streams[point] = _Stream(f"{self._seed} {' '.join(point)}")
        if ordinal != stream.next:
            return distribution.sample(stream.seek(ordinal))
        stream.next = ordinal + 1
        return distribution.sample(stream.bits(64))


class DefaultSource:
    """Takes the default of every choice."""

    def pick(self, now_ns: int, tasks: Sequence[Task]) -> int:
        return 0

    def choose(self, point: ChoicePoint, ordinal: int, distribution: Distribution[T]) -> T:
        return distribution.default


class Choices:
    """Choices that differ from the default, by key. Values are what the distribution returns, or their decoded JSON."""

    def __init__(self) -> None:
        self.chosen: dict[tuple[ChoicePoint, int], Any] = {}
        # The task's label, by instant and number of earlier picks at that instant.
        self.picked: dict[tuple[int, int], str] = {}


class _Picks:
    """Counts the picks at the current instant."""

    def __init__(self) -> None:
        self._instant_ns = -1
        self._count = 0

    def key(self, now_ns: int) -> tuple[int, int]:
        self._count = self._count + 1 if now_ns == self._instant_ns else 0
        self._instant_ns = now_ns
        return now_ns, self._count


def _labels(tasks: Sequence[Task]) -> list[str]:
    """The name of each task; tasks that share a name get a number."""
    seen: dict[str, int] = {}
    labels: dict[str, None] = {}
    for task in tasks:
        label = name = str(task)
        number = seen.get(name, 0) + 1
        if number > 1:
            label = f"{name} #{number}"
        while label in labels:  # another task has that very name
            number += 1
            label = f"{name} #{number}"
        seen[name] = number
        labels[label] = None
    return list(labels)


class RecordingSource:
    """Records in `choices` the choices of another source that differ from the default."""

    def __init__(self, inner: ChoiceSource) -> None:
        self._inner = inner
        self._picks = _Picks()
        self.choices = Choices()

    def pick(self, now_ns: int, tasks: Sequence[Task]) -> int:
        i = self._inner.pick(now_ns, tasks)
        key = self._picks.key(now_ns)
        if i:
            self.choices.picked[key] = _labels(tasks)[i]
        return i

    def choose(self, point: ChoicePoint, ordinal: int, distribution: Distribution[T]) -> T:
        value = self._inner.choose(point, ordinal, distribution)
        if value != distribution.default:
            self.choices.chosen[point, ordinal] = value
        return value


class OverridingSource:
    """Takes the choices in `choices`, and asks another source for all others and for those that no longer fit."""

    def __init__(self, inner: ChoiceSource, choices: Choices) -> None:
        self._inner = inner
        self._choices = choices
        self._picks = _Picks()

    def pick(self, now_ns: int, tasks: Sequence[Task]) -> int:
        # Always ask the inner source: it may count.
        otherwise = self._inner.pick(now_ns, tasks)
        label = self._choices.picked.get(self._picks.key(now_ns))
        if label is not None:
            labels = _labels(tasks)
            if label in labels:
                return labels.index(label)
        return otherwise

    def choose(self, point: ChoicePoint, ordinal: int, distribution: Distribution[T]) -> T:
        if (point, ordinal) in self._choices.chosen:
            try:
                value = msgspec.convert(self._choices.chosen[point, ordinal], type(distribution.default))
            except msgspec.ValidationError:
                pass  # recorded for another kind of distribution
            else:
                # A hand-written file may hold any number, and the clock must not go back.
                if not isinstance(value, int) or 0 <= value <= _64_BITS:
                    return value
        return self._inner.choose(point, ordinal, distribution)


# ---- what the tester draws -----------------------------------------------------------------------------------


# The functions of `random` that draw numbers.
DRAWS = frozenset(_random.__all__) - {"Random", "SystemRandom", "seed", "getstate", "setstate"}


class _CallSite:
    """A call that draws random numbers, and how often it has run."""

    __slots__ = ("count", "point")

    def __init__(self, point: ChoicePoint) -> None:
        self.point = point
        self.count = 0


class TesterStream(_random.Random):
    """The random stream of the tester's tasks. Each draw is a separate choice, at the call that draws (callsite.py).

    Once a test seeds it or reads its state, it becomes an ordinary stream.
    """

    def __new__(cls, choice_source: ChoiceSource) -> Self:
        # Any seed will do, so that the operating system is not asked for one: the base generator is never used.
        return super().__new__(cls, 0)  # type: ignore[call-arg]  # typeshed does not know that it takes one

    def __init__(self, choice_source: ChoiceSource) -> None:
        self._choose = choice_source.choose
        self._call_sites: dict[tuple[str, str, int, int], _CallSite] = {}
        self._by_point: dict[ChoicePoint, _CallSite] = {}
        self._bits = 0
        self._ordinary: _random.Random | None = None
        self.gauss_next = None

    def begin_draw(self, frame: FrameType) -> None:
        """The next numbers are for a draw in this frame."""
        if self._ordinary is not None:
            return
        code = frame.f_code
        key = (code.co_filename, code.co_name, code.co_firstlineno, frame.f_lasti)
        site = self._call_sites.get(key)
        if site is None:
            point = (ChoiceKind.TESTER, call_site(frame, DRAWS))
            site = self._call_sites[key] = self._by_point.setdefault(point, _CallSite(point))
        site.count = ordinal = site.count + 1
        self._bits = self._choose(site.point, ordinal, _UINT64)
        self.gauss_next = None

    def random(self) -> float:
        if self._ordinary is not None:
            return self._ordinary.random()
        bits = self._bits
        self._bits = next_bits(bits)
        return (bits >> 11) * 2.0**-53

    def getrandbits(self, k: int, /) -> int:
        if self._ordinary is not None:
            return self._ordinary.getrandbits(k)
        if k < 0:
            raise ValueError("number of bits must be non-negative")
        bits = self._bits
        if k <= 64:
            self._bits = next_bits(bits)
            return bits >> (64 - k)
        words = []
        for _ in range(-(-k // 32)):
            words.append((bits >> 32).to_bytes(4, "big"))
            bits = next_bits(bits)
        self._bits = bits
        return int.from_bytes(b"".join(words), "big") >> -k % 32

    def seed(self, a: Any = None, version: int = 2) -> None:
        self._ordinary = _random.Random(0)
        self._ordinary.seed(a, version)
        self.gauss_next = None

    def getstate(self) -> tuple[Any, ...]:
        if self._ordinary is None:
            self.seed(self.getrandbits(64))
        assert self._ordinary is not None
        self._ordinary.gauss_next = self.gauss_next  # type: ignore[attr-defined]  # typeshed does not know it
        return self._ordinary.getstate()

    def setstate(self, state: tuple[Any, ...]) -> None:
        self._ordinary = _random.Random(0)
        self._ordinary.setstate(state)
        self.gauss_next = self._ordinary.gauss_next  # type: ignore[attr-defined]
