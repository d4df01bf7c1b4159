"""Which runs differ from the recorded ones, and at which event."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import tempfile
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any, NamedTuple

from .base import MODES, RENAMED, Base, read_renamed
from .runs import all_tests, digests_of, events_of

ROOT = Path(__file__).parents[2]


class Difference(NamedTuple):
    """One run that differs from the recorded one. `test`: its current name; `recorded`: its name in the base."""

    test: str
    seed: int
    mode: str
    recorded: str


def differences(base: Base, wanted: Iterable[tuple[str, int, str]], jobs: int) -> Iterator[Difference | None]:
    """For each wanted run (by its recorded name), in order; None: it is equal, or was not recorded."""
    renamed = read_renamed(RENAMED, {test for test, _ in base.digests}, set(all_tests()))
    expected = [
        (test, seed, mode, digest)
        for test, seed, mode in wanted
        if (digest := base.digests[test, seed][MODES.index(mode)])
    ]
    runs = [(renamed.get(test, test), seed, mode) for test, seed, mode, _ in expected]
    for (test, seed, mode, digest), run, now in zip(expected, runs, digests_of(runs, jobs), strict=True):
        yield None if now == digest else Difference(run[0], seed, mode, test)


def first_difference(then: Sequence[Sequence[Any]], now: Sequence[Sequence[Any]]) -> str:
    """The first event that differs, in a few lines."""
    number = next((i for i, (a, b) in enumerate(zip(then, now, strict=False)) if a[0] != b[0]), None)
    if number is None:
        shorter = min(len(then), len(now))
        if len(then) == len(now):
            return f"  all {shorter} events are equal; the runs differ after the last one"
        longer, which = (then, "recorded") if len(then) > shorter else (now, "current")
        return f"  equal for {shorter} events; only the {which} run continues:\n    {_described(longer[shorter])}"
    a, b = then[number], now[number]
    if a[1:5] == b[1:5]:
        what = "is equal, but the schedule of tasks or the clock differs before it"
        return f"  event {number + 1} {what}:\n    {_described(b)}"
    return f"  event {number + 1} differs:\n    recorded  {_described(a)}\n    current   {_described(b)}"


def _described(event: Sequence[Any]) -> str:
    _, at_ns, kind, node, fingerprint, text = event
    return f"{at_ns / 1e9:.6f} s  {f'peer {node} ' if node else ''}{kind} {text[:120]} [{fingerprint & 0xFFFFFFFF:08x}]"


@contextmanager
def recorded_tree(commit: str) -> Iterator[Path]:
    """A checkout of the commit that recorded the base."""
    with tempfile.TemporaryDirectory(prefix="raftlab-digests-") as folder:
        tree = Path(folder) / "then"
        add = ["git", "worktree", "add", "--quiet", "--detach", str(tree), commit]
        added = subprocess.run(add, cwd=ROOT, capture_output=True, text=True)
        if added.returncode:
            raise LookupError(f"git has no commit {commit}: {added.stderr.strip()}")
        try:
            yield tree
        finally:
            subprocess.run(["git", "worktree", "remove", "--force", str(tree)], cwd=ROOT, capture_output=True)


def events_in(tree: Path, test: str, seed: int, mode: str) -> list[Any]:
    """The result of events_of() in that tree."""
    environment = {**os.environ, "PYTHONPATH": str(tree)}
    command = [sys.executable, "-m", "tests.digests", "events", test, "--seed", str(seed), "--mode", mode]
    done = subprocess.run(command, cwd=tree, env=environment, capture_output=True, text=True)
    if done.returncode:
        raise LookupError(f"cannot repeat the recorded run: {done.stderr.strip()[-300:]}")
    return list(json.loads(done.stdout))


def explain(difference: Difference, tree: Path) -> str:
    then = events_in(tree, difference.recorded, difference.seed, difference.mode)
    return first_difference(then, events_of(difference.test, difference.seed, difference.mode))
