"""A network that loses, delays, reorders, duplicates and cuts, by the seed.

Promise: `end.call("Service.method", args)` returns the reply, or None when request or reply was lost or the server is
gone. Nothing is shared between caller and handler: both see decoded copies. A mistake in the program (unknown
method, wrong type, an exception in a handler) ends the run with an error and is never a silent None.

conditions.py says what can be wrong with a network. What becomes of a message is drawn there too, for whoever decides
(labsim/choices.py): its key is the link, the method and how many such requests went that way before. Inside a
simulation all of it takes virtual time; outside one it works on real threads and the real clock.

events.py says what a network puts into the trace about messages.

Start reading at `ClientEnd.call()` and follow a message: _begin, _deliver, _serve, _answer, _arrive.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable
from typing import Any
from zlib import crc32

import msgspec
from msgspec.structs import replace

from labgob import DecodeError, carries_unknown, decode, encode
from labrpc import conditions
from labrpc.conditions import (
    NOTICE_GONE_NS,
    Conditions,
    Fate,
    Latency,
    LinkChange,
    ReplyChance,
    RequestChance,
    is_usual,
)
from labrpc.errors import RpcError
from labrpc.events import ANSWER, DELIVER, DROP, DUPLICATE, REPLY, SEND, DropReason
from labrpc.message import Message
from labrpc.server import Server
from labrpc.transport import RealCaller, RealTransport, VirtualTransport, make_transport
from labsim import Task, WaitKind
from labsim.choices import ChoiceKind
from labsim.trace import fingerprint_of


class ClientEnd:
    """One caller's line to one server."""

    __slots__ = ("_network", "enabled", "name", "owner", "server_name")

    def __init__(self, network: Network, name: str, owner: str) -> None:
        self._network = network
        self.name = name
        self.owner = owner  # the name of the server whose caller uses this end, for cuts and links
        self.server_name = ""  # none yet
        self.enabled = False

    def call(self, service_method: str, args: Any) -> Any:
        """Send a request and wait: the reply, or None if there will be none."""
        network = self._network
        # As it is now: a thread that outlives its server still gets what it can read.
        home = network._servers.get(self.owner)
        call = network.begin_in_turn(self, service_method, encode(args), args.__class__)
        network.wait(call)
        answer = call.answer
        if answer is None:
            return None
        reply_type = answer.reply_type
        if home is not None and home.own_reply_types.get(service_method) is not reply_type:
            reply_type = home.own_reply_type(service_method, reply_type)
        try:
            return decode(answer.reply, reply_type)  # type: ignore[arg-type]  # an answer has a reply
        except DecodeError as error:
            raise RpcError(
                f"{answer.service_method} of {answer.target} returned what {answer.source} cannot read: {error}"
            ) from error

    def __repr__(self) -> str:
        return f"<ClientEnd {self.name}: {self.owner}->{self.server_name}>"


class Lane:
    """All requests of one method from one server to another: the keys of their fates, and the chances now."""

    __slots__ = (
        "back",
        "count",
        "cut_back",
        "cut_there",
        "no_reply_place",
        "reply_again_place",
        "reply_place",
        "request_place",
        "there",
    )

    def __init__(self, link: str, rpc: str) -> None:
        self.count = 0
        self.request_place = (ChoiceKind.REQUEST, link, rpc)
        self.reply_place = (ChoiceKind.REPLY, link, rpc)
        self.reply_again_place = (ChoiceKind.REPLY_TO_DUPLICATE, link, rpc)
        self.no_reply_place = (ChoiceKind.NO_REPLY, link, rpc)
        # Filled in when somebody goes that way, and emptied when the network's conditions change.
        self.there: RequestChance | None = None
        self.back: ReplyChance | None = None
        self.cut_there = False
        self.cut_back = False


class Call(msgspec.Struct, eq=False):
    """One call under way. What the caller waits for."""

    message: Message
    end: ClientEnd
    server: Server | None
    caller: Task | RealCaller
    lane: Lane
    copies: int = 1  # of the request, each of which may still lead to a reply
    answer: Message | None = None  # the message or its duplicate, whichever was answered first
    ended: Callable[[Call], None] | None = None  # called when it is over, for a caller that does not wait

    def wait_kind(self, waiter: Task) -> WaitKind:
        return WaitKind.REPLY

    def describe_wait(self, waiter: Task) -> str:
        """For a deadlock report."""
        return f"the reply of {self.message.target} to {self.message.service_method}"

    def holder_died(self) -> None:
        """The simulation tells whoever waits that some node was killed."""
        self.end._network.notice_killed(self)


