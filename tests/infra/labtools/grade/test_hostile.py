"""The hostile class: every attack ends with the points that were earned, a clear sentence, and no harm done."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path

import pytest

from infra.labtools.grade import hostile
from labtools.cli import main as lab
from labtools.grade.grading import Exam, Progress, grade
from labtools.grade.intake import take_in
from labtools.grade.results import PASSED, TAMPERED
from labtools.grade.rubric import Limits, Rubric
from labtools.grade.sandbox.walls import INSTALL, bubblewrap
from labtools.grade.write import write_class, write_submission
from labtools.selecting import load_tests

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

DAEMON_S = f"86399.{os.getpid()}"  # by which ours are known from those of another run of these tests
PEERS = [*hostile.peers(REFERENCE, DAEMON_S), *hostile.forgers(), *hostile.harmless(REFERENCE)]

pytestmark = [
    pytest.mark.skipif(bubblewrap() is None, reason=f"needs a working bubblewrap: {INSTALL}"),
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
        self.vandal = hostile.vandal(self.victim, REFERENCE)
        for peer in (*self.peers.values(), *self.thieves, self.vandal):
            (class_ / f"{peer.name}.py").write_text(peer.source)
        for name in ("a_right_one", "zz_right_one"):
            (class_ / f"{name}.py").write_text(REFERENCE)
        self.archives = hostile.write_archives(class_, REFERENCE)
        public = load_tests(Path("tests/test_2a.py"))[:1]
        secret = load_tests(hidden)
        limits = Limits(cpu_s=1, real_s=6, forced_per_part=1, memory_mb=512)
        rubric = Rubric(runs=1, points={"2a": 40, "2b": 60}, limits=limits)
        tests = tuple(rubric.assign(public, secret, "phrase"))
        exam = Exam(tests, {test.name: test for test in (*public, *secret)}, limits)
        self.submissions = take_in(class_, rubric.files).submissions
        progress = Progress(len(self.submissions), 0)
        self.out = folder / "out"
        results = grade(self.submissions, exam, jobs=2, runs=self.out / "runs", progress=progress, watch=lambda: None)
        for result in results:
            write_submission(result, "Raft", self.out)
        write_class(results, "Raft", self.out)
        self.results = {result.name: result for result in results}

    def told(self, name: str) -> str:
        result = self.results[name]
        reports = [run.report for test in result.tests for run in test.runs]
        return "\n".join([result.problem, *result.remarks, *reports, *result.denied])


@pytest.fixture(scope="module")
def graded(tmp_path_factory: pytest.TempPathFactory) -> Graded:
    return Graded(tmp_path_factory.mktemp("hostile"))


@pytest.mark.parametrize("peer", PEERS, ids=lambda peer: peer.name)
def test_a_hostile_peer_gets_what_it_earned_and_a_clear_sentence(graded: Graded, peer: hostile.Hostile) -> None:
    result = graded.results[peer.name]
    assert result.score == (100 if peer.earns else 0), graded.told(peer.name)
    assert peer.says in graded.told(peer.name)


def test_right_ones_before_and_after_them_get_full_marks(graded: Graded) -> None:
    for name in ("a_right_one", "zz_right_one"):
        result = graded.results[name]
        assert result.score == 100, graded.told(name)
        assert not result.denied


@pytest.mark.parametrize("peer", hostile.harmless(REFERENCE), ids=lambda peer: peer.name)
def test_what_students_do_for_themselves_is_held_against_nobody(graded: Graded, peer: hostile.Hostile) -> None:
    assert not graded.results[peer.name].denied


def test_patching_the_tester_is_called_tampering(graded: Graded) -> None:
    patching = [name for name in graded.peers if name.startswith("patches_") or name == "only_in_the_grader"]
    patching.remove("patches_pytest")  # which only the hidden test uses
    patching.remove("patches_now_and_then")
    assert patching
    for name in patching:
        kinds = {run.kind for test in graded.results[name].tests for run in test.runs}
        assert kinds == {TAMPERED}, (name, graded.told(name))


def test_who_changes_the_tester_in_one_run_gets_nothing_for_the_others(graded: Graded) -> None:
    result = graded.results["patches_now_and_then"]
    assert {run.kind for test in result.tests for run in test.runs} == {PASSED, TAMPERED}, graded.told(result.name)
    assert result.score == 0


def test_an_archive_is_read_without_being_unpacked(graded: Graded) -> None:
    for name, says in graded.archives.items():
        result = graded.results[name]
        assert result.score == (0 if says else 100), (name, graded.told(name))
        assert says in graded.told(name), name
    assert "'../evil.py' in the archive points outside of it" in graded.told("nested_and_right")
    assert not (graded.folder / "evil.py").exists()


def test_hidden_tests_reach_no_student_by_any_way(graded: Graded) -> None:
    for thief in graded.thieves:
        result = graded.results[thief.name]
        # Whoever raises what it finds can only fail the hidden test with it.
        assert result.score == (100 if thief.earns else 40), graded.told(thief.name)
    # It was found, inside the run: memory is shared. The grader sees it, nobody else does.
    assert SECRET in graded.told("thief_that_raises")
    for path in (graded.out / "students").rglob("*"):
        if path.is_file():
            text = path.read_text()
            assert SECRET not in text, path
            assert "test_hidden_agreement_2b" not in text, path


def test_nothing_outside_its_folder_was_changed(graded: Graded) -> None:
    assert (graded.victim / "keep.txt").read_text() == "still here"
    assert graded.results["vandal"].score == 100, graded.told("vandal")
    assert "tried to change a file outside its folder" in graded.told("vandal")
    assert {path.name for path in graded.folder.iterdir()} == {"class", "hidden", "out", "victim"}


def test_no_process_is_left_behind(graded: Graded) -> None:
    assert not daemons(DAEMON_S)


def daemons(seconds: str) -> list[bytes]:
    found = []
    for path in Path("/proc").glob("[0-9]*/cmdline"):
        with suppress(OSError):  # it has ended meanwhile
            found.append(path.read_bytes())
    return [command for command in found if command == b"/bin/sleep\0%b\0" % seconds.encode()]


def test_a_right_raft_earns_its_points_whatever_it_prints(graded: Graded) -> None:
    (run, *_) = graded.results["prints_much"].tests[0].runs
    assert len(run.output) == Limits().output_kb << 10
    assert set(run.output) == {"x"}


def test_without_bubblewrap_limits_and_fence_still_hold(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("labtools.grade.sandbox.walls.bubblewrap", lambda: None)
    # Another user might not be allowed to read the Python that runs this.
    monkeypatch.setattr("labtools.grade.sandbox.walls.another_user", lambda: 0)
    victim = tmp_path / "victim"
    victim.mkdir()
    (victim / "keep.txt").write_text("still here")
    class_ = tmp_path / "class"
    class_.mkdir()
    chosen = {"endless_loop", "fork_bomb", "memory_hog", "exit_zero_later", "patches_config", "leaves_daemons"}
    peers = [peer for peer in hostile.peers(REFERENCE, DAEMON_S) if peer.name in chosen]
    for peer in peers:
        (class_ / f"{peer.name}.py").write_text(peer.source)
    (class_ / "right.py").write_text(REFERENCE)
    source = f"import os\ntry: os.remove({str(victim / 'keep.txt')!r})\nexcept PermissionError: pass\n"
    (class_ / "vandal.py").write_text(source + REFERENCE)
    public = load_tests(Path("tests/test_2a.py"))[:1]
    limits = Limits(cpu_s=1, real_s=6, memory_mb=512)
    exam = Exam(tuple(Rubric(runs=1).assign(public, [], "phrase")), {public[0].name: public[0]}, limits)
    class_of = take_in(class_, Rubric().files).submissions
    results = grade(
        class_of, exam, jobs=2, runs=tmp_path / "runs", progress=Progress(len(class_of), 0), watch=lambda: None
    )
    scores = {result.name: result.score for result in results}
    assert scores == {peer.name: 20 if peer.earns else 0 for peer in peers} | {"right": 20, "vandal": 20}
    assert (victim / "keep.txt").exists()
    assert not daemons(DAEMON_S)


@pytest.mark.parametrize("sent", [signal.SIGKILL, signal.SIGINT])
def test_what_a_run_has_started_ends_with_the_grader_without_bubblewrap_too(tmp_path: Path, sent: int) -> None:
    seconds = f"{DAEMON_S}1"
    peer = f"{hostile.SPAWN}spawn('/bin/sleep', '{seconds}')\nos.read(os.pipe()[0], 1)\n"
    (tmp_path / "raft.py").write_text(peer)
    (tmp_path / "rubric.toml").write_text("runs = 1\n[points]\n2a = 1\n")  # which is soon tried on the reference
    script = (
        "import sys, labtools.grade.sandbox.walls as sandbox\n"
        "sandbox.bubblewrap, sandbox.another_user = lambda: None, lambda: 0\n"
        "from labtools.cli import main\n"
        f"main(['grade', {str(tmp_path / 'raft.py')!r}, '--out', {str(tmp_path / 'out')!r}, "
        f"'--rubric', {str(tmp_path / 'rubric.toml')!r}])\n"
    )
    with subprocess.Popen([sys.executable, "-c", script], stdout=subprocess.DEVNULL) as grader:
        wait_until(lambda: daemons(seconds) or grader.poll() is not None)
        assert daemons(seconds)
        grader.send_signal(sent)
    wait_until(lambda: not daemons(seconds))


def wait_until(holds: Callable[[], object]) -> None:
    """For what other processes do. pytest's limit ends it."""
    while not holds():
        time.sleep(0.01)


