"""pause(), resume(), freeze_clock(), unfreeze_clock(): their effects, and that they cause no failures."""

import pytest

from labsim import queue, random, threading, time
from raft.messages import AppendEntriesArgs, AppendEntriesReply
from raft.raft import Raft
from raftlab.check.failure import Failure
from raftlab.harness.in_process import InProcessLauncher
from raftlab.harness.loader import load_peer
from raftlab.harness.options import DEFAULT
from raftlab.harness.run import run_test
from raftlab.scenarios.collection import collect
from raftlab.trace import events
from tests.mutants.tool.mutants import load_mutants

REFERENCE = InProcessLauncher(Raft)

HOUR_S = 3600.0


def run(test, launcher=REFERENCE, seed=4, **kwargs):
    return run_test(test, launcher, seed, **kwargs)


def passes(test, launcher=REFERENCE, **kwargs):
    done = run(test, launcher, **kwargs)
    assert done.error is None, done.error
    return done


# ---- errors ----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("act", "said"),
    [
        (lambda cfg: cfg.pause(3), r"there is no server 3; servers are 0\.\.2"),
        (lambda cfg: (cfg.pause(0), cfg.pause(0)), r"pause\(\): server 0 is already paused"),
        (lambda cfg: cfg.resume(0), r"resume\(\): server 0 is not paused"),
        (lambda cfg: (cfg.crash1(0), cfg.pause(0)), r"pause\(\): server 0 is down"),
        (lambda cfg: (cfg.pause(0), cfg.crash1(0), cfg.resume(0)), r"resume\(\): server 0 is down"),
        (lambda cfg: (cfg.pause(0), cfg.get_state(0)), r"get_state\(\): server 0 is paused; call resume\(\) first"),
        (lambda cfg: (cfg.pause(0), cfg.start(0, 1)), r"start\(\): server 0 is paused; call resume\(\) first"),
        (
            lambda cfg: (cfg.freeze_clock(0), cfg.freeze_clock(0)),
            r"freeze_clock\(\): the clock of server 0 is already frozen",
        ),
        (lambda cfg: cfg.unfreeze_clock(0), r"unfreeze_clock\(\): the clock of server 0 is not frozen"),
        (lambda cfg: (cfg.crash1(0), cfg.freeze_clock(0)), r"freeze_clock\(\): server 0 is down"),
    ],
)
def test_impossible_pauses_are_refused(act, said):
    @collect
    def test(make_config):
        with pytest.raises(ValueError, match=f"^{said}"):
            act(make_config(servers=3))

    passes(test)


@pytest.mark.parametrize("act", ["pause", "resume", "freeze_clock", "unfreeze_clock"])
def test_pauses_are_refused_on_real_threads(act):
    @collect
    def test(make_config):
        with pytest.raises(ValueError, match=rf"^{act}\(\) needs virtual time; it is not supported with --realtime"):
            getattr(make_config(servers=1), act)(0)

    passes(test, realtime=True)


def test_report_names_paused_servers():
    @collect
    def test(make_config):
        cfg = make_config(servers=3)
        cfg.pause(1)
        cfg.freeze_clock(2)
        cfg.fail("enough")

    error = run(test).error
    assert isinstance(error, Failure)
    told = "\n".join(error.evidence)
    assert "  1  connected, paused, state not requested yet" in told
    assert "  2  connected, clock frozen, state not requested yet" in told


# ---- the tester ------------------------------------------------------------------------------------------------


def test_tester_does_not_call_paused_servers():
    @collect
    def test(make_config):
        cfg = make_config(servers=3)
        leader = cfg.check_one_leader()
        cfg.pause(leader)
        assert cfg.is_paused(leader) and cfg.is_up(leader) and not cfg.reachable(leader)
        another = cfg.check_one_leader()
        assert another != leader
        cfg.one("x", 2, retry=True)
        assert cfg.leader_now() == another
        assert cfg.wait_for_leader()[0] == another
        cfg.check_terms()
        cfg.wait(1, 2, start_term=0)
        cfg.disconnect(another)
        cfg.disconnect(*cfg.others(leader, another))
        time.sleep(2)
        cfg.check_no_leader()

    passes(test)


def test_resumed_leader_becomes_follower():
    states = []

    @collect
    def test(make_config):
        cfg = make_config(servers=3)
        leader, term = cfg.wait_for_leader()
        cfg.pause(leader)
        cfg.wait_for_leader(term)
        cfg.resume(leader)
        states.append(cfg.get_state(leader))
        time.sleep(1)
        states.append(cfg.get_state(leader))
        assert states[0] == (term, True), "it does not know yet"
        assert states[1][0] > term

    passes(test)


def test_end_resumes_all_servers():
    @collect
    def test(make_config):
        cfg = make_config(servers=3)
        cfg.check_one_leader()
        cfg.pause(0)
        cfg.freeze_clock(1)

    trace = passes(test).simulation.trace
    kinds = [event.kind for event in trace]
    assert kinds.index(events.RESUME) < kinds.index(events.STOP)
    assert kinds.index(events.UNFREEZE_CLOCK) < kinds.index(events.STOP)


