"""Why votes are requested, granted or counted incorrectly (§5.2)."""

from __future__ import annotations

from raftlab.check.diagnosis.registry import Finding, diagnosis
from raftlab.check.diagnosis.trace_analysis import MS, Campaign, CastVote, Rpc, TraceAnalysis, at, peers, times
from raftlab.check.failure import Failure
from raftlab.trace.events import STARTED
from raftlab.trace.rpcs import VOTE

# A peer may begin to lead this long after the answer that elects it: some poll for answers.
_SOON_NS = 50 * MS


def _reported_peer(analysis: TraceAnalysis, rule: str) -> str | None:
    error = analysis.error
    return error.peer if isinstance(error, Failure) and error.rule == rule else None


# ---- requesting ---------------------------------------------------------------------------------------------


@diagnosis(190, alone=True)
def all_requests_to_one_peer(analysis: TraceAnalysis) -> Finding | None:
    """A candidate sends as many RequestVotes as there are other peers, but all of them to the same peer."""
    campaigns = [campaign for campaign in analysis.campaigns if campaign.at_ns > analysis.leaderless_ns]
    found: list[tuple[Campaign, list[Rpc]]] = []
    for campaign in campaigns:
        at_once = [rpc for rpc in campaign.requests if rpc.sent_ns <= campaign.at_ns + MS]
        if len({rpc.target for rpc in campaign.requests}) == 1 and len(at_once) >= max(2, analysis.servers - 1):
            found.append((campaign, at_once))
    if not found or len(found) < len(campaigns):
        return None
    campaign, at_once = found[-1]
    target = at_once[0].target
    return Finding(
        f"At {at(campaign.at_ns)} peer {campaign.peer} sent {len(at_once)} RequestVotes of term {campaign.term}, all "
        f"of them to peer {target}{' itself' if target == campaign.peer else ''}.",
        "a function defined in a loop (a lambda, or a thread's target) reads the loop variable only when it runs, and "
        "by then the variable has its last value. Pass the value when the function is created: args=(peer,), or "
        "lambda peer=peer: ... .",
    )


# ---- granting -----------------------------------------------------------------------------------------------


@diagnosis(150, rules=("one-vote",))
def vote_for_peer_0_forgotten(analysis: TraceAnalysis) -> Finding | None:
    """Two votes, the first of them for peer 0. If votes for other peers are remembered, the 0 is the problem."""
    voter = _reported_peer(analysis, "one-vote")
    own = [vote for vote in analysis.votes if vote.voter == voter]
    twice = [
        (first, second)
        for first in own
        for second in own
        if first.term == second.term and first.candidate != second.candidate and first.at_ns <= second.at_ns
    ]
    if not twice:
        return None
    first, second = twice[-1]
    if first.candidate != "0" or analysis.restarts_between(first.voter, first.at_ns, second.at_ns):
        return None
    facts = f"Peer {first.voter}'s first vote in term {first.term} was for peer 0, but it voted again in that term."
    zero = (
        "0 is the number of a peer, and Python treats it as false: write `voted_for is None`, not `not voted_for`, and "
        'do not use the number of a peer for "no vote" (§5.2).'
    )
    if first.voter == first.candidate:
        likely = "the candidate does not set voted_for to its own number; or it does, but 0 is treated as no vote."
        return Finding(facts, f"{likely} {zero}")
    refusal = _refusal_after_another_vote(analysis)
    if refusal is None:
        return Finding(
            facts,
            (
                "voted_for is not checked before a vote is granted; or it is checked, but 0 is treated as no vote. "
                f"{zero}"
            ),
        )
    before, rpc = refusal
    return Finding(
        f"{facts} Votes for other peers are remembered: peer {before.voter} had voted for peer {before.candidate} in "
        f"term {before.term}, and denied its vote to peer {rpc.source} at {at(rpc.answered_ns or 0)}.",
        f"0 is treated as no vote. {zero}",
    )


def _refusal_after_another_vote(analysis: TraceAnalysis) -> tuple[CastVote, Rpc] | None:
    """A denied vote that only an earlier vote for a peer other than 0 explains: that vote, and the request.

    A candidate's vote for itself is not an example: it may deny others because it is a candidate.
    """
    for campaign in analysis.all_campaigns:
        # While all logs are empty, they are not the reason.
        if any(e.detail.is_leader and e.at_ns < campaign.at_ns for e in analysis.other.get(STARTED, ())):
            break
        for rpc in campaign.requests:
            answer = rpc.answered
            if answer is None or answer.vote_granted or answer.term != campaign.term or rpc.target == rpc.source:
                continue
            votes = [
                vote
                for vote in analysis.votes
                if (vote.voter, vote.term) == (rpc.target, campaign.term) and vote.at_ns < (rpc.answered_ns or 0)
            ]
            # With two votes, it is unknown which one was remembered.
            if len({vote.candidate for vote in votes}) == 1:
                vote = votes[0]
                if vote.candidate not in ("0", rpc.source, vote.voter):
                    return vote, rpc
    return None


# ---- counting -----------------------------------------------------------------------------------------------


