"""`lab grade`: grades a class of submissions on public and hidden tests, each peer in a sandbox.

Start at `main()`. submission_loader.py reads the submissions, validation.py tries the tests on a solution, grader.py
makes the runs, output.py and pages/ write the results, and results_store.py keeps them from one call to the next.
"""

from __future__ import annotations

import argparse
import os
import secrets
import sys
import time
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import replace
from functools import partial
from pathlib import Path
from statistics import mean, median

import msgspec
from rich.console import Console, Group, RenderableType
from rich.live import Live
from rich.progress_bar import ProgressBar
from rich.table import Table
from rich.text import Text

from labsim.stacks import short_path
from raftlab.harness.lab_test import LabTest
from raftlab.harness.options import JOBS, KV, OUT, add_options
from raftlab.layout import PEER, ROOT, SERVICE
from raftlab.tools.common.interrupts import sigterm_as_interrupt
from raftlab.tools.common.lock import FolderInUse, exclusive_lock
from raftlab.tools.common.text import counted, printable
from raftlab.tools.grade import gradescope
from raftlab.tools.grade.exports import EXPORTS, write_exports
from raftlab.tools.grade.grader import Assignment, GradeProgress, grade, reference_files
from raftlab.tools.grade.output import pages_folder, write_class, write_submission, write_submitted
from raftlab.tools.grade.results_store import AssignmentKey, Provenance, ResultsStore, ResultsStoreError
from raftlab.tools.grade.runs.run_digest import FUZZ_TESTS
from raftlab.tools.grade.runs.run_worker import RunWorkerError, missing_sandbox
from raftlab.tools.grade.submission_loader import LoadedSubmissions, SubmissionError, WantedFiles, load_submissions
from raftlab.tools.grade.validation import FILE, Validation, ValidationFailed
from raftlab.tools.grade.values.class_list import ClassList, several
from raftlab.tools.grade.values.overrides import OverridesError
from raftlab.tools.grade.values.results import Result, has_other_name_than_file, points
from raftlab.tools.grade.values.roster import RosterError
from raftlab.tools.grade.values.rubric import Rubric, RubricError
from raftlab.tools.grade.values.store import write_whole
from raftlab.tools.selection import SCENARIO, SelectionError, load_tests, not_lab_tests

FOLDER = Path("build/grade")
_SEED_FILE = "seed"
_NAMED_MAX = 6  # in a line
_LINE_EVERY_S = 60.0  # in a log file
_TEST_SUFFIXES = (".py", SCENARIO)
_REFERENCE = ROOT / PEER / "raft.py"  # absent in some courses, and always on Gradescope
_REFERENCE_SERVICE = ROOT / SERVICE / "server.py"

