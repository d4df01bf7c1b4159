"""Branches of a live page: steps, going back, other code, and what a scenario of a branch does on the command line."""

import json

import pytest

from raftlab.harness.loader import load_peer
from raftlab.harness.options import DEFAULT
from raftlab.harness.outcome import outcome_of
from raftlab.harness.run import run_test
from raftlab.scenarios.runner import make_lab_test
from raftlab.scenarios.text import EXPECTATIONS, STEPS, parse_script
from raftlab.tools import cli
from raftlab.tools.live.run import CHANGES, Setup, TestRun
from raftlab.tools.live.session import Session, SessionError, first_difference
from tests.mutants.tool.mutants import load_mutants
from unit.students import ROOT

REFERENCE = (ROOT / DEFAULT).resolve()
HEADER = "snapshots\npeers 3"


@pytest.fixture
def session():
    session = Session()
    yield session
    session.close()


def setup(raft=REFERENCE, header=HEADER):
    return Setup(raft, "live.scenario", header)


def mutant(name, folder):
    (found,) = [one for one in load_mutants() if one.id == name]
    (folder / "raft.py").write_text(found.source())
    return folder / "raft.py"


def do(session, branch, *steps):
    for step in steps:
        branch, refused = session.act(branch.id, len(branch.moments) - 1, step)
        assert refused == ""
    return branch


def can(moment, step):
    """Why that step cannot be made."""
    actions = moment.actions
    every = [*actions.all, *(one for those in (*actions.peers, *actions.links) for one in those)]
    every += [one for message in actions.messages for one in message.actions]
    (found,) = [action.why_not for action in every if action.step == step]
    return found


def played(session, branch, raft=REFERENCE):
    """The verdict of the branch's scenario on the command line."""
    script = parse_script(session.scenario(branch.id), "branch.scenario")
    run = run_test(make_lab_test(script), load_peer(raft), branch.setup.seed)
    return run, outcome_of(run.error)


def test_every_action_is_a_step(session):
    branch = do(session, session.open(setup()), "campaign 0", "deliver", "start 0 x", "cut 1->2")
    actions = branch.moments[-1].actions
    every = [*actions.all, *(one for those in (*actions.peers, *actions.links) for one in those)]
    every += [one for message in actions.messages for one in message.actions]
    words = {action.step.split()[0] for action in every}
    assert words <= STEPS.keys() and len(words) >= 14
    for action in every:
        if not action.step.endswith(" "):
            assert any(action.step.startswith(word) for word in (*STEPS, *[e.usage for e in EXPECTATIONS]))


def test_what_is_offered_can_be_made_and_what_is_not_cannot(session):
    branch = session.open(setup())
    do(session, branch, "campaign 0", "deliver 0->1 vote", "deliver 1->0 vote reply", "start 0 x", "pause 1", "crash 2")
    tried = 0
    for at in range(6):
        actions = branch.moments[at].actions
        every = [*actions.all, *(one for those in (*actions.peers, *actions.links[:1]) for one in those)]
        every += [one for message in actions.messages[:2] for one in message.actions]
        for action in every[at % 5 :: 5]:  # a fifth of them at each moment
            if action.step.endswith(" ") or action.step == branch.moments[at + 1].step:
                continue
            new, refused = session.act(branch.id, at, action.step)
            # To deliver nothing, or heal what is whole, does no harm.
            idle = action.step.startswith(("deliver", "drop", "heal", "cut"))
            assert bool(refused) == bool(action.why_not) or (idle and action.why_not), (action, refused)
            tried += 1
            if new.id != branch.id:
                session.delete(new.id)
    assert tried > 25


def test_a_step_that_cannot_be_made_leaves_the_branch_as_it_was(session):
    branch = do(session, session.open(setup()), "campaign 0")
    before = branch.moments[-1]
    for step, why in (
        ("frob 0", "there is no step 'frob'"),
        ("campaign 7", "there is no peer 7"),
        ("start 1 x", "peer 1 "),
        ("restart 0", "peer 0 is "),
        ("expect leader 0", "peer 0"),
    ):
        same, refused = session.act(branch.id, 1, step)
        assert same.id == branch.id
        assert why.lower() in refused.lower()
    assert branch.moments[-1] is before
    do(session, branch, "deliver")
    assert can(branch.moments[-1], "campaign 0") == "peer 0 leads already"


def test_going_back_begins_a_branch_with_the_same_beginning(session):
    branch = do(session, session.open(setup()), "campaign 0", "deliver", "start 0 x", "deliver")
    other, refused = session.act(branch.id, 2, "crash 0")
    assert refused == "" and other.id != branch.id
    assert other.steps == ["campaign 0", "deliver", "crash 0"]
    assert [moment.digest for moment in other.moments[:3]] == [moment.digest for moment in branch.moments[:3]]
    assert other.parent == branch.id and other.forked_at == 2 and other.note == ""
    assert first_difference(branch.data, other.data) == branch.moments[2].events
    assert session.act(branch.id, 2, "start 0 x") == (branch, "that is what this branch does next")


