"""`lab mutants random N --seed S`: N random changes of the reference, and whether the lab catches them.

The tests judge each change; with --fuzz, random runs judge those that pass (worker.JUDGES), unless a change is known to
be equivalent. Missed changes are printed with a diff, for review: a change may be equivalent, only cost time, or be a
bug, and then the lab lacks a test or a rule. tests/mutants/survivors.toml explains the known ones.

Promise: results are stored in build/mutants/mutated.jsonl as they come. After Ctrl-C the same command resumes, and
other draws reuse results; all is judged again only if the reference, the tester, a test or the options have changed.

Exit 0: every change was caught or is explained. Start at `mutate()`.
"""

from __future__ import annotations

import argparse
import hashlib
import json
import sys
import tomllib
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from functools import partial
from pathlib import Path
from typing import NamedTuple, Protocol

from raftlab.layout import run_files, tool_files
from raftlab.tools.common.interrupts import sigterm_as_interrupt
from raftlab.tools.selection import SCENARIOS, SelectionError, default_files, scenario_files, select
from tests.mutants.tool import measurement, worker
from tests.mutants.tool.measurement import MutantResult
from tests.mutants.tool.mutants import BUILD, FOLDER, REFERENCE, Mutant
from tests.mutants.tool.random_mutants import Drawn, draw
from tests.mutants.tool.worker import FUZZ, TESTS

RANDOM_RUNS = 2
KEPT = BUILD / "mutated.jsonl"
SURVIVORS = FOLDER / "survivors.toml"
# Processor time for one change. All tests take a tenth of it; a change may make each of them slower.
_BUDGET_S = 240.0
_TESTS = (SCENARIOS, "2a", "2b", "2c", "2d")
_KINDS = {
    "same": "equivalent to the reference",
    "cost": "correct but at another cost",
    "wrong": "incorrect and not detected",
}


class JudgeAll(Protocol):
    def __call__(
        self, entries: Sequence[Mutant], args: argparse.Namespace, judge: str, on_result: Callable[[MutantResult], None]
    ) -> tuple[list[MutantResult], bool]: ...


class Note(NamedTuple):
    """The explanation of a survivor."""

    kind: str  # one of _KINDS
    why: str


Notes = Mapping[tuple[str, str, str], Note]


def mutate(args: argparse.Namespace, judge_all: JudgeAll) -> int:
    try:
        select(args.tests)  # the workers select again; here an error is reported once
        mutants = draw(args.number, args.seed)
        notes = read_notes()
    except (ValueError, OSError, SelectionError) as error:
        print(f"lab mutants: {error}", file=sys.stderr)
        return 2
    if args.list:
        for mutant in mutants:
            print(f"{mutant.id:44} a peer that {mutant.what}")
        return 0
    judges = judges_for(args)
    kept = RecordedRun(KEPT, {judge: _key(judge, options) for judge, options in judges.items()})
    with sigterm_as_interrupt():
        interrupted = _judge_all(mutants, judges, kept, notes, judge_all)
    outcome = RandomOutcome.of(mutants, kept, notes)
    print(report(outcome))
    if args.json is not None:
        told = [{**asdict(result), "judge": judge} for mutant in mutants for judge, result in kept.of(mutant).items()]
        args.json.write_text(json.dumps(told, indent=1) + "\n")
    if interrupted:
        print("interrupted; run the same command again to resume", file=sys.stderr)
        return 130
    return 1 if any(outcome.note_of(mutant) is None for mutant in outcome.away) else 0


def judges_for(args: argparse.Namespace) -> dict[str, argparse.Namespace]:
    """The judges in order, each with its options. --seed is only for the draw."""
    judged = argparse.Namespace(**vars(args))
    judged.seed = 0
    judged.runs = args.runs or RANDOM_RUNS
    judged.tests = list(args.tests or _TESTS)
    judged.budget_seconds = args.budget_seconds or _BUDGET_S
    fuzzed = argparse.Namespace(**vars(judged))
    fuzzed.budget_seconds = args.fuzz
    return {TESTS: judged, **({FUZZ: fuzzed} if args.fuzz is not None else {})}


def _judge_all(
    mutants: Sequence[Drawn],
    judges: Mapping[str, argparse.Namespace],
    kept: RecordedRun,
    notes: Notes,
    judge_all: JudgeAll,
) -> bool:
    """Returns whether it was interrupted."""
    left: Sequence[Drawn] = mutants
    same = {mutant for mutant in mutants if (note := _note_of(mutant, notes)) and note.kind == "same"}
    for judge, options in judges.items():
        new = [mutant for mutant in left if judge not in kept.of(mutant)]
        if len(new) < len(left):
            print(
                f"{len(left) - len(new)} of {len(left)} have a result by {judge} from an earlier run, see {KEPT}",
                file=sys.stderr,
            )
        _, interrupted = judge_all(new, options, judge, partial(kept.add, {mutant.id: mutant for mutant in new}, judge))
        if interrupted:
            return True
        left = [mutant for mutant in left if kept.of(mutant)[judge].bad and mutant not in same]
    return False


