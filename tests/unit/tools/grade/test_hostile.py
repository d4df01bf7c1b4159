"""Hostile submissions get only earned points and a clear reason, and do no harm."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from contextlib import suppress
from functools import partial
from pathlib import Path
from typing import Any

import msgspec
import pytest

from raftlab.harness.outcome import Ending, Outcome
from raftlab.sandbox import confinement
from raftlab.tools.cli import main as lab
from raftlab.tools.grade.grader import Assignment, GradeProgress, grade
from raftlab.tools.grade.output import pages_folder, write_class, write_submission
from raftlab.tools.grade.runs import run_worker
from raftlab.tools.grade.runs.run_worker import missing_sandbox
from raftlab.tools.grade.runs.worker import RunRequest, RunSetup
from raftlab.tools.grade.submission_loader import WantedFiles, load_submissions
from raftlab.tools.grade.values.results import Result, without_replay
from raftlab.tools.grade.values.rubric import Failures, Limits, Rubric
from raftlab.tools.selection import load_tests
from raftlab.tools.workers import pool
from raftlab.tools.workers.process import Launch, python_worker
from unit.soak import SOAK
from unit.tools.grade import hostile

REFERENCE = Path("raft/raft.py").read_text()
SECRET = "secret-agreement-41"
HIDDEN = f'''
import pytest


def test_hidden_agreement_2b(make_config):
    """{SECRET}"""
    cfg = make_config(servers=3)
    cfg.begin("{SECRET}")
    cfg.one("{SECRET}", 3, retry=False)
'''

# Right until it crashes: it earns what needs no memory.
WRONG = hostile.in_place_of(REFERENCE, "self.persister.save(state.bytes(), snapshot)", "pass")
DAEMON_S = f"86399.{os.getpid()}"  # by which ours are known from those of another run of these tests
LIARS = hostile.liars()
KEEPERS = hostile.keepers(REFERENCE)
PEERS = [
    # An import may take 10 s of processor time, and this one does.
    *(peer for peer in hostile.peers(REFERENCE, DAEMON_S) if SOAK or peer.name != "endless_import"),
    *LIARS,
    *hostile.harmless(REFERENCE),
    *hostile.spoilers(REFERENCE),
]

pytestmark = [
    pytest.mark.skipif(bool(missing_sandbox()), reason=missing_sandbox()),
    pytest.mark.timeout(600),  # for the one that grades the class, on a busy machine
]


class Graded:
    """One class with everything in it, graded once for all tests of this module."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        class_ = folder / "class"
        class_.mkdir()
        self.victim = folder / "victim"
        self.victim.mkdir()
        (self.victim / "keep.txt").write_text("still here")
        hidden = folder / "hidden" / "hidden_2b.py"
        hidden.parent.mkdir()
        hidden.write_text(HIDDEN)
        self.peers = {peer.name: peer for peer in PEERS}
        self.thieves = hostile.thieves(hidden, REFERENCE)
        self.informers = hostile.informers(hidden)
        self.vandal = hostile.vandal(self.victim, REFERENCE)
        for peer in (*self.peers.values(), *KEEPERS, *self.thieves, *self.informers, self.vandal):
            (class_ / f"{peer.name}.py").write_text(peer.source)
        for name in ("a_right_one", "zz_right_one"):
            (class_ / f"{name}.py").write_text(REFERENCE)
        alone = folder / "alone"
        for place in (alone, class_):
            place.mkdir(exist_ok=True)
            (place / "wrong_one.py").write_text(WRONG)
        self.archives = hostile.write_archives(class_, REFERENCE)
        tests_of = {test.name: test for part in "ac" for test in load_tests(Path(f"tests/test_2{part}.py"))}
        public = [tests_of[name] for name in ("test_initial_election_2a", "test_persist1_2c")]
        secret = load_tests(hidden)
        limits = Limits(cpu_s=1, real_s=6, forced_per_part=1, memory_mb=512)
        rubric = Rubric(runs=1, points={"2a": 20, "2b": 60, "2c": 20}, limits=limits)
        tests = tuple(rubric.assign(public, secret, "phrase"))
        # Most of them fail all the time, and how that is shown is tried in test_showing.py.
        failures = Failures(pages=3 if SOAK else 0, shrink=0)
        exam = Assignment(tests, {test.name: test for test in (*public, *secret)}, limits, failures=failures)
        self.submissions = load_submissions(class_, WantedFiles(rubric.files)).submissions
        self.at: list[dict[str, str]] = []  # what was under way, now and then
        progress = GradeProgress(len(self.submissions), 0)
        self.out = folder / "out"
        results = grade(
            self.submissions,
            exam,
            jobs=2,
            runs=self.out / "runs",
            pages=partial(pages_folder, self.out),
            progress=progress,
            watch=lambda: self.at.append(dict(progress.at)),
        )
        for result in results:
            write_submission(result, "Raft", self.out)
        write_class(results, "Raft", self.out)
        (only,) = load_submissions(alone, WantedFiles(rubric.files)).submissions
        where = {"runs": alone / "runs", "pages": lambda _: alone / "pages"}
        (self.alone,) = grade([only], exam, jobs=1, **where, progress=GradeProgress(1, 0), watch=lambda: None)
        self.results = {result.name: result for result in results}

    def report(self, name: str) -> str:
        result = self.results[name]
        reports = [run.report for test in result.tests for run in test.runs]
        return "\n".join([result.problem, *result.remarks, *reports])

    def kinds(self, name: str) -> set[str]:
        return {run.kind for test in self.results[name].tests for run in test.runs}


