"""Why a leader is deposed, or does not know that it leads (§5.1, §5.2)."""

from __future__ import annotations

import itertools
from collections import Counter
from statistics import median
from typing import NamedTuple

from labsim import Event
from raftlab.check.diagnosis.registry import Finding, diagnosis
from raftlab.check.diagnosis.threads import (
    IN_SECONDS,
    asleep,
    describe_threads,
    own_threads,
    sleeper_of,
    whole_ns,
)
from raftlab.check.diagnosis.trace_analysis import MS, Campaign, Rpc, S, TraceAnalysis, at, duration, peers, times
from raftlab.trace.rpcs import VOTE

# A peer that a leader asks to campaign does so at once. The leader asks once or twice.
_INVITED_NS = S // 5
_INVITED_MAX = 2


@diagnosis(140)
def leader_reports_false(analysis: TraceAnalysis) -> Finding | None:
    """The others follow a leader whose get_state() returns False."""
    if not analysis.led:
        return None
    leader = analysis.led[-1].source
    state = analysis.snapshot.states.get(leader)
    sent = [rpc for rpc in analysis.led if rpc.source == leader and rpc.args is not None]
    term = sent[-1].args.term if sent else 0
    sent = [rpc for rpc in sent if rpc.args.term == term]
    if state is None or state.is_leader or state.term != term or state.asked_ns < sent[0].sent_ns + S // 5:
        return None
    # It had sent AppendEntries for long when get_state() was called, still does, and a majority follows: so it leads.
    until_ns = sent[-1].sent_ns
    followers = {rpc.target for rpc in sent if rpc.target != leader and _accepted(rpc, analysis.end_ns)}
    short = until_ns - sent[0].sent_ns < S // 2 or until_ns < state.asked_ns - S // 5
    if short or len(followers) + 1 < analysis.quorum or analysis.term_at(leader, analysis.end_ns) > term:
        return None
    return Finding(
        f"Peer {leader} sent AppendEntries of term {term} from {at(sent[0].sent_ns)} to {at(until_ns)}, and "
        f"{peers(followers)} followed it. But get_state() on that peer, called at {at(state.asked_ns)}, returned "
        "is_leader=False.",
        "the election works, and get_state() is wrong. Perhaps it compares the role with a value that is never equal, "
        "such as a string with an enum.",
    )


@diagnosis(130, alone=True)
def leader_calls_itself(analysis: TraceAnalysis) -> Finding | None:
    """A leader sends AppendEntries to itself and becomes its own follower."""
    found = []
    for rpc in analysis.led:
        if rpc.source != rpc.target or rpc.answered_ns is None or not _accepted(rpc, analysis.end_ns):
            continue
        leader, term, heard_ns = rpc.source, rpc.args.term, rpc.answered_ns
        ended_ns = min(
            (when for when, known, _, _ in analysis.learned_terms[leader] if known > term), default=analysis.end_ns
        )
        spoke = any(
            r.source == leader and r.sent_ns > heard_ns and r.args and r.args.term == term for r in analysis.led
        )
        if not spoke and ended_ns - heard_ns > S // 5:
            found.append((rpc, ended_ns - heard_ns))
    # A single leadership may have ended just then by chance.
    if len(found) < 2 and not any(silent_ns > S for _, silent_ns in found):
        return None
    rpc, _ = found[-1]
    many = f" This happened to {len(found)} leaders." if len(found) > 1 else ""
    return Finding(
        f"Peer {rpc.source}, leader of term {rpc.args.term}, sent itself an AppendEntries at {at(rpc.sent_ns)}, "
        f"answered it, and has sent nothing as leader of that term since then.{many}",
        "a leader that receives AppendEntries from itself becomes a follower. Do not send to peers[me].",
    )


def _accepted(rpc: Rpc, before_ns: int) -> bool:
    """Whether its receiver had accepted the sender as leader of its own term by then."""
    if rpc.answered_ns is None or rpc.answered_ns >= before_ns or rpc.args is None:
        return False
    answer = rpc.answered
    return answer is not None and answer.term == rpc.args.term


