"""The lab's output in pytest: a line for each test, and at the end a report of what failed.

A worker sends the results of its runs as properties of pytest's reports; the process that prints collects them here.
Start at `Printer`.
"""

from __future__ import annotations

import re
import shutil
import textwrap
from collections.abc import Generator, Sequence
from dataclasses import dataclass, field
from typing import Any

import pytest

from raftlab.harness.lab_test import part_of

CHUNKS_MAX = 16  # per test, so that workers share the work of --runs evenly
_OTHERS_WIDTH = 100  # of the lines that list the other tests with the same failure
_SEEDS_MAX = 8  # of the failed runs of a test that are listed

# Properties of a pytest report, sent from a worker to the process that prints.
PASSED = "raftlab"
FAILED = "raftlab-failed"
RUNS_MADE = "raftlab-runs"
REAL_S = "raftlab-real-s"
CHECK_OFF = "raftlab-check-off"
REMARK = "raftlab-remark"
UNVERIFIED = "raftlab-unverified"


def property_of(report: pytest.TestReport, name: str) -> Any:
    return next((value for key, value in report.user_properties if key == name), None)


@dataclass(frozen=True)
class FailedRun:
    """A failed run as a worker sends it: the data for a line in a list, its cause as a value, and its report."""

    test: str
    seed: int | None
    headline: str
    mistake: str  # of the outcome: failures with the same mistake are reported once
    text: str = ""  # the report; "" where a run of the same test has one for the same mistake
    is_rule: bool = False  # a rule is broken
    diagnosis: str = ""  # the first that fits

    @classmethod
    def read(cls, report: pytest.TestReport) -> list[FailedRun]:
        return [cls(**failed) for failed in property_of(report, FAILED) or ()]


@dataclass
class _CrashMessage:
    message: str

    def __str__(self) -> str:
        return self.message


class _FailureText:
    """A finished report with pytest's interface: text for the terminal, one line for the summary."""

    def __init__(self, failed: FailedRun) -> None:
        self._text = failed.text
        self.reprcrash = _CrashMessage(failed.headline)

    def __str__(self) -> str:
        return self._text

    def toterminal(self, tw: Any) -> None:
        for line in self._text.splitlines():
            tw.line(line)


@dataclass
class _TestRuns:
    """All runs of one test. With --runs they come in several reports, perhaps from several workers."""

    name: str
    place: int  # in the order in which tests were collected
    reports: list[pytest.TestReport] = field(default_factory=list)
    lines: str = ""
    runs: int = 0
    real_s: float = 0.0
    failures: list[FailedRun] = field(default_factory=list)

    def add(self, report: pytest.TestReport) -> None:
        self.reports.append(report)
        self.lines = property_of(report, PASSED) or self.lines
        self.runs += property_of(report, RUNS_MADE) or 0
        self.real_s += property_of(report, REAL_S) or 0.0
        self.failures = sorted([*self.failures, *FailedRun.read(report)], key=lambda failed: failed.seed or 0)

    def described(self, failures: Sequence[FailedRun]) -> str:
        """The test and its failed runs, in one line."""
        seeds = [failed.seed for failed in failures if failed.seed is not None]
        if self.runs <= 1:
            return f"{self.name}{f'  seed {seeds[0]}' if seeds else ''}"
        shown = ", ".join(map(str, seeds[:_SEEDS_MAX])) + (", ..." if len(seeds) > _SEEDS_MAX else "")
        return f"{self.name}  {len(seeds)} of {self.runs} runs, seed{'s' if len(seeds) > 1 else ''} {shown}"


_SEEDS_PARAMETER = re.compile(r"\[seeds \d+-\d+\]|(?<=\[)seeds \d+-\d+-|-seeds \d+-\d+(?=\])")


