"""Turns that threads have lost, in a recipe and in a timeline."""

from types import SimpleNamespace

from labsim import Event
from raftlab.tools.shrink import reproduction_steps
from raftlab.tools.timeline import labels
from raftlab.trace.events import PREEMPT, Preempted


def lost(at_ns, node="0", late_ns=0):
    return Event(at_ns, PREEMPT, node, 1, 0, Preempted("Thread-2 (_applier)", "raft/raft.py", 93, late_ns), "")


def told(*events):
    return [line.text for line in reproduction_steps._preemptions(SimpleNamespace(trace=events))]


def test_a_few_are_told_one_by_one():
    assert told(lost(5), lost(7, late_ns=21_400_000), Event(8, "boot", "0", 1, 0, None, "")) == [
        "Thread-2 (_applier) of peer 0 is preempted at raft/raft.py:93",
        "Thread-2 (_applier) of peer 0 is preempted at raft/raft.py:93 for 21 ms",
    ]


def test_many_are_counted_by_peer():
    events = [*(lost(n) for n in range(6)), lost(9, node="1")]
    assert told(*events) == [
        "threads of peer 0 are preempted 6 times",
        "Thread-2 (_applier) of peer 1 is preempted at raft/raft.py:93",
    ]


def test_a_timeline_has_room_for_the_line_or_for_how_long():
    assert labels.preempted(lost(1, late_ns=3_000_000).detail) == (
        "Thread-2 (_applier) is preempted at raft.py:93 for 3 ms",
        "preempted for 3 ms",
    )
    assert labels.preempted(lost(1).detail)[0] == "Thread-2 (_applier) is preempted at raft.py:93"