# ---- followers that campaign while their leader leads -------------------------------------------------------


class _Deposed(NamedTuple):
    """A follower that campaigned while its leader still led."""

    campaign: Campaign
    leader: str
    term: int
    voted_ns: int  # when it voted for that leader, if that was after the last fault
    heard: list[Rpc]  # what it received from that leader, in order of delivery
    invitations: list[Event]  # RPCs not from the paper that the leader sent it just before: perhaps to campaign

    @property
    def since_ns(self) -> int:
        """When it should have reset its timer last."""
        return self.heard[-1].delivered_ns or 0 if self.heard else self.voted_ns

    @property
    def gaps(self) -> list[int]:
        """The times between arrivals."""
        arrivals = [rpc.delivered_ns or 0 for rpc in self.heard]
        return [later - earlier for earlier, later in itertools.pairwise(arrivals)]

    @property
    def in_spite_of_heartbeats(self) -> bool:
        # It has waited longer than this before, so its timeout is not too short.
        gaps, silent_ns = self.gaps, self.campaign.at_ns - self.since_ns
        return len(gaps) >= 2 and silent_ns <= max(gaps) and 2 * silent_ns <= 3 * median(gaps)


def _depositions(analysis: TraceAnalysis) -> list[_Deposed]:
    found = []
    for campaign in analysis.campaigns:
        follower, began_ns = campaign.peer, campaign.at_ns
        heard = [rpc for rpc in analysis.led if rpc.target == follower and _accepted(rpc, began_ns)]
        votes = [v for v in analysis.votes if v.voter == follower and analysis.since_fault_ns <= v.at_ns < began_ns]
        term = max([rpc.args.term for rpc in heard] + [vote.term for vote in votes], default=0)
        heard = sorted((r for r in heard if r.args.term == term), key=lambda rpc: rpc.delivered_ns or 0)
        leaders = {rpc.source for rpc in heard} or {vote.candidate for vote in votes if vote.term == term}
        leader = min(leaders, default=follower)
        if leader == follower or not _led(analysis, leader, term, began_ns):
            continue
        # Otherwise there was a later term already.
        if term < analysis.term_at(follower, began_ns - 1) or analysis.term_at(leader, began_ns - 1) > term:
            continue
        voted_ns = max((vote.at_ns for vote in votes if vote.term == term), default=0)
        found.append(_Deposed(campaign, leader, term, voted_ns, heard, _invitations(analysis, leader, campaign, term)))
    return found


def _invitations(analysis: TraceAnalysis, leader: str, campaign: Campaign, term: int) -> list[Event]:
    """RPCs not from the paper that a leader sent to a peer just before that peer campaigned. One that it sends often
    has another purpose."""
    spoke_ns = [rpc.sent_ns for rpc in analysis.led if rpc.source == leader and rpc.args and rpc.args.term == term]
    calls = [
        call
        for call in analysis.own_calls
        if call.node == leader
        and call.detail.target == campaign.peer
        and min(spoke_ns, default=campaign.at_ns) <= call.at_ns < campaign.at_ns
    ]
    often = Counter(call.detail.service_method for call in calls)
    return [
        call
        for call in calls
        if call.at_ns > campaign.at_ns - _INVITED_NS and often[call.detail.service_method] <= _INVITED_MAX
    ]


def _led(analysis: TraceAnalysis, peer: str, term: int, before_ns: int) -> bool:
    """Whether that peer had sent something as leader of that term by then."""
    return any(
        rpc.source == peer and rpc.sent_ns < before_ns and rpc.args is not None and rpc.args.term == term
        for rpc in analysis.led
    )


