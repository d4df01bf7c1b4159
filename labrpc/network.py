"""A network that loses, delays, reorders and duplicates messages, and cuts links, as the seed decides.

Promise: `end.call("Service.method", args)` returns the reply, or None if the request or the reply was lost or the
server is gone. Caller and handler share nothing: each sees a decoded copy. A mistake in the program (an unknown
method, a wrong type, an exception in a handler) ends the run with an error and is never a silent None.

conditions.py lists the faults. Each message's transit is a choice (labsim/choices.py), keyed by link, method and number
among the requests of that method on that link. Inside a simulation delays take virtual time; outside one the network
uses real threads and the real clock. events.py lists the events that a network emits about messages.

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
    Latency,
    LinkChange,
    NetworkConditions,
    ReplyDistribution,
    RequestDistribution,
    Transit,
    is_unchanged,
)
from labrpc.errors import RpcError
from labrpc.events import ANSWER, DELIVER, DROP, DUPLICATE, REPLY, SEND, DropReason
from labrpc.message import Message
from labrpc.server import Server
from labrpc.transport import RealThreadCaller, RealTransport, VirtualTransport, make_transport
from labsim import Task, WaitKind, current_simulation
from labsim.choices import ChoiceKind
from labsim.trace import fingerprint_of


class ClientEnd:
    """One caller's connection to one server."""

    __slots__ = ("_network", "enabled", "name", "owner", "server_name")

    def __init__(self, network: Network, name: str, owner: str) -> None:
        self._network = network
        self.name = name
        self.owner = owner  # the name of the server whose caller uses this end, for cuts and links
        self.server_name = ""  # none yet
        self.enabled = False

    def call(self, service_method: str, args: Any) -> Any:
        """Send a request and wait for the reply. None: the request or the reply was lost."""
        network = self._network
        # Looked up before the call: a thread that outlives its server still gets a type that it knows.
        home = network._servers.get(self.owner)
        call = network.begin_locked(self, service_method, encode(args), args.__class__)
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
                f"{answer.service_method} of {answer.target} returned a reply that {answer.source} cannot decode: "
                f"{error}"
            ) from error

    def __repr__(self) -> str:
        return f"<ClientEnd {self.name}: {self.owner}->{self.server_name}>"


class RpcStream:
    """All requests of one method from one server to another: their choice points and the current distributions."""

    __slots__ = (
        "count",
        "duplicate_reply_point",
        "no_reply_point",
        "reply_cut",
        "reply_distribution",
        "reply_point",
        "request_cut",
        "request_distribution",
        "request_point",
    )

    def __init__(self, link: str, rpc: str) -> None:
        self.count = 0
        self.request_point = (ChoiceKind.REQUEST, link, rpc)
        self.reply_point = (ChoiceKind.REPLY, link, rpc)
        self.duplicate_reply_point = (ChoiceKind.REPLY_TO_DUPLICATE, link, rpc)
        self.no_reply_point = (ChoiceKind.NO_REPLY, link, rpc)
        # Set by the first message that needs them, and cleared when the network's conditions change.
        self.request_distribution: RequestDistribution | None = None
        self.reply_distribution: ReplyDistribution | None = None
        self.request_cut = False
        self.reply_cut = False


class PendingCall(msgspec.Struct, eq=False):
    """A call in progress, which its caller waits for."""

    message: Message
    end: ClientEnd
    server: Server | None
    caller: Task | RealThreadCaller
    stream: RpcStream
    copies: int = 1  # of the request, each of which may still lead to a reply
    answer: Message | None = None  # the message or its duplicate, whichever was answered first
    on_end: Callable[[PendingCall], None] | None = None  # called at the end, for a caller that does not wait

    def wait_kind(self, waiter: Task) -> WaitKind:
        return WaitKind.REPLY

    def describe_wait(self, waiter: Task) -> str:
        """For a deadlock report."""
        return f"the reply of {self.message.target} to {self.message.service_method}"

    def holder_died(self) -> None:
        """Called by the simulation on whatever a task waits for, after a node was killed."""
        self.end._network.notice_killed(self)