class RecordedRun:
    """Results of this and earlier commands, by peer and judge. One line each, added at once: Ctrl-C loses none."""

    def __init__(self, file: Path, keys: Mapping[str, str]) -> None:
        """`keys`: for each judge, the key with which a stored result is still valid."""
        self._file = file
        self._keys = keys
        self._results: dict[str, dict[str, MutantResult]] = {}
        for line in file.read_text().splitlines() if file.exists() else ():
            try:
                fields = json.loads(line)
            except ValueError:
                continue  # an incomplete line
            key, peer, judge = (fields.pop(name) for name in ("key", "peer", "judge"))
            if keys.get(judge) == key:
                self._results.setdefault(peer, {})[judge] = MutantResult(**fields)

    def of(self, mutant: Drawn) -> dict[str, MutantResult]:
        """By judge, in order. The same peer may have had another id."""
        found = self._results.get(_digest(mutant.text), {})
        return {judge: replace(found[judge], id=mutant.id) for judge in self._keys if judge in found}

    def add(self, mutants: Mapping[str, Drawn], judge: str, result: MutantResult) -> None:
        peer = _digest(mutants[result.id].text)
        self._results.setdefault(peer, {})[judge] = result
        self._file.parent.mkdir(parents=True, exist_ok=True)
        with self._file.open("a") as file:
            file.write(json.dumps({"key": self._keys[judge], "peer": peer, "judge": judge, **asdict(result)}) + "\n")


def _digest(text: str) -> str:
    return hashlib.sha256(text.encode()).hexdigest()[:16]


def _key(judge: str, options: argparse.Namespace) -> str:
    """A digest of everything that affects a verdict, besides the peer."""
    asked = [judge, options.isolated, options.race, options.budget_seconds]
    files = [*run_files(), *(Path(str(module.__file__)) for module in (measurement, worker))]
    if judge == TESTS:
        asked += [options.runs, options.tests]
        files += [*default_files(), *scenario_files()]
    else:
        files += [file for file in tool_files() if file.parent.name == "generator"]
    digest = hashlib.sha256(repr(asked).encode())
    for file in files:
        digest.update(file.read_bytes() + b"\0")
    return digest.hexdigest()[:16]


# ---- survivors ----------------------------------------------------------------------------------------------------


def _note_of(mutant: Drawn, notes: Notes) -> Note | None:
    return notes.get((mutant.function, mutant.lines_were, mutant.lines_are))


def read_notes(file: Path = SURVIVORS) -> Notes:
    """By function, old lines and new lines: line numbers and ids of changes are not stable."""
    if not file.exists():
        return {}
    notes = {}
    for each in tomllib.loads(file.read_text()).get("survivor", []):
        if each["kind"] not in _KINDS:
            raise ValueError(f"{file}: kind must be one of {', '.join(_KINDS)}, got {each['kind']!r}")
        notes[each["in"], each["was"], each["is"]] = Note(each["kind"], each["why"])
    return notes


@dataclass(frozen=True)
class RandomOutcome:
    """The results of a draw, or of the part that was judged."""

    results: Mapping[Drawn, MutantResult]  # of the last judge
    judges: Mapping[Drawn, str]  # the last judge
    seconds: float  # processor time of all judges
    notes: Notes

    @classmethod
    def of(cls, mutants: Sequence[Drawn], kept: RecordedRun, notes: Notes) -> RandomOutcome:
        last = {mutant: list(said.items())[-1] for mutant in mutants if (said := kept.of(mutant))}
        return cls(
            results={mutant: result for mutant, (_, result) in last.items()},
            judges={mutant: judge for mutant, (judge, _) in last.items()},
            seconds=sum(result.seconds for mutant in mutants for result in kept.of(mutant).values()),
            notes=notes,
        )

    @property
    def away(self) -> list[Drawn]:
        return [mutant for mutant, result in self.results.items() if result.bad]

    def note_of(self, mutant: Drawn) -> Note | None:
        return _note_of(mutant, self.notes)

    def caught_by(self) -> dict[str, int]:
        """The number of changes that each rule, error or test caught; the largest first."""
        counts = Counter(result.by for result in self.results.values() if result.verdict == "caught")
        return dict(sorted(counts.items(), key=lambda pair: (-pair[1], pair[0])))


# ---- the report ---------------------------------------------------------------------------------------------------


def report(outcome: RandomOutcome) -> str:
    lines = []
    counts = outcome.caught_by()
    if counts:
        width = max(len(by) for by in counts)
        lines += [f"{'caught by'.ljust(width)}  changes"]
        lines += [f"{by.ljust(width)}  {count:7}" for by, count in counts.items()] + [""]
    for mutant in outcome.away:
        note = outcome.note_of(mutant)
        told = f"{note.kind}: {note.why}" if note else f"not explained in {SURVIVORS}"
        lines += [f"{mutant.id} {_ending(outcome.results[mutant])}", told, mutant.diff()]
    return "\n".join([*lines, *summary(outcome)])


def _ending(result: MutantResult) -> str:
    if result.verdict == "missed":
        return f"missed in {result.tests} runs" + (f": {result.line}" if result.line else "")
    return f"has no verdict: {result.line}"


def summary(outcome: RandomOutcome) -> list[str]:
    verdicts = Counter(result.verdict for result in outcome.results.values())
    lost = verdicts.total() - verdicts["caught"] - verdicts["missed"]
    by = Counter(outcome.judges[mutant] for mutant, result in outcome.results.items() if result.verdict == "caught")
    caught = f"{verdicts['caught']} caught" + (f" ({by[TESTS]} by tests, {by[FUZZ]} by fuzzing)" if by[FUZZ] else "")
    kinds = Counter(note.kind for mutant in outcome.away if (note := outcome.note_of(mutant)))
    words = [f"{kinds[kind]} {what}" for kind, what in _KINDS.items() if kinds[kind]]
    if len(outcome.away) > kinds.total():
        words.append(f"{len(outcome.away) - kinds.total()} not explained yet")
    return [
        f"{verdicts.total()} changes of {REFERENCE / 'raft.py'}: {caught}, {verdicts['missed']} missed"
        + (f", {lost} without a verdict" if lost else ""),
        *([f"Missed: {'; '.join(words)}"] if words else []),
        f"{outcome.seconds:.0f} s of processor time",
    ]
