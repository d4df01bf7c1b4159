"""What stands many times in a run, written once: texts, values and log entries, each known by its number.

Values are for showing: long texts and lists are cut where nobody reads on, and say so; a lone surrogate is written out,
because no file can hold it. Start at `Tables`.
"""

from __future__ import annotations

import json
from typing import Any

from raftlab.tools.timeline import labels
from raftlab.tools.timeline.labels import LabelTexts
from raftlab.trace.trace_file import plain

_TEXT_MAX = 2_000
_ITEMS_MAX = 1_000
_WORDS_MAX = 400


def encodable(text: str) -> str:
    """As it can be written into a file: a lone surrogate as \\udc80."""
    return text.encode("utf-8", "backslashreplace").decode()


def shortened(value: Any) -> Any:
    """What plain() gives, without what is too long to be read."""
    if isinstance(value, str):
        cut = value if len(value) <= _TEXT_MAX else f"{value[:_TEXT_MAX]}… ({len(value):,} characters)"
        return encodable(cut)
    if isinstance(value, list):
        items = [shortened(item) for item in value[:_ITEMS_MAX]]
        return items if len(value) <= _ITEMS_MAX else [*items, f"… ({len(value):,} in all)"]
    if isinstance(value, dict):
        if "$bytes" in value:
            return f"{value['$bytes']} bytes"
        if "$repr" in value:
            return shortened(value["$repr"])
        return {encodable(str(name)[:_TEXT_MAX]): shortened(item) for name, item in list(value.items())[:_ITEMS_MAX]}
    if isinstance(value, int) and abs(value) >= 1 << 53:
        return str(value)[:_TEXT_MAX]  # a browser would round it
    if isinstance(value, float) and (value != value or abs(value) == float("inf")):
        return str(value)  # JSON has none of these
    return value


class Tables:
    def __init__(self) -> None:
        self.texts: list[str | list[str]] = []
        self.values: list[Any] = []
        self.entry_terms: list[int] = []
        self.entry_texts: list[int] = []
        self._texts: dict[LabelTexts, int] = {}
        self._values: dict[str, int] = {}
        self._entries: dict[tuple[int, Any], int] = {}
        self._by_bytes: dict[Any, int] = {}
        self._by_list: dict[
            int, tuple[Any, list[int]]
        ] = {}  # by id() of a list, which is kept here so that it stays its

    def text(self, *texts: str) -> int:
        """One text: its wordings, the longest first, of which the page takes the first that there is room for."""
        number = self._texts.get(texts)
        if number is None:
            number = self._texts[texts] = len(self.texts)
            result = [encodable(text if len(text) <= _WORDS_MAX else f"{text[: _WORDS_MAX - 1]}…") for text in texts]
            self.texts.append(result if len(result) > 1 else result[0])
        return number

    def value(self, value: Any) -> int:
        """-1 for None: there is none."""
        if value is None:
            return -1
        key = json.dumps(value)
        number = self._values.get(key)
        if number is None:
            number = self._values[key] = len(self.values)
            self.values.append(value)
        return number

    def entry(self, entry: Any) -> int:
        term = labels.number(entry, "term")
        command = labels.field(entry, "command")
        # Alike for the eye, and yet two: what differs is told apart where that is cheap.
        key = (term, command if command.__class__ in (int, str) else labels.value(command, 1_000))
        number = self._entries.get(key)
        if number is None:
            text = labels.value(command, 80)
            number = self._entries[key] = len(self.entry_terms)
            self.entry_terms.append(term)
            self.entry_texts.append(self.text(text))
        return number

    def entries(self, entries: Any) -> list[int]:
        if not entries or not isinstance(entries, (list, tuple)):
            return []
        known = self._by_list.get(id(entries))
        if known is None:
            numbers = self._known_entries(entries) or [self.entry(entry) for entry in entries]
            known = self._by_list[id(entries)] = (entries, numbers)
        return known[1]

    def _known_entries(self, entries: Any) -> list[int] | None:
        """All at once, if every one was seen before: a leader that is cut off sends an ever longer log."""
        try:
            terms, commands = [entry.term for entry in entries], [entry.command for entry in entries]
        except AttributeError:
            return None
        if not {*map(type, commands)} <= {int, str} or {*map(type, terms)} != {int}:
            return None
        numbers = [self._entries.get(key, -1) for key in zip(terms, commands, strict=True)]
        return None if -1 in numbers else numbers

    def message(self, of: Any, packed: Any) -> int:
        """Arguments or a reply. `packed`: its bytes and its type, where it has some: what travelled before is known."""
        if packed is not None:
            known = self._by_bytes.get(packed)
            if known is not None:
                return known
        entries = labels.field(of, "entries")
        named = labels.fields(of) if isinstance(entries, (list, tuple)) else []
        if named:
            value = {name: None if name == "entries" else plain(item) for name, item in named}
            value["entries"] = {"$entries": ranges(self.entries(entries))}
        else:
            value = plain(of)
        number = self.value(shortened(value))
        if packed is not None:
            self._by_bytes[packed] = number
        return number


def ranges(numbers: list[int]) -> list[int]:
    """Numbers that follow each other as first and count, flat: entries get theirs in the order of the log."""
    result: list[int] = []
    for number in numbers:
        if result and number == result[-2] + result[-1]:
            result[-1] += 1
        else:
            result += (number, 1)
    return result