class QueuedMessage(msgspec.Struct, eq=False):
    """A request or reply in flight that waits until it is delivered or dropped explicitly."""

    message: Message
    server: Server  # which will receive the request, or has answered it
    is_reply: bool = False


class Network:
    """All client ends and servers of one run. Reliable, instant and in order by default."""

    def __init__(
        self, *, seed: int | None = None, long_delays: bool = False, latency_ms: tuple[float, float] = (0.0, 0.0)
    ) -> None:
        """`seed`: only for a network outside a simulation; inside one, the simulation's choice source decides.

        The other arguments are the initial conditions; later changes are events.
        """
        self._transport: VirtualTransport | RealTransport = make_transport(seed)
        self._choose = self._transport.choose
        self._emit = self._transport.emit
        self._later = self._transport.later
        self._wake = self._transport.wake
        self.wait: Callable[[PendingCall], object] = self._transport.wait
        self.begin_locked = self._transport.with_lock(self._begin)
        self._answer_locked = self._transport.with_lock(self._answer)
        self._ends: dict[str, ClientEnd] = {}
        self._servers: dict[str, Server] = {}
        self._streams: dict[tuple[str, str, str], RpcStream] = {}
        self._in_flight: dict[int, PendingCall] = {}  # the calls that may still get a reply
        self._queued: dict[QueuedMessage, None] = {}
        self._conditions = NetworkConditions(
            long_delays=long_delays, latency=_checked_latency("Network", *latency_ms), links={}
        )
        self._total_count = 0
        self._total_bytes = 0
        self.renamed: dict[str, str] = {}  # by method: the RPC that it serves under another name (Message.rpc)
        self._message_ids = 0
        self._carries_unknown = carries_unknown()  # for messages that are decoded after the run, too

    # ---- ends and servers ------------------------------------------------------------------------------

    def make_end(self, name: str, owner: str = "") -> ClientEnd:
        """A new end for `owner`, the server whose links it uses. It is not connected yet."""
        with self._transport.lock:
            if name in self._ends:
                raise ValueError(f"make_end(): an end called {name!r} exists already; use another name")
            end = self._ends[name] = ClientEnd(self, name, owner or name)
            return end

    def delete_end(self, name: str) -> None:
        """Delete an end. Its pending calls return None."""
        with self._transport.lock:
            end = self._end(name)
            end.enabled = False
            del self._ends[name]
            self._drop_in_flight(DropReason.END_DELETED, lambda call: call.end is end)

    def connect(self, end_name: str, server_name: str) -> None:
        """Connect the end to a server, which need not exist yet. This does not enable the end."""
        with self._transport.lock:
            self._end(end_name).server_name = server_name

    def enable(self, end_name: str, enabled: bool) -> None:
        """Enable or disable an end. Calls pending when it is disabled return None, but their requests may arrive."""
        with self._transport.lock:
            end = self._end(end_name)
            end.enabled = enabled
            if not enabled:
                self._drop_in_flight(DropReason.UNPLUGGED_ON_THE_WAY, lambda call: call.end is end)

    def add_server(self, name: str, server: Server) -> None:
        """Add a server under this name. It replaces a server that has the name already."""
        with self._transport.lock:
            self.delete_server(name)
            self._servers[name] = server

    def delete_server(self, name: str) -> None:
        """Remove a server: it gets no more requests, and replies in flight do not arrive."""
        with self._transport.lock:
            if self._servers.pop(name, None) is not None:
                self._drop_in_flight(DropReason.SERVER_GONE, lambda call: call.message.target == name)

    def _end(self, name: str) -> ClientEnd:
        try:
            return self._ends[name]
        except KeyError:
            raise ValueError(f"no end is called {name!r}; make it with make_end()") from None

    def key_name(self, name: str) -> str:
        """The name in the keys of choices. A test may make several clusters, each with a server 0."""
        return name if self._transport.number == 1 else f"{name} of network {self._transport.number}"

    # ---- faults: each change is an event -----------------------------------------------------------------

    @property
    def conditions(self) -> NetworkConditions:
        """The current conditions."""
        return self._conditions

    def reliable(self, yes: bool) -> None:
        """Unreliable: requests are delayed by up to 26 ms, and 10 % of requests and of replies are lost."""
        self._change(conditions.RELIABLE, yes, (yes,), reliable=yes)

    def long_reordering(self, yes: bool) -> None:
        """Two thirds of the replies are delayed by 200 ms to 2.2 s."""
        self._change(conditions.LONG_REORDERING, yes, (yes,), long_reordering=yes)

    def long_delays(self, yes: bool) -> None:
        """A call that cannot reach its server takes up to 7 s to return None, instead of up to 100 ms."""
        self._change(conditions.LONG_DELAYS, yes, (yes,), long_delays=yes)

    def duplicates(self, probability: float) -> None:
        """Each request arrives a second time with this probability, up to 200 ms after the first."""
        duplicates = _checked_probability("duplicates", probability)
        self._change(conditions.DUPLICATES, probability, (probability,), duplicates=duplicates)

    def latency(self, min_ms: float, max_ms: float) -> None:
        """Requests and replies take this long in each direction, even when the network is reliable."""
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
                    raise ValueError(f"partition(): server {name!r} is in two groups; name each server once")
        links = {ends: replace(link, cut=False) for ends, link in self._conditions.links.items()}
        for source in group_of:
            for target in group_of:
                if group_of[source] != group_of[target]:
                    links[source, target] = replace(self._conditions.link(source, target), cut=True)
        self._change(conditions.PARTITION, sides, [name for side in sides for name in (*side, "|")], links=links)

    def _change(self, kind: str, detail: Any, parts: Iterable[float | str], **changes: Any) -> None:
        """`parts`: the detail's parts for the digest."""
        with self._transport.lock:
            if "links" in changes:
                # Links without faults need not be kept.
                changes["links"] = {ends: link for ends, link in changes["links"].items() if not is_unchanged(link)}
            conditions = replace(self._conditions, **changes)
            if conditions != self._conditions:
                self._conditions = conditions
                for stream in self._streams.values():
                    stream.request_distribution = stream.reply_distribution = None
                self._emit(kind, None, detail, fingerprint_of(*parts))

    # ---- counts ------------------------------------------------------------------------------------------

    def get_count(self, server_name: str) -> int:
        """Requests that reached this server; 0 if no server has this name."""
        server = self._servers.get(server_name)
        return 0 if server is None else server.count

    def get_total_count(self) -> int:
        """Requests sent, delivered or not."""
        return self._total_count

    def get_total_bytes(self) -> int:
        """Bytes of all requests sent and all replies delivered."""
        return self._total_bytes

    def cleanup(self) -> None:
        """Stop delivering; pending calls return None. Outside a simulation this also raises the exception of a failed
        handler, so that it is not lost."""
        with self._transport.lock:
            for name in list(self._servers):
                self.delete_server(name)
            for name in list(self._ends):
                self.delete_end(name)
            self._transport.close()
        self._transport.raise_if_failed()

    # ---- for peers in other processes, which pass encoded messages --------------------------------------------

    def begin(
        self, end: ClientEnd, service_method: str, request: bytes, args_type: Any, on_end: Callable[[PendingCall], None]
    ) -> None:
        """Send a request without waiting, in a simulation. `on_end` is called when the call has ended."""
        self._begin(end, service_method, request, args_type, on_end)

    def answer(self, message: Message, server: Server, reply: bytes | None, reply_type: Any) -> None:
        """Reply to a message that was delivered to a server's `remote`."""
        self._answer(message, server, reply, reply_type)
        if server.on_answer is not None:
            server.on_answer()

    # ---- queued messages, for choice sources that queue them --------------------------------------------------

    @property
    def queued(self) -> list[QueuedMessage]:
        """The queued messages that can still arrive, oldest first."""
        servers, calls = self._servers, self._in_flight
        for queued in list(self._queued):
            message = queued.message
            gone = message.id not in calls if queued.is_reply else servers.get(message.target) is not queued.server
            if gone:
                del self._queued[queued]
        return list(self._queued)

    def queue_delayed(self) -> None:
        """Queue every message that is under way, in a simulation. Second copies that are under way are lost."""
        simulation = current_simulation()
        assert simulation is not None
        for pending in simulation.pending_calls():
            if pending.fn == self._deliver:
                message, server = pending.args
                self._queued[QueuedMessage(message, server)] = None
            elif pending.fn == self._arrive:
                (message,) = pending.args
                call = self._in_flight.get(message.id)
                if call is None or call.server is None:
                    continue
                self._queued[QueuedMessage(message, call.server, is_reply=True)] = None
            elif pending.fn == self._deliver_again:
                self._lose(pending.args[0], DropReason.LOST_REQUEST, 0)
            else:
                continue
            simulation.cancel(pending)

    def deliver_queued(self, queued: QueuedMessage, after_ns: int = 0) -> None:
        """Deliver it, at once or after this time."""
        del self._queued[queued]
        if queued.is_reply:
            self._later(after_ns, self._arrive, queued.message)
        else:
            self._later(after_ns, self._deliver, queued.message, queued.server)

    def drop_queued(self, queued: QueuedMessage) -> None:
        """Lose it. Its caller gets None, unless a copy of it is still in flight."""
        del self._queued[queued]
        self._lose(queued.message, DropReason.LOST_REPLY if queued.is_reply else DropReason.LOST_REQUEST, 0)

    def deliver_copy(self, message: Message) -> None:
        """Deliver one more copy of a request that is queued or has been delivered."""
        server = self._servers.get(message.target)
        if server is None:
            raise ValueError(f"deliver_copy(): no server is called {message.target!r}")
        call = self._in_flight.get(message.id)
        if call is not None:
            call.copies += 1
        self._later(0, self._deliver_again, message.duplicate(), server)

    # ---- the life of a message -----------------------------------------------------------------------------

    def _begin(
        self,
        end: ClientEnd,
        service_method: str,
        request: bytes,
        args_type: Any,
        on_end: Callable[[PendingCall], None] | None = None,
    ) -> PendingCall:
        caller = self._transport.caller()
        self._message_ids = id_ = self._message_ids + 1
        self._total_count += 1
        self._total_bytes += len(request)
        source, target = end.owner, end.server_name
        # The transit of an RPC does not depend on the name of the peer's method.
        rpc = self.renamed.get(service_method, service_method)
        stream = self._streams.get((source, target, rpc))
        if stream is None:
            stream = self._streams[source, target, rpc] = RpcStream(self.key_name(f"{source}->{target}"), rpc)
        stream.count = ordinal = stream.count + 1
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
        call = self._in_flight[id_] = PendingCall(message, end, server, caller, stream, on_end=on_end)
        self._emit(SEND, caller.node, message, crc32(request), id_)
        if server is not None and end.enabled:
            self._send(call, server)
        else:
            reason = DropReason.NO_SERVER if end.enabled else DropReason.UNPLUGGED
            self._lose(message, reason, self._dead_end_ns(stream, ordinal))
        return call

    def _send(self, call: PendingCall, server: Server) -> None:
        """Send a request: sample its transit."""
        message, stream = call.message, call.stream
        distribution = stream.request_distribution
        if distribution is None:
            distribution = stream.request_distribution = self._conditions.request_distribution(
                message.source, message.target
            )
            stream.request_cut = self._conditions.link(message.source, message.target).cut
        if stream.request_cut:
            self._lose(message, DropReason.LINK_CUT, self._dead_end_ns(stream, message.ordinal))
            return
        transit: Transit = self._choose(stream.request_point, message.ordinal, distribution)
        if transit.lost:
            self._lose(message, DropReason.LOST_REQUEST, transit.delay_ns)
            return
        if transit.queued:
            self._queued[QueuedMessage(message, server)] = None
            return
        if transit.duplicate_ns is not None:
            call.copies = 2
            self._later(transit.duplicate_ns, self._deliver_again, message.duplicate(), server)
        if transit.delay_ns:
            self._later(transit.delay_ns, self._deliver, message, server)
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
            return  # deleted meanwhile; delete_server() has ended the call
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
            self._transport.serve(self._serve, message, server, name=name, node=node, entry_point=message.method_name)

    def _serve(self, message: Message, server: Server) -> None:
        """Decode, handle and encode, as a task of the server's node."""
        reply, reply_type = server.handle(
            message.service_method, message.request, message.args_type, message.source, message.target
        )
        self._answer_locked(message, server, reply, reply_type)
        if server.on_answer is not None:
            server.on_answer()

    def _answer(self, message: Message, server: Server, reply: bytes | None, reply_type: Any) -> None:
        """Send a reply: sample its transit. None: the server was killed, and sends none."""
        if reply is None:
            self._lose(message, DropReason.SERVER_GONE, self._notice_ns(message))
            return
        message.reply = reply
        message.reply_type = reply_type
        self._emit(ANSWER, server.node, message, crc32(reply), message.id)
        call = self._in_flight.get(message.id)
        if call is None:
            self._arrive(message)
            return
        stream = call.stream
        distribution = stream.reply_distribution
        if distribution is None:
            distribution = stream.reply_distribution = self._conditions.reply_distribution(
                message.target, message.source
            )
            stream.reply_cut = self._conditions.link(message.target, message.source).cut
        if stream.reply_cut:
            self._lose(message, DropReason.LINK_CUT, self._dead_end_ns(stream, message.ordinal))
            return
        point = stream.reply_point if message is call.message else stream.duplicate_reply_point
        transit: Transit = self._choose(point, message.ordinal, distribution)
        if transit.lost:
            self._lose(message, DropReason.LOST_REPLY, transit.delay_ns)
        elif transit.queued:
            self._queued[QueuedMessage(message, server, is_reply=True)] = None
        elif transit.delay_ns:
            self._later(transit.delay_ns, self._arrive, message)
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

    def _lose(self, message: Message, reason: DropReason, after_ns: int) -> None:
        """This request or reply is lost. If no copy is left, the caller gets None after this time."""
        self._emit(DROP, None, message, message.id, message.id, reason)
        call = self._in_flight.get(message.id)
        if call is not None:
            call.copies -= 1
            if not call.copies:
                self._give_up(call, after_ns)

    def _drop_in_flight(self, reason: DropReason, concerns: Callable[[PendingCall], bool]) -> None:
        for call in list(self._in_flight.values()):
            if concerns(call):
                self._emit(DROP, None, call.message, call.message.id, call.message.id, reason)
                self._give_up(call, self._notice_ns(call.message))

    def notice_killed(self, call: PendingCall) -> None:
        """A node was killed. If this call's server ran there, the call gets no reply."""
        node = None if call.server is None else call.server.node
        if node is not None and not node.alive:
            self._drop_in_flight(DropReason.SERVER_GONE, lambda other: other is call)

    def _give_up(self, call: PendingCall, after_ns: int) -> None:
        """No reply can reach this call any more. It ends after this time."""
        del self._in_flight[call.message.id]
        self._later(after_ns, self._end_call, call)

    def _end_call(self, call: PendingCall) -> None:
        if call.on_end is None:
            self._wake(call.caller)
        else:
            call.on_end(call)

    def _dead_end_ns(self, stream: RpcStream, ordinal: int) -> int:
        return self._choose(stream.no_reply_point, ordinal, self._conditions.dead_end_ns)

    def _notice_ns(self, message: Message) -> int:
        stream = self._streams[message.source, message.target, message.rpc]
        return self._choose(stream.no_reply_point, message.ordinal, NOTICE_GONE_NS)


def _checked_probability(name: str, value: float) -> float:
    if not 0 <= value <= 1:
        raise ValueError(f"{name}(): probability must be 0..1, got {value}")
    return value


def _checked_latency(name: str, min_ms: float, max_ms: float) -> Latency:
    if not 0 <= min_ms <= max_ms < math.inf:
        raise ValueError(f"{name}(): latency must satisfy 0 <= min_ms <= max_ms, got {min_ms} and {max_ms}")
    return Latency(min_ms, max_ms)
