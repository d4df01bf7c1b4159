"""The same call() over TCP: for peers and services that are real processes.

    TcpServer(server, Address("127.0.0.1", 7001), credentials, failed=...).start()  # a labrpc.Server, as ever
    line = Line(Address("127.0.0.1", 7002), credentials)
    reply = TcpEnd(line, server).call("Raft.request_vote", args)

Promise: call() returns the reply, or None when the connection is lost or no reply has come in time. One connection
leads from a process to another, with any number of calls on it at once; when it is gone it is made anew, after pauses
that grow, and whoever calls meanwhile hears so at once. Whatever comes in that is not ours closes its connection, is
counted, and is said once. Only loopback addresses are used without TLS. Not promised: that a request whose reply is
lost was not carried out, nor any order among calls.

A connection begins with MAGIC, then a Hello; after that there are Requests one way and Replies the other. Frames are
streams.py's, what is in them is msgspec's. Start at `Line.call()`; the server's side is tcp_server.py.
"""

from __future__ import annotations

import ipaddress
import itertools
import socket
import threading
import time
from collections.abc import Callable
from typing import Any, NamedTuple, TypeVar

import msgspec

from labgob import DecodeError, decode, encode
from labrpc.errors import RpcError
from labrpc.server import Server
from raftlab.cluster.streams import Broken, Stream, Tls, Trouble

T = TypeVar("T")

MAGIC = b"raftlab 1 over tcp"
CLIENT = -1  # who is no peer

CONNECT_S = 1.0
HELLO_S = 5.0
CALL_S = 3.0
PAUSE_S = (0.05, 5.0)  # after a failed connection: the first, and the longest

# A snapshot travels in one frame, between peers.
PEER_FRAME_MAX = 256 << 20


class Address(NamedTuple):
    host: str
    port: int

    def __str__(self) -> str:
        return f"[{self.host}]:{self.port}" if ":" in self.host else f"{self.host}:{self.port}"

    @property
    def is_loopback(self) -> bool:
        if self.host == "localhost":
            return True
        try:
            return ipaddress.ip_address(self.host).is_loopback
        except ValueError:
            return False


class Hello(msgspec.Struct, array_like=True, frozen=True):
    """Who calls: `peer` of `cluster`, or a client, which may not know its name."""

    cluster: str = ""
    peer: int = CLIENT


class Request(msgspec.Struct, array_like=True, frozen=True, gc=False):
    id: int
    service_method: str
    args: bytes


class Reply(msgspec.Struct, array_like=True, frozen=True, gc=False):
    id: int
    reply: bytes
    error: str = ""  # what is wrong with the request, if it can never work


pack = msgspec.msgpack.Encoder().encode
hellos = msgspec.msgpack.Decoder(Hello)
requests = msgspec.msgpack.Decoder(Request)
replies = msgspec.msgpack.Decoder(Reply)


def unpack(decoder: msgspec.msgpack.Decoder[T], body: bytes) -> T:
    try:
        return decoder.decode(body)
    except (msgspec.MsgspecError, ValueError, RecursionError) as error:  # ValueError: a str that is no UTF-8
        raise Broken(f"what came is none of our messages: {error}", Trouble.GARBAGE) from None


class Credentials(NamedTuple):
    """Who we are to others, and how both sides prove it."""

    hello: Hello = Hello()
    tls: Tls | None = None

    def check(self, address: Address) -> None:
        if self.tls is None and not address.is_loopback:
            raise RpcError(
                f"{address} can be reached from other machines, and anybody there could give orders: use 127.0.0.1, "
                "or give a certificate, its key and the authority that signs for all (TLS)"
            )


# ---- The caller's side -------------------------------------------------------------------------------------


class _Waiting:
    """One call that waits for its reply."""

    __slots__ = ("over", "reply")

    def __init__(self) -> None:
        self.over = threading.Lock()  # released when it is: cheaper than an Event
        self.over.acquire()
        self.reply: Reply | None = None


