"""Parses .scenario files: one step per line, each a call of a method of Scenario.

Promise: mistakes in a file are reported before anything runs, with file, line and fix.

Start at `read_script()`; `STEPS` has the syntax of the steps.
"""

from __future__ import annotations

import difflib
import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, NamedTuple, NoReturn

from labsim.stacks import short_path
from raftlab.check.harness_rules import HARNESS_RULES
from raftlab.check.rules import RULES
from raftlab.scenarios import fields
from raftlab.scenarios.in_flight import Selector, SelectorError, read_command
from raftlab.scenarios.logs import IllegalLogs, plan_history
from raftlab.scenarios.scenario import Scenario

OUTPUT = "----"
PEERS_MAX = 9

StepAction = Callable[[Scenario], Any]


class ScriptError(Exception):
    """A mistake in a file, with file, line and fix."""

    def __init__(self, file: str, line: int, text: str) -> None:
        super().__init__(f"{short_path(file)}:{line}: {text}")
        self.line = line


class _StepError(ValueError):
    """A mistake in one line."""


class Step(NamedTuple):
    line: int
    text: str
    action: StepAction
    has_output: bool = False


@dataclass
class Script:
    """A parsed scenario file."""

    file: str
    title: str = ""
    why: str = ""  # the rest of the comment at the beginning of the file
    peers: int = 3
    snapshots: bool = False
    strict: bool = False
    plain_votes: bool = False  # not for peers with pre-vote, or that ignore a RequestVote (§6)
    steps: list[Step] = field(default_factory=list)
    expected: dict[int, list[str]] = field(default_factory=dict)  # by the line of a `show`: its output
    breaks: str = ""  # the rule that an incorrect peer must violate

    @property
    def name(self) -> str:
        return Path(self.file).stem


# ---- syntax of the steps -------------------------------------------------------------------------------------------


class StepSyntax(NamedTuple):
    """The pattern after a step's first word, and the action. `usage` is shown after a syntax error."""

    usage: str
    pattern: str
    action: Callable[[re.Match[str]], StepAction]


def _selecting(call: Callable[[Scenario, str], Any]) -> Callable[[re.Match[str]], StepAction]:
    """Parses the selector now, so that mistakes are found before anything runs."""

    def action(match: re.Match[str]) -> StepAction:
        selector = match["selector"]
        Selector.read(selector)
        return lambda s: call(s, selector)

    return action


def _peers(text: str) -> list[int]:
    return [int(word) for word in text.split()]


def _seconds(text: str) -> float:
    number, unit = re.fullmatch(r"([\d.]+)(ms|s)", text).groups()  # type: ignore[union-attr]  # as the pattern has it
    return float(number) / (1000 if unit == "ms" else 1)


def _deliver(match: re.Match[str]) -> StepAction:
    selector = match["selector"]
    if selector is None:
        return lambda s: s.deliver()
    again = bool(match["again"])
    Selector.read(selector)
    return lambda s: s.deliver(selector, again=again)


def _drop(match: re.Match[str]) -> StepAction:
    if match["selector"] is None:
        return lambda s: s.drop()
    return _selecting(Scenario.drop)(match)


def _run(match: re.Match[str]) -> StepAction:
    if match["time"] is None:
        return Scenario.run_until_send
    peer, duration_s = match["peer"], _seconds(match["time"])
    return lambda s: s.run(duration_s, None if peer is None else int(peer))


def _crash(match: re.Match[str]) -> StepAction:
    peer = int(match["peer"])
    when: Any = match["when"]  # a CrashMoment, by the pattern
    return lambda s: s.crash(peer, when)


def _of_link(call: Callable[..., None]) -> Callable[[re.Match[str]], StepAction]:
    def action(match: re.Match[str]) -> StepAction:
        one, other, one_way = _optional(match["one"]), _optional(match["other"]), match["arrow"] == "->"
        return lambda s: call(s, one, other, one_way=one_way)

    return action


def _partition(match: re.Match[str]) -> StepAction:
    groups = [_peers(group) for group in match["groups"].split("|")]
    all_peers = [peer for group in groups for peer in group]
    repeated = next((peer for peer in all_peers if all_peers.count(peer) > 1), None)
    if repeated is not None:
        raise _StepError(f"peer {repeated} is in two groups")
    return lambda s: s.partition(*groups)


