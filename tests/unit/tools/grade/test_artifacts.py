"""Pages and minimized runs of failures: which failures get them, and that they change no result."""

from __future__ import annotations

import base64
import json
import re
import signal
import subprocess
import sys
import zlib
from html import unescape
from pathlib import Path

import pytest

from raftlab.harness.outcome import Ending, Outcome
from raftlab.tools.cli import main as lab
from raftlab.tools.grade.artifacts import worker
from raftlab.tools.grade.artifacts.artifact_worker import artifact_pool, make_artifacts, select_failures
from raftlab.tools.grade.artifacts.worker import ALL_NEEDED, NOT_THE_SAME, TOO_LONG, ArtifactRequest
from raftlab.tools.grade.pages.submission import submission_page
from raftlab.tools.grade.runs.worker import RunRequest, RunSetup
from raftlab.tools.grade.values.results import Artifacts, TestResult
from raftlab.tools.grade.values.rubric import Failures, Limits, Rubric, RubricError
from raftlab.tools.grade.values.store import Store
from raftlab.tools.selection import select
from tests.mutants.tool.mutants import load_mutants
from unit.soak import SOAK
from unit.tools.grade.test_grade import SIGNALLED, everything_in
from unit.tools.grade.test_pages import HOSTILE, bad, graded, submission

TEST = "test_figure8_2c"
HIDDEN = """
def test_hidden_figure8_2c(make_config):
    cfg = make_config(servers=3)
    cfg.begin("SECRET hidden phase")
    cfg.fail("a hidden failure")
"""
RUBRIC = f"""
runs = 1
seed = "a seed"
[public]
extra = false
[points]
[failures]
shrink_runs = 60
[hidden]
show = "everything"
visibility = "visible"
[tests.{TEST}]
points = 40
[tests.test_figure8_unreliable_2c]
points = 40
[tests.test_hidden_figure8_2c]
points = 60
"""


def wrong_source() -> str:
    (mutant,) = [mutant for mutant in load_mutants() if mutant.id == "figure8-commit"]
    return mutant.source()


def course(folder: Path, out: str) -> list[str]:
    (folder / "class").mkdir(exist_ok=True)
    (folder / "class" / "eve.py").write_text(wrong_source())
    (folder / "hidden.py").write_text(HIDDEN)
    (folder / "rubric.toml").write_text(RUBRIC)
    where = ["--hidden", str(folder / "hidden.py"), "--rubric", str(folder / "rubric.toml"), "--no-validation"]
    return ["grade", str(folder / "class"), *where, "--out", str(folder / out), "--jobs", "1"]


def data_of(page: str) -> dict:
    (packed,) = re.findall(r'id="data">([^<]*)<', page)
    return json.loads(zlib.decompress(base64.b64decode(packed)))


def test_student_page_shows_minimized_failure(tmp_path: Path) -> None:
    assert lab(course(tmp_path, "out")) == 0
    student = tmp_path / "out" / "students" / "eve"
    report = unescape((student / "report.html").read_text())
    assert "To reproduce the failure with " in report and "It breaks earned-commit at" in report
    assert re.search(r"from test_figure8\w+ with seed \d+: \d+ of \d[\d,]* events are left", report)
    assert "leader of term" in report.partition("Timeline")[2]
    files = {path.name for path in (student / "pages").iterdir()}
    links = set(re.findall(r'href="\./pages/([^"]+)"', report))
    assert links == files
    # Each test that failed has its page; the one mistake was shrunk once, with the shorter run.
    assert len([name for name in files if name.endswith("-shrunk.html")]) == 1
    (choices,) = [name for name in files if name.endswith(".choices")]
    for test in (TEST, "test_figure8_unreliable_2c"):
        (name,) = [name for name in files if re.fullmatch(rf"{test}-\d+\.html", name)]
        run = data_of((student / "pages" / name).read_text())["run"]
        assert (run["test"], run["failed"], run["rule"]) == (test, True, "earned-commit")
        assert run["replay"].startswith(f"make replay TEST={test} SEED=")
    # The grader's page leads to the same files, from where it lies.
    full = unescape((tmp_path / "out" / "full" / "eve.html").read_text())
    for link in re.findall(r'href="(\./\.\./students/[^"]+)"', full):
        assert (tmp_path / "out" / "full" / link).is_file()
    told = [test["output"] for test in json.loads((student / "results.json").read_text())["tests"]]
    assert sum("To reproduce the failure with " in text for text in told) == 1
    # Of the hidden test, which may be told in words, nothing is drawn.
    assert "a hidden failure" in report
    drawn_tests = {data_of(path.read_text())["run"]["test"] for path in (student / "pages").glob("*.html")}
    assert drawn_tests == {TEST, "test_figure8_unreliable_2c"}
    # What is left fails the same way on the student's machine.
    peer = tmp_path / "class" / "eve.py"
    again = [
        sys.executable,
        "-m",
        "raftlab",
        "replay",
        str(student / "pages" / choices),
        "--raft",
        str(peer),
        "--isolated",
    ]
    done = subprocess.run(again, capture_output=True, text=True, check=False)
    assert done.returncode == 1 and "Same run as recorded" in done.stdout, done.stdout + done.stderr


@pytest.mark.skipif(not SOAK, reason="takes long; make soak has it")
def test_killed_while_making_artifacts_resumes(tmp_path: Path) -> None:
    arguments = course(tmp_path, "out")
    # Two public runs, then the first picture.
    killed = subprocess.run([sys.executable, "-c", SIGNALLED, "SIGKILL", "3", *arguments], check=False)
    assert killed.returncode == -signal.SIGKILL
    pages = tmp_path / "out" / "students" / "eve" / "pages"
    (first,) = [path for path in pages.iterdir() if path.name.endswith("-shrunk.html")]
    first.write_text("cut off")
    (pages / "test_of_last_week_2a-1.html").write_text("old")
    assert lab(arguments) == 0
    assert lab(course(tmp_path, "fresh")) == 0
    assert everything_in(tmp_path / "out") == everything_in(tmp_path / "fresh")
    assert not (pages / "test_of_last_week_2a-1.html").exists()