@pytest.fixture(scope="module")
def graded(tmp_path_factory: pytest.TempPathFactory) -> Graded:
    return Graded(tmp_path_factory.mktemp("hostile"))


@pytest.mark.parametrize("peer", PEERS, ids=lambda peer: peer.name)
def test_hostile_peer_gets_its_score_and_a_reason(graded: Graded, peer: hostile.Hostile) -> None:
    result = graded.results[peer.name]
    assert result.score == (100 if peer.earns else 0), graded.report(peer.name)
    assert peer.says in graded.report(peer.name)
    assert "The tester itself has failed" not in "".join(run.cause for test in result.tests for run in test.runs)


def test_correct_peers_among_hostile_ones_get_full_marks(graded: Graded) -> None:
    for name in ("a_right_one", "zz_right_one"):
        assert graded.results[name].score == 100, graded.report(name)


def test_mutant_scores_the_same_in_a_class(graded: Graded) -> None:
    among = graded.results["wrong_one"]
    assert (graded.alone.score, among.score) == (80, 80), graded.report("wrong_one")
    assert timeless(among) == timeless(graded.alone)


def timeless(result: Result) -> list[Outcome]:
    """Its runs with their digests and reports, and without how long they took or where its file lay."""
    runs = [without_replay(run) for test in result.tests for run in test.runs]
    return [msgspec.structs.replace(run, real_s=0, cpu_s=0) for run in runs]


@pytest.mark.parametrize("peer", KEEPERS, ids=lambda peer: peer.name)
def test_unsaved_state_is_lost_wherever_kept(graded: Graded, peer: hostile.Hostile) -> None:
    result = graded.results[peer.name]
    earned = {test.test.part: test.passed for test in result.tests}
    assert earned == {"2a": True, "2c": False, "2b": True}, graded.report(peer.name)


def test_protocol_violation_is_flagged(graded: Graded) -> None:
    for name, what in (
        ("says_what_is_no_message", ""),
        ("says_nested_things", ""),
        ("says_that_it_has_led", "a result without a call"),
        ("is_due_in_the_past", "a wake-up time in the past"),
        ("answers_what_nobody_asked", "a reply without a request"),
        ("calls_a_peer_that_is_not_there", "an invalid call: 'Raft.request_vote' to peer 99"),
        ("declares_a_program", "a type with an invalid field name 'a: exec(1)'"),
        ("declares_without_end", "too many types"),
        ("applies_garbage", "an undecodable command"),
        ("begins_a_giant_save", "an invalid start of a save"),
    ):
        assert graded.kinds(name) == {Ending.MISBEHAVED}, (name, graded.report(name))
        assert f"violated the sandbox protocol: {what}" in graded.report(name)


def test_exit_and_endless_loop_are_explained(graded: Graded) -> None:
    assert Ending.DIED in graded.kinds("exit_zero_later")
    assert Ending.FORCED in graded.kinds("endless_loop")
    assert "used more than 1 s of processor time" in graded.report("endless_loop")


def test_an_archive_is_read_without_being_unpacked(graded: Graded) -> None:
    for name, says in graded.archives.items():
        result = graded.results[name]
        assert result.score == (0 if says else 100), (name, graded.report(name))
        assert says in graded.report(name), name
    assert "'../evil.py' points outside the archive" in graded.report("nested_and_right")
    assert not (graded.folder / "evil.py").exists()


