"""--race in the sandbox: the supervisor chooses preemptions, and the peer process reports races."""

import os
from types import SimpleNamespace

import pytest

from labsim import Simulation, time
from labsim.choices import ChoiceKind, DefaultSource, OverridingSource, RecordingSource, SeededSource
from labsim.stacks import CodeLocation
from raftlab.check.failure import Failure, PeerProcessFailed
from raftlab.guest import protocol
from raftlab.guest.protocol import (
    BenignRaceFound,
    PreemptionBatch,
    PreemptionReached,
    PreemptionRequest,
    RaceFound,
    ResumeThread,
)
from raftlab.harness.loader import load_peer
from raftlab.harness.run import run_test
from raftlab.races.data_race import Access, BenignRace, DataRace
from raftlab.races.preemption import DISTRIBUTIONS, Preemption
from raftlab.sandbox.loader import launcher_for
from raftlab.sandbox.race_supervisor import BLOCKS, RaceSupervisor
from raftlab.scenarios.collection import collect
from raftlab.tools.selection import load_tests
from raftlab.trace.events import CAUGHT_UP, PREEMPT, Preempted
from unit.students import ROOT, edited_reference

GAP = ChoiceKind.PREEMPT_UNLOCKED

pytestmark = pytest.mark.skipif(not hasattr(os, "pidfd_open"), reason="the sandbox needs Linux")

REFERENCE = ROOT / "raft" / "raft.py"
TESTS = {test.name: test for part in ("2a", "2b") for test in load_tests(ROOT / "tests" / f"test_{part}.py")}
LOCK = "        with self.mu:\n            return self.current_term, self.role is Role.LEADER\n"


@pytest.fixture
def load():
    programs = []

    def load(path, **options):
        programs.append(launcher_for(path, isolated=True, race=True, **options))
        return programs[-1]

    yield load
    for program in programs:
        program.close()


def lost(run):
    return [event.detail for event in run.simulation.trace if event.kind == PREEMPT]


def test_preemptions_have_the_keys_of_an_in_process_run(load):
    program = load(REFERENCE)
    test = TESTS["test_basic_agree_2b"]
    recording = RecordingSource(SeededSource(5))
    first = run_test(test, program, 5, choice_source=recording)
    assert first.error is None
    assert run_test(test, program, 5).digest == first.digest
    # Preemptions have their lines, and some have delays.
    assert {loss.file for loss in lost(first)} == {"raft/raft.py"}
    assert any(loss.late_ns for loss in lost(first))
    assert any(event.kind == CAUGHT_UP for event in first.simulation.trace)
    chosen = {key: value for key, value in recording.choices.chosen.items() if key[0][0] in tuple(DISTRIBUTIONS)}
    assert chosen == {key: SeededSource(5).choose(*key, DISTRIBUTIONS[key[0][0]]) for key in chosen}
    # Recorded choices replay it; without them there are no preemptions.
    assert (
        run_test(test, program, 5, choice_source=OverridingSource(DefaultSource(), recording.choices)).digest
        == first.digest
    )
    for key in chosen:
        del recording.choices.chosen[key]
    assert lost(run_test(test, program, 5, choice_source=OverridingSource(DefaultSource(), recording.choices))) == []


def test_race_report_equals_the_in_process_report(load, tmp_path):
    path = edited_reference(tmp_path, (LOCK, LOCK.replace("with self.mu", "if True")))
    test = TESTS["test_initial_election_2a"]
    errors = [run_test(test, peer, 5).error for peer in (load(path), load_peer(path, race=True))]
    for error in errors:
        assert isinstance(error, Failure)
        assert error.rule == "race"
        assert error.text.startswith("Data race on self.role: peer ")
        assert error.evidence[-1] == "  Likely: get_state() accesses it outside `with self.mu:`."
    assert errors[0].variety == errors[1].variety


def test_benign_race_is_not_a_failure(load, tmp_path):
    excused = LOCK.replace("        with self.mu:\n    ", "").rstrip() + "  # race: ok, any recent value will do\n"
    program = load(edited_reference(tmp_path, (LOCK, excused)))
    run = run_test(TESTS["test_initial_election_2a"], program, 5)
    assert run.error is None
    assert any("this is marked as intended (any recent value will do)" in remark for remark in run.remarks)
    assert run_test(collect(lambda make_config: None), program, 5).remarks == []


@collect
def one_server(make_kv_config):
    config = make_kv_config(servers=1)
    clerk = config.make_client()
    clerk.append("k", "v")
    assert clerk.get("k") == "v"


def test_races_in_services_and_clerks_are_found(load, tmp_path):
    assert run_test(one_server, load(REFERENCE, kv=ROOT / "kv" / "server.py"), 3).error is None
    kv = tmp_path / "server.py"
    source = (ROOT / "kv" / "server.py").read_text(encoding="utf-8")
    locked = "        with self.mu:\n            if self._is_answered(op):\n"
    assert source.count(locked) == 1
    kv.write_text(source.replace(locked, locked.replace("with self.mu", "if True")), encoding="utf-8")
    error = run_test(one_server, load(REFERENCE, kv=kv), 3).error
    assert isinstance(error, Failure)
    assert error.rule == "race"
    assert "_execute()" in error.text + error.evidence[0]


LIES = {
    "a preemption that was not scheduled": "do(PreemptionReached('turn', 10**9, 'x', 'raft.py', 1))",
    "an invalid race": "do(RaceFound(DataRace('x' * 10**6, access, access)))",
    "an invalid request for preemptions": "do(PreemptionRequest('everything'))",
}


