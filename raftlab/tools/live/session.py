"""The branches of a live page: each a list of steps, and what came of them.

A branch that is continued keeps its process, which waits for the next step. To go back is to start another process and
replay the steps before: runs are deterministic, and the digest of every moment says so.

Start at `Session.act()`.
"""

from __future__ import annotations

import json
import multiprocessing
import re
from collections.abc import Callable, Sequence
from multiprocessing.connection import Connection
from pathlib import Path
from threading import RLock
from typing import Any

import msgspec

from raftlab.scenarios.text import ScriptError, parse_step
from raftlab.tools.live.run import (
    CHANGES,
    Edit,
    Finished,
    Moment,
    RunReply,
    Setup,
    WhatIf,
    finish,
    script_of,
    serve,
    without_snapshots,
)
from raftlab.trace.events import ANSWER, APPLY, LOG, PHASE, STARTED, STEP
from raftlab.trace.operations import CrashHere

_LIMIT_S = 90.0  # for a step; the watchdog of a run ends one that never waits long before
_PROCESSES_MAX = 4  # that wait for a next step
# Events whose label is about nothing but themselves; others may tell what came later.
_WITH_OWN_TEXT = {APPLY, LOG, PHASE, STARTED, STEP}
_PRELOADED = ["raftlab.tools.live.run"]


class SessionError(Exception):
    """What was asked for cannot be done; the text says why."""


class _Process:
    """A run, seen from outside."""

    def __init__(self, setup: Setup, steps: Sequence[str], body: Callable[..., None] = serve) -> None:
        context = multiprocessing.get_context("forkserver")
        context.set_forkserver_preload(_PRELOADED)
        self._connection: Connection
        self._connection, theirs = context.Pipe()
        self._process = context.Process(target=body, args=(theirs, setup, list(steps)), daemon=True)
        self._process.start()
        theirs.close()

    def step(self, text: str) -> RunReply:
        self._connection.send(text)
        reply: RunReply = self.reply()
        return reply

    def what_if(self, asked: WhatIf) -> RunReply:
        self._connection.send(asked)
        reply: RunReply = self.reply()
        return reply

    def reply(self) -> Any:
        """A RunReply, whatever becomes of the process, or what else its body sends."""
        try:
            if self._connection.poll(_LIMIT_S):
                return self._connection.recv()
            how = f"the step has not ended after {_LIMIT_S:.0f} s"
        except (EOFError, OSError):
            self._process.join(5)
            how = f"the process of the run ended with exit status {self._process.exitcode}"
        self.close()
        return RunReply(cannot=f"{how}; its output is in the terminal")

    @property
    def pid(self) -> int | None:
        return self._process.pid

    def close(self) -> None:
        self._connection.close()
        self._process.kill()
        self._process.join(5)


class Branch(msgspec.Struct):
    """A run, and how it came about."""

    id: int
    name: str
    parent: int | None
    forked_at: int  # the number of steps that it shares with its parent
    setup: Setup
    moments: list[Moment]  # the first is before any step
    data: bytes = b""
    ended: str = ""
    rule: str = ""
    snapshots: bool = True
    note: str = ""  # how it came about, where that is not a step
    beside: int | None = None  # the branch that it is compared with

    @property
    def steps(self) -> list[str]:
        return [moment.step for moment in self.moments[1:]]