def _to_followers(call: Callable[[Scenario, int, list[int]], None]) -> Callable[[re.Match[str]], StepAction]:
    def action(match: re.Match[str]) -> StepAction:
        source, targets = int(match["source"]), match["targets"]
        if targets != "*":
            return lambda s: call(s, source, _peers(targets))
        return lambda s: call(s, source, [i for i in s.config.others(source) if s.config.reachable(i)])

    return action


def _elect(match: re.Match[str]) -> StepAction:
    peer, voters, term = int(match["peer"]), _peers(match["voters"] or ""), _optional(match["term"])
    return lambda s: s.elect(peer, voters, term=term)


def _optional(number: str | None) -> int | None:
    return None if number is None else int(number)


_PEER = r"(?P<peer>\d+)"
_TERM = r"(?:\s+term\s+(?P<term>\d+))?"
_LINK = r"(?P<one>\d+)(?:\s*(?P<arrow>->|\s)\s*(?P<other>\d+))?"
_FOLLOWERS = r"(?P<source>\d+)\s*->\s*(?P<targets>\*|\d+(?:\s+\d+)*)"
_SELECTOR = r"(?P<selector>[\d*]+\s*->.*)"

STEPS: dict[str, StepSyntax] = {
    "start": StepSyntax(
        "start 0 x, or start 0 x refused",
        rf"{_PEER}\s+(?P<command>\S+)(?P<refused>\s+refused)?",
        lambda m: lambda s: s.start(int(m["peer"]), read_command(m["command"]), refused=bool(m["refused"])),
    ),
    "campaign": StepSyntax(
        "campaign 0, or campaign 0 term 4",
        rf"{_PEER}{_TERM}",
        lambda m: lambda s: s.campaign(int(m["peer"]), term=_optional(m["term"])),
    ),
    "elect": StepSyntax(
        "elect 0 with 1 2, or elect 0 term 4 with 1 2", rf"{_PEER}{_TERM}(?:\s+with(?P<voters>(?:\s+\d+)+))?", _elect
    ),
    "heartbeat": StepSyntax("heartbeat 0", _PEER, lambda m: lambda s: s.heartbeat(int(m["peer"]))),
    "run": StepSyntax(
        "run 1s, run 0 300ms, or run until send",
        r"(?:(?P<peer>\d+)\s+)?(?P<time>\d+(?:\.\d+)?m?s)|until\s+send",
        _run,
    ),
    "deliver": StepSyntax(
        "deliver, deliver 0->1 vote, or deliver 0->1 vote again",
        rf"(?:{_SELECTOR.replace('.*', '.*?')}(?P<again>\s+again)?)?",
        _deliver,
    ),
    "drop": StepSyntax("drop, or drop 0->1 vote", rf"{_SELECTOR}?", _drop),
    "duplicate": StepSyntax("duplicate 0->1 append", _SELECTOR, _selecting(Scenario.duplicate)),
    "replicate": StepSyntax(
        "replicate 0->1, replicate 0->1 2 or replicate 0->*",
        _FOLLOWERS,
        _to_followers(Scenario.replicate),
    ),
    "update": StepSyntax(
        "update 0->1, update 0->1 2 or update 0->*",
        _FOLLOWERS,
        _to_followers(Scenario.update),
    ),
    "crash": StepSyntax(
        "crash 0, or crash 0 before save (after save, after reply)",
        rf"{_PEER}(?:\s+(?P<when>before save|after save|after reply))?",
        _crash,
    ),
    "restart": StepSyntax(
        "restart 0", r"(?P<peers>\d+(?:\s+\d+)*)", lambda m: lambda s: s.restart(*_peers(m["peers"]))
    ),
    "pause": StepSyntax("pause 0", _PEER, lambda m: lambda s: s.pause(int(m["peer"]))),
    "resume": StepSyntax("resume 0", _PEER, lambda m: lambda s: s.resume(int(m["peer"]))),
    "cut": StepSyntax("cut 0 1 (both ways), cut 0->1, or cut 0 (all its links)", _LINK, _of_link(Scenario.cut)),
    "partition": StepSyntax(
        "partition 0 1 | 2 3 4", r"(?P<groups>\d+(?:\s+\d+)*(?:\s*\|\s*\d+(?:\s+\d+)*)+)", _partition
    ),
    "heal": StepSyntax("heal, heal 0 1, heal 0->1, or heal 0", rf"(?:{_LINK})?", _of_link(Scenario.heal)),
    "snapshot": StepSyntax(
        "snapshot 0 5",
        rf"{_PEER}\s+(?P<index>\d+)",
        lambda m: lambda s: s.snapshot(int(m["peer"]), int(m["index"])),
    ),
    "busy": StepSyntax("busy 0", _PEER, lambda m: lambda s: s.busy(int(m["peer"]))),
    "ready": StepSyntax("ready 0", _PEER, lambda m: lambda s: s.ready(int(m["peer"]))),
    "show": StepSyntax("show", "", lambda m: Scenario.show),
}


