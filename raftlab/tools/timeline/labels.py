"""Labels for messages, values and faults: each in several lengths, longest first, for columns of any width.

Reads messages by Figure 2's field names, as objects or as read from a trace file, so live and saved runs look the same.
Labels contain Unicode symbols; `to_ascii` replaces them.
"""

from __future__ import annotations

import dataclasses
from types import SimpleNamespace
from typing import Any

from labrpc import conditions
from labsim import Event
from raftlab.trace import events
from raftlab.trace.events import DropReason

LabelTexts = tuple[str, ...]

# Short texts, because a cell is narrow.
_DROP_REASONS = {
    DropReason.UNPLUGGED: "disconnected",
    DropReason.UNPLUGGED_ON_THE_WAY: "disconnected on the way",
    DropReason.NO_SERVER: "server down",
    DropReason.NOBODY_WAITS: "too late",
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
    """The text in ASCII; symbols without a replacement are escaped."""
    if text.isascii():
        return text
    return text.translate(_ASCII).encode("ascii", "backslashreplace").decode()


def clean(text: str) -> str:
    """One line without control characters: a log line must not move the terminal's cursor."""
    if text.isprintable():
        return text
    text = text.replace("\t", " ").replace("\r\n", "\n").replace("\n", " ↵ ")
    return "".join(c if c.isprintable() else "·" for c in text)


def field(message: Any, name: str, default: Any = None) -> Any:
    return getattr(message, name, default)


def number(message: Any, name: str) -> int:
    value = getattr(message, name, 0)
    return value if isinstance(value, int) else 0


def drop_reason(reason: str) -> str:
    """Why a message did not arrive; a trace of another version may contain unknown reasons."""
    return _DROP_REASONS.get(reason, str(reason))  # type: ignore[call-overload,no-any-return]  # a DropReason is its word


def value(of: Any, limit: int = 24) -> str:
    """A command as text: the same for an object and for its form in a trace file."""
    text = clean(_render(of))
    return text if len(text) <= limit else f"{text[: limit - 1]}…"


def _render(of: Any) -> str:
    if isinstance(of, (int, float)) or of is None:
        return repr(of)
    if isinstance(of, str):
        return of[:80]
    if isinstance(of, tuple) and hasattr(of, "crc32"):  # a tracefile.RecordedBytes
        return f"{len(of)} B"
    if isinstance(of, (bytes, bytearray)):
        return f"{len(of)} B"
    if isinstance(of, (list, tuple)):
        return f"[{', '.join(_render(item) for item in of[:8])}]"
    named = fields(of)
    return " ".join(f"{name}={_render(item)}" for name, item in named) if named else repr(of)


def fields(of: Any) -> list[tuple[str, Any]]:
    """The fields of a message, which is an object or was read from a trace file."""
    if isinstance(of, SimpleNamespace):
        return list(vars(of).items())
    if isinstance(of, dict):
        return [(str(name), item) for name, item in of.items()]
    if dataclasses.is_dataclass(of):
        return [(f.name, getattr(of, f.name, None)) for f in dataclasses.fields(of)]
    return []


def request(kind: str, args: Any) -> LabelTexts:
    """A request: `append t3 prev 4/2 +1 (x=5) c3`."""
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
    if args is None:
        return (kind,)
    tail = f" t{args.term}" if isinstance(field(args, "term"), int) else ""
    return (f"{kind} {value(args, 40)}", f"{kind}{tail}")


def _append(args: Any) -> LabelTexts:
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


def answer(kind: str, args: Any, reply: Any) -> tuple[str, LabelTexts]:
    """A reply, as (tone, texts): `granted`, `no, log ends before 5`."""
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
            text = f"no, has term {conflict} from {index}" if conflict else f"no, log ends before {index}"
            return "bad", (text, f"no, conflict {index}/{conflict}", f"no {index}/{conflict}")
        return "bad", ("no",)
    if kind == "snapshot":
        return ("bad", (f"no{newer}", "no")) if newer else ("quiet", ("ok",))
    if reply is None:
        return "quiet", ("answered",)
    return "quiet", (value(reply, 40), _short_reply(reply))


def _short_reply(reply: Any) -> str:
    """The reply to a student's own RPC, for a narrow column: `t3 not granted`."""
    text = []
    for name, item in fields(reply):
        if name == "term":
            text.append(f"t{_render(item)}")
        elif isinstance(item, bool):
            text.append(name if item else f"not {name}")
        else:
            text.append(f"{name}={_render(item)}")
    return clean(" ".join(text))[:60] or value(reply, 40)


def operation(of: Any, *, returned: bool) -> LabelTexts:
    """A client's operation, `put x=5`, and its result, `get x ⇒ 5`."""
    op, key, said = field(of, "op"), value(field(of, "key"), 12), str(field(of, "value", ""))
    tail = said if len(said) <= 24 else f"…{said[-23:]}"
    text = f"{op} {key}" if op == "get" else f"{op} {key}={clean(tail)}"
    if not returned:
        return (f"{text} …", f"{op} {key} …", f"{op} …")
    if op == "get":
        read = clean(tail) or "nothing"
        return (f"{text} ⇒ {read}", f"⇒ {read}", f"{text} done")
    return (f"{text} done", f"{op} {key} done", f"{op} done")


def role(name: str, term: int) -> LabelTexts:
    """A peer's new role: `leader of term 3`."""
    if name == "leader":
        return (f"leader of term {term}", f"leader t{term}")
    if name == "candidate":
        return (f"candidate in term {term}", f"candidate t{term}", f"cand. t{term}")
    return (f"follows in term {term}", f"follows t{term}")


def saved(of: Any, *, new_snapshot: bool = False) -> LabelTexts:
    """A save, with the sizes on the disk."""
    state, snapshot = len(field(of, "raft_state", b"") or b""), len(field(of, "snapshot", b"") or b"")
    if new_snapshot:
        return (f"saved {state} B, new snapshot {snapshot} B", f"snapshot {snapshot} B saved")
    return (f"saved {state} B", "saved")


SAVING: LabelTexts = ("begins to save", "saving")


def applied(of: Any) -> LabelTexts:
    """What a service has taken from apply_ch."""
    if field(of, "snapshot_valid"):
        index = number(of, "snapshot_index")
        return (f"applied snapshot to {index}", f"applied to {index}")
    index = number(of, "command_index")
    return (f"applied {index} = {value(field(of, 'command'), 30)}", f"applied {index}")


def started(of: Any, tail: str = "") -> LabelTexts:
    """A call of start() and its result."""
    index, term, shown = number(of, "index"), number(of, "term"), value(field(of, "command"), 30)
    if not field(of, "is_leader"):
        return (f"start({shown}) ⇒ not leader, t{term}{tail}", f"⇒ not leader, t{term}")
    return (
        f"start({shown}) ⇒ index {index} t{term}{tail}",
        f"start({shown}) ⇒ {index}{tail}",
        f"start({value(field(of, 'command'), 12)}) ⇒ {index}",
    )


def log_line(of: Any) -> LabelTexts:
    """A line that the peer wrote with log()."""
    return (f"[{clean(of.topic)}] {clean(of.text)}",)


def repeated_calls(what: str, count: int, during: str = "", losses: str = "") -> LabelTexts:
    """Collapsed calls: `… 7 heartbeats in 0.6 s`."""
    if what == "heartbeat":
        text, short = f"… {count} heartbeat{'s' * (count != 1)}", f"… {count} beat{'s' * (count != 1)}"
    else:
        text = short = f"… {f'{count}× ' if count > 1 else ''}{what} again"
    return (f"{text}{during}{losses}", f"{text}{losses}", f"{short}{losses}", short)


def refused_starts(count: int, during: str = "") -> LabelTexts:
    """Calls of start() that peers refused because they do not lead."""
    text = f"… start() refused{f' {count}×' if count > 1 else ''}"
    return (f"{text}{during}", text)


_VERBS = {
    events.BOOT: ("starts", "start"),
    events.RESTART: ("restarts", "restart"),
    events.CRASH: ("crashes", "crash"),
    events.CONNECT: ("is reconnected", "are reconnected"),
    events.DISCONNECT: ("is disconnected", "are disconnected"),
    events.PAUSE: ("is paused", "are paused"),
    events.RESUME: ("resumes", "resume"),
    events.FREEZE_CLOCK: ("has its clock frozen", "have their clocks frozen"),
    events.UNFREEZE_CLOCK: ("has its clock unfrozen", "have their clocks unfrozen"),
}


def server_fault(kind: str, peers: list[str]) -> str:
    """A fault of some peers, or its end: `peers 0, 2 are disconnected`."""
    one = len(peers) == 1
    return f"peer{'' if one else 's'} {', '.join(peers)} {_VERBS[kind][0 if one else 1]}"


def snapshot_made(of: Any) -> LabelTexts:
    """A snapshot made by a service."""
    return (f"snapshot to {number(of, 'index')} ({len(field(of, 'snapshot', b'') or b'')} B)",)


def preempted(preemption: Any) -> LabelTexts:
    """A thread that was preempted."""
    line = f"{str(field(preemption, 'file', '')).rpartition('/')[2]}:{number(preemption, 'line')}"
    late_ns = number(preemption, "late_ns") or 0
    late = f" for {late_ns / 1e6:.0f} ms" if late_ns else ""
    return (f"{field(preemption, 'task', '')} is preempted at {line}{late}", f"preempted{late}")


def fault_setting(event: Event) -> tuple[str, bool]:
    """A fault of network, disks or services as a sentence, and whether it is a repair."""
    kind, detail = event.kind, event.detail
    if kind == conditions.RELIABLE:
        text = "the network is reliable again" if detail else "the network is unreliable: it loses and delays messages"
        return text, detail
    if kind == conditions.LONG_REORDERING:
        text = "replies are reordered and delayed by up to 2.2 s" if detail else "replies are not reordered any more"
        return text, not detail
    if kind == conditions.LONG_DELAYS:
        return f"a call to an unreachable server takes up to {'7 s' if detail else '0.1 s'} to fail", not detail
    if kind == conditions.DUPLICATES:
        text = f"{detail:.0%} of the requests are duplicated" if detail else "requests are not duplicated any more"
        return text, not detail
    if kind == conditions.LATENCY:
        return f"a message takes {_span(detail)} each way", not detail.max_ms
    if kind == conditions.LINK:
        return _link(detail)
    if kind == conditions.PARTITION:
        sides = " | ".join(" ".join(side) for side in detail)
        return (f"the network is partitioned: {sides}" if detail else "all links are restored"), not detail
    if kind == events.CRASH_AT:
        return _crash_at(event.node, detail), detail.when is None
    if kind == events.SLOW_DISKS:
        return (f"a save takes {_span(detail)}" if detail.max_ms else "saves take no time again"), not detail.max_ms
    if kind == events.SLOW_SNAPSHOTS:
        return f"peer {event.node}'s service takes {detail:g} ms to make a snapshot", not detail
    if kind == events.BUSY:
        busy = "is busy and handles nothing" if detail else "is not busy any more"
        return f"peer {event.node}'s service {busy}", not detail
    return f"{kind} {value(detail, 60)}", False


def _span(of: Any) -> str:
    return f"{of.min_ms:g} ms" if of.min_ms == of.max_ms else f"{of.min_ms:g}–{of.max_ms:g} ms"


def _link(link: Any) -> tuple[str, bool]:
    way = f"from {link.source} to {link.target}"
    if link.cut:
        return f"the link {way} is cut", False
    how = []
    if link.latency.max_ms:
        how.append(f"a message takes {_span(link.latency)} more")
    if link.loss:
        how.append(f"{link.loss:.0%} of the messages are lost")
    return (f"{way} {', '.join(how)}", False) if how else (f"the link {way} is restored", True)


def _crash_at(peer: str, point: Any) -> str:
    if point.when is None:
        return f"peer {peer} no longer crashes at a save or reply"
    moment, what = point.when.split()
    which = f"its next {what}" if point.nth == 1 else f"{what} number {point.nth}, counted from now"
    return f"peer {peer} will crash {moment} {which}"
