"""What goes wrong inside one peer, as far as it shows outside: a lock held, a thread that waits, state lost."""

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
_SLOW_NS = 300 * MS  # for a handler, which has nothing to wait for
_FOR_EVER = (WaitKind.OWN_LOCK, WaitKind.LOST_LOCK)
# What only another thread of the same peer brings.
_FOR_ANOTHER_THREAD = (WaitKind.ITEM, WaitKind.EVENT, WaitKind.CONDITION, WaitKind.SEMAPHORE)
_FROM_OUTSIDE = ("start", "get_state", "snapshot", *(rpc.method_name for rpc in RPCS.values()))
# What the keeper of a lock waits for, and what is wrong with that.
_KEEPERS = {
    WaitKind.OWN_LOCK: (
        "One of its threads waits for a lock that it holds itself.",
        "a method that takes the lock is called by one that has it already.",
    ),
    WaitKind.LOST_LOCK: (
        "Its threads wait for a lock whose holder has ended and never released it.",
        "a method takes the lock by acquire(), and returns, or raises, on a way without release(); `with self.mu:` "
        "releases it on every way.",
    ),
    WaitKind.SPACE: (
        "The thread that holds its lock waits for room in apply_ch.",
        "it holds its lock while it puts a message on apply_ch. The service may itself be waiting for that lock (in "
        "snapshot(), say); release it before the put().",
    ),
    WaitKind.REPLY: (
        "The thread that holds its lock waits for the reply to a call.",
        "it holds its lock during a call. Release it before call(), and take it again, and look at everything anew, "
        "after the reply.",
    ),
    WaitKind.SLEEP: (
        "The thread that holds its lock sleeps.",
        "it holds its lock while it sleeps; release it before, and look at everything anew afterwards.",
    ),
}
_ANY_KEEPER = ("", "it keeps its lock while it waits for something else; release it before.")


@diagnosis(40, rules=("start-returns-at-once",), any_fields=True, alone=True)
def start_waits_for_the_lock(analysis: TraceAnalysis) -> Finding | None:
    """start() is innocent: somebody keeps the lock, and waits."""
    call_waits = analysis.snapshot.call_waits
    if len(call_waits) < 2 or call_waits[0].kind is not WaitKind.LOCK:
        return None
    call, keeper = call_waits
    _, likely = _KEEPERS.get(keeper.kind, _ANY_KEEPER)
    meanwhile = "slept" if keeper.kind is WaitKind.SLEEP else f"waited for {keeper.kind.value}"
    return Finding(
        f"start() of peer {call.node} had to wait for its lock. {keeper.task} held it, and {meanwhile}{path(keeper)}.",
        likely,
    )


@diagnosis(50, rules=("higher-term-wins",), deadlocks=True, any_fields=True, alone=True)
def lock_held_while_waiting(analysis: TraceAnalysis) -> Finding | None:
    """Requests go in and nothing comes out, and whoever holds the lock was seen to wait."""
    kept = _held_locks(analysis)
    stalls = [
        (*stalled, peer) for peer in sorted(kept) if peer in analysis.up and (stalled := _stalled(analysis, peer))
    ]
    if not stalls:
        return _waits_for_ever(analysis, kept)
    since_ns, until_ns, requests, peer = max(stalls, key=lambda stall: stall[1] - stall[0])
    facts = _silence(analysis, peer, since_ns, until_ns, requests)
    kept_for, call = kept[peer], None
    if kept_for in (WaitKind.NOTHING, WaitKind.REPLY):
        call = _call_under_way(analysis, peer, since_ns, until_ns)
        if call is None and kept_for is WaitKind.NOTHING:
            return None  # all that is known is that some wait for a lock
    seen, likely = _KEEPERS.get(
        WaitKind.REPLY if call is not None else kept_for,
        (f"The thread that holds its lock waits for {kept_for.value}.", _ANY_KEEPER[1]),
    )
    if call is not None:
        gone = "" if call.target in analysis.connected else ", which is cut off or down"
        seen = (
            f"Meanwhile its threads waited for its lock, and one of them for the answer to its {call.name} of "
            f"{at(call.sent_ns)} to peer {call.target}{gone}."
        )
    return Finding(f"{facts} {seen}", likely)


def _waits_for_ever(analysis: TraceAnalysis, kept: Mapping[str, WaitKind]) -> Finding | None:
    """Such a wait has no end, whether or not anybody has asked something of that peer meanwhile."""
    asked = {wait.node for wait in analysis.snapshot.blocked[:1]}
    for peer in sorted(analysis.up & kept.keys(), key=lambda peer: (peer not in asked, peer)):
        if kept[peer] in _FOR_EVER:
            seen, likely = _KEEPERS[kept[peer]]
            return Finding(f"Peer {peer} stands still. {seen}", likely)
    return None


