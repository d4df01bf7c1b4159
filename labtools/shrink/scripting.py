"""A run as a scenario: its commands, campaigns, deliveries, losses and crashes, in order, and then as few as will do.

A scenario decides less than a run has decided, and more: nobody's clock runs but by a step. So the steps that a trace
suggests are first tried with patience (what makes no sense is left out), and what is left must break the same rule by
itself. Where that does not, the same acts with ordinary time in between are tried.

Promise: what is returned, played with the usual seed, breaks that rule. Not promised: that there is one.

Start at `Scripting.write()`.
"""

from __future__ import annotations

import re
import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import Any

from labsim import Event
from labtest import events
from labtest.acts import Act, Play
from labtest.checks.reading import VOTE
from labtest.events import DropReason
from labtest.failure import Failure
from labtest.running import Run, run_test
from labtest.scenarios.flight import commands_in, kind_of, term_of
from labtest.scenarios.playing import as_test
from labtest.scenarios.scenario import Scenario
from labtest.scenarios.stage import NotMet, ScenarioError
from labtest.scenarios.text import Script, ScriptError, parse_script
from labtest.service import SNAPSHOT_INTERVAL

HEADERS = ("peers", "snapshots")
SEED = 1  # what `lab scenario` plays with
STEPS_MAX = 2000  # longer ones are no scenario any more
# A step that expects what a wrong peer does. It cannot be the one that breaks the rule: a right peer would fail there.
_EXPECTING = "elect"
# Until a rule about what a peer leaves undone is broken.
RUNS = ("run 500ms", "run 2s", "run 4s", "run 12s")


class Scripting:
    """Looks for the shortest list of steps that breaks a rule."""

    def __init__(
        self, peer_class: Any, rule: str, *, limit_s: float, clock: Callable[[], float] = time.process_time
    ) -> None:
        self._peer_class = peer_class
        self._rule = rule
        self._clock = clock
        self._until_s = clock() + limit_s
        self._played: dict[tuple[str, ...], int | None] = {}

    def write(self, trace: Sequence[Event], play: Play | None) -> list[str] | None:
        """The lines of the scenario, or None if none was found."""
        trace = _last_cluster(trace)
        peers = trace[0].detail if trace else 3
        header = [] if peers == 3 else [f"peers {peers}"]
        header += ["snapshots"] if play is not None and play.how.get("snapshot") else []
        found = None
        for steps in self._suggested(trace, play, peers):
            if self._clock() > self._until_s:
                break
            found = self._begin(header, steps[:STEPS_MAX])
            if found is not None:
                break
        if found is None:
            return None
        return [*header, *self._shorten(header, found)]

    def _suggested(self, trace: Sequence[Event], play: Play | None, peers: int) -> Iterator[list[str]]:
        every = SNAPSHOT_INTERVAL if play is None or play.snapshot_every is None else play.snapshot_every
        steps = steps_of(trace, every if play is not None and play.how.get("snapshot") else 0)
        if peers == 1:
            steps.insert(0, "campaign 0")  # it asks nobody, and so no message tells of it
        yield steps
        if trace and trace[-1].node.isdecimal():
            yield [*steps, f"run {trace[-1].node} 200ms"]
        for run in RUNS:
            yield [*steps, run]
        acts = [] if play is None else list(play.acts)
        for shift in range(peers):
            yield [*_in_time(acts, play, peers, shift), *RUNS[1:2]]
        yield ["elect 0 with 1", "start 0 1", *RUNS[2:]] if peers > 1 else ["campaign 0", "start 0 1", *RUNS[2:]]

    # ---- playing --------------------------------------------------------------------------------------------------

    def _begin(self, header: list[str], steps: list[str]) -> list[str] | None:
        """Those that make sense, up to the one that breaks the rule."""
        made: list[str] = []

        def player(scenario: Scenario, script: Script) -> None:
            scenario.goes_on = True
            for step in script.steps:
                scenario.words = step.text
                made.append(step.text)
                try:
                    step.act(scenario)
                except (NotMet, ScenarioError):
                    made.pop()
                finally:
                    scenario.words = ""

        try:
            script = parse_script("\n".join([*header, *steps]), "shrunk.scenario")
        except ScriptError:
            return None
        run = run_test(as_test(script, player=player), self._peer_class, SEED)
        if not self._breaks(run):
            return None
        return made if self._play(header, made) is not None else None

    def _play(self, header: list[str], steps: Sequence[str]) -> int | None:
        """How many of the steps were begun when the rule was broken; None if it was not."""
        key = tuple(steps)
        if key not in self._played:
            self._played[key] = self._played_now(header, steps)
        return self._played[key]

    def _played_now(self, header: list[str], steps: Sequence[str]) -> int | None:
        try:
            script = parse_script("\n".join([*header, *steps]), "shrunk.scenario")
        except ScriptError:
            return None
        run = run_test(as_test(script), self._peer_class, SEED)
        if not self._breaks(run):
            return None
        assert run.simulation is not None
        return sum(event.kind == events.STEP for event in run.simulation.trace or ())

    def _breaks(self, run: Run) -> bool:
        return isinstance(run.error, Failure) and run.error.rule == self._rule

    # ---- shortening -----------------------------------------------------------------------------------------------

    def _shorten(self, header: list[str], steps: list[str]) -> list[str]:
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
            self._leave_out(lambda: best, better)
            self._join(lambda: best, better)
        return best

    def _leave_out(self, best: Callable[[], list[str]], better: Callable[[Sequence[str]], bool]) -> None:
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

    def _join(self, best: Callable[[], list[str]], better: Callable[[Sequence[str]], bool]) -> None:
        """Several steps into one: an election, a replication, everything that is in flight; and simpler ones."""
        begin = 0
        while begin < len(best()):
            steps = best()
            joined = any(
                better([*steps[:begin], *one, *steps[begin + count :]]) for count, one in _joined(steps[begin:])
            )
            begin += not joined


