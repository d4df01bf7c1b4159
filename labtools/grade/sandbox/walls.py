"""One submission behind a wall: its worker process in bubblewrap where that is there, with limits everywhere.

Promise: run() always gives a record, whatever the submission does to its processes. In bubblewrap it has no network, a
pid space of its own, and sees of the disk only Python, the lab without its solution, and its own folder, which lives in
memory and is gone afterwards; hidden tests come through a pipe. As root, a run becomes a user that owns nothing.

Not promised: walls without bubblewrap. Then there are only the limits, the other user (as root) and the fence
that tamper.py puts up inside Python.

Start at `Sandbox.run()`; what happens inside is worker.py.
"""

from __future__ import annotations

import compileall
import itertools
import os
import secrets
import select
import shutil
import subprocess
import sys
import tempfile
import time
from collections.abc import Mapping
from contextlib import suppress
from functools import cache
from pathlib import Path

import greenlet  # type: ignore[import-untyped]  # it ships no types
import msgspec
import pytest

from labtest.rooms import ROOT
from labtools import manifest
from labtools.grade.results import DIED, FORCED, RunRecord
from labtools.grade.rubric import Limits
from labtools.grade.sandbox.worker import (
    ENDING_S,
    Answer,
    Request,
    Setup,
    kill_descendants,
    remove_tree,
    threads_of,
    too_long,
)
from labtools.stress.kit import write_files

INSTALL = "apt-get install bubblewrap"
_START_LIMIT_S = 60.0
_GRACE_S = 30.0  # for the worker to notice that a run is over its limit
_LAST_WORDS_MAX = 4000
_UID_FIRST, _UID_LAST = 61_184, 65_519  # a range that systemd and Debian leave to programs like this one
# Begun anywhere: another grader on this machine, or beside this container, has others.
_uids = itertools.count(secrets.randbelow(_UID_LAST - _UID_FIRST + 1))
_INSIDE = "/sandbox"  # the worker's folder in there
_LAB_INSIDE = "/lab"
_SYSTEM = ("/usr", "/lib", "/lib64", "/bin", "/etc/ld.so.cache", "/etc/alternatives")


class SandboxError(Exception):
    """The sandbox itself does not work here; the text says why."""


class _Gone(Exception):
    """The worker has ended."""


class _Late(Exception):
    """The worker gave no answer in time."""


@cache
def bubblewrap() -> str | None:
    """Its path, if it is there and may be used by us on this system."""
    path = shutil.which("bwrap")
    if path is None:
        return None
    command = [path, "--ro-bind", "/", "/", *_unshared(), "--proc", "/proc", "--dev", "/dev", "true"]
    works = subprocess.run(command, stdin=subprocess.DEVNULL, capture_output=True, check=False).returncode == 0
    return path if works else None


def _another_user() -> int:
    """The user that a submission's runs become, 0 for nobody else.

    One for each, and one who has no process: the system counts a user's processes wherever they are, so another's
    fork bomb, or what is still dying of the submission before, would be counted as this one's.
    """
    if os.geteuid() != 0:
        return 0
    return next(
        uid for uid in (_UID_FIRST + number % (_UID_LAST - _UID_FIRST + 1) for number in _uids) if not threads_of(uid)
    )


def refusal() -> str:
    """Why submissions cannot be run here at all; "" if they can."""
    if bubblewrap() is not None or not _another_user():
        return ""
    for path in (Path(sys.base_prefix).resolve(), *_libraries()):
        for above in (path, *path.parents):
            if not above.stat().st_mode & 0o001:
                return (
                    "as root and without bubblewrap, submissions run as another user, who may not read Python: "
                    f"{above} is closed to others. Install bubblewrap ({INSTALL}), "
                    "or use a Python that everybody may read"
                )
    return ""


def _unshared() -> list[str]:
    # Root needs no user namespace, and without one a run can become another user.
    user = [] if os.geteuid() == 0 else ["--unshare-user"]
    return [*user, "--unshare-pid", "--unshare-net", "--unshare-ipc", "--unshare-uts", "--die-with-parent"]