@pytest.mark.parametrize("walls", [True, False], ids=["bubblewrap", "limits alone"])
def test_a_run_that_spoils_its_own_users_worker_does_not_end_the_class(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, walls: bool
) -> None:
    monkeypatch.setattr("labtools.grade.sandbox.walls.another_user", lambda: 0)
    if not walls:
        monkeypatch.setattr("labtools.grade.sandbox.walls.bubblewrap", lambda: None)
    class_ = tmp_path / "class"
    class_.mkdir()
    for peer in hostile.spoilers(REFERENCE):
        (class_ / f"{peer.name}.py").write_text(peer.source)
    (class_ / "zz_right.py").write_text(REFERENCE)
    hidden = tmp_path / "hidden.py"
    hidden.write_text(HIDDEN)
    public, secret = load_tests(Path("tests/test_2a.py"))[:1], load_tests(hidden)
    tests = tuple(Rubric(runs=1).assign(public, secret, "phrase"))
    exam = Exam(tests, {test.name: test for test in (*public, *secret)}, Limits())
    class_of = take_in(class_, Rubric().files).submissions
    *_, right = grade(
        class_of, exam, jobs=1, runs=tmp_path / "runs", progress=Progress(len(class_of), 0), watch=lambda: None
    )
    assert right.score == 50


