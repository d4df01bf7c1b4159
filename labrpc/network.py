"""A network that loses, delays, reorders, duplicates and cuts, by the seed.

Promise: `end.call("Service.method", args)` returns the reply, or None when request or reply was lost or the server is
gone. Nothing is shared between caller and handler: both see decoded copies. A mistake in the program (unknown
method, wrong type, an exception in a handler) ends the run with an error and is never a silent None.

The faults and their numbers are those of the MIT lab; what goes beyond it is off until asked for. Inside a
simulation all of it takes virtual time; outside one it works on real threads and the real clock.

Start reading at `Network.call()` and follow a message: call, _deliver, _serve, _answer, _finish.
"""

from __future__ import annotations

import random as _random
from collections.abc import Callable, Iterable
from typing import Any
from zlib import crc32

import labgob
from labrpc.errors import RpcError
from labrpc.message import Message
from labrpc.server import Server
from labrpc.transport import RealTransport, VirtualTransport, make_transport

_MS = 1_000_000  # in nanoseconds

# MIT's numbers (labrpc.go), in ms and probabilities.
UNRELIABLE_DELAY_MS = 26
UNRELIABLE_LOSS = 0.1
REORDERED_REPLIES = 2 / 3
REORDER_DELAY_MS_MIN = 200
REORDER_DELAY_MS_SPREAD = 2000
DEAD_END_MS = 100
DEAD_END_LONG_MS = 7000
# How long a caller may take to notice that its server went away under the call.
NOTICE_GONE_MS = 100

DUPLICATE_DELAY_MS = 200


class ClientEnd:
    """One caller's line to one server."""

    __slots__ = ("_network", "enabled", "name", "owner", "server_name")

    def __init__(self, network: Network, name: str, owner: str) -> None:
        self._network = network
        self.name = name
        self.owner = owner  # the name of the server whose caller uses this end, for cuts and links
        self.server_name: str | None = None
        self.enabled = False

    def call(self, service_method: str, args: Any) -> Any:
        """Send a request and wait: the reply, or None if there will be none."""
        return self._network.call(self, service_method, args)

    def __repr__(self) -> str:
        return f"<ClientEnd {self.name}: {self.owner}->{self.server_name}>"


class Link:
    """What one direction between two servers adds to the network's own behaviour."""

    __slots__ = ("cut", "latency_ms", "loss")

    def __init__(self) -> None:
        self.cut = False
        self.latency_ms = (0.0, 0.0)
        self.loss = 0.0


