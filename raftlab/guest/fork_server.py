"""The fork server: all peer processes of a submission are forked from it. It runs none of the peer's code.

Its standard input is a socket to the supervisor. The first frame, a `ForkServerSetup`, has the peer's files, which are
compiled but not executed. After that, each byte is a command: FORK forks a peer process and sends its pid, socket and
pidfd; WAIT, followed by a pid, returns how that process ended. Peer processes are forked in advance and wait for their
`PeerSetup`. Each can write to its own socket and to nothing else.

Run as `python -m raftlab.guest.fork_server`. Start at `main()`.
"""

from __future__ import annotations

import ctypes
import gc
import importlib
import mmap
import os
import resource
import signal
import socket
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import fields, is_dataclass
from typing import TYPE_CHECKING, Any, NoReturn, get_args, get_origin, get_type_hints

import msgspec

import labgob
from labsim import guard
from raftlab.guest import scratch_files
from raftlab.guest.compiled_peer import CompiledPeer
from raftlab.guest.peer_process import SupervisorConnection, run_peer_process
from raftlab.guest.protocol import FORK, PID_BYTES, WAIT, ForkServerReady, ForkServerSetup, PeerSetup, ProcessExit
from raftlab.layout import PEER, PEER_FILES

if TYPE_CHECKING:
    from raftlab.races import RaceInstrumentation

_PR_SET_PDEATHSIG, _PR_SET_DUMPABLE, _PR_SET_NO_NEW_PRIVS, _PR_SET_SECCOMP = 1, 4, 38, 22
_SECCOMP_MODE_FILTER = 2
_COMPILE_BYTES = 1 << 30
_COMPILE_CPU_S = 20


class _SockFprog(ctypes.Structure):
    """struct sock_fprog"""

    _fields_ = (("length", ctypes.c_ushort), ("filter", ctypes.c_void_p))


