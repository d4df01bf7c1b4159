"""Launches a peer in the sandbox, each incarnation in its own process. Start at `load_sandboxed()`."""

from __future__ import annotations

import os
import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path, PurePosixPath
from time import monotonic
from typing import TYPE_CHECKING, Any, NamedTuple

import msgspec

import labgob
from labrpc import ClientEnd, Network
from labsim import Node, Simulation
from labsim.stacks import short_path
from raftlab.guest import protocol
from raftlab.guest.contract import CLERK, PACKAGE, PEER, SERVICE, SERVICE_PACKAGE
from raftlab.guest.protocol import ExitReport, MethodCall, MethodResult, PeerSetup, TimeSlice
from raftlab.harness.launcher import LoadError, PeerContext, resolve_file
from raftlab.harness.records import files_of, files_of_service
from raftlab.layout import ROOT
from raftlab.races.data_race import BenignRace
from raftlab.sandbox.processes import ForkServer, ForkServerLost, PeerProcess
from raftlab.sandbox.stubs import SandboxedClerk, SandboxedPeer
from raftlab.sandbox.supervisor import PeerSupervisor

if TYPE_CHECKING:
    from raftapi import Clerk

_PREFORKED = 3
LOAD = "__load__"


@dataclass(frozen=True)
class SandboxLimits:
    """The limits of one run."""

    slice_s: float = 30.0  # real time of one time slice
    cpu_s: int = 60  # CPU time of one peer process
    memory_mb: int = 1024  # of all peer processes at one time, beyond the memory at their start
    real_s: float = 600.0  # real time of the run


class SandboxedLauncher:
    """Launches one submission: each incarnation is a sandboxed process."""

    # Peer processes do most of the work, so CPU time of this process says little.
    work_clock = staticmethod(monotonic)
    classes: Sequence[Any] = ()

    def __init__(
        self,
        files: Mapping[str, bytes],
        raft: str,
        service: ServicePaths | None = None,
        *,
        limits: SandboxLimits | None = None,
        print_text: Callable[[str], object] | None = None,
        race: bool = False,
    ) -> None:
        """`files`: sources by path as shown to users; `raft`: the path of raft.py. `print_text` gets what peers print.
        `race`: preempt threads at any line and report data races.

        With a service, each server (with its peer) and each clerk is one process.
        """
        self.limits = SandboxLimits() if limits is None else limits
        self.deadline_s = float("inf")
        self.dropped_chars = 0  # characters of log lines and output over the limit
        self.bytes_of_ended = 0  # received in this run from processes that have ended
        # The full name of each declared message type. Plain values need none.
        self.type_names: dict[Any, str] = {}
        self.print_text = sys.stdout.write if print_text is None else print_text
        self.files = dict(files)
        self.race = race
        self._benign_races: dict[BenignRace, None] = {}
        self._modules = _module_paths(files, raft, service)
        self.has_service = service is not None
        self._fork_server: ForkServer | None = None
        self._running: dict[PeerSupervisor, None] = {}
        self._simulation: Simulation | None = None  # of the run under way
        # Of Raft, once it was loaded:
        self._raft_methods: list[str] | None = None
        self._renamed_rpcs: dict[str, str] = {}
        self._cpus_before: set[int] = set()  # the CPU affinity before the run
        self._chars_left = protocol.LOG_CHARS_MAX

    def load(self) -> None:
        """Load the peer once, as a test. Raises LoadError."""
        problem = self._try_to_load()
        if problem:
            raise LoadError(problem)

    def has_method(self, name: str) -> bool:
        if self._raft_methods is None:
            self._try_to_load()
        return self._raft_methods is not None and name in self._raft_methods

    @property
    def renamed_rpcs(self) -> dict[str, str]:
        if self._raft_methods is None:
            self._try_to_load()
        return self._renamed_rpcs

    def _try_to_load(self) -> str:
        process = self._new_process()
        setup = PeerSetup("0", 1, 0, 0, 0, 0, b"", b"", lockstep=False)
        try:
            process.set_up(setup, self.limits.slice_s)
            result = process.run_slice(TimeSlice(0, False, [MethodCall(1, f".{LOAD}", labgob.encode([]))]))
            for effect in result.effects:
                if isinstance(effect, MethodResult) and effect.data is not None:
                    problem, methods, renamed = labgob.decode(effect.data, list[tuple[str, list[str], dict[str, str]]])[
                        0
                    ]
                    if not problem:
                        self._raft_methods, self._renamed_rpcs = methods, renamed
                    return problem
                if isinstance(effect, ExitReport):
                    return f"{self._all_paths}: {effect.text}"
        except TimeoutError:
            return f"{self._all_paths}: the import did not finish within {self.limits.slice_s:g} s"
        except (EOFError, ValueError, msgspec.MsgspecError):
            pass
        finally:
            process.kill()
        return f"{self._all_paths}: importing it ends the process"

    @property
    def _all_paths(self) -> str:
        """The candidates, if the file with the error is unknown."""
        return " or ".join(self._modules[name] for name in (PEER, SERVICE, CLERK) if name in self._modules)

    # ---- runs --------------------------------------------------------------------------------------------------------

    @contextmanager
    def run(self, simulation: Simulation | None) -> Iterator[None]:
        if simulation is None:
            raise ValueError("run(): sandboxed peers run in virtual time only")
        self._end_all()
        if simulation.unresponsive_s is not None:
            # Waiting for a peer process is limited by slice_s.
            simulation.unresponsive_s = self.limits.slice_s
        if self._fork_server is None:
            self._start_fork_server()
        assert self._fork_server is not None
        self._simulation = simulation
        self._cpus_before = os.sched_getaffinity(0)
        os.sched_setaffinity(0, {self._fork_server.cpu})
        self.bytes_of_ended = 0
        self.deadline_s = monotonic() + self.limits.real_s
        self.dropped_chars = 0
        self._chars_left = protocol.LOG_CHARS_MAX
        self._benign_races = {}
        try:
            # This process does not have the peers' classes.
            with labgob.carrying_unknown():
                yield
        finally:
            self._end_all()

    def launch(self, context: PeerContext) -> SandboxedPeer:
        assert self._simulation is not None
        return SandboxedPeer(self, self._simulation, context)

    def launch_clerk(self, node: Node, network: Network, ends: Sequence[ClientEnd], number: int) -> Callable[[], Clerk]:
        assert self._simulation is not None
        return SandboxedClerk(self, self._simulation, node, network, ends, number).construct

    def _end_all(self) -> None:
        """End all peer processes."""
        self._simulation = None
        if self._cpus_before:
            os.sched_setaffinity(0, self._cpus_before)
            self._cpus_before = set()
        for supervisor in list(self._running):
            supervisor.end()

    def keep_text(self, chars: int) -> bool:
        """Whether so many more characters may be kept in this run."""
        self._chars_left -= chars
        if self._chars_left < 0:
            self.dropped_chars += chars
        return self._chars_left >= 0

    def add_benign_race(self, race: BenignRace) -> None:
        """Record a benign race that a peer process has reported."""
        if len(self._benign_races) < protocol.BENIGN_RACES_MAX:
            self._benign_races[race] = None

    @property
    def remarks(self) -> list[str]:
        """The benign races of the last run, a line each."""
        if not self._benign_races:
            return []
        from raftlab.races.report import describe_benign_race  # only if needed

        return list(dict.fromkeys(map(describe_benign_race, self._benign_races)))

    def start_process(self, supervisor: PeerSupervisor) -> PeerProcess:
        process = self._new_process()
        self._running[supervisor] = None
        return process

    def on_ended(self, supervisor: PeerSupervisor, bytes_read: int) -> None:
        if supervisor in self._running:
            del self._running[supervisor]
            self.bytes_of_ended += bytes_read

    def _new_process(self) -> PeerProcess:
        if self._fork_server is None:
            self._start_fork_server()
        assert self._fork_server is not None
        self._fork_server.prefork(1)
        return self._fork_server.take_process()

    def _start_fork_server(self) -> None:
        self._fork_server = ForkServer(self.files, self._modules, race=self.race)
        self._fork_server.prefork(_PREFORKED)

    def __del__(self, suppress: Callable[..., Any] = suppress) -> None:
        """`suppress` is a default argument because module globals may be gone at interpreter exit."""
        with suppress(Exception):
            self.close()

    def close(self) -> None:
        """End all processes."""
        self._end_all()
        if self._fork_server is not None:
            self._fork_server.close()
            self._fork_server = None


