"""Frames over a TCP connection, with or without TLS; tcp.py builds on them.

A frame is its length in four bytes, then that many bytes. Promise: one thread at a time may receive while any number of
threads send, also under TLS. A frame that is longer than the limit, or comes too slowly, raises ConnectionBroken before
it uses memory; so does a receiver that stops reading. The content of frames is not interpreted.

Start at `FrameStream.receive()`.
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

# The time for a frame, from its first byte on; a large frame gets more.
FRAME_S = 10.0
BYTES_PER_S_MIN = 1 << 20
# How long the other side may read nothing.
SEND_S = 5.0
# TLS: from the connection to the first frame.
HANDSHAKE_S = 5.0


class Rejection(StrEnum):
    """Why a connection is closed: what the other side has done wrong."""

    GARBAGE = "garbage"
    TOO_LARGE = "too large"
    TOO_SLOW = "too slow"
    PARTIAL_FRAME = "half a frame"
    NO_CERTIFICATE = "no certificate"
    OTHER_CLUSTER = "another cluster"
    TOO_MANY = "too many connections"


class ConnectionBroken(Exception):
    """The connection cannot be used any more; the text says why. Without `rejection`, the other side has left."""

    def __init__(self, reason: str, rejection: Rejection | None = None) -> None:
        super().__init__(reason)
        self.rejection = rejection


class Tls(NamedTuple):
    """How both sides authenticate: each has a certificate that the other's authority has signed."""

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


class FrameStream:
    """One connection."""

    def __init__(
        self,
        sock: socket.socket,
        context: ssl.SSLContext | None = None,
        *,
        limit: int,
        hostname: str | None = None,
    ) -> None:
        """`hostname`: the server's name, on the client's side."""
        sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        sock.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)
        self.limit = limit  # of a frame that comes in
        self._sock = sock
        # The same connection with its own time limit: a receiver may wait forever, a sender may not.
        self._sending = sock.dup()
        self._sending.settimeout(SEND_S)
        self._send_lock = threading.Lock()  # of those who send
        self._buffer = bytearray()
        self._closed = False  # by ourselves
        self._tls: ssl.SSLObject | None = None
        self._tls_mu = threading.Lock()  # OpenSSL's objects are for one thread at a time; never kept while waiting
        if context is not None:
            self._tls_in, self._tls_out = ssl.MemoryBIO(), ssl.MemoryBIO()
            self._tls = context.wrap_bio(
                self._tls_in, self._tls_out, server_side=hostname is None, server_hostname=hostname
            )

    def handshake(self) -> None:
        """TLS: wait until both sides have authenticated."""
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
                    self._tls_in.write(self._receive_some(until_s) or self._gone())
        except ssl.SSLError as error:
            with suppress(OSError):
                self._flush()  # send the alert with the reason
            reason = error.verify_message if isinstance(error, ssl.SSLCertVerificationError) else error.reason or error
            raise ConnectionBroken(f"TLS handshake failed: {reason}", Rejection.NO_CERTIFICATE) from None
        except OSError as error:
            raise ConnectionBroken(str(error)) from None
        self._flush()

    def send(self, body: bytes) -> None:
        """Send a frame. Raises ConnectionBroken; then frames may still be received."""
        frame = _LENGTH.pack(len(body)) + body
        with self._send_lock:
            try:
                if self._tls is None:
                    self._sending.sendall(frame)
                else:
                    with self._tls_mu:
                        self._tls.write(frame)
                    self._flush()
            except TimeoutError:
                self.close()
                raise ConnectionBroken(f"it has accepted no data for {SEND_S:.0f} s", Rejection.TOO_SLOW) from None
            except OSError as error:
                raise ConnectionBroken(str(error)) from None

    def receive(self, *, within_s: float | None = None) -> bytes:
        """The next frame. Raises ConnectionBroken. `within_s`: the time limit for the whole frame."""
        until_s = None if within_s is None else time.monotonic() + within_s
        length = _LENGTH.unpack(self._take(_LENGTH.size, until_s))[0]
        if length > self.limit:
            raise ConnectionBroken(
                f"a frame of {length:,} bytes; at most {self.limit:,} are allowed", Rejection.TOO_LARGE
            )
        if until_s is None:
            until_s = time.monotonic() + FRAME_S + length / BYTES_PER_S_MIN
        return self._take(length, until_s)

    def _take(self, size: int, until_s: float | None) -> bytes:
        while len(self._buffer) < size:
            if until_s is None and self._buffer:
                until_s = time.monotonic() + FRAME_S  # a frame has begun
            data = self._read(until_s)
            if not data:
                self._gone()
            self._buffer += data
        taken = bytes(memoryview(self._buffer)[:size])
        del self._buffer[:size]
        return taken

    def _gone(self) -> bytes:
        if self._buffer and not self._closed:
            raise ConnectionBroken(
                f"it was closed in the middle of a frame, after {len(self._buffer)} bytes", Rejection.PARTIAL_FRAME
            )
        raise ConnectionBroken("it was closed")

    def _read(self, until_s: float | None) -> bytes:
        """Some bytes, decrypted under TLS; empty if the connection is closed."""
        while self._tls is not None:
            try:
                with self._tls_mu:
                    return self._tls.read(_CHUNK)
            except ssl.SSLWantReadError:
                raw = self._receive_some(until_s)
            except ssl.SSLZeroReturnError:
                return b""
            except ssl.SSLError as error:
                raise ConnectionBroken(f"no TLS: {error.reason or error}", Rejection.NO_CERTIFICATE) from None
            if not raw:
                return b""
            with self._tls_mu:
                self._tls_in.write(raw)
        return self._receive_some(until_s)

    def _receive_some(self, until_s: float | None) -> bytes:
        try:
            while True:
                # Never None: that would block the senders too, which share the connection's flags.
                left_s = 3600.0 if until_s is None else until_s - time.monotonic()
                self._sock.settimeout(max(left_s, 0.001))
                try:
                    return self._sock.recv(_CHUNK)
                except TimeoutError:
                    if until_s is not None:
                        raise ConnectionBroken("an incomplete frame", Rejection.TOO_SLOW) from None
        except OSError as error:
            raise ConnectionBroken(str(error)) from None

    def _flush(self) -> None:
        """TLS: send what OpenSSL has written. Caller holds _send_lock, or no other thread sends."""
        with self._tls_mu:
            data = self._tls_out.read()
        if data:
            self._sending.sendall(data)

    def close(self) -> None:
        """Stop sending and receiving; waiting threads get ConnectionBroken. The receiver then calls release()."""
        self._closed = True
        with suppress(OSError):  # not connected any more
            self._sock.shutdown(socket.SHUT_RDWR)

    def release(self) -> None:
        """Free the sockets. Called by the receiver at its end."""
        self.close()
        with self._send_lock:
            self._sending.close()
            self._sock.close()