class Network:
    """All ends and servers of one run. Reliable, instant and in order until told otherwise."""

    def __init__(self, *, seed: int | None = None) -> None:
        """Inside a simulation chance comes from its seed; outside, from `seed`."""
        self._transport: VirtualTransport | RealTransport = make_transport(seed)
        self._random: _random.Random = self._transport.stream
        self._ends: dict[str, ClientEnd] = {}
        self._servers: dict[str, Server] = {}
        self._links: dict[tuple[str, str], Link] = {}
        self._in_flight: dict[int, tuple[Message, ClientEnd, Server]] = {}
        self._reliable = True
        self._long_reordering = False
        self._long_delays = False
        self._duplicates = 0.0
        self._latency_ms = (0.0, 0.0)
        self._plain = True  # none of the above and no links: the fast path
        self._total_count = 0
        self._total_bytes = 0
        self._message_ids = 0

    # ---- ends and servers ------------------------------------------------------------------------------

    def make_end(self, name: str, owner: str = "") -> ClientEnd:
        if name in self._ends:
            raise ValueError(f"make_end(): there is an end called {name!r} already")
        end = self._ends[name] = ClientEnd(self, name, owner or name)
        return end

    def delete_end(self, name: str) -> None:
        """Forget an end. Calls under way on it get None."""
        end = self._end(name)
        self._drop_in_flight("the end was deleted", lambda _, e, __: e is end)
        end.enabled = False
        del self._ends[name]

    def connect(self, end_name: str, server_name: str) -> None:
        """Lead the end to that server, which need not exist yet. An end connects once and is not enabled by it."""
        self._end(end_name).server_name = server_name

    def enable(self, end_name: str, enabled: bool) -> None:
        """Plug the end in or out. A call that is being served when it is pulled gets no reply."""
        end = self._end(end_name)
        end.enabled = enabled
        if not enabled:
            self._drop_in_flight("the end was disabled", lambda _, e, __: e is end)

    def add_server(self, name: str, server: Server) -> None:
        self._servers[name] = server

    def delete_server(self, name: str) -> None:
        """The server is gone: it gets no more requests, and not even an answer under way arrives."""
        server = self._servers.pop(name, None)
        if server is not None:
            self._drop_in_flight("the server is gone", lambda _, __, s: s is server)

    def _end(self, name: str) -> ClientEnd:
        try:
            return self._ends[name]
        except KeyError:
            raise ValueError(f"there is no end called {name!r}; make_end() makes one") from None

    # ---- faults ------------------------------------------------------------------------------------------

    def reliable(self, yes: bool) -> None:
        """Unreliable: requests are up to 26 ms late, and 10 % of requests and of replies are lost."""
        self._reliable = yes
        self._replan()

    def long_reordering(self, yes: bool) -> None:
        """Two thirds of the replies are late by 200 ms and up to 2.2 s more."""
        self._long_reordering = yes
        self._replan()

    def long_delays(self, yes: bool) -> None:
        """A call that leads nowhere takes up to 7 s to say so, instead of up to 100 ms."""
        self._long_delays = yes

    def duplicates(self, probability: float) -> None:
        """That part of the requests arrives a second time, up to 200 ms later."""
        self._duplicates = _checked_probability("duplicates", probability)
        self._replan()

    def latency(self, min_ms: float, max_ms: float) -> None:
        """Requests and replies take that long each way, even when the network is reliable."""
        self._latency_ms = _checked_range("latency", min_ms, max_ms)
        self._replan()

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
        link = self._links.setdefault((source, target), Link())
        if latency_ms is not None:
            link.latency_ms = _checked_range("link", *latency_ms)
        if loss is not None:
            link.loss = _checked_probability("link", loss)
        if cut is not None:
            link.cut = cut
        self._replan()

    def partition(self, *groups: Iterable[str]) -> None:
        """Cut every link between servers of different groups, and only those. No groups: no cuts."""
        group_of = {name: number for number, group in enumerate(groups) for name in group}
        for link in self._links.values():
            link.cut = False
        for source in group_of:
            for target in group_of:
                if group_of[source] != group_of[target]:
                    self._links.setdefault((source, target), Link()).cut = True
        self._replan()

    def _replan(self) -> None:
        self._plain = (
            self._reliable
            and not self._long_reordering
            and not self._duplicates
            and self._latency_ms == (0.0, 0.0)
            and not self._links
        )

    # ---- counts ------------------------------------------------------------------------------------------

    def get_count(self, server_name: str) -> int:
        """Requests that reached this server since it was added."""
        server = self._servers.get(server_name)
        return 0 if server is None else server.count

    def get_total_count(self) -> int:
        """Requests sent, delivered or not."""
        return self._total_count

    def get_total_bytes(self) -> int:
        """Bytes of all requests sent and all replies delivered."""
        return self._total_bytes

    def cleanup(self) -> None:
        """Nothing is delivered any more; whoever waits for a reply gets None."""
        for name in list(self._servers):
            self.delete_server(name)
        for end in self._ends.values():
            end.enabled = False
        self._transport.close()

    # ---- a message's way -----------------------------------------------------------------------------------

    def call(self, end: ClientEnd, service_method: str, args: Any) -> Any:
        transport = self._transport
        request = labgob.encode(args)
        with transport.turn:
            self._message_ids = id_ = self._message_ids + 1
            self._total_count += 1
            self._total_bytes += len(request)
            message = Message(id_, end.owner, end.server_name or "", service_method, request, args.__class__)
            transport.emit("send", transport.caller_node(), message, crc32(request))
            server = self._servers.get(end.server_name) if end.enabled else None  # type: ignore[arg-type]
            if server is None:
                self._lose(message, "not connected" if end.enabled else "the end is disabled")
            else:
                self._in_flight[id_] = (message, end, server)
                if self._plain:
                    self._deliver(message, server)
                else:
                    self._send(message, end, server)
        transport.wait(message)
        answer = message.answered_by
        return None if answer is None else labgob.decode(answer.reply, answer.reply_type)  # type: ignore[arg-type]

    def _send(self, message: Message, end: ClientEnd, server: Server) -> None:
        """The way there, with all its dangers."""
        draw = self._random.random
        link = self._links.get((message.source, message.target))
        delay_ms = self._draw_latency(link)
        if not self._reliable:
            delay_ms += draw() * UNRELIABLE_DELAY_MS
            if draw() < UNRELIABLE_LOSS:
                self._lose(message, "lost request", delay_ms)
                return
        if link is not None:
            if link.cut:
                self._lose(message, "the link is cut")
                return
            if link.loss and draw() < link.loss:
                self._lose(message, "lost request", delay_ms)
                return
        if self._duplicates and draw() < self._duplicates:
            again_ms = delay_ms + draw() * DUPLICATE_DELAY_MS
            self._transport.later(int(again_ms * _MS), self._deliver_again, message.duplicate(), server)
        if delay_ms:
            self._transport.later(int(delay_ms * _MS), self._deliver, message, server)
        else:
            self._deliver(message, server)

    def _draw_latency(self, link: Link | None) -> float:
        low_ms, high_ms = self._latency_ms
        delay_ms = low_ms + (high_ms - low_ms) * self._random.random() if high_ms else 0.0
        if link is not None and link.latency_ms[1]:
            low_ms, high_ms = link.latency_ms
            delay_ms += low_ms + (high_ms - low_ms) * self._random.random()
        return delay_ms

    def _deliver_again(self, message: Message, server: Server) -> None:
        if self._servers.get(message.target) is server:
            self._transport.emit("duplicate", server.node, message, 0)
            self._deliver(message, server)

    def _deliver(self, message: Message, server: Server) -> None:
        if self._servers.get(message.target) is not server:
            return  # it went away meanwhile; delete_server() has told the caller
        server.count += 1
        self._transport.emit("deliver", server.node, message, 0)
        self._transport.serve(self._serve, message, server)

    def _serve(self, message: Message, server: Server) -> None:
        """Runs as a task of the server's node: decode, handle, encode."""
        try:
            handler = server.handler(message.service_method)
        except RpcError as error:
            raise RpcError(f"{message.source} called {message.service_method!r} of {message.target}: {error}") from None
        args_type = handler.args_type
        if message.args_type is not args_type and args_type.__class__ is type:
            raise RpcError(
                f"{message.source} called {message.service_method} of {message.target} with a "
                f"{message.args_type.__name__}; it takes a {args_type.__name__}"
            )
        reply = handler.method(labgob.decode(message.request, args_type))
        reply_type = handler.reply_type
        if reply.__class__ is not reply_type and reply_type.__class__ is type:
            raise RpcError(
                f"{message.service_method} of {message.target} returned {_named(reply)}; "
                f"its annotation promises a {reply_type.__name__}"
            )
        data = labgob.encode(reply)
        with self._transport.turn:
            self._answer(message, server, data, reply_type)

    def _answer(self, message: Message, server: Server, reply: bytes, reply_type: Any) -> None:
        """The way back, with all its dangers."""
        transport = self._transport
        message.reply_type = reply_type
        message.reply = reply
        transport.emit("answer", server.node, message, crc32(reply))
        if message.id not in self._in_flight:
            transport.emit("drop", server.node, message, 0, "nobody waits for this reply")
            return
        delay_ms = 0.0
        if not self._plain:
            draw = self._random.random
            link = self._links.get((message.target, message.source))
            if link is not None and link.cut:
                self._lose(message, "the link is cut")
                return
            delay_ms = self._draw_latency(link)
            if (not self._reliable and draw() < UNRELIABLE_LOSS) or (link is not None and draw() < link.loss):
                self._lose(message, "lost reply", delay_ms)
                return
            if self._long_reordering and draw() < REORDERED_REPLIES:
                # As MIT draws it: short extra delays are likelier than long ones.
                delay_ms += REORDER_DELAY_MS_MIN + draw() * (1 + draw() * REORDER_DELAY_MS_SPREAD)
        if delay_ms:
            transport.later(int(delay_ms * _MS), self._arrive, message, len(reply))
        else:
            self._arrive(message, len(reply))

    def _arrive(self, message: Message, size: int) -> None:
        waiting = self._in_flight.pop(message.id, None)
        if waiting is not None:
            self._total_bytes += size
            waiting[0].answered_by = message
            self._finish(waiting[0])

    def _lose(self, message: Message, why: str, after_ms: float = 0.0) -> None:
        """The caller will get None: at once if loss was drawn, else when it gives up on a dead end."""
        if not after_ms:
            after_ms = self._random.random() * (DEAD_END_LONG_MS if self._long_delays else DEAD_END_MS)
        self._transport.emit("drop", None, message, 0, why)
        waiting = self._in_flight.pop(message.id, None)
        self._transport.later(int(after_ms * _MS), self._finish, message if waiting is None else waiting[0])

    def _drop_in_flight(self, why: str, concerns: Callable[[Message, ClientEnd, Server], bool]) -> None:
        with self._transport.turn:
            for message, end, server in list(self._in_flight.values()):
                if concerns(message, end, server):
                    self._lose(message, why, 1 + self._random.random() * (NOTICE_GONE_MS - 1))

    def _finish(self, message: Message) -> None:
        if not message.done:
            message.done = True
            self._transport.finish(message)


def _named(value: object) -> str:
    return "None" if value is None else f"a {type(value).__name__}"


def _checked_probability(name: str, value: float) -> float:
    if not 0 <= value <= 1:
        raise ValueError(f"{name}(): a probability must be 0..1, got {value}")
    return value


def _checked_range(name: str, low_ms: float, high_ms: float) -> tuple[float, float]:
    if not 0 <= low_ms <= high_ms:
        raise ValueError(f"{name}(): a latency needs 0 <= min_ms <= max_ms, got {low_ms} and {high_ms}")
    return (low_ms, high_ms)
