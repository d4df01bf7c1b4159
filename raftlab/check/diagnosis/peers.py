"""What goes wrong inside one peer, as visible from outside: a lock held too long, a blocked thread, lost state."""

from __future__ import annotations

from collections.abc import Mapping
from itertools import pairwise
from typing import Any, NamedTuple

import labgob
from labsim import Deadlock, Event, Wait, WaitKind
from raftlab.check.diagnosis.registry import Finding, diagnosis
from raftlab.check.diagnosis.threads import describe_threads, doing, own_threads, path
from raftlab.check.diagnosis.trace_analysis import MS, CastVote, Rpc, S, TraceAnalysis, at, duration
from raftlab.check.failure import Failure
from raftlab.check.harness_rules import CALLS_RETURN
from raftlab.check.rules.budgets import AnswersRequests
from raftlab.trace.events import ANSWER, BOOT, CRASH, DELIVER, PERSIST, RESTART, SAVING
from raftlab.trace.rpcs import RPCS, VOTE

_LONGEST_CALL_NS = 7_200 * MS  # that gets no answer; the network gives up after 7 s
_SLOW_NS = 300 * MS  # for a handler, which need not wait
_FOR_EVER = (WaitKind.OWN_LOCK, WaitKind.LOST_LOCK)
# What only another thread of the same peer can end.
_FOR_ANOTHER_THREAD = (WaitKind.ITEM, WaitKind.EVENT, WaitKind.CONDITION, WaitKind.SEMAPHORE)
_FROM_OUTSIDE = ("start", "get_state", "snapshot", *(rpc.method_name for rpc in RPCS.values()))
# What the holder of a lock waits for, and what is wrong with that.
_HOLDERS = {
    WaitKind.OWN_LOCK: (
        "One of the peer's threads waits for a lock that this thread itself holds.",
        "a method that takes the lock is called by a method that already holds it.",
    ),
    WaitKind.LOST_LOCK: (
        "The peer's threads wait for a lock whose holder has ended without releasing it.",
        "a method takes the lock with acquire() and returns or raises without release(). `with self.mu:` always "
        "releases it.",
    ),
    WaitKind.SPACE: (
        "The thread that holds the peer's lock waits for room in apply_ch.",
        "the peer holds its lock while it puts a message on apply_ch. The service may be waiting for the same lock "
        "(for example in snapshot()). Release the lock before the put().",
    ),
    WaitKind.REPLY: (
        "The thread that holds the peer's lock waits for the reply to a call.",
        "the peer holds its lock during a call. Release the lock before call(), take it again after the reply, and "
        "check all state again.",
    ),
    WaitKind.SLEEP: (
        "The thread that holds the peer's lock sleeps.",
        "the peer holds its lock while it sleeps. Release the lock before sleep(), and check all state again "
        "afterwards.",
    ),
}
_ANY_HOLDER = ("", "the peer holds its lock while it waits for something else. Release the lock before waiting.")


@diagnosis(40, rules=("start-returns-at-once",), any_fields=True, alone=True)
def start_waits_for_the_lock(analysis: TraceAnalysis) -> Finding | None:
    """start() only waits for the lock; another thread holds it while it waits."""
    call_waits = analysis.snapshot.call_waits
    if len(call_waits) < 2 or call_waits[0].kind is not WaitKind.LOCK:
        return None
    call, holder = call_waits
    _, likely = _HOLDERS.get(holder.kind, _ANY_HOLDER)
    meanwhile = "slept" if holder.kind is WaitKind.SLEEP else f"waited for {holder.kind.value}"
    return Finding(
        f"start() on peer {call.node} had to wait for the lock. {holder.task} held the lock and "
        f"{meanwhile}{path(holder)}.",
        likely,
    )


