"""Another program's log as rows: lines `HH:MM:SS.ffffff [id] text`, or a boxed table with a column per peer.

Other lines are skipped, and the summary reports how many. Lines with equal time, peer and text are one entry, because
logs pasted in overlapping pieces repeat lines. Entries are sorted by time: writers under load do not keep the order.
"""

from __future__ import annotations

import re
from dataclasses import dataclass, field
from pathlib import Path

from raftlab.tools.common.text import counted
from raftlab.tools.timeline.labels import clean
from raftlab.tools.timeline.rows import Label, Mark, Row, peer_order

_TIME = r"(?P<h>\d{1,2}):(?P<m>\d\d):(?P<s>\d\d)(?:[.,](?P<f>\d{1,9}))?"
_LINE = re.compile(rf"^\s*(?:\d{{4}}[-/]\d\d[-/]\d\d[ T])?{_TIME}\s+\[(?P<peer>[\w.:-]{{1,32}})\]\s?(?P<text>.*)$")
_CLOCK = re.compile(rf"^\s*{_TIME}\s*$")
_BORDER = re.compile(r"^\s*[┌├└╔╠╚╭╰][─━═┬┼┴┐┤┘╦╬╩╗╣╝╮╯�\s]*$")
_ROLE = re.compile(r"\bbec(?:omes?|ame|oming)\s+(?:an?\s+|the\s+)?(leader|candidate|follower)\b", re.IGNORECASE)
_DAY_NS = 24 * 3600 * 10**9


class LogFileError(Exception):
    """The file contains no log; the message shows the supported formats."""


@dataclass(slots=True)
class _Entry:
    at_ns: int
    peer: str
    text: str


@dataclass(slots=True)
class ImportedLog:
    peers: list[str]
    entries: list[_Entry]
    skipped: int
    first_skipped: str
    duplicates: int
    start_ns: int = 0
    digits: int = field(default=6)

    def clock(self, at_ns: int) -> str:
        seconds, ns = divmod(at_ns, 10**9)
        seconds %= 24 * 3600
        fraction = f"{ns:09d}"[: self.digits]
        return f"{seconds // 3600:02d}:{seconds // 60 % 60:02d}:{seconds % 60:02d}{'.' * bool(fraction)}{fraction}"

    def rows(self, *, peers: frozenset[str] = frozenset(), from_s: float = 0.0, to_s: float | None = None) -> list[Row]:
        """`from_s` and `to_s` count from the first line."""
        marks = {peer: Mark("follower", False) for peer in self.peers}
        rows = []
        for entry in self.entries:
            role = _ROLE.search(entry.text)
            if role is not None:
                marks = {**marks, entry.peer: Mark(role.group(1).lower(), False)}
            since_s = (entry.at_ns - self.start_ns) / 1e9
            if (peers and entry.peer not in peers) or since_s < from_s or (to_s is not None and since_s > to_s):
                continue
            tone = role.group(1).lower() if role is not None else "append"
            rows.append(Row(entry.at_ns, marks, {entry.peer: [Label(tone, (entry.text,))]}))
        return rows

    def summary(self) -> str:
        parts = [f"{len(self.entries)} entries of {len(self.peers)} peers"]
        if self.duplicates:
            parts.append(f"{counted(self.duplicates, 'duplicate line')} ignored")
        if self.skipped:
            parts.append(f"skipped {counted(self.skipped, 'line')} in another format (the first: {self.first_skipped})")
        return "; ".join(parts)


def read_log(path: Path) -> ImportedLog:
    try:
        text = path.read_text(encoding="utf-8", errors="replace")
    except OSError as error:
        raise LogFileError(f"{path}: {error.strerror or error}") from None
    reader = _LogReader()
    for number, line in enumerate(text.splitlines(), start=1):
        reader.line(number, line)
    if not reader.entries:
        raise LogFileError(
            f"{path}: none of the {len(text.splitlines())} lines is a log line ('12:34:56.789012 [0] text') or a "
            "table header ('│ TIME │ 0 │ 1 │')"
        )
    return reader.finish()


class _LogReader:
    def __init__(self) -> None:
        self.entries: list[_Entry] = []
        self._columns: list[str] = []
        self._open: dict[str, _Entry] = {}  # the table's current row
        self._skipped = 0
        self._first_skipped = ""
        self._day_ns = 0
        self._last_ns = 0
        self._digits = 0
        self._row_ns = -1

    def line(self, number: int, line: str) -> None:
        if not line.strip() or _BORDER.match(line):
            return
        found = _LINE.match(line)
        if found is not None:
            self._add(self._time(found), found["peer"], found["text"])
        elif not (line.lstrip().startswith(("│", "|", "║")) and self._table_line(line)):
            self._skipped += 1
            if self._skipped == 1:
                shown = clean(line.strip())
                self._first_skipped = f"line {number}, {shown[:40]!r}"

    def _add(self, at_ns: int, peer: str, text: str) -> _Entry:
        entry = _Entry(at_ns, peer, text)
        self.entries.append(entry)
        return entry

    def _time(self, found: re.Match[str]) -> int:
        fraction = found["f"] or ""
        self._digits = max(self._digits, len(fraction))
        at_ns = (int(found["h"]) * 3600 + int(found["m"]) * 60 + int(found["s"])) * 10**9
        at_ns += int(fraction.ljust(9, "0")) if fraction else 0
        # Past midnight: only a jump back by half a day counts as the next day.
        if at_ns + self._day_ns < self._last_ns - _DAY_NS // 2:
            self._day_ns += _DAY_NS
        self._last_ns = at_ns + self._day_ns
        return self._last_ns

    def _table_line(self, line: str) -> bool:
        """Whether it is a table row. A cell may continue in the lines below, cut anywhere, so its blanks count."""
        bar = line.lstrip()[0]
        cells = line.strip().split(bar)[1:-1]
        if len(cells) < 2:
            return False
        if cells[0].strip().upper() == "TIME":
            self._columns = [cell.strip() for cell in cells[1:]]
            return True
        if len(cells) != len(self._columns) + 1:
            return False
        if cells[0].strip():
            found = _CLOCK.match(cells[0])
            if found is None:
                return False
            self._open = {}
            self._row_ns = self._time(found)
        if self._row_ns < 0:
            return False
        for peer, cell in zip(self._columns, cells[1:], strict=True):
            text = cell[1:-1]
            if peer in self._open:
                self._open[peer].text += text
            elif text.strip():
                self._open[peer] = self._add(self._row_ns, peer, text)
        return True

    def finish(self) -> ImportedLog:
        seen: set[tuple[int, str, str]] = set()
        entries = []
        for entry in sorted(self.entries, key=lambda entry: entry.at_ns):
            entry.text = clean(entry.text.strip())
            key = (entry.at_ns, entry.peer, entry.text)
            if key not in seen:
                seen.add(key)
                entries.append(entry)
        peers = peer_order({*self._columns, *(entry.peer for entry in entries)})
        duplicates = len(self.entries) - len(entries)
        return ImportedLog(
            peers, entries, self._skipped, self._first_skipped, duplicates, entries[0].at_ns, self._digits
        )
