"""Preemptions in reproduction steps and in a timeline."""

from types import SimpleNamespace

from labsim import Event
from raftlab.tools.shrink import reproduction_steps
from raftlab.tools.timeline import labels
from raftlab.trace.events import PREEMPT, Preempted


def preempted(at_ns, node="0", late_ns=0):
    return Event(at_ns, PREEMPT, node, 1, 0, Preempted("Thread-2 (_applier)", "raft/raft.py", 93, late_ns), "")


def preemption_lines(*events):
    return [line.text for line in reproduction_steps._preemptions(SimpleNamespace(trace=events))]


def test_few_preemptions_have_a_line_each():
    assert preemption_lines(preempted(5), preempted(7, late_ns=21_400_000), Event(8, "boot", "0", 1, 0, None, "")) == [
        "Thread-2 (_applier) of peer 0 is preempted at raft/raft.py:93",
        "Thread-2 (_applier) of peer 0 is preempted at raft/raft.py:93 for 21 ms",
    ]


def test_many_preemptions_are_counted_by_peer():
    events = [*(preempted(n) for n in range(6)), preempted(9, node="1")]
    assert preemption_lines(*events) == [
        "threads of peer 0 are preempted 6 times",
        "Thread-2 (_applier) of peer 1 is preempted at raft/raft.py:93",
    ]


def test_preemption_label_has_a_short_form():
    assert labels.preempted(preempted(1, late_ns=3_000_000).detail) == (
        "Thread-2 (_applier) is preempted at raft.py:93 for 3 ms",
        "preempted for 3 ms",
    )
    assert labels.preempted(preempted(1).detail)[0] == "Thread-2 (_applier) is preempted at raft.py:93"
