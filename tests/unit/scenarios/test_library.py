"""The lab's scenarios show what their files say, and correct peers of other designs pass."""

import pytest

from raft.raft import Raft
from raftlab.harness.in_process import InProcessLauncher
from raftlab.harness.loader import load_peer
from raftlab.harness.run import run_test
from raftlab.sandbox.loader import launcher_for
from raftlab.scenarios.runner import make_lab_test
from raftlab.scenarios.text import read_script
from raftlab.tools.selection import scenario_files
from tests.mutants.tool.mutants import load_mutants
from unit.soak import SOAK

REFERENCE = InProcessLauncher(Raft)

SCRIPTS = [read_script(file) for file in scenario_files()]
DESIGNS = [mutant for mutant in load_mutants() if mutant.id.startswith("design-")]
# Each design runs every fifth scenario, the next design others; in a soak each runs all.
SHARE = 1 if SOAK else 5
# Their elections differ from Figure 2 (pre-vote, or ignored candidates, §6), or they replicate, acknowledge or announce
# commits in RPCs of their own.
NOT_PLAIN = tuple(
    f"design-{name}"
    for name in ("pre-vote", "pipeline", "chunked", "disk-thread", "generators", "pull", "added-ack", "gossip")
)


def test_library_has_many_scenarios_with_explanations():
    assert len(SCRIPTS) >= 30
    assert len({script.name for script in SCRIPTS}) == len(SCRIPTS)
    assert [script.name for script in SCRIPTS if not script.title] == []


@pytest.mark.parametrize("seed", range(3))
@pytest.mark.parametrize("script", [s for s in SCRIPTS if s.expected], ids=lambda script: script.name)
def test_reference_shows_the_recorded_output(script, seed):
    shown = {}
    run = run_test(
        make_lab_test(script, on_output=lambda step, out: shown.update({step.line: out.splitlines()})),
        REFERENCE,
        seed,
    )
    assert run.error is None
    assert {line: shown[line] for line in script.expected} == script.expected


@pytest.mark.parametrize(("place", "design"), list(enumerate(DESIGNS)), ids=lambda value: getattr(value, "id", ""))
def test_correct_peers_pass(place, design):
    launcher = load_peer(design.write())
    scripts = SCRIPTS[place % SHARE :: SHARE]
    outcomes = {script.name: run_test(make_lab_test(script), launcher, 1).outcome() for script in scripts}
    assert {name: outcome for name, outcome in outcomes.items() if outcome.failed} == {}
    skipped = [name for name, outcome in outcomes.items() if outcome.skipped]
    assert not skipped or design.id in NOT_PLAIN, skipped
    assert skipped or design.id not in NOT_PLAIN or SHARE > 1  # of all, each of these is skipped somewhere
    assert design.id == "design-pull" or 3 * len(skipped) < 2 * len(scripts)


def test_sandboxed_peers_have_the_same_digests():
    launcher = launcher_for(DESIGNS[0].write(), isolated=True)
    try:
        for script in SCRIPTS[::10]:
            assert not run_test(make_lab_test(script), launcher, 1).outcome().failed
    finally:
        launcher.close()


TAKES_SNAPSHOTS = [script for script in SCRIPTS if any(step.text.startswith("snapshot ") for step in script.steps)]


@pytest.mark.parametrize("script", TAKES_SNAPSHOTS, ids=lambda script: script.name)
def test_snapshot_saved_by_another_thread_passes(script):
    (variant,) = [mutant for mutant in load_mutants() if mutant.id == "variant-saves-snapshots-later"]
    assert run_test(make_lab_test(script), load_peer(variant.write()), 1).error is None
