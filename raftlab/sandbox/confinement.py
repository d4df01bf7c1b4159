"""What a guest cannot do: the walls around the nursery, and the filter of system calls that each guest puts on.

Behind bubblewrap there is no network, no other process to see, and of the disk only Python, its libraries and the lab's
packages, all of it read-only: no solution, no test, no other submission. As root the nursery becomes a user that owns
nothing. The filter takes away what namespaces leave: a guest can read files and its own socket, use memory, and end.
It cannot write a file but in its own memory, make a process or a thread, send a signal, open a socket, lock a file, or
use memory that another could see.

Not promised: walls against time. What a guest is asked, and when, it sees; and how busy the machine is.

Start at `nursery_command()`.
"""

from __future__ import annotations

import errno
import os
import shutil
import subprocess
import sys
import tempfile
from contextlib import suppress
from functools import cache
from pathlib import Path
from typing import Any

import greenlet  # type: ignore[import-untyped]  # it ships no types
import msgspec

from raftlab.layout import GUEST, LAB, LIBRARIES, PEER, PEER_FILES, ROOT

INSTALL = "apt-get install bubblewrap libseccomp2"
# Owns nothing: from a range that systemd and Debian leave to programs like this one.
UNPRIVILEGED_UID = 61_184
_LAB_IN_SANDBOX = "/lab"
_SYSTEM = ("/usr", "/lib", "/lib64", "/bin", "/etc/ld.so.cache", "/etc/alternatives")

# What a Python program needs that computes, and imports modules of the standard library. What is not here does not
# exist for a guest.
_ALLOWED = """
    read readv pread64 write writev close dup fstat stat lstat newfstatat statx access faccessat faccessat2
    lseek getdents64 readlink readlinkat getcwd mmap munmap mprotect mremap brk madvise futex membarrier rseq
    set_robust_list set_tid_address exit exit_group restart_syscall memfd_create ftruncate rt_sigaction
    rt_sigprocmask rt_sigreturn sigaltstack clock_gettime clock_getres clock_nanosleep nanosleep gettimeofday
    time getrandom getuid geteuid getgid getegid uname sched_yield poll ppoll select pselect6
"""
_F_DUPFD_CLOEXEC, _F_GETFD, _F_SETFD, _F_GETFL = 1030, 1, 2, 3
_TCGETS, _FIOCLEX = 0x5401, 0x5451


@cache
def syscall_filter() -> bytes:
    """The filter as the kernel takes it; b"" where there is no libseccomp."""
    try:
        import pyseccomp as seccomp  # type: ignore[import-untyped]  # it ships no types
    except (ImportError, OSError, RuntimeError):
        return b""
    rules = seccomp.SyscallFilter(seccomp.ERRNO(errno.EPERM))
    for name in _ALLOWED.split():
        _allow(rules, seccomp, name)
    writing = os.O_WRONLY | os.O_RDWR | os.O_CREAT | os.O_TRUNC | os.O_APPEND
    _allow(rules, seccomp, "openat", seccomp.Arg(2, seccomp.MASKED_EQ, writing, 0))
    _allow(rules, seccomp, "open", seccomp.Arg(1, seccomp.MASKED_EQ, writing, 0))
    for command in (_F_DUPFD_CLOEXEC, _F_GETFD, _F_SETFD, _F_GETFL):
        _allow(rules, seccomp, "fcntl", seccomp.Arg(1, seccomp.EQ, command))
    for command in (_TCGETS, _FIOCLEX):
        _allow(rules, seccomp, "ioctl", seccomp.Arg(1, seccomp.EQ, command))
    # Who asks what it is called gets 0: numbers tell how many there were before it.
    for name in ("getpid", "gettid", "getppid"):
        with suppress(RuntimeError, OSError, ValueError):
            rules.add_rule(seccomp.ERRNO(0), name)
    _allow(rules, seccomp, "sched_getaffinity", seccomp.Arg(0, seccomp.EQ, 0))
    # Limits may be looked at: its own, and not changed.
    _allow(rules, seccomp, "prlimit64", seccomp.Arg(0, seccomp.EQ, 0), seccomp.Arg(2, seccomp.EQ, 0))
    with tempfile.TemporaryFile() as file:
        rules.export_bpf(file)
        file.seek(0)
        return file.read()