class _Confinement:
    """Restricts a peer process before it runs any of the peer's code."""

    def __init__(self, filter_: bytes) -> None:
        self._libc = ctypes.CDLL(None, use_errno=True)
        self._initial_bytes = _address_space_bytes()
        self._filter = ctypes.create_string_buffer(filter_, len(filter_)) if filter_ else None
        if self._filter is not None:
            self._program = _SockFprog(len(filter_) // 8, ctypes.addressof(self._filter))

    def __call__(self, setup: PeerSetup) -> None:
        if setup.cpu_s:
            # First SIGXCPU, which can be caught; a second later SIGKILL.
            resource.setrlimit(resource.RLIMIT_CPU, (setup.cpu_s, setup.cpu_s + 1))
        if setup.memory_mb:
            most = self._initial_bytes + (setup.memory_mb << 20)
            resource.setrlimit(resource.RLIMIT_AS, (most, most))
        for kind, limit in (
            (resource.RLIMIT_FSIZE, scratch_files.FILE_BYTES_MAX),
            (resource.RLIMIT_NOFILE, scratch_files.FILES_MAX),
            (resource.RLIMIT_NPROC, 0),
            (resource.RLIMIT_CORE, 0),
        ):
            resource.setrlimit(kind, (limit, limit))
        self._prctl(_PR_SET_NO_NEW_PRIVS, 1)
        if self._filter is not None:
            self._prctl(_PR_SET_SECCOMP, _SECCOMP_MODE_FILTER, ctypes.byref(self._program))

    def after_fork(self) -> None:
        self._prctl(_PR_SET_DUMPABLE, 0)
        self._prctl(_PR_SET_PDEATHSIG, int(signal.SIGKILL))

    def _prctl(self, option: int, *values: object) -> None:
        if self._libc.prctl(option, *values, *[0] * (4 - len(values))) != 0:
            raise OSError(ctypes.get_errno(), f"prctl({option})")


def main() -> NoReturn:
    supervisor = socket.socket(fileno=os.dup(0))
    devnull = os.open(os.devnull, os.O_RDWR)
    for fd in (0, 1):
        os.dup2(devnull, fd)
    connection = SupervisorConnection(supervisor.fileno())
    setup_frame = connection.read(msgspec.msgpack.Decoder(ForkServerSetup))
    os.sched_setaffinity(0, {setup_frame.cpu})
    if setup_frame.uid and os.geteuid() == 0:
        os.setgroups([])
        os.setresgid(setup_frame.uid, setup_frame.uid, setup_frame.uid)
        os.setresuid(setup_frame.uid, setup_frame.uid, setup_frame.uid)
    connection.write(ForkServerReady())
    with _compiler_limits():
        code = CompiledPeer(
            setup_frame.files, setup_frame.modules, _race_instrumentation() if setup_frame.race else None
        )
    confinement = _Confinement(setup_frame.filter)
    warm_up()
    code.install()
    gc.collect()
    gc.freeze()  # garbage collection in a peer process must not copy all our pages
    connection.write(ForkServerReady())
    scratch_files.install()
    # In all peer processes, so that even what the peer imports is guarded.
    with guard.installed():
        _serve(supervisor, connection, code, confinement)


def _race_instrumentation() -> RaceInstrumentation:
    from raftlab.guest.race_client import make_race_instrumentation  # only with --race

    return make_race_instrumentation()


@contextmanager
def _compiler_limits() -> Iterator[None]:
    """Limit memory and CPU time: the compiler is written in C, and its input is untrusted."""
    _, hard = resource.getrlimit(resource.RLIMIT_AS)
    resource.setrlimit(resource.RLIMIT_AS, (_address_space_bytes() + _COMPILE_BYTES, hard))
    resource.setrlimit(resource.RLIMIT_CPU, (_COMPILE_CPU_S, resource.RLIM_INFINITY))
    yield
    resource.setrlimit(resource.RLIMIT_CPU, (resource.RLIM_INFINITY, resource.RLIM_INFINITY))
    resource.setrlimit(resource.RLIMIT_AS, (hard, hard))


def _serve(
    supervisor: socket.socket, connection: SupervisorConnection, code: CompiledPeer, confinement: _Confinement
) -> NoReturn:
    ended: dict[int, ProcessExit] = {}
    while True:
        command = supervisor.recv(1)
        if command == FORK:
            _reap(ended)
            _fork(supervisor, code, confinement)
        elif command == WAIT:
            pid = int.from_bytes(supervisor.recv(PID_BYTES, socket.MSG_WAITALL), "big")
            if pid not in ended:
                ended[pid] = _process_exit(os.wait4(pid, 0))
            connection.write(ended.pop(pid))
        else:
            _reap(ended)
            os._exit(0)


def _address_space_bytes() -> int:
    """The size of this process's address space: the lowest limit under which it can still map a page.

    Found by bisection, because the sandbox has no /proc.
    """
    _, hard = resource.getrlimit(resource.RLIMIT_AS)
    low, high = 0, 1 << 40
    soft, _ = resource.getrlimit(resource.RLIMIT_AS)
    while high - low > 1 << 20:
        middle = (low + high) // 2
        try:
            resource.setrlimit(resource.RLIMIT_AS, (middle, hard))
            mmap.mmap(-1, mmap.PAGESIZE).close()
            high = middle
        except (OSError, ValueError):
            low = middle
    resource.setrlimit(resource.RLIMIT_AS, (soft, hard))
    return high


def _reap(ended: dict[int, ProcessExit]) -> None:
    while True:
        try:
            waited = os.wait4(-1, os.WNOHANG)
        except ChildProcessError:
            return
        if not waited[0]:
            return
        ended[waited[0]] = _process_exit(waited)


def _process_exit(waited: tuple[int, int, resource.struct_rusage]) -> ProcessExit:
    return ProcessExit(waited[1], waited[2].ru_utime + waited[2].ru_stime)


def _fork(supervisor: socket.socket, code: CompiledPeer, confinement: _Confinement) -> None:
    supervisor_end, peer_end = socket.socketpair()
    pid = os.fork()
    if pid == 0:
        status = 70
        try:
            confinement.after_fork()
            # Not the stderr of the fork server, which all peers would share.
            os.dup2(0, 2)
            fd = os.dup2(supervisor_end.fileno(), 3)
            os.closerange(4, 1 << 16)
            run_peer_process(fd, code, confinement)
        finally:
            os._exit(status)
    supervisor_end.close()
    pidfd = os.pidfd_open(pid)
    socket.send_fds(supervisor, [pid.to_bytes(PID_BYTES, "big")], [peer_end.fileno(), pidfd])
    os.close(pidfd)
    peer_end.close()


def warm_up() -> None:
    """Prepare what every peer process needs: the modules given with raft.py, and labgob's codecs of their classes."""
    for file in PEER_FILES:
        name = PEER if file == "__init__.py" else f"{PEER}.{file.removesuffix('.py')}"
        module = importlib.import_module(name)
        own = [value for value in vars(module).values() if getattr(value, "__module__", "") == name]
        for cls in filter(is_dataclass, own):
            with suppress(TypeError, labgob.GobError):  # a field with a type that labgob does not know
                message = _sample_value(cls)
                labgob.decode(labgob.encode(message), cls)
                labgob.decode(labgob.encode([message]), list[cls])  # type: ignore[valid-type]  # known here only


def _sample_value(kind: Any) -> Any:
    """A value of that type."""
    if isinstance(kind, type) and is_dataclass(kind):
        types = get_type_hints(kind)
        return kind(**{field.name: _sample_value(types[field.name]) for field in fields(kind)})
    if get_origin(kind) is list:
        return [_sample_value(item) for item in get_args(kind)]
    return None if kind is Any else kind()


if __name__ == "__main__":
    main()
