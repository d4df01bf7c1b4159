"""The reports of failures that the documents show are what the lab prints about that mutant."""

import re

import pytest

from raftlab.harness import report
from raftlab.harness.loader import load_peer
from raftlab.harness.run import run_test
from raftlab.tools.selection import select
from tests.mutants.tool.mutants import load_mutants
from unit.students import ROOT

pytestmark = pytest.mark.usefixtures("raft_package_restored")

REFERENCE = ROOT / "raft" / "raft.py"
SHOWN = [
    ("README.md", "figure8-commit", "test_figure8_unreliable_2c", 7),
    ("docs/student/guide/failing.md", "stale-vote-counted", "test_late_votes_2a", 1),
    ("docs/student/guide/failing.md", "vote-rpc-under-lock", "test_reelection_2a", 1),
    ("docs/student/rules.md", "double-vote", "test_many_elections_2a", 7),
    ("docs/student/failures.md", "event-loop-persist-after-reply", "test_slow_disks_2c", 0),
    ("docs/student/failures.md", "event-loop-match-from-own-log", "test_fail_no_agree_2b", 0),
    ("docs/student/failures.md", "channels-snap-then-old-command", "test_snapshot_overtaken_2d", 1),
    ("docs/student/kv.md", "kv-reads-as-leader", "test_one_partition_3a", 0),
    ("docs/student/races.md", "race-start-checks-outside", "test_basic_agree_2b", 7),
]


def report_in(page, test, seed):
    """The pieces of that report in the page: "..." replaces lines. Paths decide where lines are wrapped."""
    (block,) = re.findall(rf"^(?:FAILED )?({test}  seed {seed}\n.*?)^```", page, re.DOTALL | re.MULTILINE)
    return [
        squeezed(piece) for piece in re.split(r"^ *\.\.\.\n", block.partition("\n  replay ")[0], flags=re.MULTILINE)
    ]


def squeezed(text):
    return "".join(text.split())


@pytest.mark.parametrize(("page", "mutant", "test", "seed"), SHOWN)
def test_report_is_shown_as_it_is(page, mutant, test, seed, tmp_path):
    (wrong,) = [each for each in load_mutants() if each.id == mutant]
    text = (ROOT / page).read_text(encoding="utf-8")
    path = wrong.write(tmp_path)
    files = {"kv": path} if wrong.of_service else {"race": wrong.races}
    run = run_test(select([test])[0], load_peer(REFERENCE if wrong.of_service else path, **files), seed)
    assert run.error is not None
    printed = report.describe(run.error, test, seed, "", causes=run.causes)
    printed = squeezed(printed).replace(str(path), "raft/raft.py")
    assert [piece for piece in report_in(text, test, seed) if piece not in printed] == []