def test_messages_to_a_paused_server_arrive_when_it_resumes():
    @collect
    def test(make_config):
        cfg = make_config(servers=3)
        leader = cfg.check_one_leader()
        sleeper = cfg.others(leader)[0]
        cfg.pause(sleeper)
        at_s.append(time.monotonic())
        time.sleep(1)
        cfg.resume(sleeper)
        at_s.append(time.monotonic())
        time.sleep(0.5)

    at_s = []
    trace = passes(test).simulation.trace
    paused_ns, resumed_ns = (int(s * 1e9) for s in at_s)
    (sleeper,) = {event.node for event in trace if event.kind == events.PAUSE}
    while_paused = [e for e in trace if paused_ns < e.at_ns < resumed_ns and e.node == sleeper]
    assert while_paused == []
    waiting = [
        e
        for e in trace
        if e.kind == events.SEND and e.detail.target == sleeper and paused_ns < e.at_ns < resumed_ns - 10_000_000
    ]
    assert len(waiting) > 3
    delivered = {e.message: e.at_ns for e in trace if e.kind == events.DELIVER and e.node == sleeper}
    assert {delivered[e.message] for e in waiting} == {resumed_ns}


def test_duplicates_and_replies_wait_for_resume_too():
    @collect
    def test(make_config):
        cfg = make_config(servers=3)
        cfg.duplicates(1.0)
        leader = cfg.check_one_leader()
        for number in range(20):
            cfg.start(leader, number)
        time.sleep(0.002)
        cfg.pause(leader)
        cfg.pause(cfg.others(leader)[0])
        spans.append(time.monotonic())
        time.sleep(1)
        spans.append(time.monotonic())

    spans = []
    trace = passes(test).simulation.trace
    paused = {event.node for event in trace if event.kind == events.PAUSE}
    began_ns, ended_ns = (int(s * 1e9) for s in spans)
    assert not [e for e in trace if began_ns < e.at_ns < ended_ns and e.node in paused]
    later = [e.kind for e in trace if e.at_ns == ended_ns and e.node in paused]
    assert {events.DUPLICATE, events.DELIVER, events.REPLY} <= set(later)


# ---- time limits do not count pauses ----------------------------------------------------------------------------


class Slow(Raft):
    """Its start() waits for a lock that another thread may hold when the server is paused."""

    def __init__(self, *args):
        self.gate = threading.Lock()
        super().__init__(*args)

    def start(self, command):
        with self.gate:
            return super().start(command)


def test_call_interrupted_by_a_pause_is_not_reported():
    @collect
    def test(make_config):
        cfg = make_config(servers=3)
        leader = cfg.check_one_leader()
        caller = threading.Thread(target=cfg.start, args=(leader, "x"))
        cfg.pause(leader)
        # Now start() is refused, but an earlier call would wait: make one without the tester.
        slot = cfg._slots[leader]
        slot.paused = False
        caller.start()
        time.sleep(0)
        slot.paused = True
        time.sleep(30)
        cfg.resume(leader)
        caller.join()
        cfg.one("y", 3, retry=True)

    passes(test, InProcessLauncher(Slow))


def test_paused_handler_is_not_late():
    """answers-requests allows 2 s. A peer that is paused longer, in a save, may reply later."""

    @collect
    def test(make_config):
        cfg = make_config(servers=3)
        leader = cfg.check_one_leader()
        cfg.slow_disks(20, 20)
        cfg.start(leader, "x")
        time.sleep(0.010)
        sleeper = cfg.others(leader)[0]
        cfg.pause(sleeper)
        time.sleep(20)
        cfg.resume(sleeper)
        cfg.one("y", 3, retry=True)

    for seed in range(5):
        trace = passes(test, seed=seed).simulation.trace
    paused_ns = next(e.at_ns for e in trace if e.kind == events.PAUSE)
    (sleeper,) = {e.node for e in trace if e.kind == events.PAUSE}
    before = [e for e in trace if e.at_ns < paused_ns and e.node == sleeper]
    delivered = {e.message for e in before if e.kind == events.DELIVER}
    assert delivered - {e.message for e in before if e.kind == events.ANSWER}, "one was on its desk"


def test_pause_of_a_frozen_server_does_not_count_as_its_time():
    """Frozen, paused, unfrozen, resumed: none of this time counts as the server's."""

    @collect
    def test(make_config):
        cfg = make_config(servers=3, snapshot=True)
        leader = cfg.check_one_leader()
        follower = cfg.others(leader)[0]
        cfg.slow_snapshots(follower, 500)
        for command in range(15):
            cfg.start(leader, command)
        time.sleep(0.3)  # it knows that all are committed, and makes a snapshot of the first
        cfg.freeze_clock(follower)
        time.sleep(5)
        cfg.pause(follower)
        cfg.unfreeze_clock(follower)
        time.sleep(0.01)
        cfg.resume(follower)
        cfg.one("x", 3, retry=True)

    passes(test)


