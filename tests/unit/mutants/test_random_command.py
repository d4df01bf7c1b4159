"""`lab mutants random`: random mutants, and how they are tested, stored and reported."""

import json
import random
import subprocess
import sys
from dataclasses import replace

import pytest

from raftlab.tools.cli import main as lab
from tests.mutants.tool import command, random_command, random_mutants
from tests.mutants.tool.measurement import MutantResult, judge_by_fuzzing
from tests.mutants.tool.mutants import StaleMutant
from tests.mutants.tool.random_command import Note, RecordedRun
from tests.mutants.tool.random_mutants import draw, drawn_by_id
from tests.mutants.tool.source_changes import meaning

pytestmark = pytest.mark.usefixtures("raft_package_restored")

TINY = '''"""A peer of four lines."""


class Raft:
    def start(self, command):
        if self.term < 1 or self.term < 2:
            return
        self.stop(command)
        return
'''


@pytest.fixture
def tiny(monkeypatch, tmp_path):
    """All changes of a reference that has few of them."""
    (tmp_path / "raft.py").write_text(TINY)
    monkeypatch.setattr(random_mutants, "REFERENCE", tmp_path)
    return tmp_path


def ids(mutants):
    return [mutant.id for mutant in mutants]


def test_a_draw_is_the_same_in_any_process():
    code = "from tests.mutants.tool.random_mutants import draw; print(*(m.id for m in draw(12, 5)))"
    others = [
        subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True, env=env).stdout.split()
        for env in ({"PYTHONHASHSEED": "1"}, {"PYTHONHASHSEED": "2"})
    ]
    random.seed(9)
    assert [ids(draw(12, 5))] * 2 == others


def test_longer_draw_extends_the_shorter():
    assert ids(draw(20, 5))[:8] == ids(draw(8, 5))
    assert set(ids(draw(20, 5))) != set(ids(draw(20, 6)))


def test_a_draw_is_spread():
    drawn = draw(40, 1)
    assert len({mutant.function for mutant in drawn}) > 20
    assert len({mutant.id for mutant in drawn}) == 40


def test_random_mutants_are_distinct_programs(tiny):
    with pytest.raises(ValueError, match="N must be at most"):
        draw(1000, 0)
    changes = random_mutants.all_changes()[1]
    number = len(changes) - 1  # without the last return, which ends nothing
    drawn = draw(number, 0)
    assert len({str(meaning(mutant.text)) for mutant in drawn} | {str(meaning(TINY))}) == number + 1
    with pytest.raises(ValueError, match=f"N must be at most {number}, the number of possible changes of .*raft.py"):
        draw(number + 1, 0)


def test_id_is_the_same_in_every_draw():
    mutant = draw(3, 5)[2]
    assert drawn_by_id(mutant.id) == mutant
    number, _, rest = mutant.id.partition("-")
    assert rest.startswith(f"{mutant.function}-")
    for unknown in (f"{number}-elsewhere-lt-le", "m0000-start-lt-le", "m9999-start-lt-le"):
        with pytest.raises(StaleMutant, match=f"{unknown} is not a change of the current raft/raft.py"):
            drawn_by_id(unknown)


def test_random_mutant_is_written_and_shown(tmp_path):
    mutant = draw(1, 5)[0]
    written = mutant.write(tmp_path)
    assert written == tmp_path / mutant.id / "raft.py"
    assert written.read_text() == mutant.text
    diff = mutant.diff().splitlines()
    assert "--- raft/raft.py" in diff
    assert [line[1:].strip() for line in diff if line.startswith("-") and "raft.py" not in line] == [mutant.lines_were]


def test_random_mutant_is_found_by_id(capsys):
    mutant = draw(1, 5)[0]
    assert lab(["mutants", "show", mutant.id]) == 0
    assert capsys.readouterr().out == mutant.diff()


# ---- judging ------------------------------------------------------------------------------------------------------


def options(*more):
    parser = command.argparse.ArgumentParser()
    command.add_arguments(parser)
    return parser.parse_args(["random", "4", "--seed", "5", *more])


class Judged:
    """In place of worker processes: what each judge says of a mutant, and whom it was shown."""

    def __init__(self, says, interrupted_after=None):
        self.says = says
        self.shown = []
        self.left = interrupted_after

    def __call__(self, entries, args, judge, on_result):
        self.args = args
        for mutant in entries:
            if self.left == 0:
                return [], True
            self.left = None if self.left is None else self.left - 1
            self.shown.append((judge, mutant.id))
            on_result(MutantResult(mutant.id, self.says(judge, mutant.id), by="one-vote", tests=3, runs=1, seconds=2.0))
        return [], False


