"""Why nobody leads, or nobody leads for long (§5.2, §5.4.1, §9.3)."""

from __future__ import annotations

import itertools
from collections import Counter
from collections.abc import Iterable
from statistics import median
from typing import NamedTuple

from labsim import Event, Wait, WaitKind
from labtest.checks.reading import APPEND, INSTALL, VOTE
from labtest.diagnoses.diagnosis import Finding
from labtest.diagnoses.story import MS, Campaign, Rpc, S, Story, Vote, at, lasting, log_end, peers, terms, times
from labtest.diagnoses.threads import doing, in_words, own_threads, path, whole_ns
from labtest.events import STARTED
from labtest.failure import Failure

# Nobody sensible waits longer than this for an election to begin; the tests wait 5 s for one to succeed.
_QUIET_NS = 2 * S
_FEW_ELECTIONS = 3
# Who is told to campaign does so at once, and is told so once, or once more.
_INVITED_NS = S // 5
_INVITED_MAX = 2
_LOCKS = (WaitKind.LOCK, WaitKind.OWN_LOCK, WaitKind.LOST_LOCK)


def _failed_elections(story: Story) -> list[Campaign]:
    """The campaigns since a connected peer last spoke as leader; none if they could not have succeeded."""
    if len(story.connected) < story.quorum:
        return []
    return [campaign for campaign in story.campaigns if campaign.at_ns > story.leaderless_ns]


def _elections(story: Story, campaigns: list[Campaign]) -> str:
    """ "Since 31.204 s: 14 elections, terms 128–141, no leader." """
    found = {campaign.term for campaign in campaigns}
    many = f"{len(found)} election{'s' if len(found) > 1 else ''}"
    return f"Since {at(story.leaderless_ns)}: {many}, {terms(found)}, no leader."


# ---- nobody wins ---------------------------------------------------------------------------------------------


def split_votes(story: Story) -> Finding | None:
    campaigns = _failed_elections(story)
    by_term: dict[int, list[Campaign]] = {}
    for campaign in campaigns:
        by_term.setdefault(campaign.term, []).append(campaign)
    if len(by_term) < _FEW_ELECTIONS:
        return None
    best = max(campaign.log for campaign in campaigns)
    requests = [rpc for campaign in campaigns for rpc in campaign.requests]
    # Whoever begins within this time of another cannot have heard of it.
    way_ns = max((rpc.delivered_ns - rpc.sent_ns for rpc in requests if rpc.delivered_ns is not None), default=0)
    split, gaps = [], []
    for together in by_term.values():
        # Two of the same term: neither had heard of the other when it began. One whose log is behind takes no vote
        # that could have made a leader.
        able = [c for c in together if c.log == best or story.servers - _ahead(story, c) >= story.quorum]
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
    apart = f"within {lasting(gap_ns)} of each other" if gap_ns else "at the same instant"
    facts = (
        f"{_elections(story, campaigns)} In {_of_them(len(split), len(by_term))} two or more peers campaigned {apart}, "
        f"and a vote takes {lasting(trip_ns)} to come back."
    )
    waits = _campaign_gaps(campaigns)
    if waits and median(waits) < 4 * trip_ns:
        # §5.6: the range may be as wide as it can be in so short a timeout.
        facts += f" Candidates try again after {lasting(median(waits))}."
        return Finding(
            facts,
            "split votes. Election timers run out within a few round trips, so all campaign together and each votes "
            "for itself; make the timeout and its random range many round trips long (§5.6, §9.3).",
        )
    if _same_draw_each_time(story, list(by_term.values())):
        return Finding(
            f"{facts} All {len(story.connected)} did so every time, though the time between elections is never the "
            "same.",
            "split votes. All peers draw the same random numbers: random is seeded alike in each of them. Leave "
            "random.seed() out, or seed with something that differs from peer to peer (§5.2).",
        )
    alike = _same_wait_each_time(story, campaigns)
    if alike:
        each = ", ".join(f"peer {peer} after {lasting(wait_ns)}" for peer, wait_ns in sorted(alike.items()))
        return Finding(
            f"{facts} Each tries again after the same time, every time: {each}.",
            "split votes. Election timeouts are constant, or drawn once for each peer, so who collides once collides "
            "again; draw a new one whenever the timer is reset, from a range of many round trips (§5.2, §9.3).",
        )
    return Finding(
        facts,
        "split votes. Election timeouts differ by less than a round trip; widen the random range (§9.3). If it is "
        "wide, draw once for each reset of the timer: of many draws, one at every look at the clock, the shortest "
        "wins.",
    )


