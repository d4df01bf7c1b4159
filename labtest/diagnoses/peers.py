"""What goes wrong inside one peer, as far as it shows outside: a lock kept, state lost, an index gone."""

from __future__ import annotations

from collections.abc import Iterator
from typing import NamedTuple

from labsim import Deadlock, Event, TaskFailed, WaitKind
from labtest.checks.reading import APPEND, INSTALL, VOTE
from labtest.diagnoses.diagnosis import Finding
from labtest.diagnoses.story import MS, Rpc, S, Story, at, lasting
from labtest.events import ANSWER, BOOT, CRASH, DELIVER, PERSIST, RESTART, RESTORE, SAVING
from labtest.failure import Failure

_LONGEST_CALL_NS = 7_200 * MS  # that gets no answer; the network gives up after 7 s
_SLOW_NS = 300 * MS  # for a handler, which has nothing to wait for


def index_error_after_snapshot(story: Story) -> Finding | None:
    error = story.error
    if not isinstance(error, TaskFailed) or not isinstance(error.__cause__, (IndexError, KeyError)):
        return None
    peer = error.node
    if peer is None:
        return None
    since = _has_snapshot(story, peer)
    if since is None:
        return None
    when_ns, how = since
    return Finding(
        f"Peer {peer} has kept a snapshot instead of the beginning of its log since {at(when_ns)} ({how}).",
        "the log no longer begins at index 1, so an index of the paper is not a place in the list any more: subtract "
        "the snapshot's last_included_index everywhere, and do not look at entries it has replaced (§7).",
    )


def _has_snapshot(story: Story, peer: str) -> tuple[int, str] | None:
    """Since when that peer has had its first snapshot, and from where."""
    found: list[tuple[int, str]] = []
    for event in story.other.get(PERSIST, ()):
        if event.node == peer and len(event.detail.snapshot):
            found.append((event.at_ns, "saved by its persister"))
            break
    found += [(e.at_ns, "read from disk") for e in story.other.get(RESTORE, ()) if e.node == peer and e.detail][:1]
    found += [
        (rpc.delivered_ns, f"sent by peer {rpc.source}, InstallSnapshot")
        for rpc in story.all_rpcs
        if rpc.method == INSTALL and rpc.target == peer and rpc.delivered_ns is not None
    ][:1]
    # snapshot() may have failed before it could save anything: an exception out of the service's own task.
    if not found and story.error.__cause__ is not None and _was_in_snapshot(story.error.__cause__):
        found.append((story.end_ns, "in snapshot()"))
    return min(found) if found else None


def _was_in_snapshot(error: BaseException) -> bool:
    traceback = error.__traceback__
    while traceback is not None:
        if traceback.tb_frame.f_code.co_name == "snapshot":
            return True
        traceback = traceback.tb_next
    return False


def lock_held_while_waiting(story: Story) -> Finding | None:
    """Requests go in and nothing comes out."""
    stalls = [(*stalled, peer) for peer in sorted(story.up) if (stalled := _stalled(story, peer)) is not None]
    if not stalls:
        return None
    since_ns, until_ns, requests, peer = max(stalls, key=lambda stall: stall[1] - stall[0])
    over = until_ns >= story.end_ns
    facts = (
        f"Peer {peer} answered nothing from {at(since_ns)} on, for {lasting(until_ns - since_ns)}"
        f"{' until the end' if over else ''}, though {len(requests)} "
        f"request{'s' if len(requests) > 1 else ''} had been delivered to it."
    )
    waits = _waits(story.error, peer)
    if WaitKind.ROOM in waits:
        return Finding(
            f"{facts} One of its threads waits for room in apply_ch.",
            "it holds its lock while it puts a message on apply_ch. The service may itself be waiting for that "
            "lock (in snapshot(), say); release it before the put().",
        )
    if WaitKind.OWN_LOCK in waits:
        return Finding(
            f"{facts} One of its threads waits for a lock that it holds itself.",
            "a method that takes the lock is called by one that has it already.",
        )
    call = _call_under_way(story, peer, since_ns, until_ns)
    if call is not None:
        gone = "" if call.target in story.connected else ", which is cut off or down"
        return Finding(
            f"{facts} All that time it waited for the answer to its {call.name} of {at(call.sent_ns)} to peer "
            f"{call.target}{gone}.",
            "it holds its lock during a call. Release it before call(), and take it again, and look at "
            "everything anew, after the reply.",
        )
    known, applied = _known_committed(story, peer), story.applied.get(peer, 0)
    if over and known > applied:
        return Finding(
            f"{facts} It knew that {known} was committed, but its service is at {applied}.",
            "one of its threads keeps the lock while it waits, for room in apply_ch perhaps. The service may "
            "itself be waiting for that lock (in snapshot(), say); release it before the put().",
        )
    return Finding(facts, "one of its threads keeps the lock, and waits for something else meanwhile.")