def failing(test: str, seed: int, *, mistake: str = "one", events: int = 100, ending: Ending = Ending.RULE) -> Outcome:
    return Outcome(test=test, seed=seed, ending=ending, mistake=mistake, events=events)


def test_selection_of_failures_to_show() -> None:
    def result(name: str, *runs: Outcome, **more: object) -> TestResult:
        return TestResult(graded(name, seeds=tuple(run.seed for run in runs), **more), runs)

    results = [
        result("test_a_2a", failing("test_a_2a", 1, events=500)),
        result("test_b_2a", failing("test_b_2a", 2, events=300), failing("test_b_2a", 3, mistake="two")),
        result("test_c_2a", failing("test_c_2a", 4)),
        result("test_d_2a", failing("test_d_2a", 5, ending=Ending.FORCED, mistake="three")),
        result("test_e_2a", failing("test_e_2a", 6, mistake="four"), hidden=True),
        result("test_f_2a", failing("test_f_2a", 7, mistake="five"), visibility="after_published"),
    ]

    def artifacts(**how: int) -> list[tuple[str, int, bool, bool]]:
        return [(c.run.test, c.run.seed, c.page, c.shrink) for c in select_failures(results, Failures(**how))]

    assert artifacts() == [("test_c_2a", 4, True, True), ("test_b_2a", 3, True, True), ("test_a_2a", 1, True, False)]
    assert artifacts(pages=1, shrink=2) == [("test_c_2a", 4, True, True), ("test_b_2a", 3, False, True)]
    assert artifacts(pages=0, shrink=0) == []


def drawn(source: str, test: str, *, digest: str | None = None, runs: int = 60, limit_s: float = 600) -> Artifacts:
    (found,) = select([test])
    setup = RunSetup({"raft/raft.py": source.encode()}, "raft/raft.py", Limits())
    request = RunRequest(setup, str(found.file), "tests/test.py", test, 7, "make replay")
    if digest is None:
        program = worker.make_launcher(worker._LimitedLauncher, setup, lambda _: None)
        digest = worker.run_test(found, program, 7).digest
        program.close()
    return worker._answer(ArtifactRequest(request, digest, True, runs, limit_s)).artifacts


def test_slow_or_varying_failure_is_not_minimized() -> None:
    late = drawn(wrong_source(), TEST, limit_s=1e-9)
    assert (late.not_shrunk, late.recipe, late.page) == (TOO_LONG, [], f"{TEST}-7.html")
    other = drawn(wrong_source(), TEST, digest="another", runs=0)
    assert (other.not_shrunk, other.page) == (NOT_THE_SAME, "")
    assert other.no_page


def test_incompressible_failure_is_reported(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(worker, "_EVENTS_LEFT_MAX", 0.0)
    shown = drawn(wrong_source(), TEST, runs=15)
    assert (shown.not_shrunk, shown.recipe, shown.page) == (ALL_NEEDED, [], f"{TEST}-7.html")


@pytest.mark.skipif(not SOAK, reason="takes long; make soak has it")
def test_shrinking_ends_after_a_number_of_runs() -> None:
    few, more = (drawn(wrong_source(), TEST, runs=runs) for runs in (60, 120))
    assert few.recipe and more.recipe
    assert few.events == more.events and more.events_left < few.events_left < few.events
    assert drawn(wrong_source(), TEST, runs=60) == few


def test_lost_worker_costs_only_the_artifacts(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(
        "raftlab.tools.grade.artifacts.artifact_worker._WORKER", "os.path"
    )  # a module that serves nobody
    pool, store = artifact_pool(1), Store(tmp_path / "eve.jsonl", Artifacts)
    run = failing(TEST, 7)
    request = RunRequest(RunSetup({}, "raft/raft.py", Limits()), "", "", TEST, 7, "")
    (choice,) = select_failures([TestResult(graded(TEST, seeds=(7,)), (run,))], Failures())
    shown = pool.submit(
        lambda worker: make_artifacts(worker, choice, request, "code", Failures(), tmp_path, store)
    ).result()
    assert shown.no_page == shown.not_shrunk == "the process that makes pages does not start"
    pool.shutdown()
    store.close()


def test_artifacts_are_escaped() -> None:
    result = bad(graded("test_a_2a"))
    words = {"recipe": [HOSTILE], "timeline": HOSTILE, "no_page": HOSTILE, "not_shrunk": HOSTILE}
    files = {"page": f"{HOSTILE}.html"[:200], "shrunk_page": "a b.html", "choices": "c.choices"}
    seed = result.runs[0].seed
    for given in (words | files, words | {"recipe": []}):
        shown = Artifacts(test="test_a_2a", seed=seed, **given)
        page = submission_page(
            type(submission())("eve", "", (), (result,), shown=(shown,)), "Raft", full=False, pages="pages"
        )
        assert "<script" not in page and "<img" not in page and "javascript:alert" not in re.sub(r">[^<]*<", "", page)
        assert "\u202e" not in page and "\x1b" not in page


def test_invalid_failure_options_are_refused(tmp_path: Path) -> None:
    for line, why in (("pages = -1", "at least 0, got -1"), ("shrink_s = 0", "at least 1, got 0")):
        (tmp_path / "rubric.toml").write_text(f"[failures]\n{line}\n")
        with pytest.raises(RubricError, match=f"failures.{line.split()[0]}: must be {why}"):
            Rubric.read(tmp_path / "rubric.toml")
