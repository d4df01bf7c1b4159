"""Rules check events in chunks, with the same result as event by event."""

import pytest

from labsim import Simulation, time
from raftlab.check.rules import CHUNK
from raftlab.harness.determinism import Recorder
from raftlab.harness.loader import load_peer
from raftlab.harness.run import run_test
from raftlab.scenarios.collection import collect
from raftlab.tools.selection import load_tests
from unit.check.trace_builder import build_agreement
from unit.students import ROOT, edited_reference

pytestmark = pytest.mark.usefixtures("raft_package_restored")

# ---- a chunk at a time ------------------------------------------------------------------------------------------


def test_run_ends_at_the_event_that_breaks_a_rule():
    builder = build_agreement()
    builder.elect("1", 2, last=(1, 1), voters="12")
    builder.vote("0", "2", 2, last=(1, 1))
    broken_by = builder.trace[-2]  # the answer, before the reply
    for _ in range(CHUNK * 2):
        builder.append("1", "2", 2, prev=(1, 1))
    assert builder.broken_rule() == "one-vote"
    assert builder.trace[builder.checker.violation.events - 1] is broken_by


def applies_unstarted_commands(tmp_path):
    """Only a rule detects this: all three services apply the same."""
    old = "        self.apply_ch = apply_ch\n"
    new = f"{old}        threading.Thread(target=lambda: apply_ch.put(ApplyMsg(True, 77, 1)), daemon=True).start()\n"
    return load_peer(edited_reference(tmp_path, (old, new)))


def test_last_events_of_a_run_are_checked(tmp_path):
    launcher = applies_unstarted_commands(tmp_path)

    @collect
    def test(make_config):
        make_config(servers=3)
        time.sleep(0.01)

    run = run_test(test, launcher, 1)
    events = run.simulation.trace
    assert run.error.rule == "applies-only-committed"
    assert 0 < len(events) < CHUNK
    assert events[-1].kind == "apply" and run.virtual_s == events[-1].at_ns / 1e9


def test_broken_rule_precedes_the_error_that_ended_the_run(tmp_path):
    launcher = applies_unstarted_commands(tmp_path)

    @collect
    def test(make_config):
        make_config(servers=3)
        time.sleep(0.01)
        raise ZeroDivisionError

    run = run_test(test, launcher, 1)
    assert run.error.rule == "applies-only-committed"


def test_lines_of_the_peer_do_not_change_where_a_run_ends(tmp_path):
    many_elections = load_tests(ROOT / "tests/test_2a.py")[-1]
    runs = []
    for lines in ("", "log('vote', 'asked')", "for _ in range(100): log('vote', 'asked')"):
        votes_twice = (
            "            granted = up_to_date and self.voted_for in (None, args.candidate_id)\n",
            f"            {lines}\n            granted = up_to_date\n",
        )
        imports = ("from labsim import ", "from labsim import log, ")
        runs.append(run_test(many_elections, load_peer(edited_reference(tmp_path, votes_twice, imports)), 1))
    assert {run.error.rule for run in runs} == {"one-vote"}
    assert len({run.digest for run in runs}) == len({run.virtual_s for run in runs}) == 1
    assert len({len(run.simulation.trace) for run in runs}) == 3


def test_a_record_of_events_ends_with_the_broken_rule(tmp_path):
    many_elections = load_tests(ROOT / "tests/test_2a.py")[-1]
    votes_twice = ("up_to_date and self.voted_for in (None, args.candidate_id)", "up_to_date")
    launcher = load_peer(edited_reference(tmp_path, votes_twice))
    simulation = Simulation(1)
    recorder = Recorder(simulation)
    run = run_test(many_elections, launcher, 1, simulation=simulation)
    assert run.error.rule == "one-vote"
    assert len(recorder.lines) == len(simulation.trace) == run.checker.violation.events > 0
    assert recorder.lines[-1][0] == simulation.trace[-1].at_ns == simulation.now_ns


# ---- what a peer may do to what it is given ----------------------------------------------------------------------


def test_a_command_that_its_peer_changes_is_not_what_was_started(tmp_path):
    old = "            self.log.append(LogEntry(self.current_term, command))\n"
    path = edited_reference(tmp_path, (old, f"            command['term'] = self.current_term\n{old}"))

    @collect
    def test(make_config):
        cfg = make_config(servers=3)
        cfg.start(cfg.check_one_leader(), {"put": "x"})
        time.sleep(1)

    assert run_test(test, load_peer(path), 1).error.rule == "only-started"


def test_a_command_that_the_test_changes_is_what_it_was(tmp_path):
    @collect
    def test(make_config):
        cfg = make_config(servers=3)
        command = {"put": "x"}
        cfg.start(cfg.check_one_leader(), command)
        command["put"] = "y"
        time.sleep(1)

    assert run_test(test, load_peer(edited_reference(tmp_path)), 1).error is None


def test_applied_message_is_copied(tmp_path):
    old = "                    self.apply_ch.put(msg, timeout=HEARTBEAT_S)\n"
    later = "                    time.sleep(0.001)\n                    msg.command_index = 1_000_000\n"
    path = edited_reference(tmp_path, (old, old + later))

    @collect
    def test(make_config):
        cfg = make_config(servers=3)
        cfg.one(10, 3, retry=True)
        time.sleep(1)

    run = run_test(test, load_peer(path), 1)
    assert run.error is None
    assert {event.detail.command_index for event in run.simulation.trace if event.kind == "apply"} == {1}