class Session:
    """All methods may be called from any thread."""

    def __init__(self) -> None:
        self._lock = RLock()
        self._branches: dict[int, Branch] = {}
        self._processes: dict[int, _Process] = {}  # by branch, the one that was used last at the end
        self._next_id = 1
        self.current = 1  # the branch that the page showed last, for when it is loaded again

    def open(self, setup: Setup, steps: Sequence[str] = (), *, name: str = "") -> Branch:
        """A new run with these steps, not forked from another."""
        with self._lock:
            return self._new_branch(setup, name or f"run {self._next_id}", None, 0, steps)

    def open_like(self, branch_id: int, header: str, name: str) -> Branch:
        """A new run that begins with this header, of the same peer as that branch."""
        with self._lock:
            like = self.branch(branch_id).setup
            setup = msgspec.structs.replace(like, header=header, file="new.scenario", test=None)
            try:
                script_of(setup)
            except ScriptError as error:
                raise SessionError(str(error)) from None
            return self.open(setup, name=name)

    def close(self) -> None:
        with self._lock:
            for process in self._processes.values():
                process.close()
            self._processes.clear()

    # ---- what a page asks for ---------------------------------------------------------------------------------

    def act(self, branch_id: int, at: int, step: str) -> tuple[Branch, str]:
        """Make a step after the first `at` steps: on a new branch, if this one goes on there. The branch, and why the
        step was refused."""
        with self._lock:
            branch = self.branch(branch_id)
            if not branch.setup.is_stepped:
                raise SessionError("this is the run of a test; take it over at some event first")
            if not 0 <= at < len(branch.moments):
                raise SessionError(f"branch {branch.name} has {len(branch.moments) - 1} steps, so none after {at}")
            if "\n" in step or not step.strip():
                raise SessionError("a step is one line; write, for example: campaign 0")
            step = " ".join(step.split())
            script = script_of(branch.setup)
            if branch.setup.test is not None:
                script.peers, script.snapshots = len(branch.moments[0].actions.peers), True
            try:
                parse_step(step, script)
            except ValueError as error:
                return branch, str(error)
            if at == len(branch.moments) - 1:
                if branch.ended:
                    raise SessionError("the run has ended here; go back to an earlier step")
                return branch, self._go_on(branch, step)
            following = branch.moments[at + 1].step
            if following == step:
                return branch, "that is what this branch does next"
            return self._fork(branch, at, step)

    def retry(self, branch_id: int) -> Branch:
        """The same steps again, on the code as it is now."""
        with self._lock:
            branch = self.branch(branch_id)
            self._forget_processes()
            new = self._new_branch(branch.setup, f"{branch.name}, new code", branch.id, 0, branch.steps)
            new.beside = branch.id
            return new

    def take_over(self, branch_id: int, event: int) -> Branch:
        """The run of a test up to this event, and then as a person wants."""
        with self._lock:
            branch = self.branch(branch_id)
            test = branch.setup.test
            last = branch.moments[0].events - (branch.ended != "" and not branch.setup.is_stepped)
            if test is None or not 0 <= event < last:
                raise SessionError("only the run of a test can be taken over, at an event before its end")
            setup = msgspec.structs.replace(branch.setup, test=msgspec.structs.replace(test, taken_over_at=event + 1))
            return self._new_branch(setup, f"from event {event + 1}", branch.id, 0, ())

    def what_if(self, branch_id: int, event: int, what: str) -> Branch:
        """The run of a test with one thing changed: what becomes of the message of this event, or a crash."""
        with self._lock:
            branch = self.branch(branch_id)
            test = branch.setup.test
            if test is None:
                raise SessionError("only the run of a test has choices to change; go back and make another step")
            test = msgspec.structs.replace(test, taken_over_at=None)
            setup = msgspec.structs.replace(branch.setup, test=test)
            if found := re.fullmatch(r"crash (\d)", what):
                test.crashes = [*test.crashes, CrashHere(event + 1, int(found[1]))]
            elif what in CHANGES:
                test.edits = [*test.edits, self._edit(branch, setup, WhatIf(event, what))]
            else:
                raise SessionError(f"there is no change {what!r}; there are: {', '.join(CHANGES)}, crash 0")
            new = self._new_branch(setup, f"{what} at event {event + 1}", branch.id, 0, ())
            new.beside = branch.id
            return new

    def _edit(self, branch: Branch, setup: Setup, asked: WhatIf) -> Edit:
        process = None if branch.setup.is_stepped else self._processes.get(branch.id)
        if process is None:
            process = _Process(setup, ())
            first = process.reply()
            if first.cannot:
                raise SessionError(first.cannot)
            if not branch.setup.is_stepped:
                self._keep(branch, process)
        reply: RunReply = process.what_if(asked)
        if process not in self._processes.values():
            process.close()
        if reply.edit is None:
            raise SessionError(reply.refused or reply.cannot)
        return reply.edit

    def finished(self, branch_id: int) -> Finished:
        """The branch played out, as its saved file is on the command line."""
        with self._lock:
            branch = self.branch(branch_id)
            process = _Process(branch.setup, branch.steps, finish)
            reply = process.reply()
            process.close()
            if not isinstance(reply, Finished):
                raise SessionError(reply.cannot)
            return reply

    def branch(self, branch_id: int) -> Branch:
        with self._lock:
            if branch_id not in self._branches:
                raise SessionError(f"there is no branch {branch_id}")
            return self._branches[branch_id]

    def rename(self, branch_id: int, name: str) -> None:
        with self._lock:
            self.branch(branch_id).name = " ".join(name.split())[:60] or f"branch {branch_id}"

    def delete(self, branch_id: int) -> None:
        """Its children become its parent's."""
        with self._lock:
            gone = self.branch(branch_id)
            if len(self._branches) == 1:
                raise SessionError("the only branch cannot be deleted")
            del self._branches[branch_id]
            self._close_process(branch_id)
            if self.current == branch_id:
                self.current = next(iter(self._branches))
            for branch in self._branches.values():
                if branch.parent == branch_id:
                    branch.parent = gone.parent
                    branch.forked_at = min(branch.forked_at, gone.forked_at)
                if branch.beside == branch_id:
                    branch.beside = None

    def tree(self) -> list[dict[str, Any]]:
        """All branches, the oldest first."""
        with self._lock:
            return [
                {
                    "id": branch.id,
                    "name": branch.name,
                    "parent": branch.parent,
                    "at": branch.forked_at,
                    "steps": len(branch.moments) - 1,
                    "ended": branch.ended,
                    "rule": branch.rule,
                }
                for branch in self._branches.values()
            ]

    def scenario(self, branch_id: int) -> str:
        """The branch as a file for `lab scenario`."""
        with self._lock:
            branch = self.branch(branch_id)
            setup = branch.setup
            if setup.test is not None:
                raise SessionError("this branch begins with a test, so it is saved as choices")
            seed = "" if setup.seed == 1 else f"# Play it with --seed {setup.seed}.\n"
            title = f"# {branch.name}, from a live page.\n"
            header = (setup.header if branch.snapshots else without_snapshots(setup.header)).strip("\n")
            ends = f"# Here the run ends: {branch.ended}\n" if branch.ended else ""
            steps = branch.steps or ["show"]
            return "\n".join([f"{title}{seed}{header}", *steps, ""]) + ends

    def process_id(self, branch_id: int) -> int | None:
        """Of the process that waits for the branch's next step."""
        with self._lock:
            process = self._processes.get(branch_id)
            return None if process is None else process.pid

    # ---- processes ---------------------------------------------------------------------------------------------

    def _new_branch(self, setup: Setup, name: str, parent: int | None, at: int, steps: Sequence[str]) -> Branch:
        process = _Process(setup, steps)
        reply = process.reply()
        if reply.cannot or not reply.moments:
            process.close()
            raise SessionError(reply.cannot or reply.refused)
        branch = Branch(self._next_id, name, parent, at, setup, [])
        if reply.refused:
            # What could be made is kept.
            process.close()
            made = [moment.step for moment in reply.moments[1:]]
            process = _Process(setup, made)
            branch.note = f"{steps[len(made)]}: {reply.refused}"
            reply = process.reply()
            if reply.cannot:
                raise SessionError(reply.cannot)
        self._next_id += 1
        self._branches[branch.id] = branch
        self._take(branch, process, reply)
        return branch

    def _fork(self, branch: Branch, at: int, step: str) -> tuple[Branch, str]:
        process = _Process(branch.setup, branch.steps[:at])
        reply = process.reply()
        if not reply.cannot and not reply.refused and not reply.ended:
            moments = reply.moments
            reply = process.step(step)
            if not reply.refused and not reply.cannot:
                reply.moments[:0] = moments
        if reply.cannot:
            raise SessionError(reply.cannot)
        if reply.refused:
            process.close()
            return branch, reply.refused
        new = Branch(self._next_id, f"branch {self._next_id}", branch.id, at, branch.setup, [])
        self._next_id += 1
        self._branches[new.id] = new
        self._take(new, process, reply)
        if new.moments[at].digest != branch.moments[at].digest:
            new.note = "The code has changed since that step was made, or the run is not deterministic."
        return new, ""

    def _go_on(self, branch: Branch, step: str) -> str:
        """Why the step was refused, or ""."""
        process = self._processes.pop(branch.id, None)
        if process is None:
            process = _Process(branch.setup, branch.steps)
            replayed = process.reply()
            if replayed.cannot or replayed.refused or replayed.ended:
                raise SessionError(
                    f"the steps of this branch can no longer be replayed; retry it on the new code: "
                    f"{replayed.cannot or replayed.refused or replayed.ended}"
                )
            if replayed.moments[-1].digest != branch.moments[-1].digest:
                process.close()
                raise SessionError("the code has changed since these steps were made; T makes them on the new code")
        reply = process.step(step)
        if reply.cannot:
            raise SessionError(reply.cannot)
        if reply.refused:
            process.close()
            return reply.refused
        self._take(branch, process, reply)
        return ""

    def _take(self, branch: Branch, process: _Process, reply: RunReply) -> None:
        branch.moments += reply.moments
        branch.data = reply.data
        branch.ended, branch.rule, branch.snapshots = reply.ended, reply.rule, reply.snapshots
        if branch.ended and branch.setup.is_stepped:
            process.close()
            return
        self._keep(branch, process)

    def _keep(self, branch: Branch, process: _Process) -> None:
        self._processes[branch.id] = process
        while len(self._processes) > _PROCESSES_MAX:
            self._close_process(next(iter(self._processes)))

    def _close_process(self, branch_id: int) -> None:
        process = self._processes.pop(branch_id, None)
        if process is not None:
            process.close()

    def _forget_processes(self) -> None:
        for branch_id in list(self._processes):
            self._close_process(branch_id)