def test_without_walls_the_graders_own_processes_do_not_count_as_the_submissions() -> None:
    script = (
        "import os, resource, subprocess, labtools.grade.sandbox.worker as worker\n"
        "there = [subprocess.Popen(['sleep', '60']) for _ in range(20)]\n"
        "worker._limit(worker.Setup({}, '', worker.Limits(), uid=int(os.environ['UID_']), own_pids=False))\n"
        "print(resource.getrlimit(resource.RLIMIT_NPROC)[0])\n"
        "for process in there: process.kill(); process.wait()\n"
    )

    def allowed(uid: str) -> int:
        command = [sys.executable, "-c", script]
        return int(subprocess.run(command, capture_output=True, check=True, env=os.environ | {"UID_": uid}).stdout)

    assert allowed("0") >= 20 + Limits().processes
    assert allowed("61184") == Limits().processes


@pytest.mark.skipif(os.geteuid() != 0, reason="only root's runs become other users")
def test_processes_of_another_grading_do_not_count_as_the_submissions(tmp_path: Path) -> None:
    there = [subprocess.Popen(["sleep", "60"], user=61_184) for _ in range(20)]
    try:
        (tmp_path / "right.py").write_text(REFERENCE)
        public = load_tests(Path("tests/test_2a.py"))[:1]
        exam = Exam(tuple(Rubric(runs=1).assign(public, [], "phrase")), {public[0].name: public[0]}, Limits())
        class_of = take_in(tmp_path / "right.py", Rubric().files).submissions
        (right,) = grade(class_of, exam, jobs=1, runs=tmp_path / "runs", progress=Progress(1, 0), watch=lambda: None)
        assert right.score == 20, right
    finally:
        for process in there:
            process.kill()
            process.wait()


def test_root_without_bubblewrap_needs_a_python_that_others_may_read(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    closed = tmp_path / "closed"
    closed.mkdir(mode=0o700)
    monkeypatch.setattr("labtools.grade.sandbox.walls.bubblewrap", lambda: None)
    monkeypatch.setattr("labtools.grade.sandbox.walls.another_user", lambda: 61_184)
    monkeypatch.setattr("sys.base_prefix", str(closed))
    assert lab(["grade", "raft/raft.py", "--out", str(tmp_path / "out")]) == 2
    assert f"who may not read Python: {closed} is closed to others. Install bubblewrap" in capsys.readouterr().err