def _allow(rules: Any, seccomp: Any, name: str, *arguments: Any) -> None:
    with suppress(RuntimeError, OSError, ValueError):  # this machine has no call of that name
        rules.add_rule(seccomp.ALLOW, name, *arguments)


@cache
def bubblewrap() -> str | None:
    """Its path, if it is there and may be used by us on this system."""
    path = shutil.which("bwrap")
    if path is None:
        return None
    command = [path, "--ro-bind", "/", "/", *_unshare_options(), "--dev", "/dev", "true"]
    works = subprocess.run(command, stdin=subprocess.DEVNULL, capture_output=True, check=False).returncode == 0
    return path if works else None


def sandbox_uid() -> int:
    """The user that guests become, 0 for nobody else."""
    return UNPRIVILEGED_UID if os.geteuid() == 0 else 0


def unreadable_path_error() -> str:
    """What keeps the user that guests become from reading Python, where bubblewrap does not show it; "" if nothing."""
    if bubblewrap() is not None or not sandbox_uid():
        return ""
    for path in (Path(sys.base_prefix).resolve(), *_library_folders(), ROOT):
        for above in (path, *path.parents):
            if not above.stat().st_mode & 0o001:
                return (
                    f"as root without bubblewrap, peers run as an unprivileged user, who may not read {above}. "
                    f"Install bubblewrap ({INSTALL}), or make that folder readable for all users"
                )
    return ""


def _unshare_options() -> list[str]:
    # Root needs no user namespace, and without one the nursery can become another user.
    user = [] if os.geteuid() == 0 else ["--unshare-user"]
    return [*user, "--unshare-pid", "--unshare-net", "--unshare-ipc", "--unshare-uts", "--die-with-parent"]


def _library_folders() -> list[Path]:
    """The folders that third-party packages lie in."""
    return sorted({Path(str(module.__file__)).resolve().parent.parent for module in (greenlet, msgspec)})


def environment() -> dict[str, str]:
    where = Path(_LAB_IN_SANDBOX) if bubblewrap() else ROOT
    return {
        "PATH": "/usr/bin:/bin",
        "LANG": "C.UTF-8",
        "PYTHONPATH": os.pathsep.join(str(path) for path in (where, *_library_folders())),
        # One seed is one run, also for a peer that lets the order of a set decide.
        "PYTHONHASHSEED": "0",
        "PYTHONDONTWRITEBYTECODE": "1",
    }


def fork_server_command() -> list[str]:
    python = Path(getattr(sys, "_base_executable", sys.executable)).resolve()
    inside = [str(python), "-P", "-s", "-m", "raftlab.guest.fork_server"]
    wrap = bubblewrap()
    if wrap is None:
        return inside
    binds: list[str] = []
    seen = [Path("/usr"), Path("/bin"), Path("/lib"), Path("/lib64")]
    for path in (Path(sys.base_prefix).resolve(), python.parent, *_library_folders()):
        if not any(path.is_relative_to(other) for other in seen):
            seen.append(path)
            # bubblewrap makes the folders above for root alone, and a guest is somebody else.
            for above in reversed(path.parents[:-1]):
                binds += ["--perms", "0755", "--dir", str(above)]
            binds += ["--ro-bind", str(path), str(path)]
    for system in _SYSTEM:
        binds += ["--ro-bind-try", system, system]
    for folder in ("", PEER, LAB, f"{LAB}/check"):
        binds += ["--perms", "0755", "--dir", f"{_LAB_IN_SANDBOX}/{folder}"]
    for name in (*LIBRARIES, *GUEST, *(f"{PEER}/{file}" for file in PEER_FILES)):
        binds += ["--ro-bind", str(ROOT / name), f"{_LAB_IN_SANDBOX}/{name}"]
    return [
        *(wrap, *_unshare_options(), "--clearenv"),
        *(word for name, value in environment().items() for word in ("--setenv", name, value)),
        *binds,
        *("--dev", "/dev", "--chdir", _LAB_IN_SANDBOX, "--remount-ro", "/", "--"),
        *inside,
    ]
