"""lab timeline --import: logs of other programs, as lines and as a boxed table, mixed with other text."""

from pathlib import Path

import pytest

from raftlab.tools.cli import main
from raftlab.tools.timeline.log_file import LogFileError, read_log

LINES = """\
> go test -run TestElection
13:43:33.411250 [0] listening at [::]:40631
13:43:33.422831 [1] becomes Candidate (currentTerm=1); log={}
13:43:33.422806 [2] becomes Candidate (currentTerm=1); log={}

```
13:43:33.422831 [1] becomes Candidate (currentTerm=1); log={}
13:43:33.500000 [1] becomes Leader; term=1
13:43 [1] no time
"""

TABLE = """\
PASS TestElection5Nodes
┌─────────────────┬──────────────────────┬──────────────────────┐
│ TIME            │ 0                    │ 1                    │
├─────────────────┼──────────────────────┼──────────────────────┤
│ 19:13:08.784039 │ listening at [::]:35 │                      │
│                 │ 337                  │                      │
│                 │                      │                      │
├─────────────────┼──────────────────────┼──────────────────────┤
│ 19:13:08.791527 │                      │ Election Timer start │
│                 │                      │ ed (206ms) , term=0  │
└─────────────────┴──────────────────────┴──────────────────────┘
"""


def write(folder: Path, text: str) -> Path:
    path = folder / "a.log"
    path.write_text(text, encoding="utf-8")
    return path


def entries(log):
    return [(log.clock(entry.at_ns), entry.peer, entry.text) for entry in log.entries]


def test_lines(tmp_path):
    log = read_log(write(tmp_path, LINES))
    assert entries(log) == [
        ("13:43:33.411250", "0", "listening at [::]:40631"),
        ("13:43:33.422806", "2", "becomes Candidate (currentTerm=1); log={}"),
        ("13:43:33.422831", "1", "becomes Candidate (currentTerm=1); log={}"),
        ("13:43:33.500000", "1", "becomes Leader; term=1"),
    ]
    assert log.summary() == (
        "4 entries of 3 peers; 1 duplicate line ignored; "
        "skipped 3 lines in another format (the first: line 1, '> go test -run TestElection')"
    )
    assert {peer: mark.role for peer, mark in log.rows()[-1].marks.items()} == {
        "0": "follower",
        "1": "leader",
        "2": "candidate",
    }


def test_table_cells_continue_in_lines_below(tmp_path):
    log = read_log(write(tmp_path, TABLE))
    assert entries(log) == [
        ("19:13:08.784039", "0", "listening at [::]:35337"),
        ("19:13:08.791527", "1", "Election Timer started (206ms) , term=0"),
    ]
    assert log.peers == ["0", "1"]
    assert "skipped 1 line in another format (the first: line 1" in log.summary()


def test_a_log_that_runs_past_midnight(tmp_path):
    log = read_log(write(tmp_path, "23:59:59.9 [a] one\n00:00:00.1 [b] two\n"))
    assert entries(log) == [("23:59:59.9", "a", "one"), ("00:00:00.1", "b", "two")]


def test_dates_and_control_characters(tmp_path):
    log = read_log(write(tmp_path, "2024/01/02 10:00:00.000001 [7] a\x1b[31mb\n"))
    assert entries(log) == [("10:00:00.000001", "7", "a·[31mb")]


@pytest.mark.parametrize("text", ["", "nothing\nhere\n", "│ TIME │ 0 │\n", "│ 1 │ 2 │\n│ x\n"])
def test_file_without_a_log_names_the_formats(tmp_path, text):
    with pytest.raises(
        LogFileError, match=r"a\.log: none of the \d lines is a log line \('12:34:56\.789012 \[0\] text'\) or a table"
    ):
        read_log(write(tmp_path, text))


def test_any_garbage_is_skipped_and_counted(tmp_path):
    path = tmp_path / "a.log"
    good = b"10:00:00.000001 [0] fine\n"
    path.write_bytes(b"\xff\xfe\x00\x01\n" + good + b"| | |\n|||\n99:99 [x]\n" + bytes(range(128, 256)) + b"\n")
    log = read_log(path)
    assert entries(log) == [("10:00:00.000001", "0", "fine")]
    assert "in another format" in log.summary()


def test_the_command_shows_it(tmp_path, capsys):
    path = write(tmp_path, LINES)
    assert main(["timeline", "--import", str(path), "--width", "90"]) == 0
    out = capsys.readouterr().out
    assert out.splitlines()[1:3] == [
        "           time   peer 0                   peer 1                   peer 2",
        "13:43:33.411250 | listening at           |                        |",
    ]
    assert "L becomes Leader; term=1" in out
    assert out.splitlines()[-1].startswith("4 entries of 3 peers; 1 duplicate")
    assert max(len(line) for line in out.splitlines()[:-1]) <= 90


def test_the_command_filters_it(tmp_path, capsys):
    path = write(tmp_path, LINES)
    assert main(["timeline", "--import", str(path), "--peer", "1", "--from", "0.05"]) == 0
    out = capsys.readouterr().out
    assert "becomes Leader" in out and "Candidate" not in out and "listening" not in out
    assert main(["timeline", "--import", str(path), "--peer", "8"]) == 2
    assert "--peer must be one of 0, 1, 2, got 8" in capsys.readouterr().err
