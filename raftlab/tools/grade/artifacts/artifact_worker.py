"""Which of a submission's failures are shown, and how they come to be: asked for here, made in worker.py.

Promise: whatever becomes of a picture, the result stays as it is; where there is none, it says why in a few words. The
same cause is shrunk once. What was made is kept with the digests of its files, so that a killed grader goes on.

Start at `Desk.show()`.
"""

from __future__ import annotations

import hashlib
from collections.abc import Sequence
from functools import cache
from pathlib import Path

import msgspec

from raftlab.harness.outcome import FAILED, Outcome
from raftlab.layout import ROOT
from raftlab.tools.grade.artifacts.worker import Drawn, Wanted
from raftlab.tools.grade.runs.run_digest import needed_by
from raftlab.tools.grade.runs.run_worker import BoxError
from raftlab.tools.grade.runs.worker import Request
from raftlab.tools.grade.values.results import Shown, TestResult
from raftlab.tools.grade.values.rubric import Failures
from raftlab.tools.grade.values.store import Store, write_whole
from raftlab.tools.workers.process import CannotStart, Closed, Lost, WorkerProcess, python_worker

_WORKER = "raftlab.tools.grade.artifacts.worker"
# What may be run to shrink a failure, if its runs are long: so many events. Fewer runs than these are not worth while.
_EVENTS, _RUNS_MIN = 500_000, 60
_GRACE_S = 60.0


@cache
def _code() -> str:
    """A digest of what pictures are made with, besides what runs are made with."""
    digest = hashlib.blake2b(digest_size=16)
    for path in [*needed_by(_WORKER), *sorted((ROOT / "raftlab/tools/page/web").iterdir())]:
        content = path.read_bytes()
        digest.update(f"{path.name} {len(content)} ".encode() + content)
    return digest.hexdigest()


class Choice(msgspec.Struct, frozen=True):
    """One failure to show."""

    run: Outcome
    page: bool
    shrink: bool


def chosen(results: Sequence[TestResult], failures: Failures) -> list[Choice]:
    """Of each mistake its shortest run; then the first failed run of each test that has none yet.

    Only of public tests that have failed, and that students see. A run that was ended from outside, or took its process
    along, would do so again, as often as it is tried.
    """
    by_mistake: dict[tuple[str, ...], list[Outcome]] = {}
    firsts = []
    for result in results:
        if result.test.hidden or result.test.race or result.test.visibility != "visible" or result.passed:
            continue
        failed = [run for run in result.failures if run.kind == FAILED]
        firsts += failed[:1]
        for run in failed:
            by_mistake.setdefault(run.cause_key, []).append(run)
    examples = [min(runs, key=lambda run: run.events) for runs in by_mistake.values()]
    drawn = {(run.test, run.seed) for run in examples}
    others = [run for run in firsts if run.test not in {test for test, _ in drawn}]
    found = []
    for place, run in enumerate([*examples, *others]):
        choice = Choice(run, place < failures.pages, place < min(len(examples), failures.shrink))
        if choice.page or choice.shrink:
            found.append(choice)
    return found


class Desk:
    """For one thread, but for close()."""

    def __init__(self) -> None:
        here = Path(__file__).parent  # not where a raft/raft.py lies
        self._worker = WorkerProcess(lambda: python_worker(_WORKER, None, folder=here, lab=ROOT))

    def show(
        self, choice: Choice, request: Request, code: str, failures: Failures, folder: Path, store: Store[Shown]
    ) -> Shown:
        """The files are in the folder then. `request` makes the run, and `code` is a digest of all that decides about
        it."""
        run = choice.run
        enough = max(_RUNS_MIN, _EVENTS // max(run.events, 1))
        many = min(failures.shrink_runs, enough) if choice.shrink else 0
        wanted = Wanted(request, run.digest, choice.page, many, failures.shrink_s)
        asked = msgspec.json.encode(wanted)
        key = hashlib.blake2b(f"{code} {_code()} ".encode() + asked, digest_size=16).hexdigest()
        known = store.get(key, run.test, run.seed)
        if known is not None and all(_digest(folder / name) == digest for name, digest in known.files.items()):
            return known
        limit_s = failures.shrink_s + 4 * request.setup.limits.real_s + _GRACE_S
        try:
            (answer,) = self._worker.ask([asked], limit_s)
        except Closed:
            raise BoxError("it was closed") from None
        except CannotStart:
            return _none(run, "the process that makes it does not start")
        if isinstance(answer, Lost):
            return _none(run, f"the process that makes it {answer.how}")
        drawn = msgspec.json.decode(answer, type=Drawn)
        shown = drawn.shown
        for name, content in drawn.files.items():
            write_whole(folder / name, content)
            shown.files[name] = _digest(folder / name)
            shown.bytes += len(content)
        store.add(key, shown)
        return shown

    def close(self) -> None:
        """From any thread; what is under way raises BoxError."""
        self._worker.close()

    def end(self) -> None:
        self._worker.fresh()


def without_files(shown: Shown, folder: Path, why: str) -> Shown:
    """The words alone."""
    for name in shown.files:
        (folder / name).unlink(missing_ok=True)
    return msgspec.structs.replace(shown, page="", shrunk_page="", choices="", no_page=why, files={}, bytes=0)


def _none(run: Outcome, why: str) -> Shown:
    return Shown(test=run.test, seed=run.seed, no_page=why, not_shrunk=why)


def _digest(path: Path) -> str:
    try:
        return hashlib.blake2b(path.read_bytes(), digest_size=16).hexdigest()
    except OSError:
        return ""
