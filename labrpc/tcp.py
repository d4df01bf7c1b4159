"""The same call() over TCP: for peers and services that are real processes.

    server = TcpServer(server, Address("127.0.0.1", 7001), credentials)    # a labrpc.Server, as in a simulation
    line = Line(Address("127.0.0.1", 7002), credentials)
    reply = TcpEnd(line, home=server).call("Raft.request_vote", args)

Promise: call() returns the reply, or None when the connection is lost or no reply has come in time. One connection
leads from a process to another, with any number of calls on it at once; when it is gone it is made anew, after pauses
that grow, and whoever calls meanwhile hears so at once. Whatever comes in that is not ours closes its connection, is
counted, and is said once. Only loopback addresses are used without TLS. Not promised: that a request whose reply is
lost was not carried out, nor any order among calls.

A connection begins with MAGIC, then a Hello; after that there are Requests one way and Replies the other. Frames are
streams.py's, what is in them is msgspec's. Start at `Line.call()`, then `TcpServer._serve()`.
"""

from __future__ import annotations

import ipaddress
import itertools
import socket
import threading
import time
from collections import Counter
from collections.abc import Callable
from contextlib import suppress
from typing import Any, NamedTuple, TypeVar

import msgspec

from labgob import DecodeError, decode, encode
from labrpc.errors import RpcError
from labrpc.server import Server
from labrpc.streams import Broken, Stream, Tls, Trouble

T = TypeVar("T")

MAGIC = b"raftlab 1 over tcp"
CLIENT = -1  # who is no peer

CONNECT_S = 1.0
HELLO_S = 5.0
CALL_S = 3.0
PAUSE_S = (0.05, 5.0)  # after a failed connection: the first, and the longest

# A snapshot travels in one frame, between peers; what clients say is short.
PEER_FRAME_MAX = 256 << 20
CLIENT_FRAME_MAX = 1 << 20
CALLS_MAX = 512  # on one connection at once; more wait unread
IDLE_MAX = 8  # threads of a connection that are kept for its next calls
CONNECTIONS_MAX = 1024


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


_pack = msgspec.msgpack.Encoder().encode
_hellos = msgspec.msgpack.Decoder(Hello)
_requests = msgspec.msgpack.Decoder(Request)
_replies = msgspec.msgpack.Decoder(Reply)


def _unpack(decoder: msgspec.msgpack.Decoder[T], body: bytes) -> T:
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
        body = _pack(Request(call_id, service_method, args))
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
            stream.send(_pack(self._credentials.hello))
            answer = _unpack(_replies, stream.receive(within_s=min(HELLO_S, self.timeout_s)))
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
                reply = _unpack(_replies, stream.receive())
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


# ---- The server's side -------------------------------------------------------------------------------------


