"""Why votes are asked for, given or counted wrongly, where a rule or a test has shown that they are (§5.2)."""

from __future__ import annotations

from raftlab.check.diagnosis.registry import Finding, diagnosis
from raftlab.check.diagnosis.trace_analysis import MS, Campaign, CastVote, Rpc, TraceAnalysis, at, peers, times
from raftlab.check.failure import Failure
from raftlab.trace.events import STARTED
from raftlab.trace.rpcs import VOTE

# So long after an answer a peer may begin to lead because of it: some look at answers in a loop.
_SOON_NS = 50 * MS


def _reported_peer(analysis: TraceAnalysis, rule: str) -> str | None:
    error = analysis.error
    return error.peer if isinstance(error, Failure) and error.rule == rule else None


# ---- asking -------------------------------------------------------------------------------------------------


@diagnosis(190, alone=True)
def asks_one_for_all(analysis: TraceAnalysis) -> Finding | None:
    """A candidate sends as many RequestVotes as there are others, and all of them to the same one."""
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
        f"of them to peer {target}{' itself' if target == campaign.peer else ''}, and none to anybody else.",
        "a function made in a loop (a lambda, or one that a thread runs) looks at the loop's variable only when it "
        "runs, and by then that has its last value. Give the value to it when it is made: args=(peer,), or "
        "lambda peer=peer: ... .",
    )


# ---- giving -------------------------------------------------------------------------------------------------


@diagnosis(150, rules=("one-vote",))
def zero_taken_for_nobody(analysis: TraceAnalysis) -> Finding | None:
    """Two votes, the first of them for peer 0. Where votes for others are kept, it is the 0 that is not."""
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
    facts = f"Peer {first.voter}'s first vote in term {first.term} was for peer 0, and did not keep it from the second."
    zero = (
        "0 is the number of a peer, and in Python it counts as false: write `voted_for is None`, not `not voted_for`, "
        "and let no number that a peer has stand for nobody (§5.2)."
    )
    if first.voter == first.candidate:
        likely = "voted_for is not set, to its own number, when it campaigns; or it is, and 0 is taken for nobody."
        return Finding(facts, f"{likely} {zero}")
    refusal = _refusal_after_another_vote(analysis)
    if refusal is None:
        return Finding(
            facts, f"voted_for is not looked at before a vote is given; or it is, and 0 is taken for nobody. {zero}"
        )
    before, rpc = refusal
    return Finding(
        f"{facts} Votes for others do: peer {before.voter} had voted for peer {before.candidate} in term "
        f"{before.term}, and refused peer {rpc.source} at {at(rpc.answered_ns or 0)}.",
        f"0 is taken for nobody. {zero}",
    )


def _refusal_after_another_vote(analysis: TraceAnalysis) -> tuple[CastVote, Rpc] | None:
    """A no that only a vote for somebody other than peer 0 explains: that vote, and the request.

    A candidate's vote for itself is no example: it may refuse others for being a candidate.
    """
    for campaign in analysis.all_campaigns:
        # Where logs are all empty, none of them is a reason.
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
            # Of two votes nobody knows which one was kept.
            if len({vote.candidate for vote in votes}) == 1:
                vote = votes[0]
                if vote.candidate not in ("0", rpc.source, vote.voter):
                    return vote, rpc
    return None


# ---- counting -----------------------------------------------------------------------------------------------


@diagnosis(170, rules=("earned-leadership",), alone=True)
def no_counted_as_a_vote(analysis: TraceAnalysis) -> Finding | None:
    """With the refusals, the answers are a majority, and the last of them has just come in."""
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
        f"Peer {leader} asked for votes in term {campaign.term}, and {peers(refused)} refused. The no of peer "
        f"{refusal} came in at {at(refused[refusal])}; at {at(began_ns)} peer {leader} began to lead.",
        "answers are counted, whatever they say. Count those with vote_granted alone (§5.2).",
    )


@diagnosis(160, rules=("earned-leadership",), alone=True)
def one_vote_counted_twice(analysis: TraceAnalysis) -> Finding | None:
    """Somebody that was asked more than once has said yes each time, and only all these answers are enough."""
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
        f"Peer {leader} asked peer {again} for its vote of term {campaign.term} more than once, and got it "
        f"{times(voters.count(again))}, at last at {at(last_ns)}. At {at(began_ns)} peer {leader} began to lead.",
        "a vote is counted whenever an answer comes in. Note who has voted, in a set, and count these (§5.2).",
    )


@diagnosis(180, rules=("earned-leadership",))
def earlier_votes_counted(analysis: TraceAnalysis) -> Finding | None:
    """Votes that it was given in an earlier term make up for those that it lacks in this one."""
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
    in_this_term = f"{peers(now)} alone" if now else "nobody else"
    given = ", ".join(
        f"peer {peer} in term {earlier[peer].args.term} (its answer came in at {at(earlier[peer].replied_ns or 0)})"
        for peer in missing
    )
    facts = f"In term {term} {in_this_term} has voted for peer {leader}. In earlier terms others had: {given}."
    late = [peer for peer in missing if campaign is not None and (earlier[peer].replied_ns or 0) >= campaign.at_ns]
    if late and len(now) + len(late) + 1 >= analysis.quorum:
        return Finding(
            facts,
            "an answer to a request of an earlier term is counted. Compare the term of the request with current_term "
            "when its reply comes in, and drop it if they differ (§5.2).",
        )
    return Finding(
        facts,
        "votes of an earlier campaign are still there when the next one begins. Make a new, empty set of them whenever "
        "a campaign begins; a default argument (votes={}) is made only once, for all calls (§5.2).",
    )


def _unearned(analysis: TraceAnalysis) -> tuple[str, int, Campaign | None] | None:
    """Who leads without a majority, since when, and its campaign if anybody has seen it.

    Only if it came to that term by itself: whoever was told of the term may have kept an earlier office.
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
    """What gave it away: the run ends there."""
    return next(rpc for rpc in reversed(analysis.all_rpcs) if rpc.source == leader and rpc.method != VOTE)
