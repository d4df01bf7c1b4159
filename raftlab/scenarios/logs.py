"""Creates logs with given terms by a history that Raft allows: who led each term, and what it replicated to whom.

Entries reach each peer as late as possible, because a peer with a shorter log votes for more candidates. Logs that no
such lazy history produces cannot be produced at all by leaders that send all their entries, as most do.

Why: one leader created all entries of a term, so all logs with entries of that term have the same entries before them,
and no more of them than the leader created. Whether it can be elected depends on that common prefix and on the other
logs at that time. These grow only when a peer leads, or receives the last entries of its own log: in their term, or
from a later leader that begins with exactly this log.

Start at `plan_history()`; `HistoryBuilder` executes the history, message by message, on any peer.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from itertools import islice, pairwise, product, zip_longest
from math import prod
from typing import TYPE_CHECKING, NamedTuple

if TYPE_CHECKING:
    from raftlab.scenarios.scenario import Scenario

_ASSIGNMENTS_MAX = 2_000


class IllegalLogs(ValueError):
    """No history produces these logs. The text names the term at fault."""


class TermPlan(NamedTuple):
    """What happens in one term."""

    term: int
    leader: int
    first: int  # the index of the term's first entry
    last: int  # of its last one
    replicated: dict[int, int]  # by follower: up to which index it gets the leader's log in this term
    committed: int  # the index up to which its holders learn in this term that entries are committed; 0: none


def plan_history(logs: Sequence[Sequence[int]], commit: int = 0) -> list[TermPlan]:
    """Who led each term, and what it replicated to whom. Raises IllegalLogs."""
    spans = _spans(logs)
    holders = _holders_of_commit(logs, commit)
    at_fault = (0, "")
    for afterwards in (False, True):
        best: list[TermPlan] = []
        for leaders in _assignments(logs, spans):
            plans = _plan_terms(logs, spans, leaders, commit, holders, afterwards=afterwards)
            fault = _first_impossible_term(logs, plans)
            if fault is not None:
                at_fault = at_fault if afterwards else max(at_fault, fault)
            elif not _repeated_leaders(plans):
                return plans
            elif not best or _repeated_leaders(plans) < _repeated_leaders(best):
                best = plans
        if best or not spans:
            return best
    if prod(len(possible) for possible in _possible_leaders(logs, spans)) > _ASSIGNMENTS_MAX:
        raise IllegalLogs(f"found no history in {_ASSIGNMENTS_MAX:,} attempts; try fewer terms or peers")
    raise IllegalLogs(at_fault[1])


def _repeated_leaders(plans: Sequence[TermPlan]) -> int:
    """How often one peer leads two consecutive terms: a leader must be restarted to campaign again."""
    return sum(one.leader == other.leader for one, other in pairwise(plans))


def _spans(logs: Sequence[Sequence[int]]) -> dict[int, tuple[int, int]]:
    """By term: the indexes of the first and the last entry that its leader created."""
    spans: dict[int, tuple[int, int]] = {}
    first_with: dict[int, int] = {}  # by term: a peer whose log has it
    for peer, log in enumerate(logs):
        for before, (index, term) in zip([0, *log], enumerate(log, start=1), strict=False):
            if term < 1:
                raise IllegalLogs(f"peer {peer} has term {term} at index {index}; terms begin with 1")
            if term < before:
                raise IllegalLogs(
                    f"peer {peer} has term {term} at index {index} after term {before}: terms never decrease"
                )
            if term != before:
                first, last = spans.get(term, (index, index))
                other = first_with.setdefault(term, peer)
                if list(logs[other][: first - 1]) != list(log[: index - 1]):
                    raise IllegalLogs(
                        f"peers {other} and {peer} both have entries of term {term}, but different entries before "
                        "them; the leader of a term has only one log (log matching, §5.3)"
                    )
                spans[term] = (first, last)
            spans[term] = (spans[term][0], max(spans[term][1], index))
    return dict(sorted(spans.items()))


def _holders_of_commit(logs: Sequence[Sequence[int]], commit: int) -> list[int]:
    if not commit:
        return []
    holders: dict[tuple[int, ...], list[int]] = {}
    for peer, log in enumerate(logs):
        if len(log) >= commit:
            holders.setdefault(tuple(log[:commit]), []).append(peer)
    most = max(holders.values(), key=len, default=[])
    if 2 * len(most) <= len(logs):
        raise IllegalLogs(
            f"index {commit} cannot be committed: only {len(most)} of {len(logs)} peers have the same entry"
        )
    return most


def _possible_leaders(logs: Sequence[Sequence[int]], spans: Mapping[int, tuple[int, int]]) -> list[list[int]]:
    """The peers that may have led each term: those with all its entries. Each list begins with another peer."""
    choices = []
    for i, (term, (_, last)) in enumerate(spans.items()):
        possible = [peer for peer, log in enumerate(logs) if len(log) >= last and log[last - 1] == term]
        shift = i % len(possible)
        choices.append(possible[shift:] + possible[:shift])
    return choices


def _assignments(logs: Sequence[Sequence[int]], spans: Mapping[int, tuple[int, int]]) -> Iterator[dict[int, int]]:
    for leaders in islice(product(*_possible_leaders(logs, spans)), _ASSIGNMENTS_MAX):
        yield dict(zip(spans, leaders, strict=True))


def _plan_terms(
    logs: Sequence[Sequence[int]],
    spans: Mapping[int, tuple[int, int]],
    leaders: Mapping[int, int],
    commit: int,
    holders: Sequence[int],
    *,
    afterwards: bool,
) -> list[TermPlan]:
    """`afterwards`: of peers with equal logs only one gets its log in time. Finally it is elected in a term without
    entries, and replicates the log to the others."""
    replicated: dict[int, dict[int, int]] = {term: {} for term in spans}

    def schedule(peer: int, length: int, before: int) -> None:
        """The peer must have its log up to `length` before the term `before`: replicate it as late as possible."""
        if not length or leaders[logs[peer][length - 1]] == peer:
            return  # it created these entries
        term = logs[peer][length - 1]
        for later in spans:
            # Any leader that begins with exactly this log can replicate it.
            begins = logs[leaders[later]][: spans[later][0] - 1]
            if term < later < before and list(begins) == list(logs[peer][:length]) and leaders[later] != peer:
                term = later
        replicated[term][peer] = max(length, replicated[term].get(peer, 0))

    peers_by_log: dict[tuple[int, ...], list[int]] = {}
    for peer, log in enumerate(logs):
        peers_by_log.setdefault(tuple(log), []).append(peer)
    end = max(spans, default=0) + 1
    for log, peers in peers_by_log.items():
        authors = [peer for peer in peers if log and leaders[log[-1]] == peer]
        peers.sort(key=lambda peer: peer not in authors)
        for peer in peers[:1] if afterwards else peers:
            schedule(peer, len(log), end)
    for term, leader in leaders.items():
        schedule(leader, spans[term][0] - 1, term)
    commit_term = logs[holders[0]][commit - 1] if commit else 0
    for peer in holders:
        schedule(peer, commit, commit_term + 1)
    plans = [
        TermPlan(term, leaders[term], first, last, replicated[term], commit if term == commit_term else 0)
        for term, (first, last) in spans.items()
    ]
    if afterwards:
        groups = [(log, peers) for log, peers in peers_by_log.items() if log and len(peers) > 1]
        for log, (first, *others) in sorted(groups, key=lambda group: (group[0][-1], len(group[0]))):
            plans.append(TermPlan(end, first, len(log) + 1, len(log), dict.fromkeys(others, len(log)), 0))
            end += 1
    return plans


def _first_impossible_term(logs: Sequence[Sequence[int]], plans: Sequence[TermPlan]) -> tuple[int, str] | None:
    """The first term whose leader could not be elected, and why."""
    length = [0] * len(logs)
    for plan in plans:
        begin = plan.first - 1
        leader_log = logs[plan.leader]
        end = (leader_log[begin - 1] if begin else 0, begin)
        voters = [peer for peer in range(len(logs)) if (_last_term(logs[peer], length[peer]), length[peer]) <= end]
        if 2 * len(voters) <= len(logs):
            others = [peer for peer in range(len(logs)) if peer not in voters]
            return plan.term, (
                f"the leader of term {plan.term} had {begin} {'entry' if begin == 1 else 'entries'}, the last of term "
                f"{end[0]}; by then the logs of peers {_joined(others)} were more up to date, so that leader could "
                "not win a majority (§5.4.1)"
            )
        length[plan.leader] = plan.last
        for peer, up_to in plan.replicated.items():
            length[peer] = max(length[peer], up_to)
    return None


def _last_term(log: Sequence[int], length: int) -> int:
    return log[length - 1] if length else 0


def _joined(peers: Sequence[int]) -> str:
    return ", ".join(map(str, peers))


class HistoryBuilder:
    """Executes a history: elections, commands and AppendEntries between real peers."""

    def __init__(self, scenario: Scenario) -> None:
        self._scenario = scenario

    def build(self, history: Sequence[TermPlan]) -> None:
        for plan, following in zip_longest(history, history[1:]):
            self._elect(plan)
            self._fill(plan)
            # The next leader deposes this one. If there is none, or it is the same peer, restart it: leaders do not
            # campaign.
            if following is None or following.leader == plan.leader:
                self._scenario.run_until_save(plan.leader)  # it may save its own entries later
                self._scenario.crash(plan.leader)
                self._scenario.restart(plan.leader)
            self._scenario.drop()

    def _elect(self, plan: TermPlan) -> None:
        """All peers get a RequestVote, so that all are in the same term."""
        scenario, leader = self._scenario, plan.leader
        scenario.campaign(leader, term=plan.term)
        for other in range(scenario.config.n):
            if other != leader:
                scenario.ask_vote(leader, other)
        scenario.expect_leader(leader, term=plan.term)

    def _fill(self, plan: TermPlan) -> None:
        scenario, leader = self._scenario, plan.leader
        length = plan.first - 1
        stops = {plan.last, *plan.replicated.values(), *([plan.committed] if plan.committed else [])}
        for stop in sorted(stop for stop in stops if stop >= length):
            while length < stop:
                length += 1
                scenario.start(leader, f"i{length}t{plan.term}")
            committed_now = stop == plan.committed
            followers = sorted(
                peer
                for peer, up_to in plan.replicated.items()
                if up_to == stop or (committed_now and up_to > stop and up_to >= plan.first)
            )
            for follower in followers:
                # Entries that must not be committed must not be acknowledged to the leader.
                scenario.replicate(leader, [follower], deliver_last_reply=stop <= plan.committed)
            if committed_now:
                scenario.expect_applied_up_to(leader, stop)
                scenario.update(leader, followers)
