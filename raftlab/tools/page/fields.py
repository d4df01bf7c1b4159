"""The peers' own fields after each event, read while the run is replayed, and the line that was running.

After each event the fields of its peer are compared with their last values. Changed plain data (numbers, strings, lists
and dicts of these, log entries) is recorded; of a list only the changed tail. This calls nothing of the peer except ==
of its data, so the run is not affected. Sandboxed peers cannot be read.

Start at `run_with_fields()`.
"""

from __future__ import annotations

import dataclasses
import linecache
import sys
from collections.abc import Callable, Iterator, Sequence
from contextlib import suppress
from types import FrameType, MemberDescriptorType
from typing import Any

from labsim import Event, Simulation
from labsim.stacks import is_user_code, short_path
from raftlab.harness.lab_test import LabTest
from raftlab.harness.launcher import PeerLauncher
from raftlab.harness.run import Run, run_test
from raftlab.tools.page.tables import Tables, ranges
from raftlab.tools.timeline import labels

_SCALARS = (int, bool, float, str, type(None))
_LISTS = (list, tuple)
_ITEMS_MAX = 5_000  # of a list; longer ones are not recorded
_TEXT_MAX = 120
_GONE = object()


def run_with_fields(test: LabTest, launcher: PeerLauncher, seed: int) -> tuple[Run, FieldWatcher]:
    """run_test(), recording the peers' fields."""
    simulation = Simulation(seed)
    assert simulation.trace is not None
    watcher = FieldWatcher(simulation, simulation.trace)
    simulation.subscribe(watcher.observe)

    def with_watcher(make_config: Any) -> Any:
        def making(**how: Any) -> Any:
            config = make_config(**how)
            watcher.peer = config.peer
            return config

        return test.function(making)

    run = run_test(dataclasses.replace(test, function=with_watcher), launcher, seed, simulation=simulation)
    return run, watcher


def _fields_of(thing: Any) -> dict[str, Any]:
    """The fields in __dict__ and in slots."""
    fields = {}
    for cls in type(thing).__mro__:
        for name, descriptor in cls.__dict__.items():
            if descriptor.__class__ is MemberDescriptorType:
                with suppress(AttributeError):  # not set yet
                    fields[name] = descriptor.__get__(thing)
    with suppress(TypeError):  # it has no __dict__
        fields |= vars(thing)
    return fields


def _flat(fields: dict[str, Any]) -> Iterator[tuple[str, Any]]:
    """Replace a dataclass by its own fields: `state.term`."""
    for name, value in fields.items():
        if dataclasses.is_dataclass(value) and not isinstance(value, type):
            for inner, inner_value in _fields_of(value).items():
                yield f"{name}.{inner}", inner_value
        else:
            yield name, value