def _known_committed(story: Story, peer: str) -> int:
    """The highest commit index that the peer has told, or was told with entries up to there, since the calm."""
    known = 0
    for rpc in story.led:
        reading = rpc.reading
        if rpc.method != APPEND or reading is None:
            continue
        if rpc.source == peer:
            known = max(known, reading.args.leader_commit)
        elif rpc.target == peer and rpc.answered is not None and rpc.answered.success:
            known = max(known, min(reading.args.leader_commit, reading.last_index))
    return known


def _stalled(story: Story, peer: str) -> tuple[int, int, list[Rpc]] | None:
    """The longest time in which the peer had requests on its desk and answered none: (from, until, requests)."""
    incarnation_ns = max(
        (e.at_ns for kind in (BOOT, RESTART) for e in story.other.get(kind, ()) if e.node == peer), default=0
    )
    since_ns = max(incarnation_ns, story.end_ns - 20 * S)
    incoming = [rpc for rpc in story.all_rpcs if rpc.target == peer and (rpc.delivered_ns or -1) >= since_ns]
    waits = [(rpc.delivered_ns or 0, story.end_ns if rpc.answered_ns is None else rpc.answered_ns) for rpc in incoming]
    waits = [(start, end) for start, end in waits if end - start >= _SLOW_NS]
    if not waits:
        return None
    start, end = max(waits, key=lambda wait: (wait[1] - wait[0], -wait[0]))
    during = [rpc for rpc in incoming if start <= (rpc.delivered_ns or 0) < end]
    answered = [rpc for rpc in during if rpc.answered_ns is not None and start < rpc.answered_ns < end]
    # Others were answered meanwhile: then it is that one handler that waits, not the lock that is taken.
    return None if answered else (start, end, during)


def _call_under_way(story: Story, peer: str, since_ns: int, until_ns: int) -> Rpc | None:
    """The last call that the peer made before it fell silent or meanwhile, if it can have waited for it to the end."""
    for rpc in reversed(story.all_rpcs):
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


def _waits(error: BaseException, peer: str) -> set[WaitKind]:
    """What the stuck tasks of that peer wait for."""
    if isinstance(error, Failure):
        waits = error.stuck
    elif isinstance(error, Deadlock):
        waits = error.waits
    else:
        return set()
    return {wait.kind for wait in waits if wait.node == peer}


def went_on_during_a_save(story: Story) -> Finding | None:
    """On slow disks: in the middle of a save another begins, or a request comes in and is answered."""
    saving: dict[str, int] = {}  # by peer: when the save began that is not over yet
    arrived: dict[int, int] = {}  # during such a save, by identity of the message
    found = ""
    for event in story.events:
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


def forgot_over_a_restart(story: Story) -> Finding | None:
    """The term a peer has after a restart is below one it had shown before the crash."""
    for restart in story.other.get(RESTART, ()):
        before = _shown_before(story, restart)
        after = _shown_after(story, restart)
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


def _shown_before(story: Story, restart: Event) -> tuple[int, int] | None:
    """The last term the peer showed before it was started again, and when."""
    peer, until_ns = restart.node, restart.at_ns
    shown: list[tuple[int, int]] = []
    for rpc in reversed(story.all_rpcs):
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


def _shown_after(story: Story, restart: Event) -> _Kept | None:
    """What the first thing that the peer said afterwards tells about the term it had kept."""
    peer, since_ns = restart.node, restart.at_ns
    for rpc in story.all_rpcs:
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


def voted_again_after_restart(story: Story) -> Finding | None:
    """One peer, one term, two votes, and a crash in between."""
    votes: dict[tuple[str, int], tuple[int, str]] = {}
    restarts = story.other.get(RESTART, ())
    for when_ns, voter, term, candidate in sorted(_votes(story)):
        earlier = votes.setdefault((voter, term), (when_ns, candidate))
        between = [e.at_ns for e in restarts if e.node == voter and earlier[0] <= e.at_ns <= when_ns]
        if earlier[1] != candidate and between:
            return Finding(
                f"Peer {voter} voted for peer {earlier[1]} in term {term} at {at(earlier[0])}, crashed, was started "
                f"again at {at(between[-1])}, and voted for peer {candidate} in the same term at {at(when_ns)}.",
                "its vote did not survive the crash. Save current_term and voted_for before answering, and read both "
                "back in __init__ (Figure 2, persistent state).",
            )
    return None


def _votes(story: Story) -> Iterator[tuple[int, str, int, str]]:
    """Every vote cast: (when, by whom, term, for whom). To campaign is to vote for oneself."""
    for campaign in story.all_campaigns:
        yield campaign.at_ns, campaign.peer, campaign.term, campaign.peer
        for rpc in campaign.requests:
            answer = rpc.answered
            if answer is not None and answer.vote_granted and rpc.answered_ns is not None:
                yield rpc.answered_ns, rpc.target, campaign.term, campaign.peer