@diagnosis(250)
def heartbeats_too_slow(analysis: TraceAnalysis) -> Finding | None:
    found = []
    depositions = [deposed for deposed in _depositions(analysis) if not deposed.invitations]
    if any(deposed.in_spite_of_heartbeats for deposed in depositions):
        return None
    for deposed in depositions:
        follower, began_ns = deposed.campaign.peer, deposed.campaign.at_ns
        to_it = analysis.calls_between(deposed.leader, follower)
        sent = [rpc.sent_ns for rpc in to_it if rpc.sent_ns <= began_ns and rpc.args and rpc.args.term == deposed.term]
        # Nothing is in flight to the follower: neither loss nor delay is the cause.
        last = [rpc.sent_ns for rpc in deposed.heard[-1:]]
        if sent[-1:] == last and began_ns - (last[0] if last else deposed.since_ns) >= 20 * MS:
            found.append((deposed, began_ns - deposed.since_ns))
    if not found:
        return None
    deposed, timeout_ns = found[-1]
    waiting = _waiting_for(analysis, deposed)
    many = f" This is one of {len(found)} such elections since {at(analysis.since_fault_ns)}." if len(found) > 1 else ""
    follower = deposed.campaign.peer
    if deposed.heard:
        silence, later = f"nothing after {at(deposed.heard[-1].sent_ns)}", "later"
    else:
        silence, later = "nothing at all", f"after its vote for peer {deposed.leader}"
    facts = (
        f"Peer {deposed.leader} led term {deposed.term} and sent peer {follower} {silence}. At "
        f"{at(deposed.campaign.at_ns)}, {duration(timeout_ns)} {later}, peer {follower}'s election timer expired.{many}"
    )
    if waiting is not None:
        facts += (
            f" Peer {deposed.leader} was then waiting for peer {waiting.target}'s answer to an {waiting.name} "
            f"sent at {at(waiting.sent_ns)}."
        )
        return Finding(
            facts,
            "one thread sends to all followers and waits for a peer that does not answer. Make each call in a separate "
            "thread (§5.3, §5.5).",
        )
    if _speak_once(analysis, [deposed for deposed, _ in found]):
        leader = _last_leader(analysis)
        return Finding(
            f"{facts} No leader has sent any peer a second AppendEntries. The last leader was peer {leader[0]}. "
            f"{describe_threads(own_threads(analysis, leader))}",
            "heartbeats stop after the first round: the thread that sends them has ended, or fails each time and the "
            "exception is swallowed (except Exception: pass).",
        )
    sleeper = sleeper_of(analysis, [deposed.leader])
    if sleeper is not None:
        return Finding(
            f"{facts} {asleep(sleeper)}", f"heartbeats come too rarely. If that thread sends them, {IN_SECONDS}"
        )
    return Finding(
        facts,
        "heartbeats come too rarely for these election timeouts, or their sender waits for something. Send several "
        "heartbeats within the shortest timeout (§5.2, §5.6).",
    )


def _speak_once(analysis: TraceAnalysis, depositions: list[_Deposed]) -> bool:
    """Whether leaders send to each peer only once, though no thread of the last leader waits that long."""
    sent = Counter((rpc.source, rpc.target, rpc.args.term) for rpc in analysis.led if rpc.args is not None)
    threads = own_threads(analysis, _last_leader(analysis))
    shortest_ns = min(deposed.campaign.at_ns - deposed.since_ns for deposed in depositions)
    return (
        len({deposed.term for deposed in depositions}) > 1
        and max(sent.values()) == 1
        and bool(threads)
        and all(whole_ns(wait) < shortest_ns for wait in threads)
    )


def _last_leader(analysis: TraceAnalysis) -> list[str]:
    return [rpc.source for rpc in analysis.led[-1:]]


def _waiting_for(analysis: TraceAnalysis, deposed: _Deposed) -> Rpc | None:
    """The leader's first call to another peer after its last one to that follower, if none of them was answered."""
    since_ns = deposed.heard[-1].sent_ns if deposed.heard else deposed.voted_ns
    calls = [
        rpc for rpc in analysis.led if rpc.source == deposed.leader and since_ns < rpc.sent_ns < deposed.campaign.at_ns
    ]
    if any(rpc.replied_ns is not None and rpc.replied_ns < deposed.campaign.at_ns for rpc in calls):
        return None
    return calls[0] if calls else None


