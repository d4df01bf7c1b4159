"""What runs inside a sandbox: a process that loads the tests, and makes one child for each run of the submission.

Promise: this process never runs a line of the submission. A child does, has limits, loses what rights it had, and
answers through a pipe, each message sealed with a word that was made for that run; what is not sealed, or not complete,
is not believed. When the child has ended, everything it started is ended too.

Not promised: that a child cannot lie. The peer shares a process with its tester, so code that is clever enough can find
the seal. tamper.py finds the usual ways; docs/grading.md says what remains.

Start at `begin()`.
"""

from __future__ import annotations

import ctypes
import gc
import linecache
import os
import resource
import select
import shutil
import signal
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import suppress
from pathlib import Path
from types import ModuleType
from typing import NoReturn

import msgspec
from msgspec.json import encode

from labsim import Unresponsive
from labtest import report
from labtest.loading import LoadError, load_peer_class
from labtest.running import run_test
from labtest.verdict import Ending, verdict_of, without_numbers
from labtools.grade.results import DIED, FAILED, FORCED, PASSED, TAMPERED, UNLOADABLE, RunRecord
from labtools.grade.rubric import Limits
from labtools.grade.sandbox.tamper import Fence, Inventory, announce_frames_of_greenlets
from labtools.selecting import LabTest, SelectionError, load_tests
from labtools.workers.serving import RETIRE, Refusal, serve, signal_name

_SEAL_BYTES = 16
_SEALED_BYTES_MAX = 1 << 20
_REPORT_CHARS_MAX = 20_000
_CAUSE_CHARS_MAX = 1000
_REPORT_MB = 64
_THREADS_MORE = 256  # that the grader's user may start elsewhere, during a run that shares its count
ENDING_S = 0.002  # between one look at what still lives and the next
_CHUNK = 1 << 16
_PR_SET_PDEATHSIG, _PR_SET_DUMPABLE, _PR_SET_CHILD_SUBREAPER, _PR_SET_NO_NEW_PRIVS = 1, 4, 36, 38
# What a verdict passes through is bound here, where a run does not find it: see _out_of_reach().
_write = os.write
_OWN = "submission"  # the one folder that a run may write to; it runs there


class Setup(msgspec.Struct):
    """The first line of the conversation."""

    files: dict[str, bytes]  # the submission's package, path by path
    raft: str  # the path of its raft.py
    limits: Limits
    uid: int = 0  # to become, if this process is root; 0 to stay
    own_pids: bool = False  # whether every process here is the sandbox's
    load: dict[str, bytes] = {}  # test files that are there from the beginning


class Request(msgspec.Struct):
    """Either test files to load, by path, or a run to make."""

    load: dict[str, bytes] = {}
    test: str = ""
    seed: int = 0
    replay: str = ""


class Answer(msgspec.Struct, omit_defaults=True):
    loaded: bool = False
    error: str = ""
    run: RunRecord | None = None


# Made here: msgspec looks for the types in sys.modules, where they will not be.
_SETUP, _REQUEST, _MESSAGE = (msgspec.json.Decoder(kind) for kind in (Setup, Request, RunRecord | str))


def begin(greeting: bytes, grader: int) -> Callable[[bytes], Iterator[bytes]]:
    """`grader`: the pipe that ends when it does."""
    _prctl(_PR_SET_DUMPABLE, 0)  # nobody of our own user may look into this process
    _prctl(_PR_SET_CHILD_SUBREAPER, 1)  # whatever a run leaves behind becomes our child
    signal.signal(signal.SIGINT, signal.SIG_DFL)  # a run of our own user may send it; it shall end us without a word
    _out_of_reach()
    announce_frames_of_greenlets()
    setup = _SETUP.decode(greeting)
    tests: dict[str, LabTest] = {}
    tester = Inventory()

    def load(files: dict[str, bytes]) -> None:
        nonlocal tester
        tests.update(_load(files))
        tester = Inventory()
        gc.collect()
        gc.freeze()  # a child that collects must not copy every page of ours

    def answers_to(line: bytes) -> Iterator[bytes]:
        request = _REQUEST.decode(line)
        if not request.load:
            yield encode(Answer(run=_run(setup, tests[request.test], request, tester, grader)))
            if not _nothing_is_left():
                yield RETIRE  # the run has left something that cannot be taken away
            return
        try:
            load(request.load)
            yield encode(Answer(loaded=True))
        except SelectionError as error:
            yield encode(Answer(error=str(error)))

    try:
        load(setup.load)
    except SelectionError as error:
        raise Refusal(str(error)) from None
    return answers_to


