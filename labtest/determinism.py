"""Is one seed one run? The same test twice, in two processes with different hash seeds, event by event.

Two runs in one process would agree even for a peer that iterates over a set of strings or sorts by id(): only
another process has other hashes and other addresses.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Any
from zlib import crc32

from labrpc import Message
from labsim import Event
from labsim.stacks import own_frames, short_path
from labtest.report import _OURS


class Recorder(list[Any]):
    """A trace that keeps each event as text, with the peer's line that caused it."""

    def append(self, event: Event) -> None:
        super().append([event.at_ns, event.kind, event.node, _describe(event), _cause()])


def _describe(event: Event) -> str:
    detail = event.detail
    if isinstance(detail, Message):
        text = f"{detail.service_method} {detail.source}->{detail.target}"
        if event.kind == "send":
            return f"{text} {detail.decode_args()}"
        if event.kind in ("answer", "reply"):
            return f"{text} {detail.decode_reply()}"
        return f"{text} {event.note}".rstrip()
    if event.kind == "persist":
        return f"{len(detail[0])} bytes, checksum {crc32(detail[0])}"
    return "" if detail is None else repr(detail)


def _cause() -> str:
    frame = sys._getframe(2)
    for f in own_frames(frame):
        filename = f.f_code.co_filename
        if not filename.startswith(_OURS) and not filename.startswith("<"):
            return f"{short_path(filename)}:{f.f_lineno} in {f.f_code.co_name}"
    return ""


def record_elsewhere(node_id: str, seed: int, raft: str, root: Path) -> list[Any]:
    """The events of the same run in a new process with another hash seed."""
    with tempfile.TemporaryDirectory() as folder:
        record = Path(folder) / "events.json"
        mine = os.environ.get("PYTHONHASHSEED", "")
        environment = dict(os.environ, PYTHONHASHSEED="1" if mine != "1" else "2")
        environment.pop("PYTEST_XDIST_WORKER", None)
        command = [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", "-p", "no:xdist", node_id]
        command += ["--seed", str(seed), "--raft", raft, "--record-events", str(record)]
        done = subprocess.run(command, cwd=root, env=environment, capture_output=True, text=True)
        if not record.exists():
            raise RuntimeError(f"the second run could not be made:\n{done.stdout}{done.stderr}")
        return list(json.loads(record.read_text()))


def first_difference(here: list[Any], there: list[Any]) -> str | None:
    """None, or the first event that differs and the line that caused it."""
    here = json.loads(json.dumps(here))
    for number, (a, b) in enumerate(zip(here, there, strict=False)):
        if a[:4] != b[:4]:
            return (
                f"One seed gave two runs. The first event that differs is number {number + 1}:\n"
                f"  here       {_show(a)}\n  elsewhere  {_show(b)}\n"
                "Usual causes: the order of a set, id() or hash() used for order, a real clock, unseeded chance."
            )
    if len(here) != len(there):
        longer = here if len(here) > len(there) else there
        return (
            f"One seed gave two runs: one ends after {min(len(here), len(there))} events, "
            f"the other goes on with\n  {_show(longer[min(len(here), len(there))])}"
        )
    return None


def _show(event: list[Any]) -> str:
    at_ns, kind, node, text, cause = event
    if len(text) > 160:
        text = f"{text[:157]}..."
    who = f"peer {node}" if node else "network"
    return f"{at_ns / 1e9:.6f} s  {who} {kind}: {text}{f'   ({cause})' if cause else ''}"
