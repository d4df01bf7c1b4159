"""What a message or a value says, in a few words: several wordings each, longest first, for columns of any width.

Reads messages by Figure 2's field names, as objects or as what a trace file gives back, so live and saved runs read
alike. Symbols are Unicode here; `to_ascii` has their plain forms.
"""

from __future__ import annotations

import dataclasses
from types import SimpleNamespace
from typing import Any

Wordings = tuple[str, ...]

_KINDS = {"requestvote": "vote", "appendentries": "append", "installsnapshot": "snapshot"}
_SHORT_NOTES = {
    "the end is disabled": "cut off",
    "the end was disabled": "cut off on the way",
    "the link is cut": "link cut",
    "the server is gone": "server gone",
    "not connected": "server down",
    "nobody waits for this reply": "too late",
    "the caller is gone": "caller gone",
}
_ASCII = str.maketrans(
    {
        "→": "->",
        "←": "<-",
        "✗": "x",
        "…": "...",
        "⇒": "=>",
        "·": "+",
        "–": "-",
        "×": "x",
        "─": "-",
        "━": "=",
        "↵": "\\",
        "§": "S",
    }
)


def to_ascii(text: str) -> str:
    """The same in ASCII; what has no plain form of ours is escaped."""
    if text.isascii():
        return text
    return text.translate(_ASCII).encode("ascii", "backslashreplace").decode()


def clean(text: str) -> str:
    """One line without control characters: a log line must not be able to move the reader's cursor."""
    if text.isprintable():
        return text
    text = text.replace("\t", " ").replace("\r\n", "\n").replace("\n", " ↵ ")
    return "".join(c if c.isprintable() else "·" for c in text)


def field(message: Any, name: str, default: Any = None) -> Any:
    return getattr(message, name, default)


def number(message: Any, name: str) -> int:
    value = getattr(message, name, 0)
    return value if isinstance(value, int) else 0


def kind_of(service_method: str) -> str:
    """vote, append, snapshot, or the method's own name."""
    name = service_method.rpartition(".")[2]
    return _KINDS.get(name.replace("_", "").lower(), name)


def short_note(note: str) -> str:
    return _SHORT_NOTES.get(note, note)


def value(of: Any, limit: int = 24) -> str:
    """A command as it is shown: the same for an object and for what a trace file kept of it."""
    text = clean(_shown(of))
    return text if len(text) <= limit else f"{text[: limit - 1]}…"


def _shown(of: Any) -> str:
    if isinstance(of, (int, float)) or of is None:
        return repr(of)
    if isinstance(of, str):
        return of[:80]
    if isinstance(of, tuple) and hasattr(of, "crc32"):  # a tracefile.RecordedBytes
        return f"{len(of)} B"
    if isinstance(of, (bytes, bytearray)):
        return f"{len(of)} B"
    if isinstance(of, (list, tuple)):
        return f"[{', '.join(_shown(item) for item in of[:8])}]"
    if isinstance(of, SimpleNamespace):
        return " ".join(f"{name}={_shown(item)}" for name, item in vars(of).items())
    if isinstance(of, dict):
        return " ".join(f"{name}={_shown(item)}" for name, item in of.items())
    if dataclasses.is_dataclass(of):
        return " ".join(f"{f.name}={_shown(getattr(of, f.name, None))}" for f in dataclasses.fields(of))
    return repr(of)


def request(kind: str, args: Any) -> Wordings:
    """What is asked: `append t3 prev 4/2 +1 (x=5) c3`."""
    if kind == "vote":
        last = f"{number(args, 'last_log_index')}/{number(args, 'last_log_term')}"
        return (f"vote t{number(args, 'term')} last {last}", f"vote t{number(args, 'term')} {last}")
    if kind == "append":
        return _append(args)
    if kind == "snapshot":
        last = f"{number(args, 'last_included_index')}/{number(args, 'last_included_term')}"
        size = len(field(args, "data", b"") or b"")
        term = number(args, "term")
        return (f"snapshot t{term} to {last} ({size} B)", f"snapshot t{term} to {last}", f"snap t{term} {last}")
    return (f"{kind} {value(args, 40)}", kind) if args is not None else (kind,)


def _append(args: Any) -> Wordings:
    term, commit = number(args, "term"), number(args, "leader_commit")
    prev = f"{number(args, 'prev_log_index')}/{number(args, 'prev_log_term')}"
    entries = field(args, "entries") or []
    if not entries:
        return (
            f"heartbeat t{term} prev {prev} c{commit}",
            f"heartbeat t{term} {prev} c{commit}",
            f"beat t{term} {prev} c{commit}",
        )
    first = value(field(entries[0], "command"), 12)
    inside = first if len(entries) == 1 else f"{first} … {value(field(entries[-1], 'command'), 12)}"
    return (
        f"append t{term} prev {prev} +{len(entries)} ({inside}) c{commit}",
        f"append t{term} prev {prev} +{len(entries)} c{commit}",
        f"append t{term} {prev} +{len(entries)} c{commit}",
        f"app t{term} {prev} +{len(entries)} c{commit}",
    )


def answer(kind: str, args: Any, reply: Any) -> tuple[str, Wordings]:
    """What was answered, as (tone, wordings): `granted`, `no, conflict at 3 (term 2)`."""
    asked, term = number(args, "term"), number(reply, "term")
    newer = f", is at t{term}" if term > asked else ""
    if kind == "vote":
        if field(reply, "vote_granted"):
            return "good", (f"granted{newer}",)
        return "bad", (f"denied{newer}", "denied")
    if kind == "append":
        if field(reply, "success"):
            return "quiet", ("ok",)
        if newer:
            return "bad", (f"no{newer}", "no")
        index, conflict = number(reply, "conflict_index"), number(reply, "conflict_term")
        if index or conflict:
            told = f"no, has term {conflict} from {index}" if conflict else f"no, log ends before {index}"
            return "bad", (told, f"no, conflict {index}/{conflict}", f"no {index}/{conflict}")
        return "bad", ("no",)
    if kind == "snapshot":
        return ("bad", (f"no{newer}", "no")) if newer else ("quiet", ("ok",))
    return "quiet", ((f"{value(reply, 40)}", "answered") if reply is not None else ("answered",))
