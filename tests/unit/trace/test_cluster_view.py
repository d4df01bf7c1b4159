"""The cluster according to its messages: roles, terms and connections."""

from types import SimpleNamespace

import pytest

from labsim import Event
from raftlab.trace import events
from raftlab.trace.calls import CallJoin, JoinedCall
from raftlab.trace.cluster_view import CANDIDATE, FOLLOWER, LEADER, ClusterView
from raftlab.trace.events import StartResult
from raftlab.trace.trace_file import RecordedMessage


class Call(JoinedCall):
    def __init__(self, message, original, sent_ns):
        super().__init__(message, original, sent_ns)
        self.args = message.decode_args()

    @property
    def reply(self):
        return self.message.decode_reply()


class View(ClusterView):
    """Of three peers that have been started."""

    def __init__(self):
        super().__init__("012")
        self._join = CallJoin(Call)
        self._number = 0
        for name in self.peers:
            self.act(events.BOOT, name)
            self.act(events.CONNECT, name)

    def act(self, kind, node="", detail=None):
        return self.take(Event(0, kind, node, 1, 0, detail, ""))

    def send(self, source, target, method, term):
        self._number += 1
        message = RecordedMessage(self._number, source, target, f"Raft.{method}", SimpleNamespace(term=term))
        return message, self._take(events.SEND, message)

    def answer(self, message, term):
        message._reply = SimpleNamespace(term=term)
        return self._take(events.ANSWER, message)

    def reply(self, message):
        return self._take(events.REPLY, message)

    def _take(self, kind, message):
        event = Event(0, kind, message.source, 1, message.id, message, "")
        return self.take(event, self._join.take(event))

    def role(self, name):
        return self.peers[name].role, self.peers[name].term


@pytest.mark.parametrize(
    ("method", "role"), [("request_vote", CANDIDATE), ("append_entries", LEADER), ("install_snapshot", LEADER)]
)
def test_a_request_shows_the_role_of_its_sender(method, role):
    view = View()
    view.send("0", "1", method, 2)
    assert view.role("0") == (role, 2)
    assert view.role("1") == (FOLLOWER, 0)


def test_late_request_vote_does_not_depose_its_leader():
    view = View()
    view.send("0", "1", "append_entries", 2)
    _, observed = view.send("0", "2", "request_vote", 2)
    assert observed is None
    assert view.role("0") == (LEADER, 2)


def test_candidate_that_accepts_a_leader_follows():
    view = View()
    view.send("1", "0", "request_vote", 2)
    message, _ = view.send("0", "1", "append_entries", 2)
    assert view.answer(message, 2).is_new
    assert view.role("1") == (FOLLOWER, 2)


def test_newer_term_in_a_reply_makes_a_follower():
    view = View()
    message, _ = view.send("0", "1", "append_entries", 2)
    view.answer(message, 3)
    assert view.role("0") == (LEADER, 2)
    view.reply(message)
    assert view.role("0") == view.role("1") == (FOLLOWER, 3)


def test_start_of_an_older_term_shows_nothing():
    view = View()
    view.send("0", "1", "request_vote", 3)
    assert view.act(events.STARTED, "0", StartResult("x", 1, 2, True)) is None
    assert view.role("0") == (CANDIDATE, 3)


def test_largest_group_leaves_out_who_cannot_talk():
    view = View()
    view.act(events.PARTITION, detail=[["0"], ["1", "2"]])
    assert view.peers["0"].isolated
    assert view.largest_group() == {"1", "2"}
    view.act(events.FREEZE_CLOCK, "2")
    assert len(view.largest_group()) == 1
    view.act(events.CLUSTER, detail=3)
    assert not view.peers["0"].isolated
    assert view.largest_group() == {"0", "1"}


def test_crash_ends_what_was_done_to_a_peer():
    view = View()
    view.act(events.PAUSE, "0")
    view.act(events.FREEZE_CLOCK, "0")
    view.act(events.CRASH, "0")
    view.act(events.RESTART, "0")
    view.act(events.CONNECT, "0")
    assert view.largest_group() == {"0", "1", "2"}