@diagnosis(50, rules=("higher-term-wins",), deadlocks=True, any_fields=True, alone=True)
def lock_held_while_waiting(analysis: TraceAnalysis) -> Finding | None:
    """The peer answers no requests, and the holder of its lock waits."""
    held = _held_locks(analysis)
    stalls = [
        (*stalled, peer) for peer in sorted(held) if peer in analysis.up and (stalled := _stalled(analysis, peer))
    ]
    if not stalls:
        return _waits_for_ever(analysis, held)
    since_ns, until_ns, requests, peer = max(stalls, key=lambda stall: stall[1] - stall[0])
    facts = _silence(analysis, peer, since_ns, until_ns, requests)
    wait_kind, call = held[peer], None
    if wait_kind in (WaitKind.NOTHING, WaitKind.REPLY):
        call = _call_under_way(analysis, peer, since_ns, until_ns)
        if call is None and wait_kind is WaitKind.NOTHING:
            return None  # only known: some threads wait for a lock
    observed, likely = _HOLDERS.get(
        WaitKind.REPLY if call is not None else wait_kind,
        (f"The thread that holds the peer's lock waits for {wait_kind.value}.", _ANY_HOLDER[1]),
    )
    if call is not None:
        gone = "" if call.target in analysis.connected else ", which is disconnected or down"
        observed = (
            "Meanwhile the peer's threads waited for its lock, and one of them waited for the answer to the "
            f"{call.name} that it had sent at {at(call.sent_ns)} to peer {call.target}{gone}."
        )
    return Finding(f"{facts} {observed}", likely)


def _waits_for_ever(analysis: TraceAnalysis, held: Mapping[str, WaitKind]) -> Finding | None:
    """Such a wait never ends, even if no request has reached that peer meanwhile."""
    asked = {wait.node for wait in analysis.snapshot.blocked[:1]}
    for peer in sorted(analysis.up & held.keys(), key=lambda peer: (peer not in asked, peer)):
        if held[peer] in _FOR_EVER:
            observed, likely = _HOLDERS[held[peer]]
            return Finding(f"Peer {peer} is blocked. {observed}", likely)
    return None


@diagnosis(70, rules=("higher-term-wins",), any_fields=True, alone=True)
def answers_only_after_its_call(analysis: TraceAnalysis) -> Finding | None:
    """It was silent and then answered all requests at once: no lock is held any more, but one delayed all answers."""
    for peer in sorted(analysis.up):
        stalled = _stalled(analysis, peer)
        if stalled is None:
            continue
        since_ns, until_ns, requests = stalled
        together = [rpc for rpc in requests if until_ns <= (rpc.answered_ns or 0) <= until_ns + 5 * MS]
        call = _call_under_way(analysis, peer, since_ns, until_ns)
        if until_ns >= analysis.end_ns or len(together) < max(3, len(requests)) or call is None:
            continue
        gone = "" if call.target in analysis.connected else ", which is disconnected or down"
        return Finding(
            f"{_silence(analysis, peer, since_ns, until_ns, requests)} Then it answered all of them at once. By then "
            f"it had no answer to the {call.name} that it had sent at {at(call.sent_ns)} to peer {call.target}{gone}.",
            "the peer makes a call while it holds its lock, or in the thread that answers requests. A call may take "
            "seconds: release the lock before call(), take it again after the reply, and check all state again.",
        )
    return None


@diagnosis(80, alone=True)
def calls_in_the_thread_that_answers(analysis: TraceAnalysis) -> Finding | None:
    """Neither a lock nor a queue: it never makes two calls at a time, and answers nothing during a call."""
    error = analysis.error
    if not isinstance(error, Failure) or error.rule != AnswersRequests.name or error.peer is None:
        return None
    calls = [rpc for rpc in analysis.all_rpcs if rpc.source == error.peer]
    oldest = next(
        (rpc for rpc in analysis.all_rpcs if rpc.target == error.peer and rpc.delivered_ns and not rpc.answered_ns),
        None,
    )
    one_by_one = all(
        then.sent_ns >= (first.sent_ns + MS if first.replied_ns is None else first.replied_ns)
        for first, then in pairwise(calls)
    )
    if oldest is None or oldest.delivered_ns is None or not one_by_one or len({rpc.target for rpc in calls}) < 2:
        return None
    before = [place for place, rpc in enumerate(calls) if rpc.sent_ns <= oldest.delivered_ns]
    if not before:
        return None
    call = calls[before[-1]]
    following = calls[before[-1] + 1].sent_ns if call is not calls[-1] else analysis.end_ns
    over_ns = following if call.replied_ns is None else call.replied_ns
    if over_ns - oldest.delivered_ns < S:
        return None
    gone = "" if call.target in analysis.connected else ", which is disconnected or down"
    return Finding(
        f"Peer {error.peer} has never made two calls at a time. From {at(call.sent_ns)} to {at(over_ns)} it waited "
        f"for the answer to its {call.name} to peer {call.target}{gone}. Meanwhile the {oldest.name} from peer "
        f"{oldest.source}, which arrived at {at(oldest.delivered_ns)}, had to wait.",
        "the peer makes calls in the thread that answers requests. A call may take seconds, and all requests must "
        "wait for it: make each call in a separate thread.",
    )