_EPILOG = """\
examples:
  lab grade subs/ --hidden hidden/ --out grades/         grade a class
  lab grade subs/ann.zip --hidden hidden/ --out grades/  add or regrade one
  lab grade subs/ --roster roster.csv --out grades/      with names and exports
  lab grade alice.zip --out /tmp/alice                   public tests only
  lab grade --gradescope autograder.zip --hidden hidden/

A submission is a folder, a zip or tar file, or a raft.py. For parts 3A and 3B
a submission also has a folder kv. A folder of submissions is a class; a single
submission is added to the class in OUT, or replaces its earlier version there.
Every test is first validated on the solution; if one fails there, no
submission is graded. Finished runs are cached; run the same command again to
resume.
OUT gets index.html, scores.csv and provenance.json; submitted/NAME/ with the
graded files; students/NAME/ with report.html, results.json and junit.xml; and
with a roster exports/ with the scores for Canvas, Moodle and Gradescope.
Exit status: 0 graded, 2 could not grade, 130 interrupted.
"""


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.usage = "lab grade SUBMISSIONS [options]\n       lab grade --gradescope ZIP [options]"
    parser.formatter_class = argparse.RawDescriptionHelpFormatter
    parser.epilog = _EPILOG
    add = parser.add_argument
    add("submissions", type=Path, nargs="?", metavar="SUBMISSIONS", help="folder of submissions, or one submission")
    add("--hidden", type=Path, action="append", default=[], metavar="PATH", help="file or folder with hidden tests")
    add(
        "--rubric",
        type=Path,
        metavar="FILE",
        help="points, seeds and limits as TOML (docs/instructor/grading.md)",
    )
    add("--roster", type=Path, metavar="FILE", help="the students as CSV: id, name, email, section, aliases")
    add("--overrides", type=Path, metavar="FILE", help="points, comments and excuses of single students as TOML")
    add_options(
        add,
        replace(OUT, default=FOLDER, help="folder for results; finished runs in this folder are not repeated"),
        replace(JOBS, help="number of submissions to grade at the same time (default: one per core)"),
        replace(KV, default=None, help=f"server.py that passes 3A and 3B (default: the lab's {SERVICE}/server.py)"),
    )
    add(
        "--solution",
        type=Path,
        metavar="PATH",
        help=f"raft.py that passes all tests (default: the lab's {PEER}/raft.py)",
    )
    add("--no-validation", action="store_true", help="do not validate the tests on the solution")
    add("--no-pages", action="store_true", help="write no pages for failures, whatever the rubric says")
    add("--single", action="store_true", help="treat SUBMISSIONS as one submission")
    add(
        "--no-sandbox",
        action="store_true",
        help="grade even if peers cannot be sandboxed (docs/instructor/sandbox.md)",
    )
    add("--no-walls", action="store_true", help=argparse.SUPPRESS)  # the name until this version
    add("--proved", action="store_true", help=argparse.SUPPRESS)  # likewise
    add("--gradescope", type=Path, metavar="ZIP", help="write an autograder for Gradescope and exit")


def main(args: argparse.Namespace) -> int:
    if not hasattr(os, "pidfd_open"):
        return _fail("lab grade needs Linux, for its sandbox and its limits")
    if args.no_walls:
        return _fail("--no-walls was renamed to --no-sandbox")
    if args.proved:
        return _fail("--proved was renamed to --no-validation")
    if (args.submissions is None) == (args.gradescope is None):
        return _fail("give either SUBMISSIONS, to grade them, or --gradescope ZIP, to write an autograder")
    try:
        rubric = Rubric() if args.rubric is None else Rubric.read(args.rubric)
        public = _tests(sorted((ROOT / "tests").glob("test_[23]*.py" if rubric.public.extra else "test_[23]?.py")))
        hidden = _tests(_hidden_files(args.hidden))
        if args.gradescope is not None:
            return _write_autograder(args, rubric, public, hidden)
        own = (args.out, *args.hidden, *(path for path in (args.solution, args.kv) if path))
        graded_tests = [test for test in (*public, *hidden) if rubric.includes(test)]
        wanted = _wanted(rubric, graded_tests)
        loaded = load_submissions(args.submissions, wanted, single=args.single, excluded=own)
        _make_out(args.out)
        class_list = ClassList.read(args.out, args.roster, args.overrides)
        assignment = _assignment(rubric, public, hidden, _seed_phrase(rubric, hidden, args.out), args)
    except (RubricError, RosterError, OverridesError, SelectionError, SubmissionError, ValidationFailed) as error:
        return _fail(str(error))
    except OSError as error:
        return _fail(_reason(error))
    if missing_sandbox() and not args.no_sandbox:
        return _fail(f"{missing_sandbox()}, or grade without the sandbox: --no-sandbox")
    try:
        with sigterm_as_interrupt(), exclusive_lock(args.out, "lab grade"):
            store = ResultsStore(args.out, AssignmentKey.of(assignment, rubric))
            loaded = loaded if loaded.is_class else _single(loaded, store)
            others = () if loaded.is_class else store.names
            class_list.check([*(submission.name for submission in loaded.submissions), *others])
            class_list.keep(args.out, args.roster, args.overrides)
            return _grade(args, rubric, assignment, loaded, class_list, store)
    except (FolderInUse, OverridesError, ResultsStoreError, ValidationFailed) as error:
        return _fail(str(error))
    except OSError as error:
        return _fail(f"{_reason(error)}; finished runs are in {args.out}, run the same command again to resume")