def _joined(steps: Sequence[str]) -> Iterator[tuple[int, list[str]]]:
    """What the next so many steps may become."""
    first = steps[0]
    if found := re.fullmatch(r"campaign (\d+)", first):
        peer = found[1]
        votes = []
        for step in steps[1:]:
            asked = re.fullmatch(rf"deliver {peer}->(\d+) vote.*", step)
            told = re.fullmatch(rf"deliver (\d+)->{peer} vote reply.*", step)
            if asked is None and told is None:
                break
            votes += [asked[1]] if asked is not None else []
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
        for word in ("replicate", "update") if found[1] != "update" else ():
            for length in range(count, 1, -1):
                yield length, [f"{word} {leader}->{follower}"]
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
        # That is no mistake where there is nothing to drop, as with a right peer there may not be.
        yield 1, [f"drop {found[1]}->* {found[2]}"]
        yield 1, [f"run {found[1]} 200ms"]
    if found := re.fullmatch(r"(deliver \S+ \S+(?: reply)?) term \d+", first):
        yield 1, [found[1]]


# ---- a trace as steps ---------------------------------------------------------------------------------------------


def _last_cluster(trace: Sequence[Event]) -> Sequence[Event]:
    begins = [number for number, event in enumerate(trace) if event.kind == events.CLUSTER]
    return trace[begins[-1] :] if begins else []


def steps_of(trace: Sequence[Event], snapshot_every: int = 0) -> list[str]:
    """`snapshot_every`: so many commands, if services make snapshots."""
    return _Steps(trace, snapshot_every).steps


