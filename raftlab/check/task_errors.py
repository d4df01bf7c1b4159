"""Describes an error that ended a run or one of its tasks: its message and the user's lines in its traceback.

Start at `describe_error()`.
"""

from __future__ import annotations

import dataclasses
import inspect
import linecache
import re
import sys
import textwrap
import traceback
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import suppress
from types import CodeType, FrameType, TracebackType
from typing import Any

from labrpc import RpcError
from labsim import RealWorldError, SimulationError, TaskFailed
from labsim.stacks import CodeLocation, is_user_code, location_of, short_path

_MAX_FRAMES = 8
_WIDTH = 112
_MAX_LINE = 100
_MAX_ITEMS = 9
# For these the values of variables help more than the message: which index, and how long the log is.
_ABOUT_VALUES = (LookupError, AssertionError)


def describe_error(error: BaseException) -> list[str]:
    """Its message and where it came from, a line each."""
    if isinstance(error, TaskFailed) and error.__cause__ is not None:
        cause = error.__cause__
        who = f"peer {error.node}, {error.task}" if error.node is not None else error.task
        # On real threads the values have changed since.
        values = error.node is not None and isinstance(cause, _ABOUT_VALUES)
        frames = _frames(cause.__traceback__, values=values)
        return [*_message_lines(cause), f"In {who}:", *frames, *getattr(error, "__notes__", ())]
    if isinstance(error, RealWorldError):
        return [*str(error).splitlines(), *([] if error.where is None else [_at(error.where)])]
    if isinstance(error, SimulationError):
        return str(error).splitlines()
    return [*_message_lines(error), *_frames(error.__traceback__)]


def first_line(error: BaseException) -> str:
    """Its message, first line only."""
    return _printable("".join(traceback.format_exception_only(error)).strip().partition("\n")[0])


def _printable(text: str) -> str:
    """A lone surrogate can be neither printed nor recorded."""
    return text.encode(errors="backslashreplace").decode()


def _message_lines(error: BaseException) -> list[str]:
    """As Python shows it, but without the module: a student knows EncodeError, not labgob._errors.EncodeError."""
    try:
        text = _printable(str(error))
    except Exception:  # in the student's own __str__
        text = "<exception str() failed>"  # Python's text for it
    name = type(error).__name__
    if text and pytest_says(error, "Failed"):
        return text.splitlines()  # pytest.fail(), and a time limit: the class adds nothing
    lines = f"{name}: {text}".splitlines() if text else [name]
    return [*lines, *getattr(error, "__notes__", ())]


def pytest_says(error: BaseException, outcome: str) -> bool:
    """Whether it is pytest.fail's "Failed" or pytest.skip's "Skipped".

    Does not import pytest, so that tools that do not use it start faster.
    """
    outcomes = sys.modules.get("_pytest.outcomes")
    return outcomes is not None and isinstance(error, getattr(outcomes, outcome))


def _frames(tb: TracebackType | None, *, values: bool = False) -> list[str]:
    """The frames of user code, innermost first.

    `values`: with the numbers among each frame's variables, and below them those of the peer that its code names.
    """
    found: list[tuple[FrameType, int]] = []
    while tb is not None:
        if is_user_code(tb.tb_frame.f_code.co_filename):
            found.append((tb.tb_frame, tb.tb_lineno))
        tb = tb.tb_next
    found = found[::-1][:_MAX_FRAMES]
    lines: list[str] = []
    shown: list[Any] = []  # a request is shown once, not again for each caller
    for frame, line in found:
        lines.append(_at(location_of(frame, line)))
        if values:
            known = [(name, value) for name, value in frame.f_locals.items() if name != "self" and name.isidentifier()]
            new = [(name, value) for name, value in known if not any(value is known for known in shown)]
            shown += [value for _, value in new if dataclasses.is_dataclass(value)]
            lines += _wrapped(", ".join(_numbers(new)), "        ")
    return lines + _peers_numbers([frame for frame, _ in found]) if values else lines