def _tests(files: Sequence[Path]) -> list[LabTest]:
    return [test for file in files for test in load_tests(file)]


def _wanted(rubric: Rubric, graded_tests: Sequence[LabTest]) -> WantedFiles:
    with_service = any(test.wants_service for test in graded_tests)
    needs_peer = rubric.raft == "own" or not with_service
    return WantedFiles(rubric.files, rubric.service_files if with_service else (), needs_peer)


def _assignment(
    rubric: Rubric, public: Sequence[LabTest], hidden: Sequence[LabTest], phrase: str, args: argparse.Namespace
) -> Assignment:
    fuzz_tests = load_tests(ROOT / FUZZ_TESTS)
    tests = rubric.assign(public, hidden, phrase, fuzz_tests)
    graded = {test.name for test in tests}
    files = {test.name: test for test in (*public, *hidden, *(test for test in fuzz_tests if test.name in graded))}
    files |= {test.name: files[test.of] for test in tests if test.race}
    failures = msgspec.structs.replace(rubric.failures, pages=0) if args.no_pages else rubric.failures
    assignment = Assignment(tuple(tests), files, rubric.limits, failures=failures)
    if rubric.raft == "reference" and any(map(assignment.wants_service, tests)):
        raft = args.solution or _REFERENCE
        assignment = replace(
            assignment, reference=reference_files(raft), reference_path=short_path(str(raft.resolve()))
        )
    return assignment


def _write_autograder(
    args: argparse.Namespace, rubric: Rubric, public: Sequence[LabTest], hidden: Sequence[LabTest]
) -> int:
    args.gradescope.parent.mkdir(parents=True, exist_ok=True)  # fail early if this is impossible
    phrase = gradescope.phrase(rubric, hidden)
    assignment = _assignment(rubric, public, hidden, phrase, args)
    _validate(assignment, args, Console(highlight=False), record=None)
    gradescope.pack(args.gradescope, args.rubric, rubric, hidden, seeds_from=phrase, reference=assignment.reference)
    print(f"Wrote {args.gradescope}. Upload it to Gradescope as the assignment's autograder.")
    return 0


def _validate(assignment: Assignment, args: argparse.Namespace, console: Console, *, record: Path | None) -> None:
    """Run the tests on a solution, unless that was done. ValidationFailed if it does not pass."""
    if args.no_validation:
        return
    if args.solution is None and not _REFERENCE.is_file():
        _print(console, f"  tests not validated: {PEER}/raft.py does not exist here, and --solution is not given")
        return
    validation = Validation(assignment, args.solution or _REFERENCE, args.kv or _REFERENCE_SERVICE, record)
    if validation.remaining:
        many = f"{counted(len(validation.remaining), 'test')}, {counted(validation.runs_wanted, 'run')}"
        _print(console, f"  validating the tests on {validation.solution}: {many}")
        lines = _regularly(console, lambda: f"  {validation.runs_made:,} of {validation.runs_wanted:,} runs")
        with _live(lambda: _validation_display(validation), console, otherwise=lines) as show:
            validation.run(_jobs(args), show)
    for remark in validation.remarks:
        _print(console, f"  {remark}")


def _jobs(args: argparse.Namespace) -> int:
    return args.jobs or len(os.sched_getaffinity(0))