@diagnosis(70, rules=("higher-term-wins",), any_fields=True, alone=True)
def answers_only_after_its_call(analysis: TraceAnalysis) -> Finding | None:
    """It was silent, and then answered all at once: no lock is kept any more, but something held all answers up."""
    for peer in sorted(analysis.up):
        stalled = _stalled(analysis, peer)
        if stalled is None:
            continue
        since_ns, until_ns, requests = stalled
        together = [rpc for rpc in requests if until_ns <= (rpc.answered_ns or 0) <= until_ns + 5 * MS]
        call = _call_under_way(analysis, peer, since_ns, until_ns)
        if until_ns >= analysis.end_ns or len(together) < max(3, len(requests)) or call is None:
            continue
        gone = "" if call.target in analysis.connected else ", which is cut off or down"
        return Finding(
            f"{_silence(analysis, peer, since_ns, until_ns, requests)} Then it answered all of them at once. Its "
            f"{call.name} of {at(call.sent_ns)} to peer {call.target}{gone}, had no answer by then.",
            "it makes a call while it holds its lock, or in the thread that answers requests. A call may take seconds: "
            "release the lock before call(), take it again after the reply, and look at everything anew.",
        )
    return None


@diagnosis(80, alone=True)
def calls_in_the_thread_that_answers(analysis: TraceAnalysis) -> Finding | None:
    """No lock and no queue to blame: it never makes two calls at a time, and answers nothing while it makes one."""
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
    gone = "" if call.target in analysis.connected else ", which is cut off or down"
    return Finding(
        f"Peer {error.peer} has never made two calls at a time. From {at(call.sent_ns)} to {at(over_ns)} it waited for "
        f"peer {call.target}{gone}, to answer its {call.name}. The {oldest.name} of peer {oldest.source}, which came "
        f"in at {at(oldest.delivered_ns)}, had to wait too.",
        "it makes its calls in the thread that answers requests. A call may take seconds, and all others wait so long: "
        "make each call in a thread of its own.",
    )


@diagnosis(60, any_fields=True, alone=True)
def waits_for_room_and_answers_nothing(analysis: TraceAnalysis) -> Finding | None:
    """The same without a lock: one thread does everything, and waits for the service, which may wait for it."""
    kept = _held_locks(analysis)
    for peer in sorted({wait.node for wait in analysis.snapshot.blocked if wait.kind is WaitKind.SPACE and wait.node}):
        stalled = None if peer in kept or peer not in analysis.up else _stalled(analysis, peer)
        if stalled is not None:
            return Finding(
                f"{_silence(analysis, peer, *stalled)} One of its threads waits for room in apply_ch.",
                "the thread that does its work puts messages on apply_ch itself, and the service may be waiting for "
                "that thread (in snapshot(), say). Let a thread of its own feed apply_ch.",
            )
    return None


@diagnosis(100, any_fields=True, alone=True)
def does_nothing_any_more(analysis: TraceAnalysis) -> Finding | None:
    """Neither an answer nor a request for over a second, and no lock and no apply_ch to blame."""
    for peer in sorted(analysis.up & analysis.connected):
        stalled = _stalled(analysis, peer)
        if stalled is None:
            continue
        since_ns, until_ns, requests = stalled
        spoke = any(rpc.source == peer and rpc.sent_ns > since_ns for rpc in analysis.all_rpcs)
        spoke = spoke or any(event.node == peer and event.at_ns > since_ns for event in analysis.own_calls)
        if until_ns >= analysis.end_ns and until_ns - since_ns > S and not spoke:
            threads = own_threads(analysis, [peer])
            facts = f"{_silence(analysis, peer, since_ns, until_ns, requests)} Nor has it sent anything since then."
            asks = next(((wait, method) for wait in threads if (method := _asks_its_own_peer(wait))), None)
            if asks is not None:
                wait, method = asks
                return Finding(
                    f"{facts} {wait.task} {doing(wait)}{path(wait)}.",
                    f"one of its own threads calls {method}(), which waits for the thread that does the work: for "
                    "itself, that is, or for somebody who waits for it. Call what is behind it instead.",
                )
            return Finding(
                f"{facts} {describe_threads(threads)}" if threads else facts,
                "the thread that does its work has ended, or waits: for itself, or for somebody who waits for it.",
            )
    return None


def _asks_its_own_peer(wait: Wait) -> str:
    """The method for callers from outside in which that thread of the peer's own waits for another; "" if in none."""
    if wait.kind not in _FOR_ANOTHER_THREAD:
        return ""
    return next((place.function for place in wait.stack[:-1] if place.function in _FROM_OUTSIDE), "")


