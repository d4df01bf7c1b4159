"""Tables of the texts, values and log entries of a run, each stored once and referred to by number.

Values are for display: long texts and lists are cut, with a note, and lone surrogates are escaped, because UTF-8 cannot
encode them. Start at `Tables`.
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
    """The text as UTF-8 can encode it: a lone surrogate becomes \\udc80."""
    return text.encode("utf-8", "backslashreplace").decode()


def shortened(value: Any) -> Any:
    """A value from plain(), with long texts and lists cut."""
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
        """The number of a label: one text in several lengths, longest first. The page shows the first that fits."""
        number = self._texts.get(texts)
        if number is None:
            number = self._texts[texts] = len(self.texts)
            result = [encodable(text if len(text) <= _WORDS_MAX else f"{text[: _WORDS_MAX - 1]}…") for text in texts]
            self.texts.append(result if len(result) > 1 else result[0])
        return number

    def value(self, value: Any) -> int:
        """The number of a value; -1 for None."""
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
        # Different commands may look alike, so compare more than is shown.
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
        """The numbers if all entries are known. Fast, because a disconnected leader sends an ever longer log."""
        try:
            terms, commands = [entry.term for entry in entries], [entry.command for entry in entries]
        except AttributeError:
            return None
        if not {*map(type, commands)} <= {int, str} or {*map(type, terms)} != {int}:
            return None
        numbers = [self._entries.get(key, -1) for key in zip(terms, commands, strict=True)]
        return None if -1 in numbers else numbers

    def message(self, of: Any, packed: Any) -> int:
        """The number of arguments or a reply. `packed`: its bytes and type, if any, as a key for equal messages."""
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
    """Consecutive numbers as a flat list of first and count: entries are numbered in the order of the log."""
    result: list[int] = []
    for number in numbers:
        if result and number == result[-2] + result[-1]:
            result[-1] += 1
        else:
            result += (number, 1)
    return result