def _hidden_files(paths: Sequence[Path]) -> list[Path]:
    found: list[Path] = []
    for path in paths:
        files = (
            sorted(p for p in path.iterdir() if p.suffix in _TEST_SUFFIXES and not p.name.startswith(("_", "conftest")))
            if path.is_dir()
            else [path]
        )
        # First, so that a file whose only test is of another kind gets this error.
        for file in files:
            for name, why in not_lab_tests(file).items():
                raise SelectionError(f"{file}: {name} cannot be graded: {why}")
        if not any(load_tests(file) for file in files):
            raise SelectionError(
                f"{path}: no tests found; expected functions test_...(make_config) or test_...(make_kv_config) "
                f"in .py files, or {SCENARIO} files"
            )
        found += files
    names = [file.name for file in found]
    twice = next((name for name in names if names.count(name) > 1), None)
    if twice is not None:
        raise SelectionError(f"two files of hidden tests are called {twice}; rename one")
    return found


def _make_out(out: Path) -> None:
    try:
        out.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise SubmissionError(f"{out}: {error.strerror}; OUT must be a writable folder") from None


def _seed_phrase(rubric: Rubric, hidden: Sequence[LabTest], out: Path) -> str:
    """The text from which the seeds are derived. A random one is stored in OUT, so the next call has the same seeds."""
    phrase = rubric.seed_phrase(hidden)
    if phrase:
        return phrase
    file = out / _SEED_FILE
    if not file.exists():
        write_whole(file, secrets.token_hex(16))
    return file.read_text().strip()


def _single(loaded: LoadedSubmissions, store: ResultsStore) -> LoadedSubmissions:
    """The single submission, under its name in the class in OUT, if it is there."""
    (one,) = loaded.submissions
    one = replace(one, name=store.name_of(one.file) or one.name)
    store.refuse_to_add(one.name)
    return replace(loaded, submissions=[one])


def _grade(
    args: argparse.Namespace,
    rubric: Rubric,
    assignment: Assignment,
    loaded: LoadedSubmissions,
    class_list: ClassList,
    store: ResultsStore,
) -> int:
    console = Console(highlight=False)
    class_ = loaded.submissions
    jobs = _jobs(args)
    wanted = sum(len(test.seeds) for test in assignment.tests) * len(class_)
    progress = GradeProgress(len(class_), wanted)
    hidden = sum(test.hidden for test in assignment.tests)
    _print(
        console,
        f"lab grade: {counted(len(class_), 'submission')}, {len(assignment.tests)} tests ({hidden} hidden), "
        f"at most {wanted:,} runs, {counted(jobs, 'job')}",
    )
    if missing_sandbox():
        _print(console, f"  No sandbox: {missing_sandbox()}")
    if assignment.not_graded:
        _print(
            console,
            "  these tests are not run, because [points] in the rubric omits their part: "
            f"{_by_part(assignment.not_graded)}",
        )
    if class_list.files:
        _print(console, f"  with {_joined(list(map(str, class_list.files)))}")
    for line in _notes_on_submissions(loaded, store):
        _print(console, line)
    _validate(assignment, args, console, record=args.out / FILE)
    provenance = Provenance.of(assignment, rubric, store.key)
    provenance.write(args.out, args.typed, len(class_), loaded.ignored if loaded.is_class else None)
    written = 0

    def write_new() -> None:
        nonlocal written
        while written < len(progress.done):
            result = progress.done[written]
            written += 1
            store.add(result)
            (result,) = class_list.join([result])
            write_submission(result, rubric.title, args.out)
            if not console.is_terminal:
                _print(console, _line(result, written, len(class_)))

    try:
        class_ = [write_submitted(submission, args.out) for submission in class_]
        lines = _regularly(console, lambda: _progress_line(progress))
        with _live(lambda: _display(progress), console, otherwise=lines) as show:

            def watch() -> None:
                write_new()
                show()

            runs = args.out / "runs"
            grade(
                class_,
                assignment,
                jobs=jobs,
                runs=runs,
                pages=partial(pages_folder, args.out),
                progress=progress,
                watch=watch,
            )
            write_new()
            # The folder is the class: earlier submissions that are not in it leave the class.
            gone = store.keep_only(submission.name for submission in class_) if loaded.is_class else []
            results = class_list.join(store.results)
            now = {submission.name for submission in class_}
            for result in results:
                if result.name not in now:
                    write_submission(result, rubric.title, args.out)  # its override may be new
            write_exports(results, rubric.title, class_list, args.out)
            write_class(
                results,
                rubric.title,
                args.out,
                class_list=class_list,
                ignored=provenance.passed_over,
                provenance=provenance.summary,
            )
    except KeyboardInterrupt:
        _print(
            console,
            f"\ninterrupted: {len(progress.done)} of {len(class_)} graded; run the same command again to resume",
        )
        return 130
    except RunWorkerError as error:
        return _fail(str(error))
    _print(console, _summary(results, class_list, progress, args.out))
    if gone:
        _print(
            console,
            "  removed from the class, because they are no longer in the folder (pages and runs are kept): "
            f"{_joined(gone)}",
        )
    return 0