class FieldWatcher:
    def __init__(self, simulation: Simulation, trace: list[Event]) -> None:
        self._simulation = simulation
        self._trace = trace
        self.peer: Callable[[int], Any] = lambda i: None  # until the first peer is started
        self._state: dict[str, tuple[Any, dict[str, Any]]] = {}  # by node: the peer, and its fields as last seen
        # By node: (event, name, value). The value is a text, or for a list (how many items stay, texts of the others).
        self.changes: dict[str, list[tuple[int, str, Any]]] = {}
        self.lines: dict[str, list[tuple[int, tuple[str, int]]]] = {}  # by node: (event, (file, line))
        self._is_own: dict[str, bool] = {}

    def observe(self, events: Sequence[Event]) -> None:
        (event,) = events  # one at a time: the peers are in their state after this event
        node = event.node
        if not node.isdigit():
            return
        peer = self.peer(int(node))
        state = _fields_of(peer)
        if not state:
            return  # it is down, or has no fields
        place = len(self._trace) - 1
        known = self._state.get(node)
        if known is None or known[0] is not peer:
            known = self._state[node] = (peer, {})
        last = known[1]
        changed = False
        for name, value in _flat(state):
            before = last.get(name, _GONE)
            if value is before:
                continue
            kind = value.__class__
            text: Any
            if kind is list or kind is tuple:
                if before.__class__ is _Items and _equal(before.value, value):
                    continue
                text = self._list(last, name, value)
            elif kind in _SCALARS:
                if before.__class__ is kind and before == value:
                    continue
                last[name] = value
                text = _text(value)
            elif kind is dict:
                if before.__class__ is _Items and _equal(before.value, value):
                    continue
                text = self._dict(last, name, value)
            else:
                last[name] = value  # a lock, a thread, another's object: nothing to show
                continue
            if text is not None:
                self.changes.setdefault(node, []).append((place, name, text))
                changed = True
        if changed and self._is_running(node):
            line = self._line(sys._getframe(2))
            if line is not None:
                self.lines.setdefault(node, []).append((place, line))

    def _list(self, last: dict[str, Any], name: str, value: Any) -> tuple[int, list[str]] | None:
        before = last.get(name, _GONE)
        if len(value) > _ITEMS_MAX or not _is_plain_data(value):
            last[name] = value
            return None
        known = before if before.__class__ is _Items else _Items((), [])
        same = _common_prefix(known.value, value)
        texts = known.texts[:same] + [_text(item) for item in value[same:]]
        is_changed = texts != known.texts or before is _GONE
        last[name] = _Items(value[:], texts)
        return (same, texts[same:]) if is_changed else None

    def _dict(self, last: dict[str, Any], name: str, value: dict[Any, Any]) -> str | None:
        if len(value) > _ITEMS_MAX or not _is_plain_data([*list(value)[:1], *list(value.values())[:1]]):
            last[name] = value
            return None
        text = labels.clean(", ".join(f"{_text(key)}: {_text(item)}" for key, item in list(value.items())[:40]))
        before = last.get(name)
        last[name] = _Items(value.copy(), [text])
        return None if before.__class__ is _Items and before.texts == [text] else text

    def _is_running(self, node: str) -> bool:
        """Whether a task of the peer itself is running, rather than the tester."""
        runs = self._simulation.current.node
        return runs is not None and runs.name == node

    def _line(self, frame: FrameType | None) -> tuple[str, int] | None:
        """The innermost line in the peer's code."""
        while frame is not None:
            file = frame.f_code.co_filename
            own = self._is_own.get(file)
            if own is None:
                own = self._is_own[file] = is_user_code(file)
            if own:
                return file, frame.f_lineno
            frame = frame.f_back
        return None

    def columns(self, lanes: list[str], tables: Tables) -> list[dict[str, Any] | None]:
        """For each swimlane: the changes of each field and of the running line; None if the peer was never read."""
        return [self._of(name, tables) for name in lanes] if self.changes else []

    def _of(self, node: str, tables: Tables) -> dict[str, Any] | None:
        if node not in self.changes:
            return None
        values: dict[str, list[int]] = {}
        lists: dict[str, list[Any]] = {}
        end = len(self._trace)  # the trace may have been cut back to an earlier broken rule
        for place, name, text in self.changes[node]:
            if place >= end:
                break
            if isinstance(text, str):
                values.setdefault(name, []).extend((place, tables.text(text)))
            else:
                keep, texts = text
                lists.setdefault(name, []).append([place, 0, 0, keep, ranges([tables.text(t) for t in texts])])
        lines = [
            part
            for place, line in self.lines.get(node, ())
            if place < end
            for part in (place, _line_text(line, tables))
        ]
        return {"values": values, "lists": lists, "lines": lines}


class _Items:
    """The last value of a list or dict: a copy of it, and its texts."""

    __slots__ = ("texts", "value")

    def __init__(self, value: Any, texts: list[str]) -> None:
        self.value = value
        self.texts = texts


def _equal(one: Any, other: Any) -> bool:
    """== that treats exceptions as a difference. Fast for identical items."""
    try:
        return bool(one == other)
    except Exception:
        return False


def _common_prefix(before: Any, now: Any) -> int:
    """The number of equal items at the beginning of two lists."""
    low, high = 0, min(len(before), len(now))
    while low < high:
        middle = (low + high + 1) // 2
        if _equal(before[low:middle], now[low:middle]):
            low = middle
        else:
            high = middle - 1
    return low


def _line_text(line: tuple[str, int], tables: Tables) -> int:
    file, number = line
    source = linecache.getline(file, number).strip()
    return tables.text(f"{short_path(file)}:{number}  {labels.clean(source)}")


def _is_plain_data(items: Any) -> bool:
    """Whether this is a list of plain data, judged by its first items."""
    return all(item.__class__ in (*_SCALARS, *_LISTS) or dataclasses.is_dataclass(item) for item in items[:2])


def _text(value: Any) -> str:
    """The value as text. Calls no code of the peer."""
    kind = value.__class__
    if kind is str:
        return labels.clean(repr(value[:_TEXT_MAX]))
    if kind in _SCALARS:
        return repr(value)[:_TEXT_MAX]
    if kind in _LISTS:
        return labels.clean(f"[{', '.join(_text(item) for item in value[:8])}{', …' * (len(value) > 8)}]")[:_TEXT_MAX]
    term = getattr(value, "term", None) if dataclasses.is_dataclass(value) else None
    if term.__class__ is int and hasattr(value, "command"):
        return f"t{term} {labels.value(value.command, 40)}"
    return labels.value(value, _TEXT_MAX) if dataclasses.is_dataclass(value) else kind.__name__
