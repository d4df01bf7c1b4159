"""Who decides what the world leaves open: which ready task goes next, what becomes of a message, what a test draws.

Promise: a choice is keyed by where it is made and by how many were made there before, never by how many were made in
all. So one choice that is made otherwise leaves every other as it was. `Seeded` is the default. `Recording` notes what
another decider decides, `Changed` decides some things itself, and `Plain` lets nothing happen that need not. A run that
was recorded is repeated by `Changed(Plain(), choices)`, without its seed; where it has become another run, a choice
that no longer fits is the plain one.

Plain is: of tasks, the one that has waited longest. Of what lies in a range, its middle; of what may happen or not,
that it does not; each `Chance` says so. Of the numbers that the tester draws from, 0: the first, the lowest.

Not promised: that a peer's own draws are choices. A node's stream is its own, and only its seed is chosen.

Start at `Decider`.
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

# Where a choice is made: its kind first, then what tells it from others of the kind. ("request", "0->1", "Raft.vote")
Place = tuple[str, ...]


class ChoiceKind(StrEnum):
    """Every kind of choice that is made anywhere. A seed and a choice file mean what they do by these names."""

    NODE = "node"  # the seed of a node's own stream
    TESTER = "tester"  # what the tester draws
    FAULT = "fault"  # whether a fault that the test asks for happens
    REQUEST = "request"
    REPLY = "reply"
    REPLY_TO_DUPLICATE = "reply to duplicate"
    NO_REPLY = "no reply"  # when the caller gives up
    SAVE = "save"  # how long it takes
    CRASH = "crash"  # at which save or reply
    # Where a thread is preempted: before any statement; after it released a lock; before it takes that lock again.
    PREEMPT = "preempt"
    PREEMPT_UNLOCKED = "preempt unlocked"
    PREEMPT_RELOCK = "preempt relock"


_64_BITS = 2**64 - 1


def next_bits(bits: int) -> int:
    """Another 64 bits, for whoever needs more than a choice gives: Knuth's MMIX generator. Use the upper ones."""
    return (bits * 6364136223846793005 + 1442695040888963407) & _64_BITS


class Chance(Protocol[T_co]):
    """What may come of something, and how likely each of it is. Values are plain data, so that they can be written."""

    @property
    def plain(self) -> T_co: ...

    def draw(self, bits: int) -> T_co:
        """What comes of it if these 64 bits are the dice."""


class Decider(Protocol):
    """What a simulation asks. Whoever writes one may put it in front of another and pass on what it does not mind."""

    def pick(self, now_ns: int, tasks: Sequence[Task]) -> int:
        """Which of these, at least two, goes next or gets the lock: its index. They are in the order of coming."""

    def choose(self, place: Place, ordinal: int, chance: Chance[T]) -> T:
        """What comes of this chance, the `ordinal`-th at this place. The asker counts."""


# ---- chances -------------------------------------------------------------------------------------------------


class Between(msgspec.Struct, frozen=True):
    """Any whole number from `low` to `high`, all as likely."""

    low: int
    high: int

    @property
    def plain(self) -> int:
        return (self.low + self.high) // 2

    def draw(self, bits: int) -> int:
        return self.low + ((self.high - self.low + 1) * bits >> 64)


class Settled(msgspec.Struct, frozen=True):
    """No chance at all: whoever asked has settled it, unless the decider has other plans."""

    plain: Any

    def draw(self, bits: int) -> Any:
        return self.plain


class _Number:
    """64 bits, from which a draw of the tester's follows."""

    plain = 0

    def draw(self, bits: int) -> int:
        return bits


_NUMBER = _Number()


class NodeSeed(msgspec.Struct, frozen=True):
    """Of a node's own stream. The plain ones differ from node to node, or all would have the same timeouts."""

    name: str
    incarnation: int

    @property
    def plain(self) -> int:
        return _bits_of(self.name, self.incarnation)

    def draw(self, bits: int) -> int:
        return bits


def _bits_of(*parts: str | int) -> int:
    return int.from_bytes(blake2b(" ".join(map(str, parts)).encode(), digest_size=8).digest(), "little")


# ---- deciders ------------------------------------------------------------------------------------------------


_SKIPPED_MAX = 1000


class _Source:
    """The dice of one place: the n-th number of its own stream is for the n-th choice made there."""

    __slots__ = ("bits", "next", "seed", "skipped")

    def __init__(self, seed: str) -> None:
        self.seed = seed
        self.next = 1
        self.bits = _random.Random(seed).getrandbits
        # What was passed over lately: replies overtake each other, and going back costs as much as there was before.
        self.skipped: dict[int, int] = {}

    def out_of_turn(self, ordinal: int) -> int:
        """Somebody asks so, or another decider in front of this one has not asked at all."""
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


class Seeded:
    """Everything from one seed."""

    def __init__(self, seed: int) -> None:
        self._seed = seed
        self._sources: dict[Place, _Source] = {}
        self._pick_bits = _bits_of(seed, "pick")
        self._instant_ns = -1
        self._picked = 0  # at this instant

    def pick(self, now_ns: int, tasks: Sequence[Task]) -> int:
        if now_ns != self._instant_ns:
            self._instant_ns = now_ns
            self._picked = 0
        else:
            self._picked += 1
        # SplitMix64 (Steele, Lea and Flood, 2014), because no stream can be kept for each instant.
        z = (self._pick_bits + now_ns * 0xD1342543DE82EF95 + self._picked * 0x9E3779B97F4A7C15) & _64_BITS
        z = ((z ^ (z >> 30)) * 0xBF58476D1CE4E5B9) & _64_BITS
        z = ((z ^ (z >> 27)) * 0x94D049BB133111EB) & _64_BITS
        return (z >> 32) * len(tasks) >> 32

    def choose(self, place: Place, ordinal: int, chance: Chance[T]) -> T:
        source = self._sources.get(place)
        if source is None:
            source = self._sources[place] = _Source(f"{self._seed} {' '.join(place)}")
        if ordinal != source.next:
            return chance.draw(source.out_of_turn(ordinal))
        source.next = ordinal + 1
        return chance.draw(source.bits(64))