@diagnosis(90, any_fields=True, alone=True)
def call_waits_for_a_thread(analysis: TraceAnalysis) -> Finding | None:
    """A call from outside that leaves its work to one of the peer's threads, and waits for that."""
    error = analysis.error
    if not isinstance(error, Failure) or error.rule != CALLS_RETURN.name or not analysis.snapshot.blocked:
        return None
    call = analysis.snapshot.blocked[0]
    threads = own_threads(analysis, [call.node or ""])
    if call.kind not in _FOR_ANOTHER_THREAD or call.where is None or not analysis.snapshot.threads:
        return None
    if call.stack[-1].function == "__init__":
        return Finding(
            f"Peer {call.node} is still being made: it waits for {call.kind.value}{path(call)}.",
            "what goes on for as long as the peer lives is called by __init__ itself; start a thread for it, and "
            "return. Or __init__ waits for a thread that it has not started yet.",
        )
    return Finding(
        f"{call.task} of peer {call.node} waits for {call.kind.value}{path(call)}: for another thread of its peer, "
        f"that is. {describe_threads(threads)}",
        "the thread that should serve it is not among these: it was never started, or has ended; or it is, and waits "
        "for something itself.",
    )


def _silence(analysis: TraceAnalysis, peer: str, since_ns: int, until_ns: int, requests: list[Rpc]) -> str:
    over = " until the end" if until_ns >= analysis.end_ns else ""
    return (
        f"Peer {peer} answered nothing from {at(since_ns)} on, for {duration(until_ns - since_ns)}{over}, though "
        f"{len(requests)} request{'s' if len(requests) > 1 else ''} had been delivered to it."
    )


def _held_locks(analysis: TraceAnalysis) -> Mapping[str, WaitKind]:
    """By peer: what the holder of its lock waits for, while others wait for that lock."""
    if not isinstance(analysis.error, Deadlock):
        return analysis.snapshot.held_locks
    # All wait, and for ever: so nobody waits for a reply, and whoever waits for room keeps the lock.
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
    """The longest time in which the peer had requests on its desk and answered none: (from, until, requests)."""
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
    # Others were answered meanwhile: then it is that one handler that waits, not the lock that is taken.
    return None if answered else (start, end, during)


def _call_under_way(analysis: TraceAnalysis, peer: str, since_ns: int, until_ns: int) -> Rpc | None:
    """The last call that the peer made before it fell silent or meanwhile, if it can have waited for it to the end."""
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
def went_on_during_a_save(analysis: TraceAnalysis) -> Finding | None:
    """On slow disks: in the middle of a save another begins, or a request comes in and is answered."""
    saving: dict[str, int] = {}  # by peer: when the save began that is not over yet
    arrived: dict[int, int] = {}  # during such a save, by identity of the message
    found = ""
    for event in analysis.events:
        kind, peer = event.kind, event.node
        if kind == SAVING:
            if peer in saving:
                first, second = at(saving[peer]), at(event.at_ns)
                found = f"Peer {peer} began a save at {first} and another at {second}, before that had ended."
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
                f"Peer {peer} began a save at {at(saving[peer])}, and before it ended it was asked by peer "
                f"{event.detail.source} ({name}) and answered, at {at(event.at_ns)}."
            )
    if not found:
        return None
    return Finding(
        f"{found} Disks are slow in this test.",
        "it holds no lock there, so one thread sees, or tells, what another has done by half. Take the lock before the "
        "first look at the state, and keep it until the save is done and the reply decided.",
    )


@diagnosis(110, every_rule_but=("higher-term-wins", "starts-in-order", "start-returns-at-once"), alone=True)
def forgot_over_a_restart(analysis: TraceAnalysis) -> Finding | None:
    """The term a peer has after a restart is below one it had shown before the crash."""
    for restart in analysis.other.get(RESTART, ()):
        before = _shown_before(analysis, restart)
        after = _shown_after(analysis, restart)
        if before is None or after is None or after.kept >= before[0]:
            continue
        return Finding(
            f"Peer {restart.node} was in term {before[0]} at {at(before[1])}, crashed, was started again at "
            f"{at(restart.at_ns)}, and {after.words} at {at(after.at_ns)}.",
            "current_term, and voted_for with it, is not saved, or not read back in __init__. Save both before "
            "answering an RPC or sending one (Figure 2, persistent state).",
        )
    return None


class _Kept(NamedTuple):
    kept: int  # the term it had when it came back
    words: str
    at_ns: int