def _same_draw_each_time(story: Story, elections: list[list[Campaign]]) -> bool:
    """Whether all campaign at one instant each time, and these instants are not evenly spaced.

    A range that is too narrow leaves differences, or else the elections are evenly spaced.
    """
    if len(elections) < 5:
        return False
    for together in elections:
        if {c.peer for c in together} != story.connected or len({c.at_ns for c in together}) > 1:
            return False
    began = [together[0].at_ns for together in elections]
    waits = sorted(later - earlier for earlier, later in itertools.pairwise(began))
    return len(set(waits)) == len(waits) and 10 * (waits[-1] - waits[0]) > median(waits)


def _same_wait_each_time(story: Story, campaigns: list[Campaign]) -> dict[str, int]:
    """By peer, how long it waits from a vote (its own or another's) to its next campaign, if always the same."""
    waits: dict[str, list[int]] = {}
    for campaign in campaigns:
        resets = [v.at_ns for v in story.votes if v.voter == campaign.peer and v.at_ns < campaign.at_ns]
        if resets and resets[-1] > story.leaderless_ns:
            waits.setdefault(campaign.peer, []).append(campaign.at_ns - resets[-1])
    often = {peer: found for peer, found in waits.items() if len(found) >= 3}
    if len(often) < 2 or any(1000 * (max(found) - min(found)) > max(found) for found in often.values()):
        return {}
    return {peer: found[0] for peer, found in often.items()}


def votes_one_after_another(story: Story) -> Finding | None:
    """Candidates that have not asked everybody, because they wait for somebody's answer."""
    campaigns = _failed_elections(story)
    found: list[tuple[Campaign, set[str]]] = []
    longest_ns = 0
    for campaign in campaigns:
        later = [c.at_ns for c in campaigns if c.peer == campaign.peer and c.at_ns > campaign.at_ns]
        lasted_ns = min(later, default=story.end_ns) - campaign.at_ns
        unasked = {str(i) for i in range(story.servers)} - {campaign.peer, *(rpc.target for rpc in campaign.requests)}
        if unasked and campaign.requests[-1].replied_ns is None and lasted_ns > S // 5:
            found.append((campaign, unasked))
            longest_ns = max(lasted_ns, longest_ns)
    # One may have been cut short by chance; not several, nor one in a long time.
    if 2 * len(found) < len(campaigns) or (len(found) < 2 and longest_ns < S):
        return None
    campaign, unasked = found[-1]
    many = f" It is the last of {len(found)} such campaigns." if len(found) > 1 else ""
    return Finding(
        f"{_elections(story, campaigns)} In term {campaign.term} peer {campaign.peer} asked peer "
        f"{campaign.requests[-1].target} at {at(campaign.requests[-1].sent_ns)}, had no answer, and never asked "
        f"{peers(unasked)}.{many}",
        "votes are asked for one after the other, so a peer that does not answer holds the election up; ask all at "
        "once, each call in a thread of its own (§5.2).",
    )


def _ahead(story: Story, campaign: Campaign) -> int:
    """How many peers are known to have a log that forbids them to vote for this one."""
    return sum(log > campaign.log for peer, log in _logs(story).items() if peer != campaign.peer)


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


