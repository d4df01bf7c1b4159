"""Delta debugging over a run: sets choices to defaults and removes acts, first in large groups, then one by one.

Promise: the result fails in the same way, at any time. The search is deterministic; only its CPU time limit can end it
early.

The order matters, because a run of twenty thousand events takes a second, and one of fifty a hundredth of that: first
whole kinds (all choices of the network, all queries of peers), then time ranges, then halves of what is left, down to
single items. An accepted change must reduce the cost of reading (`Attempt.cost`).

Start at `Search.run()`.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from itertools import permutations
from typing import Any

from msgspec.structs import replace as changed

from labrpc.conditions import Transit
from labsim.choices import ChoiceKind, ChoicePoint, Choices
from raftlab.tools.shrink.attempts import (
    Attempt,
    Attempts,
    FailureSignature,
    RunPlan,
    SeededDefaults,
    transits_of,
    with_grace_period,
)
from raftlab.tools.shrink.plan_edits import (
    AskedNs,
    disconnected_spans,
    rematch_messages,
    scale_delay,
    shift_acts,
    shift_choices,
    with_and_without_acts,
    with_numbered_commands,
    with_server_numbers,
    with_timeouts,
)
from raftlab.trace.events import SEND
from raftlab.trace.operations import NETWORK, RecordedSchedule, ScheduledOperation

_MS = 1_000_000
_SERVERS_MIN = 1
SHORT = 100  # events; a run this short needs no further tricks
_RANDOM_SEEDS = 40
_LONG = 400
_SEEDS = 8
_LONGER = 1.1
_PARTS = 48
_SNAPSHOT_EVERY = (2, 3, 5)
_REMATCHES = 2  # more attempts, with choices moved to the intended messages
_REMATCH_EVENTS_MAX = 1000  # events, of runs that get these attempts
_FEW = 100  # choices, of runs that get these attempts
_RANGE_NS = 60 * _MS
_LONG_NS = 150 * _MS
_OTHERS = 6  # sets of timeouts to try
_LITTLE_NS = 5 * _MS
_ROUND_NS = 20 * _MS  # without a message, between one heartbeat and the next
_PERMUTED_MAX = 3  # of more servers, only rotations are tried

# Expectations that wait for progress. Fewer faults only make progress easier, so the failure stays a failure. For other
# expectations a fault may be the reason.
_WAITS = frozenset(("one", "wait", "check_one_leader", "wait_for_leader", "finish", "_do"))

Progress = Callable[[Attempt, int], None]


class OutOfTime(Exception):
    """The CPU time limit is reached."""


class Search:
    """`best` is the best so far."""

    def __init__(
        self,
        attempts: Attempts,
        first: Attempt,
        signature: FailureSignature,
        *,
        limit_s: float,
        progress: Progress,
        clock: Callable[[], float] = time.process_time,
    ) -> None:
        self.best = first
        self._attempts = attempts
        self._signature = signature
        self._clock = clock
        self._until_s = clock() + limit_s
        self._progress = progress
        self.finished = True

    def run(self) -> Attempt:
        """Search until nothing more can be removed, or until the time limit. On Ctrl-C, `best` is valid."""
        try:
            before = None
            if self.best.plan.play is not None:
                self._keep_only_the_end()
            while before != self.best.cost:
                before = self.best.cost
                if self.best.plan.play is None:
                    self._drop_faults()
                    self._use_defaults(in_test=True)
                    self._prune_choices()
                    continue
                self._drop_kinds()
                self._use_defaults()
                self._drop_time_ranges()
                self._prune_acts()
                self._fewer_servers()
                self._small_snapshots()
                self._shorten()
                self._prune_choices()
                self._reduce_delays()
                self._permute_servers()
                self._try_random_timeouts()
                self._crash_disconnected_peers()
        except OutOfTime:
            self.finished = False
        finally:
            self._finish()
        return self.best

    def _finish(self) -> None:
        """End the run at its failure, without the grace period, and number the commands 1, 2, 3, ..."""
        plans = [self.best.plan, with_grace_period(self.best.plan)]
        if self.best.plan.play is not None:
            plans[:0] = [with_numbered_commands(plan) for plan in plans]
        for plan in plans:
            attempt = self._attempts.run_plan(plan)
            if attempt.signature == self._signature:
                self.best = replace(attempt, plan=plan)
                return

    # ---- trying ----------------------------------------------------------------------------------------------------

    def _try(
        self,
        plan: RunPlan,
        *,
        at_any_cost: bool = False,
        defaults: SeededDefaults | None = None,
        wanted_ns: AskedNs | None = None,
    ) -> bool:
        """Run the plan; if it fails the same way and costs less, it becomes the best. `defaults`: see
        Attempts.run_new(). `wanted_ns`: when the messages with choices should be sent (default: as in the best)."""
        attempt = self._run(plan, defaults)
        if attempt is None:
            return False
        wanted_ns = self.best.asked_ns if wanted_ns is None else wanted_ns
        rematch = plan.play is not None and len(plan.choices.chosen) <= _FEW and self.best.events < _REMATCH_EVENTS_MAX
        for _ in range(_REMATCHES if rematch else 0):
            if attempt is None or attempt.signature == self._signature:
                break
            choices = rematch_messages(plan.choices, wanted_ns, attempt.asked_ns)
            if choices is None:
                break
            attempt = self._run(replace(plan, choices=choices), defaults)
        if attempt is None or attempt.signature != self._signature:
            return False
        if attempt.cost >= self.best.cost and not at_any_cost:
            return False
        if plan.play is None and attempt.events > _LONGER * self.best.events:
            return False  # a test with fewer faults may take longer
        self.best = attempt
        self._progress(attempt, self._attempts.count)
        return True

    def _run(self, plan: RunPlan, defaults: SeededDefaults | None) -> Attempt | None:
        if self._clock() > self._until_s:
            raise OutOfTime
        return self._attempts.run_new(with_grace_period(plan), defaults)

    @property
    def _play(self) -> RecordedSchedule:
        assert self.best.plan.play is not None
        return self.best.plan.play

    def _try_acts(self, acts: Sequence[ScheduledOperation], **how: Any) -> bool:
        return self._try(replace(self.best.plan, play=changed(self._play, acts=list(acts), **how)))

    def _try_without_time(
        self, acts: Sequence[ScheduledOperation], from_ns: int, by_ns: int, end_ns: int, *, others: int = 0
    ) -> bool:
        """Try the plan without the time range of `by_ns` before `from_ns`. `others`: also try this many other sets of
        timeouts, because peers that receive fewer messages need other timeouts."""
        best = self.best
        choices = shift_choices(best.plan.choices, best.asked_ns, from_ns, by_ns)
        wanted_ns = {key: ns - by_ns if ns >= from_ns else ns for key, ns in best.asked_ns.items()}
        play = changed(self._play, acts=list(acts), end_ns=end_ns)
        servers = play.how.get("servers", 3)
        timeouts = (with_timeouts(choices, seed, servers) for seed in range(others))
        return any(
            self._try(RunPlan(each, play, best.plan.fails_at_end), wanted_ns=wanted_ns) for each in (choices, *timeouts)
        )

    def _try_choices(self, keep: Callable[[ChoicePoint, int], bool], *, picks: bool = True) -> bool:
        choices = Choices()
        choices.chosen = {key: value for key, value in self.best.plan.choices.chosen.items() if keep(*key)}
        choices.picked = dict(self.best.plan.choices.picked) if picks else {}
        return self._try(replace(self.best.plan, choices=choices))

    # ---- large groups ----------------------------------------------------------------------------------------------

    def _keep_only_the_end(self) -> None:
        """Replace a long run by its last part, with random choices: such runs take a fraction of the time."""
        play = self._play
        if self.best.events <= _LONG:
            return
        for part in (16, 8, 4, 2):
            from_ns = play.end_ns - play.end_ns // part
            acts = [act for act in play.acts if act.at_ns >= from_ns or act.sets_up]
            later = changed(play, acts=shift_acts(acts, from_ns, from_ns), end_ns=play.end_ns - from_ns)
            plan = replace(self.best.plan, choices=Choices(), play=later)
            if any(self._try(plan, defaults=SeededDefaults(seed, randomize_all=True)) for seed in range(_SEEDS)):
                return

    def _drop_kinds(self) -> None:
        """Remove all queries of peers, then all acts of each other kind, the most frequent first."""
        self._try_acts([act for act in self._play.acts if act.ends_something])
        if self._play.how.get("unreliable"):
            reliable = {key: value for key, value in self._play.how.items() if key != "unreliable"}
            self._try(replace(self.best.plan, play=changed(self._play, how=reliable)))
        kinds: dict[str, int] = {}
        for act in self._play.acts:
            if not act.ends_something:
                kinds[act.does] = kinds.get(act.does, 0) + 1
        for kind in sorted(kinds, key=lambda kind: (kind != "get_state", -kinds[kind], kind)):
            self._try_acts([act for act in self._play.acts if act.does != kind or act.ends_something])

    def _use_defaults(self, *, in_test: bool = False) -> None:
        """Set choices to their defaults: all, then each kind, then each link."""
        chosen = self.best.plan.choices
        if in_test:
            # All except faults, which a reader looks for first.
            randomize_all = dict.fromkeys(key for key in chosen.chosen if key[0][0] != ChoiceKind.FAULT)
            if randomize_all:
                self._try_choices(lambda place, _: place[0] == ChoiceKind.FAULT, picks=False)
        elif chosen.chosen or chosen.picked:
            self._try_choices(lambda place, _: False, picks=False)
            self._try_choices(lambda place, _: place[0] == ChoiceKind.NODE, picks=False)
        if self.best.plan.choices.picked:
            self._try_choices(lambda place, _: True, picks=False)
        for kind in dict.fromkeys(place[0] for place, _ in self.best.plan.choices.chosen):
            if kind != ChoiceKind.FAULT:
                self._try_choices(lambda place, _, kind=kind: place[0] != kind)  # type: ignore[misc]
        for link in dict.fromkeys(place[:2] for place, _ in self.best.plan.choices.chosen):
            if link[0] != ChoiceKind.FAULT:
                self._try_choices(lambda place, _, link=link: place[:2] != link)  # type: ignore[misc]

    def _drop_time_ranges(self) -> None:
        """Remove time ranges with the acts in them."""
        size_ns = self._play.end_ns // 2
        while size_ns > (_RANGE_NS if self.best.events < _LONG else 2 * _RANGE_NS):
            begin_ns = 0
            while begin_ns < self._play.end_ns:
                play, end_ns = self._play, begin_ns + size_ns
                inside = [act for act in play.acts if begin_ns <= act.at_ns < end_ns and not act.ends_something]
                before = shift_acts([act for act in play.acts if act not in inside], end_ns, min(size_ns, play.end_ns))
                shorter_ns = max(begin_ns, play.end_ns - size_ns)
                others = _OTHERS if self.best.events < _LONG and size_ns > _LONG_NS else 0
                if not self._try_without_time(before, end_ns, size_ns, shorter_ns, others=others) and not (
                    inside and self._try_acts([act for act in play.acts if act not in inside])
                ):
                    begin_ns += size_ns
            size_ns //= 2

    # ---- one by one ------------------------------------------------------------------------------------------------

    def _prune_acts(self) -> None:
        def without(removed: Sequence[ScheduledOperation]) -> bool:
            ids = {id(act) for act in removed}
            return self._try_acts([act for act in self._play.acts if id(act) not in ids])

        self._prune(lambda: [act for act in self._play.acts if not act.ends_something], without)
        if not any(act.does.startswith(NETWORK) and not act.ends_something for act in self._play.acts):
            # No link is cut, so repairs are not needed.
            self._prune(lambda: [act for act in self._play.acts if act.does.startswith(NETWORK)], without)

    def _prune_choices(self) -> None:
        def without(removed: Sequence[tuple[ChoicePoint, int]]) -> bool:
            dropped = set(removed)
            return self._try_choices(lambda place, ordinal: (place, ordinal) not in dropped)

        def picks_without(removed: Sequence[tuple[int, int]]) -> bool:
            choices = Choices()
            choices.chosen = dict(self.best.plan.choices.chosen)
            choices.picked = {key: task for key, task in self.best.plan.choices.picked.items() if key not in removed}
            return self._try(replace(self.best.plan, choices=choices))

        self._prune(lambda: [key for key in self.best.plan.choices.chosen if key[0][0] != ChoiceKind.FAULT], without)
        self._prune(lambda: list(self.best.plan.choices.picked), picks_without)

    def _prune(self, left: Callable[[], list[Any]], without: Callable[[Any], bool]) -> None:
        """Remove halves, quarters, ... of what is left; of very many items not single ones in the first round."""
        size = max(1, (len(left()) + 1) // 2)
        least = max(1, len(left()) // _PARTS)
        while True:
            begin = 0
            while begin < len(items := left()):
                if not without(items[begin : begin + size]):
                    begin += size
            if size <= least:
                return
            size = max(least, (size + 1) // 2)

    def _reduce_delays(self) -> None:
        """Simplify each message that is delayed or duplicated: only one of these, or a shorter delay."""
        for key in list(transits_of(self.best.plan.choices)):
            while (transit := transits_of(self.best.plan.choices).get(key)) is not None:
                simpler = (
                    [Transit(duplicate_ns=transit.duplicate_ns), changed(transit, duplicate_ns=None)]
                    if transit.duplicate_ns
                    else []
                )
                simpler += [scale_delay(transit, part) for part in (0.1, 0.5)]
                late = max(transit.delay_ns, transit.duplicate_ns or 0) > _LITTLE_NS and not transit.lost
                if not late or not any(self._try_transit(key, one) for one in simpler):
                    break

    def _try_transit(self, key: tuple[ChoicePoint, int], transit: Transit) -> bool:
        choices = Choices()
        choices.chosen = {**self.best.plan.choices.chosen, key: transit}
        choices.picked = self.best.plan.choices.picked
        return self._try(replace(self.best.plan, choices=choices))

    def _drop_faults(self) -> None:
        """Remove faults of a test. Each fault is a choice, and its default is not to remove it."""
        where = self._signature.where
        if where is None or where.called not in _WAITS:
            return
        counts: dict[ChoicePoint, int] = {}
        for cluster in self.best.notes.clusters:
            for place in cluster.faults:
                counts[place] = counts.get(place, 0) + 1
        removed = [key for key in self.best.plan.choices.chosen if key[0][0] == ChoiceKind.FAULT]
        for place, count in counts.items():
            dropped = sum(key[0] == place for key in removed)
            left = [(place, n) for n in range(1, count + dropped + 1) if (place, n) not in removed]
            self._try_dropping(left) or [self._try_dropping([key]) for key in left if len(left) > 1]

    def _try_dropping(self, keys: Sequence[tuple[ChoicePoint, int]]) -> bool:
        choices = Choices()
        choices.chosen = {**self.best.plan.choices.chosen, **dict.fromkeys(keys, False)}
        choices.picked = dict(self.best.plan.choices.picked)
        return self._try(replace(self.best.plan, choices=choices))

    # ---- time, servers, roles --------------------------------------------------------------------------------------

    def _shorten(self) -> None:
        """Shorten the time between two acts and before the end: to none, a tenth, 30% or 70% of it, or by whole
        heartbeats."""
        for number in range(len(self._play.acts) + 1):
            if number > len(self._play.acts):
                return
            if number < len(self._play.acts) or self.best.plan.fails_at_end:
                any(self._try_cut(number, less_ns) for less_ns in self._time_cuts(number))

    def _time_cuts(self, number: int) -> list[int]:
        """How much earlier an act may come. Whole heartbeats keep its distance from the previous heartbeat."""
        begin_ns, at_ns = self._time_before(number)
        times = [event.at_ns for event in self.best.trace if event.kind == SEND and begin_ns < event.at_ns < at_ns]
        rounds = [ns for before_ns, ns in zip([0, *times], times, strict=False) if ns - before_ns > _ROUND_NS]
        shorter = [int((at_ns - begin_ns) * (1 - part)) for part in (0.0, 0.1, 0.3, 0.7)]
        if self.best.events < _LONG:
            shorter += [rounds[-1] - rounds[n] for n in sorted({0, 1, len(rounds) // 2}) if n < len(rounds) - 1]
        return [less_ns for less_ns in shorter if less_ns >= 5 * _MS]

    def _time_before(self, number: int) -> tuple[int, int]:
        play = self._play
        at_ns = play.acts[number].at_ns if number < len(play.acts) else play.end_ns
        return (play.acts[number - 1].at_ns if number else 0), at_ns

    def _try_cut(self, number: int, less_ns: int) -> bool:
        at_ns, play = self._time_before(number)[1], self._play
        others = _OTHERS if self.best.events > SHORT and less_ns > _LONG_NS else 0
        acts = shift_acts(play.acts, at_ns, less_ns)
        return self._try_without_time(acts, at_ns, less_ns, play.end_ns - less_ns, others=others)

    def _fewer_servers(self) -> None:
        while (servers := self._play.how.get("servers", 3)) > _SERVERS_MIN:
            fewer = [
                plan for removed in reversed(range(servers)) if (plan := self._without_server(removed)) is not None
            ]
            if not any(self._try(plan) for plan in fewer):
                return

    def _small_snapshots(self) -> None:
        """Let services make snapshots more often, so that fewer commands are needed."""
        if not self._play.how.get("snapshot") or self._play.snapshot_every is not None:
            return
        for every in _SNAPSHOT_EVERY:
            if self._try(replace(self.best.plan, play=changed(self._play, snapshot_every=every)), at_any_cost=True):
                self._prune_acts()
                return

    def _without_server(self, removed: int) -> RunPlan | None:
        names = {i: i - (i > removed) for i in range(self._play.how.get("servers", 3))}
        names[removed] = -1
        return with_server_numbers(self.best.plan, names, servers=len(names) - 1)

    def _permute_servers(self) -> None:
        """Renumber the servers, so that the right one leads with default timeouts."""
        if not any(place[0] == ChoiceKind.NODE for place, _ in self.best.plan.choices.chosen):
            return
        servers = range(self._play.how.get("servers", 3))
        if len(servers) <= _PERMUTED_MAX:
            orders: Iterator[Sequence[int]] = iter(permutations(servers))
        else:
            orders = iter([*servers[shift:], *servers[:shift]] for shift in servers)
        for order in orders:
            plan = with_server_numbers(self.best.plan, dict(zip(servers, order, strict=True)), servers=len(servers))
            choices = Choices()
            choices.chosen = {key: value for key, value in plan.choices.chosen.items() if key[0][0] != ChoiceKind.NODE}
            if self._try(replace(plan, choices=choices)):
                return

    def _try_random_timeouts(self) -> None:
        """Try fewer servers with random timeouts: two candidates in one term, say, do not need seven servers. If
        scheduling or delays matter, randomize these, too."""
        if self.best.events <= SHORT:
            return
        servers = self._play.how.get("servers", 3)
        has_picks = bool(self.best.plan.choices.picked)
        for fewer in range(2, servers + 1):
            plan = with_server_numbers(
                self.best.plan, {i: i if i < fewer else -1 for i in range(servers)}, servers=fewer
            )
            for seed in range(_RANDOM_SEEDS):
                choices = with_timeouts(Choices(), seed, fewer)
                if any(
                    self._try(one, defaults=SeededDefaults(seed) if has_picks else None)
                    for one in with_and_without_acts(plan, choices)
                ):
                    return
            for seed in range(_RANDOM_SEEDS // 2):
                if self._try(replace(plan, choices=Choices()), defaults=SeededDefaults(seed, randomize_all=True)):
                    return

    def _crash_disconnected_peers(self) -> None:
        """Crash disconnected peers: a disconnected peer keeps sending messages, a crashed one does not."""
        if self.best.events <= SHORT:
            return
        for peer, from_ns, until_ns in disconnected_spans(self._play.acts):
            play = self._play
            given = [act.at_ns for act in play.acts if act.peer == peer and from_ns <= act.at_ns < until_ns]
            crash = ScheduledOperation(max(from_ns, *given, 0) + _MS, "crash1", [peer])
            before = [act for act in play.acts if act.at_ns <= crash.at_ns]
            meanwhile = [act for act in play.acts if crash.at_ns < act.at_ns < until_ns]
            after = [act for act in play.acts if act.at_ns >= until_ns and act.at_ns > crash.at_ns]
            back = (
                [ScheduledOperation(until_ns, "start1", [peer]), ScheduledOperation(until_ns, "connect", [peer])]
                if after
                else []
            )
            self._try_acts([*before, crash, *meanwhile, *back, *after])