@diagnosis(60, any_fields=True, alone=True)
def waits_for_room_and_answers_nothing(analysis: TraceAnalysis) -> Finding | None:
    """Without a lock: one thread does everything, and waits for the service, which may wait for that thread."""
    held = _held_locks(analysis)
    for peer in sorted({wait.node for wait in analysis.snapshot.blocked if wait.kind is WaitKind.SPACE and wait.node}):
        stalled = None if peer in held or peer not in analysis.up else _stalled(analysis, peer)
        if stalled is not None:
            return Finding(
                f"{_silence(analysis, peer, *stalled)} One of the peer's threads waits for room in apply_ch.",
                "the peer's main thread puts messages on apply_ch itself, and the service may be waiting for that "
                "thread (for example in snapshot()). Put messages on apply_ch in a separate thread.",
            )
    return None


@diagnosis(100, any_fields=True, alone=True)
def inactive_peer(analysis: TraceAnalysis) -> Finding | None:
    """Neither an answer nor a request for over a second, and neither a lock nor apply_ch is the cause."""
    for peer in sorted(analysis.up & analysis.connected):
        stalled = _stalled(analysis, peer)
        if stalled is None:
            continue
        since_ns, until_ns, requests = stalled
        spoke = any(rpc.source == peer and rpc.sent_ns > since_ns for rpc in analysis.all_rpcs)
        spoke = spoke or any(event.node == peer and event.at_ns > since_ns for event in analysis.own_calls)
        if until_ns >= analysis.end_ns and until_ns - since_ns > S and not spoke:
            threads = own_threads(analysis, [peer])
            facts = f"{_silence(analysis, peer, since_ns, until_ns, requests)} It has sent nothing since then."
            asks = next(((wait, method) for wait in threads if (method := _asks_its_own_peer(wait))), None)
            if asks is not None:
                wait, method = asks
                return Finding(
                    f"{facts} {wait.task} {doing(wait)}{path(wait)}.",
                    f"one of the peer's own threads calls {method}(), which waits for the peer's main thread. But the "
                    f"main thread is the caller itself, or waits for the caller. Do the work of {method}() directly "
                    "instead.",
                )
            return Finding(
                f"{facts} {describe_threads(threads)}" if threads else facts,
                "the peer's main thread has ended, or waits for itself, or waits for a thread that waits for the "
                "main thread.",
            )
    return None


def _asks_its_own_peer(wait: Wait) -> str:
    """The public method in which that thread of the peer waits for another thread; "" if in none."""
    if wait.kind not in _FOR_ANOTHER_THREAD:
        return ""
    return next((place.function for place in wait.stack[:-1] if place.function in _FROM_OUTSIDE), "")