@diagnosis(240)
def heartbeats_do_not_reset_the_timer(analysis: TraceAnalysis) -> Finding | None:
    found = [
        deposed for deposed in _depositions(analysis) if deposed.in_spite_of_heartbeats and not deposed.invitations
    ]
    needed = 1 if analysis.end_ns - analysis.since_fault_ns < 5 * S else 2
    if len(found) < needed:
        return None
    deposed = found[-1]
    silent_ns = deposed.campaign.at_ns - deposed.since_ns
    many = f" This happened {times(len(found))} since {at(analysis.since_fault_ns)}." if len(found) > 1 else ""
    return Finding(
        f"Peer {deposed.campaign.peer} campaigned at {at(deposed.campaign.at_ns)}, {duration(silent_ns)} after an "
        f"AppendEntries from its leader, peer {deposed.leader}, had arrived. It had received {len(deposed.heard)} "
        f"AppendEntries in term {deposed.term}, at most {duration(max(deposed.gaps))} apart.{many}",
        "a valid AppendEntries, with or without entries, does not reset the election timer (§5.2).",
    )


@diagnosis(230)
def leadership_transferred(analysis: TraceAnalysis) -> Finding | None:
    """Leaders ask others to campaign, by an RPC that is not from the paper."""
    found = [deposed for deposed in _depositions(analysis) if deposed.invitations]
    if len(found) < 2:
        return None
    deposed = found[-1]
    call, campaign = deposed.invitations[-1], deposed.campaign
    method = call.detail.service_method
    return Finding(
        f"Peer {deposed.leader} led term {deposed.term}, and at {at(call.at_ns)} it sent peer {campaign.peer} "
        f"{method}, which is not an RPC from the paper. {duration(campaign.at_ns - call.at_ns).capitalize()} later "
        f"peer {campaign.peer} campaigned. This happened {times(len(found))} since {at(analysis.since_fault_ns)}.",
        f"if {method} transfers leadership, leaders do so too often. If nothing fails, the leader must stay the same.",
    )


@diagnosis(200, rules=("higher-term-wins", "speaks-in-its-term"))
def no_step_down(analysis: TraceAnalysis) -> Finding | None:
    """A peer still sends in a term although it has learned of a later one."""
    found = []
    for rpc in analysis.rpcs:
        args = rpc.args
        if args is None:
            continue
        known = [
            (when_ns, term, teacher, how)
            for when_ns, term, teacher, how in analysis.learned_terms.get(rpc.source, ())
            # A request has no effect before its handler runs.
            if term > args.term
            and (how != "request" or (teacher.answered_ns or rpc.sent_ns) < rpc.sent_ns)
            # §6: a peer that recently heard from its leader may disregard a candidate, including its term.
            and not (how == "request" and teacher.method == VOTE and _disregarded(teacher))
        ]
        if known and rpc.sent_ns > known[0][0] + 50 * MS:
            found.append((rpc, known[0]))
    if not found:
        return None
    rpc, (when_ns, term, teacher, how) = found[0]
    if how == "campaign":
        return None
    if how == "reply":
        source = f"from peer {teacher.target}'s reply to its {teacher.name}"
        likely = "the peer ignores a higher term in a reply. Step down on any higher term (§5.1)."
    else:
        source = f"from peer {teacher.source}'s {teacher.name}"
        likely = (
            "the peer does not adopt a higher term in a request. Become a follower of that term, even as leader (§5.1)."
        )
    return Finding(
        f"At {at(when_ns)} peer {rpc.source} learned of term {term} {source}, and {duration(rpc.sent_ns - when_ns)} "
        f"later it still sends {rpc.name} of term {rpc.args.term}.",
        likely,
    )


def _disregarded(request: Rpc) -> bool:
    return request.answered is not None and request.answered.term < request.args.term