def _expect_vote(match: re.Match[str]) -> StepAction:
    voter, candidate, granted = int(match["peer"]), int(match["other"]), match["did"] == "voted"
    return lambda s: s.expect_vote(voter, candidate, granted=granted)


def _expect_append(match: re.Match[str]) -> StepAction:
    follower, leader, success = int(match["peer"]), int(match["other"]), match["did"] == "accepted"
    return lambda s: s.expect_append(follower, leader, success=success)


def _expect_applied(match: re.Match[str]) -> StepAction:
    peer, command, index = int(match["peer"]), read_command(match["command"]), _optional(match["index"])
    applied = not match["not"]
    return lambda s: s.expect_applied(peer, command, index=index, applied=applied)


def _expect_in_flight(match: re.Match[str]) -> StepAction:
    selector, there = match["selector"], match["what"] == "in"
    Selector.read(selector)
    return lambda s: s.expect_in_flight(selector, there=there)


def _expect_field(match: re.Match[str]) -> StepAction:
    peer, name, words = int(match["peer"]), match["name"], (match["values"] or "").split()
    if fields.NAMES[name]:
        value: Any = [] if words in ([], ["empty"]) else [_number(word) for word in words]
    else:
        if len(words) != 1:
            raise _StepError(f"{name} is one number; write: expect 1 {name} 3")
        value = None if words[0] == "none" else _number(words[0])
    return lambda s: s.expect_field(peer, name, value)


def _number(word: str) -> int:
    if not re.fullmatch(r"-?\d+", word):
        raise _StepError(f"{word!r} is not a number")
    return int(word)


EXPECTATIONS: Sequence[StepSyntax] = (
    StepSyntax(
        "expect leader 0 term 3",
        rf"leader\s+{_PEER}{_TERM}",
        lambda m: lambda s: s.expect_leader(int(m["peer"]), term=_optional(m["term"])),
    ),
    StepSyntax("expect no leader", r"no\s+leader", lambda m: Scenario.expect_no_leader),
    StepSyntax(
        "expect 0 not leader", rf"{_PEER}\s+not\s+leader", lambda m: lambda s: s.expect_not_leader(int(m["peer"]))
    ),
    StepSyntax(
        "expect 0 term 3",
        rf"{_PEER}\s+term\s+(?P<term>\d+)",
        lambda m: lambda s: s.expect_term(int(m["peer"]), int(m["term"])),
    ),
    StepSyntax(
        "expect 1 voted 0, expect 1 refused 0", rf"{_PEER}\s+(?P<did>voted|refused)\s+(?P<other>\d+)", _expect_vote
    ),
    StepSyntax(
        "expect 1 accepted 0, expect 1 rejected 0",
        rf"{_PEER}\s+(?P<did>accepted|rejected)\s+(?P<other>\d+)",
        _expect_append,
    ),
    StepSyntax(
        "expect 2 applied up to 3",
        rf"{_PEER}\s+applied\s+up\s+to\s+(?P<index>\d+)",
        lambda m: lambda s: s.expect_applied_up_to(int(m["peer"]), int(m["index"])),
    ),
    StepSyntax(
        "expect 2 applied x at 3, expect 2 not applied x",
        rf"{_PEER}\s+(?P<not>not\s+)?applied\s+(?P<command>\S+)(?:\s+at\s+(?P<index>\d+))?",
        _expect_applied,
    ),
    StepSyntax(
        "expect in flight 0->1 append, expect not in flight 0->1 append",
        rf"(?P<what>in|not\s+in)\s+flight\s+{_SELECTOR}",
        _expect_in_flight,
    ),
    StepSyntax("expect 0 down", rf"{_PEER}\s+down", lambda m: lambda s: s.expect_down(int(m["peer"]))),
    StepSyntax("expect progress", "progress", lambda m: Scenario.expect_progress),
    StepSyntax(
        f"expect 1 log 1 1 2 (or {', '.join(name for name in fields.NAMES if name != 'log')})",
        rf"{_PEER}\s+(?P<name>{'|'.join(fields.NAMES)})(?P<values>(?:\s+\S+)*)",
        _expect_field,
    ),
)