class Printer:
    """Prints the lab's lines as tests end, in this process or in workers, and the failures at the end.

    One mistake can fail many tests. It is reported once, for the most telling run, followed by a list of the others.
    """

    def __init__(self, config: pytest.Config, header: str) -> None:
        self._config = config
        self._header = header
        self._header_due = config.get_verbosity() < 0  # -q leaves the header out, and with it the seed
        self._reports_due = min(config.getoption("--runs"), CHUNKS_MAX)  # of each test
        self._tests: dict[str, _TestRuns] = {}
        self._first: dict[str, str] = {}  # by mistake: the first test with it
        self._checks_off: dict[str, None] = {}
        self._remarks: dict[str, None] = {}
        self._unverified: dict[str, None] = {}
        self._unverified_tests: dict[str, set[str]] = {}  # by part
        self._order: dict[str, int] = {}  # of the tests; workers finish them in another order

    @pytest.hookimpl(optionalhook=True)
    def pytest_xdist_node_collection_finished(self, ids: Sequence[str]) -> None:
        self._order = self._order or {node_id: place for place, node_id in enumerate(ids)}

    @pytest.hookimpl(tryfirst=True)
    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        failures = FailedRun.read(report) if report.failed else []  # and not an expected failure
        passed = report.passed and property_of(report, PASSED) is not None
        if report.when != "call" or not (failures or passed):
            return
        node_id = _SEEDS_PARAMETER.sub("", report.nodeid)
        name = node_id.rpartition("::")[2]
        self._checks_off |= {str(line): None for key, line in report.user_properties if key == CHECK_OFF}
        self._remarks |= {str(line): None for key, line in report.user_properties if key == REMARK}
        unverified = {str(line): None for key, line in report.user_properties if key == UNVERIFIED}
        self._unverified |= unverified
        if unverified:
            self._unverified_tests.setdefault(part_of(name), set()).add(name)
        if failures:
            report.longrepr = _FailureText(failures[0])  # type: ignore[assignment]  # all pytest asks for
        place = self._order.get(report.nodeid, len(self._tests))
        test = self._tests.setdefault(node_id, _TestRuns(name, place))
        test.add(report)
        reporter = self._config.pluginmanager.get_plugin("terminalreporter")
        if reporter is not None and len(test.reports) == self._reports_due:
            self._print_test(test, reporter)

    def _print_test(self, test: _TestRuns, reporter: Any) -> None:
        reporter.ensure_newline()
        if self._header_due:
            self._header_due = False
            reporter.write_line(self._header)
        if test.failures:
            failed = test.failures[0]
            first = self._first.setdefault(failed.mistake, test.name)
            message = failed.headline if first == test.name else f"same failure as {first}"
            for line in _wrapped(f"FAILED {test.described(test.failures)}: {message}", reporter):
                reporter.write_line(line, red=True)
        else:
            reporter.write_line(test.lines)
            if test.runs > 1:
                reporter.write_line(f"  ... {test.runs} runs passed, {test.real_s:.1f} s real")

    @pytest.hookimpl(wrapper=True, tryfirst=True)
    def pytest_terminal_summary(self, terminalreporter: Any) -> Generator[None, None, None]:
        stats = terminalreporter.stats
        tests = sorted(self._tests.values(), key=lambda test: test.place)
        failed = [test for test in tests if test.failures]
        ours = {id(report) for test in tests for report in test.reports}
        for test in failed:
            if len(test.reports) < self._reports_due:  # -x, or Ctrl-C
                self._print_test(test, terminalreporter)
        for outcome in ("passed", "failed"):
            # pytest would print each in full, and again as a list.
            stats[outcome] = [report for report in stats.get(outcome, []) if id(report) not in ours]
        if failed and self._config.getoption("tbstyle") != "no":
            self._print_failures(failed, terminalreporter)
        yield
        # Tests are counted, and not their reports.
        stats["failed"] += [test.reports[0] for test in failed]
        stats["passed"] += [test.reports[0] for test in tests if not test.failures]
        for outcome in ("passed", "failed"):
            if not stats[outcome]:
                del stats[outcome]
        for line in self._unverified:
            terminalreporter.write_line(f"{line}.", yellow=True)
        for part, names in sorted(self._unverified_tests.items()):
            which = f"Part {part.upper()}" if part else "This"
            count = "1 test relies" if len(names) == 1 else f"{len(names)} tests rely"
            text = f"{which} is unverified: {count} on messages that cannot be decoded, so it may earn no points."
            terminalreporter.write_line(text, yellow=True)
        for line in self._checks_off:
            terminalreporter.write_line(f"{line}.", yellow=True)
        for line in self._remarks:
            terminalreporter.write_line(f"Remark: {line}.", yellow=True)

    def _print_failures(self, tests: Sequence[_TestRuns], reporter: Any) -> None:
        """The most telling kind of failure in full, with -v all of them; of the others a line each."""
        reporter.write_sep("=", "FAILURES")
        kinds = sorted(_kinds_of_failure(tests), key=lambda kind: kind.rank, reverse=True)
        shown = kinds if self._config.get_verbosity() > 0 else kinds[:1]
        for number, kind in enumerate(shown):
            if number:
                reporter.write_sep("_")
            reporter.write_line(kind.best.text)
            if others := [runs.described(failures) for runs, failures in kind.others]:
                reporter.write_line("\n  The same failure in:")
                if any(runs.runs > 1 for runs, _ in kind.others):
                    for line in others:
                        reporter.write_line(f"    {line}")
                else:
                    _print_wrapped(", ".join(runs.name for runs, _ in kind.others), reporter)
            self._print_output(kind.best_report, reporter)
        if len(kinds) > len(shown):
            reporter.write_line("\nOther failures, perhaps of the same mistake (-v shows them in full):")
            for kind in kinds[len(shown) :]:
                more = f" (+{len(kind.others)})" if kind.others else ""
                for line in _wrapped(f"  {kind.of_best.described([kind.best])}{more}: {kind.best.headline}", reporter):
                    reporter.write_line(line)
        reporter.write_line("")

    def _print_output(self, of: pytest.TestReport, reporter: Any) -> None:
        wanted = self._config.getoption("showcapture")
        for name, content in of.sections:
            if wanted != "no" and (wanted == "all" or wanted in name):
                reporter.write_sep("-", name)
                reporter.write_line(content.rstrip("\n"))


