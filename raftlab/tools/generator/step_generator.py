"""Generates the steps of a random run, each from the current state of the cluster.

Steps come in short sequences with a purpose: an election, a command and its replication, a crash and the restart. Each
step is generated when the previous one is done, so nearly all are possible. The weights of the sequences are random per
run: many runs that each do a few things often find more than runs that do a little of everything.

Start at `StepGenerator.draw()`.
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
_EMPTY_MAX = 100  # impossible sequences in a row


class StepGenerator:
    """Generates the steps of one run."""

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
        """The next step. It may still be impossible; then the caller skips it."""
        for _ in range(_EMPTY_MAX):
            step = next(self._sequence, None)
            if step is not None:
                return step
            self._sequence = self._choose_sequence()
        return next(self._run_all())

    def _choose_sequence(self) -> StepSequence:
        # Little happens without a leader, and a leader needs a majority.
        if not self._leaders() and self._random.random() < _ELECT_FIRST:
            enough = len(self._awake()) > self._config.n // 2
            return self._elect() if enough else self._random.choice((self._restart, self._resume))()
        (generator,) = self._random.choices(self._generators, self._weights)
        return generator()

    # ---- peers by state ---------------------------------------------------------------------------------------------

    def _up(self) -> list[int]:
        return [i for i in range(self._config.n) if self._config.is_up(i)]

    def _down(self) -> list[int]:
        return [i for i in range(self._config.n) if not self._config.is_up(i)]

    def _paused(self) -> list[int]:
        return [i for i in self._up() if self._config.is_paused(i)]

    def _awake(self) -> list[int]:
        return [i for i in self._up() if not self._config.is_paused(i)]

    def _leaders(self) -> list[int]:
        """The peers that consider themselves leader, as far as messages show."""
        peers = self._scenario.checker.facts.peers
        # Those that won an election and have not shown a later term since.
        return [i for i in self._awake() if 0 < peers[str(i)].elected_term == peers[str(i)].observed_term]

    def _leader(self) -> int | None:
        """A leader, usually that of the latest term."""
        leaders = self._leaders()
        if not leaders or self._random.random() < 0.2:
            return self._one_of(leaders)
        facts = self._scenario.checker.facts
        return max(leaders, key=lambda i: facts.peers[str(i)].observed_term)

    def _one_of(self, things: Sequence[T]) -> T | None:
        return self._random.choice(things) if things else None

    def _some_of(self, things: Sequence[T]) -> list[T]:
        """A random subset with at least one element, if there is one."""
        return self._random.sample(things, self._random.randint(1, len(things))) if things else []

    def _others(self, i: int) -> list[int]:
        return [other for other in self._awake() if other != i]

    # ---- sequences: elections, commands -----------------------------------------------------------------------------

    def _campaign(self) -> StepSequence:
        leaders = self._leaders()
        candidate = self._one_of([i for i in self._awake() if i not in leaders])
        if candidate is not None and not self._scenario.observations.never_campaigns:
            yield f"campaign {candidate}"

    def _elect(self) -> StepSequence:
        """An election, usually of a peer for which a majority can vote."""
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
            yield f"campaign {rival}"  # perhaps in the same term
        yield from self._win_election(candidate, asked)

    def _can_win(self, candidates: Sequence[int], voters: Sequence[int]) -> dict[int, list[int]]:
        """The candidates for which enough voters can vote, with these voters."""
        can = {i: [voter for voter in voters if voter != i and self._may_vote(voter, i)] for i in candidates}
        return {i: those for i, those in can.items() if len(those) >= self._config.n // 2}

    def _win_election(self, candidate: int, asked: Sequence[int]) -> StepSequence:
        """The candidate campaigns and, if possible, enough of the asked peers reply."""
        observations = self._scenario.observations
        if observations.never_campaigns:
            yield f"run {candidate} {self._random.choice((700, 1500))}ms"
            yield "deliver"
            return
        if observations.ignores_vote_requests:
            # These peers ignore vote requests until they have not heard from a leader for a while (§6).
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
        """Depose a leader whose last commands only few others have: a successor without them overwrites these commands.

        The deposed peers learn this from entries or a snapshot. One of them may lead next, while replies to its
        requests of the earlier term are still in flight.
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
            yield f"crash {again}"  # so it will lead with its saved log
            yield f"restart {again}"
        yield from self._win_election(again, self._others(again))
        if again in self._leaders():
            yield from self._start_commands(again, 1)
            # Perhaps just short of a majority, so that counting one old reply breaks a rule.
            short = self._random.sample(self._others(again), min(self._config.n // 2 - 1, len(self._others(again))))
            yield from self._replicate_to(again, self._random.choice((short, self._some_of(self._others(again)))))
        for queued in [
            queued for queued in self._scenario.queued if queued.is_reply and queued.message.source == str(again)
        ][:3]:
            if queued in self._scenario.queued:
                yield f"deliver {self._named(queued)}"

    def _candidate_without_entry(self) -> StepSequence:
        """Commit a command on a bare majority; then a peer that lacks it asks all others for votes."""
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
            # Another peer that lacked the command has it only in a snapshot.
            yield from self._shorten_log(leader)
            yield from self._replicate_to(leader, [other for other in lacking if other != candidate])
        yield from self._win_election(candidate, self._others(candidate))

    def _rivals(self) -> StepSequence:
        """Two candidates in one term. A voter of the first may forget its vote before the second asks: it crashes, or
        it follows the first as leader and crashes again, or it gets a snapshot from it."""
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
                yield f"snapshot {voter} {max(applied)}"  # it saves, and its log stays no longer than the second's
            yield f"crash {voter}"
            yield f"restart {voter}"
            if first in self._leaders():
                yield from self._replicate_to(first, [voter])
        # Not earlier: a crash of the voter drops messages in flight to it.
        yield f"campaign {second} term {term}"
        if self._between(second, voter, "vote"):
            yield f"deliver {second}->{voter} vote term {term}"

    def _leave_behind_others(self, behind: int | None, leader: int) -> StepSequence:
        """All peers except `behind` apply a command and replace it by a snapshot; the next leader must send that."""
        others = [other for other in self._others(leader) if other != behind]
        yield from self._start_commands(leader, 1)
        yield from self._update(leader, others)
        for i in (leader, *others):
            yield from self._shorten_log(i)

    def _may_vote(self, voter: int, candidate: int) -> bool:
        """Whether the voter may vote for the candidate if it campaigns now, in its next term."""
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
        """Bring the followers' logs and commit indexes up to date."""
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
        """Deliver a request and, usually, its reply."""
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

    # ---- sequences: messages ----------------------------------------------------------------------------------------

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
        """A queued message. The latest ones are more likely, because there are many old ones."""
        queued = self._of_one_kind(self._scenario.queued, lambda queued: queued.message)
        return self._one_of(queued[-6:] if self._random.random() < 0.5 else queued)

    def _of_one_kind(self, things: Sequence[T], message: Callable[[T], Message]) -> list[T]:
        """Choose an RPC first, so that rare ones, such as InstallSnapshot, are chosen as often as others."""
        kinds = sorted({message(thing).rpc for thing in things})
        kind = self._one_of(kinds)
        return [thing for thing in things if message(thing).rpc == kind]

    def _duplicate(self) -> StepSequence:
        requests = [queued for queued in self._scenario.queued if not queued.is_reply]
        queued = self._one_of(self._of_one_kind(requests, lambda queued: queued.message))
        if queued is not None:
            yield f"duplicate {self._named(queued)}"

    def _redeliver(self, peers: Sequence[int] | None = None, kind: str | None = None) -> StepSequence:
        """Deliver an old request again, to one of these peers; the latest requests are more likely."""
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
        """The message's name: by its term or as the oldest of its kind, if possible, so that it means the same in a
        shorter run."""
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

    # ---- sequences: faults, snapshots, time -------------------------------------------------------------------------

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
        """A follower gets a snapshot because it lacks the entries, or because its leader believes so."""
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
            yield f"campaign {behind}"  # so its reply has a later term
        if not self._between(leader, behind, "snapshot"):
            yield from self._replicate_to(leader, [behind])  # its reply shows what it lacks
        yield from self._exchange(leader, behind, "snapshot")
        if self._random.random() < 0.5:
            yield from self._replicate_to(leader, [behind])  # its replies show what it has after the snapshot

    def _snapshot_while_busy(self) -> StepSequence:
        """Committed entries and snapshots wait together for a busy service."""
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
        """A peer that has progressed since it got a snapshot gets the same snapshot again."""
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
        """Deliver all AppendEntries in flight to the follower, but not its replies."""
        while self._between(leader, follower, "append"):
            yield f"deliver {leader}->{follower} append"
        if self._random.random() < 0.5:
            yield f"drop {follower}->{leader} append reply"

    def _shorten_log(self, leader: int) -> StepSequence:
        """The leader makes a snapshot; older entries in flight are dropped, so lagging followers get the snapshot."""
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