@diagnosis(170, rules=("earned-leadership",), alone=True)
def denials_counted_as_votes(analysis: TraceAnalysis) -> Finding | None:
    """Only with the denials are the answers a majority, and the last of them has just arrived."""
    found = _unearned(analysis)
    if found is None:
        return None
    leader, began_ns, campaign = found
    if campaign is None:
        return None
    grants = campaign.granted_by()
    refused = {
        rpc.target: rpc.replied_ns
        for rpc in campaign.requests
        if rpc.reply is not None and not rpc.reply.vote_granted and rpc.reply.term == campaign.term
        if rpc.replied_ns is not None and rpc.target not in grants and rpc.target != leader
    }
    answers = sorted([*grants.values(), *refused.values()])
    needed = analysis.quorum - 1
    if not len(grants) < needed <= len(answers) or began_ns - answers[needed - 1] > _SOON_NS:
        return None
    refusal = max(refused, key=lambda peer: refused[peer])
    return Finding(
        f"Peer {leader} requested votes in term {campaign.term}, and {peers(refused)} denied them. The denial of peer "
        f"{refusal} arrived at {at(refused[refusal])}; at {at(began_ns)} peer {leader} began to lead.",
        "all answers are counted. Count only those with vote_granted (§5.2).",
    )


@diagnosis(160, rules=("earned-leadership",), alone=True)
def one_vote_counted_twice(analysis: TraceAnalysis) -> Finding | None:
    """A peer that was asked more than once granted its vote each time, and only all these answers are enough."""
    found = _unearned(analysis)
    if found is None:
        return None
    leader, began_ns, campaign = found
    if campaign is None:
        return None
    grants = sorted(
        (rpc.replied_ns, rpc.target)
        for rpc in campaign.requests
        if rpc.reply is not None and rpc.reply.vote_granted and rpc.target != leader
        if rpc.replied_ns is not None and rpc.replied_ns <= began_ns
    )
    needed = analysis.quorum - 1
    voters = [voter for _, voter in grants]
    if not len(set(voters)) < needed <= len(grants) or began_ns - grants[needed - 1][0] > _SOON_NS:
        return None
    again = max(voters, key=voters.count)
    last_ns = max(at_ns for at_ns, voter in grants if voter == again)
    return Finding(
        f"Peer {leader} asked peer {again} for its vote in term {campaign.term} more than once, and received it "
        f"{times(voters.count(again))}, last at {at(last_ns)}. At {at(began_ns)} peer {leader} began to lead.",
        "every answer counts as a vote. Keep the voters in a set, and count its members (§5.2).",
    )


@diagnosis(180, rules=("earned-leadership",))
def earlier_votes_counted(analysis: TraceAnalysis) -> Finding | None:
    """Votes of an earlier term make up for the missing ones of this term."""
    found = _unearned(analysis)
    if found is None:
        return None
    leader, began_ns, campaign = found
    term = _last_sent(analysis, leader).args.term
    now = set(campaign.granted_by()) if campaign is not None else set()
    earlier: dict[str, Rpc] = {}
    for of_term in (c for c in analysis.all_campaigns if c.peer == leader and c.term < term):
        for rpc in of_term.requests:
            granted = rpc.reply is not None and rpc.reply.vote_granted and rpc.replied_ns is not None
            if (
                granted
                and not analysis.restarts_between(leader, rpc.replied_ns or 0, began_ns)
                and rpc.target != leader
            ):
                earlier[rpc.target] = rpc
    missing = sorted(set(earlier) - now)
    if len(now) + len(missing) + 1 < analysis.quorum:
        return None
    in_this_term = f"only {peers(now)}" if now else "no other peer"
    given = ", ".join(
        f"peer {peer} in term {earlier[peer].args.term} (its answer arrived at {at(earlier[peer].replied_ns or 0)})"
        for peer in missing
    )
    facts = f"In term {term} {in_this_term} voted for peer {leader}. In earlier terms other peers did: {given}."
    late = [peer for peer in missing if campaign is not None and (earlier[peer].replied_ns or 0) >= campaign.at_ns]
    if late and len(now) + len(late) + 1 >= analysis.quorum:
        return Finding(
            facts,
            "the candidate counts a reply to a request of an earlier term. When a reply arrives, compare the term of "
            "its request with current_term, and ignore the reply if they differ (§5.2).",
        )
    return Finding(
        facts,
        "the votes of an earlier campaign are still counted in the next one. Create a new, empty set of votes for "
        "every campaign; a default argument (votes={}) is created only once, for all calls (§5.2).",
    )


def _unearned(analysis: TraceAnalysis) -> tuple[str, int, Campaign | None] | None:
    """The leader without a majority, since when it leads, and its campaign if there are messages of it.

    Only if it began that term itself: otherwise it may have continued to lead after it learned of the term.
    """
    leader = _reported_peer(analysis, "earned-leadership")
    if leader is None:
        return None
    last = _last_sent(analysis, leader)
    term, began_ns = last.args.term, last.sent_ns
    campaign = next((c for c in analysis.all_campaigns if (c.peer, c.term) == (leader, term)), None)
    if campaign is None:
        for rpc in analysis.all_rpcs:
            if rpc.target == leader and (rpc.delivered_ns or began_ns) < began_ns and rpc.args.term >= term:
                return None
            heard = rpc.reply if rpc.source == leader and (rpc.replied_ns or began_ns) < began_ns else None
            if heard is not None and heard.term >= term:
                return None
    return leader, began_ns, campaign


def _last_sent(analysis: TraceAnalysis, leader: str) -> Rpc:
    """Its last message as leader: the run ends there."""
    return next(rpc for rpc in reversed(analysis.all_rpcs) if rpc.source == leader and rpc.method != VOTE)
