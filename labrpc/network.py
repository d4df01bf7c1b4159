"""A network that loses, delays, reorders, duplicates and cuts, by the seed.

Promise: `end.call("Service.method", args)` returns the reply, or None when request or reply was lost or the server is
gone. Nothing is shared between caller and handler: both see decoded copies. A mistake in the program (unknown
method, wrong type, an exception in a handler) ends the run with an error and is never a silent None.

The faults and their numbers are those of the MIT lab; what goes beyond it is off until asked for. Inside a
simulation all of it takes virtual time; outside one it works on real threads and the real clock.

events.py says what a network puts into the trace.

Start reading at `ClientEnd.call()` and follow a message: _begin, _deliver, _serve, _answer, _arrive.
"""

from __future__ import annotations

import math
import random as _random
from collections.abc import Callable, Iterable
from typing import Any
from zlib import crc32

import msgspec
from msgspec.structs import replace

from labgob import DecodeError, EncodeError, decode, encode
from labrpc import events
from labrpc.errors import RpcError
from labrpc.events import ANSWER, DELIVER, DROP, DUPLICATE, REPLY, SEND, DropReason, Latency, LinkChange
from labrpc.message import Message
from labrpc.server import Server, are_twins
from labrpc.transport import RealCaller, RealTransport, VirtualTransport, make_transport
from labsim import Task, WaitKind

_MS = 1_000_000  # in nanoseconds

# MIT's numbers (labrpc.go), in ms and probabilities.
UNRELIABLE_DELAY_MS = 26
UNRELIABLE_LOSS = 0.1
REORDERED_REPLIES = 2 / 3
REORDER_DELAY_MS_MIN = 200
REORDER_DELAY_MS_SPREAD = 2000
DEAD_END_MS = 100
DEAD_END_LONG_MS = 7000
# How long a caller takes to notice that its server went away under the call.
NOTICE_GONE_MS = (1, 100)

DUPLICATE_DELAY_MS = 200

NO_LATENCY = Latency(0.0, 0.0)


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
        call = network.begin_in_turn(self, service_method, encode(args), args.__class__)
        network.wait(call)
        answer = call.answer
        if answer is None:
            return None
        reply_type = answer.reply_type
        home = network._servers.get(self.owner)
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


class Call(msgspec.Struct, eq=False):
    """One call under way. What the caller waits for."""

    message: Message
    end: ClientEnd
    server: Server | None
    caller: Task | RealCaller
    copies: int = 1  # of the request, each of which may still lead to a reply
    answer: Message | None = None  # the message or its duplicate, whichever was answered first

    def wait_kind(self, waiter: Task) -> WaitKind:
        return WaitKind.REPLY

    def describe_wait(self, waiter: Task) -> str:
        """For a deadlock report."""
        return f"the reply of {self.message.target} to {self.message.service_method}"

    def holder_died(self) -> None:
        """The simulation tells whoever waits that some node was killed."""
        self.end._network.notice_killed(self)