def _out_of_reach() -> None:
    """Whoever imports what judges it gets another copy, and may change that as it likes."""
    for room, name in (("labtools.grade", "results"), ("labtools.grade.sandbox", "tamper")):
        del sys.modules[f"{room}.{name}"]
        delattr(sys.modules[room], name)
    sys.modules["__main__"] = ModuleType("__main__")


def _load(files: dict[str, bytes]) -> dict[str, LabTest]:
    """Write the files, load them, and take them away again: the submission shall not find them."""
    found = {}
    for name, content in files.items():
        path = Path(name)
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(content)
        try:
            found.update({test.name: test for test in load_tests(path)})
            linecache.getlines(str(path.resolve()))  # for reports, which show the test's line
        finally:
            shutil.rmtree(path.parent, ignore_errors=True)
    return found


# ---- this side of a run -------------------------------------------------------------------------------------


def _run(setup: Setup, test: LabTest, request: Request, tester: Inventory, grader: int) -> RunRecord:
    own = Path(_OWN).resolve()
    _fresh_folder(own, setup)
    seal = os.urandom(_SEAL_BYTES)
    sealed_read, sealed_write = os.pipe()
    output_read, output_write = os.pipe()
    child = os.fork()
    if child == 0:
        os.dup2(output_write, 1)
        os.dup2(output_write, 2)
        _be_the_run(setup, own, seal, sealed_write, lambda send: _judge(setup, test, request, tester, send))
    os.close(sealed_write)
    os.close(output_write)
    try:
        sealed, output, late = _watch(child, sealed_read, output_read, grader, setup.limits)
    finally:
        os.close(sealed_read)
        os.close(output_read)
        _, status, usage = os.wait4(child, 0)
        _end_what_is_left(setup.own_pids)
        with suppress(OSError):  # then something is left, and this was the last run here
            remove_tree(own)
    denied, verdict = _believe(sealed, seal)
    record = RunRecord(test=test.name, seed=request.seed, kind=DIED)
    if verdict is not None and (verdict.test, verdict.seed) == (test.name, request.seed):
        record = verdict
    else:
        record.kind, record.cause = _obituary(status, usage.ru_utime + usage.ru_stime, setup.limits, late=late)
        record.report = f"{test.name}  seed {request.seed}\n  {record.cause}\n\n  replay    {request.replay}"
    record.denied = denied
    if record.kind not in (DIED, UNLOADABLE):
        # Of the others the most is printed by programs they started, and where that is cut off is chance.
        record.output = output[: setup.limits.output_kb << 10].decode(errors="replace")
    record.cpu_s = round(usage.ru_utime + usage.ru_stime, 3)
    return record


def _fresh_folder(own: Path, setup: Setup) -> None:
    own.mkdir(mode=0o755)
    for name, content in setup.files.items():
        path = own / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(content)
        path.chmod(0o644)
    if setup.uid:
        for folder, _, _ in os.walk(own):
            os.chown(folder, setup.uid, setup.uid)