@diagnosis(90, any_fields=True, alone=True)
def call_waits_for_a_thread(analysis: TraceAnalysis) -> Finding | None:
    """A call from outside that hands its work to one of the peer's threads and waits for it."""
    error = analysis.error
    if not isinstance(error, Failure) or error.rule != CALLS_RETURN.name or not analysis.snapshot.blocked:
        return None
    call = analysis.snapshot.blocked[0]
    threads = own_threads(analysis, [call.node or ""])
    if call.kind not in _FOR_ANOTHER_THREAD or call.where is None or not analysis.snapshot.threads:
        return None
    if call.stack[-1].function == "__init__":
        return Finding(
            f"The constructor of peer {call.node} has not returned: it waits for {call.kind.value}{path(call)}.",
            "__init__ runs a loop that never ends: start a thread for the loop, and return. Or __init__ waits for a "
            "thread that it has not started yet.",
        )
    return Finding(
        f"{call.task} of peer {call.node} waits for {call.kind.value}{path(call)}. Only another thread of that peer "
        f"can end this wait. {describe_threads(threads)}",
        "the thread that should end the wait was never started, has ended, or waits for something itself.",
    )


def _silence(analysis: TraceAnalysis, peer: str, since_ns: int, until_ns: int, requests: list[Rpc]) -> str:
    over = " until the end" if until_ns >= analysis.end_ns else ""
    return (
        f"Peer {peer} answered nothing from {at(since_ns)} on, for {duration(until_ns - since_ns)}{over}, though "
        f"{len(requests)} request{'s' if len(requests) > 1 else ''} had arrived."
    )


def _held_locks(analysis: TraceAnalysis) -> Mapping[str, WaitKind]:
    """By peer: what the holder of its lock waits for, while others wait for that lock."""
    if not isinstance(analysis.error, Deadlock):
        return analysis.snapshot.held_locks
    # All tasks wait for ever: so none waits for a reply, and the one that waits for room holds the lock.
    kinds: dict[str, set[WaitKind]] = {}
    for wait in analysis.error.waits:
        if wait.node is not None:
            kinds.setdefault(wait.node, set()).add(wait.kind)
    held: dict[str, WaitKind] = {}
    for peer, found in kinds.items():
        for_ever = [kind for kind in _FOR_EVER if kind in found]
        if for_ever:
            held[peer] = for_ever[0]
        elif {WaitKind.LOCK, WaitKind.SPACE} <= found:
            held[peer] = WaitKind.SPACE
    return held


def _stalled(analysis: TraceAnalysis, peer: str) -> tuple[int, int, list[Rpc]] | None:
    """The longest time in which requests waited at the peer and it answered none: (from, until, requests)."""
    incarnation_ns = max(
        (e.at_ns for kind in (BOOT, RESTART) for e in analysis.other.get(kind, ()) if e.node == peer), default=0
    )
    since_ns = max(incarnation_ns, analysis.end_ns - 20 * S)
    incoming = [rpc for rpc in analysis.all_rpcs if rpc.target == peer and (rpc.delivered_ns or -1) >= since_ns]
    waits = [
        (rpc.delivered_ns or 0, analysis.end_ns if rpc.answered_ns is None else rpc.answered_ns) for rpc in incoming
    ]
    waits = [(start, end) for start, end in waits if end - start >= _SLOW_NS]
    if not waits:
        return None
    start, end = max(waits, key=lambda wait: (wait[1] - wait[0], -wait[0]))
    during = [rpc for rpc in incoming if start <= (rpc.delivered_ns or 0) < end]
    answered = [rpc for rpc in during if rpc.answered_ns is not None and start < rpc.answered_ns < end]
    # If others were answered meanwhile, only that handler waits, and the lock is free.
    return None if answered else (start, end, during)


def _call_under_way(analysis: TraceAnalysis, peer: str, since_ns: int, until_ns: int) -> Rpc | None:
    """The last call that the peer made before it fell silent or meanwhile, if it may have waited for it to the end."""
    for rpc in reversed(analysis.all_rpcs):
        if rpc.source != peer or rpc.sent_ns > max(since_ns + MS, until_ns - _SLOW_NS):
            continue
        if rpc.sent_ns < since_ns - _LONGEST_CALL_NS:
            return None
        if rpc.replied_ns is not None and rpc.replied_ns < until_ns - MS:
            continue
        unanswered = rpc.delivered_ns is not None and (rpc.answered_ns or until_ns) >= until_ns - MS
        if unanswered or until_ns - rpc.sent_ns <= _LONGEST_CALL_NS:
            return rpc
    return None


