"""Converts a run to a scenario (commands, campaigns, deliveries, losses, crashes) and removes unneeded steps.

In a scenario, clocks are frozen except during steps, so the steps suggested by a trace may not fit. They are first
played leniently (impossible steps are skipped), and the rest must break the same rule by itself. Otherwise the same
acts are tried with ordinary time between them.

Promise: a returned scenario, played with the default seed, breaks the rule. Not promised: that one is found.

Start at `ScenarioWriter.write()`, or, with steps that break a rule already, at `ScenarioWriter.shorten()`.
"""

from __future__ import annotations

import re
import time
from collections.abc import Callable, Iterator, Sequence

from labsim import Event
from raftlab.check.failure import Failure
from raftlab.harness.launcher import PeerLauncher
from raftlab.harness.run import Run, run_test
from raftlab.harness.service import SNAPSHOT_INTERVAL
from raftlab.scenarios.runner import make_lab_test
from raftlab.scenarios.scenario import Scenario
from raftlab.scenarios.stepped_cluster import ExpectationFailed, ScenarioError
from raftlab.scenarios.text import Script, ScriptError, parse_script, parse_step
from raftlab.tools.shrink.transcript import MessageStep, last_cluster, steps_of, timed_steps
from raftlab.trace import events
from raftlab.trace.operations import RecordedSchedule

HEADERS = ("peers", "snapshots")
SEED = 1  # what `lab scenario` plays with
STEPS_MAX = 2000  # of a scenario
# A step that expects what only an incorrect peer does must not be the last one: a correct peer would fail there.
_EXPECTING = "elect"
_IMPOSSIBLE_MAX = 12  # impossible steps to remove, one after another
_END = 3  # last steps, which may expect what only an incorrect peer has done
# Time for a rule about something that a peer fails to do.
RUNS = ("run 500ms", "run 2s", "run 4s", "run 12s")


def steps_in(lines: Sequence[str]) -> list[str]:
    """The steps of a scenario, without its header lines."""
    return [line for line in lines if line.split()[0] not in HEADERS]


FailureCheck = Callable[[Run], bool]  # whether a run fails in the same way


def breaks_rule(rule: str) -> FailureCheck:
    return lambda run: isinstance(run.error, Failure) and run.error.rule == rule