def remove_tree(top: Path) -> None:
    """Level by level and not by recursion: a run can make a tree that is deeper than any stack.

    Also what the run has locked against us, where it is the same user.
    """
    top.chmod(0o700)
    number = 0
    while folders := _emptied_of_files(top):
        for folder in folders:
            for inner in _emptied_of_files(folder):
                number += 1
                inner.rename(top / f"{folder.name[:20]}.{number}")
            folder.rmdir()
    top.rmdir()


def _emptied_of_files(folder: Path) -> list[Path]:
    """What remains: the folders in it, each of them ours to change."""
    inner = []
    with os.scandir(folder) as entries:
        for entry in entries:
            if entry.is_dir(follow_symlinks=False):
                inner.append(Path(entry.path))
                inner[-1].chmod(0o700)
            else:
                os.unlink(entry.path)  # noqa: PTH108  # beside scandir
    return inner


def _nothing_is_left() -> bool:
    """Whether the worker's folder is as it was. A run of our own user can write there, too."""
    try:
        return not os.listdir()  # noqa: PTH208  # names alone
    except OSError:
        return False


def _watch(child: int, sealed_read: int, output_read: int, grader: int, limits: Limits) -> tuple[bytes, bytes, bool]:
    """Read along until the child has ended, or its time is up: what it sealed, what it printed, whether it was late.

    What is beyond the limits is read and forgotten, so that printing much costs a run nothing but its time. Its time is
    up, too, when the grader is gone: nobody else could end what it has started.
    """
    process = os.pidfd_open(child)
    kept = {sealed_read: bytearray(), output_read: bytearray()}
    most = {sealed_read: _SEALED_BYTES_MAX, output_read: limits.output_kb << 10}
    poll = select.poll()
    for fd in (*kept, process):
        os.set_blocking(fd, False)
        poll.register(fd, select.POLLIN)
    poll.register(grader, 0)  # of its pipe we hear only that it has ended
    until_s = time.monotonic() + limits.real_s
    late = False
    try:
        ended = False
        while not ended:
            left_s = until_s - time.monotonic()
            if left_s <= 0:
                os.kill(child, signal.SIGKILL)
                late = True
                break
            for fd, _ in poll.poll(left_s * 1000):
                if fd == process:
                    ended = True
                elif fd == grader:
                    until_s = 0.0
                elif not _read_some(fd, kept[fd], most[fd]):
                    poll.unregister(fd)
        for fd, buffer in kept.items():
            while len(buffer) < most[fd] and _read_some(fd, buffer, most[fd]):
                pass
    finally:
        os.close(process)
    return bytes(kept[sealed_read]), bytes(kept[output_read]), late


def _read_some(fd: int, buffer: bytearray, most: int) -> bool:
    """False at the end of the pipe, or if there is nothing now."""
    try:
        data = os.read(fd, _CHUNK)
    except BlockingIOError:
        return False
    buffer += data[: max(0, most - len(buffer))]
    return bool(data)


def _end_what_is_left(own_pids: bool) -> None:
    """Daemons and forks of the run. Each time round, those that were just born are there to be found."""
    while True:
        if own_pids:
            _kill(-1)  # everybody here but us and the sandbox's init
        else:
            kill_descendants(os.getpid())
        try:
            while os.waitpid(-1, os.WNOHANG)[0]:
                pass
        except ChildProcessError:
            return
        time.sleep(ENDING_S)


def _kill(pid: int) -> None:
    with suppress(ProcessLookupError):
        os.kill(pid, signal.SIGKILL)


def kill_descendants(of: int) -> bool:
    """Those that live now; false if there were none."""
    parents: dict[int, int] = {}
    for entry in Path("/proc").iterdir():
        if entry.name.isdecimal():
            try:
                stat = (entry / "stat").read_text(errors="replace")
            except OSError:
                continue
            state, parent = stat.rpartition(")")[2].split()[:2]
            if state != "Z":  # it has ended, and has no children any more
                parents[int(entry.name)] = int(parent)
    found = {of}
    while more := {pid for pid, parent in parents.items() if parent in found and pid not in found}:
        found |= more
    for pid in sorted(found - {of}):
        _kill(pid)
    return len(found) > 1


