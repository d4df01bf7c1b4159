"""The walls around a submission's worker: bubblewrap where that is there, another user for root, a copy of the lab.

Promise: in bubblewrap a submission has no network, a pid space of its own, and sees of the disk only Python, the lab
without its solution, and its own folder, which lives in memory and is gone afterwards. As root, a run becomes a user
that owns nothing.

Not promised: walls without bubblewrap. Then there are only the limits, the other user (as root) and the fence
that tamper.py puts up inside Python.

Start at `launch()`; who talks with the worker is box.py, what happens inside is worker.py.
"""

from __future__ import annotations

import compileall
import itertools
import os
import secrets
import shutil
import subprocess
import sys
import tempfile
import time
from contextlib import suppress
from functools import cache, partial
from pathlib import Path

import greenlet  # type: ignore[import-untyped]  # it ships no types
import msgspec
import pytest

from labtest.rooms import ROOT
from labtools import manifest
from labtools.grade.rubric import Limits
from labtools.grade.sandbox.worker import ENDING_S, kill_descendants, remove_tree, threads_of
from labtools.stress.kit import write_files
from labtools.workers.process import Launch

INSTALL = "apt-get install bubblewrap"
_UID_FIRST, _UID_LAST = 61_184, 65_519  # a range that systemd and Debian leave to programs like this one
# Begun anywhere: another grader on this machine, or beside this container, has others.
_uids = itertools.count(secrets.randbelow(_UID_LAST - _UID_FIRST + 1))
_INSIDE = "/sandbox"  # the worker's folder in there
_LAB_INSIDE = "/lab"
_SYSTEM = ("/usr", "/lib", "/lib64", "/bin", "/etc/ld.so.cache", "/etc/alternatives")


@cache
def bubblewrap() -> str | None:
    """Its path, if it is there and may be used by us on this system."""
    path = shutil.which("bwrap")
    if path is None:
        return None
    command = [path, "--ro-bind", "/", "/", *_unshared(), "--proc", "/proc", "--dev", "/dev", "true"]
    works = subprocess.run(command, stdin=subprocess.DEVNULL, capture_output=True, check=False).returncode == 0
    return path if works else None


def another_user() -> int:
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
    if bubblewrap() is not None or not another_user():
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


def launch(lab: LabCopy, limits: Limits, greeting: bytes) -> Launch:
    """A worker behind them."""
    own = None
    if bubblewrap() is None:
        own = tempfile.TemporaryDirectory(prefix="lab-grade-", ignore_cleanup_errors=True)
        Path(own.name).chmod(0o711)
    return Launch(
        _command(lab.path, limits),
        folder=Path("/" if own is None else own.name),
        environment=_environment(lab.path),
        greeting=greeting,
        kill=_kill,
        after=None if own is None else partial(_remove, own),
    )


def _remove(folder: tempfile.TemporaryDirectory[str]) -> None:
    with suppress(OSError):
        remove_tree(Path(folder.name))
    folder.cleanup()


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
