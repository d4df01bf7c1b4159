"""Why a command does not reach the followers, or at too high a cost (§5.3, §7)."""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Iterable, Iterator
from typing import Any

from labsim import Event
from raftlab.check.diagnosis.registry import Finding, diagnosis
from raftlab.check.diagnosis.trace_analysis import Rpc, S, TraceAnalysis, at, duration
from raftlab.trace.events import APPLY, STARTED
from raftlab.trace.rpcs import APPEND, INSTALL

# A peer acts within this time if nothing delays it.
_SOON_NS = S // 2


def _links(analysis: TraceAnalysis, method: str) -> Iterator[tuple[str, str, int, list[Rpc]]]:
    """What each leader sent to each connected follower in each term: (leader, follower, term, calls)."""
    found: dict[tuple[str, str, int], list[Rpc]] = {}
    for rpc in analysis.led:
        if rpc.method == method and rpc.target in analysis.connected and rpc.args is not None:
            found.setdefault((rpc.source, rpc.target, rpc.args.term), []).append(rpc)
    for (leader, follower, term), calls in found.items():
        yield leader, follower, term, calls


# ---- going back ---------------------------------------------------------------------------------------------


def _rejections(calls: list[Rpc], term: int) -> list[Rpc]:
    """The latest rejections for log inconsistency, each sent after the previous rejection had arrived."""
    found: list[Rpc] = []
    for rpc in calls:
        reply = rpc.reply
        if reply is None or rpc.replied_ns is None:
            continue
        if reply.success:
            found.clear()
        elif reply.term == term and (not found or rpc.sent_ns >= (found[-1].replied_ns or 0)):
            found.append(rpc)
    return found


@diagnosis(340, costs=20)
def same_index_rejected(analysis: TraceAnalysis) -> Finding | None:
    for leader, follower, term, calls in _links(analysis, APPEND):
        refused = _rejections(calls, term)
        last = [rpc for rpc in refused if rpc.args.prev_log_index == refused[-1].args.prev_log_index]
        # Lately: at the end, and not in between.
        if len(last) >= 4 and refused[-4:] == last[-4:] and _is_late(analysis, refused[-1]):
            facts = (
                f"Since {at(last[0].sent_ns)} peer {leader}, leader of term {term}, has sent {len(last)} AppendEntries "
                f"with prev_log_index {last[0].args.prev_log_index} to peer {follower}, which rejected all of them."
            )
            if analysis.snapshot_of(leader) and not any(rpc.method == INSTALL for rpc in analysis.led):
                return Finding(
                    f"{facts} Peer {leader} has a snapshot, and has sent no InstallSnapshot.",
                    "next_index does not decrease after a rejection. Or the follower needs entries that are no "
                    "longer in the leader's log; then the leader must send its snapshot (§7).",
                )
            return Finding(
                facts,
                "next_index does not decrease after a rejection, or the conflict hint in the reply does not lower "
                "it. next_index must decrease until the logs match (§5.3).",
            )
    return None


@diagnosis(380, costs=10)
def back_up_one_by_one(analysis: TraceAnalysis) -> Finding | None:
    longest: tuple[list[Rpc], str, str, int] = ([], "", "", 0)
    for leader, follower, term, calls in _links(analysis, APPEND):
        run: list[Rpc] = []
        answered = (rpc for rpc in calls if rpc.reply is not None and not rpc.reply.success and rpc.reply.term == term)
        for rpc in answered:
            if run and rpc.args.prev_log_index != run[-1].args.prev_log_index - 1:
                run = []
            run.append(rpc)
            if len(run) > len(longest[0]):
                longest = (list(run), leader, follower, term)
    run, leader, follower, term = longest
    if len(run) < 10:
        return None
    first, last = run[0], run[-1]
    return Finding(
        f"Peer {leader}, leader of term {term}, backed up one entry at a time for peer {follower}: {len(run)} "
        f"AppendEntries in a row were rejected within {duration((last.replied_ns or last.sent_ns) - first.sent_ns)} "
        f"from {at(first.sent_ns)} on, with prev_log_index from {first.args.prev_log_index} down to "
        f"{last.args.prev_log_index}.",
        "this is too slow if logs differ a lot. Let the follower report where the conflicting term begins, and skip "
        "a whole term per rejection (§5.3, the paragraph on reducing rejected AppendEntries).",
    )