def votes_denied_for_nothing(story: Story) -> Finding | None:
    campaigns = _failed_elections(story)
    if not campaigns:
        return None
    denials = _unfounded_denials(story, campaigns)
    if len(denials) < _FEW_ELECTIONS or len({denial.rpc.args.term for denial in denials}) < 2:
        return None
    example = denials[-1]
    voter, term = example.rpc.target, example.candidate.term
    facts = (
        f"{_elections(story, campaigns)} {times(len(denials)).capitalize()} a vote was denied by a peer that had "
        f"voted for nobody in that term, though the candidate's log was at least as up to date as its own. "
        f"At {at(example.rpc.answered_ns or 0)}, term {term}, peer {voter} (its log {log_end(example.voter_log)}) "
        f"denied peer {example.candidate.peer} (whose log {log_end(example.candidate.log)})."
    )
    # All peers run the same code, so one that has cleared its vote for a new term shows that all do.
    kept_vote = all(denial.voted_for_another for denial in denials) and not _clears_its_vote(story)
    causes = []
    if all(denial.shorter_log_of_a_later_term for denial in denials):
        causes.append(
            "compare the terms of the last entries first: the later one is more up to date, however short its log; "
            "only where they are equal does the length count (§5.4.1)"
        )
    elif all(denial.candidate.log == denial.voter_log for denial in denials):
        causes.append("equal logs are up to date: compare with >=, not with > (§5.4.1)")
        if all(vote.rpc is None for vote in story.votes):
            facts += " No peer has ever granted a vote."
            causes.append(
                "the request is taken for one of an earlier term, though it is of the voter's own: what decides that "
                "returns nothing perhaps, and None is false"
            )
    if kept_vote:
        causes.append("voted_for is not cleared when a new term begins (§5.2)")
    return Finding(facts, f"{'; or '.join(causes)}.") if causes else None


def _clears_its_vote(story: Story) -> bool:
    """Whether any peer has granted a vote after it had voted for another in an earlier term, without a crash."""
    latest: dict[str, Vote] = {}
    for vote in story.votes:
        before = latest.get(vote.voter)
        if (
            before is not None
            and vote.candidate != vote.voter  # whoever campaigns sets its vote anyway
            and vote.candidate != before.candidate
            and vote.term > before.term
            and not story.restarts_between(vote.voter, before.at_ns, vote.at_ns)
        ):
            return True
        latest[vote.voter] = vote
    return False


def _unfounded_denials(story: Story, campaigns: list[Campaign]) -> list[_Denial]:
    logs = {campaign.peer: campaign.log for campaign in campaigns}  # nobody leads, so they do not change
    nothing_yet = not any(event.detail.is_leader for event in story.other.get(STARTED, ()))
    found = []
    for campaign in campaigns:
        for rpc in campaign.requests:
            answer = rpc.answered
            log = logs.get(rpc.target, (0, 0) if nothing_yet and campaign.log == (0, 0) else None)
            if answer is None or answer.vote_granted or answer.term != campaign.term or log is None:
                continue
            assert rpc.answered_ns is not None
            before = [vote for vote in story.votes if vote.voter == rpc.target and vote.at_ns <= rpc.answered_ns]
            if campaign.log >= log and not any(vote.term == campaign.term for vote in before):
                earlier = [vote for vote in before if vote.term < campaign.term]
                found.append(_Denial(rpc, campaign, log, bool(earlier) and earlier[-1].candidate != campaign.peer))
    return found


def won_and_never_acted(story: Story) -> Finding | None:
    spoke: set[tuple[str, int]] = {(rpc.source, rpc.args.term) for rpc in story.led if rpc.args is not None}
    found = []
    for campaign in story.campaigns:
        arrived = sorted((when, voter) for voter, when in campaign.granted_by().items())
        needed = story.quorum - 1
        if not needed or len(arrived) < needed or (campaign.peer, campaign.term) in spoke:
            continue
        won_ns = arrived[needed - 1][0]
        # A vote that comes after a higher term is worth nothing; and it must have had a moment to speak.
        if story.term_at(campaign.peer, won_ns + 10 * MS) > campaign.term or won_ns > story.end_ns - S // 2:
            continue
        found.append((campaign, won_ns, [voter for _, voter in arrived]))
    if not found:
        return None
    campaign, won_ns, voters = found[-1]
    again = f" It is the last of {len(found)} such elections." if len(found) > 1 else ""
    return Finding(
        f"Peer {campaign.peer} had {len(voters) + 1} of {story.servers} votes in term {campaign.term} at {at(won_ns)} "
        f"(its own and those of {peers(voters)}), and never sent an AppendEntries in that term.{again}",
        f"peer {campaign.peer} won term {campaign.term} and did not notice, or did not act: check how votes are "
        "counted, that a reply of its own term leaves it a candidate (only a higher one makes it a follower, §5.1), "
        "and that a winner sends heartbeats at once (§5.2).",
    )