def _believe(data: bytes, seal: bytes) -> tuple[list[str], RunRecord | None]:
    """What was denied to the run, and its verdict, if that came sealed and whole."""
    denied: list[str] = []
    while data.startswith(seal):
        size = int.from_bytes(data[_SEAL_BYTES : _SEAL_BYTES + 4], "big")
        body = data[_SEAL_BYTES + 4 : _SEAL_BYTES + 4 + size]
        if len(body) < size:
            break
        data = data[_SEAL_BYTES + 4 + size :]
        try:
            message = _MESSAGE.decode(body)
        except msgspec.MsgspecError:
            break
        if isinstance(message, RunRecord):
            return denied, message
        denied.append(message)
    return denied, None


def too_long(limits: Limits) -> str:
    """One sentence for both limits: which of them a run meets first is a matter of how busy the machine is."""
    return (
        f"The run took too long and was ended: it may use {limits.cpu_s} s of processor time, "
        f"and {limits.real_s} s of real time."
    )


def _obituary(status: int, cpu_s: float, limits: Limits, *, late: bool) -> tuple[str, str]:
    """Kind and cause of a run that gave no verdict."""
    if late:
        return FORCED, too_long(limits)
    code = os.waitstatus_to_exitcode(status)
    if code >= 0:
        return DIED, f"The run ended its own process, with exit status {code}, before the test was over."
    if cpu_s >= limits.cpu_s - 0.5 and -code in (signal.SIGXCPU, signal.SIGKILL):
        return FORCED, too_long(limits)
    return DIED, f"The run's process was ended by {signal_name(-code)} before the test was over."


# ---- the other side -----------------------------------------------------------------------------------------


Send = Callable[[RunRecord | str], None]


def _be_the_run(setup: Setup, own: Path, seal: bytes, sealed: int, judge: Callable[[Send], RunRecord]) -> NoReturn:
    """In the child, and never back: whatever happens, this process ends here."""
    status = 1
    try:
        os.setsid()
        keep = os.dup2(sealed, 3)
        os.closerange(4, resource.getrlimit(resource.RLIMIT_NOFILE)[0])
        os.chdir(own)
        _limit(setup)
        if setup.uid:
            os.setgroups([])
            os.setresgid(setup.uid, setup.uid, setup.uid)
            os.setresuid(setup.uid, setup.uid, setup.uid)
        _prctl(_PR_SET_NO_NEW_PRIVS, 1)
        _prctl(_PR_SET_PDEATHSIG, signal.SIGKILL)  # only now: becoming another user takes it away

        def send(message: RunRecord | str) -> None:
            body = encode(message)
            data = seal + len(body).to_bytes(4, "big") + body
            while data:
                data = data[_write(keep, data) :]

        send(judge(send))
        status = 0
    finally:
        # Not sys.exit(): a submission's atexit functions and threads have no say in how this ends.
        try:
            sys.stdout.flush()
            sys.stderr.flush()
        finally:
            os._exit(status)


def _limit(setup: Setup) -> None:
    limits = setup.limits
    processes = limits.processes
    if not setup.uid and not setup.own_pids:
        # The system counts all that the user has, and the grader's desktop is not the submission's doing.
        processes += threads_of(os.getuid()) + _THREADS_MORE
    for name, soft, hard in (
        ("RLIMIT_CPU", limits.cpu_s, limits.cpu_s + 1),  # a signal that may be caught, then one that may not
        ("RLIMIT_AS", limits.memory_mb << 20, (limits.memory_mb + _REPORT_MB) << 20),
        ("RLIMIT_NPROC", processes, processes),
        ("RLIMIT_FSIZE", limits.file_mb << 20, limits.file_mb << 20),
        ("RLIMIT_NOFILE", limits.open_files, limits.open_files),
        ("RLIMIT_CORE", 0, 0),
    ):
        _, allowed = resource.getrlimit(getattr(resource, name))
        if allowed != resource.RLIM_INFINITY:
            soft, hard = min(soft, allowed), min(hard, allowed)
        resource.setrlimit(getattr(resource, name), (soft, hard))