class LabCopy:
    """The lab as a submission may see it: no solution, no zoo, no tests, no grader. One for the whole class."""

    def __init__(self) -> None:
        self._folder = tempfile.TemporaryDirectory(prefix="lab-grade-")
        self.path = Path(self._folder.name)
        self.path.chmod(0o755)
        write_files({str(path.relative_to(ROOT)): path.read_bytes() for path in manifest.sandbox_files()}, self.path)
        # Every worker would compile it anew: it may not write here.
        compileall.compile_dir(self.path, quiet=2)

    def close(self) -> None:
        self._folder.cleanup()


class Sandbox:
    """The worker of one submission, started when it is needed and again when it is gone. For one thread."""

    def __init__(self, lab: LabCopy, files: Mapping[str, bytes], raft: str, limits: Limits) -> None:
        self._lab = lab
        self._limits = limits
        self._setup = Setup(dict(files), raft, limits, uid=_another_user(), own_pids=bubblewrap() is not None)
        self._loaded: dict[str, bytes] = {}
        self._process: subprocess.Popen[bytes] | None = None
        self._folder: tempfile.TemporaryDirectory[str] | None = None
        self._buffer = b""
        self._closed = False

    def load(self, files: Mapping[str, bytes]) -> None:
        """Test files, by a relative path that reports shall name. They are there from now on."""
        self._loaded |= files
        if self._process is not None:
            try:
                self._ask(Request(load=dict(files)), _START_LIMIT_S)
            except (_Gone, _Late):
                self._fail_if_it_was_us()  # else it starts anew, with everything, at the next run

    def run(self, test: str, seed: int, replay: str) -> RunRecord:
        self._start()
        try:
            answer = self._ask(Request(test=test, seed=seed, replay=replay), self._limits.real_s + _GRACE_S)
        except _Late:
            kind, cause = FORCED, too_long(self._limits)
            self._end()
        except _Gone:
            self._fail_if_it_was_us()
            kind, cause = DIED, "The run ended the process that watches over it."
        else:
            assert answer.run is not None
            if answer.last:
                self._end()
            return answer.run
        report = f"{test}  seed {seed}\n  {cause}\n\n  replay    {replay}"
        return RunRecord(test=test, seed=seed, kind=kind, cause=cause, report=report)

    def close(self) -> None:
        """From any thread; a run under way raises SandboxError."""
        self._closed = True
        process = self._process
        if process is not None:
            _kill(process)

    def end(self) -> None:
        """By the thread that used it."""
        self._end()

    def _start(self) -> None:
        if self._closed:
            raise SandboxError("it was closed")
        if self._process is not None:
            return
        folder = Path("/")
        if bubblewrap() is None:
            self._folder = tempfile.TemporaryDirectory(prefix="lab-grade-", ignore_cleanup_errors=True)
            folder = Path(self._folder.name)
            folder.chmod(0o711)
        self._buffer = b""
        self._process = subprocess.Popen(
            _command(self._lab.path, self._limits),
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,  # a run has its own
            cwd=folder,
            env=_environment(self._lab.path),
            bufsize=0,
            start_new_session=True,  # Ctrl-C is for whoever started it
        )
        if self._closed:  # while it was starting, by another thread
            self._end()
            raise SandboxError("it was closed")
        try:
            self._send(msgspec.json.encode(self._setup))
            if self._loaded:
                self._ask(Request(load=self._loaded), _START_LIMIT_S)
        except (_Gone, _Late):
            raise SandboxError(f"the sandbox does not start: {self._last_words() or 'it says nothing'}") from None

    def _last_words(self) -> str:
        """End it, and give what it said on the way."""
        process = self._process
        assert process is not None and process.stderr is not None
        _kill(process)
        text = process.stderr.read(_LAST_WORDS_MAX).decode(errors="replace").strip()
        self._end()
        return text

    def _fail_if_it_was_us(self) -> None:
        """A run cannot write where the worker does. If that died of its own error, no student shall pay for it.

        Unless they share a user: then a run can take from the worker what it needs, and nobody else shall pay for that.
        """
        said = self._last_words()
        if self._closed:
            raise SandboxError("it was closed")
        if "Traceback" in said and self._setup.uid:
            raise SandboxError(f"the grader's own worker failed:\n{said}")

    def _ask(self, request: Request, limit_s: float) -> Answer:
        self._send(msgspec.json.encode(request))
        answer = msgspec.json.decode(self._read_line(limit_s), type=Answer)
        if answer.error:
            raise SandboxError(answer.error)
        return answer

    def _send(self, data: bytes) -> None:
        assert self._process is not None and self._process.stdin is not None
        data += b"\n"
        try:
            while data:
                data = data[self._process.stdin.write(data) or 0 :]
        except OSError:
            raise _Gone from None

    def _read_line(self, limit_s: float) -> bytes:
        assert self._process is not None and self._process.stdout is not None
        pipe = self._process.stdout.fileno()
        poll = select.poll()
        poll.register(pipe, select.POLLIN)
        until_s = time.monotonic() + limit_s
        while b"\n" not in self._buffer:
            left_s = until_s - time.monotonic()
            if left_s <= 0 or not poll.poll(left_s * 1000):
                raise _Late
            data = os.read(pipe, 1 << 16)
            if not data:
                raise _Gone
            self._buffer += data
        line, _, self._buffer = self._buffer.partition(b"\n")
        return line

    def _end(self) -> None:
        process, self._process = self._process, None
        if process is None:
            return
        _kill(process)
        for pipe in (process.stdin, process.stdout, process.stderr):
            if pipe is not None:
                pipe.close()
        process.wait()
        if self._folder is not None:
            with suppress(OSError):
                remove_tree(Path(self._folder.name))
            self._folder.cleanup()
            self._folder = None


