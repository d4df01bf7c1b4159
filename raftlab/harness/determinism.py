"""Checks that a seed determines a run: compares the events of a test in two processes with different hash seeds.

In one process, two runs agree even for a peer that iterates over a set of strings or sorts by id(). Another process
has other hashes and addresses. To change the order of addresses too, the second process shuffles its memory first.
"""

from __future__ import annotations

import ast
import json
import os
import random
import subprocess
import sys
import tempfile
from collections.abc import Sequence
from pathlib import Path
from typing import Any
from zlib import crc32

from labrpc import Message
from labsim import Event, Simulation
from labsim.stacks import is_user_code, short_path, user_frames
from raftlab.harness.options import Values, arguments
from raftlab.trace.events import ANSWER, PERSIST, REPLY, SEND

_MAX_TEXT = 200
_MAX_SUSPECTS = 6
_GIVEN_FILES = ("persister.py", "messages.py")  # given to students with raft.py; never the cause


class Recorder:
    """Records each event of a run as plain values, with the peer's line that caused it."""

    def __init__(self, simulation: Simulation) -> None:
        self._simulation = simulation
        self._lines: list[list[Any]] = []
        simulation.subscribe(self._record)

    def _record(self, events: Sequence[Event]) -> None:
        cause = _cause()
        self._lines += [[event.at_ns, event.kind, event.node, describe(event), cause] for event in events]

    @property
    def lines(self) -> list[list[Any]]:
        """As many as the trace has, which ends where a rule was violated."""
        return self._lines[: len(self._simulation.trace or ())]


def describe(event: Event) -> str:
    detail = event.detail
    if isinstance(detail, Message):
        text = f"{detail.service_method} {detail.source}->{detail.target}"
        if event.kind == SEND:
            return f"{text} {detail.decode_args()}"
        if event.kind in (ANSWER, REPLY):
            return f"{text} {detail.decode_reply()}"
        return f"{text} {event.note}".rstrip()
    if event.kind == PERSIST:
        return f"{len(detail.raft_state)} bytes, checksum {crc32(detail.raft_state)}"
    return "" if detail is None else repr(detail)


def _cause() -> str:
    frame = sys._getframe(2)
    for f in user_frames(frame):
        filename = f.f_code.co_filename
        if is_user_code(filename) and Path(filename).name not in _GIVEN_FILES:
            return f"{short_path(filename)}:{f.f_lineno} in {f.f_code.co_name}"
    return ""


def shuffle_memory() -> None:
    """Fragment the free memory of small objects, so that two processes allocate in different orders."""
    shuffle = random.SystemRandom().shuffle
    for size in range(0, 512, 16):
        junk = [bytes(size + 1) for _ in range(400)]
        shuffle(junk)
        del junk[::2]
        _leftovers.append(junk[:20])
        while junk:
            junk.pop()


_leftovers: list[Any] = []  # kept, so that no memory pool becomes empty


def write_record(path: Path, events: list[Any], digest: str) -> None:
    path.write_text(json.dumps({"digest": digest, "events": events}), encoding="utf-8")


def record_in_new_process(test: str, values: Values, root: Path, ini: Path | None) -> tuple[list[Any], str]:
    """The events and the digest of the same run in a new process with another hash seed."""
    with tempfile.TemporaryDirectory() as folder:
        record = Path(folder) / "events.json"
        mine = os.environ.get("PYTHONHASHSEED", "")
        environment = {k: v for k, v in os.environ.items() if not k.startswith("PYTEST_XDIST_")}
        environment["PYTHONHASHSEED"] = "1" if mine != "1" else "2"
        command = [sys.executable, "-m", "pytest", test, f"--rootdir={root}", *(["-c", str(ini)] if ini else [])]
        command += ["-q", "-p", "no:cacheprovider", "-n", "0", *arguments(values), "--record-events", str(record)]
        done = subprocess.run(command, env=environment, capture_output=True, text=True)
        if not record.exists():
            raise RuntimeError(f"the second run failed to start:\n{done.stdout}{done.stderr}")
        recorded = json.loads(record.read_text(encoding="utf-8"))
        return list(recorded["events"]), str(recorded["digest"])


