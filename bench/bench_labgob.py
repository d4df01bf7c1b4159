"""The cost of labgob compared with bare msgspec, for the two most frequent messages of Raft.

measure() returns the figures; run this file to print them. The classes have slots, like those in
raft/messages.py; the "dict" rows are the same without slots, which msgspec encodes faster and decodes slower.
"""

from __future__ import annotations

import dataclasses
import timeit
from collections.abc import Callable
from typing import Any

import msgspec

import labgob

_ROUNDS = 50  # short rounds: on a busy machine, the best of many is more stable than the best of five long ones


@dataclasses.dataclass(slots=True)
class Small:
    term: int
    candidate_id: int
    last_log_index: int
    last_log_term: int


@dataclasses.dataclass(slots=True)
class LogEntry:
    term: int
    command: Any


@dataclasses.dataclass(slots=True)
class AppendEntriesArgs:
    term: int
    leader_id: int
    prev_log_index: int
    prev_log_term: int
    entries: list[LogEntry]
    leader_commit: int


@dataclasses.dataclass
class DictSmall:
    term: int
    candidate_id: int
    last_log_index: int
    last_log_term: int


@dataclasses.dataclass
class DictLogEntry:
    term: int
    command: Any


@dataclasses.dataclass
class DictAppendEntriesArgs:
    term: int
    leader_id: int
    prev_log_index: int
    prev_log_term: int
    entries: list[DictLogEntry]
    leader_commit: int


def _best_us(*calls: Callable[[], Any], number: int) -> list[float]:
    """The best round of each call. Rounds alternate, so that other load affects all calls alike."""
    timers = [timeit.Timer("call()", globals={"call": call}) for call in calls]
    idle = timeit.Timer("call()", globals={"call": lambda: None})
    best = [float("inf")] * len(timers)
    idle_best = float("inf")
    for _ in range(_ROUNDS):
        idle_best = min(idle_best, idle.timeit(number))
        for i, timer in enumerate(timers):
            best[i] = min(best[i], timer.timeit(number))
    return [(seconds - idle_best) / number * 1e6 for seconds in best]


def measure() -> list[dict[str, Any]]:
    """One row per case: name, ours_us, baseline_us, baseline."""
    commands = [i if i % 2 else f"cmd {i}" for i in range(50)]
    dict_entries = [DictLogEntry(7, c) for c in commands]
    messages: list[tuple[str, Any, int]] = [
        ("small", Small(7, 1, 120, 6), 2_000),
        ("50 entries", AppendEntriesArgs(7, 1, 120, 6, [LogEntry(7, c) for c in commands], 119), 100),
        ("small (dict)", DictSmall(7, 1, 120, 6), 2_000),
        ("50 entries (dict)", DictAppendEntriesArgs(7, 1, 120, 6, dict_entries, 119), 100),
    ]
    bare_encode = msgspec.msgpack.Encoder().encode
    rows = []
    for name, message, number in messages:
        cls = type(message)
        data = labgob.encode(message)
        bare_data, bare_decode = bare_encode(message), msgspec.msgpack.Decoder(cls).decode
        assert labgob.decode(data, cls) == message
        ours, bare = _best_us(
            lambda message=message: labgob.encode(message),
            lambda message=message: bare_encode(message),
            number=number,
        )
        rows.append(_row(f"labgob encode {name}", ours, bare, "msgspec.msgpack.Encoder().encode"))
        ours, bare = _best_us(
            lambda data=data, cls=cls: labgob.decode(data, cls),
            lambda data=bare_data, decode=bare_decode: decode(data),
            number=number,
        )
        rows.append(_row(f"labgob decode {name}", ours, bare, "msgspec.msgpack.Decoder(type).decode"))
    return rows


def _row(name: str, ours_us: float, baseline_us: float, baseline: str) -> dict[str, Any]:
    return {"name": name, "ours_us": ours_us, "baseline_us": baseline_us, "baseline": baseline}


if __name__ == "__main__":
    for row in measure():
        ratio = row["ours_us"] / row["baseline_us"]
        print(f"{row['name']:36} {row['ours_us']:8.3f} µs  {ratio:5.2f} × {row['baseline']}")