def test_submissions_cannot_find_hidden_tests(graded: Graded) -> None:
    for thief in graded.thieves:
        # Whoever finds something raises it, or prints it.
        result = graded.results[thief.name]
        assert result.score == 100, graded.report(thief.name)
        assert {run.output.strip() for test in result.tests for run in test.runs} == {""}
    for informer in graded.informers:
        result = graded.results[informer.name]
        assert (result.score, informer.says in graded.report(informer.name)) == (0, True), graded.report(informer.name)
    for path in (graded.out / "students").rglob("*"):
        if path.is_file():
            text = path.read_text()
            assert SECRET not in text, path
            assert "test_hidden_agreement_2b" not in text, path


def test_hidden_runs_start_after_all_public_runs(graded: Graded) -> None:
    under_way = [any("hidden" in test for test in at.values()) for at in graded.at if at]
    first = under_way.index(True)
    assert first > 0
    public = [test for at in graded.at[first + len(graded.at) - len(under_way) :] for test in at.values()]
    assert {test for test in public if "hidden" not in test} == set()


def test_submissions_change_no_other_files(graded: Graded) -> None:
    assert (graded.victim / "keep.txt").read_text() == "still here"
    assert graded.results["vandal"].score == 100, graded.report("vandal")
    assert {path.name for path in graded.folder.iterdir()} == {"alone", "class", "hidden", "out", "victim"}


def test_nothing_is_left_behind(graded: Graded) -> None:
    assert not daemons(DAEMON_S)
    assert not any(f"raft{me}" in os.listdir("/dev/shm") for me in range(3))  # noqa: PTH208  # names alone
    # The keys that one of them would keep its state under.
    keys = {int(line.split()[0]) for line in Path("/proc/sysvipc/shm").read_text().splitlines()[1:]}
    assert not keys & {4100, 4101, 4102}


def daemons(seconds: str) -> list[bytes]:
    found = []
    for path in Path("/proc").glob("[0-9]*/cmdline"):
        with suppress(OSError):  # it has ended meanwhile
            found.append(path.read_bytes())
    return [command for command in found if command == b"/bin/sleep\0%b\0" % seconds.encode()]


def test_output_costs_no_points(graded: Graded) -> None:
    (run, *_) = graded.results["prints_much"].tests[0].runs
    assert len(run.output) == Limits().output_kb << 10
    assert set(run.output) == {"x"}
    assert run.dropped > 0


def test_class_of_60_can_be_written(tmp_path: Path) -> None:
    script = Path(hostile.__file__).with_name("classroom.py")
    subprocess.run([sys.executable, script, tmp_path / "sixty"], check=True)
    assert len(load_submissions(tmp_path / "sixty" / "class", WantedFiles(Rubric().files)).submissions) == 60


# ---- disturbed from outside ----------------------------------------------------------------------------------


def wait_until(holds: Callable[[], object]) -> None:
    """For what other processes do. pytest's limit ends it."""
    while not holds():
        time.sleep(0.01)


def processes_of(grader: int) -> dict[int, str]:
    """The grader and those below it, with what they run."""
    parents: dict[int, int] = {}
    commands: dict[int, str] = {}
    for folder in Path("/proc").glob("[0-9]*"):
        with suppress(OSError, IndexError):
            stat = (folder / "stat").read_text().rpartition(")")[2].split()
            if stat[0] != "Z":
                parents[int(folder.name)] = int(stat[1])
                commands[int(folder.name)] = (folder / "cmdline").read_text().replace("\0", " ")
    found = {grader}
    while more := {pid for pid, parent in parents.items() if parent in found and pid not in found}:
        found |= more
    return {pid: commands[pid] for pid in found if pid in commands}


RUBRIC = 'runs = 3\nseed = "words"\n[public]\nextra = false\n[points]\n2a = 1\n[failures]\nshrink_runs = 60\n'


def start_grader(folder: Path, out: str) -> subprocess.Popen[bytes]:
    (folder / "rubric.toml").write_text(RUBRIC)
    (folder / "class").mkdir(exist_ok=True)
    wrong = REFERENCE.replace("self.voted_for = None", "pass")
    for name, source in (("right", REFERENCE), ("wrong", wrong)):
        (folder / "class" / f"{name}.py").write_text(source)
    (folder / "tmp").mkdir(exist_ok=True)
    command = [sys.executable, "-m", "raftlab", "grade", str(folder / "class"), "--jobs", "2", "--out", out]
    return subprocess.Popen(
        [*command, "--rubric", str(folder / "rubric.toml")],
        stdout=subprocess.DEVNULL,
        env={**os.environ, "TMPDIR": str(folder / "tmp")},
    )


