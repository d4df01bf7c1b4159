"""Writes the choices of a run to a file, so that it can be replayed without its seed and edited by hand.

JSON lines: a header, then a line for each choice that is not the default (labsim/choices.py). What happens to a message
is a choice, keyed by link, method and number among such requests:

    {"place":["request","0->1","Raft.append_entries"],"ordinal":17,"value":{"delay_ns":1500000,"lost":true}}
    {"at_ns":1204031120,"nth":0,"task":"Raft.append_entries from 0 of 2"}

A minimized run may not need its test. Then the header has `play`, and each operation of the tester is a line
(raftlab/trace/operations.py):

    {"at_ns":554295993,"does":"start","args":[1,"x"]}

A run that a person changed (scenarios/interventions.py) has `interventions` in its header.

Removing a line makes that choice the default, or removes that operation. A damaged file raises ChoiceFileError with
the line number.
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import msgspec

from labsim.choices import Choices
from raftlab.trace.operations import Interventions, RecordedSchedule, ScheduledOperation

FORMAT = "raftlab choices"
VERSION = 2


class ChoiceFileError(Exception):
    """The file is not a valid file of choices; the text says where and why."""


class ChoiceFileHeader(msgspec.Struct, omit_defaults=True):
    """The first line. Paths as given, as defaults for a replay."""

    format: str
    version: int
    test: str
    digest: str = ""
    raft: str = ""
    kv: str = ""
    file: str = ""
    play: RecordedSchedule | None = None
    interventions: Interventions | None = None


class _Chosen(msgspec.Struct, forbid_unknown_fields=True):
    place: list[str]
    ordinal: int
    value: Any


class _Picked(msgspec.Struct, forbid_unknown_fields=True):
    at_ns: int
    nth: int  # of the picks at that instant, from 0
    task: str


def write_choices(
    path: Path,
    choices: Choices,
    *,
    test: str,
    digest: str,
    play: RecordedSchedule | Interventions | None = None,
    raft: str = "",
    kv: str = "",
    file: str = "",
) -> None:
    """`play`: the run without its test, or what a person did to the run of the test."""
    encode = msgspec.json.Encoder().encode
    acts: Sequence[ScheduledOperation] = ()
    interventions = None
    if isinstance(play, Interventions):
        play, interventions = None, play
    elif play is not None:
        acts, play = play.acts, msgspec.structs.replace(play, acts=[])
    lines: list[Any] = [ChoiceFileHeader(FORMAT, VERSION, test, digest, raft, kv, file, play, interventions), *acts]
    lines += [_Chosen(list(place), ordinal, value) for (place, ordinal), value in choices.chosen.items()]
    lines += [_Picked(at_ns, nth, task) for (at_ns, nth), task in choices.picked.items()]
    path.write_bytes(b"".join(encode(line) + b"\n" for line in lines))


def read_choices(path: Path) -> tuple[ChoiceFileHeader, Choices]:
    """Read a file. Its operations are in the header's `play`."""
    try:
        lines = path.read_bytes().splitlines()
    except OSError as error:
        raise ChoiceFileError(f"{path}: {error.strerror}") from None
    header = _read_header(path, lines[0] if lines else b"")
    choices = Choices()
    acts: list[ScheduledOperation] = []
    for number, line in enumerate(lines[1:], start=2):
        if not line.strip():
            continue
        try:
            fields = msgspec.json.decode(line, type=dict[str, Any])
            if "place" in fields:
                chosen = msgspec.convert(fields, _Chosen)
                choices.chosen[tuple(chosen.place), chosen.ordinal] = chosen.value
            elif "does" in fields:
                if header.play is None:
                    raise ChoiceFileError(f"{path}:{number}: an operation, but the header has no play")
                acts.append(msgspec.convert(fields, ScheduledOperation))
            else:
                picked = msgspec.convert(fields, _Picked)
                choices.picked[picked.at_ns, picked.nth] = picked.task
        except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as error:
            raise ChoiceFileError(f"{path}:{number}: not a choice: {error}") from None
    if header.play is not None:
        header.play.acts = acts
    return header, choices


def _read_header(path: Path, line: bytes) -> ChoiceFileHeader:
    try:
        header = msgspec.json.decode(line, type=ChoiceFileHeader)
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError):
        header = None
    if header is None or header.format != FORMAT:
        first = f'{{"format":"{FORMAT}",...}}'
        raise ChoiceFileError(f"{path}:1: not a file of choices: the first line must be {first}")
    if header.version != VERSION:
        raise ChoiceFileError(f"{path}:1: version {header.version} of the format; this program reads {VERSION}")
    return header