def leads_and_denies_it(story: Story) -> Finding | None:
    """The others follow a leader whose get_state() says that it is none."""
    if not isinstance(story.error, Failure) or not story.led:
        return None
    leader = story.led[-1].source
    state = story.error.states.get(leader)
    office = [rpc for rpc in story.led if rpc.source == leader and rpc.args is not None]
    term = office[-1].args.term if office else 0
    office = [rpc for rpc in office if rpc.args.term == term]
    if state is None or state.is_leader or state.term != term or state.asked_ns < office[0].sent_ns + S // 5:
        return None
    # It had spoken for long when it was asked, still does, and a majority follows: so it leads.
    until_ns = office[-1].sent_ns
    followers = {rpc.target for rpc in office if rpc.target != leader and _accepted(rpc, story.end_ns)}
    short = until_ns - office[0].sent_ns < S // 2 or until_ns < state.asked_ns - S // 5
    if short or len(followers) + 1 < story.quorum or story.term_at(leader, story.end_ns) > term:
        return None
    return Finding(
        f"Peer {leader} sends AppendEntries of term {term}, from {at(office[0].sent_ns)} to {at(until_ns)}, and "
        f"{peers(followers)} follow{'s' if len(followers) == 1 else ''} it. But its get_state(), asked at "
        f"{at(state.asked_ns)}, says that it does not lead.",
        "the election is all right, and get_state() is wrong: does it compare its role with something that is never "
        "equal, a string with an enum, say?",
    )


def leader_calls_itself(story: Story) -> Finding | None:
    """An AppendEntries to itself turns a leader into its own follower."""
    found = []
    for rpc in story.led:
        if rpc.source != rpc.target or rpc.answered_ns is None or not _accepted(rpc, story.end_ns):
            continue
        leader, term, heard_ns = rpc.source, rpc.args.term, rpc.answered_ns
        ended_ns = min((when for when, known, _, _ in story.told[leader] if known > term), default=story.end_ns)
        spoke = any(r.source == leader and r.sent_ns > heard_ns and r.args and r.args.term == term for r in story.led)
        if not spoke and ended_ns - heard_ns > S // 5:
            found.append((rpc, ended_ns - heard_ns))
    # Once it may have ended by chance just then.
    if len(found) < 2 and not any(silent_ns > S for _, silent_ns in found):
        return None
    rpc, _ = found[-1]
    many = f" That is one of {len(found)} such offices." if len(found) > 1 else ""
    return Finding(
        f"Peer {rpc.source}, leader of term {rpc.args.term}, sent itself an AppendEntries at {at(rpc.sent_ns)}, "
        f"answered it, and has not spoken as leader of that term since.{many}",
        "a leader that hears from 'the leader' becomes a follower: send to all peers but itself, peers[me].",
    )