def results_in(out: Path) -> dict[str, bytes]:
    files = [out / "scores.csv", *sorted((out / "students").rglob("*.*"))]
    return {str(path.relative_to(out)): path.read_bytes() for path in files if path.is_file()}


@pytest.fixture(scope="module")
def undisturbed(tmp_path_factory: pytest.TempPathFactory) -> dict[str, bytes]:
    folder = tmp_path_factory.mktemp("undisturbed")
    assert start_grader(folder, str(folder / "out")).wait() == 0
    return results_in(folder / "out")


def kill_after(runs: int, grader: subprocess.Popen[bytes], store: Path) -> None:
    wait_until(lambda: sum(len(path.read_bytes().splitlines()) for path in store.glob("*")) >= runs)
    ours = processes_of(grader.pid)
    assert any("fork_server" in command for command in ours.values())
    grader.send_signal(signal.SIGKILL)
    grader.wait()
    wait_until(lambda: not any(Path(f"/proc/{pid}").exists() for pid in ours))
    assert list(store.parent.parent.joinpath("tmp").iterdir()) == []


@pytest.mark.skipif(not SOAK, reason="takes long; make soak has it")
def test_killed_grader_leaves_nothing_and_resumes(tmp_path: Path, undisturbed: dict[str, bytes]) -> None:
    out = tmp_path / "out"
    for after_runs in (1, 5):
        kill_after(after_runs, start_grader(tmp_path, str(out)), out / "runs")
    assert start_grader(tmp_path, str(out)).wait() == 0
    assert results_in(out) == undisturbed


@pytest.mark.skipif(not SOAK, reason="takes long; make soak has it")
def test_killed_peer_process_changes_no_result(tmp_path: Path, undisturbed: dict[str, bytes]) -> None:
    out = tmp_path / "out"
    grader = start_grader(tmp_path, str(out))
    killed = 0
    while grader.poll() is None and killed < 8:
        time.sleep(0.1)
        peers = [pid for pid, command in processes_of(grader.pid).items() if "fork_server" in command]
        # The youngest is a peer process: not bubblewrap, nor the fork server.
        for pid in sorted(peers)[-1:]:
            with suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)
                killed += 1
    assert grader.wait() == 0
    assert killed
    assert results_in(out) == undisturbed


def test_worker_killed_at_start_is_restarted(monkeypatch: pytest.MonkeyPatch) -> None:
    started: list[Launch] = []

    def killed_at_first(*args: Any, **keywords: Any) -> Launch:
        launch = python_worker(*args, **keywords)
        if not started:
            launch.command = ["/bin/sh", "-c", "kill -9 $$"]
        started.append(launch)
        return launch

    monkeypatch.setattr(pool, "python_worker", killed_at_first)
    setup = RunSetup({"raft/raft.py": REFERENCE.encode()}, "raft/raft.py", Limits())
    workers = run_worker.run_pool(1)
    request = RunRequest(
        setup, str(Path("tests/test_2a.py").resolve()), "tests/test_2a.py", "test_initial_election_2a", 1, ""
    )
    assert workers.submit(lambda worker: run_worker.make_run(worker, request)).result().passed
    assert len(started) == 2
    workers.shutdown()


# ---- without a sandbox --------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("missing", "told"),
    [
        ("bubblewrap", "bubblewrap cannot be used here, so submissions could read this machine's files"),
        ("syscall_filter", "libseccomp cannot be used here, so submissions could communicate"),
    ],
)
def test_missing_sandbox_is_refused_by_default(
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
    missing: str,
    told: str,
) -> None:
    monkeypatch.setattr(confinement, missing, lambda: None)
    monkeypatch.setattr(confinement, "unreadable_path_error", lambda: "")
    command = ["grade", "raft/raft.py", "--out", str(tmp_path / "out"), "--rubric", str(tmp_path / "rubric.toml")]
    (tmp_path / "rubric.toml").write_text("runs = 1\n[public]\nextra = false\n[points]\n2a = 1\n")
    assert lab(command) == 2
    assert told in capsys.readouterr().err
    assert lab([*command, "--no-sandbox"]) == 0
    assert f"No sandbox: {told}" in " ".join(capsys.readouterr().out.split())


def test_refuses_other_systems_than_linux(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.delattr(os, "pidfd_open")
    assert lab(["grade", "raft/raft.py", "--out", str(tmp_path / "out")]) == 2
    assert "lab grade needs Linux" in capsys.readouterr().err
    assert lab(["replay", "test_initial_election_2a", "--seed", "1", "--isolated"]) == 2
    assert "--isolated needs Linux" in capsys.readouterr().err
