"""`lab scenario`: its output, its errors, and the prompt of --step."""

import subprocess

import pytest

from raftlab.tools import selection
from tests.mutants.tool.mutants import load_mutants
from unit.tools.peers import ROOT, lab, lab_command

VOTE = "# A first vote\n# Because.\ncampaign 0\ndeliver 0->1 vote\nexpect 1 voted 0\nshow\n"
SHOWN = """\
peer  role       term  voted  log  commit  applied
0     candidate  1     0      -    0       0
1     follower   1     0      -    0       0
2     follower   0     -      -    0       0
in flight:
  0->2 vote 1  term 1, last entry 0 of term 0
  1->0 vote reply 1  term 1, granted
"""


@pytest.fixture
def vote(tmp_path, monkeypatch):
    monkeypatch.chdir(ROOT)
    file = tmp_path / "vote.scenario"
    file.write_text(VOTE)
    return file


def test_steps_and_output_are_printed(vote, capsys):
    assert lab("scenario", vote) == 0
    out = capsys.readouterr().out
    assert out.startswith(
        "A first vote\nBecause.\n  3  campaign 0\n  4  deliver 0->1 vote\n  5  expect 1 voted 0\n  6  show"
    )
    assert "".join(f"       {line}\n" for line in SHOWN.splitlines()) in out
    assert f"PASSED {vote}  (4 steps, " in out


def test_failure_names_line_and_replay_command(vote, capsys):
    vote.write_text("campaign 0\nexpect leader 0\nexpect leader 0\n")
    assert lab("scenario", vote, "--seed", "5") == 1
    out = capsys.readouterr().out
    assert "FAILED vote  seed 5\n  Expected peer 0 as the leader; get_state() says: term 1, not leader" in out
    assert f"{vote}:2 in <module>" in out
    assert "  2  expect leader 0" in out
    assert "  3  expect leader 0" not in out  # it was not begun
    assert f"replay    make scenario FILE={vote} SEED=5\n" in out


def test_output_is_compared_and_rewritten(vote, capsys):
    vote.write_text(f"{VOTE}----\nsomething else\n\nheal\n")
    assert lab("scenario", vote) == 0
    assert lab("scenario", vote, "--compare") == 1
    assert f"FAILED {vote}:6: the output of `show` differs from the expected lines. It is:" in capsys.readouterr().out
    assert lab("scenario", vote, "--rewrite") == 0
    assert vote.read_text() == f"{VOTE}----\n{SHOWN}\nheal\n"
    assert lab("scenario", vote, "--compare") == 0


def test_folder_ends_with_a_summary(vote, capsys):
    (vote.parent / "other.scenario").write_text("expect leader 0\n")
    assert lab("scenario", vote.parent) == 1
    assert "2 scenarios: 1 passed, 1 failed, 0 skipped" in capsys.readouterr().out


def test_skips_are_counted_and_shown(vote, capsys):
    vote.write_text(f"needs plain votes\n{VOTE}\nexpect leader 2\n")
    pre_vote = next(mutant for mutant in load_mutants() if mutant.id == "design-pre-vote").write()
    assert lab("scenario", vote, vote, "--raft", pre_vote) == 0
    out = capsys.readouterr().out
    assert f"SKIPPED {vote}: the scenario needs plain votes, but a peer calls Raft.pre_vote before it campaigns" in out
    assert "2 scenarios: 0 passed, 0 failed, 2 skipped" in out


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (["gone.scenario"], "lab scenario: gone.scenario: no such file"),
        (["docs"], "lab scenario: docs: no *.scenario files"),
        (
            ["tests/scenarios/2a/split_vote.scenario", "--step", "--rewrite"],
            "lab scenario: --step is not supported with --compare or --rewrite",
        ),
        (["tests/scenarios/2a", "--step"], "lab scenario: --step needs exactly one FILE, got "),
    ],
)
def test_wrong_options_of_scenario_are_refused(vote, capsys, arguments, said):
    assert lab("scenario", *arguments) == 2
    assert capsys.readouterr().err.startswith(said)


def test_malformed_file_runs_nothing(vote, capsys):
    vote.write_text("campaign 0\ncampaing 1\n")
    assert lab("scenario", vote) == 2
    captured = capsys.readouterr()
    assert captured.err == f"lab scenario: {vote}:2: there is no step 'campaing'; did you mean 'campaign'?\n"
    assert captured.out == ""


def test_malformed_file_does_not_hide_others(vote, monkeypatch):
    broken = vote.with_name("other.scenario")
    broken.write_text("campaing 1\n")
    monkeypatch.setattr(selection, "scenario_files", lambda: [broken, vote])
    assert [test.name for test in selection.select(["vote"])] == ["vote"]
    with pytest.raises(selection.SelectionError, match="there is no step 'campaing'"):
        selection.select([selection.SCENARIOS])


def test_incorrect_peer_breaks_the_expected_rule(vote, tmp_path, capsys):
    vote.write_text("campaign 0\ncampaign 1\ndeliver 0->2 vote\ndeliver 1->2 vote\nexpect rule one-vote broken\n")
    mutant = next(mutant for mutant in load_mutants() if mutant.id == "double-vote")
    assert lab("scenario", vote, "--raft", mutant.write(tmp_path / "peer")) == 0
    assert ", breaks one-vote as expected" in capsys.readouterr().out


def walk(vote, *typed, more=()):
    lines = "".join(f"{line}\n" for line in typed)
    command = lab_command("scenario", vote, "--step", *more)
    done = subprocess.run(command, input=lines, capture_output=True, text=True, timeout=60, cwd=ROOT, check=False)
    return done.returncode, done.stdout


def test_prompt_makes_steps_and_accepts_others(vote):
    code, out = walk(
        vote, "", "show", "delivr 0->2 vote", "restart 1", "deliver 0->2 vote", "expect 2 voted 0", "run", ""
    )
    assert code == 0, out
    assert "next  3: campaign 0" in out
    assert "there is no step 'delivr'; did you mean 'deliver'?" in out
    assert "peer 1 is not down; crash it first" in out
    assert "next  end of the file" in out
    assert out.count("in flight:") == 2


def test_prompt_can_quit_and_skip_steps(vote):
    code, out = walk(vote, "skip", "skip", "help", "quit")
    assert code == 0
    assert "skipped: deliver 0->1 vote" in out
    assert "  elect 0 with 1 2" in out
    assert out.endswith(f"{vote}: 4 of 4 steps were skipped\n")


def test_prompt_continues_after_a_failed_expectation(vote):
    code, out = walk(vote, "expect leader 2", "logs 0: 1", "expect rule one-vote broken", "run", "")
    assert code == 0
    assert "Expected peer 2 as the leader" in out
    assert "'logs 0: 1' is allowed only in a file" in out
    assert "'expect rule one-vote broken' is allowed only in a file" in out
    assert f"PASSED {vote}" in out


def test_prompt_ends_when_a_rule_is_broken(vote, tmp_path):
    mutant = next(mutant for mutant in load_mutants() if mutant.id == "double-vote").write(tmp_path / "peer")
    steps = ["campaign 0", "campaign 1", "deliver 0->2 vote", "deliver 1->2 vote"]
    code, out = walk(vote, *steps, more=["--raft", mutant])
    assert code == 1
    assert "voted twice in term" in out