@diagnosis(350, costs=30)
def same_snapshot_again(analysis: TraceAnalysis) -> Finding | None:
    for leader, follower, term, calls in _links(analysis, INSTALL):
        repeated: list[Rpc] = []
        for rpc in calls:
            if rpc.reply is None or rpc.reply.term != term:
                continue
            if repeated and (
                _part_of_snapshot(rpc) != _part_of_snapshot(repeated[-1])
                or rpc.sent_ns < (repeated[-1].replied_ns or 0)
            ):
                repeated = []
            repeated.append(rpc)
        if len(repeated) >= 3 and _is_late(analysis, repeated[-1]):
            index, offset = _part_of_snapshot(repeated[0])
            what = f"the snapshot through index {index}"
            likely = "next_index is not set to last_included_index + 1 after the answer to InstallSnapshot (§7)."
            if offset is not None:
                what = f"the part at offset {offset} of {what}"
                likely = (
                    "the leader ignores the answer. Send the next part or, if the follower has lost the earlier "
                    "ones, the first part again (Figure 13)."
                )
            return Finding(
                f"Peer {leader}, leader of term {term}, sent peer {follower} {what} {len(repeated)} times from "
                f"{at(repeated[0].sent_ns)} on, each time after peer {follower} had answered the previous one.",
                likely,
            )
    return None


def _part_of_snapshot(rpc: Rpc) -> tuple[int, int | None]:
    """Its last index and, if peers send it in parts, the offset."""
    return rpc.args.last_included_index, getattr(rpc.args, "offset", None)


# ---- sent unnecessarily -------------------------------------------------------------------------------------


@diagnosis(costs=40)
def no_answer_treated_as_rejection(analysis: TraceAnalysis) -> Finding | None:
    """prev_log_index decreases again and again without a rejection."""
    links: dict[tuple[str, str, int], list[Rpc]] = {}
    for rpc in analysis.all_rpcs:  # faults do not matter here
        if rpc.method == APPEND and rpc.args is not None and rpc.sent_ns > analysis.end_ns - 20 * S:
            links.setdefault((rpc.source, rpc.target, rpc.args.term), []).append(rpc)
    for (leader, follower, term), calls in links.items():
        # A leader that pipelines requests may go back once, to what is acknowledged, but not again and again.
        lower: list[Rpc] = []
        for rpc in calls:
            if rpc.replied_ns is not None or (lower and rpc.args.prev_log_index > lower[-1].args.prev_log_index):
                lower.clear()
            elif not lower or rpc.args.prev_log_index < lower[-1].args.prev_log_index:
                lower.append(rpc)
            if len(lower) > 3:
                break
        refused = any(rpc.answered is not None and not rpc.answered.success for rpc in calls)
        if len(lower) > 3 and not refused:
            first, last = lower[0], lower[-1]
            return Finding(
                f"Peer {leader}, leader of term {term}, got no answer from peer {follower} and backed up: at "
                f"{at(first.sent_ns)} it sent prev_log_index {first.args.prev_log_index}, and at {at(last.sent_ns)} "
                f"it sent {last.args.prev_log_index}. Peer {follower} has rejected nothing in that term.",
                "the leader treats a call that returns None as a rejection. None says nothing about the follower's "
                "log: leave next_index unchanged, and try again (§5.3).",
            )
    return None


_FEW_REPEATS = 10


