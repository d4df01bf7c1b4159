"""What decides about a graded run is found by reading imports."""

from infra.students import ROOT
from labtools.grade.judging.run_digest import needed_by


def test_what_a_module_needs_is_found_through_others_and_inside_functions():
    needed = {str(path.relative_to(ROOT)) for path in needed_by("labtools.stress.worker")}
    assert {"labtools/__init__.py", "labtools/selecting.py", "labtools/stress/__init__.py"} <= needed
    assert {"labtools/stress/worker.py", "labtools/stress/outcome.py"} <= needed
    assert "labtools/stress/command.py" not in needed
