"""lab next: the milestones exist, correct peers pass them, and the first missing one is named with what to do."""

import pytest

from raftlab import layout
from raftlab.harness.loader import load_peer
from raftlab.harness.run import run_test
from raftlab.tools.cli import main as lab
from raftlab.tools.next import command
from raftlab.tools.next.milestones import PARTS
from raftlab.tools.selection import select
from tests.mutants.tool.mutants import load_mutants
from unit.soak import SOAK

MUTANTS = {mutant.id: mutant for mutant in load_mutants()}
# The last two milestones of a part run all its tests, which others do for every peer.
OWN = [milestone for part in PARTS if part.name < "3" for milestone in part.milestones[:-2]]
CORRECT = [id_ for id_, mutant in MUTANTS.items() if mutant.correct and not mutant.of_service]


@pytest.fixture(autouse=True)
def own_record(tmp_path, monkeypatch):
    monkeypatch.setattr(command, "_PASSED_BEFORE", tmp_path / "build" / "next.json")


def write(tmp_path, *edits, of=layout.ROOT / "raft" / "raft.py"):
    source = of.read_text()
    for old, new in edits:
        assert old in source
        source = source.replace(old, new, 1)
    path = tmp_path / "raft.py"
    path.write_text(source)
    return path


def advice(path, capsys):
    assert lab(["next", "--raft", str(path)]) == 0
    return capsys.readouterr().out


@pytest.mark.parametrize("id_", CORRECT if SOAK else ["design-pre-vote", "design-event-loop", "design-pull"])
def test_correct_peers_of_other_designs_pass_milestones(id_):
    launcher = load_peer(MUTANTS[id_].write())
    runs = {test.name: run_test(test, launcher, 1) for milestone in OWN for test in select(milestone.shown_by)}
    assert [name for name, run in runs.items() if run.error and type(run.error).__name__ != "Skipped"] == []


def test_first_hole_of_the_skeleton_is_the_first_milestone(tmp_path, capsys):
    out = advice(write(tmp_path, of=layout.ROOT / "handout" / "raft.py"), capsys)
    assert "2A  leader election         0 of 8 milestones" in out
    assert "NotImplementedError: 2A: get_state" in out
    assert "make scenario FILE=tests/scenarios/2a/starts_as_a_follower.scenario" in out
    assert "docs/student/guide/2a.md" in out


def test_missing_vote_is_named_with_its_milestone(tmp_path, capsys):
    path = write(tmp_path, ("self._count_vote(peer, granted=reply.vote_granted)", "pass"))
    out = advice(path, capsys)
    assert "2A  leader election         3 of 8 milestones" in out
    assert "Next: a candidate with a majority becomes leader (§5.2)." in out


def test_milestone_that_passed_before_is_said_to_be_broken(tmp_path, capsys):
    broken = ("if peer != self.me and peer not in self.votes:", "if False:")
    out = advice(write(tmp_path, ("self._count_vote(peer, granted=reply.vote_granted)", "pass")), capsys)
    assert "passed the last time" not in out
    out = advice(write(tmp_path, broken), capsys)
    assert "Next: the election timer fires, and the peer requests votes (§5.2). It passed the last time." in out


def test_peer_that_cannot_be_loaded_is_what_comes_next(tmp_path, capsys):
    path = tmp_path / "raft.py"
    path.write_text("class Raft\n")
    assert "SyntaxError" in advice(path, capsys)


def test_unwritable_folder_does_not_hide_the_advice(tmp_path, capsys):
    (tmp_path / "build").write_text("a file, so the folder cannot be made")
    path = tmp_path / "raft.py"
    path.write_text("class Raft\n")
    assert "Next: a peer starts as a follower" in advice(path, capsys)


def test_exception_without_a_text_is_reported(tmp_path, capsys):
    raises = """        class Odd(Exception):
            def __str__(self) -> str:
                raise RuntimeError
        raise Odd
"""
    locks = "        self.mu = threading.Lock()"
    out = advice(write(tmp_path, (locks, raises + locks)), capsys)
    assert "Odd: <exception str() failed>" in out


def test_data_race_is_the_last_milestone_of_a_part(tmp_path, capsys):
    without = "        with self.mu:\n            return self.current_term, self.role is Role.LEADER\n"
    path = write(tmp_path, (without, "        return self.current_term, self.role is Role.LEADER\n"))
    out = advice(path, capsys)
    assert "2A  leader election         7 of 8 milestones" in out
    assert "RACE=1" in out
