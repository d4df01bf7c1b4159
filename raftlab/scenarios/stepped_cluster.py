"""The mechanics of steps: running a peer's clock until an event, and finding messages in flight.

Every peer's clock is frozen and every message is queued until a step says otherwise. Correct peers differ in timing:
some send in a loop that wakes every 10 ms, some save in batches. So a step that waits for something (a message, a
reply, an apply) runs the clock of the responsible peer, for up to 200 ms of its own time. A `strict` scenario forbids
that.

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

# The virtual time of a step, in which its effects happen. No peer's clock runs meanwhile.
_SETTLE_NS = 1 * _MS
# How long a peer's clock may run until what a step waits for happens.
PATIENCE_S = 0.2
_POLL_NS = 10 * _MS
_PROBES_MAX = 5

P = ParamSpec("P")
R = TypeVar("R")


class ScenarioError(Exception):
    """A step that is not possible here, such as an unknown peer: a mistake of the scenario, not of the peer.

    The text names the mistake and the fix.
    """


class ExpectationFailed(Exception):
    """An expectation failed in an interactive run, which continues."""


def step(method: Callable[P, R]) -> Callable[P, R]:
    """Makes a method a step: an event of the trace, after which its effects have happened and all rules are checked."""

    @wraps(method)
    def run_step(*args: P.args, **kwargs: P.kwargs) -> R:
        scenario: Any = args[0]
        if scenario.in_step:
            return method(*args, **kwargs)  # part of another step
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
    """A cluster that acts only in steps."""

    def __init__(
        self, config: Config, choice_source: QueueingChoiceSource, *, strict: bool = False, plain_votes: bool = False
    ) -> None:
        simulation = current_simulation()
        assert simulation is not None  # checked by make_scenario()
        self.config = config
        self.in_step = False
        self.step_text = ""  # of the current step, as in the file
        self.interactive = False  # after a failed expectation the run continues
        self.may_skip = True  # skip peers that the scenario is not for; random steps run on all peers
        self._strict = strict
        self._plain_votes = plain_votes
        self._simulation: Simulation = simulation
        self._choice_source = choice_source
        self._network = config.network
        self._observations = WireObservations(config.n)
        self._awaited_event: tuple[Task, Callable[[Event], bool]] | None = None
        self._unfrozen_since_ns: dict[int, int] = {}  # by peer whose clock runs
        self.clock_ran_ns: dict[int, int] = {}  # by peer: how long its clock has run in this step
        config.snapshot_only_when_asked()
        simulation.subscribe(self._observe)
        for i in self._up():
            config.freeze_clock(i)
        self.settle()

    # ---- for callers that choose the next step ------------------------------------------------

    def observe_again(self, events: Sequence[Event]) -> None:
        """The run had begun before this cluster was stepped: these are all of its events."""
        self._observations = WireObservations(self.config.n)
        for event in events:
            self._observations.handle(event)

    @property
    def observations(self) -> WireObservations:
        return self._observations

    @property
    def checker(self) -> RuleChecker:
        assert self.config.checker is not None  # set by run_test()
        return self.config.checker

    @property
    def now_s(self) -> float:
        return self._simulation.now

    @property
    def queued(self) -> list[QueuedMessage]:
        """The messages in flight, oldest first."""
        return self._network.queued

    # ---- for a step -----------------------------------------------------------------------

    def begin_step(self, text: str) -> None:
        self.in_step = True
        self.clock_ran_ns = {}
        text = self.step_text or text
        self._simulation.emit(events.STEP, None, text, 0)

    def settle(self) -> None:
        """Let all tasks run until they wait."""
        self._simulation.sleep(_SETTLE_NS)
        # With --race a thread may be preempted, and delayed in virtual time.
        while any(_is_preempted(task) for task in self._simulation.tasks()):
            self._simulation.sleep(_SETTLE_NS)

    def check(self) -> None:
        """End the run here if a rule is violated."""
        self._simulation.deliver_now()

    def fail(self, text: str) -> NoReturn:
        """An expectation of a step failed."""
        self._check_or_skip()
        text = f"{text[0].upper()}{text[1:]}"
        if self.interactive:
            raise ExpectationFailed(text)
        self.config.fail(text)

    def reject(self, text: str) -> NoReturn:
        """A step is not possible in the current state of the peers."""
        self._check_or_skip()
        raise ScenarioError(text)

    def _check_or_skip(self) -> None:
        """Report a violated rule instead. Skip peers whose votes or messages the scenario is not written for."""
        self.check()
        if not self.may_skip:
            return
        why = ""
        if undecodable := self.checker.undecodable_methods:
            why = f"the scenario needs the paper's RPCs, but these cannot be decoded: {', '.join(undecodable)}"
        elif self._plain_votes and (difference := self._observations.election_difference):
            why = f"the scenario needs plain votes, but {difference}"
        if why:
            import pytest  # slow to import, and needed only here

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
        """Run the clock of peer i, or of these peers, until a matching event, for at most `limit_s` of their own time:
        whether it happened."""
        self._unfreeze_clocks([i] if isinstance(i, int) else i)
        self._awaited_event = (self._simulation.current, matches)
        happened = self._simulation.park("what the step waits for", int(limit_s * NS_PER_S))
        self._awaited_event = None
        self._freeze_clocks()
        self.settle()
        return happened

    def _wait_until(self, i: int, condition: Callable[[], bool], patience_s: float = PATIENCE_S) -> bool:
        """Whether the condition holds, now or while the clock of peer i runs for a short time."""
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
            if self.config.is_up(i):  # an armed crash may have happened
                self.config.freeze_clock(i)
            self.clock_ran_ns[i] = self.clock_ran_ns.get(i, 0) + self._simulation.now_ns - since_ns
        self._unfrozen_since_ns.clear()

    def _call_peer(self, i: int, call: Callable[[], R]) -> R:
        """Call a method of the peer. If it does not return at once, run the peer's clock until it returns."""
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
            self._check_up(i)  # an armed crash may have happened
            raise errors[0]
        return results[0]

    # ---- messages -----------------------------------------------------------------------

    def in_flight(self, selector: str) -> list[QueuedMessage]:
        """The matching messages in flight, oldest first."""
        return self._in_flight(Selector.read(selector))

    def _in_flight(self, selector: Selector) -> list[QueuedMessage]:
        return [queued for queued in self._network.queued if selector.matches(queued.message, is_reply=queued.is_reply)]

    def _deliver(self, queued: QueuedMessage) -> None:
        self._network.deliver_queued(queued)
        self.settle()

    def _find_messages(self, selector: Selector) -> list[QueuedMessage]:
        """The oldest matching message of each pair. If there is none, run the sender's clock for a short time."""
        if selector.source is not None and selector.source == selector.target:
            raise ScenarioError(f"messages from peer {selector.source} to itself are never in flight")
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
            self.fail(f"no message in flight matches {selector}, and no peer is up to send one")
        return found

    def _probe(self, snapshot: Selector) -> None:
        """Some leaders send a snapshot only to followers that they have just heard from. So deliver and answer their
        AppendEntries until the snapshot is in flight."""
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
        """Pairs of sender and receiver. `*`: all that can send or, for replies, that owe one."""
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
                # With `*` as the sender, none is expected to send.
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
            why = "no clock runs in a strict scenario"
        else:
            why = f"peer {source} sent none in {PATIENCE_S * 1000:.0f} ms on its own clock"
        others = self._network.queued[:4]
        in_flight = f" In flight: {'; '.join(map(describe, others))}" if others else ""
        self.fail(f"no message in flight matches {pair}, and {why}.{in_flight}")

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
            self.fail(f"no delivered message matches {selector}, so none can arrive again")
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
            self.reject(f"peer {i} is not the leader, so it sends no AppendEntries; elect it first")

    def _applied_index(self, i: int) -> int:
        return max(self.config.applied(i), default=0)

    def _applied(self, i: int) -> str:
        known = self.config.applied(i)
        return ", ".join(f"{command} at {index}" for index, command in sorted(known.items())) or "nothing"


def _sent(selector: Selector) -> Callable[[Event], bool]:
    """A predicate for events that send a matching message."""

    def sent(event: Event) -> bool:
        is_reply = event.kind == events.ANSWER
        return (is_reply or event.kind == events.SEND) and selector.matches(event.detail, is_reply=is_reply)

    return sent
