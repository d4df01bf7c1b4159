"""The files that affect graded runs are found by following imports."""

from raftlab.tools.grade.runs.run_digest import needed_by
from unit.students import ROOT


def test_indirect_and_local_imports_are_found():
    needed = {str(path.relative_to(ROOT)) for path in needed_by("raftlab.tools.stress.worker")}
    assert {"raftlab/tools/__init__.py", "raftlab/tools/selection.py", "raftlab/tools/stress/__init__.py"} <= needed
    assert {"raftlab/tools/stress/worker.py", "raftlab/tools/workers/process.py"} <= needed
    assert "raftlab/tools/stress/command.py" not in needed
