"""The fork server and the peer processes, as seen by the supervisor. Only frames; supervisor.py interprets them.

Promise: a process that has ended, does not reply or sends invalid frames raises an exception; no wait is endless.
Start at `ForkServer`.
"""

from __future__ import annotations

import ctypes
import os
import select
import signal
import socket
import subprocess
from collections.abc import Mapping
from contextlib import suppress
from struct import pack
from typing import Any

import msgspec

from labsim import SimulationError
from raftlab.guest import protocol
from raftlab.guest.protocol import PeerSetup, TimeSlice, TimeSliceResult
from raftlab.harness.launcher import LoadError
from raftlab.layout import ROOT
from raftlab.sandbox import confinement

_START_LIMIT_S = 60.0
_END_LIMIT_S = 1.0
_decode_done = msgspec.msgpack.Decoder(TimeSliceResult).decode


class ForkServerLost(SimulationError):
    """The fork server has ended or cannot be started. Not caused by a peer."""


class PeerProcessKilled(SimulationError):
    """A peer process was killed from outside. The run has no result and must be repeated."""


class PeerProcess:
    """The connection to the process of one incarnation."""

    def __init__(self, fork_server: ForkServer, pid: int, fd: int, process: int) -> None:
        self._fork_server = fork_server
        self._pid = pid
        self._fd = fd
        self._process = process
        self._reader = protocol.FrameReader(fd)
        self.bytes_read = 0

    def set_up(self, setup: PeerSetup, slice_s: float) -> None:
        socket_ = socket.socket(fileno=os.dup(self._fd))
        socket_.setsockopt(socket.SOL_SOCKET, socket.SO_RCVTIMEO, pack("ll", int(slice_s), int(slice_s % 1 * 1e6)))
        socket_.setsockopt(socket.SOL_SOCKET, socket.SO_SNDTIMEO, pack("ll", int(slice_s), int(slice_s % 1 * 1e6)))
        socket_.close()
        self._write(protocol.encode_frame(setup))
        self._read()

    def run_slice(self, time_slice: TimeSlice, limit_s: float | None = None) -> TimeSliceResult:
        """Raises EOFError if the process has ended, TimeoutError if it does not reply, ValueError for an invalid reply.

        `limit_s`: a shorter limit, for queries that need no reply.
        """
        self._write(protocol.encode_frame(time_slice))
        if limit_s is not None and not select.select([self._fd], [], [], limit_s)[0]:
            raise TimeoutError
        return self._read()

    def _write(self, data: bytes) -> None:
        try:
            while data:
                data = data[os.write(self._fd, data) :]
        except BlockingIOError:
            raise TimeoutError from None
        except OSError:
            raise EOFError from None

    def _read(self) -> TimeSliceResult:
        try:
            data = self._reader.read()
            self.bytes_read += len(data)
            return _decode_done(data)
        except BlockingIOError:
            raise TimeoutError from None
        except OSError:
            raise EOFError from None

    def kill(self) -> None:
        """Kill the process, and close the connection."""
        if self._fd >= 0:
            with suppress(ProcessLookupError):
                signal.pidfd_send_signal(self._process, signal.SIGKILL)
            self.close()

    def close(self) -> None:
        os.close(self._fd)
        os.close(self._process)
        self._fd = self._process = -1

    def wait_exit(self) -> protocol.ProcessExit | None:
        """How it ended; None if it still runs, and has only closed its connection."""
        if not select.select([self._process], [], [], _END_LIMIT_S)[0]:
            return None
        return self._fork_server.wait_for(self._pid)


def _cpu_for_run() -> int:
    """The processor for supervisor and peer processes of a run.

    Only one of them runs at a time, and waking a process on another processor costs more than most time slices.
    Workers use different processors.
    """
    cpus = sorted(os.sched_getaffinity(0))
    worker = os.environ.get("RAFTLAB_WORKER") or os.environ.get("PYTEST_XDIST_WORKER", "").removeprefix("gw")
    if worker.isdecimal():
        return cpus[int(worker) % len(cpus)]
    return int(ctypes.CDLL(None).sched_getcpu())