class _KindOfFailure:
    """Failures of the same mistake, or with the same likely cause: all runs of each test, in the order of tests."""

    def __init__(self, failures: list[tuple[_TestRuns, list[FailedRun]]]) -> None:
        described = [(runs, failed) for runs, those in failures for failed in those if failed.text]
        self.of_best, self.best = max(described, key=lambda one: (bool(one[1].diagnosis), one[1].is_rule))
        self.best_report = next(one for one in self.of_best.reports if self.best in FailedRun.read(one))
        self.others = [(runs, those) for runs, those in failures if runs is not self.of_best or len(those) > 1]
        self.rank = (bool(self.best.diagnosis), self.best.is_rule, len(failures))


def _kinds_of_failure(tests: Sequence[_TestRuns]) -> list[_KindOfFailure]:
    failures = [(test, failed) for test in tests for failed in test.failures]
    # The first run of a mistake that has a diagnosis speaks for all of them.
    diagnoses = {failed.mistake: failed.diagnosis for _, failed in reversed(failures) if failed.diagnosis}
    kinds: dict[str, dict[str, tuple[_TestRuns, list[FailedRun]]]] = {}
    for test, failed in failures:
        kind = kinds.setdefault(diagnoses.get(failed.mistake, failed.mistake), {})
        kind.setdefault(test.name, (test, []))[1].append(failed)
    return [_KindOfFailure(list(kind.values())) for kind in kinds.values()]


def _print_wrapped(names: str, reporter: Any) -> None:
    for line in textwrap.wrap(names, _OTHERS_WIDTH, break_long_words=False, break_on_hyphens=False):
        reporter.write_line(f"    {line}")


def _wrapped(text: str, reporter: Any) -> list[str]:
    """Lines of the terminal's width; one line if the output is piped."""
    if not reporter.isatty:
        return [text]
    width = shutil.get_terminal_size().columns
    return textwrap.wrap(text, width, subsequent_indent="  ", break_long_words=False, break_on_hyphens=False)
