"""Whole frames over one TCP connection, plain or under TLS: what tcp.py speaks on.

A frame is its length, in four bytes, and so many bytes. Promise: one thread at a time may receive and any number may
send, at once, also under TLS. A frame that is longer than the limit, or comes too slowly, raises Broken before
it can take any room; so does a receiver who takes nothing. Not promised: any meaning of the bytes.

Start at `Stream.receive()`.
"""

from __future__ import annotations

import socket
import ssl
import struct
import threading
import time
from contextlib import suppress
from enum import StrEnum
from typing import NamedTuple

_LENGTH = struct.Struct(">I")
_CHUNK = 1 << 18

# From its first byte on a frame has so long, and longer if it is large.
FRAME_S = 10.0
BYTES_PER_S_MIN = 1 << 20
# That the other side may take nothing of what is sent.
SEND_S = 5.0
# TLS: from the connection to the first frame.
HANDSHAKE_S = 5.0


class Trouble(StrEnum):
    """What somebody at the other side of a connection has done wrong."""

    GARBAGE = "garbage"
    TOO_LARGE = "too large"
    TOO_SLOW = "too slow"
    HALF = "half a frame"
    NO_CERTIFICATE = "no certificate"
    FOREIGN = "another cluster"
    CROWD = "too many connections"


class Broken(Exception):
    """The connection is of no use any more; the text says why. Without `trouble` the other side has just gone."""

    def __init__(self, why: str, trouble: Trouble | None = None) -> None:
        super().__init__(why)
        self.trouble = trouble


class Tls(NamedTuple):
    """How both sides prove who they are: each has a certificate that the other's authority has signed."""

    certificate: str
    key: str
    authority: str

    def context(self, *, server_side: bool) -> ssl.SSLContext:
        context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER if server_side else ssl.PROTOCOL_TLS_CLIENT)
        context.minimum_version = ssl.TLSVersion.TLSv1_3
        context.load_cert_chain(self.certificate, self.key)
        context.load_verify_locations(self.authority)
        context.verify_mode = ssl.CERT_REQUIRED
        return context


class Stream:
    """One connection."""

    def __init__(
        self,
        sock: socket.socket,
        context: ssl.SSLContext | None = None,
        *,
        limit: int,
        hostname: str | None = None,
    ) -> None:
        """`hostname`: of the server, if this is the client's side."""
        sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        sock.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)
        self.limit = limit  # of a frame that comes in
        self._sock = sock
        # The same connection with a time limit of its own: a receiver may wait for ever, a sender may not.
        self._sending = sock.dup()
        self._sending.settimeout(SEND_S)
        self._turn = threading.Lock()  # of those who send
        self._buffer = bytearray()
        self._closed = False  # by ourselves
        self._tls: ssl.SSLObject | None = None
        self._tls_mu = threading.Lock()  # OpenSSL's objects are for one thread at a time; never kept while waiting
        if context is not None:
            self._came, self._goes = ssl.MemoryBIO(), ssl.MemoryBIO()
            self._tls = context.wrap_bio(self._came, self._goes, server_side=hostname is None, server_hostname=hostname)

    def shake_hands(self) -> None:
        """TLS: until both sides know each other."""
        if self._tls is None:
            return
        until_s = time.monotonic() + HANDSHAKE_S
        try:
            while True:
                try:
                    self._tls.do_handshake()
                    break
                except ssl.SSLWantReadError:
                    self._flush()
                    self._came.write(self._receive_some(until_s) or self._gone())
        except ssl.SSLError as error:
            with suppress(OSError):
                self._flush()  # it says why
            why = error.verify_message if isinstance(error, ssl.SSLCertVerificationError) else error.reason or error
            raise Broken(f"no TLS handshake: {why}", Trouble.NO_CERTIFICATE) from None
        except OSError as error:
            raise Broken(str(error)) from None
        self._flush()

    def send(self, body: bytes) -> None:
        """A frame. Raises Broken; then others may still be on their way in."""
        frame = _LENGTH.pack(len(body)) + body
        with self._turn:
            try:
                if self._tls is None:
                    self._sending.sendall(frame)
                else:
                    with self._tls_mu:
                        self._tls.write(frame)
                    self._flush()
            except TimeoutError:
                self.close()
                raise Broken(f"it has taken nothing for {SEND_S:.0f} s", Trouble.TOO_SLOW) from None
            except OSError as error:
                raise Broken(str(error)) from None

    def receive(self, *, within_s: float | None = None) -> bytes:
        """The next frame. Raises Broken. `within_s`: it must be whole by then."""
        until_s = None if within_s is None else time.monotonic() + within_s
        length = _LENGTH.unpack(self._take(_LENGTH.size, until_s))[0]
        if length > self.limit:
            raise Broken(f"a frame of {length:,} bytes; at most {self.limit:,} are allowed", Trouble.TOO_LARGE)
        if until_s is None:
            until_s = time.monotonic() + FRAME_S + length / BYTES_PER_S_MIN
        return self._take(length, until_s)

    def _take(self, size: int, until_s: float | None) -> bytes:
        while len(self._buffer) < size:
            if until_s is None and self._buffer:
                until_s = time.monotonic() + FRAME_S  # somebody has begun
            data = self._read(until_s)
            if not data:
                self._gone()
            self._buffer += data
        taken = bytes(memoryview(self._buffer)[:size])
        del self._buffer[:size]
        return taken

    def _gone(self) -> bytes:
        if self._buffer and not self._closed:
            raise Broken(f"it was closed in the middle of a frame, after {len(self._buffer)} bytes", Trouble.HALF)
        raise Broken("it was closed")

    def _read(self, until_s: float | None) -> bytes:
        """Some bytes, under TLS decrypted; none: closed."""
        while self._tls is not None:
            try:
                with self._tls_mu:
                    return self._tls.read(_CHUNK)
            except ssl.SSLWantReadError:
                raw = self._receive_some(until_s)
            except ssl.SSLZeroReturnError:
                return b""
            except ssl.SSLError as error:
                raise Broken(f"no TLS: {error.reason or error}", Trouble.NO_CERTIFICATE) from None
            if not raw:
                return b""
            with self._tls_mu:
                self._came.write(raw)
        return self._receive_some(until_s)

    def _receive_some(self, until_s: float | None) -> bytes:
        try:
            while True:
                # Never None: then it would block the senders too, who share the connection's flags.
                left_s = 3600.0 if until_s is None else until_s - time.monotonic()
                self._sock.settimeout(max(left_s, 0.001))
                try:
                    return self._sock.recv(_CHUNK)
                except TimeoutError:
                    if until_s is not None:
                        raise Broken("a frame that does not come to its end", Trouble.TOO_SLOW) from None
        except OSError as error:
            raise Broken(str(error)) from None

    def _flush(self) -> None:
        """TLS: on the way with what is to be sent. Caller has the turn, or is alone."""
        with self._tls_mu:
            data = self._goes.read()
        if data:
            self._sending.sendall(data)

    def close(self) -> None:
        """Nothing more comes or goes; whoever waits in it gets Broken. Then somebody must release() it."""
        self._closed = True
        with suppress(OSError):  # not connected any more
            self._sock.shutdown(socket.SHUT_RDWR)

    def release(self) -> None:
        """By who receives, when that is over."""
        self.close()
        with self._turn:
            self._sending.close()
            self._sock.close()
