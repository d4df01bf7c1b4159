"""RPCs over TCP: the server's side. Who may connect, what each connection may do, and how requests are executed.

Promise: invalid data closes its connection, is counted, and is reported once for each kind of rejection; it never
reaches a handler. An exception in a handler is passed to the owner of the server. Not promised: any order among
requests, which are executed concurrently. tcp.py has the client's side and the messages.

Start at `TcpServer._welcome()`, then `_Connection.serve()`.
"""

from __future__ import annotations

import socket
import threading
import time
from collections import Counter
from collections.abc import Callable
from contextlib import suppress
from typing import Any

from labrpc.errors import RpcError
from labrpc.server import Server
from raftlab.cluster.streams import ConnectionBroken, FrameStream, Rejection
from raftlab.cluster.tcp import (
    CLIENT,
    HELLO_S,
    MAGIC,
    PEER_FRAME_MAX,
    Address,
    Credentials,
    Hello,
    TcpReply,
    TcpRequest,
    hellos,
    pack,
    requests,
    unpack,
)

CLIENT_FRAME_MAX = 1 << 20  # requests of clients are short
CALLS_MAX = 512  # on one connection at once; more wait unread
IDLE_MAX = 8  # threads of a connection that are kept for its next calls
CONNECTIONS_MAX = 1024


class TcpServer:
    """Serves a labrpc.Server's services at one address, from start() on.

    `for_peers`: the services that only peers of the same cluster may call. `failed` is called with an exception in a
    handler, which must not be ignored; `served` after every executed call; `greeted` with each connection's Hello.
    """

    def __init__(
        self,
        server: Server,
        address: Address,
        credentials: Credentials,
        *,
        for_peers: frozenset[str] = frozenset({"Raft"}),
        log: Callable[[str], None] = lambda text: None,
        failed: Callable[[BaseException], None],
        served: Callable[[str, Any], None] = lambda service_method, args: None,
        greeted: Callable[[Hello], None] = lambda hello: None,
    ) -> None:
        credentials.check(address)
        self._server = server
        self._credentials = credentials
        self._context = None if credentials.tls is None else credentials.tls.context(server_side=True)
        self._for_peers = for_peers
        self._log = log
        self._failed = failed
        self._served = served
        self._greeted = greeted
        self.refused: Counter[Rejection] = Counter()  # closed connections, by reason
        self._mu = threading.Lock()
        self._streams: set[FrameStream] = set()
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
        """Accept connections, some of which may be waiting already."""
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
                    self._reject(Rejection.TOO_MANY, f"a connection could not be accepted: {error.strerror}")
                    time.sleep(0.1)  # too many open files, most likely: wait until some are closed
                continue
            if len(self._streams) >= CONNECTIONS_MAX:
                self._reject(
                    Rejection.TOO_MANY, f"there are already {CONNECTIONS_MAX:,} connections, and more are not allowed"
                )
                sock.close()
                continue
            try:
                stream = FrameStream(sock, self._context, limit=len(MAGIC))
            except OSError:
                sock.close()  # gone already
                continue
            with self._mu:
                self._streams.add(stream)
            threading.Thread(target=self._welcome, args=(stream, source[0]), daemon=True).start()

    def _welcome(self, stream: FrameStream, source: str) -> None:
        """Read the first frames: who is calling?"""
        connection = None
        try:
            stream.handshake()
            if stream.receive(within_s=HELLO_S) != MAGIC:
                raise ConnectionBroken("it does not begin like a connection of this cluster", Rejection.GARBAGE)
            stream.limit = CLIENT_FRAME_MAX
            hello = unpack(hellos, stream.receive(within_s=HELLO_S))
            ours = self._credentials.hello.cluster
            if hello.peer != CLIENT and hello.cluster != ours:
                reason = (
                    f"peer {hello.peer} there was started with different --peers than this one: {hello.cluster}, not "
                    f"{ours}"
                )
                self._ended(stream, source, ConnectionBroken(reason, Rejection.OTHER_CLUSTER), TcpReply(0, b"", reason))
                return
            stream.send(pack(TcpReply(0, b"")))
            if hello.peer != CLIENT:
                stream.limit = PEER_FRAME_MAX
            self._greeted(hello)
            connection = _Connection(self, stream, source, hello)
        except ConnectionBroken as error:
            self._ended(stream, source, error)
        if connection is not None:
            connection.serve()

    def _ended(
        self, stream: FrameStream, source: str, error: ConnectionBroken, final_reply: TcpReply | None = None
    ) -> None:
        if error.rejection is not None and not self._closed:
            self._reject(error.rejection, f"closed a connection from {source}: {error}")
        if final_reply is not None:
            with suppress(ConnectionBroken):
                stream.send(pack(final_reply))
        stream.release()
        with self._mu:
            self._streams.discard(stream)

    def _reject(self, rejection: Rejection, text: str) -> None:
        self.refused[rejection] += 1
        if self.refused[rejection] == 1:
            self._log(f"{text} (further cases are counted, but not reported)")


class _Connection:
    """One connection to serve. One of its threads receives; the others execute the requests that they have received.

    The thread that receives a request also executes it, so it does not have to wake another one.
    """

    def __init__(self, owner: TcpServer, stream: FrameStream, source: str, hello: Hello) -> None:
        self._owner = owner
        self._stream = stream
        self._source = source
        self._hello = hello
        self._receiving = threading.Lock()
        self._mu = threading.Lock()  # guards what follows
        self._idle = 0  # threads that receive, or wait to receive
        self._busy = 0
        self._over = False

    def serve(self) -> None:
        """Serve until the connection is broken."""
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
            self._execute(request)
            with self._mu:
                self._busy -= 1
                if self._idle >= IDLE_MAX:
                    return
                self._idle += 1

    def _receive(self) -> TcpRequest | None:
        try:
            return unpack(requests, self._stream.receive())
        except ConnectionBroken as error:
            self._owner._ended(self._stream, self._source, error)
            return None

    def _execute(self, request: TcpRequest) -> None:
        owner = self._owner
        service = request.service_method.rpartition(".")[0]
        try:
            if service in owner._for_peers and self._hello.peer == CLIENT:
                raise RpcError(f"only peers may call {request.service_method}")
            handler, args = owner._server.read(request.service_method, request.args, "", "a caller", "this server")
        except RpcError as error:
            owner._reject(Rejection.GARBAGE, f"an invalid call from {self._source}: {error}")
            self._send(TcpReply(request.id, b"", str(error)))
            self._stream.close()
            return
        try:
            reply = owner._server.run(handler, args, request.service_method, "this server")
        except BaseException as error:
            owner._failed(error)
            return
        assert reply is not None  # no Server is marked as killed here: the process ends
        self._send(TcpReply(request.id, reply))
        owner._served(request.service_method, args)

    def _send(self, reply: TcpReply) -> None:
        try:
            self._stream.send(pack(reply))
        except ConnectionBroken as error:
            self._stream.close()
            if error.rejection is not None:
                self._owner._reject(error.rejection, f"closed a connection from {self._source}: {error}")