def test_branches_can_be_continued_after_their_process_is_gone(session):
    branch = do(session, session.open(setup()), "campaign 0")
    for _ in range(6):
        session.act(branch.id, 0, "campaign 1")
    do(session, branch, "deliver")
    assert branch.steps == ["campaign 0", "deliver"]


def test_deleting_a_branch_leaves_its_children(session):
    branch = do(session, session.open(setup()), "campaign 0", "deliver")
    middle, _ = session.act(branch.id, 1, "crash 0")
    last, _ = session.act(middle.id, 1, "crash 1")
    session.rename(last.id, "  the\nlast ")
    session.delete(middle.id)
    names = {one["name"]: one["parent"] for one in session.tree()}
    assert names[last.name] == branch.id and last.name == "the last"
    with pytest.raises(SessionError, match="there is no branch 2"):
        session.branch(middle.id)
    session.delete(last.id)
    with pytest.raises(SessionError, match="the only branch cannot be deleted"):
        session.delete(branch.id)


def test_a_violation_ends_the_branch_at_its_step(session, tmp_path):
    raft = mutant("double-vote", tmp_path)
    branch = do(
        session, session.open(setup(raft)), "campaign 0", "campaign 1", "deliver 0->2 vote", "deliver 1->2 vote"
    )
    assert branch.rule == "one-vote" and "voted" in branch.ended
    assert can(branch.moments[-1], "campaign 0") == "the run has ended here; go back to an earlier step"
    with pytest.raises(SessionError, match="go back to an earlier step"):
        session.act(branch.id, 4, "deliver")
    _, verdict = played(session, branch, raft)
    assert verdict.name == "one-vote"
    other, _ = session.act(branch.id, 3, "drop 1->2 vote")
    assert other.ended == ""


def test_a_scenario_of_a_branch_is_the_same_run(session):
    branch = session.open(setup(header="snapshots\npeers 3\nlogs 0: 1 1\nlogs 1: 1\ncommit 1"))
    do(session, branch, "elect 0 with 1 2", "start 0 x", "replicate 0->1", "run 100ms", "snapshot 0 2")
    run, verdict = played(session, branch)
    assert not verdict.failed
    steps = [event.detail for event in run.simulation.trace if event.kind == "step"]
    assert steps[1:] == branch.steps


CRASHES = {
    "exception": ("raise KeyError('lost')", "KeyError"),
    "endless loop": ("while True: pass", "has run for 2 s of processor time"),
    "deadlock": ("self.mu.acquire(); self.mu.acquire()", "start() of peer 0 has not returned"),
    "exit": ("import os; os._exit(3)", "exit status 3"),
}


@pytest.mark.parametrize("kind", CRASHES)
def test_an_error_of_the_peer_is_reported_and_the_branch_lives(session, tmp_path, kind):
    line, said = CRASHES[kind]
    source = REFERENCE.read_text()
    head = "    def start(self, command: Any) -> tuple[int, int, bool]:\n"
    assert head in source
    (tmp_path / "raft.py").write_text(source.replace(head, f"{head}        {line}\n"))
    branch = do(session, session.open(setup(tmp_path / "raft.py")), "campaign 0", "deliver")
    if kind == "exit":
        with pytest.raises(SessionError, match=said):
            session.act(branch.id, 2, "start 0 x")
    else:
        session.act(branch.id, 2, "start 0 x")
        assert said in branch.ended
        branch, _ = session.act(branch.id, 2, "crash 0")
    do(session, branch, "campaign 1")


def test_retry_makes_the_same_steps_on_new_code(session, tmp_path):
    source = REFERENCE.read_text()
    raft = tmp_path / "raft.py"
    raft.write_text(source)
    branch = do(
        session, session.open(setup(raft)), "campaign 0", "campaign 1", "deliver 0->2 vote", "deliver 1->2 vote"
    )
    (found,) = [one for one in load_mutants() if one.id == "double-vote"]
    raft.write_text(found.source())
    new = session.retry(branch.id)
    assert new.rule == "one-vote" and new.beside == branch.id
    assert first_difference(branch.data, new.data) > branch.moments[3].events
    with pytest.raises(SessionError, match="on the new code"):
        session.act(branch.id, 4, "deliver")
    raft.write_text("def frob(:\n")
    with pytest.raises(SessionError, match=r"raft.py:1"):
        session.retry(branch.id)
    raft.write_text(source)
    assert session.retry(branch.id).ended == ""


def test_a_file_that_cannot_be_loaded_is_said(session, tmp_path):
    (tmp_path / "raft.py").write_text("class Raft: pass\n")
    with pytest.raises(SessionError, match="Raft has no"):
        session.open(setup(tmp_path / "raft.py"))


def test_a_peer_that_fails_as_it_is_made_is_said_with_its_line(session, tmp_path):
    source = REFERENCE.read_text()
    head = "        self.mu = "
    assert head in source
    (tmp_path / "raft.py").write_text(source.replace(head, f"        raise KeyError('made')\n{head}", 1))
    with pytest.raises(SessionError, match=r"before the first step: .*made.*raft.py:\d+"):
        session.open(setup(tmp_path / "raft.py"))