@diagnosis(10, every_rule_but=(), exceptions=True, any_fields=True, alone=True)
def no_lock_during_a_save(analysis: TraceAnalysis) -> Finding | None:
    """On slow disks: during a save, another one begins, or a request arrives and is answered."""
    saving: dict[str, int] = {}  # by peer: when its current save began
    arrived: dict[int, int] = {}  # during such a save, by id() of the message
    found = ""
    for event in analysis.events:
        kind, peer = event.kind, event.node
        if kind == SAVING:
            if peer in saving:
                first, second = at(saving[peer]), at(event.at_ns)
                found = f"Peer {peer} began a save at {first} and another at {second}, before the first had ended."
            saving[peer] = event.at_ns
        elif peer not in saving:
            continue
        elif kind in (PERSIST, CRASH):
            del saving[peer]
        elif kind == DELIVER:
            arrived[id(event.detail)] = saving[peer]
        elif kind == ANSWER and arrived.get(id(event.detail)) == saving[peer]:
            name = event.detail.method_name
            found = (
                f"Peer {peer} began a save at {at(saving[peer])}. Before the save ended, {name} from peer "
                f"{event.detail.source} arrived, and the peer answered at {at(event.at_ns)}."
            )
    if not found:
        return None
    return Finding(
        f"{found} Disks are slow in this test.",
        "the peer does not hold its lock during the save, so one thread reads or sends state that another thread has "
        "only half changed. Take the lock before reading state, and hold it until the save is done and the reply is "
        "decided.",
    )


@diagnosis(110, every_rule_but=("higher-term-wins", "starts-in-order", "start-returns-at-once"), alone=True)
def term_lost_in_a_restart(analysis: TraceAnalysis) -> Finding | None:
    """The term of a peer after a restart is lower than before the crash."""
    for restart in analysis.other.get(RESTART, ()):
        before = _term_before(analysis, restart)
        after = _term_after(analysis, restart)
        if before is None or after is None or after.restored >= before[0]:
            continue
        return Finding(
            f"Peer {restart.node} was in term {before[0]} at {at(before[1])}, crashed, restarted at "
            f"{at(restart.at_ns)}, and {after.text} at {at(after.at_ns)}.",
            "current_term and voted_for are not saved, or not restored in __init__. Save both before answering an RPC "
            "or sending one (Figure 2, persistent state).",
        )
    return None


class _TermAfter(NamedTuple):
    restored: int  # its term when it restarted
    text: str
    at_ns: int


def _term_before(analysis: TraceAnalysis, restart: Event) -> tuple[int, int] | None:
    """The last term in its messages before the restart, and when."""
    peer, until_ns = restart.node, restart.at_ns
    terms: list[tuple[int, int]] = []
    for rpc in reversed(analysis.all_rpcs):
        # An answer may be later than the next send: compare a few.
        if len(terms) >= 3:
            break
        if rpc.source == peer and rpc.sent_ns < until_ns and rpc.args is not None:
            terms.append((rpc.args.term, rpc.sent_ns))
        elif rpc.target == peer and rpc.answered_ns is not None and rpc.answered_ns < until_ns:
            answer = rpc.answered
            if answer is not None:
                terms.append((answer.term, rpc.answered_ns))
    return max(terms, default=None)


def _term_after(analysis: TraceAnalysis, restart: Event) -> _TermAfter | None:
    """The term that it restored, according to its first message after the restart."""
    peer, since_ns = restart.node, restart.at_ns
    for rpc in analysis.all_rpcs:
        if rpc.source == peer and rpc.sent_ns >= since_ns and rpc.args is not None:
            if rpc.method != VOTE:
                return None
            # A candidate has incremented its term.
            return _TermAfter(rpc.args.term - 1, f"campaigned in term {rpc.args.term}", rpc.sent_ns)
        if rpc.target == peer and rpc.delivered_ns is not None and rpc.delivered_ns >= since_ns:
            answer = rpc.answered
            if answer is not None and rpc.answered_ns is not None and rpc.args is not None:
                return _TermAfter(answer.term, f"answered in term {answer.term}", rpc.answered_ns)
    return None