class ScenarioWriter:
    """Searches for the shortest list of steps that still fails in the same way."""

    def __init__(
        self,
        launcher: PeerLauncher,
        fails_alike: FailureCheck,
        *,
        limit_s: float,
        clock: Callable[[], float] = time.process_time,
        seed: int = SEED,
    ) -> None:
        self._launcher = launcher
        self._fails_alike = fails_alike
        self._seed = seed
        self._clock = clock
        self._until_s = clock() + limit_s
        self._played: dict[tuple[str, ...], int | None] = {}

    def write(self, trace: Sequence[Event], play: RecordedSchedule | None) -> list[str] | None:
        """The lines of the scenario, or None. Scenarios cannot express clients of a service."""
        if play is not None and play.service:
            return None
        trace = last_cluster(trace)
        peers = trace[0].detail if trace else 3
        header = [] if peers == 3 else [f"peers {peers}"]
        header += ["snapshots"] if play is not None and play.how.get("snapshot") else []
        found = None
        for steps in self._candidates(trace, play, peers):
            if self._clock() > self._until_s:
                break
            found = self._begin(header, steps[:STEPS_MAX])
            if found is not None:
                break
        if found is None:
            return None
        return [*header, *(self.shorten(header, found) or found)]

    def _candidates(self, trace: Sequence[Event], play: RecordedSchedule | None, peers: int) -> Iterator[list[str]]:
        every = SNAPSHOT_INTERVAL if play is None or play.snapshot_every is None else play.snapshot_every
        every = every if play is not None and play.how.get("snapshot") else 0
        steps = steps_of(trace, every)
        if peers == 1:
            # A single peer sends no vote requests, so the trace does not show its campaigns.
            restarted = ([step, "campaign 0"] if step == "restart 0" else [step] for step in steps)
            steps = ["campaign 0", *(step for some in restarted for step in some)]
        yield steps
        if peers > 1:
            yield steps_of(trace, every, heartbeats=True)
        if trace and trace[-1].node.isdecimal():
            yield [*steps, f"run {trace[-1].node} 200ms"]
        # Between two consecutive saves, "after save" and "before save" are the same moment.
        for one, other in (("before save", "after save"), ("after save", "before save")):
            if any(step.endswith(one) for step in steps):
                yield [step.replace(one, other) if step.endswith(one) else step for step in steps]
        if any(step.startswith("busy ") for step in steps):
            yield from _while_busy(steps)
        for run in RUNS:
            yield [*steps, run]
        yield [*steps[:-1], RUNS[0], *steps[-1:]]
        acts = [] if play is None else list(play.acts)
        for shift in range(peers):
            yield [*timed_steps(acts, play, peers, shift), *RUNS[1:2]]
        yield ["elect 0 with 1", "start 0 1", *RUNS[2:]] if peers > 1 else ["campaign 0", "start 0 1", *RUNS[2:]]

    # ---- playing --------------------------------------------------------------------------------------------------

    def _begin(self, header: list[str], steps: list[str]) -> list[str] | None:
        """The possible steps, up to the one that breaks the rule. An impossible step has let clocks run, so the steps
        are tried again without it."""
        for _ in range(_IMPOSSIBLE_MAX):
            made, impossible, broken = self._play_leniently(header, steps)
            if broken:
                return made if self._play(header, made) is not None else None
            if impossible is None or self._clock() > self._until_s:
                return None
            steps = [step for number, step in enumerate(steps) if number != impossible]
        return None

    def _play_leniently(self, header: list[str], steps: list[str]) -> tuple[list[str], int | None, bool]:
        """The steps that were made, the index of the first impossible step, and whether the rule was broken."""
        made: list[str] = []
        impossible: list[int] = []

        def player(scenario: Scenario, script: Script) -> None:
            scenario.interactive = True
            for number, step in enumerate(steps):
                if isinstance(step, MessageStep):
                    step = step.for_queue(scenario.in_flight(step.name))
                scenario.step_text = step
                made.append(step)
                try:
                    parse_step(step, script)(scenario)
                except (ExpectationFailed, ScenarioError):
                    made.pop()
                    impossible.append(number)
                finally:
                    scenario.step_text = ""

        try:
            script = parse_script("\n".join([*header, *steps]), "shrunk.scenario")
        except ScriptError:
            return [], None, False
        run = run_test(make_lab_test(script, runner=player), self._launcher, self._seed)
        return made, impossible[0] if impossible else None, self._fails_alike(run)

    def _play(self, header: list[str], steps: Sequence[str]) -> int | None:
        """The number of steps begun when the rule was broken; None if it was not broken."""
        key = tuple(steps)
        if key not in self._played:
            self._played[key] = self._play_uncached(header, steps)
        return self._played[key]

    def _play_uncached(self, header: list[str], steps: Sequence[str]) -> int | None:
        try:
            script = parse_script("\n".join([*header, *steps]), "shrunk.scenario")
        except ScriptError:
            return None
        run = run_test(make_lab_test(script), self._launcher, self._seed)
        if not self._fails_alike(run):
            return None
        assert run.simulation is not None
        return sum(event.kind == events.STEP for event in run.simulation.trace or ())

    # ---- shortening -----------------------------------------------------------------------------------------------

    def shorten(self, header: list[str], steps: list[str]) -> list[str] | None:
        """Fewer or simpler steps that fail in the same way; None if these steps do not fail.
        `header`: the lines before them ("peers 5", "snapshots")."""
        if self._play(header, steps) is None:
            return None
        best = steps

        def better(candidate: Sequence[str]) -> bool:
            nonlocal best
            if self._clock() > self._until_s:
                return False
            begun = self._play(header, candidate)
            if begun is None or candidate[begun - 1].startswith(_EXPECTING):
                return False
            best = list(candidate[:begun])
            return True

        better(best)
        before: list[str] = []
        while before != best and self._clock() < self._until_s:
            before = best
            self._remove_steps(lambda: best, better)
            self._merge_steps(lambda: best, better)
        any(better(steps) for steps in _simplifications(best))
        return best

    def _remove_steps(self, best: Callable[[], list[str]], better: Callable[[Sequence[str]], bool]) -> None:
        size = max(1, len(best()) // 2)
        while True:
            begin = 0
            while begin < len(best()):
                steps = best()
                if not better([*steps[:begin], *steps[begin + size :]]):
                    begin += size
            if size == 1:
                return
            size //= 2

    def _merge_steps(self, best: Callable[[], list[str]], better: Callable[[Sequence[str]], bool]) -> None:
        """Replace several steps by one (an election, a replication, delivering everything), or one by a simpler one."""
        begin = 0
        while begin < len(best()):
            steps = best()
            joined = any(
                better([*steps[:begin], *one, *steps[begin + count :]]) for count, one in _merged(steps[begin:])
            )
            begin += not joined


def _while_busy(steps: Sequence[str]) -> Iterator[list[str]]:
    """Variants for a service that is busy with a snapshot. A busy service in a scenario holds one unhandled message, so
    its peer must wait with another one."""
    result: list[str] = []
    busy = {step.split()[1] for step in steps if step.startswith("busy ")}
    for step in steps:
        if found := re.fullmatch(r"ready (\d+)", step):
            result.append(f"run {found[1]} 200ms")
        if (found := re.fullmatch(r"snapshot (\d+) (\d+)", step)) and found[1] not in busy:
            step = f"snapshot {found[1]} {2 * int(found[2])}"
        result.append(step)
        if step.startswith("start "):
            result.append(f"{step}b")
    yield result
    free = [n for n, step in enumerate(result) if step.startswith("ready ")]
    still = [step for n, step in enumerate(result) if not free or n < free[0] - 2]
    yield from ([*still, run] for run in RUNS[1:3])


def _simplifications(steps: Sequence[str]) -> Iterator[list[str]]:
    """The last steps without expectations that only an incorrect peer meets (winning an election by a wrong vote, or
    sending just this message): on a correct peer such a step would fail."""
    for number in range(max(0, len(steps) - _END), len(steps)):
        before, step = steps[:number], steps[number]
        if found := re.fullmatch(r"elect (\d+) with (\d+(?: \d+)*)", step):
            peer, voters = found[1], found[2].split()
            request = [f"deliver {peer}->{voter} vote" for voter in voters]
            yield [*before, f"campaign {peer}", *request, f"run {voters[-1]} 200ms"]
        elif found := re.fullmatch(r"(?:deliver|heartbeat) (\d+)(?:->(\d+) .*)?", step):
            yield from ([*before, f"run {peer} 200ms"] for peer in found.groups() if peer is not None)
    if steps[-1].startswith("deliver "):
        yield [*steps[:-1], "deliver"]
    if found := re.fullmatch(r"deliver (\d+->\d+) (?:append|snapshot)(?: \d+)?(?: term \d+)?", steps[-1]):
        yield from ([*steps[:-1], f"{verb} {found[1]}"] for verb in ("replicate", "update"))


def _merged(steps: Sequence[str]) -> Iterator[tuple[int, list[str]]]:
    """Replacements: the number of steps to replace, and the steps that replace them."""
    first = steps[0]
    if found := re.fullmatch(r"campaign (\d+)", first):
        peer = found[1]
        votes = []
        for step in steps[1:]:
            request = re.fullmatch(rf"deliver {peer}->(\d+) vote.*", step)
            reply = re.fullmatch(rf"deliver (\d+)->{peer} vote reply.*", step)
            if request is None and reply is None:
                break
            votes += [request[1]] if request is not None else []
        if votes:
            count = len(votes) * 2 + 1
            for length in range(min(count, len(steps)), 1, -1):
                for voters in range(1, len(votes) + 1):
                    yield length, [f"elect {peer} with {' '.join(dict.fromkeys(votes[:voters]))}"]
    if found := re.fullmatch(r"(deliver|replicate|update) (\d+)->(\d+)( append| snapshot)?.*", first):
        leader, follower = found[2], found[3]
        there, back = rf"deliver {leader}->{follower} .*", rf"deliver {follower}->{leader} .*reply.*"
        count = 1
        while count < len(steps) and (re.fullmatch(there, steps[count]) or re.fullmatch(back, steps[count])):
            count += 1
        for verb in ("replicate", "update") if found[1] != "update" else ():
            for length in range(count, 1, -1):
                yield length, [f"{verb} {leader}->{follower}"]
    if first.startswith(("deliver ", "drop ")):
        count = 1
        while count < len(steps) and steps[count].startswith(("deliver ", "drop ")):
            count += 1
        for length in range(count, 1, -1):
            yield length, ["deliver"]
        if count > 2:
            yield from ((count, [run]) for run in RUNS[:3])
    if found := re.fullmatch(r"snapshot (\d+) (\d+)", first):
        for index in range(1, int(found[2])):
            yield 1, [f"snapshot {found[1]} {index}"]
    if re.fullmatch(r"run (\d+)ms", first) and first not in RUNS:
        yield from ((1, [run]) for run in RUNS[:3])
    if found := re.fullmatch(r"drop (\d+)->\d+ (\w+(?: reply)?)(?: term \d+)?", first):
        # This form also works if there is nothing to drop, as with a correct peer.
        yield 1, [f"drop {found[1]}->* {found[2]}"]
        yield 1, [f"run {found[1]} 200ms"]
    if found := re.fullmatch(
        r"((?:deliver|drop|duplicate) \S+ [a-z_]+(?: reply)?)( \d+)?( term \d+)?( with \S+)?( again)?", first
    ):
        name, number, term, command, again = found[1], *(part or "" for part in found.groups()[1:])

        for shorter in (f"{name}{again}", f"{name}{command}{again}", f"{name}{term}{again}", f"{name}{number}{again}"):
            if len(shorter) < len(first):
                yield 1, [shorter]
