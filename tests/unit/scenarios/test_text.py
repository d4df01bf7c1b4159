"""Mistakes in a file are reported with line and fix, before anything runs."""

import pytest

from raftlab.scenarios.text import STEPS, ScriptError, parse_script, read_script


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("campaing 0", ":1: there is no step 'campaing'; did you mean 'campaign'?"),
        ("campaign 0\n\nwhistle", ":3: there is no step 'whistle'; the steps are: start, campaign, elect,"),
        ("campaign", ":1: cannot read 'campaign'; write: campaign 0, or campaign 0 term 4"),
        ("deliver 0-1 vote", ":1: cannot read 'deliver 0-1 vote'; write: deliver, deliver 0->1 vote, or deliver"),
        ("deliver 0->1 vote please", ":1: '0->1 vote please' is not a message selector; write 0->1 vote, 1->0 reply,"),
        ("deliver 0->1 vote with x", ":1: only an append carries a command; write 0->1 vote"),
        ("run 300", ":1: cannot read 'run 300'; write: run 1s, run 0 300ms, or run until send"),
        ("crash 0 after lunch", ":1: cannot read 'crash 0 after lunch'; write: crash 0, or crash 0 before save"),
        ("expect peace", ":1: cannot expect 'peace'; write one of: expect leader 0 term 3; expect no leader;"),
        ("expect rule one-voter broken", ":1: there is no rule 'one-voter'; did you mean 'one-vote'?"),
        ("expect rule one-vote broken\nheal", ":2: 'expect rule one-vote broken' must be the last step"),
        ("expect 1 commit_index 1 2", ":1: commit_index is one number; write: expect 1 commit_index 3"),
        ("expect 1 log 1 x", ":1: 'x' is not a number"),
        ("heal\npeers 5", ":2: 'peers' must be at the top, before the first step"),
        ("peers none", ":1: cannot read 'none' as a number above 0; write: peers 5"),
        ("peers 100", ":1: at most 9 peers"),
        ("needs luck", ":1: unknown need 'luck'; write: needs plain votes"),
        ("strict mode", ":1: nothing may follow 'strict'"),
        ("heal\nlogs 0: 1", ":2: 'logs' must be the first step"),
        ("logs 0 1 1", ":1: write the terms of each peer's entries, such as: logs 0: 1 1 2"),
        ("logs 3: 1", ":1: there is no peer 3; peers are 0..2"),
        ("logs 0: 1\nlogs 0: 1", ":2: duplicate log for peer 0"),
        (
            "logs 0: 1 3\nlogs 1: 2\nlogs 2: 2 2",
            ":1: Raft cannot produce these logs with leaders that send all their entries: ",
        ),
        ("commit 3", ":1: 'commit' must follow 'logs' lines"),
        ("heal\n----\nx", ":2: ---- is allowed only under a 'show', before its output"),
        ("campaign 9", ":1: there is no peer 9; peers are 0..2"),
        ("deliver 0->7 vote", ":1: there is no peer 7; peers are 0..2"),
        ("elect 0 with 1 5", ":1: there is no peer 5; peers are 0..2"),
        ("expect 3 down", ":1: there is no peer 3; peers are 0..2"),
        ("partition 0 1 | 1 2", ":1: peer 1 is in two groups"),
        ("snapshot 0 1", ":1: this scenario has no snapshots; write 'snapshots' at the top"),
        ("heal\x0c# a form feed ends no line\nfrob", ":2: there is no step 'frob'"),
        ("# only a comment\n", ":1: the file has no steps; write one, such as: campaign 0"),
    ],
)
def test_mistake_in_a_file_is_reported_with_line_and_fix(text, said):
    with pytest.raises(ScriptError) as caught:
        parse_script(text, "broken.scenario")
    assert str(caught.value).startswith(f"broken.scenario{said}")


def test_unreadable_file_is_reported(tmp_path):
    with pytest.raises(ScriptError, match=r"gone.scenario:1: cannot be read: No such file"):
        read_script(tmp_path / "gone.scenario")
    (tmp_path / "latin.scenario").write_bytes(b"# \xe9\ncampaign 0\n")
    with pytest.raises(ScriptError, match=r"latin.scenario:1: cannot be read: it is not UTF-8 text"):
        read_script(tmp_path / "latin.scenario")


def test_headers_are_parsed():
    script = parse_script(
        "# Title.\n#\n# Why it\n# matters.\npeers 5\nsnapshots\nstrict\nneeds plain votes\nheal\n", "x"
    )
    assert (script.title, script.why) == ("Title", "Why it matters.")
    assert (script.peers, script.snapshots, script.strict, script.plain_votes) == (5, True, True, True)


def test_output_under_a_show_ends_at_an_empty_line():
    script = parse_script("show\n----\none\n  two\n\nheal\nshow\n----\n", "x")
    assert script.expected == {1: ["one", "  two"], 7: []}
    assert [step.text for step in script.steps] == ["show", "heal", "show"]


def test_logs_of_several_lines_are_one_step():
    script = parse_script("logs 0: 1 1\nlogs 1: 1\ncommit 1\nheal\n", "x")
    assert [(step.line, step.text) for step in script.steps] == [(1, "logs, commit 1"), (4, "heal")]


@pytest.mark.parametrize("word", STEPS)
def test_every_usage_is_valid_syntax(word):
    """The examples in error messages are valid steps. Of several, the first is tested."""
    usage = STEPS[word].usage.partition(",")[0].partition(" (")[0].partition(" or ")[0]
    parse_script(f"peers 6\nsnapshots\n{usage}\n", "x")


def test_windows_line_ends_tabs_and_bom_are_accepted(tmp_path):
    file = tmp_path / "windows.scenario"
    file.write_bytes(b"\xef\xbb\xbf# Title\r\ncampaign\t0\r\nheal\r\n")
    script = read_script(file)
    assert (script.title, [step.line for step in script.steps]) == ("Title", [2, 3])
