"""What the steps of a scenario are made of: clocks that run until something has come, messages found in flight.

Every peer's clock is frozen, and every message waits in flight, until a step says otherwise. Right peers differ in how
they get things done: some send in a loop that wakes every 10 ms, some save in batches. So whatever waits for something
(a message to deliver, an answer, an apply) lets the clock of whoever owes it run, up to 200 ms of its own time, until
it is there. A `strict` scenario forbids that.

Start at `step()` and `SteppedCluster._run_clock()`.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Sequence
from functools import wraps
from typing import Any, NoReturn, ParamSpec, TypeVar

from labrpc.message import Message
from labrpc.network import QueuedMessage
from labsim import Event, Simulation, Task, current_simulation
from labsim.simulation import NS_PER_S
from raftlab.check.failure import short
from raftlab.check.rules import RuleChecker
from raftlab.harness.config import Config
from raftlab.scenarios.in_flight import QueueingChoiceSource, Selector, describe
from raftlab.scenarios.observations import WireObservations
from raftlab.trace import events
from raftlab.trace.rpcs import APPEND, INSTALL

_MS = 1_000_000  # in nanoseconds

# What a step takes of the world's time, in which what it has caused happens. No peer's clock runs meanwhile.
_SETTLE_NS = 1 * _MS
# How long a peer's clock may run until what a step waits for is there.
PATIENCE_S = 0.2
_POLL_NS = 10 * _MS
_PROBES_MAX = 5

P = ParamSpec("P")
R = TypeVar("R")


class ScenarioError(Exception):
    """A step that makes no sense here: no such peer, nothing to restart. The text says what, and what would be right.

    It is about the scenario, and not about the peer.
    """


class ExpectationFailed(Exception):
    """A step has not found what it expects, where that does not end the run."""


def step(method: Callable[P, R]) -> Callable[P, R]:
    """A step is an event of the trace; after it everybody has done what followed, and every rule has checked."""

    @wraps(method)
    def run_step(*args: P.args, **kwargs: P.kwargs) -> R:
        scenario: Any = args[0]
        if scenario.in_step:
            return method(*args, **kwargs)  # part of another
        scenario.begin_step(_call_text(method.__name__, args[1:], kwargs))
        try:
            result = method(*args, **kwargs)
            scenario.settle()
            scenario.check()
        finally:
            scenario.in_step = False
        return result

    return run_step


def _call_text(name: str, args: Sequence[Any], kwargs: dict[str, Any]) -> str:
    values = [short(value) for value in args] + [f"{key}={short(value)}" for key, value in kwargs.items()]
    return f"{name}({', '.join(values)})"


def _is_preempted(task: Task) -> bool:
    return task.node is not None and task.node.delayed > 0 and not task.node.paused


class SteppedCluster:
    """A cluster in which nothing happens by itself."""

    def __init__(
        self, config: Config, choice_source: QueueingChoiceSource, *, strict: bool = False, plain_votes: bool = False
    ) -> None:
        simulation = current_simulation()
        assert simulation is not None  # make_scenario() has looked
        self.config = config
        self.in_step = False
        self.step_text = ""  # of the step under way, as a file has them
        self.interactive = False  # what is not met is told, and the run goes on: somebody sits at a prompt
        self.may_skip = True  # where it is not for such peers; who draws steps as things stand wants them all the same
        self._strict = strict
        self._plain_votes = plain_votes
        self._simulation: Simulation = simulation
        self._choice_source = choice_source
        self._network = config.network
        self._observations = WireObservations(config.n)
        self._awaited_event: tuple[Task, Callable[[Event], bool]] | None = None
        self._unfrozen_since_ns: dict[int, int] = {}  # whose clocks run, and since when
        self.clock_ran_ns: dict[int, int] = {}  # whose clocks the step under way has let run, and for how long
        config.snapshot_only_when_asked()
        simulation.subscribe(self._observe)
        for i in range(config.n):
            config.freeze_clock(i)
        self.settle()

    # ---- for whoever decides what comes next --------------------------------------------------

    @property
    def observations(self) -> WireObservations:
        return self._observations

    @property
    def checker(self) -> RuleChecker:
        assert self.config.checker is not None  # run_test() has made it
        return self.config.checker

    @property
    def now_s(self) -> float:
        return self._simulation.now

    @property
    def queued(self) -> list[QueuedMessage]:
        """What is in flight, the oldest first."""
        return self._network.queued

    # ---- for a step -----------------------------------------------------------------------

    def begin_step(self, text: str) -> None:
        self.in_step = True
        self.clock_ran_ns = {}
        text = self.step_text or text
        self._simulation.emit(events.STEP, None, text, 0)

    def settle(self) -> None:
        """Everybody does what there is to do. The clock moves when all wait."""
        self._simulation.sleep(_SETTLE_NS)
        # With --race a thread may have lost its turn, to get it back by the world's time.
        while any(_is_preempted(task) for task in self._simulation.tasks()):
            self._simulation.sleep(_SETTLE_NS)

    def check(self) -> None:
        """The run ends here if a rule is broken."""
        self._simulation.deliver_now()

    def fail(self, text: str) -> NoReturn:
        """A step has not found what it expects."""
        self._check_or_skip()
        text = f"{text[0].upper()}{text[1:]}"
        if self.interactive:
            raise ExpectationFailed(text)
        self.config.fail(text)

    def reject(self, text: str) -> NoReturn:
        """A step makes no sense, as things stand with the peers."""
        self._check_or_skip()
        raise ScenarioError(text)

    def _check_or_skip(self) -> None:
        """If a rule is broken, that says more; and of other votes than plain ones, or of what nobody here can read,
        anything may come."""
        self.check()
        if not self.may_skip:
            return
        why = ""
        if undecodable := self.checker.undecodable_methods:
            why = f"it is played with the paper's RPCs, and of these peers no check can read {', '.join(undecodable)}"
        elif self._plain_votes and (difference := self._observations.election_difference):
            why = f"it needs plain votes, and here {difference}"
        if why:
            import pytest  # whoever is here has it; whoever only looks need not wait for it

            pytest.skip(why)

    def _observe(self, new: Sequence[Event]) -> None:
        for event in new:
            self._observations.handle(event)
            if self._awaited_event is not None:
                task, matches = self._awaited_event
                if matches(event):
                    self._awaited_event = None
                    self._simulation.wake(task)

    def _run_clock(self, i: int | Collection[int], limit_s: float, matches: Callable[[Event], bool]) -> bool:
        """Let the clock of peer i, or of these peers, run until that event has come: whether it has, within so much of
        their own time."""
        self._unfreeze_clocks([i] if isinstance(i, int) else i)
        self._awaited_event = (self._simulation.current, matches)
        happened = self._simulation.park("what the step waits for", int(limit_s * NS_PER_S))
        self._awaited_event = None
        self._freeze_clocks()
        self.settle()
        return happened

    def _wait_until(self, i: int, condition: Callable[[], bool], patience_s: float = PATIENCE_S) -> bool:
        """Whether it is true, or comes true while the clock of peer i runs a little."""
        if condition():
            return True
        if (self._strict and patience_s == PATIENCE_S) or not self.config.is_up(i) or self.config.is_paused(i):
            return False
        left_ns = int(patience_s * NS_PER_S)
        while left_ns > 0:
            self._unfreeze_clocks([i])
            self._simulation.sleep(_POLL_NS)
            self._freeze_clocks()
            left_ns -= _POLL_NS
            self.settle()
            if condition():
                return True
        return False

    def _unfreeze_clocks(self, peers: Iterable[int]) -> None:
        for i in peers:
            if self.config.is_up(i):
                self.config.unfreeze_clock(i)
                self._unfrozen_since_ns[i] = self._simulation.now_ns

    def _freeze_clocks(self) -> None:
        for i, since_ns in sorted(self._unfrozen_since_ns.items()):
            if self.config.is_up(i):  # it may have crashed meanwhile, by an armed crash
                self.config.freeze_clock(i)
            self.clock_ran_ns[i] = self.clock_ran_ns.get(i, 0) + self._simulation.now_ns - since_ns
        self._unfrozen_since_ns.clear()

    def _call_peer(self, i: int, call: Callable[[], R]) -> R:
        """Call a method of the peer. If it does not return at once its clock runs, until the tester loses patience."""
        results: list[R] = []
        errors: list[ValueError] = []

        def call_it() -> None:
            try:
                results.append(call())
            except ValueError as error:
                errors.append(error)

        task = self._simulation.spawn(call_it, name="a step")
        if not self._simulation.join(task, 1):
            self._unfreeze_clocks([i])
            self._simulation.join(task)
            self._freeze_clocks()
        if errors:
            self._check_up(i)  # by an armed crash, a moment ago
            raise errors[0]
        return results[0]

    # ---- messages -----------------------------------------------------------------------

    def in_flight(self, selector: str) -> list[QueuedMessage]:
        """What is on its way that fits, the oldest first."""
        return self._in_flight(Selector.read(selector))

    def _in_flight(self, selector: Selector) -> list[QueuedMessage]:
        return [queued for queued in self._network.queued if selector.matches(queued.message, is_reply=queued.is_reply)]

    def _deliver(self, queued: QueuedMessage) -> None:
        self._network.deliver_queued(queued)
        self.settle()

    def _find_messages(self, selector: Selector) -> list[QueuedMessage]:
        """What fits, the oldest of each pair; what is not there yet, its sender sends while its clock runs a little."""
        if selector.source is not None and selector.source == selector.target:
            raise ScenarioError(f"what peer {selector.source} says to itself is never in flight")
        found = []
        for source, target in self._pairs(selector):
            pair = selector.between(source, target)
            if not self._in_flight(pair) and not self._strict and not self.config.is_paused(source):
                self._run_clock(source, PATIENCE_S, _sent(pair))
                if pair.method == INSTALL and pair.reply is False:
                    self._probe(pair)
            candidates = self._in_flight(pair)
            if not candidates:
                self._fail_no_message(pair)
            found.append(candidates[0])
        if not found:
            self.fail(f"nothing is in flight that is {selector}, and nobody is up to send it")
        return found

    def _probe(self, snapshot: Selector) -> None:
        """Some leaders send a snapshot only to whom they have just heard. So what else they send there arrives and is
        answered, until it is on its way."""
        source, target = snapshot.source, snapshot.target
        assert source is not None and target is not None
        append = Selector(source, target, APPEND, reply=False)
        for _ in range(_PROBES_MAX):
            if self._in_flight(snapshot) or target not in self._running_peers():
                return
            if not self._in_flight(append):
                self._run_clock(source, PATIENCE_S, _sent(append))
            for queued in self._in_flight(append)[:1]:
                self._deliver_and_answer(queued)
            if not self._in_flight(snapshot):
                self._run_clock(source, PATIENCE_S, _sent(snapshot))

    def _deliver_and_answer(self, queued: QueuedMessage) -> None:
        message = queued.message
        self._deliver(queued)
        self._wait_until(int(message.target), lambda: message.reply is not None)
        for answer in [other for other in self._network.queued if other.is_reply and other.message.id == message.id]:
            self._deliver(answer)

    def _pairs(self, selector: Selector) -> list[tuple[int, int]]:
        """Who to whom. Of `*`: whoever can, with a reply whoever owes one."""
        for i in (selector.source, selector.target):
            if i is not None:
                self._check_peer(i)
        if selector.source is not None and selector.target is not None:
            return [(selector.source, selector.target)]
        pairs = []
        cuts = {ends for ends, link in self._network.conditions.links.items() if link.cut}
        for source in range(self.config.n) if selector.source is None else [selector.source]:
            for target in range(self.config.n) if selector.target is None else [selector.target]:
                pair = selector.between(source, target)
                if source == target or not self.config.is_up(target):
                    continue
                # Of `*` as the sender, nobody knows who should send.
                can = selector.source is not None or bool(selector.reply)
                can = can and self.config.is_up(source) and (str(source), str(target)) not in cuts
                owes = self._observations.owes_reply(source, target) if selector.reply else can
                if self._in_flight(pair) or (can and owes):
                    pairs.append((source, target))
        return pairs

    def _fail_no_message(self, pair: Selector) -> NoReturn:
        source, target = pair.source, pair.target
        assert source is not None and target is not None
        if not self.config.is_up(source) or not self.config.is_up(target):
            why = f"peer {source if not self.config.is_up(source) else target} is down"
        elif self.config.is_paused(source):
            why = f"peer {source} is paused"
        elif self._strict:
            why = "the scenario is strict, so no clock runs"
        else:
            why = f"peer {source} sent none in {PATIENCE_S * 1000:.0f} ms of its own time"
        difference = self._network.queued
        matches = f" In flight: {'; '.join(describe(queued) for queued in difference[:4])}" if difference else ""
        self.fail(f"nothing is in flight that is {pair}, and {why}.{matches}")

    def _delivered(self, selector: Selector) -> list[Message]:
        found = []
        for source, target in self._pairs(selector._replace(reply=False)):
            if not self.config.is_up(target):
                raise ScenarioError(f"peer {target} is down; restart it first")
            pair = selector.between(source, target)
            message = next((m for m in self._observations.delivered if pair.matches(m, is_reply=False)), None)
            if message is not None:
                found.append(message)
        if not found:
            self.fail(f"nothing that is {selector} has been delivered yet, so it cannot arrive again")
        return found

    # ---- peers -----------------------------------------------------------------------

    def _up(self) -> list[int]:
        return [i for i in range(self.config.n) if self.config.is_up(i)]

    def _running_peers(self) -> list[int]:
        return [i for i in self._up() if not self.config.is_paused(i)]

    def _check_peer(self, i: int) -> None:
        if not 0 <= i < self.config.n:
            raise ScenarioError(f"there is no peer {i}; peers are 0..{self.config.n - 1}")

    def _check_up(self, i: int) -> None:
        self._check_peer(i)
        if not self.config.is_up(i):
            raise ScenarioError(f"peer {i} is down; restart it first")

    def _check_running(self, i: int) -> None:
        self._check_up(i)
        if self.config.is_paused(i):
            raise ScenarioError(f"peer {i} is paused; resume it first")

    def _check_leads(self, i: int) -> None:
        self._check_running(i)
        if not self._wait_until(i, lambda: self._call_peer(i, lambda: self.config.get_state(i))[1]):
            self.reject(f"peer {i} does not lead, so it sends no AppendEntries; elect it first")

    def _applied_index(self, i: int) -> int:
        return max(self.config.applied(i), default=0)

    def _applied(self, i: int) -> str:
        known = self.config.applied(i)
        return ", ".join(f"{command} at {index}" for index, command in sorted(known.items())) or "nothing"


def _sent(selector: Selector) -> Callable[[Event], bool]:
    """Whether it is an event in which such a message leaves."""

    def sent(event: Event) -> bool:
        is_reply = event.kind == events.ANSWER
        return (is_reply or event.kind == events.SEND) and selector.matches(event.detail, is_reply=is_reply)

    return sent