def _kill(process: subprocess.Popen[bytes]) -> None:
    """With all that runs below it. Bubblewrap takes everything inside along; without, it has to be found."""
    # poll(): once it has ended, its number may be another's.
    while bubblewrap() is None and process.poll() is None and kill_descendants(process.pid):
        time.sleep(ENDING_S)
    process.kill()


def _libraries() -> list[Path]:
    """The folders that third-party packages lie in."""
    return sorted({Path(str(module.__file__)).resolve().parent.parent for module in (greenlet, msgspec, pytest)})


def _environment(lab: Path) -> dict[str, str]:
    where = Path(_LAB_INSIDE) if bubblewrap() else lab
    return {
        "PATH": "/usr/bin:/bin",
        "LANG": "C.UTF-8",
        "PYTHONPATH": os.pathsep.join(str(path) for path in (where, *_libraries())),
        # One seed is one run, also for a peer that lets the order of a set decide.
        "PYTHONHASHSEED": "0",
        "PYTHONDONTWRITEBYTECODE": "1",
        "TMPDIR": ".",  # a run's own folder
    }


def _command(lab: Path, limits: Limits) -> list[str]:
    python = Path(getattr(sys, "_base_executable", sys.executable)).resolve()
    inside = [str(python), "-P", "-s", "-m", "labtools.grade.sandbox.worker"]
    wrap = bubblewrap()
    if wrap is None:
        return inside
    binds: list[str] = []
    seen = [Path("/usr"), Path("/bin"), Path("/lib"), Path("/lib64")]
    for path in (Path(sys.base_prefix).resolve(), python.parent, *_libraries()):
        if not any(path.is_relative_to(other) for other in seen):
            seen.append(path)
            # bubblewrap makes the folders above for root alone, and the run is somebody else.
            for above in reversed(path.parents[:-1]):
                binds += ["--perms", "0755", "--dir", str(above)]
            binds += ["--ro-bind", str(path), str(path)]
    for system in _SYSTEM:
        binds += ["--ro-bind-try", system, system]
    size = str((limits.file_mb * 4) << 20)
    return [
        *(wrap, *_unshared(), "--clearenv"),
        *(word for name, value in _environment(lab).items() for word in ("--setenv", name, value)),
        *binds,
        *("--ro-bind", str(lab), _LAB_INSIDE, "--proc", "/proc", "--dev", "/dev"),
        *("--size", size, "--perms", "0755", "--tmpfs", _INSIDE, "--chdir", _INSIDE),
        *("--remount-ro", "/", "--"),
        *inside,
    ]