def nobody_campaigns(story: Story) -> Finding | None:
    if len(story.connected) < story.quorum or story.servers < 2:
        return None
    last = story.campaigns[-1].at_ns if story.campaigns else 0
    since_ns = max(last, story.leaderless_ns)
    quiet_ns = story.end_ns - since_ns
    if quiet_ns < _QUIET_NS:
        return None
    # Who takes a command believes that it leads: silent perhaps, but not the election's fault.
    if any(event.detail.is_leader and event.at_ns >= since_ns for event in story.other.get(STARTED, ())):
        return None
    # Who waits for its lock will not campaign, however well its timer runs.
    if any(wait.kind in _LOCKS and wait.waited_ns > S for wait in own_threads(story, sorted(story.connected))):
        return None
    heard = sum(1 for rpc in story.all_rpcs if rpc.target in story.connected and (rpc.delivered_ns or 0) > since_ns)
    facts = f"For {lasting(quiet_ns)}, since {at(since_ns)}, nobody has campaigned, and no connected peer leads."
    own = [event.detail.service_method for event in story.own_calls if event.at_ns >= since_ns]
    if own:
        method, count = Counter(own).most_common(1)[0]
        return Finding(
            f"{facts} Meanwhile {method}, which is no RPC of the paper, was called {times(count)}.",
            f"if nobody may campaign before it has a yes to {method}, look at who refuses there, and why.",
        )
    risen = _terms_beyond_messages(story)
    if risen:
        return Finding(
            f"{facts} But terms have risen meanwhile: {_and(f'peer {peer} is in {term}' for peer, term in risen)}, and "
            "no message has told of such a term.",
            "the election timer runs, and the requests do not leave: what asks for votes ends before its call(), by an "
            "exception that is swallowed perhaps.",
        )
    sleeper = _sleeper(story, sorted(story.connected))
    if sleeper is not None:
        return Finding(f"{facts} {_asleep(sleeper)}", f"if that is the election timer, {_IN_SECONDS}")
    if story.campaigns and last == since_ns:
        lately = [c for c in story.campaigns if c.term == story.campaigns[-1].term]
        facts += f" The last to try: {peers(c.peer for c in lately)}, in term {lately[-1].term}, without a majority."
        return Finding(
            facts,
            "a candidate that does not win does not try again; its election timer must go on running (§5.2).",
        )
    if not story.all_campaigns:
        facts += " No peer has ever sent a RequestVote."
    likely = "is its thread started, and does it go on after every change of role?"
    if heard:
        return Finding(
            f"{facts} Meanwhile {heard} requests arrived.",
            f"the election timer does not run ({likely}), or each of these requests resets it (§5.2).",
        )
    return Finding(facts, f"the election timer does not run: {likely}")


_IN_SECONDS = "it waits too long: timeouts and sleep() take seconds, not milliseconds."


def _asleep(wait: Wait) -> str:
    return f"{wait.task} of peer {wait.node} {doing(wait)}{path(wait)}, for {lasting(whole_ns(wait))} in all."


def _sleeper(story: Story, names: Iterable[str]) -> Wait | None:
    """A thread of one of these peers that was told to wait for longer than any election may take to begin."""
    for wait in own_threads(story, names):
        # What can be woken by news may have all the time in the world.
        if wait.kind in (WaitKind.SLEEP, WaitKind.EVENT) and whole_ns(wait) > _QUIET_NS:
            return wait
    return None


def _terms_beyond_messages(story: Story) -> list[tuple[str, int]]:
    """Connected peers that have told the tester of a later term than any message, and that term."""
    if not isinstance(story.error, Failure):
        return []
    known = max((rpc.args.term for rpc in story.all_rpcs if rpc.args is not None), default=0)
    states = story.error.states
    return [(p, states[p].term) for p in sorted(story.connected) if p in states and states[p].term > known]


def _and(parts: Iterable[str]) -> str:
    *rest, last = parts
    return f"{', '.join(rest)} and {last}" if rest else last


# ---- leaders do not last -------------------------------------------------------------------------------------


class _Deposed(NamedTuple):
    """A follower that campaigned while its leader still led."""

    campaign: Campaign
    leader: str
    term: int
    voted_ns: int  # when it voted for that leader, if it did so since the calm
    heard: list[Rpc]  # what it got from that leader, in order of delivery
    told: list[Event]  # RPCs of its own that the leader sent it just before: perhaps it was to campaign

    @property
    def since_ns(self) -> int:
        """When its timer was last to be reset."""
        return self.heard[-1].delivered_ns or 0 if self.heard else self.voted_ns

    @property
    def gaps(self) -> list[int]:
        """The times between arrivals."""
        arrivals = [rpc.delivered_ns or 0 for rpc in self.heard]
        return [later - earlier for earlier, later in itertools.pairwise(arrivals)]

    @property
    def in_spite_of_heartbeats(self) -> bool:
        # It has waited longer than this before, so its timeout is not what is too short.
        gaps, silent_ns = self.gaps, self.campaign.at_ns - self.since_ns
        return len(gaps) >= 2 and silent_ns <= max(gaps) and 2 * silent_ns <= 3 * median(gaps)