@pytest.fixture
def in_tmp(monkeypatch, tmp_path):
    monkeypatch.setattr(random_command, "KEPT", tmp_path / "kept.jsonl")
    monkeypatch.setattr(random_command, "read_notes", dict)
    return tmp_path


DRAWN = ids(draw(4, 5))


def test_exit_status_is_0_if_all_are_caught(in_tmp, capsys):
    judged = Judged(lambda *_: "caught")
    assert random_command.mutate(options(), judged) == 0
    assert judged.shown == [("tests", id_) for id_ in DRAWN]
    out = capsys.readouterr().out
    assert "one-vote        4\n" in out
    assert "4 changes of raft/raft.py: 4 caught, 0 missed" in out
    # --seed was for the draw.
    assert (judged.args.seed, judged.args.runs) == (0, random_command.RANDOM_RUNS)
    assert "scenarios" in judged.args.tests


def test_missed_mutant_is_shown(in_tmp, capsys):
    assert random_command.mutate(options(), Judged(lambda _, id_: "missed" if id_ == DRAWN[1] else "caught")) == 1
    out = capsys.readouterr().out
    assert f"{DRAWN[1]} missed in 3 runs\nnot explained in " in out
    assert drawn_by_id(DRAWN[1]).diff() in out
    assert "Missed: 1 not explained yet" in out


def test_explained_survivor_is_not_a_failure(in_tmp, capsys, monkeypatch):
    mutant = drawn_by_id(DRAWN[1])
    notes = {(mutant.function, mutant.lines_were, mutant.lines_are): Note("same", "it is all one")}
    monkeypatch.setattr(random_command, "read_notes", lambda: notes)
    assert random_command.mutate(options(), Judged(lambda _, id_: "missed" if id_ == mutant.id else "caught")) == 0
    out = capsys.readouterr().out
    assert "same: it is all one\n" in out
    assert "Missed: 1 equivalent to the reference" in out


def test_mutant_without_verdict_is_listed_apart(in_tmp, capsys):
    assert random_command.mutate(options(), Judged(lambda _, id_: "broken" if id_ == DRAWN[0] else "caught")) == 1
    assert "3 caught, 0 missed, 1 without a verdict" in capsys.readouterr().out


def test_missed_mutants_are_fuzzed(in_tmp, capsys):
    judged = Judged(lambda judge, id_: "caught" if judge == "fuzz" or id_ != DRAWN[2] else "missed")
    assert random_command.mutate(options(), judged) == 1
    assert random_command.mutate(options("--fuzz", "7"), judged) == 0
    assert judged.shown == [*(("tests", id_) for id_ in DRAWN), ("fuzz", DRAWN[2])]
    assert judged.args.budget_seconds == 7
    out = capsys.readouterr().out
    assert "4 caught (3 by tests, 1 by fuzzing), 0 missed" in out
    assert "10 s of processor time" in out


@pytest.mark.parametrize(("kind", "fuzzed"), [("same", []), ("cost", [("fuzz", DRAWN[1])])])
def test_equivalent_change_is_not_fuzzed(in_tmp, capsys, monkeypatch, kind, fuzzed):
    mutant = drawn_by_id(DRAWN[1])
    notes = {(mutant.function, mutant.lines_were, mutant.lines_are): Note(kind, "it is all one")}
    monkeypatch.setattr(random_command, "read_notes", lambda: notes)
    judged = Judged(lambda _, id_: "missed" if id_ == mutant.id else "caught")
    assert random_command.mutate(options("--fuzz", "7"), judged) == 0
    assert [each for each in judged.shown if each[0] == "fuzz"] == fuzzed


def test_interrupted_command_resumes(in_tmp, capsys):
    first = Judged(lambda *_: "caught", interrupted_after=2)
    assert random_command.mutate(options(), first) == 130
    said = capsys.readouterr()
    assert "2 changes of raft/raft.py: 2 caught" in said.out
    assert "interrupted; run the same command again to resume" in said.err
    second = Judged(lambda *_: "caught")
    assert random_command.mutate(options("--json", str(in_tmp / "all.json")), second) == 0
    assert first.shown + second.shown == [("tests", id_) for id_ in DRAWN]
    said = capsys.readouterr()
    assert "2 of 4 have a result by tests from an earlier run" in said.err
    assert "4 changes of raft/raft.py: 4 caught" in said.out
    assert [result["id"] for result in json.loads((in_tmp / "all.json").read_text())] == DRAWN