def threads_of(uid: int) -> int:
    found = 0
    for process in Path("/proc").iterdir():
        with suppress(OSError):  # it has ended meanwhile
            if process.name.isdecimal() and process.stat().st_uid == uid:
                found += len(os.listdir(process / "task"))  # noqa: PTH208  # names alone
    return found


def _judge(setup: Setup, test: LabTest, request: Request, tester: Inventory, send: Send) -> RunRecord:
    """Load the submission, run the test once, and say what came of it."""
    raft = Path(setup.raft)
    record = RunRecord(test=test.name, seed=request.seed, kind=PASSED)
    Fence(Path.cwd(), send).put_up()
    try:
        peer_class = load_peer_class(raft)
    except LoadError as error:
        record.kind = UNLOADABLE
        record.report = _shown(str(error))[:_REPORT_CHARS_MAX]
        record.cause = record.report.partition("\n")[0][:_CAUSE_CHARS_MAX]
        return record
    changed = tester.changes()
    if not changed:
        run = run_test(test.function, peer_class, request.seed)
        changed = tester.changes() or tester.overridden(run.simulation, *run.configs)
    if changed:
        record.kind = TAMPERED
        record.cause = f"It changed the tester ({changed}), so the run counts for nothing."
        record.report = f"{test.name}  seed {request.seed}\n  {record.cause}"
        return record
    simulation, error_seen = run.simulation, run.error
    assert simulation is not None
    record.checks_off = [_shown(line)[:_CAUSE_CHARS_MAX] for line in run.checks_off]
    record.digest, record.virtual_s = run.digest, round(run.virtual_s, 6)
    record.events = 0 if simulation.trace is None else len(simulation.trace)
    if error_seen is None:
        return record
    record.kind = FAILED
    _lift_the_memory_limit()
    raft = raft.resolve()
    verdict = verdict_of(error_seen, raft.parent, test.file)
    record.rule = verdict.name if verdict.ending is Ending.RULE else ""
    record.cause, record.where, record.mistake = without_numbers(verdict.text), verdict.where, verdict.mistake
    told = report.describe(error_seen, test.name, request.seed, request.replay, causes=run.causes)
    if isinstance(error_seen, Unresponsive | MemoryError) or isinstance(error_seen.__cause__, MemoryError):
        # Where it was at that moment is chance, and would differ from one grading to the next.
        record.kind, record.where, record.mistake = FORCED, "", ""
        told = _without_places(told)
    record.said = _shown(report.headline(error_seen))[:_CAUSE_CHARS_MAX]
    record.report = _shown(told)[:_REPORT_CHARS_MAX]
    record.cause, record.where, record.mistake = map(_shown, (record.cause, record.where, record.mistake))
    return record


def _lift_the_memory_limit() -> None:
    """For a run that used it up: the report needs some too."""
    _, hard = resource.getrlimit(resource.RLIMIT_AS)
    resource.setrlimit(resource.RLIMIT_AS, (hard, hard))


def _without_places(text: str) -> str:
    return "\n".join(line for line in text.splitlines() if ".py:" not in line)


def _shown(text: str) -> str:
    """With paths as the reader knows them: the sandbox's folders are nobody's business."""
    text = text.replace(f"{Path.cwd()}/", "").replace(f"{Path.cwd().parent}/", "")
    return text.encode(errors="replace").decode()


def _prctl(option: int, value: int) -> None:
    """Best effort: on a system without it, there is nothing to set."""
    with suppress(AttributeError, OSError, TypeError):
        ctypes.CDLL(None).prctl(option, value, 0, 0, 0)


if __name__ == "__main__":
    os._exit(serve(begin))