class TcpServer:
    """Serves a labrpc.Server's services at one address, from start() on.

    `for_peers`: the services that only peers of the same cluster may call. `failed` is told of an exception in a
    handler, which must not be passed over. `served` hears of every call that was carried out, `greeted` of everybody
    who connects.
    """

    def __init__(
        self,
        server: Server,
        address: Address,
        credentials: Credentials,
        *,
        for_peers: frozenset[str] = frozenset({"Raft"}),
        say: Callable[[str], None] = lambda text: None,
        failed: Callable[[BaseException], None],
        served: Callable[[str, Any], None] = lambda service_method, args: None,
        greeted: Callable[[Hello], None] = lambda hello: None,
    ) -> None:
        credentials.check(address)
        self._server = server
        self._credentials = credentials
        self._context = None if credentials.tls is None else credentials.tls.context(server_side=True)
        self._for_peers = for_peers
        self._say = say
        self._failed = failed
        self._served = served
        self._greeted = greeted
        self.refused: Counter[Trouble] = Counter()  # connections, by why they were closed
        self._mu = threading.Lock()
        self._streams: set[Stream] = set()
        self._closed = False
        family = socket.AF_INET6 if ":" in address.host else socket.AF_INET
        self._listener = socket.socket(family, socket.SOCK_STREAM)
        try:
            self._listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            self._listener.bind(address)
            self._listener.listen(128)
        except OSError:
            self._listener.close()
            raise
        self.address = Address(address.host, self._listener.getsockname()[1])
        self._accepting = threading.Thread(target=self._accept, name=f"at {self.address}", daemon=True)

    def start(self) -> None:
        """Let callers in, who may have been waiting since this was made."""
        self._accepting.start()

    def close(self) -> None:
        with self._mu:
            self._closed = True
            streams = list(self._streams)
        with suppress(OSError):
            self._listener.shutdown(socket.SHUT_RDWR)
        self._listener.close()
        for stream in streams:
            stream.close()
        if self._accepting.ident is not None:
            self._accepting.join(1.0)

    def _accept(self) -> None:
        while not self._closed:
            try:
                sock, source = self._listener.accept()
            except OSError as error:
                if not self._closed:
                    self._trouble(Trouble.CROWD, f"a connection could not be taken: {error.strerror}")
                    time.sleep(0.1)  # no more files, most likely: they come back when others leave
                continue
            if len(self._streams) >= CONNECTIONS_MAX:
                self._trouble(Trouble.CROWD, f"there are {CONNECTIONS_MAX:,} connections, and no room for more")
                sock.close()
                continue
            try:
                stream = Stream(sock, self._context, limit=len(MAGIC))
            except OSError:
                sock.close()  # gone already
                continue
            with self._mu:
                self._streams.add(stream)
            threading.Thread(target=self._welcome, args=(stream, source[0]), daemon=True).start()

    def _welcome(self, stream: Stream, source: str) -> None:
        """The first words: who is it?"""
        connection = None
        try:
            stream.shake_hands()
            if stream.receive(within_s=HELLO_S) != MAGIC:
                raise Broken("it does not begin as our connections do", Trouble.GARBAGE)
            stream.limit = CLIENT_FRAME_MAX
            hello = _unpack(_hellos, stream.receive(within_s=HELLO_S))
            ours = self._credentials.hello.cluster
            if hello.peer != CLIENT and hello.cluster != ours:
                why = (
                    f"peer {hello.peer} there was started with other --peers than this one: {hello.cluster}, not {ours}"
                )
                self._ended(stream, source, Broken(why, Trouble.FOREIGN), Reply(0, b"", why))
                return
            stream.send(_pack(Reply(0, b"")))
            if hello.peer != CLIENT:
                stream.limit = PEER_FRAME_MAX
            self._greeted(hello)
            connection = _Connection(self, stream, source, hello)
        except Broken as error:
            self._ended(stream, source, error)
        if connection is not None:
            connection.serve()

    def _ended(self, stream: Stream, source: str, error: Broken, last_words: Reply | None = None) -> None:
        if error.trouble is not None and not self._closed:
            self._trouble(error.trouble, f"closed a connection from {source}: {error}")
        if last_words is not None:
            with suppress(Broken):
                stream.send(_pack(last_words))
        stream.release()
        with self._mu:
            self._streams.discard(stream)

    def _trouble(self, trouble: Trouble, text: str) -> None:
        self.refused[trouble] += 1
        if self.refused[trouble] == 1:
            self._say(f"{text} (the like is only counted from now on)")


class _Connection:
    """One connection to serve. Its threads take turns: one receives, the others carry out what they have received.

    So a request is carried out by the thread that received it, which need not wake another first.
    """

    def __init__(self, owner: TcpServer, stream: Stream, source: str, hello: Hello) -> None:
        self._owner = owner
        self._stream = stream
        self._source = source
        self._hello = hello
        self._receiving = threading.Lock()
        self._mu = threading.Lock()  # guards what follows
        self._idle = 0  # threads that receive, or wait for their turn
        self._busy = 0
        self._over = False

    def serve(self) -> None:
        """Until the connection is broken."""
        with self._mu:
            self._idle += 1
        while True:
            with self._receiving:
                if self._over:
                    return
                request = self._receive()
                if request is None:
                    self._over = True
                    return
                with self._mu:
                    self._idle -= 1
                    self._busy += 1
                    another = not self._idle and self._busy < CALLS_MAX
                if another:
                    threading.Thread(target=self.serve, daemon=True).start()
            self._carry_out(request)
            with self._mu:
                self._busy -= 1
                if self._idle >= IDLE_MAX:
                    return
                self._idle += 1

    def _receive(self) -> Request | None:
        try:
            return _unpack(_requests, self._stream.receive())
        except Broken as error:
            self._owner._ended(self._stream, self._source, error)
            return None

    def _carry_out(self, request: Request) -> None:
        owner = self._owner
        service = request.service_method.rpartition(".")[0]
        try:
            if service in owner._for_peers and self._hello.peer == CLIENT:
                raise RpcError(f"only peers may call {request.service_method}")
            handler, args = owner._server.read(request.service_method, request.args, "", "a caller", "this server")
        except RpcError as error:
            owner._trouble(Trouble.GARBAGE, f"a call from {self._source} that cannot work: {error}")
            self._send(Reply(request.id, b"", str(error)))
            self._stream.close()
            return
        try:
            reply = owner._server.run(handler, args, request.service_method, "this server")
        except BaseException as error:
            owner._failed(error)
            return
        self._send(Reply(request.id, reply))
        owner._served(request.service_method, args)

    def _send(self, reply: Reply) -> None:
        try:
            self._stream.send(_pack(reply))
        except Broken as error:
            self._stream.close()
            if error.trouble is not None:
                self._owner._trouble(error.trouble, f"closed a connection from {self._source}: {error}")