def _depositions(story: Story) -> list[_Deposed]:
    found = []
    for campaign in story.campaigns:
        follower, began_ns = campaign.peer, campaign.at_ns
        heard = [rpc for rpc in story.led if rpc.target == follower and _accepted(rpc, began_ns)]
        votes = [v for v in story.votes if v.voter == follower and story.calm_ns <= v.at_ns < began_ns]
        term = max([rpc.args.term for rpc in heard] + [vote.term for vote in votes], default=0)
        heard = sorted((r for r in heard if r.args.term == term), key=lambda rpc: rpc.delivered_ns or 0)
        leaders = {rpc.source for rpc in heard} or {vote.candidate for vote in votes if vote.term == term}
        leader = min(leaders, default=follower)
        if leader == follower or not _led(story, leader, term, began_ns):
            continue
        # Otherwise somebody else had moved the cluster on, or the leader had stepped down.
        if term < story.term_at(follower, began_ns - 1) or story.term_at(leader, began_ns - 1) > term:
            continue
        voted_ns = max((vote.at_ns for vote in votes if vote.term == term), default=0)
        told = _invitations(story, leader, campaign, term)
        found.append(_Deposed(campaign, leader, term, voted_ns, heard, told))
    return found


def _invitations(story: Story, leader: str, campaign: Campaign, term: int) -> list[Event]:
    """RPCs of its own that a leader has sent, while it led, to who campaigns just then. What it sends all the time is
    about something else."""
    spoke_ns = [rpc.sent_ns for rpc in story.led if rpc.source == leader and rpc.args and rpc.args.term == term]
    calls = [
        call
        for call in story.own_calls
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


def _led(story: Story, peer: str, term: int, before_ns: int) -> bool:
    """Whether that peer has spoken as leader of that term by then, to anybody."""
    return any(
        rpc.source == peer and rpc.sent_ns < before_ns and rpc.args is not None and rpc.args.term == term
        for rpc in story.led
    )


def _accepted(rpc: Rpc, before_ns: int) -> bool:
    """Whether its receiver took the sender for the leader of its own term, by then."""
    if rpc.answered_ns is None or rpc.answered_ns >= before_ns or rpc.args is None:
        return False
    answer = rpc.answered
    return answer is not None and answer.term == rpc.args.term


def heartbeats_too_slow(story: Story) -> Finding | None:
    found = []
    depositions = [deposed for deposed in _depositions(story) if not deposed.told]
    if any(deposed.in_spite_of_heartbeats for deposed in depositions):
        return None
    for deposed in depositions:
        follower, began_ns = deposed.campaign.peer, deposed.campaign.at_ns
        to_it = story.calls_between(deposed.leader, follower)
        sent = [rpc.sent_ns for rpc in to_it if rpc.sent_ns <= began_ns and rpc.args and rpc.args.term == deposed.term]
        # Nothing under way to the follower: no loss and no delay is to blame.
        last = [rpc.sent_ns for rpc in deposed.heard[-1:]]
        if sent[-1:] == last and began_ns - (last[0] if last else deposed.since_ns) >= 20 * MS:
            found.append((deposed, began_ns - deposed.since_ns))
    if not found:
        return None
    deposed, timeout_ns = found[-1]
    waiting = _waiting_for(story, deposed)
    many = f" That is one of {len(found)} such elections since {at(story.calm_ns)}." if len(found) > 1 else ""
    follower = deposed.campaign.peer
    if deposed.heard:
        silence = f"nothing after {at(deposed.heard[-1].sent_ns)}; {lasting(timeout_ns)} later"
    else:
        silence = f"nothing at all; {lasting(timeout_ns)} after it had voted for peer {deposed.leader}"
    facts = (
        f"Peer {deposed.leader} led term {deposed.term}, and sent peer {follower} {silence}, at "
        f"{at(deposed.campaign.at_ns)}, peer {follower}'s election timer ran out.{many}"
    )
    if waiting is not None:
        facts += (
            f" Peer {deposed.leader} was then waiting for peer {waiting.target}'s answer to an {waiting.name} "
            f"of {at(waiting.sent_ns)}."
        )
        return Finding(
            facts,
            "one sender serves all followers and waits for a peer that does not answer; give each call a thread of "
            "its own (§5.3, §5.5).",
        )
    if _speak_once(story, [deposed for deposed, _ in found]):
        leader = _last_leader(story)
        return Finding(
            f"{facts} No leader has sent anybody a second AppendEntries. The last one was peer {leader[0]}. "
            f"{in_words(own_threads(story, leader))}",
            "what sends heartbeats after the first round does nothing: its thread has ended, or it fails each time, "
            "and an exception is swallowed (except Exception: pass).",
        )
    sleeper = _sleeper(story, [deposed.leader])
    if sleeper is not None:
        return Finding(
            f"{facts} {_asleep(sleeper)}", f"heartbeats are too slow. If that thread sends them, {_IN_SECONDS}"
        )
    return Finding(
        facts,
        "heartbeats are too slow for these election timeouts, or their sender waits for something; send several "
        "per shortest timeout (§5.2, §5.6).",
    )


def _speak_once(story: Story, depositions: list[_Deposed]) -> bool:
    """Whether leaders speak to everybody once and never again, though none of the last one's threads waits so long."""
    offices = Counter((rpc.source, rpc.target, rpc.args.term) for rpc in story.led if rpc.args is not None)
    threads = own_threads(story, _last_leader(story))
    shortest_ns = min(deposed.campaign.at_ns - deposed.since_ns for deposed in depositions)
    return (
        len({deposed.term for deposed in depositions}) > 1
        and max(offices.values()) == 1
        and bool(threads)
        and all(whole_ns(wait) < shortest_ns for wait in threads)
    )


def _last_leader(story: Story) -> list[str]:
    return [rpc.source for rpc in story.led[-1:]]


def _waiting_for(story: Story, deposed: _Deposed) -> Rpc | None:
    """The first call of the leader to somebody else after its last to that follower, if none of them was answered."""
    since_ns = deposed.heard[-1].sent_ns if deposed.heard else deposed.voted_ns
    calls = [
        rpc for rpc in story.led if rpc.source == deposed.leader and since_ns < rpc.sent_ns < deposed.campaign.at_ns
    ]
    if any(rpc.replied_ns is not None and rpc.replied_ns < deposed.campaign.at_ns for rpc in calls):
        return None
    return calls[0] if calls else None


def heartbeats_do_not_reset_the_timer(story: Story) -> Finding | None:
    found = [deposed for deposed in _depositions(story) if deposed.in_spite_of_heartbeats and not deposed.told]
    needed = 1 if story.end_ns - story.calm_ns < 5 * S else 2
    if len(found) < needed:
        return None
    deposed = found[-1]
    silent_ns = deposed.campaign.at_ns - deposed.since_ns
    many = f" {times(len(found)).capitalize()} so since {at(story.calm_ns)}." if len(found) > 1 else ""
    return Finding(
        f"Peer {deposed.campaign.peer} campaigned at {at(deposed.campaign.at_ns)}, {lasting(silent_ns)} after an "
        f"AppendEntries of its leader, peer {deposed.leader}, had come in. It had had {len(deposed.heard)} of them "
        f"in term {deposed.term}, never more than {lasting(max(deposed.gaps))} apart.{many}",
        "a valid AppendEntries, with or without entries, does not reset the election timer (§5.2).",
    )


def leadership_is_handed_over(story: Story) -> Finding | None:
    """Leaders tell others to campaign, by an RPC that the paper does not have."""
    found = [deposed for deposed in _depositions(story) if deposed.told]
    if len(found) < 2:
        return None
    deposed = found[-1]
    call, campaign = deposed.told[-1], deposed.campaign
    method = call.detail.service_method
    return Finding(
        f"Peer {deposed.leader} led term {deposed.term}, and at {at(call.at_ns)} it sent peer {campaign.peer} "
        f"{method}, which is no RPC of the paper. {lasting(campaign.at_ns - call.at_ns).capitalize()} later peer "
        f"{campaign.peer} campaigned. {times(len(found)).capitalize()} so since {at(story.calm_ns)}.",
        f"if {method} hands leadership over, leaders do so too readily. While nothing fails the leader is to stay.",
    )


def no_step_down(story: Story) -> Finding | None:
    """Somebody still speaks in a term that it has been told is over."""
    found = []
    for rpc in story.rpcs:
        args = rpc.args
        if args is None:
            continue
        known = [
            (when_ns, term, teacher, how)
            for when_ns, term, teacher, how in story.told.get(rpc.source, ())
            # A request that still waits for its handler has told nothing yet.
            if term > args.term
            and (how != "request" or (teacher.answered_ns or rpc.sent_ns) < rpc.sent_ns)
            # §6: whoever has heard its leader lately may disregard a candidate, its term included.
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
        source = f"by peer {teacher.target}'s reply to its {teacher.name}"
        likely = "a higher term is not acted on when it comes in a reply; step down on any higher term (§5.1)."
    else:
        source = f"by peer {teacher.source}'s {teacher.name}"
        likely = "a higher term in a request is not adopted; become a follower of that term, leader or not (§5.1)."
    return Finding(
        f"Peer {rpc.source} was told of term {term} at {at(when_ns)}, {source}, and "
        f"{lasting(rpc.sent_ns - when_ns)} later it still sends {rpc.name} of term {rpc.args.term}.",
        likely,
    )


def _disregarded(request: Rpc) -> bool:
    return request.answered is not None and request.answered.term < request.args.term


# ---- the wrong ones campaign ---------------------------------------------------------------------------------


def _logs(story: Story) -> dict[str, tuple[int, int]]:
    """The end of each connected peer's log, (term, index), by the latest that it showed of it."""
    logs: dict[str, tuple[int, int]] = {}
    for rpc in reversed(story.all_rpcs):
        if len(logs) == len(story.connected):
            break
        if rpc.method == INSTALL:
            continue
        reading = rpc.reading
        if reading is None:
            continue
        if rpc.source in story.connected and rpc.source not in logs:
            if rpc.method == VOTE:
                logs[rpc.source] = (reading.args.last_log_term, reading.args.last_log_index)
            else:
                logs[rpc.source] = (reading.last_term, reading.last_index)
        if rpc.method == APPEND and rpc.target in story.connected and rpc.target not in logs:
            answer = rpc.answered
            if answer is not None and answer.success:
                logs[rpc.target] = (reading.last_term, reading.last_index)
    return logs


def stale_candidates(story: Story) -> Finding | None:
    """Peers that cannot win campaign again and again, and the one that can does not."""
    since_ns = story.progress_ns
    campaigns = [campaign for campaign in story.campaigns if campaign.at_ns > since_ns]
    logs = _logs(story)
    if len(story.connected) < story.quorum or len(logs) < len(story.connected):
        return None
    able = {peer for peer, log in logs.items() if sum(log >= other for other in logs.values()) >= story.quorum}
    hopeless = [campaign for campaign in campaigns if campaign.peer not in able]
    if not able or len(hopeless) < 5 or len(hopeless) < 2 * (len(campaigns) - len(hopeless)):
        return None
    starved = max(sorted(able), key=lambda peer: _patience(story, peer, since_ns)[0])
    waited_ns, from_ns, denied = _patience(story, starved, since_ns)
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
        f"Since {at(since_ns)}: {len(found)} elections, {terms(found)}, and nothing was committed. Candidates that a "
        f"majority must refuse, by the end of their logs: {shown}. Peer {starved} could win (its log "
        f"{log_end(logs[starved])}) and {campaigned}: from {at(from_ns)} on it granted "
        f"no vote and heard no leader for {lasting(waited_ns)}, but it was asked for {len(denied)} votes that it "
        f"denied, and was never left alone for more than {lasting(peace_ns)}.",
        "denying a vote, or any RPC at all, resets the election timer, so those who cannot win keep the one who "
        "can from trying. Reset it only when granting a vote, hearing the current leader, or campaigning (§5.2).",
    )


def _patience(story: Story, peer: str, since_ns: int) -> tuple[int, int, list[int]]:
    """The longest time that peer let pass without campaigning, though nothing it may wait for happened:
    how long, since when, and when it denied votes meanwhile."""
    resets, denials = [since_ns, story.end_ns], []
    for rpc in story.rpcs:
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