class _Steps:
    def __init__(self, trace: Sequence[Event], snapshot_every: int) -> None:
        self._every = snapshot_every
        self.steps: list[str] = []
        self._terms: dict[str, int] = {}  # of each peer's last campaign
        self._armed: dict[str, str] = {}
        self._words: dict[Any, str] = {}
        self._arrived: set[int] = set()  # requests, by number
        self._answered: set[int] = set()
        self._given_up: set[int] = set()  # whose callers were told already that there will be no reply
        self._copy: Any = None  # the latest second copy
        for event in trace:
            self._take(event)

    def _take(self, event: Event) -> None:
        if event.kind in events.MESSAGE_KINDS:
            self._take_message(event)
        elif event.kind == events.STARTED and event.detail.is_leader:
            self.steps.append(f"start {event.node} {self._word(event.detail.command)}")
        elif event.kind == events.CRASH_AT:
            self._armed.pop(event.node, None)
            if event.detail.when is not None:
                self._armed[event.node] = event.detail.when
        elif event.kind == events.CRASH:
            when = self._armed.pop(event.node, None)
            if when is None:
                self.steps.append(f"crash {event.node}")
            else:
                # It was in the middle of what the last step had it do.
                self.steps.insert(max(0, len(self.steps) - 1), f"crash {event.node} {when}")
        elif event.kind in (events.RESTART, events.PAUSE, events.RESUME):
            self.steps.append(f"{event.kind} {event.node}")
        elif event.kind == events.APPLY and event.detail.command_valid and self._is_due(event.detail.command_index):
            self.steps.append(f"snapshot {event.node} {event.detail.command_index}")

    def _is_due(self, index: int) -> bool:
        return self._every > 0 and index % self._every == self._every - 1

    def _take_message(self, event: Event) -> None:
        message = event.detail
        source, target, kind = message.source, message.target, kind_of(message.service_method)
        if source == target:
            return
        if event.kind == events.SEND:
            if message.service_method == VOTE and (term_of(message) or 0) > self._terms.get(source, 0):
                self._terms[source] = term_of(message) or 0
                self.steps.append(f"campaign {source}")
            return
        term = term_of(message)
        of = "" if term is None else f" term {term}"
        if event.kind == events.DUPLICATE:
            self._copy = message
            carried = commands_in(message)
            carries = f" with {self._word(carried[0])}" if carried else ""
            if event.message in self._arrived:
                self.steps.append(f"deliver {source}->{target} {kind}{of}{carries} again")
            else:
                self.steps.append(f"duplicate {source}->{target} {kind}{of}{carries}")
        elif event.kind == events.DELIVER:
            if message is not self._copy:
                self._arrived.add(event.message)
                self.steps.append(f"deliver {source}->{target} {kind}{of}")
        elif event.kind == events.REPLY:
            self.steps.append(f"deliver {target}->{source} {kind} reply{of}")
        elif event.kind == events.DROP and event.note in _LOST_REQUESTS:
            self.steps.append(f"drop {source}->{target} {kind}{of}")
        elif event.kind == events.DROP and event.note == DropReason.LOST_REPLY:
            self.steps.append(f"drop {target}->{source} {kind} reply{of}")
        elif event.kind == events.DROP and event.note == DropReason.UNPLUGGED_ON_THE_WAY:
            if event.message in self._answered:
                self.steps.append(f"drop {target}->{source} {kind} reply{of}")
            else:
                self._given_up.add(event.message)
        elif event.kind == events.ANSWER:
            self._answered.add(event.message)
            if event.message in self._given_up:
                self.steps.append(f"drop {target}->{source} {kind} reply{of}")

    def _word(self, command: Any) -> str:
        text = str(command)
        if re.fullmatch(r"[A-Za-z0-9_]{1,12}", text):
            return text
        return self._words.setdefault(command if isinstance(command, str | int) else text, f"c{len(self._words) + 1}")


_LOST_REQUESTS = (DropReason.LOST_REQUEST, DropReason.LINK_CUT, DropReason.UNPLUGGED)


def _in_time(acts: Iterable[Act], play: Play | None, peers: int, shift: int) -> Iterator[str]:
    """The acts, with ordinary time in between. Who leads is another one than it was: commands are for everybody."""
    now_ns = 0
    for act in acts:
        passed_ms = (act.at_ns - now_ns) // 1_000_000
        now_ns = act.at_ns
        if passed_ms:
            yield f"run {passed_ms}ms"
        if act.does == "start":
            for peer in range(peers):
                yield f"start {peer} {act.args[1] if type(act.args[1]) is int else 'x'}"
        elif act.does in ("crash1", "start1", "pause", "resume"):
            word = {"crash1": "crash", "start1": "restart"}.get(act.does, act.does)
            yield f"{word} {(act.args[0] + shift) % peers}"
        elif act.does == "network.partition":
            sides = " | ".join(" ".join(str((int(one) + shift) % peers) for one in side) for side in act.args if side)
            yield f"partition {sides}" if "|" in sides else "heal"
    if play is not None:
        yield f"run {max(1, (play.end_ns - now_ns) // 1_000_000)}ms"
