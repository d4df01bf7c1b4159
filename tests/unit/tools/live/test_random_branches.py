"""Branches made at random from failing runs end on the command line as they ended on the page."""

import json
import random

import pytest

from raftlab.tools import cli
from raftlab.tools.live.run import CHANGES, Setup, TestRun
from raftlab.tools.live.session import Session, SessionError
from tests.mutants.tool.mutants import load_mutants
from unit.soak import SOAK
from unit.students import ROOT

RUNS, BRANCHES = (50, 10) if SOAK else (3, 2)
STEPS_MAX = 12
CAUGHT = json.loads((ROOT / "tests/mutants/caught.json").read_text())


def runs():
    """Failing runs of the lab's tests: (mutant, test, seed)."""
    ids = {mutant.id for mutant in load_mutants()}
    found = [
        (name, one["test"], one["seed"])
        for name, one in sorted(CAUGHT.items())
        if name in ids and one["test"].endswith(("_2a", "_2b", "_2c", "_2d")) and "race" not in one["by"]
    ]
    return random.Random(1).sample(found, RUNS)


def steps_at(moment):
    actions = moment.actions
    every = [*actions.all, *(one for those in (*actions.peers, *actions.links) for one in those)]
    every += [one for message in actions.messages for one in message.actions] * 3
    return [one.step for one in every if not one.why_not and not one.step.endswith(" ")]


def make_random_steps(session, branch, chance, most):
    for _ in range(chance.randrange(most)):
        if branch.ended:
            break
        steps = steps_at(branch.moments[-1])
        leaders = [i for i, those in enumerate(branch.moments[-1].actions.peers) if not those[1].why_not]
        steps += [f"start {i} x{len(branch.moments)}" for i in leaders] * 3
        session.act(branch.id, len(branch.moments) - 1, chance.choice(steps))


def random_branch(session, first, chance):
    """A branch that begins with this one: one choice changed, or taken over and steered."""
    count = first.moments[0].events
    if chance.random() < 0.5:
        for _ in range(20):
            try:
                what = chance.choice([*CHANGES, f"crash {chance.randrange(3)}"])
                return session.what_if(first.id, chance.randrange(count), what)
            except SessionError:
                continue
    branch = session.take_over(first.id, chance.randrange(count // 3, count - 1))
    make_random_steps(session, branch, chance, STEPS_MAX)
    return branch


@pytest.mark.parametrize(("name", "test", "seed"), runs(), ids=lambda value: str(value))
@pytest.mark.timeout(1800)
def test_branches_end_on_the_command_line_as_on_the_page(name, test, seed, tmp_path, capfd):
    (mutant,) = [one for one in load_mutants() if one.id == name]
    (tmp_path / "raft.py").write_text(mutant.source())
    session = Session()
    chance = random.Random(f"{name} {test}")
    try:
        first = session.open(Setup((tmp_path / "raft.py").resolve(), test, "", seed, test=TestRun(test)))
        for number in range(BRANCHES):
            branch = random_branch(session, first, chance)
            done = session.finished(branch.id)
            file = tmp_path / f"{number}.choices"
            file.write_bytes(done.choices)
            status = cli.main(["replay", str(file)])
            said = capfd.readouterr().out
            assert status == int(done.failed), (branch.name, branch.steps)
            # How deep a recursion gets depends on how deep it began.
            same = f"digest {done.digest}" in said or "RecursionError" in said
            assert same, (branch.name, branch.steps)
            if branch.ended:
                assert (done.failed, done.rule, done.text) == (True, branch.rule, branch.ended), branch.steps
            elif branch.setup.is_stepped:
                # The command line ends the run, and asks the peers to stop.
                assert done.rule in ("", "quiet-death"), (branch.name, branch.steps, done)
            else:
                assert not done.failed, (branch.name, done)
            if branch.id != first.id:
                session.delete(branch.id)
    finally:
        session.close()


@pytest.mark.parametrize(("name", "test", "seed"), runs(), ids=lambda value: str(value))
@pytest.mark.timeout(1800)
def test_scenarios_of_random_steps_end_on_the_command_line_as_on_the_page(name, test, seed, tmp_path, capfd):
    (mutant,) = [one for one in load_mutants() if one.id == name]
    raft = tmp_path / "raft.py"
    raft.write_text(mutant.source())
    session = Session()
    chance = random.Random(f"{name} steps")
    try:
        for number in range(BRANCHES):
            header = f"snapshots\npeers {chance.choice((3, 5))}"
            try:
                branch = session.open(Setup(raft.resolve(), "live.scenario", header))
            except SessionError as error:
                assert "before the first step" in str(error)  # noqa: PT017  # of a peer that fails as it is made
                return
            make_random_steps(session, branch, chance, 3 * STEPS_MAX)
            file = tmp_path / f"{number}.scenario"
            file.write_text(session.scenario(branch.id))
            status = cli.main(["scenario", str(file), "--raft", str(raft)])
            said = " ".join(capfd.readouterr().out.split())
            if branch.ended:
                assert status == 1, branch.steps
                assert " ".join(branch.ended.split()) in said or "RecursionError" in said, (branch.steps, branch.ended)
            else:
                assert status == 0 or "kill()" in said, (branch.steps, said[-2000:])
    finally:
        session.close()
