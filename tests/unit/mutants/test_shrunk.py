"""`lab mutants shrink`: what is recorded and reported of each mutant."""

from tests.mutants.tool.shrunk import ShrinkMeasurement, record, recorded, summary, table

SHORT = ShrinkMeasurement(
    "b-rule",
    "test_x_2a",
    ending="rule",
    rule="one-vote",
    before=1200,
    after=120,
    lines=2,
    seconds=3.25,
    same_rule=True,
    same_run=True,
    steps=4,
    scenario_breaks=True,
    scenario_passes=True,
)
WAITS = ShrinkMeasurement("a-waits", "test_y_2b", ending="expectation", before=200, after=190, lines=1, seconds=9.0)


def test_recording_keeps_earlier_records(tmp_path):
    file = tmp_path / "shrunk.json"
    record([SHORT], file)
    record([WAITS], file)
    assert list(recorded(file=file).values()) == [WAITS, SHORT]
    again = ShrinkMeasurement("b-rule", "test_x_2a", ending="rule", rule="one-vote", before=1200, after=121)
    assert recorded([again], file)["b-rule"] == again
    assert (again.enough, SHORT.enough) == (False, True)


def test_summary_of_measurements():
    assert SHORT.summary == "1,200 -> 120 events, 4 steps"
    assert summary([WAITS, SHORT]).splitlines()[0].startswith("1 runs that broke a rule: 1 break the same rule")
    assert table([WAITS, SHORT]).splitlines()[-2:] == [
        "| `a-waits` | expectation | 200 | 190 | 1 | 9.0 | - |",
        "| `b-rule` | one-vote | 1,200 | 120 | 2 | 3.2 | 4 |",
    ]
