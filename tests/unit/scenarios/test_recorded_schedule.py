"""A test's operations: recorded without changing the run, omitted, and replayed without the test."""

import pytest

from labsim import time
from labsim.choices import Choices, OverridingSource, SeededSource
from raftlab.harness.loader import load_peer
from raftlab.harness.run import run_test
from raftlab.scenarios.collection import collect
from raftlab.scenarios.recorded_schedule import ScheduleRecording, make_schedule_test, record_operations
from raftlab.tools.selection import select
from raftlab.trace.events import CONNECT, CRASH, DISCONNECT, PAUSE, RESTART, START
from raftlab.trace.operations import RecordedSchedule, ScheduledOperation
from unit.students import ROOT

pytestmark = pytest.mark.usefixtures("raft_package_restored")
SEED = 3


@pytest.fixture
def peer():
    return load_peer(ROOT / "raft" / "raft.py")


def kinds(run, *wanted):
    assert run.error is None, run.error
    return [(event.kind, event.node) for event in run.simulation.trace if event.kind in wanted and event.at_ns]


@collect
def faulty(make_config):
    cfg = make_config(servers=3)
    cfg.check_one_leader()
    cfg.crash1(0)
    cfg.disconnect(1)
    time.sleep(0.1)
    cfg.pause(2)
    cfg.restart(0)
    cfg.connect(1)
    cfg.resume(2)
    cfg.one("x", 3, retry=True)


@pytest.mark.parametrize("name", ["test_reelection_2a", "test_one_partition_3a"])
def test_recording_does_not_change_the_run(name, monkeypatch):
    monkeypatch.chdir(ROOT)
    (test,) = select([name])
    peer = load_peer(ROOT / "raft" / "raft.py", kv=ROOT / "kv" / "server.py")
    notes = ScheduleRecording()
    run, noted = run_test(test, peer, SEED), run_test(record_operations(test, notes), peer, SEED)
    assert (noted.digest, noted.error) == (run.digest, None)
    assert len(notes.clusters[-1].acts) > 10


def test_operations_are_recorded_in_order_without_their_parts(peer):
    notes = ScheduleRecording()
    run_test(record_operations(faulty, notes), peer, SEED)
    (cluster,) = notes.clusters
    assert cluster.how == {"servers": 3}
    does = [(act.does, act.peer) for act in cluster.acts if act.does not in ("get_state", "start")]
    assert does == [
        ("crash1", 0),
        ("disconnect", 1),
        ("pause", 2),
        ("start1", 0),
        ("connect", 0),
        ("connect", 1),
        ("resume", 2),
    ]
    times = [act.at_ns for act in cluster.acts]
    assert times == sorted(times)
    assert [place[1] for place in cluster.faults] == ["crash1", "disconnect", "pause"]


@pytest.mark.parametrize(
    ("fault", "gone"),
    [
        ("crash1", {(CRASH, "0"), (RESTART, "0")}),
        ("disconnect", {(DISCONNECT, "1"), (CONNECT, "1")}),
        ("pause", {(PAUSE, "2"), ("resume", "2")}),
    ],
)
def test_end_of_a_suppressed_fault_is_suppressed(peer, fault, gone):
    notes = ScheduleRecording()
    everything = (CRASH, RESTART, PAUSE, "resume", *(() if fault == "crash1" else (CONNECT, DISCONNECT)))
    before = kinds(run_test(record_operations(faulty, notes), peer, SEED), *everything)
    (place,) = [place for place in notes.clusters[0].faults if place[1] == fault]
    choices = Choices()
    choices.chosen[place, 1] = False
    run = run_test(
        record_operations(faulty, ScheduleRecording()),
        peer,
        SEED,
        choice_source=OverridingSource(SeededSource(SEED), choices),
    )
    assert kinds(run, *everything) == [one for one in before if one not in gone]
    assert place == ("fault", fault, place[2])


def test_replay_without_the_test_skips_inapplicable_operations(peer):
    acts = [
        ScheduledOperation(1_000_000_000, "start1", [0]),  # it is up
        ScheduledOperation(1_000_000_000, "connect", [1]),  # it is
        ScheduledOperation(1_000_000_000, "resume", [2]),  # it is not paused
        ScheduledOperation(1_100_000_000, "crash1", [0]),
        ScheduledOperation(1_100_000_000, "crash1", [0]),  # it is down
        ScheduledOperation(1_100_000_000, "start", [0, "x"]),
        ScheduledOperation(1_200_000_000, "start", [7, "x"]),  # there is none
        ScheduledOperation(1_200_000_000, "start", [1, "x"]),
        ScheduledOperation(1_300_000_000, "start1", [0]),
        ScheduledOperation(1_300_000_000, "network.partition", []),  # nothing is cut
        ScheduledOperation(1_300_000_000, "crash_at", [1, None]),  # it is not to crash
        ScheduledOperation(1_300_000_000, "crash_at", [1, "after save"]),
        ScheduledOperation(1_300_000_000, "crash_at", [1, None]),
    ]
    performed: set[int] = set()
    run = run_test(
        make_schedule_test(RecordedSchedule({"servers": 3}, False, acts, 1_500_000_000), performed=performed),
        peer,
        SEED,
    )
    assert performed == {3, 7, 8, 11, 12}
    assert kinds(run, CRASH, START, RESTART) == [(CRASH, "0"), (START, "1"), (RESTART, "0")]


def test_threads_of_the_test_are_replayed_as_threads(peer):
    """A thread that waits does not block the others."""
    acts = [
        ScheduledOperation(0, "make_client", ["client 0", None]),
        ScheduledOperation(0, "client.get", ["client 0", "k"], by="a thread"),
        ScheduledOperation(1_000_000, "client.get", ["client 1", "k"], by="another"),  # of a client that was never made
        ScheduledOperation(2_000_000, "crash1", [0]),
    ]
    performed: set[int] = set()
    service = load_peer(ROOT / "raft" / "raft.py", kv=ROOT / "kv" / "server.py")
    run = run_test(
        make_schedule_test(RecordedSchedule({"servers": 3}, True, acts, 2_500_000_000), performed=performed),
        service,
        SEED,
    )
    assert performed == {0, 1, 3}
    assert kinds(run, CRASH, "return") == [(CRASH, "0"), ("return", "client 0")]