def _peers_numbers(frames: Sequence[FrameType]) -> list[str]:
    """The peer's numbers that the code of these frames names, and lengths that the code of the failing frame names."""
    peer = next((frame.f_locals["self"] for frame in frames if "self" in frame.f_locals), None)
    state: dict[str, Any] = {}
    with suppress(AttributeError):
        state = object.__getattribute__(peer, "__dict__")
    named = dict.fromkeys(name for frame in frames for name in frame.f_code.co_names if name in state)
    values: list[str] = []
    for name in named:
        value = state[name]
        same = next((other for other in named if other != name and state[other] is value), None)
        if type(value) is list and same is not None and f"self.{same} is the list self.{name}" not in values:
            values.append(f"self.{name} is the list self.{same}")
        if _is_number(value) or _are_numbers(value) or name in frames[0].f_code.co_names:
            values += _numbers([(f"self.{name}", value)])
    return _wrapped(f"Peer: {', '.join(values)}", "    ") if values else []


def _numbers(values: Iterable[tuple[str, Any]]) -> Iterator[str]:
    """ "index=1", "len(self.log)=3": numbers, and lengths of collections. Calls no method of a peer's object."""
    for name, value in values:
        kind = type(value)
        if _is_number(value) or _are_numbers(value):
            yield f"{name}={value}"
        elif kind in (list, tuple, dict, set, deque):
            yield f"len({name})={len(value)}"
        elif dataclasses.is_dataclass(kind):
            with suppress(AttributeError):
                fields = [(f.name, object.__getattribute__(value, f.name)) for f in dataclasses.fields(kind)]
                if any(type(field) is int for _, field in fields):
                    yield f"{name}={kind.__name__}({', '.join(_numbers(fields))})"


def _is_number(value: Any) -> bool:
    return value is None or type(value) is bool or (type(value) is int and abs(value) < 1 << 64)


def _are_numbers(value: Any) -> bool:
    return type(value) is list and 0 < len(value) <= _MAX_ITEMS and all(map(_is_number, value))


def _wrapped(text: str, indent: str) -> list[str]:
    return textwrap.wrap(text, _WIDTH, initial_indent=indent, subsequent_indent=f"{indent}  ")


def _at(place: CodeLocation) -> str:
    where = f"{short_path(place.file)}:{place.line}{f' in {place.function}' if place.function else ''}"
    text = linecache.getline(place.file, place.line).strip()
    if len(text) > _MAX_LINE:
        text = f"{text[: _MAX_LINE - 3]}..."
    return f"    {where:<40}  {text}".rstrip()


def source_line(function: Callable[..., Any]) -> list[str]:
    """The first line of a function of the user; empty if it is not Python, or belongs to the lab."""
    code: CodeType | None = getattr(inspect.unwrap(function), "__code__", None)
    if code is None or not is_user_code(code.co_filename):
        return []
    line = code.co_firstlineno
    # Skip decorators.
    while linecache.getline(code.co_filename, line).lstrip().startswith("@"):
        line += 1
    return [_at(CodeLocation(code.co_filename, line))]


def point_into_peer(error: BaseException, *classes: Any) -> None:
    """If no line of the peer is on the stack (a missing method, a wrong signature), add the line to look at."""
    if not isinstance(error, TaskFailed) or error.__cause__ is None or _frames(error.__cause__.__traceback__):
        return
    name = error.entry_point
    methods = [method for each in classes if name and (method := getattr(each, name, None)) is not None]
    method = next((method for method in methods if hasattr(inspect.unwrap(method), "__code__")), None)
    lines: list[str] = []
    if method is not None:
        lines = source_line(method)
    elif isinstance(error.__cause__, RpcError):
        lines = next((found for each in classes if (found := _calls_of(name, each))), [])
    for line in lines:
        error.add_note(line)


def _calls_of(method_name: str, peer_class: Any) -> list[str]:
    """The first line of the peer's file that calls that method by its RPC name."""
    for value in vars(peer_class).values():
        code = getattr(value, "__code__", None)
        if code is not None:
            for number, line in enumerate(linecache.getlines(code.co_filename), start=1):
                if re.search(rf"""["'][\w.]*\.{method_name}["']""", line):
                    return [_at(CodeLocation(code.co_filename, number))]
            break
    return []