def first_difference(first: list[Any], second: list[Any]) -> str | None:
    """The first event that differs and the line that caused it; None if all are equal."""
    first = json.loads(json.dumps(first))
    for number, (a, b) in enumerate(zip(first, second, strict=False)):
        if a[:4] != b[:4]:
            return (
                f"Nondeterministic: two runs of one seed differ, first at event {number + 1}:\n"
                f"  first run   {_format(a, b)}\n"
                f"  second run  {_format(b, a)}"
            )
    if len(first) != len(second):
        shorter, longer = sorted((first, second), key=len)
        which = "first" if longer is first else "second"
        return (
            f"Nondeterministic: two runs of one seed have {len(shorter)} equal events, and only the {which} run "
            f"continues, with\n  {_format(longer[len(shorter)])}"
        )
    return None


def _format(event: list[Any], other: list[Any] | None = None) -> str:
    at_ns, kind, node, text, cause = event
    # Of a long text, show the part with the first difference.
    if len(text) > _MAX_TEXT:
        pairs = zip(text, other[3] if other is not None else "", strict=False)
        same = next((i for i, (a, b) in enumerate(pairs) if a != b), 0)
        start = max(0, min(same - _MAX_TEXT // 2, len(text) - _MAX_TEXT))
        text = f"{'...' if start else ''}{text[start : start + _MAX_TEXT]}..."
    who = f"peer {node}" if node else "network" if "->" in text else "tester"
    return f"{at_ns / 1e9:.6f} s  {who} {kind}: {text}".rstrip() + (
        f"\n              caused at {cause}" if cause else ""
    )


# ---- suspects ------------------------------------------------------------------------------------------------

_BUILTINS = {
    "set": "the order of a set differs between processes; use sorted()",
    "frozenset": "the order of a set differs between processes; use sorted()",
    "id": "id() is an address, which differs between processes",
    "hash": "hash() of a string differs between processes",
}
_METHODS = {
    "now": "the real clock; use 'from labsim import time'",
    "utcnow": "the real clock; use 'from labsim import time'",
    "today": "the real clock; use 'from labsim import time'",
    "getpid": "differs between processes",
    "listdir": "the real file system",
    "getenv": "the environment differs between processes",
    "gettempdir": "the real file system",
}


def suspects(path: Path) -> list[str]:
    """Lines of the peer's file that could cause nondeterminism, with the reason."""
    try:
        source = path.read_text(encoding="utf-8")
        tree = ast.parse(source)
    except (OSError, SyntaxError, ValueError):
        return []
    lines = source.splitlines()
    found: dict[int, str] = {}
    harmless = {id(argument) for node in ast.walk(tree) for argument in _order_does_not_matter(node)}
    for node in ast.walk(tree):
        why = None
        if id(node) in harmless:
            continue
        if isinstance(node, (ast.Set, ast.SetComp)):
            why = _BUILTINS["set"]
        elif isinstance(node, ast.Call) and isinstance(node.func, ast.Name):
            why = _BUILTINS.get(node.func.id)
        elif isinstance(node, ast.Call) and isinstance(node.func, ast.Attribute):
            why = _METHODS.get(node.func.attr)
        elif isinstance(node, ast.keyword) and isinstance(node.value, ast.Name) and node.value.id in ("id", "hash"):
            why = _BUILTINS[node.value.id]
        if why is not None:
            found.setdefault(node.lineno, why)  # type: ignore[attr-defined]  # these three have one
    recorded = [
        f"{short_path(str(path))}:{line}  {lines[line - 1].strip()}   ({found[line]})" for line in sorted(found)
    ]
    return recorded[:_MAX_SUSPECTS]


def _order_does_not_matter(node: ast.AST) -> list[ast.expr]:
    """Subexpressions of this node for which the order of a set does not matter."""
    if isinstance(node, ast.Call) and isinstance(node.func, ast.Name):
        return node.args if node.func.id in ("sorted", "len", "min", "max", "sum", "any", "all") else []
    if isinstance(node, ast.Compare):
        return [node.left, *node.comparators]
    return []