class Held(msgspec.Struct, eq=False):
    """A request, or its reply, that waits on its way until somebody says what becomes of it."""

    message: Message
    server: Server  # that the request goes to, or has answered it
    is_reply: bool = False


class Network:
    """All ends and servers of one run. Reliable, instant and in order until told otherwise."""

    def __init__(
        self, *, seed: int | None = None, long_delays: bool = False, latency_ms: tuple[float, float] = (0.0, 0.0)
    ) -> None:
        """Inside a simulation chance comes from its seed; outside, from `seed`.

        The others are conditions that it has from the beginning; what changes later is an event.
        """
        self._transport: VirtualTransport | RealTransport = make_transport(seed)
        self._choose = self._transport.choose
        self._emit = self._transport.emit
        self._later = self._transport.later
        self._wake = self._transport.wake
        self.wait: Callable[[Call], object] = self._transport.wait
        self.begin_in_turn = self._transport.in_turn(self._begin)
        self._answer_in_turn = self._transport.in_turn(self._answer)
        self._ends: dict[str, ClientEnd] = {}
        self._servers: dict[str, Server] = {}
        self._lanes: dict[tuple[str, str, str], Lane] = {}
        self._in_flight: dict[int, Call] = {}  # the calls that may still get a reply
        self._held: dict[Held, None] = {}
        self._conditions = Conditions(
            long_delays=long_delays, latency=_checked_latency("Network", *latency_ms), links={}
        )
        self._total_count = 0
        self._total_bytes = 0
        self.renamed: dict[str, str] = {}  # by method: the RPC that it serves under another name (Message.rpc)
        self._message_ids = 0
        self._carries_unknown = carries_unknown()  # also when a message is read after the run

    # ---- ends and servers ------------------------------------------------------------------------------

    def make_end(self, name: str, owner: str = "") -> ClientEnd:
        """A new end, used by `owner` (a server's name, for cuts and links). It leads nowhere yet."""
        with self._transport.turn:
            if name in self._ends:
                raise ValueError(f"make_end(): there is an end called {name!r} already")
            end = self._ends[name] = ClientEnd(self, name, owner or name)
            return end

    def delete_end(self, name: str) -> None:
        """Forget an end. Calls under way on it get None."""
        with self._transport.turn:
            end = self._end(name)
            end.enabled = False
            del self._ends[name]
            self._drop_in_flight(DropReason.END_DELETED, lambda call: call.end is end)

    def connect(self, end_name: str, server_name: str) -> None:
        """Lead the end to that server, which need not exist yet. It is not enabled by this."""
        with self._transport.turn:
            self._end(end_name).server_name = server_name

    def enable(self, end_name: str, enabled: bool) -> None:
        """Plug the end in or out. A call under way when it is pulled gets None, but its request may still arrive."""
        with self._transport.turn:
            end = self._end(end_name)
            end.enabled = enabled
            if not enabled:
                self._drop_in_flight(DropReason.UNPLUGGED_ON_THE_WAY, lambda call: call.end is end)

    def add_server(self, name: str, server: Server) -> None:
        """Give the server its address. One that had it before is deleted."""
        with self._transport.turn:
            self.delete_server(name)
            self._servers[name] = server

    def delete_server(self, name: str) -> None:
        """The server is gone: it gets no more requests, and not even an answer under way arrives."""
        with self._transport.turn:
            if self._servers.pop(name, None) is not None:
                self._drop_in_flight(DropReason.SERVER_GONE, lambda call: call.message.target == name)

    def _end(self, name: str) -> ClientEnd:
        try:
            return self._ends[name]
        except KeyError:
            raise ValueError(f"there is no end called {name!r}; make_end() makes one") from None

    def keyed(self, name: str) -> str:
        """What a choice's key calls it. A test may make one cluster after another, all with a server 0."""
        return name if self._transport.number == 1 else f"{name} of network {self._transport.number}"

    # ---- faults: each change is an event -----------------------------------------------------------------

    @property
    def conditions(self) -> Conditions:
        """What it is like now."""
        return self._conditions

    def reliable(self, yes: bool) -> None:
        """Unreliable: requests are up to 26 ms late, and 10 % of requests and of replies are lost."""
        self._change(conditions.RELIABLE, yes, (yes,), reliable=yes)

    def long_reordering(self, yes: bool) -> None:
        """Two thirds of the replies are late by 200 ms and up to 2 s more."""
        self._change(conditions.LONG_REORDERING, yes, (yes,), long_reordering=yes)

    def long_delays(self, yes: bool) -> None:
        """A call that leads nowhere takes up to 7 s to say so, instead of up to 100 ms."""
        self._change(conditions.LONG_DELAYS, yes, (yes,), long_delays=yes)

    def duplicates(self, probability: float) -> None:
        """That part of the requests arrives a second time, up to 200 ms later."""
        duplicates = _checked_probability("duplicates", probability)
        self._change(conditions.DUPLICATES, probability, (probability,), duplicates=duplicates)

    def latency(self, min_ms: float, max_ms: float) -> None:
        """Requests and replies take that long each way, even when the network is reliable."""
        latency = _checked_latency("latency", min_ms, max_ms)
        self._change(conditions.LATENCY, latency, (min_ms, max_ms), latency=latency)

    def link(
        self,
        source: str,
        target: str,
        *,
        latency_ms: tuple[float, float] | None = None,
        loss: float | None = None,
        cut: bool | None = None,
    ) -> None:
        """Change one direction between two servers: what `source` sends to `target`, requests and replies."""
        was = self._conditions.link(source, target)
        link = LinkChange(
            source,
            target,
            was.latency if latency_ms is None else _checked_latency("link", *latency_ms),
            was.loss if loss is None else _checked_probability("link", loss),
            was.cut if cut is None else cut,
        )
        said = (source, target, link.latency.min_ms, link.latency.max_ms, link.loss, link.cut)
        self._change(conditions.LINK, link, said, links={**self._conditions.links, (source, target): link})

    def partition(self, *groups: Iterable[str]) -> None:
        """Cut every link between servers of different groups, and only those. No groups: no cuts."""
        sides = [list(group) for group in groups]
        group_of: dict[str, int] = {}
        for number, side in enumerate(sides):
            for name in side:
                if group_of.setdefault(name, number) != number:
                    raise ValueError(f"partition(): server {name!r} is in two groups")
        links = {ends: replace(link, cut=False) for ends, link in self._conditions.links.items()}
        for source in group_of:
            for target in group_of:
                if group_of[source] != group_of[target]:
                    links[source, target] = replace(self._conditions.link(source, target), cut=True)
        self._change(conditions.PARTITION, sides, [name for side in sides for name in (*side, "|")], links=links)

    def _change(self, kind: str, detail: Any, parts: Iterable[float | str], **changes: Any) -> None:
        """`parts`: of the detail, for the digest."""
        with self._transport.turn:
            if "links" in changes:
                # Those that are like all others again need not be kept.
                changes["links"] = {ends: link for ends, link in changes["links"].items() if not is_usual(link)}
            conditions = replace(self._conditions, **changes)
            if conditions != self._conditions:
                self._conditions = conditions
                for lane in self._lanes.values():
                    lane.there = lane.back = None
                self._emit(kind, None, detail, fingerprint_of(*parts))

    # ---- counts ------------------------------------------------------------------------------------------

    def get_count(self, server_name: str) -> int:
        """Requests that reached this server; 0 if there is none of that name."""
        server = self._servers.get(server_name)
        return 0 if server is None else server.count

    def get_total_count(self) -> int:
        """Requests sent, delivered or not."""
        return self._total_count

    def get_total_bytes(self) -> int:
        """Bytes of all requests sent and all replies delivered."""
        return self._total_bytes

    def cleanup(self) -> None:
        """Nothing is delivered any more; whoever waits for a reply gets None. Outside a simulation this also raises
        what a handler raised, so that nothing stays unsaid."""
        with self._transport.turn:
            for name in list(self._servers):
                self.delete_server(name)
            for name in list(self._ends):
                self.delete_end(name)
            self._transport.close()
        self._transport.raise_if_failed()

    # ---- for those who live elsewhere, and whose bytes alone come here --------------------------------------

    def begin(
        self, end: ClientEnd, service_method: str, request: bytes, args_type: Any, ended: Callable[[Call], None]
    ) -> None:
        """Send a request for whoever calls this, in a simulation. `ended` is told when it is over."""
        self._begin(end, service_method, request, args_type, ended)

    def answer(self, message: Message, server: Server, reply: bytes, reply_type: Any) -> None:
        """What a server's `remote` has to say to what was delivered to it."""
        self._answer(message, server, reply, reply_type)
        if server.on_answer is not None:
            server.on_answer()

    # ---- for whoever decides that messages are held, and what becomes of each -------------------------------

    @property
    def held(self) -> list[Held]:
        """What waits on its way, oldest first; without what can arrive nowhere any more."""
        servers, calls = self._servers, self._in_flight
        for held in list(self._held):
            message = held.message
            gone = message.id not in calls if held.is_reply else servers.get(message.target) is not held.server
            if gone:
                del self._held[held]
        return list(self._held)

    def deliver_held(self, held: Held, after_ns: int = 0) -> None:
        """Let it arrive, at once or after that time."""
        del self._held[held]
        if held.is_reply:
            self._later(after_ns, self._arrive, held.message)
        else:
            self._later(after_ns, self._deliver, held.message, held.server)

    def lose_held(self, held: Held) -> None:
        """It arrives nowhere. Its caller gets None, unless a copy of it is still on its way."""
        del self._held[held]
        self._lose(held.message, DropReason.LOST_REPLY if held.is_reply else DropReason.LOST_REQUEST, 0)

    def deliver_copy(self, message: Message) -> None:
        """Let a request that is held, or has arrived already, arrive once more."""
        server = self._servers.get(message.target)
        if server is None:
            raise ValueError(f"deliver_copy(): there is no server {message.target!r}")
        call = self._in_flight.get(message.id)
        if call is not None:
            call.copies += 1
        self._later(0, self._deliver_again, message.duplicate(), server)

    # ---- a message's way -----------------------------------------------------------------------------------

    def _begin(
        self,
        end: ClientEnd,
        service_method: str,
        request: bytes,
        args_type: Any,
        ended: Callable[[Call], None] | None = None,
    ) -> Call:
        caller = self._transport.caller()
        self._message_ids = id_ = self._message_ids + 1
        self._total_count += 1
        self._total_bytes += len(request)
        source, target = end.owner, end.server_name
        # What becomes of an RPC does not depend on what the peer calls it.
        rpc = self.renamed.get(service_method, service_method)
        lane = self._lanes.get((source, target, rpc))
        if lane is None:
            lane = self._lanes[source, target, rpc] = Lane(self.keyed(f"{source}->{target}"), rpc)
        lane.count = ordinal = lane.count + 1
        message = Message(
            id_,
            source,
            target,
            service_method,
            request,
            args_type,
            ordinal,
            carries_unknown=self._carries_unknown,
            rpc=rpc,
        )
        server = self._servers.get(target)
        call = self._in_flight[id_] = Call(message, end, server, caller, lane, ended=ended)
        self._emit(SEND, caller.node, message, crc32(request), id_)
        if server is not None and end.enabled:
            self._send(call, server)
        else:
            why = DropReason.NO_SERVER if end.enabled else DropReason.UNPLUGGED
            self._lose(message, why, self._dead_end_ns(lane, ordinal))
        return call

    def _send(self, call: Call, server: Server) -> None:
        """The way there, with all its dangers."""
        message, lane = call.message, call.lane
        distribution = lane.there
        if distribution is None:
            distribution = lane.there = self._conditions.request_chance(message.source, message.target)
            lane.cut_there = self._conditions.link(message.source, message.target).cut
        if lane.cut_there:
            self._lose(message, DropReason.LINK_CUT, self._dead_end_ns(lane, message.ordinal))
            return
        fate: Fate = self._choose(lane.request_place, message.ordinal, distribution)
        if fate.lost:
            self._lose(message, DropReason.LOST_REQUEST, fate.delay_ns)
            return
        if fate.held:
            self._held[Held(message, server)] = None
            return
        if fate.again_ns is not None:
            call.copies = 2
            self._later(fate.again_ns, self._deliver_again, message.duplicate(), server)
        if fate.delay_ns:
            self._later(fate.delay_ns, self._deliver, message, server)
        else:
            self._deliver(message, server)

    def _deliver_again(self, message: Message, server: Server) -> None:
        if server.node is not None and server.node.paused:
            self._transport.when_running(server.node, self._deliver_again, message, server)
        elif self._servers.get(message.target) is server:
            self._emit(DUPLICATE, server.node, message, message.id, message.id)
            self._deliver(message, server)

    def _deliver(self, message: Message, server: Server) -> None:
        target = message.target
        if self._servers.get(target) is not server:
            return  # it went away meanwhile; delete_server() has told the caller
        node = server.node
        if node is None:
            name = f"{message.service_method} of {target} from {message.source}"
        elif node.paused:
            self._transport.when_running(node, self._deliver, message, server)
            return
        elif node.alive:
            name = f"{message.service_method} from {message.source}"
        else:
            self._lose(message, DropReason.SERVER_GONE, self._notice_ns(message))
            return
        server.count += 1
        self._emit(DELIVER, node, message, message.id, message.id)
        if server.remote is not None:
            server.remote.deliver(message)
        else:
            self._transport.serve(self._serve, message, server, name=name, node=node, entry=message.method_name)

    def _serve(self, message: Message, server: Server) -> None:
        """Runs as a task of the server's node: decode, handle, encode."""
        reply, reply_type = server.handle(
            message.service_method, message.request, message.args_type, message.source, message.target
        )
        self._answer_in_turn(message, server, reply, reply_type)
        if server.on_answer is not None:
            server.on_answer()

    def _answer(self, message: Message, server: Server, reply: bytes, reply_type: Any) -> None:
        """The way back, with all its dangers."""
        message.reply = reply
        message.reply_type = reply_type
        self._emit(ANSWER, server.node, message, crc32(reply), message.id)
        call = self._in_flight.get(message.id)
        if call is None:
            self._arrive(message)
            return
        lane = call.lane
        distribution = lane.back
        if distribution is None:
            distribution = lane.back = self._conditions.reply_chance(message.target, message.source)
            lane.cut_back = self._conditions.link(message.target, message.source).cut
        if lane.cut_back:
            self._lose(message, DropReason.LINK_CUT, self._dead_end_ns(lane, message.ordinal))
            return
        point = lane.reply_place if message is call.message else lane.reply_again_place
        fate: Fate = self._choose(point, message.ordinal, distribution)
        if fate.lost:
            self._lose(message, DropReason.LOST_REPLY, fate.delay_ns)
        elif fate.held:
            self._held[Held(message, server, is_reply=True)] = None
        elif fate.delay_ns:
            self._later(fate.delay_ns, self._arrive, message)
        else:
            self._arrive(message)

    def _arrive(self, message: Message) -> None:
        call = self._in_flight.get(message.id)
        if call is None:
            self._emit(DROP, None, message, message.id, message.id, DropReason.NOBODY_WAITS)
            return
        caller = call.caller
        if caller.node is not None and caller.node.paused:
            self._transport.when_running(caller.node, self._arrive, message)
            return
        del self._in_flight[message.id]
        if caller.dead:
            self._emit(DROP, None, message, message.id, message.id, DropReason.CALLER_GONE)
            return
        self._total_bytes += len(message.reply)  # type: ignore[arg-type]  # it has been answered
        call.answer = message
        self._emit(REPLY, caller.node, message, message.id, message.id)
        self._end_call(call)

    def _lose(self, message: Message, why: DropReason, after_ns: int) -> None:
        """This request, or its reply, goes no further. If it was the only one, the caller gets None after that time."""
        self._emit(DROP, None, message, message.id, message.id, why)
        call = self._in_flight.get(message.id)
        if call is not None:
            call.copies -= 1
            if not call.copies:
                self._give_up(call, after_ns)

    def _drop_in_flight(self, why: DropReason, concerns: Callable[[Call], bool]) -> None:
        for call in list(self._in_flight.values()):
            if concerns(call):
                self._emit(DROP, None, call.message, call.message.id, call.message.id, why)
                self._give_up(call, self._notice_ns(call.message))

    def notice_killed(self, call: Call) -> None:
        """Some node was killed. If this call's server lived there, nobody will answer it."""
        node = None if call.server is None else call.server.node
        if node is not None and not node.alive:
            self._drop_in_flight(DropReason.SERVER_GONE, lambda other: other is call)

    def _give_up(self, call: Call, after_ns: int) -> None:
        """No reply can reach this call any more. Its caller is told so after that time."""
        del self._in_flight[call.message.id]
        self._later(after_ns, self._end_call, call)

    def _end_call(self, call: Call) -> None:
        if call.ended is None:
            self._wake(call.caller)
        else:
            call.ended(call)

    def _dead_end_ns(self, lane: Lane, ordinal: int) -> int:
        return self._choose(lane.no_reply_place, ordinal, self._conditions.dead_end_ns)

    def _notice_ns(self, message: Message) -> int:
        lane = self._lanes[message.source, message.target, message.rpc]
        return self._choose(lane.no_reply_place, message.ordinal, NOTICE_GONE_NS)


def _checked_probability(name: str, value: float) -> float:
    if not 0 <= value <= 1:
        raise ValueError(f"{name}(): a probability must be 0..1, got {value}")
    return value


def _checked_latency(name: str, min_ms: float, max_ms: float) -> Latency:
    if not 0 <= min_ms <= max_ms < math.inf:
        raise ValueError(f"{name}(): a latency needs 0 <= min_ms <= max_ms, got {min_ms} and {max_ms}")
    return Latency(min_ms, max_ms)
