"""What comes next in a random run: steps of the scenario language, drawn as things stand.

A move is an idea that takes a few steps: an election, a command and who gets it, a crash and the restart. Its steps are
simple ones (a campaign, a delivery), and each is drawn when the one before it is over, so that nearly all of them make
sense. Which moves a run likes is drawn first: a run that does everything a little finds less than many runs that each
do a few things often.

Start at `Drawer.draw()`.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from random import Random
from typing import TypeVar

from labrpc.message import Message
from labrpc.network import QueuedMessage
from raftlab.scenarios.in_flight import direction, kind_of, term_of
from raftlab.scenarios.scenario import Scenario

T = TypeVar("T")
StepSequence = Iterator[str]

MOMENTS = ("before save", "after save", "after reply")
_WEIGHT_FACTORS = (0.0, 0.3, 1.0, 1.0, 3.0)
_ELECT_FIRST = 0.5
_EMPTY_MAX = 100  # moves in a row that nobody can make as things stand


class StepGenerator:
    """Draws the steps of one run."""

    def __init__(self, scenario: Scenario, random: Random, *, snapshots: bool) -> None:
        self._scenario = scenario
        self._config = scenario.config
        self._random = random
        self._sequence: StepSequence = iter(())
        self._commands = 0
        self._snapshots = snapshots
        weights: dict[Callable[[], StepSequence], float] = {
            self._elect: 6,
            self._depose_leader: 6,
            self._candidate_without_entry: 3,
            self._rivals: 2,
            self._campaign: 2,
            self._start: 16,
            self._replicate: 16,
            self._deliver_one: 10,
            self._drop: 4,
            self._duplicate: 3,
            self._redeliver: 5,
            self._deliver_all: 5,
            self._crash: 2,
            self._crash_and_restart: 3,
            self._crash_at: 4,
            self._restart: 12,
            self._pause: 1.5,
            self._resume: 6,
            self._partition: 1,
            self._heal: 4,
            self._busy: 1.5,
            self._ready: 6,
            self._run_one: 3,
            self._run_all: 3,
        }
        if snapshots:
            weights[self._snapshot] = 8
            weights[self._install_snapshot] = 16
            weights[self._outdated_snapshot] = 6
            weights[self._snapshot_while_busy] = 8
        self._generators = list(weights)
        self._weights = [weight * random.choice(_WEIGHT_FACTORS) for weight in weights.values()]
        needed_ones = [self._elect, self._start, self._replicate, self._restart, self._resume, self._heal, self._ready]
        for needed in [*needed_ones, *([self._snapshot, self._install_snapshot] if snapshots else [])]:
            place = self._generators.index(needed)
            self._weights[place] = max(self._weights[place], weights[needed] * _WEIGHT_FACTORS[1])

    def draw(self) -> str:
        """The next step. It may be one that makes no sense after all; then it is left out."""
        for _ in range(_EMPTY_MAX):
            step = next(self._sequence, None)
            if step is not None:
                return step
            self._sequence = self._choose_sequence()
        return next(self._run_all())

    def _choose_sequence(self) -> StepSequence:
        # Without a leader little can happen, and without a majority nobody gets to be one.
        if not self._leaders() and self._random.random() < _ELECT_FIRST:
            enough = len(self._awake()) > self._config.n // 2
            return self._elect() if enough else self._random.choice((self._restart, self._resume))()
        (generator,) = self._random.choices(self._generators, self._weights)
        return generator()

    # ---- who there is -----------------------------------------------------------------------------------------------

    def _up(self) -> list[int]:
        return [i for i in range(self._config.n) if self._config.is_up(i)]

    def _down(self) -> list[int]:
        return [i for i in range(self._config.n) if not self._config.is_up(i)]

    def _paused(self) -> list[int]:
        return [i for i in self._up() if self._config.is_paused(i)]

    def _awake(self) -> list[int]:
        return [i for i in self._up() if not self._config.is_paused(i)]

    def _leaders(self) -> list[int]:
        """Whoever thinks that it leads, as far as messages tell."""
        peers = self._scenario.checker.facts.peers
        # Who has won an election, and has not shown a later term since.
        return [i for i in self._awake() if 0 < peers[str(i)].elected_term == peers[str(i)].observed_term]

    def _leader(self) -> int | None:
        """Mostly that of the latest term."""
        leaders = self._leaders()
        if not leaders or self._random.random() < 0.2:
            return self._one_of(leaders)
        facts = self._scenario.checker.facts
        return max(leaders, key=lambda i: facts.peers[str(i)].observed_term)

    def _one_of(self, things: Sequence[T]) -> T | None:
        return self._random.choice(things) if things else None

    def _some_of(self, things: Sequence[T]) -> list[T]:
        """At least one, if there is one."""
        return self._random.sample(things, self._random.randint(1, len(things))) if things else []

    def _others(self, i: int) -> list[int]:
        return [other for other in self._awake() if other != i]

    # ---- moves: elections, commands -------------------------------------------------------------------------------

    def _campaign(self) -> StepSequence:
        leaders = self._leaders()
        candidate = self._one_of([i for i in self._awake() if i not in leaders])
        if candidate is not None and not self._scenario.observations.never_campaigns:
            yield f"campaign {candidate}"

    def _elect(self) -> StepSequence:
        """Mostly somebody whom a majority can vote for, and those."""
        leaders = self._leaders()
        candidates = [i for i in self._awake() if i not in leaders]
        electable = self._can_win(candidates, self._awake())
        if electable and self._random.random() < 0.9:
            candidate = self._random.choice(list(electable))
            asked = electable[candidate]
        elif candidates:
            candidate = self._random.choice(candidates)
            asked = self._others(candidate)
        else:
            return
        rival = self._random.choice(candidates)
        if rival != candidate and self._random.random() < 0.1 and not self._scenario.observations.never_campaigns:
            yield f"campaign {rival}"  # in the same term, perhaps, and who is asked hears of it later
        yield from self._win_election(candidate, asked)

    def _can_win(self, candidates: Sequence[int], voters: Sequence[int]) -> dict[int, list[int]]:
        """Those for whom enough of the voters can vote, and who can."""
        can = {i: [voter for voter in voters if voter != i and self._may_vote(voter, i)] for i in candidates}
        return {i: those for i, those in can.items() if len(those) >= self._config.n // 2}

    def _win_election(self, candidate: int, asked: Sequence[int]) -> StepSequence:
        """It campaigns, and of those asked enough answer, if there are enough."""
        observations = self._scenario.observations
        if observations.never_campaigns:
            yield f"run {candidate} {self._random.choice((700, 1500))}ms"
            yield "deliver"
            return
        if observations.ignores_vote_requests:
            # These take no notice of it until they have not heard their leader for long (§6), and may campaign then.
            for voter in asked:
                yield f"run {voter} {self._random.choice((300, 700))}ms"
            term = 1 + max(self._scenario.checker.facts.peers[str(i)].observed_term for i in (candidate, *asked))
            yield f"campaign {candidate} term {term}"
        else:
            yield f"campaign {candidate}"
        term = observations.campaigns[candidate]
        enough = min(self._config.n // 2, len(asked))
        for voter in self._random.sample(asked, self._random.randint(enough, len(asked))):
            yield from self._exchange(candidate, voter, "vote", f" term {term}")

    def _depose_leader(self) -> StepSequence:
        """A leader whose last commands few others have gets a successor without those: they are not to stay.

        Who has them hears of it by entries or by a snapshot, and may lead next, while answers to what it asked in its
        first term are still on their way.
        """
        leader = self._leader()
        others = [] if leader is None else self._others(leader)
        enough = self._config.n // 2 + 1
        if leader is None or len(others) < enough:
            return
        most = len(others) - enough
        few = self._random.sample(others, self._random.choice((most, self._random.randint(0, most))))
        rest = [other for other in others if other not in few]
        yield from self._start_commands(leader, self._random.randint(1, 3))
        for follower in few:
            if not self._between(leader, follower, "append"):
                yield f"heartbeat {leader}"
            yield from self._exchange(leader, follower, "append", answered=0.5)
        electable = self._can_win(rest, rest)
        if not electable:
            return
        successor = self._random.choice(list(electable))
        yield from self._win_election(successor, electable[successor])
        if successor not in self._leaders():
            return
        yield from self._start_commands(successor, self._random.randint(1, 2))
        yield from self._replicate_to(successor, [other for other in rest if other != successor])
        if self._snapshots and self._random.random() < 0.5:
            yield from self._shorten_log(successor)
        deposed = [leader, *few]
        yield from self._replicate_to(successor, self._some_of(deposed))
        again = self._random.choice(deposed)
        if again not in self._awake() or self._random.random() < 0.3:
            return
        if self._random.random() < 0.3:
            yield f"crash {again}"  # what it has on its disk is what it leads with
            yield f"restart {again}"
        yield from self._win_election(again, self._others(again))
        if again in self._leaders():
            yield from self._start_commands(again, 1)
            # Just short of a majority, perhaps: one old answer that counts is then one too many.
            short = self._random.sample(self._others(again), min(self._config.n // 2 - 1, len(self._others(again))))
            yield from self._replicate_to(again, self._random.choice((short, self._some_of(self._others(again)))))
        for queued in [
            queued for queued in self._scenario.queued if queued.is_reply and queued.message.source == str(again)
        ][:3]:
            if queued in self._scenario.queued:
                yield f"deliver {self._named(queued)}"

    def _candidate_without_entry(self) -> StepSequence:
        """Just enough have a command for it to be committed, and somebody who lacks it asks everybody for votes."""
        leader = self._leader()
        others = [] if leader is None else self._others(leader)
        half = self._config.n // 2
        if leader is None or len(others) <= half:
            return
        yield from self._start_commands(leader, 1)
        having = self._random.sample(others, half)
        yield from self._update(leader, having)
        lacking = [other for other in others if other not in having and other in self._awake()]
        candidate = self._one_of(lacking)
        if candidate is None:
            return
        if self._snapshots and len(lacking) > 1 and self._random.random() < 0.5:
            # Another who lacked it has it by a snapshot, and in no entry.
            yield from self._shorten_log(leader)
            yield from self._replicate_to(leader, [other for other in lacking if other != candidate])
        yield from self._win_election(candidate, self._others(candidate))

    def _rivals(self) -> StepSequence:
        """Two ask in one term. Who has voted for the first forgets it, perhaps, before it hears the second: it crashes,
        has the first as its leader and crashes again, or gets a snapshot of it."""
        leader = self._leader()
        behind = None
        if leader is not None and self._snapshots and self._random.random() < 0.5:
            behind = self._one_of(self._others(leader))
            yield from self._leave_behind_others(behind, leader)
        if leader is not None and (self._config.n == 3 or behind is not None):
            yield f"crash {leader}"
            yield f"restart {leader}"
        candidates = [i for i in self._awake() if i not in self._leaders()]
        electable = self._can_win([i for i in candidates if i != behind], self._awake())
        if len(candidates) < 3 or not electable or self._scenario.observations.hard_to_elect:
            return
        first = self._random.choice(list(electable))
        voter, *others = self._random.sample(electable[first], len(electable[first]))
        if behind in others:
            others[others.index(behind)], voter = voter, behind
        second = self._one_of([i for i in candidates if i not in (first, voter)])
        if second is None:
            return
        term = 1 + max(self._scenario.checker.facts.peers[str(i)].observed_term for i in (first, second))
        yield f"campaign {first} term {term}"
        for asked in [voter, *(other for other in others if other != second)]:
            yield from self._exchange(first, asked, "vote", f" term {term}")
        if first in self._leaders() and voter == behind:
            for _ in range(2):
                yield from self._replicate_to(first, [voter])
            crashes = 1
        elif first in self._leaders() and self._snapshots and self._random.random() < 0.5:
            yield from self._send_snapshot(first, voter)
            crashes = self._random.randint(0, 1)
        else:
            crashes = self._random.randint(1, 2)
        for _ in range(crashes):
            if self._snapshots and voter in self._awake() and (applied := self._config.applied(voter)):
                yield f"snapshot {voter} {max(applied)}"  # it saves, and its log grows no longer than the second's
            yield f"crash {voter}"
            yield f"restart {voter}"
            if first in self._leaders():
                yield from self._replicate_to(first, [voter])
        # Not before: what is on its way to who crashes is lost.
        yield f"campaign {second} term {term}"
        if self._between(second, voter, "vote"):
            yield f"deliver {second}->{voter} vote term {term}"

    def _leave_behind_others(self, behind: int | None, leader: int) -> StepSequence:
        """Everybody but that one applies a command, and has a snapshot instead of it: whoever leads next sends that."""
        others = [other for other in self._others(leader) if other != behind]
        yield from self._start_commands(leader, 1)
        yield from self._update(leader, others)
        for i in (leader, *others):
            yield from self._shorten_log(i)

    def _may_vote(self, voter: int, candidate: int) -> bool:
        """If that one campaigns now, in its next term."""
        peers, logs = self._scenario.checker.facts.peers, self._scenario.observations.logs
        if peers[str(voter)].observed_term > peers[str(candidate)].observed_term:
            return False
        log, other = logs[candidate], logs[voter]
        return not other or (bool(log) and (log[-1], len(log)) >= (other[-1], len(other)))  # §5.4.1

    def _start(self) -> StepSequence:
        leader = self._leader()
        if leader is None:
            return
        yield from self._start_commands(leader, self._random.choice((1, 1, 1, 2, 3)))
        if self._random.random() < 0.5:
            yield from self._replicate_to(leader, self._some_of(self._others(leader)))

    def _start_commands(self, leader: int, commands: int) -> StepSequence:
        for _ in range(commands):
            if leader in self._awake():
                self._commands += 1
                yield f"start {leader} {self._commands}"

    def _replicate(self) -> StepSequence:
        leader = self._leader()
        if leader is not None:
            yield from self._replicate_to(leader, self._some_of(self._others(leader)))

    def _replicate_to(self, leader: int, followers: Sequence[int]) -> StepSequence:
        for follower in followers:
            for _ in range(self._random.choice((1, 1, 2, 3))):
                if leader not in self._awake() or follower not in self._awake():
                    return
                if not self._replicating(leader, follower):
                    yield f"heartbeat {leader}"
                kind = self._one_of(self._replicating(leader, follower))
                if kind is not None:
                    yield from self._exchange(leader, follower, kind)

    def _update(self, leader: int, followers: Sequence[int]) -> StepSequence:
        """They get all that it has, and hear what of it is committed."""
        for _ in range(2):
            for follower in followers:
                if leader not in self._awake() or follower not in self._awake():
                    continue
                if not self._replicating(leader, follower):
                    yield f"heartbeat {leader}"
                for _ in range(3):
                    for kind in self._replicating(leader, follower):
                        yield from self._exchange(leader, follower, kind, answered=1)

    def _replicating(self, leader: int, follower: int) -> list[str]:
        return [kind for kind in ("append", "snapshot") if self._between(leader, follower, kind)]

    def _exchange(self, source: int, target: int, kind: str, of: str = "", *, answered: float = 0.9) -> StepSequence:
        """A request arrives and, mostly, so does its answer."""
        if self._between(source, target, kind):
            yield f"deliver {source}->{target} {kind}{of}"
        if self._between(target, source, kind, is_reply=True) and self._random.random() < answered:
            yield f"deliver {target}->{source} {kind} reply{of}"

    def _between(self, source: int, target: int, kind: str, *, is_reply: bool = False) -> bool:
        return any(
            queued.is_reply is is_reply
            and direction(queued.message, is_reply=is_reply) == (source, target)
            and kind_of(queued.message.rpc) == kind
            for queued in self._scenario.queued
        )

    # ---- moves: messages ------------------------------------------------------------------------------------------

    def _deliver_one(self) -> StepSequence:
        for _ in range(self._random.choice((1, 1, 2, 4))):
            queued = self._one_queued()
            if queued is None:
                return
            yield f"deliver {self._named(queued)}"

    def _deliver_all(self) -> StepSequence:
        if self._scenario.queued:
            yield "deliver"

    def _drop(self) -> StepSequence:
        if self._random.random() < 0.15:
            yield "drop"
        elif (queued := self._one_queued()) is not None:
            yield f"drop {self._named(queued)}"

    def _one_queued(self) -> QueuedMessage | None:
        """The latest ones are more likely: of the old ones there are many."""
        queued = self._of_one_kind(self._scenario.queued, lambda queued: queued.message)
        return self._one_of(queued[-6:] if self._random.random() < 0.5 else queued)

    def _of_one_kind(self, things: Sequence[T], message: Callable[[T], Message]) -> list[T]:
        """So that a rare one, a snapshot, gets its turn among many."""
        kinds = sorted({message(thing).rpc for thing in things})
        kind = self._one_of(kinds)
        return [thing for thing in things if message(thing).rpc == kind]

    def _duplicate(self) -> StepSequence:
        requests = [queued for queued in self._scenario.queued if not queued.is_reply]
        queued = self._one_of(self._of_one_kind(requests, lambda queued: queued.message))
        if queued is not None:
            yield f"duplicate {self._named(queued)}"

    def _redeliver(self, peers: Sequence[int] | None = None, kind: str | None = None) -> StepSequence:
        """An old request, once more, to one of these; the latest ones are more likely."""
        up = self._up() if peers is None else peers
        old = [message for message in self._scenario.observations.delivered if int(message.target) in up]
        if kind is None:
            old = self._of_one_kind(old, lambda message: message)
        else:
            old = [message for message in old if kind_of(message.rpc) == kind]
        message = self._one_of(old[-6:] if self._random.random() < 0.5 else old)
        if message is not None:
            kind = kind_of(message.rpc)
            yield f"deliver {message.source}->{message.target} {kind} {message.ordinal} again"

    def _named(self, queued: QueuedMessage) -> str:
        """By its term, or as the oldest of its kind, where that will do: so it means the same in a shorter run."""
        message, is_reply = queued.message, queued.is_reply
        source, target = direction(message, is_reply=is_reply)
        kind, term = kind_of(message.rpc), term_of(message)
        alike = [
            other
            for other in self._scenario.queued
            if other.is_reply is is_reply
            and direction(other.message, is_reply=is_reply) == (source, target)
            and other.message.rpc == message.rpc
        ]
        name = f"{source}->{target} {kind}{' reply' if is_reply else ''}"
        if alike[0] is queued:
            return name
        if next(other for other in alike if term_of(other.message) == term) is queued:
            return f"{name} term {term}"
        return f"{name} {message.ordinal}"

    # ---- moves: faults, snapshots, time ---------------------------------------------------------------------------

    def _crash(self) -> StepSequence:
        peer = self._one_of(self._up())
        if peer is not None:
            yield f"crash {peer}"

    def _crash_and_restart(self) -> StepSequence:
        for peer in self._some_of(self._up()) if self._random.random() < 0.3 else [self._one_of(self._up())]:
            if peer is not None:
                yield f"crash {peer}"
                yield f"restart {peer}"
                if self._random.random() < 0.3:
                    yield from self._redeliver([peer])

    def _crash_at(self) -> StepSequence:
        peer = self._one_of(self._awake())
        if peer is not None:
            yield f"crash {peer} {self._random.choice(MOMENTS)}"

    def _restart(self) -> StepSequence:
        peer = self._one_of(self._down())
        if peer is not None:
            yield f"restart {peer}"

    def _pause(self) -> StepSequence:
        peer = self._one_of(self._awake())
        if peer is not None:
            yield f"pause {peer}"

    def _resume(self) -> StepSequence:
        peer = self._one_of(self._paused())
        if peer is not None:
            yield f"resume {peer}"

    def _busy(self) -> StepSequence:
        peer = self._one_of([i for i in self._awake() if not self._scenario.checker.facts.peers[str(i)].busy])
        if peer is not None:
            yield f"busy {peer}"

    def _ready(self) -> StepSequence:
        peer = self._one_of([i for i in self._awake() if self._scenario.checker.facts.peers[str(i)].busy])
        if peer is not None:
            yield f"ready {peer}"

    def _partition(self) -> StepSequence:
        peers = list(range(self._config.n))
        self._random.shuffle(peers)
        size = self._random.randint(1, len(peers) - 1)
        if self._random.random() < 0.3:
            yield f"cut {peers[0]}->{peers[1]}"
        else:
            yield f"partition {_listed(peers[:size])} | {_listed(peers[size:])}"

    def _heal(self) -> StepSequence:
        if any(link.cut for link in self._config.network.conditions.links.values()):
            yield "heal"

    def _snapshot(self) -> StepSequence:
        peer = self._one_of([i for i in self._awake() if self._config.applied(i)])
        if peer is not None:
            last = max(self._config.applied(peer))
            if self._random.random() < 0.2:
                yield f"crash {peer} {self._random.choice(MOMENTS[:2])}"  # between two saves, if it takes two
            yield f"snapshot {peer} {self._random.randint(max(1, last - 3), last)}"

    def _install_snapshot(self) -> StepSequence:
        """A follower that is sent a snapshot, because it lacks what stands in it, or because its leader thinks so."""
        leader = self._leader()
        if leader is not None and (others := self._others(leader)):
            yield from self._send_snapshot(leader, self._random.choice(others))

    def _send_snapshot(self, leader: int, behind: int) -> StepSequence:
        others = self._others(leader)
        if len(others) <= self._config.n // 2:
            return
        yield from self._start_commands(leader, self._random.choice((0, 1, 1, 2, 2)))
        unheard = self._random.choice(("no", "no", "before it is committed", "afterwards"))
        if unheard == "before it is committed":
            yield from self._deliver_without_replies(leader, behind)
        yield from self._replicate_to(leader, [other for other in others if other != behind])
        if unheard == "afterwards":
            yield f"heartbeat {leader}"
            yield from self._deliver_without_replies(leader, behind)
        if not self._config.is_up(leader) or not self._config.applied(leader):
            return
        yield from self._shorten_log(leader)
        meanwhile = self._random.choice(("crash", "crash", "campaign", "nothing"))
        if meanwhile == "crash":
            yield f"crash {behind} {self._random.choice(MOMENTS)}"
        elif meanwhile == "campaign" and not self._scenario.observations.hard_to_elect:
            yield f"campaign {behind}"  # so its answer has a later term
        if not self._between(leader, behind, "snapshot"):
            yield from self._replicate_to(leader, [behind])  # it says what it lacks
        yield from self._exchange(leader, behind, "snapshot")
        if self._random.random() < 0.5:
            yield from self._replicate_to(
                leader, [behind]
            )  # what it has behind the snapshot is seen by what it answers

    def _snapshot_while_busy(self) -> StepSequence:
        """What a peer has committed and the snapshots that it is sent wait for its service together."""
        leader = self._leader()
        others = [] if leader is None else self._others(leader)
        if leader is None or len(others) <= self._config.n // 2:
            return
        waiting, *rest = self._random.sample(others, len(others))
        yield f"busy {waiting}"
        yield from self._start_commands(leader, self._random.randint(1, 3))
        yield from self._update(leader, others)
        for _ in range(self._random.choice((1, 1, 2))):
            yield from self._start_commands(leader, self._random.randint(1, 2))
            yield from self._update(leader, rest)
            yield from self._shorten_log(leader)
            yield from self._update(leader, [waiting])
        if self._random.random() < 0.5:
            yield from self._redeliver([waiting], "append")
        if waiting in self._awake() and self._random.random() < 0.8:
            yield f"ready {waiting}"

    def _outdated_snapshot(self) -> StepSequence:
        """Who has got on since it was sent a snapshot gets it once more."""
        old = [message for message in self._scenario.observations.delivered if kind_of(message.rpc) == "snapshot"]
        known = sorted({int(message.target) for message in old} & set(self._awake()))
        peer = self._one_of(known)
        leader = self._leader()
        if peer is None or leader is None:
            return
        if leader != peer:
            yield from self._start_commands(leader, self._random.randint(1, 2))
            yield from self._replicate_to(leader, self._others(leader))
            yield f"heartbeat {leader}"
            yield from self._replicate_to(leader, [peer])
        if peer in self._awake() and (applied := self._config.applied(peer)) and self._random.random() < 0.7:
            yield f"snapshot {peer} {max(applied)}"
        meanwhile = self._random.choice(("crash", "append", "append", "nothing"))
        if meanwhile == "crash":
            yield f"crash {peer}"
            yield f"restart {peer}"
        elif meanwhile == "append":
            yield from self._redeliver([peer], "append")
        yield from self._redeliver([peer], "snapshot")

    def _deliver_without_replies(self, leader: int, follower: int) -> StepSequence:
        """All that is on its way there arrives, and its answers do not."""
        while self._between(leader, follower, "append"):
            yield f"deliver {leader}->{follower} append"
        if self._random.random() < 0.5:
            yield f"drop {follower}->{leader} append reply"

    def _shorten_log(self, leader: int) -> StepSequence:
        """Whoever lacks what its snapshot stands for gets that next: no older entries are on their way."""
        if leader in self._awake() and (applied := self._config.applied(leader)):
            last = max(applied)
            yield f"snapshot {leader} {last if self._random.random() < 0.6 else max(1, last - 1)}"
            yield f"drop {leader}->* append"
            if leader in self._leaders():
                yield f"heartbeat {leader}"

    def _run_one(self) -> StepSequence:
        peer = self._one_of(self._awake())
        if peer is not None:
            yield f"run {peer} {self._random.choice((20, 100, 300, 1000))}ms"

    def _run_all(self) -> StepSequence:
        yield f"run {self._random.choice((20, 100, 500, 1500))}ms"


def _listed(peers: Sequence[int]) -> str:
    return " ".join(map(str, sorted(peers)))