def test_other_options_are_measured_again(in_tmp, capsys):
    assert random_command.mutate(options(), Judged(lambda *_: "caught")) == 0
    again = Judged(lambda *_: "caught")
    assert random_command.mutate(options("--runs", "3"), again) == 0
    assert len(again.shown) == 4


def test_half_written_line_is_ignored(tmp_path):
    file = tmp_path / "kept.jsonl"
    first, second = drawn = draw(2, 5)
    kept = RecordedRun(file, {"tests": "a key"})
    for mutant in drawn:
        kept.add({mutant.id: mutant}, "tests", MutantResult(mutant.id, "caught"))
    file.write_bytes(file.read_bytes()[:-5])
    assert RecordedRun(file, {"tests": "a key"}).of(first) == {"tests": MutantResult(first.id, "caught")}
    assert RecordedRun(file, {"tests": "a key"}).of(second) == {}
    assert RecordedRun(file, {"tests": "another key"}).of(first) == {}
    assert RecordedRun(file, {"fuzz": "a key"}).of(first) == {}


def test_result_belongs_to_the_change_not_its_number(tmp_path):
    (mutant,) = draw(1, 5)
    kept = RecordedRun(tmp_path / "kept.jsonl", {"tests": "a key"})
    kept.add({mutant.id: mutant}, "tests", MutantResult(mutant.id, "caught"))
    assert kept.of(replace(mutant, id="m0001-x")) == {"tests": MutantResult("m0001-x", "caught")}
    assert kept.of(replace(mutant, text="another")) == {}


def test_key_covers_all_inputs_of_a_verdict(monkeypatch):
    def keys(*more):
        return {
            judge: random_command._key(judge, judged)
            for judge, judged in random_command.judges_for(options(*more)).items()
        }

    before = keys("--fuzz", "7")
    assert keys("--fuzz", "7", "--jobs", "7") == before
    assert keys() == {"tests": before["tests"]}
    assert keys("--fuzz", "8")["fuzz"] != before["fuzz"]
    assert keys("--race")["tests"] != before["tests"]
    monkeypatch.setattr(random_command, "scenario_files", list)
    assert keys("--fuzz", "7") == {"tests": keys()["tests"], "fuzz": before["fuzz"]}
    assert keys()["tests"] != before["tests"]


def test_more_changes_than_exist_is_refused(capsys):
    assert lab(["mutants", "random", "100000"]) == 2
    assert capsys.readouterr().err.startswith("lab mutants: N must be at most ")


def test_list(capsys):
    assert lab(["mutants", "random", "4", "--seed", "5", "--list"]) == 0
    lines = capsys.readouterr().out.splitlines()
    assert [line.split()[0] for line in lines] == DRAWN


# ---- for real -----------------------------------------------------------------------------------------------------


def test_change_is_caught_in_a_worker(in_tmp, capsys, monkeypatch):
    (wrong,) = (mutant for mutant in all_drawn() if mutant.id.endswith("-get_state-is-is_not"))
    monkeypatch.setattr(random_command, "draw", lambda *_: [wrong])
    assert lab(["mutants", "random", "1", "--tests", "test_initial_election_2a", "--runs", "1"]) == 0
    assert "1 changes of raft/raft.py: 1 caught, 0 missed" in capsys.readouterr().out


def test_change_is_found_by_random_runs(tmp_path):
    (wrong,) = (mutant for mutant in all_drawn() if mutant.id.endswith("-count_vote-gt-ge"))
    result = judge_by_fuzzing(wrong, [], budget_s=5, build=tmp_path, runs=2, first_seed=0)
    assert (result.verdict, result.by) == ("caught", "earned-leadership")
    (same,) = (mutant for mutant in all_drawn() if mutant.id.endswith("-next_to_apply-eq-ge"))
    result = judge_by_fuzzing(same, [], budget_s=0, build=tmp_path)
    assert (result.verdict, result.tests) == ("missed", 1)


def test_notes_match_existing_changes():
    known = {(mutant.function, mutant.lines_were, mutant.lines_are) for mutant in all_drawn()}
    assert set(random_command.read_notes()) - known == set()


def all_drawn():
    source, changes = random_mutants.all_changes()
    return [random_mutants._mutant(source, changes, place) for place in range(len(changes))]


def test_note_has_one_of_three_kinds(tmp_path):
    file = tmp_path / "survivors.toml"
    file.write_text('[[survivor]]\nin = "start"\nwas = "a"\nis = "b"\nkind = "odd"\nwhy = "it is"\n')
    with pytest.raises(ValueError, match="kind must be one of same, cost, wrong, got 'odd'"):
        random_command.read_notes(file)