@diagnosis(costs=50)
def acknowledged_sent_again(analysis: TraceAnalysis) -> Finding | None:
    """A large part of what a leader sends are entries that the follower has already acknowledged to it."""
    again: list[tuple[Rpc, int]] = []
    carrying: list[Rpc] = []
    for _, _, _, calls in _links(analysis, APPEND):
        acknowledged = sorted(
            (rpc.replied_ns, rpc.request.last_index)
            for rpc in calls
            if rpc.replied_ns is not None and rpc.request is not None and rpc.reply is not None and rpc.reply.success
        )
        known, position = 0, 0
        for rpc in calls:
            while position < len(acknowledged) and acknowledged[position][0] < rpc.sent_ns:
                known, position = max(known, acknowledged[position][1]), position + 1
            if rpc.args.entries:
                carrying.append(rpc)
                if rpc.args.prev_log_index < known:
                    again.append((rpc, known))
    if not again or 4 * _size(rpc for rpc, _ in again) < _size(carrying):
        return None
    rpc, known = again[-1]
    return Finding(
        f"{len(again)} of {len(carrying)} AppendEntries with entries repeat entries that the follower had already "
        f"acknowledged ({_size(rpc for rpc, _ in again)} of {_size(carrying)} bytes). At {at(rpc.sent_ns)} peer "
        f"{rpc.source}, leader of term {rpc.args.term}, sent peer {rpc.target} the entries from "
        f"{rpc.args.prev_log_index + 1} on, though peer {rpc.target} had acknowledged all entries up to {known}.",
        "next_index is not increased on success, or decreases after a late answer (match_index must never decrease), "
        "or is not used to choose which entries to send. Send each follower the entries from its next_index on "
        "(§5.3).",
    )


def _size(calls: Iterable[Rpc]) -> int:
    return sum(len(rpc.message.request) for rpc in calls)


@diagnosis(costs=60)
def sent_before_the_answer(analysis: TraceAnalysis) -> Finding | None:
    """The same entries are sent to a follower again and again while the answer to the first is in flight."""
    again: list[Rpc] = []
    carrying = 0
    for _, _, _, calls in _links(analysis, APPEND):
        latest: Rpc | None = None
        for rpc in (rpc for rpc in calls if rpc.args.entries):
            carrying += 1
            if (
                latest is not None
                and latest.replied_ns is not None
                and rpc.sent_ns < latest.replied_ns < rpc.sent_ns + _SOON_NS // 10
                and rpc.args.prev_log_index <= latest.args.prev_log_index
            ):
                again.append(rpc)
            latest = rpc
    if len(again) < _FEW_REPEATS or 2 * len(again) < carrying:
        return None
    rpc = again[-1]
    return Finding(
        f"{len(again)} of {carrying} AppendEntries with entries were sent while the answer to an earlier request with "
        f"the same entries was in flight. For example, at {at(rpc.sent_ns)} peer {rpc.source} sent peer {rpc.target} "
        f"the entries from {rpc.args.prev_log_index + 1} on once more.",
        "every start() sends all unacknowledged entries. Use one sender thread per follower: entries that start() "
        "adds while that thread waits for an answer are sent with its next call.",
    )


_FASTEST_HEARTBEAT_NS = S // 20
_USUAL_HEARTBEAT_NS = S // 10  # in a shorter time, several may have one cause


@diagnosis(costs=70)
def heartbeats_too_often(analysis: TraceAnalysis) -> Finding | None:
    """Without new entries, a leader sends AppendEntries more often than makes sense."""
    for leader, follower, term, calls in _links(analysis, APPEND):
        since_ns = max(analysis.end_ns - S, calls[0].sent_ns)
        late = [rpc for rpc in calls if rpc.sent_ns >= since_ns]
        if len(late) < _FEW_REPEATS or any(rpc.args.entries or rpc.args != late[0].args for rpc in late):
            continue
        gap_ns = (late[-1].sent_ns - late[0].sent_ns) / (len(late) - 1)
        if gap_ns < _FASTEST_HEARTBEAT_NS and late[-1].sent_ns - late[0].sent_ns >= _USUAL_HEARTBEAT_NS:
            return Finding(
                f"Peer {leader}, leader of term {term}, sent peer {follower} the same AppendEntries without entries "
                f"{len(late)} times from {at(late[0].sent_ns)} to {at(late[-1].sent_ns)}: one every "
                f"{duration(gap_ns)}.",
                "heartbeats are sent without a pause, or after every answer. One every 100 ms is enough (§5.2).",
            )
    return None


