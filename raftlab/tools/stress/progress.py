"""Shows a stress run under way: a live table on a terminal, a line now and then elsewhere. Start at `watching()`."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

from rich.console import Console, Group, RenderableType
from rich.live import Live
from rich.progress_bar import ProgressBar
from rich.table import Table
from rich.text import Text

from labsim.stacks import short_path
from raftlab.tools.common.text import duration
from raftlab.tools.stress.summary import report_name, wrapped
from raftlab.tools.stress.tally import Cause, Count, Tally

_REFRESH_S = 0.2
_LINE_EVERY_S = 5.0
_CAUSES_MAX = 20
_CAUSES_PICTURED_MAX = 3


@contextmanager
def watching(tally: Tally, console: Console, out: Path) -> Iterator[Callable[[], None]]:
    """Gives the function to call when something may have changed. The reports in `out` must be there by then."""
    if not console.is_terminal:
        yield _Lines(tally, console, out).update
        return
    with Live(console=console, auto_refresh=False, transient=True) as live:
        last_s = 0.0

        def update() -> None:
            nonlocal last_s
            if time.monotonic() - last_s >= _REFRESH_S:
                live.update(_picture(tally, out, console.width, console.height), refresh=True)
                last_s = time.monotonic()

        update()
        yield update


class _Lines:
    """A line every few seconds, rarer and rarer, so that a night's campaign fills a page and not a disk."""

    def __init__(self, tally: Tally, console: Console, out: Path) -> None:
        self._tally = tally
        self._console = console
        self._out = out
        self._next_s = _LINE_EVERY_S
        self._printed = 0

    def update(self) -> None:
        self._print_new_causes()
        elapsed_s = self._tally.elapsed_s
        if elapsed_s < self._next_s or self._tally.ended_s is not None:
            return
        self._next_s = elapsed_s + max(_LINE_EVERY_S, elapsed_s / 20)
        self._print(_line(self._tally))

    def _print_new_causes(self) -> None:
        for cause in self._tally.causes[self._printed : _CAUSES_MAX]:
            self._printed += 1
            self._print(f"FAILED {_example(cause)}: {cause.headline}\n  report  {_report(cause, self._out)}")

    def _print(self, text: str) -> None:
        self._console.print(text, markup=False, highlight=False, soft_wrap=True)


def _example(cause: Cause) -> str:
    return f"{cause.shortest.test}  seed {cause.shortest.seed}"


def _report(cause: Cause, out: Path) -> str:
    return short_path(str(out / report_name(cause)))


def _line(tally: Tally) -> str:
    total = tally.total
    of = f"/{tally.wanted * len(tally.tests):,}" if tally.wanted is not None else ""
    left = f", {duration(tally.left_s)} left" if tally.left_s is not None else ""
    return (
        f"{duration(tally.elapsed_s):>9}  {total.runs:,}{of} runs: {total.passed:,} passed, {total.failed:,} failed, "
        f"{total.runs / max(tally.elapsed_s, 1e-9):,.1f} runs/s, {total.virtual_s / 3600:,.1f} virtual hours{left}"
    )


def _picture(tally: Tally, out: Path, width: int, height: int) -> RenderableType:
    table = Table(box=None, pad_edge=False, padding=(0, 2, 0, 0))
    table.add_column("test", no_wrap=True)
    table.add_column("", width=24)
    for column in ("passed", "failed", "runs/s", "virtual h"):
        table.add_column(column, justify="right", no_wrap=True)
    # The frequent first: that is the one to look at. What it says is wrapped and never cut.
    frequent = sorted(tally.causes, key=lambda cause: -cause.count)
    told: list[str] = []
    for cause in frequent[:_CAUSES_PICTURED_MAX]:
        tests = (
            f"{len(cause.groups)} tests, for example {_example(cause)}" if len(cause.groups) > 1 else _example(cause)
        )
        lines = [
            *wrapped(f"{cause.count:>6}x {tests}; report {_report(cause, out)}", " " * 8, width, ""),
            *wrapped(cause.headline, " " * 8, width),
        ]
        if told and len(told) + len(lines) > height // 2:
            break
        told += lines
    shown = _worth_showing(tally, max(3, height - 6 - len(told)))
    for test in shown:
        _add_row(table, test, tally.counts[test], tally, tally.wanted)
    if len(shown) < len(tally.tests):
        table.add_row(Text(f"... {len(tally.tests) - len(shown)} more tests", style="dim"))
    if len(tally.tests) > 1:
        wanted = None if tally.wanted is None else tally.wanted * len(tally.tests)
        _add_row(table, "all", tally.total, tally, wanted)
    left = f", {duration(tally.left_s)} left" if tally.left_s is not None else ""
    parts: list[RenderableType] = [table, Text(f"{duration(tally.elapsed_s)}{left}   Ctrl-C to stop", style="dim")]
    parts += [Text(line, style="red") for line in told]
    return Group(*parts)


def _worth_showing(tally: Tally, rows: int) -> list[str]:
    """All tests if they fit, else those that failed, then the others, in their order."""
    if len(tally.tests) <= rows:
        return tally.tests
    chosen = set(sorted(tally.tests, key=lambda test: -tally.counts[test].failed)[:rows])
    return [test for test in tally.tests if test in chosen]


def _add_row(table: Table, name: str, count: Count, tally: Tally, wanted: int | None) -> None:
    bar: RenderableType = Text(f"{count.runs:,}")
    if wanted is not None:
        colour = "red" if count.failed else "green"
        bar = ProgressBar(wanted, count.runs, complete_style=colour, finished_style=colour, width=24)
    table.add_row(
        name,
        bar,
        f"{count.passed:,}",
        Text(f"{count.failed:,}", style="bold red" if count.failed else "dim"),
        f"{count.runs / max(tally.elapsed_s, 1e-9):,.1f}",
        f"{count.virtual_s / 3600:,.2f}",
    )
