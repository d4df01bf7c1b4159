"""docs/student/failures.md shows three failures of peers without a lock, as they are printed."""

import pytest

from raftlab.harness import report
from raftlab.harness.loader import load_peer
from raftlab.harness.run import run_test
from raftlab.tools.selection import select
from tests.mutants.tool.mutants import load_mutants
from unit.students import ROOT

pytestmark = pytest.mark.usefixtures("raft_package_restored")


@pytest.mark.parametrize(
    ("mutant", "test", "seed"),
    [
        ("event-loop-persist-after-reply", "test_slow_disks_2c", 0),
        ("event-loop-match-from-own-log", "test_fail_no_agree_2b", 0),
        ("channels-snap-then-old-command", "test_snapshot_overtaken_2d", 1),
    ],
)
def test_failure_is_shown_as_it_is(mutant, test, seed, tmp_path):
    (wrong,) = [each for each in load_mutants() if each.id == mutant]
    (selected,) = select([test])
    run = run_test(selected, load_peer(wrong.write(tmp_path)), seed)
    assert run.error is not None
    replay, shrink = (f"make {does} TEST={test} SEED={seed}" for does in ("replay", "shrink"))
    told = report.describe(run.error, test, seed, replay, causes=run.causes, shrink=shrink)
    assert told in (ROOT / "docs" / "student" / "failures.md").read_text(encoding="utf-8")
