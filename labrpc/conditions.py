"""The faults of a network, as data, and the distributions from which each message's transit is sampled.

The numbers are those of the MIT lab (labrpc.go); faults that the MIT lab lacks are off by default. Start at `DETAILS`,
then `NetworkConditions` and `RequestDistribution.sample()`.
"""

from __future__ import annotations

from typing import Annotated, Any

import msgspec

from labsim.choices import ChoiceKind, UniformInt, next_bits

_MS = 1_000_000  # in nanoseconds

# The choices whose value is a Transit.
TRANSIT_KINDS = frozenset((ChoiceKind.REQUEST, ChoiceKind.REPLY, ChoiceKind.REPLY_TO_DUPLICATE))

# MIT's numbers.
UNRELIABLE_DELAY_NS = UniformInt(0, 26 * _MS)
UNRELIABLE_LOSS = 0.1
REORDERED_REPLIES = 2 / 3
REORDER_NS_MIN = 200 * _MS
REORDER_SPREAD_NS = UniformInt(0, 2000 * _MS)
DEAD_END_NS = UniformInt(0, 100 * _MS)
DEAD_END_LONG_NS = UniformInt(0, 7000 * _MS)
# How long a caller takes to notice that its server went away during the call.
NOTICE_GONE_NS = UniformInt(1 * _MS, 100 * _MS)

DUPLICATE_DELAY_NS = UniformInt(0, 200 * _MS)


class Latency(msgspec.Struct, frozen=True):
    """How long every message takes, in each direction."""

    min_ms: float
    max_ms: float


class LinkChange(msgspec.Struct, frozen=True):
    """The faults of one direction between two servers, in addition to those of the whole network."""

    source: str
    target: str
    latency: Latency
    loss: float
    cut: bool


# The kinds of network faults. Each is the name of a method of Network and of the event that it emits.
RELIABLE = "reliable"
LONG_REORDERING = "long_reordering"
LONG_DELAYS = "long_delays"
DUPLICATES = "duplicates"
LATENCY = "latency"
LINK = "link"
PARTITION = "partition"
# The type of each event's detail: the new value.
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


class NetworkConditions(msgspec.Struct, frozen=True):
    """All faults of a network. `links` has only those directions between two servers that differ from the others."""

    reliable: bool = True
    long_reordering: bool = False
    long_delays: bool = False
    duplicates: float = 0.0
    latency: Latency = NO_LATENCY
    links: dict[tuple[str, str], LinkChange] = {}

    def link(self, source: str, target: str) -> LinkChange:
        return self.links.get((source, target)) or LinkChange(source, target, NO_LATENCY, 0.0, False)

    def request_distribution(self, source: str, target: str) -> RequestDistribution:
        link = self.link(source, target)
        return RequestDistribution(
            _range(self.latency), _range(link.latency), self._loss(link), not self.reliable, self.duplicates
        )

    def reply_distribution(self, source: str, target: str) -> ReplyDistribution:
        link = self.link(source, target)
        return ReplyDistribution(_range(self.latency), _range(link.latency), self._loss(link), self.long_reordering)

    def _loss(self, link: LinkChange) -> float:
        unreliable = 0.0 if self.reliable else UNRELIABLE_LOSS
        return unreliable + (1 - unreliable) * link.loss

    @property
    def dead_end_ns(self) -> UniformInt:
        """How long a call takes to find out that it cannot reach a server."""
        return DEAD_END_LONG_NS if self.long_delays else DEAD_END_NS


_Delay = Annotated[int, msgspec.Meta(ge=0)]  # checked when one is decoded, not when one is made


# gc=False: one for each request and each reply. `rename`: choice files name these fields so.
class Transit(
    msgspec.Struct, frozen=True, gc=False, omit_defaults=True, rename={"duplicate_ns": "again_ns", "queued": "held"}
):
    """What happens to a request or a reply on its way."""

    delay_ns: _Delay = 0  # until it arrives; if it is lost, until its caller learns that there will be no reply
    lost: bool = False
    duplicate_ns: _Delay | None = None  # a second copy of the request arrives after this time
    queued: bool = False  # it waits in Network.queued until it is delivered or dropped


class RequestDistribution(msgspec.Struct, frozen=True):
    """The possible transits of a request."""

    latency_ns: UniformInt
    link_latency_ns: UniformInt
    loss: float
    unreliable: bool
    duplicates: float

    @property
    def default(self) -> Transit:
        return Transit(self.latency_ns.default + self.link_latency_ns.default)

    def sample(self, bits: int) -> Transit:
        delay_ns = self.latency_ns.sample(bits)
        if self.link_latency_ns.high:
            delay_ns += self.link_latency_ns.sample(bits := next_bits(bits))
        if self.unreliable:
            delay_ns += UNRELIABLE_DELAY_NS.sample(bits := next_bits(bits))
        if self.loss and (bits := next_bits(bits)) < self.loss * 2**64:
            return Transit(delay_ns, True)
        if self.duplicates and (bits := next_bits(bits)) < self.duplicates * 2**64:
            return Transit(delay_ns, False, delay_ns + DUPLICATE_DELAY_NS.sample(next_bits(bits)))
        return Transit(delay_ns)


class ReplyDistribution(msgspec.Struct, frozen=True):
    """The possible transits of a reply."""

    latency_ns: UniformInt
    link_latency_ns: UniformInt
    loss: float
    reordered: bool

    @property
    def default(self) -> Transit:
        return Transit(self.latency_ns.default + self.link_latency_ns.default)

    def sample(self, bits: int) -> Transit:
        delay_ns = self.latency_ns.sample(bits)
        if self.link_latency_ns.high:
            delay_ns += self.link_latency_ns.sample(bits := next_bits(bits))
        if self.loss and (bits := next_bits(bits)) < self.loss * 2**64:
            return Transit(delay_ns, True)
        if self.reordered and (bits := next_bits(bits)) < REORDERED_REPLIES * 2**64:
            # As MIT samples it: short extra delays are likelier than long ones.
            bits = next_bits(bits)
            longest = UniformInt(0, 1 * _MS + REORDER_SPREAD_NS.sample(bits))
            delay_ns += REORDER_NS_MIN + longest.sample(next_bits(bits))
        return Transit(delay_ns)


def _range(latency: Latency) -> UniformInt:
    return UniformInt(int(latency.min_ms * _MS), int(latency.max_ms * _MS))


def is_unchanged(link: LinkChange) -> bool:
    return not link.cut and link.latency == NO_LATENCY and not link.loss