def first_difference(one: bytes, other: bytes) -> int | None:
    """The first event at which two runs differ, by what the page shows of each; None if they are the same."""
    ours, theirs = _lines_of(one), _lines_of(other)
    for place, (mine, its) in enumerate(zip(ours, theirs, strict=False)):
        if mine != its:
            return place
    return None if len(ours) == len(theirs) else min(len(ours), len(theirs))


def _lines_of(encoded: bytes) -> list[tuple[Any, ...]]:
    data = json.loads(encoded)
    columns = data["events"]
    kinds, lanes, texts = data["kinds"], [lane["name"] for lane in data["lanes"]], data["texts"]
    calls, values = data["calls"], data["values"]
    lines: list[tuple[Any, ...]] = []
    for time, kind, lane, call, words in zip(
        *(columns[name] for name in ("time", "kind", "lane", "call", "words")), strict=True
    ):
        what: Any = None
        if call >= 0:
            value = calls["reply" if kinds[kind] == ANSWER else "args"][call]
            what = (calls["from"][call], calls["to"][call], values[value] if value >= 0 else None)
        elif kinds[kind] in _WITH_OWN_TEXT:
            what = texts[words]
        lines.append((time, kinds[kind], lanes[lane] if lane >= 0 else "", what))
    return lines


def peer_files(raft: Path) -> list[Path]:
    """The files whose change makes other code of it."""
    return sorted(raft.parent.glob("*.py"))