class ServicePaths(NamedTuple):
    """The paths of a service's files, as shown to users."""

    server: str
    clerk: str
    messages: str


def _module_paths(files: Mapping[str, bytes], raft: str, service: ServicePaths | None) -> dict[str, str]:
    """The path of each module by name. A file beside raft.py can be imported in the package and by itself."""
    names = {PEER: raft}
    folder = PurePosixPath(raft).parent
    own_package = str(folder / "messages.py") in files
    beside = {name: path for path in files if path != raft and (name := _module_beside(path, folder))}
    for name, path in beside.items():
        if own_package:
            names[f"{PACKAGE}.{name}"] = path
        if not own_package or name != "messages":
            names[name] = path
    if service is not None:
        names |= {SERVICE: service.server, CLERK: service.clerk}
        folder = PurePosixPath(service.messages).parent
        for path in files:
            if path not in (service.server, service.clerk) and (name := _module_beside(path, folder)):
                names[f"{SERVICE_PACKAGE}.{name}"] = path
                if name != "messages":
                    names.setdefault(name, path)
    return names


def _module_beside(path: str, folder: PurePosixPath) -> str:
    place = PurePosixPath(path)
    return place.stem if place.parent == folder and place.stem != "__init__" else ""


def load_sandboxed(
    path: Path, kv: Path | None = None, *, limits: SandboxLimits | None = None, race: bool = False
) -> SandboxedLauncher:
    """As raftlab.harness.loader.load_peer(), but runs no line of the files in this process."""
    if not hasattr(os, "pidfd_open"):
        raise LoadError("--isolated needs Linux, because the sandbox uses features of its kernel; omit --isolated")
    path = resolve_file(path, "raft.py", "RAFT")
    paths, service = files_of(path), None
    if kv is not None:
        kv = resolve_file(kv, "server.py", "KV")
        # Files that are missing beside it are the lab's.
        own = [kv.parent / "client.py", kv.parent / "messages.py"]
        clerk, messages = (file if file.exists() else ROOT / SERVICE_PACKAGE / file.name for file in own)
        paths += [*files_of_service(kv), *(file for file in (clerk, messages) if file.exists())]
        service = ServicePaths(*(short_path(str(file.resolve())) for file in (kv, clerk, messages)))
    files = {short_path(str(file.resolve())): file.read_bytes() for file in paths}
    launcher = SandboxedLauncher(files, short_path(str(path)), service, limits=limits, race=race)
    try:
        launcher.load()
    except ForkServerLost as error:
        launcher.close()
        raise LoadError(str(error)) from None
    except LoadError:
        launcher.close()
        raise
    return launcher
