"""The steps that expect something. A failure says what was found instead."""

from __future__ import annotations

from typing import Any

from raftlab.check.failure import short
from raftlab.scenarios import fields
from raftlab.scenarios.in_flight import Selector, describe
from raftlab.scenarios.stepped_cluster import ScenarioError, SteppedCluster, step


class Expectations(SteppedCluster):
    @step
    def expect_leader(self, i: int, *, term: int | None = None) -> None:
        """Peer i leads according to get_state(), in this term if one is given."""
        self._check_running(i)

        def leads() -> bool:
            its_term, leads = self._call_peer(i, lambda: self.config.get_state(i))
            return leads and term in (None, its_term)

        if not self._wait_until(i, leads):
            its_term, is_leader = self._call_peer(i, lambda: self.config.get_state(i))
            wanted = "" if term is None else f" of term {term}"
            self.fail(
                f"expected peer {i} as the leader{wanted}; get_state() says: term {its_term}, "
                f"{'leader' if is_leader else 'not leader'}"
            )

    @step
    def expect_not_leader(self, i: int) -> None:
        self._check_running(i)
        if not self._wait_until(i, lambda: not self._call_peer(i, lambda: self.config.get_state(i))[1]):
            term, _ = self._call_peer(i, lambda: self.config.get_state(i))
            self.fail(f"expected peer {i} not to lead; get_state() says: term {term}, leader")

    @step
    def expect_no_leader(self) -> None:
        """No peer that is up and not paused leads according to get_state()."""
        leaders = []
        for i in self._running_peers():
            term, leads = self._call_peer(i, lambda i=i: self.config.get_state(i))  # type: ignore[misc]
            if leads:
                leaders.append(f"peer {i} leads in term {term}")
        if leaders:
            self.fail(f"expected no leader, but {', '.join(leaders)}")

    @step
    def expect_term(self, i: int, term: int) -> None:
        self._check_running(i)
        if not self._wait_until(i, lambda: self._call_peer(i, lambda: self.config.get_state(i))[0] == term):
            its_term, _ = self._call_peer(i, lambda: self.config.get_state(i))
            self.fail(f"expected peer {i} in term {term}; get_state() says {its_term}")

    @step
    def expect_vote(self, voter: int, candidate: int, *, granted: bool = True) -> None:
        """The voter's reply to this candidate's last RequestVote."""
        self._check_peer(voter)
        self._check_peer(candidate)
        if voter == candidate:
            raise ScenarioError(f"a candidate always votes for itself; write 'expect {voter} term ...' instead")
        self._wait_until(voter, lambda: self._observations.vote(voter, candidate) is not None)
        answer = self._observations.vote(voter, candidate)
        wanted = "vote for" if granted else "refuse"
        if answer is None:
            self.fail(f"expected peer {voter} to {wanted} peer {candidate}, but it has not replied yet")
        if answer.granted is not granted:
            did = "voted for it" if answer.granted else "refused"
            self.fail(f"expected peer {voter} to {wanted} peer {candidate} in term {answer.asked_term}, but it {did}")

    @step
    def expect_append(self, follower: int, leader: int, *, success: bool = True) -> None:
        """The follower's last reply to an AppendEntries of this leader."""
        self._check_peer(follower)
        self._check_peer(leader)
        self._wait_until(follower, lambda: self._observations.append(follower, leader) is not None)
        answer = self._observations.append(follower, leader)
        wanted = "accept" if success else "reject"
        if answer is None:
            self.fail(
                f"expected peer {follower} to {wanted} an AppendEntries of peer {leader}, but it has not replied yet"
            )
        if answer is not success:
            did = "accepted" if answer else "rejected"
            self.fail(f"expected peer {follower} to {wanted} the last AppendEntries of peer {leader}, but it {did} it")

    @step
    def expect_applied(self, i: int, command: Any, *, index: int | None = None, applied: bool = True) -> None:
        """The service of peer i has received this command (at this index) or, with applied=False, has not."""
        self._check_running(i)

        def has_applied() -> bool:
            known = self.config.applied(i)
            return command in ([known.get(index)] if index is not None else known.values())

        where = "" if index is None else f" at {index}"
        if applied and not self._wait_until(i, has_applied):
            self.fail(f"expected peer {i} to have applied {short(command)}{where}; it has applied {self._applied(i)}")
        if not applied and has_applied():
            self.fail(f"expected peer {i} not to have applied {short(command)}{where}, but it has")

    @step
    def expect_applied_up_to(self, i: int, index: int) -> None:
        self._check_running(i)
        if not self._wait_until(i, lambda: self._applied_index(i) >= index):
            self.fail(f"expected peer {i} to have applied up to {index}; it has applied {self._applied(i)}")
        if self._applied_index(i) > index:
            self.fail(
                f"expected peer {i} to have applied up to {index} and no further; it has applied {self._applied(i)}"
            )

    @step
    def expect_in_flight(self, selector: str, *, there: bool = True) -> None:
        wanted = Selector.read(selector)
        if there:
            self._find_messages(wanted)  # fails if there is none
        elif found := self._in_flight(wanted):
            self.fail(f"expected no message in flight that matches {wanted}, but there is: {describe(found[0])}")

    @step
    def expect_down(self, i: int) -> None:
        self._check_peer(i)
        if not self._wait_until(i, lambda: not self.config.is_up(i)):
            self.fail(f"expected peer {i} to be down, but it is up")

    @step
    def expect_field(self, i: int, name: str, value: Any) -> bool:
        """The value of a field of Figure 2, if the peer has it. Returns whether it could be read."""
        self._check_running(i)
        if fields.read(self.config.peer(i), name) is fields.UNREADABLE:
            return False
        if not self._wait_until(i, lambda: fields.read(self.config.peer(i), name) == value):
            found = fields.read(self.config.peer(i), name)
            self.fail(
                f"expected {name} of peer {i} to be {fields.format_value(value)}; it is {fields.format_value(found)}"
            )
        return True

    @step
    def expect_broken(self, rule: str) -> None:
        """For an incorrect peer: a violation of the rule ends the run before this step."""
        self.check()
        self.fail(f"expected a violation of {rule}, but there was none")