@pytest.mark.parametrize("lie", LIES)
def test_false_race_messages_fail_the_peer(load, tmp_path, lie):
    lines = [
        "from labsim import current_simulation",
        "from raftlab.guest.protocol import PreemptionReached, PreemptionRequest, RaceFound",
        "from raftlab.races.data_race import Access, DataRace",
        "from labsim.stacks import CodeLocation",
        "do = current_simulation().add_effect",
        "access = Access(True, CodeLocation('/etc/passwd', 1, 'f'), 'x', '', ())",
        LIES[lie],
    ]
    doc = '        """The current term, and whether this peer believes it leads."""\n'
    path = edited_reference(tmp_path, (doc, doc + "".join(f"        {line}\n" for line in lines)))
    error = run_test(TESTS["test_initial_election_2a"], load(path), 5).error
    assert isinstance(error, PeerProcessFailed)
    assert error.kind == "Misbehaved"
    assert lie in str(error)


# ---- messages from a peer process ------------------------------------------------------------------------------------

FILES = {"raft.py": b""}


class Misbehaves(Exception):
    pass


def misbehaves(what):
    raise Misbehaves(what)


class Always(DefaultSource):
    """Preempts at the first statement of every block, for 5 ms."""

    def choose(self, place, ordinal, distribution):
        return Preemption(1, 5_000_000) if place[0] in tuple(DISTRIBUTIONS) else distribution.default


def hosted(main, choice_source=None):
    """Run main(do, world) in a simulation; `world` has the node, and what arrived."""
    simulation = Simulation(1, choice_source=choice_source or Always())
    world = SimpleNamespace(simulation=simulation, arrived=[], remarks=[])

    def run():
        world.node = simulation.node("1")
        arrive, remark = world.arrived.append, world.remarks.append
        host = RaceSupervisor(simulation, world.node, FILES, arrive, misbehaves, remark)
        assert host.first_batches() == {kind: [(1, 1)] * BLOCKS for kind in tuple(DISTRIBUTIONS)}
        main(lambda effect: host.handlers[type(effect)](effect), world)

    simulation.run(run)
    return simulation


def test_supervisor_decides_the_delay_of_a_preemption():
    def main(do, world):
        simulation, node = world.simulation, world.node
        simulation.freeze_clock(node)
        do(PreemptionReached("preempt", 1, "Thread-1", "raft.py", 7))
        time.sleep(0.004)
        assert world.arrived == []
        do(PreemptionReached("preempt", 2, "Thread-2", "raft.py", 8))  # no delay so soon after another
        assert preemptions_in(world.arrived) == [("preempt", 2)]
        time.sleep(0.002)
        # Even though the node's clock is frozen.
        assert preemptions_in(world.arrived) == [("preempt", 2), ("preempt", 1)]
        assert node.delayed == 0

    simulation = hosted(main)
    assert [event.detail for event in simulation.trace if event.kind == PREEMPT] == [
        Preempted("Thread-1", "raft.py", 7, 5_000_000),
        Preempted("Thread-2", "raft.py", 8, 0),
    ]
    assert [event.at_ns for event in simulation.trace if event.kind == CAUGHT_UP] == [5_000_000]


def preemptions_in(arrived):
    assert {type(one) for one in arrived} <= {ResumeThread}
    return [(one.kind, one.block) for one in arrived]


def test_each_scheduled_preemption_happens_at_most_once():
    def main(do, world):
        do(PreemptionReached(GAP, BLOCKS, "t", "raft.py", 1))
        do(PreemptionRequest(GAP))
        assert type(world.arrived[-1]) is PreemptionBatch
        do(PreemptionReached(GAP, BLOCKS + 1, "t", "raft.py", 1))
        for kind, block in (
            (GAP, BLOCKS),
            (GAP, BLOCKS + 1),
            (GAP, BLOCKS - 1),
            (GAP, 3 * BLOCKS),
            ("x", 1),
        ):
            with pytest.raises(Misbehaves):
                do(PreemptionReached(kind, block, "t", "raft.py", 1))
        with pytest.raises(Misbehaves):
            do(PreemptionRequest("x"))

    hosted(main)


GOOD = Access(True, CodeLocation("raft.py", 3, "start"), "self.log", "start", ("self.mu",))


@pytest.mark.parametrize(
    "race",
    [
        DataRace("x" * (protocol.NAME_MAX + 1), GOOD, GOOD),
        DataRace("self.log\n", GOOD, GOOD),
        DataRace("self.log", Access(True, CodeLocation("/etc/passwd", 1, "f"), "x", "", ()), GOOD),
        DataRace("self.log", GOOD, Access(True, CodeLocation("raft.py", 0, "f"), "x", "", ())),
        DataRace("self.log", GOOD, Access(True, CodeLocation("raft.py", 1, "\x1b[2J"), "x", "", ())),
        DataRace(
            "self.log",
            GOOD,
            Access(True, CodeLocation("raft.py", 1, "f"), "x", "", ("a",) * (protocol.HELD_LOCKS_MAX + 1)),
        ),
    ],
)
def test_invalid_race_violates_the_protocol(race):
    def main(do, world):
        for effect in (RaceFound(race), BenignRaceFound(BenignRace(race, ""))):
            with pytest.raises(Misbehaves):
                do(effect)
        with pytest.raises(Misbehaves):
            do(BenignRaceFound(BenignRace(DataRace("self.log", GOOD, GOOD), "x" * 1000)))
        assert world.remarks == []

    hosted(main)


def test_reported_race_fails_the_reporting_peer():
    with pytest.raises(Failure) as failure:
        hosted(lambda do, world: do(RaceFound(DataRace("self.log", GOOD, GOOD))))
    assert failure.value.rule == "race"
    assert failure.value.peer == "1"
