"""Selects failures of a submission and has worker.py make their pages and minimized runs.

Promise: artifacts never change a result, and a missing one has a reason. Each cause is minimized once. Finished
artifacts are stored with digests of their files, so an interrupted grader resumes.

Start at `make_artifacts()`.
"""

from __future__ import annotations

import hashlib
from collections.abc import Sequence
from functools import cache
from pathlib import Path

import msgspec

from raftlab.harness.outcome import FAILED, Outcome
from raftlab.layout import ROOT
from raftlab.tools.grade.artifacts.worker import ArtifactAnswer, ArtifactRequest
from raftlab.tools.grade.runs.run_digest import needed_by
from raftlab.tools.grade.runs.run_worker import RunWorkerError
from raftlab.tools.grade.runs.worker import RunRequest
from raftlab.tools.grade.values.results import Artifacts, TestResult
from raftlab.tools.grade.values.rubric import Failures
from raftlab.tools.grade.values.store import Store, write_whole
from raftlab.tools.workers.pool import LocalPool
from raftlab.tools.workers.process import CannotStart, Closed, Lost, WorkerProcess

_WORKER = "raftlab.tools.grade.artifacts.worker"
# Shrinking a failure may take this many events, but at least this many runs.
_EVENTS, _RUNS_MIN = 500_000, 60
_GRACE_S = 60.0


@cache
def _artifact_code_digest() -> str:
    """A digest of the code that makes artifacts, besides the code that makes runs."""
    digest = hashlib.blake2b(digest_size=16)
    for path in [*needed_by(_WORKER), *sorted((ROOT / "raftlab/tools/page/web").iterdir())]:
        content = path.read_bytes()
        digest.update(f"{path.name} {len(content)} ".encode() + content)
    return digest.hexdigest()


class SelectedFailure(msgspec.Struct, frozen=True):
    """A failed run, and which artifacts it gets."""

    run: Outcome
    page: bool
    shrink: bool


def select_failures(results: Sequence[TestResult], failures: Failures) -> list[SelectedFailure]:
    """The shortest run of each cause; then the first failed run of each test that has none yet.

    Only public failed tests that students see. Not runs that were killed or whose process died: that would only be
    repeated.
    """
    by_cause: dict[tuple[str, ...], list[Outcome]] = {}
    firsts = []
    for result in results:
        test = result.test
        if test.hidden or test.race or test.visibility != "visible" or test.show != "everything" or result.passed:
            continue
        failed = [run for run in result.failures if run.kind == FAILED]
        firsts += failed[:1]
        for run in failed:
            by_cause.setdefault(run.cause_key, []).append(run)
    examples = [min(runs, key=lambda run: run.events) for runs in by_cause.values()]
    tests = {run.test for run in examples}
    others = [run for run in firsts if run.test not in tests]
    selected = []
    for number, run in enumerate([*examples, *others]):
        failure = SelectedFailure(run, number < failures.pages, number < min(len(examples), failures.shrink))
        if failure.page or failure.shrink:
            selected.append(failure)
    return selected


def artifact_pool(jobs: int) -> LocalPool:
    """Worker processes for make_artifacts()."""
    return LocalPool(_WORKER, None, jobs, folder=Path(__file__).parent)  # a folder without raft/raft.py


def make_artifacts(
    worker: WorkerProcess,
    failure: SelectedFailure,
    request: RunRequest,
    run_key: str,
    failures: Failures,
    folder: Path,
    store: Store[Artifacts],
) -> Artifacts:
    """Make the artifacts and write their files into `folder`. `request` makes the run, and `run_key` is a digest of
    everything that affects it."""
    run = failure.run
    runs_max = max(_RUNS_MIN, _EVENTS // max(run.events, 1))
    shrink_runs = min(failures.shrink_runs, runs_max) if failure.shrink else 0
    message = msgspec.json.encode(ArtifactRequest(request, run.digest, failure.page, shrink_runs, failures.shrink_s))
    key = hashlib.blake2b(f"{run_key} {_artifact_code_digest()} ".encode() + message, digest_size=16).hexdigest()
    known = store.get(key, run.test, run.seed)
    if known is not None and all(_digest(folder / name) == digest for name, digest in known.files.items()):
        return known
    limit_s = failures.shrink_s + 4 * request.setup.limits.real_s + _GRACE_S
    try:
        (answer,) = worker.ask([message], limit_s)
    except Closed:
        raise RunWorkerError("the process that makes pages was closed") from None
    except CannotStart:
        return _without_artifacts(run, "the process that makes pages does not start")
    if isinstance(answer, Lost):
        return _without_artifacts(run, f"the process that makes pages {answer.how}")
    made = msgspec.json.decode(answer, type=ArtifactAnswer)
    artifacts = made.artifacts
    for name, content in made.files.items():
        write_whole(folder / name, content)
        artifacts.files[name] = _digest(folder / name)
        artifacts.bytes += len(content)
    store.add(key, artifacts)
    return artifacts


def without_files(artifacts: Artifacts, folder: Path, why: str) -> Artifacts:
    """Only the text of the artifacts."""
    for name in artifacts.files:
        (folder / name).unlink(missing_ok=True)
    return msgspec.structs.replace(artifacts, page="", shrunk_page="", choices="", no_page=why, files={}, bytes=0)


def _without_artifacts(run: Outcome, why: str) -> Artifacts:
    return Artifacts(test=run.test, seed=run.seed, no_page=why, not_shrunk=why)


def _digest(path: Path) -> str:
    try:
        return hashlib.blake2b(path.read_bytes(), digest_size=16).hexdigest()
    except OSError:
        return ""