@diagnosis(120, rules=("one-vote", "one-leader"), alone=True)
def voted_again_after_restart(analysis: TraceAnalysis) -> Finding | None:
    """One peer, one term, two votes, and a crash in between. The state on its disk shows whether the crash is the
    cause."""
    votes: dict[tuple[str, int], CastVote] = {}
    for vote in analysis.votes:
        earlier = votes.setdefault((vote.voter, vote.term), vote)
        between = analysis.restarts_between(vote.voter, earlier.at_ns, vote.at_ns)
        if earlier.candidate == vote.candidate or not between:
            continue
        facts = (
            f"Peer {vote.voter} voted for peer {earlier.candidate} in term {vote.term} at {at(earlier.at_ns)}, "
            f"crashed, restarted at {at(between[-1])}, and voted for peer {vote.candidate} in the same term at "
            f"{at(vote.at_ns)}."
        )
        saves = [e for e in analysis.other.get(PERSIST, ()) if e.node == vote.voter and e.at_ns <= between[0]]
        if not saves:
            return Finding(
                f"{facts} It had saved nothing.",
                "its vote did not survive the crash. Save current_term and voted_for before answering, and restore "
                "both in __init__ (Figure 2, persistent state).",
            )
        candidate = int(earlier.candidate)
        with_the_vote = [e for e in saves if e.at_ns <= earlier.at_ns][-1:]
        if with_the_vote and _may_hold(with_the_vote[0].detail.raft_state, candidate):
            lost = [e for e in saves if e.at_ns > earlier.at_ns and not _may_hold(e.detail.raft_state, candidate)]
            if lost:
                return Finding(
                    f"{facts} The state that the peer saved at {at(with_the_vote[0].at_ns)} may contain the first "
                    f"vote, but the state saved at {at(lost[0].at_ns)} does not: none of its values is {candidate}.",
                    "voted_for was cleared between these saves, without a new term: by a snapshot, or when the peer "
                    "heard from its leader. A vote is valid for the whole term (§5.2).",
                )
        if not _may_hold(saves[-1].detail.raft_state, candidate):
            return Finding(
                f"{facts} The state that the peer saved last, at {at(saves[-1].at_ns)}, does not contain that vote: "
                f"none of its values is {earlier.candidate}.",
                "its vote did not survive the crash. Save current_term and voted_for before answering, and restore "
                "both in __init__ (Figure 2, persistent state).",
            )
        return Finding(
            f"{facts} The state that the peer saved last, at {at(saves[-1].at_ns)}, may contain that vote.",
            "voted_for is not restored in __init__, is ignored later, or is cleared without a new term (for example "
            "when the peer hears from the leader of the same term). A vote is valid for the whole term (§5.2).",
        )
    return None


def _may_hold(raft_state: bytes, number: int) -> bool:
    """Whether the saved state may contain that number: not if it is a sequence of values and none of them equals it."""
    length_bytes = len(_one_value(0)) - len(labgob.encode(0))
    values, position = [], 0
    while position < len(raft_state):
        begin = position + length_bytes
        position = begin + int.from_bytes(raft_state[position:begin], "big")
        values.append(raft_state[begin:position])
    if position != len(raft_state):
        return True  # not an Encoder's
    single = [value for value in values if _is_single(value)]
    # The log may be one compound value. Another compound value may contain the vote.
    if len(single) < 2 or len(values) > len(single) + 1:
        return True
    return labgob.encode(number) in single or labgob.encode(str(number)) in single


def _one_value(value: int) -> bytes:
    encoder = labgob.Encoder()
    encoder.encode(value)
    return encoder.bytes()


def _is_single(value: bytes) -> bool:
    try:
        return not isinstance(labgob.decode(value, Any), (list, tuple, dict))
    except labgob.DecodeError:
        return False
