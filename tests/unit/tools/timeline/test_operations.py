"""Every fault is an event and a banner in the timeline, and diagnoses see it."""

import pytest

from labrpc import conditions
from labsim import time
from raft.raft import Raft
from raftlab.check.diagnosis.trace_analysis import TraceAnalysis
from raftlab.check.failure import Failure
from raftlab.harness.in_process import InProcessLauncher
from raftlab.harness.run import run_test
from raftlab.scenarios.collection import collect
from raftlab.tools.selection import select
from raftlab.tools.timeline.model import build_model
from raftlab.trace import events
from raftlab.trace.trace_file import read_trace, write_trace

# An act of each kind, how it is told, the one that ends it, and how that is told.
ACTS = {
    conditions.RELIABLE: (
        lambda cfg: cfg.set_unreliable(True),
        "the network is unreliable: it loses and delays messages",
        lambda cfg: cfg.set_unreliable(False),
        "the network is reliable again",
    ),
    conditions.LONG_REORDERING: (
        lambda cfg: cfg.set_long_reordering(True),
        "replies are reordered and delayed by up to 2.2 s",
        lambda cfg: cfg.set_long_reordering(False),
        "replies are not reordered any more",
    ),
    conditions.LONG_DELAYS: (
        lambda cfg: cfg.network.long_delays(False),
        "a call to an unreachable server takes up to 0.1 s to fail",
        lambda cfg: cfg.network.long_delays(True),
        "a call to an unreachable server takes up to 7 s to fail",
    ),
    conditions.DUPLICATES: (
        lambda cfg: cfg.duplicates(0.2),
        "20% of the requests are duplicated",
        lambda cfg: cfg.duplicates(0),
        "requests are not duplicated any more",
    ),
    conditions.LATENCY: (
        lambda cfg: cfg.latency(5, 40),
        "a message takes 5–40 ms each way",
        lambda cfg: cfg.latency(2, 2),
        "a message takes 2 ms each way",
    ),
    conditions.LINK: (
        lambda cfg: cfg.link(0, 1, loss=0.5, latency_ms=(3, 4)),
        "from 0 to 1 a message takes 3–4 ms more, 50% of the messages are lost",
        lambda cfg: cfg.link(0, 1, loss=0, latency_ms=(0, 0)),
        "the link from 0 to 1 is restored",
    ),
    conditions.PARTITION: (
        lambda cfg: cfg.partition([0], [1, 2]),
        "the network is partitioned: 0 | 1 2",
        lambda cfg: cfg.partition(),
        "all links are restored",
    ),
    events.CRASH_AT: (
        lambda cfg: cfg.crash_at(1, "before save", nth=99),
        "peer 1 will crash before save number 99, counted from now",
        lambda cfg: cfg.crash_at(1, None),
        "peer 1 no longer crashes at a save or reply",
    ),
    events.SLOW_DISKS: (
        lambda cfg: cfg.slow_disks(5, 9),
        "a save takes 5–9 ms",
        lambda cfg: cfg.slow_disks(0, 0),
        "saves take no time again",
    ),
    events.SLOW_SNAPSHOTS: (
        lambda cfg: cfg.slow_snapshots(2, 30),
        "peer 2's service takes 30 ms to make a snapshot",
        lambda cfg: cfg.slow_snapshots(2, 0),
        "peer 2's service takes 0 ms to make a snapshot",
    ),
    events.BUSY: (
        lambda cfg: cfg.busy_service(2),
        "peer 2's service is busy and handles nothing",
        lambda cfg: cfg.busy_service(2, False),
        "peer 2's service is not busy any more",
    ),
    events.PAUSE: (
        lambda cfg: cfg.pause(1),
        "peer 1 is paused",
        lambda cfg: cfg.resume(1),
        "peer 1 resumes",
    ),
    events.FREEZE_CLOCK: (
        lambda cfg: cfg.freeze_clock(1),
        "peer 1 has its clock frozen",
        lambda cfg: cfg.unfreeze_clock(1),
        "peer 1 has its clock unfrozen",
    ),
    events.DISCONNECT: (
        lambda cfg: cfg.disconnect(1),
        "peer 1 is disconnected",
        lambda cfg: cfg.connect(1),
        "peer 1 is reconnected",
    ),
    events.CRASH: (
        lambda cfg: cfg.crash1(1),
        "peer 1 crashes",
        lambda cfg: cfg.restart(1),
        "peer 1 restarts",
    ),
}


def test_every_kind_of_fault_has_a_case():
    end_others = {events.CONNECT, events.RESTART, events.BOOT, events.RESUME, events.UNFREEZE_CLOCK}
    assert set(ACTS) | end_others == events.ACTS


@pytest.mark.parametrize("kind", ACTS)
def test_fault_is_an_event_a_banner_and_a_change(kind, tmp_path):
    act, words, undo, undone = ACTS[kind]

    @collect
    def test(make_config):
        cfg = make_config(servers=3)
        time.sleep(1.0)
        act(cfg)
        if kind not in (events.PAUSE, events.FREEZE_CLOCK):  # which twice is a mistake
            act(cfg)  # once more: nothing new
        time.sleep(1.0)
        undo(cfg)
        time.sleep(0.5)

    run = run_test(test, InProcessLauncher(Raft), 7)
    assert run.error is None
    trace = run.simulation.trace
    banners = [row.banner for row in build_model(trace).rows]
    assert banners.count(words) == 1 and banners.count(undone) == 1
    seen = [event for event in trace if event.kind == kind and event.at_ns > 0]
    before_undo = [event for event in trace if event.at_ns < 2_000_000_000]
    assert TraceAnalysis(before_undo, Failure("")).last_fault_ns == seen[0].at_ns == 1_000_000_000
    write_trace(tmp_path / "trace", seen)
    read = read_trace(tmp_path / "trace").events
    assert [type(event.detail) for event in read] == [type(event.detail) for event in seen]


def test_even_partition_reaches_timeline_and_diagnoses():
    """It used to leave no trace at all, and the diagnoses believed that everybody was connected."""
    [test] = select(["test_even_cluster_2b"])
    trace = run_test(test, InProcessLauncher(Raft), 7).simulation.trace
    cut = next(event for event in trace if event.kind == conditions.PARTITION)
    sides = " | ".join(" ".join(side) for side in cut.detail)
    assert f"the network is partitioned: {sides}" in [row.banner for row in build_model(trace).rows]
    during = [event for event in trace if event.at_ns <= cut.at_ns + 1_000_000_000]
    analysis = TraceAnalysis(during, Failure(""))
    assert analysis.last_fault_ns == cut.at_ns
    assert len(analysis.connected) == 2 < analysis.quorum


def test_peer_with_all_links_cut_is_disconnected():
    @collect
    def test(make_config):
        cfg = make_config(servers=3)
        time.sleep(1.0)
        cfg.partition([0], [1, 2])
        time.sleep(1.0)

    rows = build_model(run_test(test, InProcessLauncher(Raft), 7).simulation.trace).rows
    assert {name: mark.cut for name, mark in rows[-1].marks.items()} == {"0": True, "1": False, "2": False}
