"""What a network is like, as data, and the one place where a message's fate is drawn from it.

The numbers are those of the MIT lab (labrpc.go); what goes beyond it is off until asked for. Start at `DETAILS`, then
`Conditions` and `RequestChance.sample()`.
"""

from __future__ import annotations

from typing import Annotated, Any

import msgspec

from labsim.choices import ChoiceKind, UniformInt, next_bits

_MS = 1_000_000  # in nanoseconds

# The choices of which a Fate comes.
TRANSIT_KINDS = frozenset((ChoiceKind.REQUEST, ChoiceKind.REPLY, ChoiceKind.REPLY_TO_DUPLICATE))

# MIT's numbers.
UNRELIABLE_DELAY_NS = UniformInt(0, 26 * _MS)
UNRELIABLE_LOSS = 0.1
REORDERED_REPLIES = 2 / 3
REORDER_NS_MIN = 200 * _MS
REORDER_SPREAD_NS = UniformInt(0, 2000 * _MS)
DEAD_END_NS = UniformInt(0, 100 * _MS)
DEAD_END_LONG_NS = UniformInt(0, 7000 * _MS)
# How long a caller takes to notice that its server went away under the call.
NOTICE_GONE_NS = UniformInt(1 * _MS, 100 * _MS)

DUPLICATE_DELAY_NS = UniformInt(0, 200 * _MS)


class Latency(msgspec.Struct, frozen=True):
    """How long every message takes, each way."""

    min_ms: float
    max_ms: float


class LinkChange(msgspec.Struct, frozen=True):
    """What one direction between two servers is like from now on, beside what holds for all."""

    source: str
    target: str
    latency: Latency
    loss: float
    cut: bool


# The kinds of condition. Each is the name of a method of Network and of the event that it emits.
RELIABLE = "reliable"
LONG_REORDERING = "long_reordering"
LONG_DELAYS = "long_delays"
DUPLICATES = "duplicates"
LATENCY = "latency"
LINK = "link"
PARTITION = "partition"
# Of each, the type of the event's detail: the new value.
DETAILS: dict[str, Any] = {
    RELIABLE: bool,
    LONG_REORDERING: bool,
    LONG_DELAYS: bool,
    DUPLICATES: float,
    LATENCY: Latency,
    LINK: LinkChange,
    PARTITION: list[list[str]],
}

NO_LATENCY = Latency(0.0, 0.0)


class Conditions(msgspec.Struct, frozen=True):
    """All that can be wrong with a network. `links` has the directions between two servers that are not like others."""

    reliable: bool = True
    long_reordering: bool = False
    long_delays: bool = False
    duplicates: float = 0.0
    latency: Latency = NO_LATENCY
    links: dict[tuple[str, str], LinkChange] = {}

    def link(self, source: str, target: str) -> LinkChange:
        return self.links.get((source, target)) or LinkChange(source, target, NO_LATENCY, 0.0, False)

    def request_chance(self, source: str, target: str) -> RequestChance:
        link = self.link(source, target)
        return RequestChance(
            _range(self.latency), _range(link.latency), self._loss(link), not self.reliable, self.duplicates
        )

    def reply_chance(self, source: str, target: str) -> ReplyChance:
        link = self.link(source, target)
        return ReplyChance(_range(self.latency), _range(link.latency), self._loss(link), self.long_reordering)

    def _loss(self, link: LinkChange) -> float:
        unreliable = 0.0 if self.reliable else UNRELIABLE_LOSS
        return unreliable + (1 - unreliable) * link.loss

    @property
    def dead_end_ns(self) -> UniformInt:
        """How long a call takes to notice that it leads nowhere."""
        return DEAD_END_LONG_NS if self.long_delays else DEAD_END_NS


_Delay = Annotated[int, msgspec.Meta(ge=0)]  # looked at when one is read, not when one is made


# gc=False: one for each way of each message.
class Fate(msgspec.Struct, frozen=True, gc=False, omit_defaults=True):
    """What becomes of a message on one way, there or back."""

    delay_ns: _Delay = 0  # until it is there; if it is lost, until its caller hears that there will be no reply
    lost: bool = False
    again_ns: _Delay | None = None  # a second copy of the request is there after this time
    held: bool = False  # it waits until somebody says what becomes of it: Network.held


class RequestChance(msgspec.Struct, frozen=True):
    """The dangers of the way there."""

    latency_ns: UniformInt
    link_latency_ns: UniformInt
    loss: float
    unreliable: bool
    duplicates: float

    @property
    def default(self) -> Fate:
        return Fate(self.latency_ns.default + self.link_latency_ns.default)

    def sample(self, bits: int) -> Fate:
        delay_ns = self.latency_ns.sample(bits)
        if self.link_latency_ns.high:
            delay_ns += self.link_latency_ns.sample(bits := next_bits(bits))
        if self.unreliable:
            delay_ns += UNRELIABLE_DELAY_NS.sample(bits := next_bits(bits))
        if self.loss and (bits := next_bits(bits)) < self.loss * 2**64:
            return Fate(delay_ns, True)
        if self.duplicates and (bits := next_bits(bits)) < self.duplicates * 2**64:
            return Fate(delay_ns, False, delay_ns + DUPLICATE_DELAY_NS.sample(next_bits(bits)))
        return Fate(delay_ns)


class ReplyChance(msgspec.Struct, frozen=True):
    """The dangers of the way back."""

    latency_ns: UniformInt
    link_latency_ns: UniformInt
    loss: float
    reordered: bool

    @property
    def default(self) -> Fate:
        return Fate(self.latency_ns.default + self.link_latency_ns.default)

    def sample(self, bits: int) -> Fate:
        delay_ns = self.latency_ns.sample(bits)
        if self.link_latency_ns.high:
            delay_ns += self.link_latency_ns.sample(bits := next_bits(bits))
        if self.loss and (bits := next_bits(bits)) < self.loss * 2**64:
            return Fate(delay_ns, True)
        if self.reordered and (bits := next_bits(bits)) < REORDERED_REPLIES * 2**64:
            # As MIT draws it: short extra delays are likelier than long ones.
            bits = next_bits(bits)
            longest = UniformInt(0, 1 * _MS + REORDER_SPREAD_NS.sample(bits))
            delay_ns += REORDER_NS_MIN + longest.sample(next_bits(bits))
        return Fate(delay_ns)


def _range(latency: Latency) -> UniformInt:
    return UniformInt(int(latency.min_ms * _MS), int(latency.max_ms * _MS))


def is_usual(link: LinkChange) -> bool:
    return not link.cut and link.latency == NO_LATENCY and not link.loss