def test_command_started_before_a_pause_may_still_commit():
    @collect
    def test(make_config):
        cfg = make_config(servers=3)
        leader = cfg.check_one_leader()
        cfg.slow_disks(50, 50)
        asking = threading.Thread(target=lambda: cfg.one("x", 2, retry=True))
        asking.start()
        time.sleep(0.01)  # its start() waits for the disk
        cfg.pause(leader)
        time.sleep(11)
        cfg.resume(leader)
        asking.join()

    passes(test)


def test_silent_peer_is_reported_while_another_is_paused():
    class Silent(Raft):
        def append_entries(self, args: AppendEntriesArgs) -> AppendEntriesReply:
            if self.me == 4:
                queue.Queue().get()
            return super().append_entries(args)

    @collect
    def test(make_config):
        cfg = make_config(servers=5)
        leader = cfg.check_one_leader()
        assert leader != 4
        cfg.pause(next(i for i in cfg.others(leader) if i != 4))
        time.sleep(6)

    error = run(test, InProcessLauncher(Silent)).error
    assert isinstance(error, Failure) and error.rule == "answers-requests", error


# ---- peers with frozen clocks do not act by themselves------------------------------------------------------------


@pytest.fixture
def hours(monkeypatch):
    """Raises the time limit of a test."""
    monkeypatch.setattr("raftlab.harness.config.MAX_TEST_S", 2 * HOUR_S)


RIGHT_PEERS = [mutant for mutant in load_mutants() if mutant.correct and not mutant.of_service]


def acts_of(trace, node, since_ns, until_ns):
    kinds = (events.SEND, events.PERSIST, events.APPLY)
    return [e for e in trace if e.node == node and e.kind in kinds and since_ns <= e.at_ns < until_ns]


@pytest.mark.parametrize("peer", RIGHT_PEERS, ids=lambda mutant: mutant.id)
def test_peer_campaigns_only_while_its_clock_runs(peer, tmp_path, hours):
    """All clocks are frozen for an hour. Then one runs, and all peers reply to it."""

    @collect
    def test(make_config):
        cfg = make_config(servers=3)
        for i in range(3):
            cfg.freeze_clock(i)
        time.sleep(HOUR_S)
        assert not [e for e in cfg._runtime.trace if e.kind == events.SEND]
        cfg.unfreeze_clock(1)
        for _ in range(1000):
            time.sleep(0.010)
            if [e for e in cfg._runtime.trace if e.kind == events.SEND and e.node == "1"]:
                break
        else:
            raise AssertionError("it does not campaign")
        # The others may send RPCs when they receive one, but nothing by themselves.
        heard = {(e.node, e.at_ns) for e in cfg._runtime.trace if e.kind == events.DELIVER}
        sent = [e for e in cfg._runtime.trace if e.kind == events.SEND and e.node != "1"]
        assert not [e for e in sent if (e.node, e.at_ns) not in heard]

    passes(test, load_peer(peer.write(tmp_path)))


@pytest.mark.parametrize("peer", RIGHT_PEERS, ids=lambda mutant: mutant.id)
def test_follower_with_a_frozen_clock_does_not_time_out(peer, tmp_path):
    """It is disconnected while the others' time passes: with a running clock it would campaign."""
    span = []

    @collect
    def test(make_config):
        cfg = make_config(servers=3)
        held = cfg.others(cfg.check_one_leader())[0]
        cfg.disconnect(held)
        cfg.freeze_clock(held)
        time.sleep(1)  # for whatever it had begun
        span.append(time.monotonic())
        time.sleep(random.uniform(10, 11))
        span.append(time.monotonic())
        cfg.unfreeze_clock(held)
        time.sleep(5)

    trace = passes(test, load_peer(peer.write(tmp_path))).simulation.trace
    (held,) = {e.node for e in trace if e.kind == events.FREEZE_CLOCK}
    began_ns, ended_ns = (int(s * 1e9) for s in span)
    assert acts_of(trace, held, began_ns, ended_ns) == []
    assert acts_of(trace, held, ended_ns, ended_ns + 5_000_000_000), "then it campaigns"


def test_reference_with_a_frozen_clock_does_not_act_for_hours(hours):
    @collect
    def test(make_config):
        cfg = make_config(servers=2)
        cfg.disconnect(0)
        cfg.freeze_clock(0)
        marks.append(time.monotonic())
        for _ in range(int(HOUR_S / 100)):
            time.sleep(100)
        marks.append(time.monotonic())

    marks = []
    done = run(test, load_peer(DEFAULT))
    assert done.error is None
    began_ns, ended_ns = (int(s * 1e9) for s in marks)
    assert ended_ns - began_ns == HOUR_S * 1e9
    assert acts_of(done.simulation.trace, "0", began_ns, ended_ns) == []
    assert len(acts_of(done.simulation.trace, "1", began_ns, ended_ns)) > 1000