def _line(result: Result, number: int, of: int) -> str:
    failed = sum(not test.passed and not test.skipped for test in result.tests if test.test.counts)
    # Text of a submission must not control the terminal.
    why = f"  {printable(result.problem.partition(chr(10))[0])}" if result.problem else ""
    if not why and failed:
        why = f"  {counted(failed, 'test')} {'unverified or ' if result.unverified else ''}failed"
    score = "excused" if result.excused else f"{points(result.score)} of {points(result.score_max)}"
    return f"{number:>4}/{of}  {result.name}  {score}{why}"


def _summary(results: Sequence[Result], class_list: ClassList, progress: GradeProgress, out: Path) -> str:
    ran = [result for result in results if result.in_statistics]
    scores = [result.score for result in ran]
    score_max = max(result.score_max for result in results)
    full = sum(result.score >= result.score_max - 1e-9 for result in ran)
    average = (
        f"mean {points(mean(scores))}, median {points(median(scores))} of {points(score_max)}, {full} with full marks"
        if ran
        else "none could be run"
    )
    again = f" ({progress.runs_stored:,} from the cache)" if progress.runs_stored else ""
    class_ = f". Class of {len(results):,}" if len(results) > progress.submissions else ""
    runs = progress.runs_made + progress.runs_stored
    lines = [f"\n{counted(progress.submissions, 'submission')} graded in {runs:,} runs{again}{class_}: {average}."]
    for words, names in (
        ("could not be run", [r.name for r in results if r.problem]),
        ("unverified", [r.name for r in results if r.unverified]),
        ("violated the sandbox protocol", [r.name for r in results if r.misbehaved]),
        ("capped, because safety is violated", [r.name for r in results if r.cap is not None]),
        ("overridden", [r.name for r in results if r.override is not None]),
        ("no submission", [r.name for r in class_list.missing(results)]),
        ("not in the roster", class_list.unknown(results)),
        ("several submissions", [f"{student.name} ({', '.join(n)})" for student, n in several(results).items()]),
    ):
        if names:
            lines.append(f"  {words}: {_joined(names)}")
    lines.append(f"  overview  {out}/index.html")
    lines.append(f"  table     {out}/scores.csv")
    if class_list.roster is not None:
        lines.append(f"  exports   {out}/{EXPORTS}/")
    lines.append(f"  students  {out}/students/")
    return "\n".join(lines)


def _regularly(console: Console, line: Callable[[], str]) -> Callable[[], None]:
    """A function that prints the line when it is called, but at most once a minute."""
    reported_s = time.monotonic()

    def report() -> None:
        nonlocal reported_s
        if time.monotonic() - reported_s > _LINE_EVERY_S:
            reported_s = time.monotonic()
            _print(console, line())

    return report