class ForkServer:
    """The process that peer processes are forked from."""

    def __init__(self, files: Mapping[str, bytes], modules: Mapping[str, str], *, race: bool = False) -> None:
        """`files`: sources by path as shown to users. `modules`: path by module name."""
        if confinement.unreadable_path_error():
            raise ForkServerLost(confinement.unreadable_path_error())
        parent_end, child_end = socket.socketpair()
        self._process = subprocess.Popen(
            confinement.fork_server_command(),
            stdin=child_end.fileno(),
            stdout=subprocess.DEVNULL,
            stderr=subprocess.PIPE,
            env=confinement.environment(),
            cwd=ROOT,  # not /: all paths would be relative to it
            start_new_session=True,  # Ctrl-C must not reach it
        )
        child_end.close()
        self._socket = parent_end
        parent_end.settimeout(_START_LIMIT_S)
        self.cpu = _cpu_for_run()
        known = dict(files), dict(modules)
        setup_frame = protocol.ForkServerSetup(
            *known, confinement.syscall_filter(), self.cpu, confinement.sandbox_uid(), race=race
        )
        try:
            parent_end.sendall(protocol.encode_frame(setup_frame))
            self._read_frame(protocol.ForkServerReady)
        except OSError:
            _, text = self._end()
            raise ForkServerLost(f"the sandbox does not start: {text}") from None
        try:
            self._read_frame(protocol.ForkServerReady)
        except OSError:
            number, text = self._end()
            if number == signal.SIGKILL:
                raise ForkServerLost("the sandbox was killed while it compiled the peer") from None
            how = f"was ended by {signal.Signals(number).name}" if number else "did not finish"
            one = " or ".join(dict.fromkeys(modules.values()))
            raise LoadError(f"{one}: cannot be compiled: the compiler {how}") from None
        self._prefork_count = 0

    def _end(self) -> tuple[int, str]:
        """End it. Returns the signal that had ended it before (0: none), and its error output."""
        code = self._process.poll() if not select.select([self._socket], [], [], 0)[0] else self._process.wait()
        self._process.kill()
        _, output = self._process.communicate()
        self._socket.close()
        # bubblewrap reports a signal as a shell does: 128 + number.
        number = 0 if code is None else -code if code < 0 else max(code - 128, 0)
        return number, output.decode(errors="replace").strip()[-2000:] or "no error output"

    def prefork(self, number: int) -> None:
        """Have that many peer processes forked in advance."""
        self._prefork_count += number
        try:
            self._socket.sendall(protocol.FORK * number)
        except OSError:
            raise ForkServerLost("the fork server has ended") from None

    def take_process(self) -> PeerProcess:
        """A new peer process, before its set_up()."""
        if self._prefork_count < 1:
            self.prefork(1)
        try:
            data, fds, _, _ = socket.recv_fds(self._socket, protocol.PID_BYTES, 2)
        except OSError:
            data, fds = b"", []
        self._prefork_count -= 1
        if len(fds) != 2:
            raise ForkServerLost("the fork server has ended")
        return PeerProcess(self, int.from_bytes(data, "big"), *fds)

    def wait_for(self, pid: int) -> protocol.ProcessExit:
        # Processes that were ordered arrive first.
        spares = [self.take_process() for _ in range(self._prefork_count)]
        for spare in spares:
            spare.kill()
        try:
            self._socket.sendall(protocol.WAIT + pid.to_bytes(protocol.PID_BYTES, "big"))
            exited: protocol.ProcessExit = self._read_frame(protocol.ProcessExit)
            return exited
        except OSError:
            raise ForkServerLost("the fork server has ended") from None

    def _read_frame(self, type_: type[Any]) -> Any:
        head = self._exactly(protocol.LENGTH_BYTES)
        return msgspec.msgpack.decode(self._exactly(int.from_bytes(head, "big")), type=type_)

    def _exactly(self, size: int) -> bytes:
        data = b""
        while len(data) < size:
            more = self._socket.recv(size - len(data))
            if not more:
                raise ConnectionError
            data += more
        return data

    def close(self) -> None:
        """End the fork server and all its peer processes."""
        self._socket.close()
        try:
            # It ends when its socket is closed, and so do the peer processes.
            self._process.wait(_END_LIMIT_S)
        except subprocess.TimeoutExpired:
            self._process.kill()
            self._process.wait()
        if self._process.stderr is not None:
            self._process.stderr.close()
