"""The steps of a scenario: nothing happens except what a step does.

Promise: a failed expectation fails the run and says what was found; every rule is checked after every step.
stepped_cluster.py has the mechanics of steps, expectations.py the steps that expect something.

Start at `Scenario.deliver()`.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any

from labrpc.message import Message
from labrpc.network import QueuedMessage
from labsim import Event, current_simulation
from labsim.simulation import NS_PER_S
from raftlab.check.failure import short
from raftlab.harness.config import Config
from raftlab.harness.servers import CrashMoment
from raftlab.scenarios import display
from raftlab.scenarios.expectations import Expectations
from raftlab.scenarios.in_flight import QueueingChoiceSource, Selector, term_of
from raftlab.scenarios.logs import HistoryBuilder, IllegalLogs, plan_history
from raftlab.scenarios.stepped_cluster import PATIENCE_S, ScenarioError, step
from raftlab.trace import events
from raftlab.trace.rpcs import APPEND, INSTALL, RPCS, VOTE

_MS = 1_000_000  # in nanoseconds

# How long until a peer must have requested votes, or a leader have sent AppendEntries.
CAMPAIGN_S = 10.0
_TIMEOUT_S = 1.0  # until a follower that does not hear its leader times out
_DELIVERIES_MAX = 10_000
_ROUNDS_MAX = 100
_LOST_MAX = 3
# At the end of normal operation: until all messages in flight have arrived.
_ARRIVAL_NS = 10 * _MS
_NORMAL_LATENCY_NS = 2 * _MS
_PROGRESS = "progress"  # the command that all peers must apply at the end


class Scenario(Expectations):
    """A cluster that acts only in steps. Made by the `make_scenario` fixture, or for a scenario file."""

    # ---- steps: commands, elections, time -----------------------------------------------------------------------

    @step
    def start(self, i: int, command: Any, *, refused: bool = False) -> int:
        """Pass a command to peer i, which must accept it as the leader (`refused`: must not). Returns its index."""
        self._check_running(i)
        index, term, took = self._call_peer(i, lambda: self.config.start(i, command))
        if not self.config.is_up(i):
            return -1  # an armed crash happened in start()
        if took and refused:
            self.fail(f"peer {i}, leader of term {term}, accepted {short(command)}; expected it to refuse")
        if not took and not refused:
            self.fail(f"peer {i} refused {short(command)}: start() says that it is not the leader (term {term})")
        return index

    @step
    def campaign(self, i: int, *, term: int | None = None) -> None:
        """Run the clock of peer i until it requests votes; with `term`, until it does so in that term. Its requests
        of earlier terms in this step are lost."""
        self._check_running(i)
        if self._call_peer(i, lambda: self.config.get_state(i))[1]:
            self.reject(f"peer {i} is the leader, so it does not campaign; restart it or elect another peer first")
        if self.config.n == 1:
            self._campaign_alone(i)
            return
        at_first = self._observations.campaigns[i]
        if term is not None and at_first >= term:
            raise ScenarioError(
                f"peer {i} has already campaigned in term {at_first}, so it cannot campaign in term {term}"
            )
        known = {queued.message.id for queued in self._network.queued}
        while self._observations.campaigns[i] < (at_first + 1 if term is None else term):
            if not self._run_until_request(i, known):
                if not self.config.is_up(i):
                    return  # an armed crash happened
                self._observations.never_campaigns = True
                self._observations.pre_vote_calls = other = ", ".join(sorted(self._observations.other_calls[i]))
                instead = f"; it called {other} instead" if other else ""
                self.fail(f"peer {i} did not request votes within {CAMPAIGN_S:g} s on its own clock{instead} (§5.2)")
        reached = self._observations.campaigns[i]
        if term is not None and reached > term:
            self.fail(f"peer {i} campaigns in term {reached}; expected term {term}: each campaign uses one term")
        for skipped_term in range(at_first + 1, reached):
            for queued in self._in_flight(Selector(i, None, VOTE, reply=False, term=skipped_term)):
                self._network.drop_queued(queued)

    def _run_until_request(self, i: int, known: Collection[int]) -> bool:
        """Run the clock of peer i until it sends a new RequestVote: whether it has. RPCs before that which are not
        in `known` (a pre-vote) are delivered and answered."""
        before = self._observations.campaigns[i]

        def asked() -> bool:
            return self._observations.campaigns[i] > before

        def calls(event: Event) -> bool:
            is_call = event.kind == events.SEND and event.node == str(i) and self._observations.is_other(event.detail)
            return is_call or asked()

        until_ns = self.clock_ran_ns.get(i, 0) + int(CAMPAIGN_S * NS_PER_S)
        while not asked():
            left_ns = until_ns - self.clock_ran_ns.get(i, 0)
            if left_ns <= 0 or not self.config.is_up(i) or not self._run_clock(i, left_ns / NS_PER_S, calls):
                return False
            if not asked() and not self._strict:
                self._deliver_calls(i, known, asked)
        return True

    def _deliver_calls(self, i: int, known: Collection[int], is_done: Callable[[], bool]) -> None:
        """Deliver its new calls until `is_done`, first to the peer with the lowest term, which must not learn a
        later one."""
        self._observations.pre_vote_calls = ", ".join(sorted(self._observations.other_calls[i]))
        calls = [queued for queued in self._network.queued if not queued.is_reply and queued.message.id not in known]
        calls = [
            queued
            for queued in calls
            if queued.message.source == str(i) and self._observations.is_other(queued.message)
        ]
        peers = self.checker.facts.peers
        receivers = []
        for queued in sorted(calls, key=lambda queued: peers[queued.message.target].observed_term):
            receiver = int(queued.message.target)
            if is_done() or receiver not in self._running_peers():
                continue
            receivers.append(receiver)
            self._deliver_and_answer(queued)
        for receiver in receivers:
            # It may refuse until its own election timeout, because it believes that its leader is alive.
            if not is_done() and not self._call_peer(receiver, lambda i=receiver: self.config.get_state(i))[1]:  # type: ignore[misc]
                self._run_clock(receiver, _TIMEOUT_S, _sent_by(receiver))

    def _campaign_alone(self, i: int) -> None:
        """In a cluster of one, which needs no votes."""
        if not self._wait_until(i, lambda: self._call_peer(i, lambda: self.config.get_state(i))[1], CAMPAIGN_S):
            self.fail(f"peer {i} is the only peer, but does not lead after {CAMPAIGN_S:g} s on its own clock (§5.2)")
        self._observations.campaigns[i] = self._call_peer(i, lambda: self.config.get_state(i))[0]

    @step
    def elect(self, i: int, voters: Iterable[int], *, term: int | None = None) -> None:
        """Peer i campaigns and these peers vote for it. Its other requests stay in flight."""
        asked = list(dict.fromkeys(voters))
        if i in asked:
            raise ScenarioError(f"peer {i} always votes for itself; name only the other voters")
        self.campaign(i, term=term)
        for voter in asked:
            self._check_running(voter)
            self.ask_vote(i, voter)
        self.expect_leader(i, term=term)

    @step
    def ask_vote(self, candidate: int, voter: int) -> None:
        """Deliver the request of its latest campaign, and the reply. Requests of earlier ones stay in flight."""
        term = self._observations.campaigns[candidate]
        request = Selector(candidate, voter, VOTE, reply=False, term=term)
        (queued,) = self._find_messages(request)
        self._deliver(queued)
        self._wait_until(voter, lambda: queued.message.reply is not None)
        for answer in self._in_flight(Selector(voter, candidate, VOTE, reply=True, term=term)):
            self._deliver(answer)

    @step
    def heartbeat(self, i: int) -> None:
        """Run the clock of peer i until it sends AppendEntries (or a snapshot)."""
        self._check_leads(i)

        def sent(event: Event) -> bool:
            return event.kind == events.SEND and event.node == str(i) and _replicates(event.detail)

        if not self._run_clock(i, CAMPAIGN_S, sent):
            self.fail(f"peer {i} sent no AppendEntries within {CAMPAIGN_S:g} s on its own clock (§5.2)")

    @step
    def run(self, duration_s: float, i: int | None = None) -> None:
        """Let time pass: for peer i alone or, without one, for all peers, on a reliable network."""
        if i is not None:
            self._check_up(i)
            self._run_clock(i, duration_s, lambda event: False)
            return
        with self._normal_operation():
            self._simulation.sleep(int(duration_s * NS_PER_S))

    @step
    def run_until_send(self) -> None:
        """Run the clocks of all peers until one sends a message. Messages stay in flight."""
        peers = self._running_peers()
        if not peers or not self._run_clock(peers, CAMPAIGN_S, lambda event: event.kind == events.SEND):
            self.fail(f"no peer sent anything within {CAMPAIGN_S:g} s on its own clock")

    @contextmanager
    def _normal_operation(self) -> Iterator[None]:
        """Time passes for all peers, and messages arrive without steps, including those in flight."""
        self._choice_source.queues_messages = False
        for queued in self._network.queued:
            self._network.deliver_queued(queued, _NORMAL_LATENCY_NS)
        self._unfreeze_clocks(self._up())
        yield
        self._freeze_clocks()
        self._choice_source.queues_messages = True
        self._simulation.sleep(_ARRIVAL_NS)

    @step
    def expect_progress(self) -> None:
        """Repair all faults and let time pass for all peers: within 5 s there must be a leader, and within 10 s more
        all peers must have applied a new command."""
        for i in range(self.config.n):
            self.config.crash_at(i, None)
            if not self.config.is_up(i):
                self.restart(i)
            elif self.config.is_paused(i):
                self.config.resume(i)
            self.config.busy_service(i, False)
        self.heal()
        with self._normal_operation():
            self.config.check_one_leader()
            self.config.one(_PROGRESS, self.config.n, retry=True)

    # ---- steps: messages -----------------------------------------------------------------------

    @step
    def deliver(self, selector: str | None = None, *, again: bool = False) -> None:
        """Deliver the oldest matching message; for `*`, the oldest of each pair. Without a selector: all messages,
        until there are no more. `again`: deliver a message that has already arrived once more."""
        if selector is None:
            self._deliver_everything()
        elif again:
            for message in self._delivered(Selector.read(selector)):
                self._network.deliver_copy(message)
                self.settle()
        else:
            for queued in self._find_messages(Selector.read(selector)):
                self._deliver(queued)

    @step
    def drop(self, selector: str | None = None) -> None:
        """Lose the oldest matching message: its caller gets None at once. For `*`: all matching messages. Without a
        selector: all messages."""
        wanted = None if selector is None else Selector.read(selector)
        if wanted is None:
            lost = self._network.queued
        elif wanted.source is None or wanted.target is None:
            lost = self._in_flight(wanted)
        else:
            lost = self._find_messages(wanted)
        for queued in lost:
            self._network.drop_queued(queued)
        self.settle()

    @step
    def duplicate(self, selector: str) -> None:
        """Deliver a copy of the oldest matching request; the request itself stays in flight."""
        for queued in self._find_messages(Selector.read(selector)):
            if queued.is_reply:
                raise ScenarioError("only requests can be duplicated: a call ends with its first reply")
            self._network.deliver_copy(queued.message)
            self.settle()

    @step
    def replicate(self, source: int, targets: Iterable[int], *, deliver_last_reply: bool = True) -> None:
        """Deliver AppendEntries and replies until each target has the whole log of the source.

        Without `deliver_last_reply` the last reply is lost, so the source does not learn of it.
        """
        self._check_leads(source)
        for target in targets:
            self._check_running(target)
            if target == source:
                raise ScenarioError(f"peer {source} cannot replicate to itself; name other peers")
            self._replicate(source, target, deliver_last_reply=deliver_last_reply)

    @step
    def update(self, source: int, targets: Iterable[int]) -> None:
        """Like replicate(), and continue until the targets have applied what the source has applied."""
        followers = list(targets)
        self.replicate(source, followers)
        # Wait for the leader to apply its log, as far as it is committed.
        self._wait_until(source, lambda: self._applied_index(source) >= len(self._observations.logs[source]))
        for follower in followers:
            self._replicate_until_applied(source, follower)

    def _replicate_until_applied(self, leader: int, follower: int) -> None:
        for _ in range(_ROUNDS_MAX):
            if not self.config.is_up(follower) or self._wait_until(
                follower, lambda: self._applied_index(follower) >= self._applied_index(leader)
            ):
                return
            self.exchange_append(leader, follower)
        self.fail(
            f"peer {follower} has applied up to {self._applied_index(follower)} after {_ROUNDS_MAX} messages of peer "
            f"{leader}, which has applied up to {self._applied_index(leader)}"
        )

    # ---- steps: faults -----------------------------------------------------------------------

    @step
    def crash(self, i: int, when: CrashMoment | None = None) -> None:
        """Crash peer i now or, with `when`, at its next save or reply."""
        self._check_up(i)
        if when is None:
            self.config.crash1(i)
        else:
            self.config.crash_at(i, when)

    @step
    def restart(self, *indexes: int) -> None:
        """Restart peers that are down, each from its own disk."""
        for i in indexes:
            self._check_peer(i)
            if self.config.is_up(i):
                raise ScenarioError(f"peer {i} is not down; crash it first")
            self.config.restart(i)
            self.config.freeze_clock(i)

    @step
    def pause(self, i: int) -> None:
        """Stop peer i as SIGSTOP stops a process. Messages to it wait."""
        self._check_running(i)
        self.config.pause(i)

    @step
    def resume(self, i: int) -> None:
        self._check_up(i)
        if not self.config.is_paused(i):
            raise ScenarioError(f"peer {i} is not paused")
        self.config.resume(i)

    @step
    def cut(self, source: int, target: int | None = None, *, one_way: bool = False) -> None:
        """From now on messages between the two are lost; without a target, all messages to and from `source`.
        Messages already in flight can still be delivered."""
        self._cut_links(source, target, cut=True, one_way=one_way)

    def _cut_links(self, source: int, target: int | None, *, cut: bool, one_way: bool) -> None:
        self._check_peer(source)
        if target is not None:
            self._check_peer(target)
        for other in self.config.others(source) if target is None else [target]:
            self.config.link(source, other, cut=cut)
            if not one_way:
                self.config.link(other, source, cut=cut)

    @step
    def partition(self, *groups: Sequence[int]) -> None:
        """Cut every link between peers of different groups, and only those."""
        for i in [i for group in groups for i in group]:
            self._check_peer(i)
        self.config.partition(*groups)

    @step
    def heal(self, source: int | None = None, target: int | None = None, *, one_way: bool = False) -> None:
        """Repair all cut links; with a source, all of its links; with both, the link between the two."""
        if source is None:
            self.config.partition()
        else:
            self._cut_links(source, target, cut=False, one_way=one_way)
        # A test that was taken over may have disconnected a peer.
        for i in range(self.config.n) if source is None else [source]:
            if self.config.is_up(i) and not self.config.connected(i):
                self.config.connect(i)

    @step
    def snapshot(self, i: int, index: int) -> None:
        """Make the service of peer i take a snapshot at this index; the peer has time to save it."""
        self._check_running(i)
        try:
            self._call_peer(i, lambda: self.config.take_snapshot(i, index))
        except ValueError as error:
            raise ScenarioError(str(error)) from None
        self._wait_until(i, lambda: self.config.saved_snapshot_index(i) >= index)

    @step
    def busy(self, i: int) -> None:
        """From now on the service of peer i handles no messages."""
        self._check_up(i)
        self.config.busy_service(i)

    @step
    def ready(self, i: int) -> None:
        """The service handles messages again."""
        self._check_up(i)
        self.config.busy_service(i, False)

    @step
    def logs(self, terms: Sequence[Sequence[int]], *, commit: int = 0) -> None:
        """Give each peer a log with entries of these terms, by a history that Raft allows. Entries up to `commit` are
        committed, and applied by all peers that have them. Entry 5 of term 4 is the command i5t4.

        Afterwards there is no leader, and nothing is in flight: the leader of the last term has been restarted, and
        does not yet know what is committed.
        """
        if len(terms) != self.config.n:
            raise ScenarioError(f"logs() needs {self.config.n} logs, one per peer; got {len(terms)}")
        if self._observations.any_request:
            raise ScenarioError("logs() must be the first step: it creates its own history from the beginning")
        try:
            history = plan_history(terms, commit)
        except IllegalLogs as error:
            raise ScenarioError(f"Raft cannot produce these logs: {error}") from None
        HistoryBuilder(self).build(history)

    # ---- messages between a leader and a follower ---------------------------------------------------------------

    def _deliver_everything(self) -> None:
        for _ in range(_DELIVERIES_MAX):
            queued = self._network.queued
            if not queued:
                return
            self._deliver(queued[0])
        self.fail(f"after {_DELIVERIES_MAX:,} deliveries there are still messages in flight")

    def _replicate(self, leader: int, follower: int, *, deliver_last_reply: bool) -> None:
        lost: dict[int, int] = {}
        for _ in range(_ROUNDS_MAX):
            answers = self._deliver_append(leader, follower)
            if not self.config.is_up(follower):
                return  # an armed crash happened
            done = self._observations.has_whole_log(follower, leader)
            if done and not self._strict and not self._observations.append(follower, leader):
                # It has all entries but has not acknowledged them: it saves later and acknowledges in another RPC.
                self.run_until_save(follower)
            for queued in answers:
                if not deliver_last_reply and (done or self._acknowledges(queued, lost)):
                    self._network.drop_queued(queued)
                    self.settle()
                else:
                    self._deliver(queued)
            if not done or deliver_last_reply:
                self._deliver_others(leader, follower)
            if done or not self.config.is_up(follower):
                return
        self.fail(f"peer {follower} has not accepted all of peer {leader}'s log after {_ROUNDS_MAX} messages")

    def _acknowledges(self, queued: QueuedMessage, lost: dict[int, int]) -> bool:
        """Whether this reply would let the leader count an entry of its own term.

        A leader that sends a few entries at a time cannot continue without it, so it is delivered the third time.
        """
        message = queued.message
        index = self._observations.acknowledged_index(message)
        lost[index] = lost.get(index, 0) + 1
        return index > 0 and lost[index] < _LOST_MAX

    def run_until_save(self, i: int) -> None:
        """Run the clock of peer i for a short time, until it saves."""
        self._run_clock(i, PATIENCE_S, lambda event: event.kind == events.PERSIST and event.node == str(i))

    def _deliver_others(self, one: int, other: int) -> None:
        """Deliver RPCs that are not in the paper between the two peers: they may be acknowledgements."""
        for _ in range(_ROUNDS_MAX):
            ends = {str(one), str(other)}
            calls = [h for h in self._network.queued if {h.message.source, h.message.target} == ends]
            calls = [queued for queued in calls if queued.message.rpc not in RPCS]
            if not calls:
                return
            self._deliver(calls[0])

    def _deliver_append(self, leader: int, follower: int) -> list[QueuedMessage]:
        """Deliver the oldest AppendEntries or snapshot: its reply, which is in flight."""
        there, back = Selector(leader, follower, reply=False), Selector(follower, leader, reply=True)
        term = self._observations.campaigns[leader]

        def wanted(message: Message) -> bool:
            """Whether it sends this as the current leader. Messages of earlier terms may be left."""
            matches = there.matches(message, is_reply=False) and _replicates(message)
            return matches and term_of(message) in (None, term)

        def waiting() -> list[QueuedMessage]:
            return [queued for queued in self._in_flight(there) if wanted(queued.message)]

        if not waiting() and not self._strict:
            # Until its next heartbeat a leader may need longer than steps usually wait.
            self._run_clock(leader, CAMPAIGN_S, lambda event: event.kind == events.SEND and wanted(event.detail))
        if not waiting():
            why = (
                "in a strict scenario, where no clock runs" if self._strict else f"in {CAMPAIGN_S:g} s on its own clock"
            )
            self.fail(f"peer {leader} sent no AppendEntries to peer {follower} {why} (§5.2)")
        queued = waiting()[0]
        self._deliver(queued)
        self._wait_until(follower, lambda: queued.message.reply is not None)
        return [answer for answer in self._in_flight(back) if answer.message.id == queued.message.id]

    @step
    def exchange_append(self, leader: int, follower: int) -> None:
        """Deliver one AppendEntries or snapshot, and the reply."""
        for queued in self._deliver_append(leader, follower):
            self._deliver(queued)
        self._deliver_others(leader, follower)

    # ---- output -----------------------------------------------------------------------

    @step
    def show(self) -> str:
        """The state of all peers, and the messages in flight."""
        states = {i: self._call_peer(i, lambda i=i: self.config.get_state(i)) for i in self._running_peers()}  # type: ignore[misc]
        return display.show(self.config, self._observations, states, self._network.queued)


def _sent_by(i: int) -> Callable[[Event], bool]:
    return lambda event: event.kind == events.SEND and event.node == str(i)


def _replicates(message: Message) -> bool:
    return message.rpc in (APPEND, INSTALL)


MakeConfig = Callable[..., Config]


def make_scenario(
    make_config: MakeConfig,
    *,
    peers: int = 3,
    snapshots: bool = False,
    strict: bool = False,
    plain_votes: bool = False,
) -> Scenario:
    """A cluster that acts only in steps, inside a test.

    `plain_votes`: the scenario needs peers that vote as in Figure 2. A peer with pre-vote, or one that ignores a
    RequestVote (§6), is skipped at the step that fails.
    """
    simulation = current_simulation()
    if simulation is None:
        raise ScenarioError("a scenario needs virtual time, because its steps freeze clocks")
    choice_source = QueueingChoiceSource(simulation.choice_source)
    simulation.choice_source = choice_source  # before the network is created
    config = make_config(servers=peers, snapshot=snapshots)
    return Scenario(config, choice_source, strict=strict, plain_votes=plain_votes)