class Line:
    """The connection from this process to one server. Made when first used."""

    def __init__(
        self,
        address: Address,
        credentials: Credentials,
        *,
        say: Callable[[str], None] = lambda text: None,
        name: str = "",
        timeout_s: float = CALL_S,
    ) -> None:
        credentials.check(address)
        self.address = address
        self.timeout_s = timeout_s
        self._credentials = credentials
        self._context = None if credentials.tls is None else credentials.tls.context(server_side=False)
        self._say = say
        self._name = name or str(address)
        self._ids = itertools.count(1)
        self._connecting = threading.Lock()  # whoever has it makes the connection; others wait for that
        self._mu = threading.Lock()  # guards what follows
        self._stream: Stream | None = None
        self._waiting: dict[int, _Waiting] = {}
        self._pause_s = 0.0
        self._not_before_s = 0.0
        self._lost = False  # and that was said
        self._closed = False

    def call(self, service_method: str, args: bytes) -> Reply | None:
        stream = self._stream or self._connect()
        if stream is None:
            return None
        call_id = next(self._ids)
        body = pack(Request(call_id, service_method, args))
        if len(body) > PEER_FRAME_MAX:
            raise RpcError(
                f"{service_method} with {len(args):,} bytes to {self._name}: a frame has at most {PEER_FRAME_MAX:,}"
            )
        waiting = _Waiting()
        with self._mu:
            if self._stream is not stream:
                return None
            self._waiting[call_id] = waiting
        try:
            stream.send(body)
            waiting.over.acquire(timeout=self.timeout_s)
        except Broken:
            stream.close()
        finally:
            self._waiting.pop(call_id, None)
        return waiting.reply

    def retry_now(self) -> None:
        """The other side is alive, as we know from elsewhere: the next call need not wait for the pause's end."""
        self._not_before_s = 0.0

    @property
    def is_up(self) -> bool:
        return self._stream is not None

    def connect(self) -> bool:
        """Before anybody calls; whether it worked."""
        return self._connect() is not None

    def close(self) -> None:
        with self._mu:
            self._closed = True
            stream = self._stream
        if stream is not None:
            stream.close()

    def _connect(self) -> Stream | None:
        if time.monotonic() < self._not_before_s:
            return None
        with self._connecting:
            if self._stream is not None or time.monotonic() < self._not_before_s or self._closed:
                return self._stream
            try:
                stream = self._open()
            except (Broken, OSError) as error:
                self._failed(str(error.strerror if isinstance(error, OSError) and error.strerror else error))
                return None
            with self._mu:
                self._stream = stream
                self._pause_s = 0.0
            if self._lost:
                self._say(f"{self._name} is back")
                self._lost = False
            threading.Thread(target=self._read, args=(stream,), name=f"replies of {self._name}", daemon=True).start()
            return stream

    def _open(self) -> Stream:
        sock = socket.create_connection(self.address, timeout=CONNECT_S)
        stream = Stream(
            sock,
            self._context,
            limit=PEER_FRAME_MAX,
            hostname=self.address.host if self._context is not None else None,
        )
        try:
            stream.shake_hands()
            stream.send(MAGIC)
            stream.send(pack(self._credentials.hello))
            answer = unpack(replies, stream.receive(within_s=min(HELLO_S, self.timeout_s)))
        except Broken:
            stream.release()
            raise
        if answer.error:
            stream.release()
            raise Broken(answer.error)
        return stream

    def _failed(self, why: str) -> None:
        # Caller holds _connecting.
        self._pause_s = min(max(2 * self._pause_s, PAUSE_S[0]), PAUSE_S[1])
        self._not_before_s = time.monotonic() + self._pause_s
        if not self._lost:
            self._lost = True
            self._say(f"{self._name} cannot be reached: {why} (tried again quietly until it is back)")

    def _read(self, stream: Stream) -> None:
        try:
            while True:
                reply = unpack(replies, stream.receive())
                waiting = self._waiting.pop(reply.id, None)
                if waiting is not None:
                    waiting.reply = reply
                    waiting.over.release()
        except Broken as error:
            why = str(error)
        with self._mu:
            self._stream = None
            lost, self._waiting = self._waiting, {}
            closed = self._closed
        for waiting in lost.values():
            waiting.over.release()
        stream.release()
        if not closed:
            with self._connecting:
                self._failed(why)


class TcpEnd:
    """What ClientEnd is in a simulation. `home` knows the reply's type, for it offers, or could offer, the same."""

    def __init__(self, line: Line, home: Server, heard: Callable[[str, Any, Any], None] | None = None) -> None:
        """`heard`: told of every call that was answered, with its arguments and the reply."""
        self._line = line
        self._home = home
        self._heard = heard

    def call(self, service_method: str, args: Any) -> Any:
        answer = self._line.call(service_method, encode(args))
        if answer is None:
            return None
        if answer.error:
            raise RpcError(f"{self._line.address}: {answer.error}")
        handler = self._home.handlers.get(service_method) or self._home.find_handler(service_method)
        try:
            told = decode(answer.reply, handler.reply_type)
        except DecodeError as error:
            raise RpcError(f"{service_method} of {self._line.address} returned what cannot be read: {error}") from error
        if self._heard is not None:
            self._heard(service_method, args, told)
        return told