_BREAKS = re.compile(r"rule\s+(?P<rule>\S+)\s+broken")
_HEADERS = ("peers", "snapshots", "strict", "needs")
_PEER_GROUPS = ("peer", "one", "other", "source", "targets", "voters", "peers", "groups")
IMPOSSIBLE_LOGS = "Raft cannot produce these logs with leaders that send all their entries"


# ---- reading -------------------------------------------------------------------------------------------------------


def read_script(file: Path) -> Script:
    try:
        text = file.read_text(encoding="utf-8-sig")
    except (OSError, UnicodeDecodeError) as error:
        why = error.strerror if isinstance(error, OSError) else "it is not UTF-8 text"
        raise ScriptError(str(file), 1, f"cannot be read: {why}") from None
    return parse_script(text, str(file.resolve()))


def parse_script(text: str, file: str) -> Script:
    script = Script(file)
    # Not splitlines(), which also splits at characters that editors do not count as line ends.
    reader = _ScriptReader(script, text.removesuffix("\n").split("\n"))
    reader.read()
    return script


def parse_step(text: str, script: Script) -> StepAction:
    """One step, as typed at a prompt. Raises ValueError if it is invalid."""
    word, rest = _split(text)
    if word in ("logs", "commit", *_HEADERS) or _BREAKS.fullmatch(rest):
        raise _StepError(f"{text!r} is allowed only in a file, at its beginning or end")
    return _parse_action(word, rest, script)


class _ScriptReader:
    def __init__(self, script: Script, lines: list[str]) -> None:
        self._script = script
        self._lines = lines
        self._logs: dict[int, list[int]] = {}
        self._logs_line = 0

    def read(self) -> None:
        script = self._script
        self._read_comment()
        number = 0
        while number < len(self._lines):
            number += 1
            text = self._lines[number - 1].partition("#")[0].strip()  # also strips Windows line ends
            if not text:
                continue
            try:
                if text == OUTPUT:
                    number = self._read_output(number)
                    continue
                self._read_line(number, text)
            except (_StepError, SelectorError) as error:
                self._fail(number, str(error))
        self._finish_logs(0)
        if not script.steps:
            self._fail(len(self._lines) or 1, "the file has no steps; write one, such as: campaign 0")

    def _fail(self, line: int, text: str) -> NoReturn:
        raise ScriptError(self._script.file, line, text) from None

    def _read_comment(self) -> None:
        lines = []
        for line in self._lines:
            if not line.startswith("#"):
                break
            lines.append(line.lstrip("#").strip())
        if lines:
            self._script.title = lines[0].rstrip(".")
            self._script.why = " ".join(line for line in lines[1:] if line)

    def _read_line(self, number: int, text: str) -> None:
        script = self._script
        if script.breaks:
            raise _StepError(f"'expect rule {script.breaks} broken' must be the last step: the run ends there")
        word, rest = _split(text)
        if word in _HEADERS:
            if script.steps or self._logs:
                raise _StepError(f"{word!r} must be at the top, before the first step")
            self._read_header(word, rest)
        elif word == "logs":
            self._read_logs(number, rest)
        elif word == "commit":
            if not self._logs:
                raise _StepError("'commit' must follow 'logs' lines such as: logs 0: 1 1 2")
            self._finish_logs(_positive(rest, "commit 9"))
        else:
            self._finish_logs(0)
            if word == "expect" and (match := _BREAKS.fullmatch(rest)) is not None:
                script.breaks = rule = _known_rule(match["rule"])
                script.steps.append(Step(number, text, lambda s: s.expect_broken(rule)))
                return
            script.steps.append(Step(number, text, _parse_action(word, rest, script), word == "show"))

    def _read_header(self, word: str, rest: str) -> None:
        script = self._script
        if word == "peers":
            script.peers = _positive(rest, "peers 5")
            if script.peers > PEERS_MAX:
                raise _StepError(f"at most {PEERS_MAX} peers")
        elif word == "needs":
            if rest != "plain votes":
                raise _StepError(f"unknown need {rest!r}; write: needs plain votes")
            script.plain_votes = True
        elif rest:
            raise _StepError(f"nothing may follow {word!r}")
        else:
            setattr(script, word, True)

    def _read_logs(self, number: int, rest: str) -> None:
        if self._script.steps:
            raise _StepError("'logs' must be the first step: it creates its own history from the beginning")
        match = re.fullmatch(r"(\d+)\s*:\s*((?:\d+\s*)*)", rest)
        if match is None:
            raise _StepError("write the terms of each peer's entries, such as: logs 0: 1 1 2")
        peer = int(match[1])
        if peer >= self._script.peers:
            raise _StepError(f"there is no peer {peer}; peers are 0..{self._script.peers - 1}")
        if peer in self._logs:
            raise _StepError(f"duplicate log for peer {peer}")
        self._logs[peer] = [int(term) for term in match[2].split()]
        self._logs_line = self._logs_line or number

    def _finish_logs(self, commit: int) -> None:
        """Add the `logs` step. Peers without a line have empty logs."""
        if self._logs:
            terms = [self._logs.get(peer, []) for peer in range(self._script.peers)]
            try:
                plan_history(terms, commit)
            except IllegalLogs as error:
                self._fail(self._logs_line, f"{IMPOSSIBLE_LOGS}: {error}")
            self._logs = {}
            text = f"logs{f', commit {commit}' if commit else ''}"
            self._script.steps.append(Step(self._logs_line, text, lambda s: s.logs(terms, commit=commit)))

    def _read_output(self, number: int) -> int:
        """Read the expected output under a `show`, up to an empty line: the number of its last line."""
        steps = self._script.steps
        if not steps or not steps[-1].has_output or steps[-1].line in self._script.expected:
            raise _StepError(f"{OUTPUT} is allowed only under a 'show', before its output")
        last = number
        while last < len(self._lines) and self._lines[last].strip():
            last += 1
        self._script.expected[steps[-1].line] = [line.rstrip() for line in self._lines[number:last]]
        return last