class Plain:
    """Nothing happens that need not."""

    def pick(self, now_ns: int, tasks: Sequence[Task]) -> int:
        return 0

    def choose(self, place: Place, ordinal: int, chance: Chance[T]) -> T:
        return chance.plain


class Choices:
    """Choices that differ from the plain ones, by their keys. Values as the chance gives them, or as msgspec's JSON
    does."""

    def __init__(self) -> None:
        self.chosen: dict[tuple[Place, int], Any] = {}
        # By instant, and how many had been picked then: the task's label.
        self.picked: dict[tuple[int, int], str] = {}


class _Picks:
    """Counts the picks of an instant."""

    def __init__(self) -> None:
        self._instant_ns = -1
        self._count = 0

    def key(self, now_ns: int) -> tuple[int, int]:
        self._count = self._count + 1 if now_ns == self._instant_ns else 0
        self._instant_ns = now_ns
        return now_ns, self._count


def _labels(tasks: Sequence[Task]) -> list[str]:
    """What each is called; of several with one name, also the how many-th of these it is."""
    seen: dict[str, int] = {}
    labels: dict[str, None] = {}
    for task in tasks:
        label = name = str(task)
        number = seen.get(name, 0) + 1
        if number > 1:
            label = f"{name} #{number}"
        while label in labels:  # somebody is called that
            number += 1
            label = f"{name} #{number}"
        seen[name] = number
        labels[label] = None
    return list(labels)


class Recording:
    """Notes in `choices` what another decider decides, as far as it is not plain."""

    def __init__(self, inner: Decider) -> None:
        self._inner = inner
        self._picks = _Picks()
        self.choices = Choices()

    def pick(self, now_ns: int, tasks: Sequence[Task]) -> int:
        i = self._inner.pick(now_ns, tasks)
        key = self._picks.key(now_ns)
        if i:
            self.choices.picked[key] = _labels(tasks)[i]
        return i

    def choose(self, place: Place, ordinal: int, chance: Chance[T]) -> T:
        value = self._inner.choose(place, ordinal, chance)
        if value != chance.plain:
            self.choices.chosen[place, ordinal] = value
        return value


class Changed:
    """Decides what stands in `choices`, and leaves the rest, and what does not fit, to another decider."""

    def __init__(self, inner: Decider, choices: Choices) -> None:
        self._inner = inner
        self._choices = choices
        self._picks = _Picks()

    def pick(self, now_ns: int, tasks: Sequence[Task]) -> int:
        # Asked in any case: it may count.
        otherwise = self._inner.pick(now_ns, tasks)
        label = self._choices.picked.get(self._picks.key(now_ns))
        if label is not None:
            labels = _labels(tasks)
            if label in labels:
                return labels.index(label)
        return otherwise

    def choose(self, place: Place, ordinal: int, chance: Chance[T]) -> T:
        if (place, ordinal) in self._choices.chosen:
            try:
                value = msgspec.convert(self._choices.chosen[place, ordinal], type(chance.plain))
            except msgspec.ValidationError:
                pass  # another kind of chance than the one it was chosen for
            else:
                # Written by hand it may be any number, and the clock must not go back.
                if not isinstance(value, int) or 0 <= value <= _64_BITS:
                    return value
        return self._inner.choose(place, ordinal, chance)


# ---- what the tester draws -----------------------------------------------------------------------------------


# What `random` draws with.
DRAWS = frozenset(_random.__all__) - {"Random", "SystemRandom", "seed", "getstate", "setstate"}


class _CallSite:
    """A call that draws, and how often it has."""

    __slots__ = ("count", "place")

    def __init__(self, place: Place) -> None:
        self.place = place
        self.count = 0


class TesterStream(_random.Random):
    """What the tester's tasks draw from. Each draw is a choice of its own, at the call that draws (callsite.py).

    Once somebody has seeded it, or asked for its state, it is an ordinary stream.
    """

    def __new__(cls, decider: Decider) -> Self:
        # Any seed, lest the system is asked for one: nothing is drawn from the generator below.
        return super().__new__(cls, 0)  # type: ignore[call-arg]  # typeshed does not know that it takes one

    def __init__(self, decider: Decider) -> None:
        self._choose = decider.choose
        self._call_sites: dict[tuple[str, str, int, int], _CallSite] = {}
        self._by_place: dict[Place, _CallSite] = {}
        self._bits = 0
        self._ordinary: _random.Random | None = None
        self.gauss_next = None

    def begin_draw(self, frame: FrameType) -> None:
        """The next numbers are for a draw of this frame's."""
        if self._ordinary is not None:
            return
        code = frame.f_code
        key = (code.co_filename, code.co_name, code.co_firstlineno, frame.f_lasti)
        site = self._call_sites.get(key)
        if site is None:
            place = (ChoiceKind.TESTER, call_site(frame, DRAWS))
            site = self._call_sites[key] = self._by_place.setdefault(place, _CallSite(place))
        site.count = ordinal = site.count + 1
        self._bits = self._choose(site.place, ordinal, _NUMBER)
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
