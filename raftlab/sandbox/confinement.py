"""What a sandboxed peer cannot do: bubblewrap around the fork server, and a seccomp filter in each peer process.

In bubblewrap there is no network and no other process, and of the disk only Python, its libraries and the lab's
packages, all read-only: no solution, no test, no other submission. As root, the fork server switches to a user that
owns nothing. The filter allows a peer to read files and its socket, to use memory and to exit. It cannot write files
(except in its memory), start processes or threads, send signals, open sockets, lock files or share memory.

Not promised: protection against timing. A peer sees when it is called, and how busy the machine is.

Start at `fork_server_command()`.
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

from raftlab.layout import LAB, LIBRARIES, PEER, PEER_FILES, ROOT, SANDBOX_FILES

INSTALL = "apt-get install bubblewrap libseccomp2"
# Owns nothing: in a range that systemd and Debian do not assign.
UNPRIVILEGED_UID = 61_184
_LAB_IN_SANDBOX = "/lab"
_SYSTEM = ("/usr", "/lib", "/lib64", "/bin", "/etc/ld.so.cache", "/etc/alternatives")

# What a Python program needs to compute and to import modules of the standard library. All other system calls fail.
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
    """The seccomp filter as a BPF program; b"" without libseccomp."""
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
    # These return 0: real numbers tell how many processes there were before.
    for name in ("getpid", "gettid", "getppid"):
        with suppress(RuntimeError, OSError, ValueError):
            rules.add_rule(seccomp.ERRNO(0), name)
    _allow(rules, seccomp, "sched_getaffinity", seccomp.Arg(0, seccomp.EQ, 0))
    # It may read its own limits, but not change them.
    _allow(rules, seccomp, "prlimit64", seccomp.Arg(0, seccomp.EQ, 0), seccomp.Arg(2, seccomp.EQ, 0))
    with tempfile.TemporaryFile() as file:
        rules.export_bpf(file)
        file.seek(0)
        return file.read()


def _allow(rules: Any, seccomp: Any, name: str, *arguments: Any) -> None:
    with suppress(RuntimeError, OSError, ValueError):  # this architecture has no such system call
        rules.add_rule(seccomp.ALLOW, name, *arguments)


@cache
def bubblewrap() -> str | None:
    """Its path, if it is installed and this user may run it."""
    path = shutil.which("bwrap")
    if path is None:
        return None
    command = [path, "--ro-bind", "/", "/", *_unshare_options(), "--dev", "/dev", "true"]
    works = subprocess.run(command, stdin=subprocess.DEVNULL, capture_output=True, check=False).returncode == 0
    return path if works else None


def sandbox_uid() -> int:
    """The user that peer processes switch to; 0: none."""
    return UNPRIVILEGED_UID if os.geteuid() == 0 else 0


def unreadable_path_error() -> str:
    """Why the unprivileged user cannot read Python, if there is no bubblewrap; "" if it can."""
    if bubblewrap() is not None or not sandbox_uid():
        return ""
    for path in (Path(sys.base_prefix).resolve(), *_library_folders(), ROOT):
        for above in (path, *path.parents):
            if not above.stat().st_mode & 0o001:
                return (
                    "bubblewrap is not installed, so peers run as an unprivileged user, who may not read "
                    f"{above}. Install bubblewrap ({INSTALL}), or make that folder readable for all users"
                )
    return ""


def _unshare_options() -> list[str]:
    # Root needs no user namespace, and without one the fork server can switch users.
    user = [] if os.geteuid() == 0 else ["--unshare-user"]
    return [*user, "--unshare-pid", "--unshare-net", "--unshare-ipc", "--unshare-uts", "--die-with-parent"]


def _library_folders() -> list[Path]:
    """The folders with third-party packages."""
    return sorted({Path(str(module.__file__)).resolve().parent.parent for module in (greenlet, msgspec)})


def environment() -> dict[str, str]:
    where = Path(_LAB_IN_SANDBOX) if bubblewrap() else ROOT
    return {
        "PATH": "/usr/bin:/bin",
        "LANG": "C.UTF-8",
        "PYTHONPATH": os.pathsep.join(str(path) for path in (where, *_library_folders())),
        # One seed is one run, even if a peer depends on the order of a set.
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
            # bubblewrap would create the parent folders for root only.
            for above in reversed(path.parents[:-1]):
                binds += ["--perms", "0755", "--dir", str(above)]
            binds += ["--ro-bind", str(path), str(path)]
    for system in _SYSTEM:
        binds += ["--ro-bind-try", system, system]
    for folder in ("", PEER, LAB, f"{LAB}/check"):
        binds += ["--perms", "0755", "--dir", f"{_LAB_IN_SANDBOX}/{folder}"]
    for name in (*LIBRARIES, *SANDBOX_FILES, *(f"{PEER}/{file}" for file in PEER_FILES)):
        binds += ["--ro-bind", str(ROOT / name), f"{_LAB_IN_SANDBOX}/{name}"]
    return [
        *(wrap, *_unshare_options(), "--clearenv"),
        *(word for name, value in environment().items() for word in ("--setenv", name, value)),
        *binds,
        *("--dev", "/dev", "--chdir", _LAB_IN_SANDBOX, "--remount-ro", "/", "--"),
        *inside,
    ]
