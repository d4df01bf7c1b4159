"""Why no candidate wins an election (§5.2, §5.4.1, §9.3)."""

from __future__ import annotations

import itertools
from collections import Counter
from collections.abc import Iterable
from statistics import median
from typing import NamedTuple

from labsim import WaitKind
from raftlab.check.diagnosis.registry import Finding, diagnosis
from raftlab.check.diagnosis.threads import (
    IN_SECONDS,
    QUIET_NS,
    asleep,
    own_threads,
    sleeper_of,
)
from raftlab.check.diagnosis.trace_analysis import (
    MS,
    Campaign,
    CastVote,
    Rpc,
    S,
    TraceAnalysis,
    at,
    duration,
    log_end,
    peers,
    terms,
    times,
)
from raftlab.trace.events import STARTED
from raftlab.trace.rpcs import APPEND, INSTALL, VOTE

_FEW_ELECTIONS = 3
_LOCKS = (WaitKind.LOCK, WaitKind.OWN_LOCK, WaitKind.LOST_LOCK)


def _failed_elections(analysis: TraceAnalysis) -> list[Campaign]:
    """The campaigns since a connected peer last sent something as leader; none if no majority is connected."""
    if len(analysis.connected) < analysis.quorum:
        return []
    return [campaign for campaign in analysis.campaigns if campaign.at_ns > analysis.leaderless_ns]


def _elections(analysis: TraceAnalysis, campaigns: list[Campaign]) -> str:
    """ "In 14 elections since 31.204 s (terms 128–141) no peer became leader." """
    found = {campaign.term for campaign in campaigns}
    many = f"{len(found)} election{'s' if len(found) > 1 else ''}"
    return f"In {many} since {at(analysis.leaderless_ns)} ({terms(found)}) no peer became leader."