class Network:
    """All ends and servers of one run. Reliable, instant and in order until told otherwise."""

    def __init__(
        self, *, seed: int | None = None, long_delays: bool = False, latency_ms: tuple[float, float] = (0.0, 0.0)
    ) -> None:
        """Inside a simulation chance comes from its seed; outside, from `seed`.

        The others are conditions that it has from the beginning; what changes later is an event.
        """
        self._transport: VirtualTransport | RealTransport = make_transport(seed)
        self._random: _random.Random = self._transport.stream
        self._emit = self._transport.emit
        self.wait: Callable[[Call], object] = self._transport.wait
        self.begin_in_turn = self._transport.in_turn(self._begin)
        self._answer_in_turn = self._transport.in_turn(self._answer)
        self._ends: dict[str, ClientEnd] = {}
        self._servers: dict[str, Server] = {}
        self._links: dict[tuple[str, str], LinkChange] = {}  # that are not like the others
        self._in_flight: dict[int, Call] = {}  # the calls that may still get a reply
        self._reliable = True
        self._long_reordering = False
        self._long_delays = long_delays
        self._duplicates = 0.0
        self._latency = _checked_latency("Network", *latency_ms)
        self._plain = self._latency == NO_LATENCY  # none of the above and no links: the fast path
        self._total_count = 0
        self._total_bytes = 0
        self._message_ids = 0

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

    # ---- faults: each change is an event -----------------------------------------------------------------

    def reliable(self, yes: bool) -> None:
        """Unreliable: requests are up to 26 ms late, and 10 % of requests and of replies are lost."""
        if yes != self._reliable:
            self._reliable = yes
            self._changed(events.RELIABLE, yes)

    def long_reordering(self, yes: bool) -> None:
        """Two thirds of the replies are late by 200 ms and up to 2 s more."""
        if yes != self._long_reordering:
            self._long_reordering = yes
            self._changed(events.LONG_REORDERING, yes)

    def long_delays(self, yes: bool) -> None:
        """A call that leads nowhere takes up to 7 s to say so, instead of up to 100 ms."""
        if yes != self._long_delays:
            self._long_delays = yes
            self._changed(events.LONG_DELAYS, yes)

    def duplicates(self, probability: float) -> None:
        """That part of the requests arrives a second time, up to 200 ms later."""
        if _checked_probability("duplicates", probability) != self._duplicates:
            self._duplicates = probability
            self._changed(events.DUPLICATES, probability)

    def latency(self, min_ms: float, max_ms: float) -> None:
        """Requests and replies take that long each way, even when the network is reliable."""
        latency = _checked_latency("latency", min_ms, max_ms)
        if latency != self._latency:
            self._latency = latency
            self._changed(events.LATENCY, latency)

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
        with self._transport.turn:
            was = self._links.get((source, target)) or LinkChange(source, target, NO_LATENCY, 0.0, False)
            link = LinkChange(
                source,
                target,
                was.latency if latency_ms is None else _checked_latency("link", *latency_ms),
                was.loss if loss is None else _checked_probability("link", loss),
                was.cut if cut is None else cut,
            )
            if link != was:
                self._links[source, target] = link
                self._changed(events.LINK, link)

    def partition(self, *groups: Iterable[str]) -> None:
        """Cut every link between servers of different groups, and only those. No groups: no cuts."""
        sides = [list(group) for group in groups]
        group_of: dict[str, int] = {}
        for number, side in enumerate(sides):
            for name in side:
                if group_of.setdefault(name, number) != number:
                    raise ValueError(f"partition(): server {name!r} is in two groups")
        with self._transport.turn:
            before = self._links
            self._links = {ends: replace(link, cut=False) for ends, link in before.items()}
            for source in group_of:
                for target in group_of:
                    if group_of[source] != group_of[target]:
                        was = self._links.get((source, target)) or LinkChange(source, target, NO_LATENCY, 0.0, False)
                        self._links[source, target] = replace(was, cut=True)
            if self._links != before:
                self._changed(events.PARTITION, sides)

    def _changed(self, kind: str, detail: Any) -> None:
        self._links = {ends: link for ends, link in self._links.items() if not _is_plain(link)}
        self._plain = (
            self._reliable
            and not self._long_reordering
            and not self._duplicates
            and self._latency == NO_LATENCY
            and not self._links
        )
        self._emit(kind, None, 0, detail, crc32(repr(detail).encode()))

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

    # ---- a message's way -----------------------------------------------------------------------------------

    def _begin(self, end: ClientEnd, service_method: str, request: bytes, args_type: type) -> Call:
        caller = self._transport.caller()
        self._message_ids = id_ = self._message_ids + 1
        self._total_count += 1
        self._total_bytes += len(request)
        target = end.server_name
        message = Message(id_, end.owner, target, service_method, request, args_type)
        server = self._servers.get(target)
        call = self._in_flight[id_] = Call(message, end, server, caller)
        self._emit(SEND, caller.node, id_, message, crc32(request))
        if server is None or not end.enabled:
            why = DropReason.NO_SERVER if end.enabled else DropReason.UNPLUGGED
            self._lose(message, why, self._draw_dead_end())
        elif self._plain:
            self._deliver(message, server)
        else:
            self._send(call, server)
        return call

    def _send(self, call: Call, server: Server) -> None:
        """The way there, with all its dangers."""
        message = call.message
        draw = self._random.random
        link = self._links.get((message.source, message.target))
        delay_ms = self._draw_latency(link)
        if not self._reliable:
            delay_ms += draw() * UNRELIABLE_DELAY_MS
        if self._draw_loss(link):
            self._lose(message, DropReason.LOST_REQUEST, delay_ms)
            return
        if link is not None and link.cut:
            self._lose(message, DropReason.LINK_CUT, self._draw_dead_end())
            return
        if self._duplicates and draw() < self._duplicates:
            call.copies = 2
            again_ms = delay_ms + draw() * DUPLICATE_DELAY_MS
            self._later(again_ms, self._deliver_again, message.duplicate(), server)
        if delay_ms:
            self._later(delay_ms, self._deliver, message, server)
        else:
            self._deliver(message, server)

    def _deliver_again(self, message: Message, server: Server) -> None:
        if self._servers.get(message.target) is server:
            self._emit(DUPLICATE, server.node, message.id, message, message.id)
            self._deliver(message, server)

    def _deliver(self, message: Message, server: Server) -> None:
        target = message.target
        if self._servers.get(target) is not server:
            return  # it went away meanwhile; delete_server() has told the caller
        node = server.node
        if node is None:
            name = f"{message.service_method} of {target} from {message.source}"
        elif node.alive:
            name = f"{message.service_method} from {message.source}"
        else:
            self._lose(message, DropReason.SERVER_GONE, self._draw_notice())
            return
        server.count += 1
        self._emit(DELIVER, node, message.id, message, message.id)
        self._transport.serve(self._serve, message, server, name=name, node=node, entry=message.method_name)

    def _serve(self, message: Message, server: Server) -> None:
        """Runs as a task of the server's node: decode, handle, encode."""
        service_method = message.service_method
        try:
            method, args_type, reply_type = server.handlers.get(service_method) or server.find_handler(service_method)
        except RpcError as error:
            raise RpcError(f"{message.source} called {service_method!r} of {message.target}: {error}") from None
        if (
            message.args_type is not args_type
            and args_type.__class__ is type
            and not are_twins(message.args_type, args_type)
        ):
            raise RpcError(
                f"{message.source} called {service_method} of {message.target} with {_named(message.args_type)}; "
                f"it takes {_named(args_type)}"
            )
        try:
            args = decode(message.request, args_type)
        except DecodeError as error:
            raise RpcError(
                f"{message.source} called {service_method} of {message.target} with what it cannot read: {error}"
            ) from error
        try:
            reply = method(args)
        except SystemExit as error:
            # It would end the task in silence, and the caller would wait for ever.
            raise RpcError(f"{service_method} of {message.target} called sys.exit({error})") from error
        if reply.__class__ is not reply_type and (reply_type.__class__ is type or reply is None):
            raise RpcError(
                f"{service_method} of {message.target} returned {_named(type(reply))}; "
                f"its annotation promises {_named(reply_type)}"
            )
        try:
            data = encode(reply)
        except EncodeError as error:
            raise RpcError(f"{service_method} of {message.target} returned what cannot travel: {error}") from error
        self._answer_in_turn(message, server, data, reply_type)
        if server.on_answer is not None:
            server.on_answer()

    def _answer(self, message: Message, server: Server, reply: bytes, reply_type: Any) -> None:
        """The way back, with all its dangers."""
        message.reply = reply
        message.reply_type = reply_type
        self._emit(ANSWER, server.node, message.id, message, crc32(reply))
        if self._plain or message.id not in self._in_flight:
            self._arrive(message)
            return
        draw = self._random.random
        link = self._links.get((message.target, message.source))
        if link is not None and link.cut:
            self._lose(message, DropReason.LINK_CUT, self._draw_dead_end())
            return
        delay_ms = self._draw_latency(link)
        if self._draw_loss(link):
            self._lose(message, DropReason.LOST_REPLY, delay_ms)
            return
        if self._long_reordering and draw() < REORDERED_REPLIES:
            # As MIT draws it: short extra delays are likelier than long ones.
            delay_ms += REORDER_DELAY_MS_MIN + draw() * (1 + draw() * REORDER_DELAY_MS_SPREAD)
        if delay_ms:
            self._later(delay_ms, self._arrive, message)
        else:
            self._arrive(message)

    def _arrive(self, message: Message) -> None:
        call = self._in_flight.pop(message.id, None)
        if call is None:
            self._emit(DROP, None, message.id, message, message.id, DropReason.NOBODY_WAITS)
            return
        caller = call.caller
        if caller.dead:
            self._emit(DROP, None, message.id, message, message.id, DropReason.CALLER_GONE)
            return
        self._total_bytes += len(message.reply)  # type: ignore[arg-type]  # it has been answered
        call.answer = message
        self._emit(REPLY, caller.node, message.id, message, message.id)
        self._transport.wake(caller)

    def _lose(self, message: Message, why: DropReason, after_ms: float) -> None:
        """This request, or its reply, goes no further. If it was the only one, the caller gets None after that time."""
        self._emit(DROP, None, message.id, message, message.id, why)
        call = self._in_flight.get(message.id)
        if call is not None:
            call.copies -= 1
            if not call.copies:
                self._give_up(call, after_ms)

    def _drop_in_flight(self, why: DropReason, concerns: Callable[[Call], bool]) -> None:
        for call in list(self._in_flight.values()):
            if concerns(call):
                self._emit(DROP, None, call.message.id, call.message, call.message.id, why)
                self._give_up(call, self._draw_notice())

    def notice_killed(self, call: Call) -> None:
        """Some node was killed. If this call's server lived there, nobody will answer it."""
        node = None if call.server is None else call.server.node
        if node is not None and not node.alive:
            self._drop_in_flight(DropReason.SERVER_GONE, lambda other: other is call)

    def _give_up(self, call: Call, after_ms: float) -> None:
        """No reply can reach this call any more. Its caller is told so after that time."""
        del self._in_flight[call.message.id]
        self._later(after_ms, self._transport.wake, call.caller)

    # ---- chance and time -----------------------------------------------------------------------------------

    def _later(self, delay_ms: float, fn: Callable[..., None], *args: Any) -> None:
        self._transport.later(int(delay_ms * _MS), fn, *args)

    def _draw_latency(self, link: LinkChange | None) -> float:
        latency = self._latency
        high_ms = latency.max_ms
        delay_ms = latency.min_ms + (high_ms - latency.min_ms) * self._random.random() if high_ms else 0.0
        if link is not None and link.latency.max_ms:
            latency = link.latency
            delay_ms += latency.min_ms + (latency.max_ms - latency.min_ms) * self._random.random()
        return delay_ms

    def _draw_loss(self, link: LinkChange | None) -> bool:
        draw = self._random.random
        if not self._reliable and draw() < UNRELIABLE_LOSS:
            return True
        return link is not None and bool(link.loss) and draw() < link.loss

    def _draw_dead_end(self) -> float:
        """How long a call takes to notice that it leads nowhere."""
        return self._random.random() * (DEAD_END_LONG_MS if self._long_delays else DEAD_END_MS)

    def _draw_notice(self) -> float:
        low_ms, high_ms = NOTICE_GONE_MS
        return low_ms + (high_ms - low_ms) * self._random.random()


def _named(type_: Any) -> str:
    if type_ is type(None):
        return "None"
    name = type_.__name__ if type_.__class__ is type else str(type_)
    return f"{'an' if name[0] in 'aeiouAEIOU' else 'a'} {name}"


def _checked_probability(name: str, value: float) -> float:
    if not 0 <= value <= 1:
        raise ValueError(f"{name}(): a probability must be 0..1, got {value}")
    return value


def _checked_latency(name: str, min_ms: float, max_ms: float) -> Latency:
    if not 0 <= min_ms <= max_ms < math.inf:
        raise ValueError(f"{name}(): a latency needs 0 <= min_ms <= max_ms, got {min_ms} and {max_ms}")
    return Latency(min_ms, max_ms)


def _is_plain(link: LinkChange) -> bool:
    return not link.cut and link.latency == NO_LATENCY and not link.loss