def _is_late(analysis: TraceAnalysis, rpc: Rpc) -> bool:
    return rpc.sent_ns > analysis.end_ns - S


# ---- never sent ---------------------------------------------------------------------------------------------


@diagnosis(330)
def start_never_sent(analysis: TraceAnalysis) -> Finding | None:
    for event in analysis.other.get(STARTED, ()):
        command, index, term = event.detail.command, event.detail.index, event.detail.term
        leader, when_ns = event.node, event.at_ns
        if (
            not event.detail.is_leader
            or when_ns < analysis.since_fault_ns
            or leader not in analysis.connected
            or when_ns > analysis.end_ns - _SOON_NS
            or analysis.servers < 2
            or analysis.term_at(leader, when_ns + _SOON_NS) > term
        ):
            continue
        first = bisect_left(analysis.led, when_ns, key=lambda rpc: rpc.sent_ns)
        sent = [rpc for rpc in analysis.led[first:] if rpc.source == leader]
        if any(_reaches(rpc, index) for rpc in sent) or _applied_elsewhere(analysis, event):
            continue
        returned = (
            f"At {at(when_ns)} start({_short(command)}) on peer {leader} returned index {index}, term {term} and "
            "is_leader=True"
        )
        other = _sent_as(sent, command)
        if other is not None:
            return Finding(
                f"{returned}, but the command was sent as entry {other}.",
                "start() returns the wrong index. Return the index of the entry that it appended.",
            )
        facts = (
            f"{returned}. In the {duration(analysis.end_ns - when_ns)} since then no AppendEntries has contained entry "
            f"{index}."
        )
        if slow := _on_its_way(sent, analysis.end_ns):
            return Finding(
                f"{facts} {slow}",
                "entries are sent too slowly. Send more entries per message, and send the next message sooner.",
            )
        if sent:
            return Finding(
                f"{facts} Meanwhile the leader sent {len(sent)} requests without it.",
                "the command is not appended to the log, or heartbeats do not contain the entries from next_index on "
                "(§5.3).",
            )
        return Finding(facts, "start() does not notify the thread that sends, or that thread has ended.")
    return None


def _applied_elsewhere(analysis: TraceAnalysis, started: Event) -> bool:
    """Others have applied that entry, so it was sent by an RPC that is not from the paper."""
    return any(
        event.node != started.node
        and event.at_ns > started.at_ns
        and event.detail.command_index >= started.detail.index
        for event in analysis.other.get(APPLY, ())
    )


def _on_its_way(sent: list[Rpc], end_ns: int) -> str:
    """A sentence, if older entries were still being sent to a peer at the end, in increasing order; else ""."""
    by_target: dict[str, list[Rpc]] = {}
    for rpc in sent:
        if rpc.method == APPEND and rpc.args is not None and rpc.args.entries:
            by_target.setdefault(rpc.target, []).append(rpc)
    for target, rpcs in by_target.items():
        first, last = rpcs[0].args.prev_log_index + 1, rpcs[-1].args.prev_log_index + len(rpcs[-1].args.entries)
        if rpcs[-1].args.prev_log_index >= first and rpcs[-1].sent_ns > end_ns - _SOON_NS:
            most = max(len(rpc.args.entries) for rpc in rpcs)
            many = "one entry" if most == 1 else f"at most {most} entries"
            return f"Meanwhile entries {first} to {last} were sent to peer {target}, {many} per message."
    return ""


def _sent_as(sent: list[Rpc], command: Any) -> int | None:
    """The index under which that command was sent."""
    for rpc in sent:
        if rpc.method == APPEND and (args := rpc.args) is not None:
            for index, entry in enumerate(args.entries, args.prev_log_index + 1):
                if entry.command == command and type(entry.command) is type(command):
                    return index
    return None


def _reaches(rpc: Rpc, index: int) -> bool:
    request = rpc.request
    if request is None:
        return True  # it may
    if rpc.method == INSTALL:
        return bool(request.args.last_included_index >= index)
    return bool(request.last_index >= index)


def _short(value: Any) -> str:
    text = repr(value)
    return text if len(text) <= 20 else f"{text[:17]}..."
