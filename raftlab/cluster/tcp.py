"""RPCs over TCP, for peers and services in real processes: the client's side.

    TcpServer(server, Address("127.0.0.1", 7001), credentials, failed=...).start()  # a labrpc.Server
    client = TcpClient(Address("127.0.0.1", 7002), credentials)
    reply = TcpEnd(client, server).call("Raft.request_vote", args)

Promise: call() returns the reply, or None if the connection is lost or no reply comes in time. One connection leads
from a process to another, with any number of concurrent calls. A lost connection is made again, with growing pauses,
and calls made in a pause return None at once. Invalid data closes its connection, is counted, and is reported once.
Only loopback addresses can be used without TLS. Not promised: that a request without a reply was not executed, nor any
order among calls.

A connection begins with MAGIC, then a Hello; then Requests go one way and Replies the other. streams.py has the frames;
their contents are msgspec's. Start at `TcpClient.call()`. The server's side is tcp_server.py.
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
from raftlab.cluster.streams import ConnectionBroken, FrameStream, Rejection, Tls

T = TypeVar("T")

MAGIC = b"raftlab 1 over tcp"
CLIENT = -1  # the number of a client, which is not a peer

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
    """The caller: `peer` of `cluster`, or a client, which may not know the cluster."""

    cluster: str = ""
    peer: int = CLIENT


class TcpRequest(msgspec.Struct, array_like=True, frozen=True, gc=False):
    id: int
    service_method: str
    args: bytes


class TcpReply(msgspec.Struct, array_like=True, frozen=True, gc=False):
    id: int
    reply: bytes
    error: str = ""  # why the request can never work


pack = msgspec.msgpack.Encoder().encode
hellos = msgspec.msgpack.Decoder(Hello)
requests = msgspec.msgpack.Decoder(TcpRequest)
replies = msgspec.msgpack.Decoder(TcpReply)


def unpack(decoder: msgspec.msgpack.Decoder[T], body: bytes) -> T:
    try:
        return decoder.decode(body)
    except (msgspec.MsgspecError, ValueError, RecursionError) as error:  # ValueError: a str that is not UTF-8
        raise ConnectionBroken(f"received an invalid message: {error}", Rejection.GARBAGE) from None


class Credentials(NamedTuple):
    """The identity of this process, and how both sides authenticate."""

    hello: Hello = Hello()
    tls: Tls | None = None

    def check(self, address: Address) -> None:
        if self.tls is None and not address.is_loopback:
            raise RpcError(
                f"{address} can be reached from other machines, whose users could send requests: use 127.0.0.1, or "
                "use TLS with a certificate, its key and the authority that signs all certificates"
            )


# ---- The caller's side ---------------------------------------------------------------------------------------


class _PendingReply:
    """A call that waits for its reply."""

    __slots__ = ("over", "reply")

    def __init__(self) -> None:
        self.over = threading.Lock()  # released at the end of the call: cheaper than an Event
        self.over.acquire()
        self.reply: TcpReply | None = None


class TcpClient:
    """The connection from this process to one server. Made when first used."""

    def __init__(
        self,
        address: Address,
        credentials: Credentials,
        *,
        log: Callable[[str], None] = lambda text: None,
        name: str = "",
        timeout_s: float = CALL_S,
    ) -> None:
        credentials.check(address)
        self.address = address
        self.timeout_s = timeout_s
        self._credentials = credentials
        self._context = None if credentials.tls is None else credentials.tls.context(server_side=False)
        self._log = log
        self._name = name or str(address)
        self._ids = itertools.count(1)
        self._connecting = threading.Lock()  # its holder makes the connection; others wait for it
        self._mu = threading.Lock()  # guards what follows
        self._stream: FrameStream | None = None
        self._waiting: dict[int, _PendingReply] = {}
        self._pause_s = 0.0
        self._not_before_s = 0.0
        self._lost = False  # and the loss was reported
        self._closed = False

    def call(self, service_method: str, args: bytes) -> TcpReply | None:
        stream = self._stream or self._connect()
        if stream is None:
            return None
        call_id = next(self._ids)
        body = pack(TcpRequest(call_id, service_method, args))
        if len(body) > PEER_FRAME_MAX:
            raise RpcError(
                f"{service_method} to {self._name}: its arguments may have at most {PEER_FRAME_MAX:,} bytes, got "
                f"{len(args):,}"
            )
        waiting = _PendingReply()
        with self._mu:
            if self._stream is not stream:
                return None
            self._waiting[call_id] = waiting
        try:
            stream.send(body)
            waiting.over.acquire(timeout=self.timeout_s)
        except ConnectionBroken:
            stream.close()
        finally:
            self._waiting.pop(call_id, None)
        return waiting.reply

    def retry_now(self) -> None:
        """The other side is known to be alive: do not wait for the end of the pause."""
        self._not_before_s = 0.0

    @property
    def is_up(self) -> bool:
        return self._stream is not None

    def connect(self) -> bool:
        """Connect before the first call. Returns whether it worked."""
        return self._connect() is not None

    def close(self) -> None:
        with self._mu:
            self._closed = True
            stream = self._stream
        if stream is not None:
            stream.close()

    def _connect(self) -> FrameStream | None:
        if time.monotonic() < self._not_before_s:
            return None
        with self._connecting:
            if self._stream is not None or time.monotonic() < self._not_before_s or self._closed:
                return self._stream
            try:
                stream = self._open()
            except (ConnectionBroken, OSError) as error:
                self._failed(str(error.strerror if isinstance(error, OSError) and error.strerror else error))
                return None
            with self._mu:
                self._stream = stream
                self._pause_s = 0.0
            if self._lost:
                self._log(f"{self._name} is back")
                self._lost = False
            threading.Thread(target=self._read, args=(stream,), name=f"replies of {self._name}", daemon=True).start()
            return stream

    def _open(self) -> FrameStream:
        sock = socket.create_connection(self.address, timeout=CONNECT_S)
        stream = FrameStream(
            sock,
            self._context,
            limit=PEER_FRAME_MAX,
            hostname=self.address.host if self._context is not None else None,
        )
        try:
            stream.handshake()
            stream.send(MAGIC)
            stream.send(pack(self._credentials.hello))
            answer = unpack(replies, stream.receive(within_s=min(HELLO_S, self.timeout_s)))
        except ConnectionBroken:
            stream.release()
            raise
        if answer.error:
            stream.release()
            raise ConnectionBroken(answer.error)
        return stream

    def _failed(self, reason: str) -> None:
        # Caller holds _connecting.
        self._pause_s = min(max(2 * self._pause_s, PAUSE_S[0]), PAUSE_S[1])
        self._not_before_s = time.monotonic() + self._pause_s
        if not self._lost:
            self._lost = True
            self._log(f"{self._name} cannot be reached: {reason} (retrying until it is back)")

    def _read(self, stream: FrameStream) -> None:
        try:
            while True:
                reply = unpack(replies, stream.receive())
                waiting = self._waiting.pop(reply.id, None)
                if waiting is not None:
                    waiting.reply = reply
                    waiting.over.release()
        except ConnectionBroken as error:
            reason = str(error)
        with self._mu:
            self._stream = None
            lost, self._waiting = self._waiting, {}
            closed = self._closed
        for waiting in lost.values():
            waiting.over.release()
        stream.release()
        if not closed:
            with self._connecting:
                self._failed(reason)


class TcpEnd:
    """The counterpart of ClientEnd. `home`: the caller's own server, whose methods have the reply types."""

    def __init__(
        self, client: TcpClient, home: Server, on_reply: Callable[[str, Any, Any], None] | None = None
    ) -> None:
        """`on_reply`: called with the method, arguments and reply of every answered call."""
        self._client = client
        self._home = home
        self._on_reply = on_reply

    def call(self, service_method: str, args: Any) -> Any:
        answer = self._client.call(service_method, encode(args))
        if answer is None:
            return None
        if answer.error:
            raise RpcError(f"{self._client.address}: {answer.error}")
        handler = self._home.handlers.get(service_method) or self._home.find_handler(service_method)
        try:
            decoded = decode(answer.reply, handler.reply_type)
        except DecodeError as error:
            raise RpcError(
                f"{service_method} of {self._client.address} returned a value that cannot be decoded: {error}"
            ) from error
        if self._on_reply is not None:
            self._on_reply(service_method, args, decoded)
        return decoded