def _progress_line(progress: GradeProgress) -> str:
    runs = progress.runs_made + progress.runs_stored + progress.runs_not_needed
    at = _joined([f"{name}: {test}" for name, test in list(progress.at.items())])
    return f"  {runs:,} of {progress.runs_wanted:,} runs; {at}"


@contextmanager
def _live(
    display: Callable[[], RenderableType], console: Console, *, otherwise: Callable[[], None] = lambda: None
) -> Iterator[Callable[[], None]]:
    """Yields a function to call after changes: it updates a display on a terminal, and calls `otherwise` elsewhere."""
    if not console.is_terminal:
        yield otherwise
        return
    with Live(console=console, auto_refresh=False, transient=True) as live:
        yield lambda: live.update(display(), refresh=True)


def _validation_display(validation: Validation) -> RenderableType:
    bar = ProgressBar(validation.runs_wanted, validation.runs_made, width=40)
    table = Table(box=None, pad_edge=False, padding=(0, 2, 0, 0))
    table.add_row(
        f"validating on {validation.solution}", bar, f"{validation.runs_made:,} of {validation.runs_wanted:,} runs"
    )
    return table


def _display(progress: GradeProgress) -> RenderableType:
    runs = progress.runs_made + progress.runs_stored
    table = Table(box=None, pad_edge=False, padding=(0, 2, 0, 0))
    for _ in range(3):
        table.add_column(no_wrap=True)
    done = len(progress.done)
    table.add_row("submissions", ProgressBar(progress.submissions, done, width=40), f"{done} of {progress.submissions}")
    reached = runs + progress.runs_not_needed
    table.add_row("runs", ProgressBar(progress.runs_wanted, reached, width=40), f"{runs:,} made")
    at = [
        Text(f"  {name}: {test}", style="dim", overflow="ellipsis", no_wrap=True)
        for name, test in list(progress.at.items())
    ]
    last = [
        Text(_line(result, done - i, progress.submissions), overflow="ellipsis", no_wrap=True)
        for i, result in enumerate(reversed(progress.done[-5:]))
    ]
    return Group(table, *at, *last, Text("Ctrl-C stops; run the same command again to resume", style="dim"))


def _by_part(tests: Sequence[LabTest]) -> str:
    """Lists tests without a part by name, because the name may be a typo."""
    numbers = Counter(test.part for test in tests if test.part)
    counts = [f"{counted(number, 'test')} of {part.upper()}" for part, number in numbers.items()]
    return ", ".join(counts + [f"{test.name} (no _2a ... _3b in its name)" for test in tests if not test.part])


def _notes_on_submissions(loaded: LoadedSubmissions, store: ResultsStore) -> Iterator[str]:
    """Ignored entries, renamed submissions, and a submission that replaces another."""
    for why in dict.fromkeys(loaded.ignored.values()):
        yield f"  ignored ({why}): {_joined([name for name, given in loaded.ignored.items() if given == why])}"
    others = [f"{s.file} to {s.name}" for s in loaded.submissions if has_other_name_than_file(s.name, s.file)]
    if others:
        yield f"  renamed: {_joined(others)}"
    if not loaded.is_class:
        (one,) = loaded.submissions
        before = store.file_of(one.name)
        if before not in ("", one.file):
            yield f"  {one.file} replaces {before}, which was graded as {one.name}"


def _joined(names: Sequence[str]) -> str:
    return ", ".join(names[:_NAMED_MAX]) + (f" and {len(names) - _NAMED_MAX:,} more" if len(names) > _NAMED_MAX else "")


def _print(console: Console, text: str) -> None:
    console.print(text, markup=False, soft_wrap=True)


def _reason(error: OSError) -> str:
    return f"{error.filename}: {error.strerror}" if error.filename else str(error.strerror)


def _fail(text: str) -> int:
    print(f"lab grade: {text}", file=sys.stderr)
    return 2