def _shown_before(analysis: TraceAnalysis, restart: Event) -> tuple[int, int] | None:
    """The last term the peer showed before it was started again, and when."""
    peer, until_ns = restart.node, restart.at_ns
    shown: list[tuple[int, int]] = []
    for rpc in reversed(analysis.all_rpcs):
        # An answer belongs to an older send, but not to one that is much older than another.
        if len(shown) >= 3:
            break
        if rpc.source == peer and rpc.sent_ns < until_ns and rpc.args is not None:
            shown.append((rpc.args.term, rpc.sent_ns))
        elif rpc.target == peer and rpc.answered_ns is not None and rpc.answered_ns < until_ns:
            answer = rpc.answered
            if answer is not None:
                shown.append((answer.term, rpc.answered_ns))
    return max(shown, default=None)


def _shown_after(analysis: TraceAnalysis, restart: Event) -> _Kept | None:
    """What the first thing that the peer said afterwards tells about the term it had kept."""
    peer, since_ns = restart.node, restart.at_ns
    for rpc in analysis.all_rpcs:
        if rpc.source == peer and rpc.sent_ns >= since_ns and rpc.args is not None:
            if rpc.method != VOTE:
                return None
            # A candidate's term is one more than the one it had.
            return _Kept(rpc.args.term - 1, f"campaigned in term {rpc.args.term}", rpc.sent_ns)
        if rpc.target == peer and rpc.delivered_ns is not None and rpc.delivered_ns >= since_ns:
            answer = rpc.answered
            if answer is not None and rpc.answered_ns is not None and rpc.args is not None:
                return _Kept(answer.term, f"answered in term {answer.term}", rpc.answered_ns)
    return None


@diagnosis(120, rules=("one-vote", "one-leader"), alone=True)
def voted_again_after_restart(analysis: TraceAnalysis) -> Finding | None:
    """One peer, one term, two votes, and a crash in between. What its disk held says whether the crash is to blame."""
    votes: dict[tuple[str, int], CastVote] = {}
    for vote in analysis.votes:
        earlier = votes.setdefault((vote.voter, vote.term), vote)
        between = analysis.restarts_between(vote.voter, earlier.at_ns, vote.at_ns)
        if earlier.candidate == vote.candidate or not between:
            continue
        facts = (
            f"Peer {vote.voter} voted for peer {earlier.candidate} in term {vote.term} at {at(earlier.at_ns)}, "
            f"crashed, was started again at {at(between[-1])}, and voted for peer {vote.candidate} in the same term at "
            f"{at(vote.at_ns)}."
        )
        saves = [e for e in analysis.other.get(PERSIST, ()) if e.node == vote.voter and e.at_ns <= between[0]]
        if not saves:
            return Finding(
                f"{facts} It had saved nothing.",
                "its vote did not survive the crash. Save current_term and voted_for before answering, and read both "
                "back in __init__ (Figure 2, persistent state).",
            )
        candidate = int(earlier.candidate)
        with_the_vote = [e for e in saves if e.at_ns <= earlier.at_ns][-1:]
        if with_the_vote and _may_hold(with_the_vote[0].detail.raft_state, candidate):
            lost = [e for e in saves if e.at_ns > earlier.at_ns and not _may_hold(e.detail.raft_state, candidate)]
            if lost:
                return Finding(
                    f"{facts} What it saved at {at(with_the_vote[0].at_ns)} may hold the first vote; what it saved at "
                    f"{at(lost[0].at_ns)} does not: none of its values is {candidate}.",
                    "voted_for was cleared in between, without a new term: by a snapshot, or on hearing its leader. "
                    "A vote stands for the whole term (§5.2).",
                )
        if not _may_hold(saves[-1].detail.raft_state, candidate):
            return Finding(
                f"{facts} What it had saved last, at {at(saves[-1].at_ns)}, does not hold that vote: none of its "
                f"values is {earlier.candidate}.",
                "its vote did not survive the crash. Save current_term and voted_for before answering, and read both "
                "back in __init__ (Figure 2, persistent state).",
            )
        return Finding(
            f"{facts} What it had saved last, at {at(saves[-1].at_ns)}, may hold that vote.",
            "voted_for is not read back in __init__, or it is, and then ignored, or cleared without a new term (on "
            "hearing the leader of the same term, say): a vote stands for the whole term (§5.2).",
        )
    return None


def _may_hold(raft_state: bytes, number: int) -> bool:
    """Whether that number may stand in what was saved: no, if it was saved value by value and none of them is it."""
    length_bytes = len(_one_value(0)) - len(labgob.encode(0))
    values, position = [], 0
    while position < len(raft_state):
        begin = position + length_bytes
        position = begin + int.from_bytes(raft_state[position:begin], "big")
        values.append(raft_state[begin:position])
    if position != len(raft_state):
        return True  # not an Encoder's
    single = [value for value in values if _is_single(value)]
    # The log may be one value with many in it. What else has many in it may have the vote.
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