@diagnosis(280)
def split_votes(analysis: TraceAnalysis) -> Finding | None:
    campaigns = _failed_elections(analysis)
    by_term: dict[int, list[Campaign]] = {}
    for campaign in campaigns:
        by_term.setdefault(campaign.term, []).append(campaign)
    if len(by_term) < _FEW_ELECTIONS:
        return None
    best = max(campaign.log for campaign in campaigns)
    requests = [rpc for campaign in campaigns for rpc in campaign.requests]
    # A candidate that begins within this time of another cannot have received its request.
    way_ns = max((rpc.delivered_ns - rpc.sent_ns for rpc in requests if rpc.delivered_ns is not None), default=0)
    split, gaps = [], []
    for together in by_term.values():
        # Two of the same term: neither had heard from the other. A candidate with an outdated log takes no vote that
        # another one needed.
        able = [c for c in together if c.log == best or analysis.servers - _ahead(analysis, c) >= analysis.quorum]
        gap_ns = min((b.at_ns - a.at_ns for a, b in itertools.pairwise(together)), default=way_ns + 1)
        if able and gap_ns <= way_ns:
            split.append(together)
            gaps.append(gap_ns)
    if len(split) < _FEW_ELECTIONS or 2 * len(split) < len(by_term):
        return None
    back = [rpc.replied_ns - rpc.sent_ns for rpc in requests if rpc.replied_ns is not None]
    if not back:
        return None
    trip_ns = median(back)
    gap_ns = sorted(gaps)[len(gaps) * 9 // 10]
    apart = f"within {duration(gap_ns)} of each other" if gap_ns else "at the same instant"
    facts = (
        f"{_elections(analysis, campaigns)} In {_of_them(len(split), len(by_term))} two or more peers campaigned "
        f"{apart}, and the round trip of a vote takes {duration(trip_ns)}."
    )
    waits = _campaign_gaps(campaigns)
    if waits and median(waits) < 4 * trip_ns:
        # §5.6: the range may be as wide as it can be in so short a timeout.
        facts += f" Candidates try again after {duration(median(waits))}."
        return Finding(
            facts,
            "split votes. Election timeouts are only a few round trips long, so all peers campaign together and vote "
            "for themselves. Make the timeout and its random range many round trips long (§5.6, §9.3).",
        )
    if _same_draw_each_time(analysis, list(by_term.values())):
        return Finding(
            f"{facts} Each time, all {len(analysis.connected)} peers campaigned together, though the time between "
            "elections varies.",
            "split votes. All peers draw the same random numbers, because they use the same seed. Remove "
            "random.seed(), or use a different seed for each peer (§5.2).",
        )
    alike = _same_wait_each_time(analysis, campaigns)
    if alike:
        each = ", ".join(f"peer {peer} after {duration(wait_ns)}" for peer, wait_ns in sorted(alike.items()))
        return Finding(
            f"{facts} Each peer always tries again after the same time: {each}.",
            "split votes. Election timeouts are constant, or drawn once per peer, so peers that collide once collide "
            "again. Draw a new timeout whenever the timer is reset, from a range of many round trips (§5.2, §9.3).",
        )
    return Finding(
        facts,
        "split votes. Election timeouts differ by less than a round trip. Widen the random range (§9.3). If it is "
        "wide already, draw one timeout each time the timer is reset: if every check of the clock draws a new one, "
        "the shortest counts.",
    )


def _same_draw_each_time(analysis: TraceAnalysis, elections: list[list[Campaign]]) -> bool:
    """Whether all peers campaign at the same instant each time, and these instants are not evenly spaced.

    With a random range that is only too narrow, campaigns differ, or elections are evenly spaced.
    """
    if len(elections) < 5:
        return False
    for together in elections:
        if {c.peer for c in together} != analysis.connected or len({c.at_ns for c in together}) > 1:
            return False
    began = [together[0].at_ns for together in elections]
    waits = sorted(later - earlier for earlier, later in itertools.pairwise(began))
    return len(set(waits)) == len(waits) and 10 * (waits[-1] - waits[0]) > median(waits)


def _same_wait_each_time(analysis: TraceAnalysis, campaigns: list[Campaign]) -> dict[str, int]:
    """By peer, how long it waits from a vote (for itself or another) to its next campaign, if always the same."""
    waits: dict[str, list[int]] = {}
    for campaign in campaigns:
        resets = [v.at_ns for v in analysis.votes if v.voter == campaign.peer and v.at_ns < campaign.at_ns]
        if resets and resets[-1] > analysis.leaderless_ns:
            waits.setdefault(campaign.peer, []).append(campaign.at_ns - resets[-1])
    often = {peer: found for peer, found in waits.items() if len(found) >= 3}
    if len(often) < 2 or any(1000 * (max(found) - min(found)) > max(found) for found in often.values()):
        return {}
    return {peer: found[0] for peer, found in often.items()}


@diagnosis(270, alone=True)
def votes_one_after_another(analysis: TraceAnalysis) -> Finding | None:
    """Candidates that have not asked every peer, because they wait for an answer."""
    campaigns = _failed_elections(analysis)
    found: list[tuple[Campaign, set[str]]] = []
    longest_ns = 0
    for campaign in campaigns:
        later = [c.at_ns for c in campaigns if c.peer == campaign.peer and c.at_ns > campaign.at_ns]
        lasted_ns = min(later, default=analysis.end_ns) - campaign.at_ns
        unasked = {str(i) for i in range(analysis.servers)} - {
            campaign.peer,
            *(rpc.target for rpc in campaign.requests),
        }
        if unasked and campaign.requests[-1].replied_ns is None and lasted_ns > S // 5:
            found.append((campaign, unasked))
            longest_ns = max(lasted_ns, longest_ns)
    # One campaign may have been interrupted by chance, but not several, or one that lasted long.
    if 2 * len(found) < len(campaigns) or (len(found) < 2 and longest_ns < S):
        return None
    campaign, unasked = found[-1]
    many = f" This is the last of {len(found)} such campaigns." if len(found) > 1 else ""
    return Finding(
        f"{_elections(analysis, campaigns)} In term {campaign.term} peer {campaign.peer} requested the vote of peer "
        f"{campaign.requests[-1].target} at {at(campaign.requests[-1].sent_ns)}, got no answer, and never asked "
        f"{peers(unasked)}.{many}",
        "the candidate requests votes one after the other, so a peer that does not answer delays the election. "
        "Request all votes in parallel, and make each call in a separate thread (§5.2).",
    )


def _ahead(analysis: TraceAnalysis, campaign: Campaign) -> int:
    """How many peers are known to have a more up-to-date log, so that they must not vote for this one."""
    return sum(log > campaign.log for peer, log in _logs(analysis).items() if peer != campaign.peer)


def _of_them(count: int, all_: int) -> str:
    return "all of them" if count == all_ else f"{count} of them"


def _campaign_gaps(campaigns: list[Campaign]) -> list[int]:
    """How long candidates waited between one campaign and their next."""
    last: dict[str, int] = {}
    gaps = []
    for campaign in campaigns:
        if campaign.peer in last:
            gaps.append(campaign.at_ns - last[campaign.peer])
        last[campaign.peer] = campaign.at_ns
    return gaps


class _Denial(NamedTuple):
    rpc: Rpc
    candidate: Campaign
    voter_log: tuple[int, int]
    voted_for_another: bool  # in an earlier term

    @property
    def shorter_log_of_a_later_term(self) -> bool:
        (last_term, last_index), (voters_term, voters_index) = self.candidate.log, self.voter_log
        return last_term > voters_term and last_index < voters_index


@diagnosis(220)
def votes_denied_without_reason(analysis: TraceAnalysis) -> Finding | None:
    campaigns = _failed_elections(analysis)
    if not campaigns:
        return None
    denials = _unfounded_denials(analysis, campaigns)
    if len(denials) < _FEW_ELECTIONS or len({denial.rpc.args.term for denial in denials}) < 2:
        return None
    example = denials[-1]
    voter, term = example.rpc.target, example.candidate.term
    facts = (
        f"{_elections(analysis, campaigns)} {times(len(denials)).capitalize()} a peer that had not voted in the term "
        f"denied its vote to a candidate whose log was at least as up to date as its own. At "
        f"{at(example.rpc.answered_ns or 0)}, in term {term}, peer {voter} (its log {log_end(example.voter_log)}) "
        f"denied its vote to peer {example.candidate.peer} (whose log {log_end(example.candidate.log)})."
    )
    # All peers run the same code, so one peer that clears its vote for a new term shows that all do.
    kept_vote = all(denial.voted_for_another for denial in denials) and not _clears_its_vote(analysis)
    causes = []
    if all(denial.shorter_log_of_a_later_term for denial in denials):
        causes.append(
            "the lengths of the logs are compared first. Compare the terms of the last entries first: the later term "
            "is more up to date, and the length counts only if these terms are equal (§5.4.1)"
        )
    elif all(denial.candidate.log == denial.voter_log for denial in denials):
        causes.append("a log that equals the voter's is up to date: compare with >=, not with > (§5.4.1)")
        if all(vote.rpc is None for vote in analysis.votes):
            facts += " No peer has ever granted a vote."
            causes.append(
                "the voter treats a request of its own term like one of an earlier term; perhaps the function that "
                "compares the terms returns nothing, and None is false"
            )
    if kept_vote:
        causes.append("voted_for is not cleared when a new term begins (§5.2)")
    return Finding(facts, f"{'; or '.join(causes)}.") if causes else None


def _clears_its_vote(analysis: TraceAnalysis) -> bool:
    """Whether any peer has granted a vote after it had voted for another in an earlier term, without a crash."""
    latest: dict[str, CastVote] = {}
    for vote in analysis.votes:
        before = latest.get(vote.voter)
        if (
            before is not None
            and vote.candidate != vote.voter  # a candidate sets its vote anyway
            and vote.candidate != before.candidate
            and vote.term > before.term
            and not analysis.restarts_between(vote.voter, before.at_ns, vote.at_ns)
        ):
            return True
        latest[vote.voter] = vote
    return False


def _unfounded_denials(analysis: TraceAnalysis, campaigns: list[Campaign]) -> list[_Denial]:
    logs = {campaign.peer: campaign.log for campaign in campaigns}  # without a leader, logs do not change
    nothing_yet = not any(event.detail.is_leader for event in analysis.other.get(STARTED, ()))
    found = []
    for campaign in campaigns:
        for rpc in campaign.requests:
            answer = rpc.answered
            log = logs.get(rpc.target, (0, 0) if nothing_yet and campaign.log == (0, 0) else None)
            if answer is None or answer.vote_granted or answer.term != campaign.term or log is None:
                continue
            assert rpc.answered_ns is not None
            before = [vote for vote in analysis.votes if vote.voter == rpc.target and vote.at_ns <= rpc.answered_ns]
            if campaign.log >= log and not any(vote.term == campaign.term for vote in before):
                earlier = [vote for vote in before if vote.term < campaign.term]
                found.append(_Denial(rpc, campaign, log, bool(earlier) and earlier[-1].candidate != campaign.peer))
    return found


@diagnosis(210)
def winner_never_acts(analysis: TraceAnalysis) -> Finding | None:
    spoke: set[tuple[str, int]] = {(rpc.source, rpc.args.term) for rpc in analysis.led if rpc.args is not None}
    found = []
    for campaign in analysis.campaigns:
        arrived = sorted((when, voter) for voter, when in campaign.granted_by().items())
        needed = analysis.quorum - 1
        if not needed or len(arrived) < needed or (campaign.peer, campaign.term) in spoke:
            continue
        won_ns = arrived[needed - 1][0]
        # A vote that arrives after a higher term does not count. And the winner must have had time to send something.
        if analysis.term_at(campaign.peer, won_ns + 10 * MS) > campaign.term or won_ns > analysis.end_ns - S // 2:
            continue
        found.append((campaign, won_ns, [voter for _, voter in arrived]))
    if not found:
        return None
    campaign, won_ns, voters = found[-1]
    again = f" This is the last of {len(found)} such elections." if len(found) > 1 else ""
    return Finding(
        f"At {at(won_ns)} peer {campaign.peer} had {len(voters) + 1} of {analysis.servers} votes in term "
        f"{campaign.term} (its own and those of {peers(voters)}), and never sent AppendEntries in that term.{again}",
        f"peer {campaign.peer} won term {campaign.term} and did not notice, or did not act. Check how votes are "
        "counted, that a candidate stays one after a reply of its own term (only a higher term makes it a follower, "
        "§5.1), and that a winner sends heartbeats at once (§5.2).",
    )


@diagnosis(290)
def no_candidates(analysis: TraceAnalysis) -> Finding | None:
    if len(analysis.connected) < analysis.quorum or analysis.servers < 2:
        return None
    last = analysis.campaigns[-1].at_ns if analysis.campaigns else 0
    since_ns = max(last, analysis.leaderless_ns)
    quiet_ns = analysis.end_ns - since_ns
    if quiet_ns < QUIET_NS:
        return None
    # A peer that accepts a command believes that it leads: then the election is not the problem.
    if any(event.detail.is_leader and event.at_ns >= since_ns for event in analysis.other.get(STARTED, ())):
        return None
    # A peer that waits for its lock cannot campaign, even if its timer runs.
    if any(wait.kind in _LOCKS and wait.waited_ns > S for wait in own_threads(analysis, sorted(analysis.connected))):
        return None
    heard = sum(
        1 for rpc in analysis.all_rpcs if rpc.target in analysis.connected and (rpc.delivered_ns or 0) > since_ns
    )
    facts = f"No peer has campaigned for {duration(quiet_ns)}, since {at(since_ns)}, and no connected peer leads."
    own = [event.detail.service_method for event in analysis.own_calls if event.at_ns >= since_ns]
    if own:
        method, count = Counter(own).most_common(1)[0]
        return Finding(
            f"{facts} Meanwhile peers called {method}, which is not an RPC from the paper, {times(count)}.",
            f"if a peer must win {method} before it campaigns, check which peers reject {method}, and why.",
        )
    risen = _terms_beyond_messages(analysis)
    if risen:
        return Finding(
            f"{facts} But terms have risen: {_and(f'peer {peer} is in {term}' for peer, term in risen)}, and no "
            "message contains any of these terms.",
            "the election timer works, but the requests are not sent: the code that requests votes ends before call(), "
            "perhaps with an exception that is swallowed.",
        )
    sleeper = sleeper_of(analysis, sorted(analysis.connected))
    if sleeper is not None:
        return Finding(f"{facts} {asleep(sleeper)}", f"if that thread is the election timer, {IN_SECONDS}")
    if analysis.campaigns and last == since_ns:
        latest = [c for c in analysis.campaigns if c.term == analysis.campaigns[-1].term]
        facts += f" The last campaign, by {peers(c.peer for c in latest)} in term {latest[-1].term}, got no majority."
        return Finding(
            facts,
            "a candidate that does not win does not try again; its election timer must keep running (§5.2).",
        )
    if not analysis.all_campaigns:
        facts += " No peer has ever sent a RequestVote."
    likely = "is its thread started, and does that thread continue after every change of role?"
    if heard:
        return Finding(
            f"{facts} Meanwhile {heard} requests arrived.",
            f"the election timer does not run ({likely}), or each of these requests wrongly resets it (§5.2).",
        )
    return Finding(facts, f"the election timer does not run: {likely}")


def _terms_beyond_messages(analysis: TraceAnalysis) -> list[tuple[str, int]]:
    """Connected peers whose get_state() returned a later term than any message contains, and that term."""
    known = max((rpc.args.term for rpc in analysis.all_rpcs if rpc.args is not None), default=0)
    states = analysis.snapshot.states
    return [(p, states[p].term) for p in sorted(analysis.connected) if p in states and states[p].term > known]


def _and(parts: Iterable[str]) -> str:
    *rest, last = parts
    return f"{', '.join(rest)} and {last}" if rest else last


# ---- candidates that cannot win -----------------------------------------------------------------------------


def _logs(analysis: TraceAnalysis) -> dict[str, tuple[int, int]]:
    """The end of each connected peer's log, (term, index), according to its latest message."""
    logs: dict[str, tuple[int, int]] = {}
    for rpc in reversed(analysis.all_rpcs):
        if len(logs) == len(analysis.connected):
            break
        if rpc.method == INSTALL:
            continue
        request = rpc.request
        if request is None:
            continue
        if rpc.source in analysis.connected and rpc.source not in logs:
            if rpc.method == VOTE:
                logs[rpc.source] = (request.args.last_log_term, request.args.last_log_index)
            else:
                logs[rpc.source] = (request.last_term, request.last_index)
        if rpc.method == APPEND and rpc.target in analysis.connected and rpc.target not in logs:
            answer = rpc.answered
            if answer is not None and answer.success:
                logs[rpc.target] = (request.last_term, request.last_index)
    return logs


@diagnosis(260)
def stale_candidates(analysis: TraceAnalysis) -> Finding | None:
    """Peers that cannot win campaign again and again, and a peer that could win does not."""
    since_ns = analysis.progress_ns
    campaigns = [campaign for campaign in analysis.campaigns if campaign.at_ns > since_ns]
    logs = _logs(analysis)
    if len(analysis.connected) < analysis.quorum or len(logs) < len(analysis.connected):
        return None
    able = {peer for peer, log in logs.items() if sum(log >= other for other in logs.values()) >= analysis.quorum}
    hopeless = [campaign for campaign in campaigns if campaign.peer not in able]
    if not able or len(hopeless) < 5 or len(hopeless) < 2 * (len(campaigns) - len(hopeless)):
        return None
    starved = max(sorted(able), key=lambda peer: _patience(analysis, peer, since_ns)[0])
    waited_ns, from_ns, denied = _patience(analysis, starved, since_ns)
    usual_ns = median(_campaign_gaps(campaigns) or [S])
    if len(denied) < 3 or waited_ns < max(S, usual_ns):
        return None
    arrivals = [from_ns, *denied, from_ns + waited_ns]
    peace_ns = max(later - earlier for earlier, later in itertools.pairwise(arrivals))
    tried = Counter(campaign.peer for campaign in hopeless)
    shown = ", ".join(f"peer {peer} ({log_end(logs[peer])}) {times(count)}" for peer, count in sorted(tried.items()))
    found = {campaign.term for campaign in campaigns}
    own = sum(campaign.peer == starved for campaign in campaigns)
    campaigned = f"campaigned {times(own)}" if own else "never campaigned"
    return Finding(
        f"In {len(found)} elections since {at(since_ns)} ({terms(found)}) nothing was committed. These candidates had "
        f"logs that were too old to win a majority: {shown}. Peer {starved} could win (its log "
        f"{log_end(logs[starved])}) and {campaigned}. For {duration(waited_ns)} from {at(from_ns)} on it granted no "
        f"vote and heard from no leader, but it denied {len(denied)} votes, at most {duration(peace_ns)} apart.",
        "denying a vote, or receiving any RPC, resets the election timer. So candidates that cannot win prevent the "
        "peer that can win from campaigning. Reset the timer only when the peer grants a vote, hears from the "
        "current leader, or campaigns (§5.2).",
    )


def _patience(analysis: TraceAnalysis, peer: str, since_ns: int) -> tuple[int, int, list[int]]:
    """The longest time that peer did not campaign, though nothing that may reset its timer happened: how long, since
    when, and when it denied votes meanwhile."""
    resets, denials = [since_ns, analysis.end_ns], []
    for rpc in analysis.rpcs:
        if rpc.source == peer and rpc.method == VOTE:
            resets.append(rpc.sent_ns)
        elif rpc.source == peer:
            resets.append(rpc.sent_ns)  # it leads
        elif rpc.target == peer and rpc.answered_ns is not None:
            answer = rpc.answered
            if answer is None or rpc.args is None:
                continue
            if rpc.method == VOTE and not answer.vote_granted:
                denials.append(rpc.answered_ns)
            elif rpc.method == VOTE or answer.term == rpc.args.term:
                resets.append(rpc.answered_ns)
    resets = sorted(when for when in resets if when >= since_ns)
    waited_ns, from_ns = max((later - earlier, earlier) for earlier, later in itertools.pairwise(resets))
    return waited_ns, from_ns, [when for when in sorted(denials) if from_ns < when < from_ns + waited_ns]