def _split(text: str) -> tuple[str, str]:
    word, *rest = text.split()
    return word, " ".join(rest)


def _parse_action(word: str, rest: str, script: Script) -> StepAction:
    if word == "expect":
        return _parse_expectation(rest, script)
    if word not in STEPS:
        known = [*STEPS, "expect", "logs"]
        near = difflib.get_close_matches(word, known, n=1)
        hint = f"did you mean {near[0]!r}?" if near else f"the steps are: {', '.join(known)}"
        raise _StepError(f"there is no step {word!r}; {hint}")
    step = STEPS[word]
    match = re.fullmatch(step.pattern, rest)
    if match is None:
        raise _StepError(f"cannot read {f'{word} {rest}'.strip()!r}; write: {step.usage}")
    if word == "snapshot" and not script.snapshots:
        raise _StepError("this scenario has no snapshots; write 'snapshots' at the top")
    _check_peers(match, script)
    return step.action(match)


def _parse_expectation(rest: str, script: Script) -> StepAction:
    for expectation in EXPECTATIONS:
        match = re.fullmatch(expectation.pattern, rest)
        if match is not None:
            _check_peers(match, script)
            return expectation.action(match)
    usages = "; ".join(expectation.usage for expectation in EXPECTATIONS)
    raise _StepError(f"cannot expect {rest!r}; write one of: {usages}; expect rule one-vote broken")


def _check_peers(match: re.Match[str], script: Script) -> None:
    """Refuses numbers of peers that do not exist."""
    named: list[int | None] = []
    for group, text in match.groupdict().items():
        if text is not None and group == "selector":
            selector = Selector.read(text)
            named += [selector.source, selector.target]
        elif text is not None and group in _PEER_GROUPS:
            named += map(int, re.findall(r"\d+", text))
    for peer in named:
        if peer is not None and peer >= script.peers:
            raise _StepError(f"there is no peer {peer}; peers are 0..{script.peers - 1}")


def _known_rule(name: str) -> str:
    known = [rule.name for rule in RULES] + [rule.name for rule in HARNESS_RULES]
    if name not in known:
        near = difflib.get_close_matches(name, known, n=1)
        raise _StepError(
            f"there is no rule {name!r}; {f'did you mean {near[0]!r}?' if near else 'see docs/student/rules.md'}"
        )
    return name


def _positive(text: str, usage: str) -> int:
    if not re.fullmatch(r"[1-9]\d*", text):
        raise _StepError(f"cannot read {text!r} as a number above 0; write: {usage}")
    return int(text)