def test_a_peer_without_snapshots_is_played_without_them(session, tmp_path):
    source = REFERENCE.read_text().replace("def snapshot(", "def _no_snapshot(")
    (tmp_path / "raft.py").write_text(source)
    branch = do(session, session.open(setup(tmp_path / "raft.py")), "campaign 0")
    assert can(branch.moments[-1], "snapshot 0 ") == "the run has no snapshots (2D)"
    assert "snapshots" not in session.scenario(branch.id)
    assert not session.finished(branch.id).failed
    assert not played(session, branch, tmp_path / "raft.py")[1].failed


def test_another_run_begins_with_its_own_header(session):
    branch = session.open(setup())
    new = session.open_like(branch.id, "peers 5\nlogs 0: 1\nlogs 1: 1\nlogs 2: 1", "five")
    assert len(new.moments[0].actions.peers) == 5
    with pytest.raises(SessionError, match=r"new.scenario:\d+: "):
        session.open_like(branch.id, "peers 3\nlogs 0: 2 1", "")


# ---- runs of tests ---------------------------------------------------------------------------------------------------


def of_test(name, seed, raft=REFERENCE):
    return Setup(raft, name, "", seed, test=TestRun(name))


@pytest.fixture
def failed(session, tmp_path):
    """A run in which a leader commits an entry of an earlier term."""
    branch = session.open(of_test("test_figure8_unreliable_2c", 7, mutant("figure8-commit", tmp_path)))
    assert branch.rule == "earned-commit" and not branch.setup.is_stepped
    return branch


def place_of(branch, kind, nth=-1):
    """The event of that kind, counted from the end."""
    data = json.loads(branch.data)
    number = data["kinds"].index(kind)
    return [place for place, one in enumerate(data["events"]["kind"]) if one == number][nth]


def test_a_run_is_taken_over_at_any_event(session, failed):
    with pytest.raises(SessionError, match="take it over at some event first"):
        session.act(failed.id, 0, "campaign 0")
    event = place_of(failed, "deliver")
    branch = session.take_over(failed.id, event)
    assert first_difference(failed.data, branch.data) > event and branch.ended == ""
    assert branch.moments[0].actions.messages
    do(session, branch, "heal", "run 100ms")
    other, _ = session.act(branch.id, 0, "drop")
    assert other.moments[0].digest == branch.moments[0].digest
    for bad in (-1, 10**6, failed.moments[0].events - 1):
        with pytest.raises(SessionError, match="at an event before its end"):
            session.take_over(failed.id, bad)


def test_another_run_can_be_begun_beside_a_test(session, failed):
    new = session.open_like(failed.id, "peers 3", "nothing")
    do(session, new, "campaign 0")
    assert new.setup.test is None and "campaign 0" in session.scenario(new.id)


def test_one_choice_is_changed_and_the_others_stay(session, failed):
    event = place_of(failed, "deliver")
    for what in CHANGES:
        try:
            branch = session.what_if(failed.id, event, what)
        except SessionError as error:
            assert "this already happened to the message" in str(error)  # noqa: PT017  # either is right
            continue
        differs = first_difference(failed.data, branch.data)
        assert differs > event - 200 and branch.beside == failed.id and len(branch.setup.test.edits) == 1
    twice = session.what_if(branch.id, place_of(branch, "answer", 3), "lost")
    assert len(twice.setup.test.edits) == 2
    with pytest.raises(SessionError, match="is not about a message"):
        session.what_if(failed.id, 0, "lost")
    with pytest.raises(SessionError, match="there is no change 'frob'"):
        session.what_if(failed.id, event, "frob")


def test_a_peer_crashes_where_it_is_told_to(session, failed):
    event = place_of(failed, "deliver", 40)
    branch = session.what_if(failed.id, event, "crash 1")
    data = json.loads(branch.data)
    kinds = [data["kinds"][kind] for kind in data["events"]["kind"]]
    assert first_difference(failed.data, branch.data) > event
    assert "crash" in kinds[event : event + 40] and "restart" in kinds[event : event + 40]


@pytest.mark.parametrize("how", ["taken over", "lost", "crash 0"])
def test_saved_choices_replay_the_branch(session, failed, tmp_path, capfd, how):
    event = place_of(failed, "deliver", 30)
    if how == "taken over":
        branch = session.take_over(failed.id, event)
        do(session, branch, "drop", "crash 2", "heal 0", "run until send", "run 1s")
    else:
        branch = session.what_if(failed.id, event, how)
    done = session.finished(branch.id)
    assert done.failed == bool(branch.ended) and done.rule == branch.rule
    (tmp_path / "branch.choices").write_bytes(done.choices)
    assert cli.main(["replay", str(tmp_path / "branch.choices")]) == int(done.failed)
    said = capfd.readouterr().out
    assert f"digest {done.digest}" in said and "Not the recorded run" not in said
    assert branch.rule == "" or branch.ended.partition(":")[0] in " ".join(said.split())


def test_a_run_of_a_service_is_refused(session):
    with pytest.raises(SessionError, match="cannot be steered"):
        session.open(of_test("test_basic_3a", 1))
    with pytest.raises(SessionError, match="test_frob"):
        session.open(of_test("test_frob", 1))
