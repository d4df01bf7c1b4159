"""What `lab mutants shrink` notes of each mutant, and what is said of it."""

from tests.mutants.tool.shrunk import Measured, record, recorded, summary, table

SHORT = Measured(
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
WAITS = Measured("a-waits", "test_y_2b", ending="expectation", before=200, after=190, lines=1, seconds=9.0)


def test_what_was_measured_is_noted_beside_what_is_noted_already(tmp_path):
    file = tmp_path / "shrunk.json"
    record([SHORT], file)
    record([WAITS], file)
    assert list(recorded(file=file).values()) == [WAITS, SHORT]
    again = Measured("b-rule", "test_x_2a", ending="rule", rule="one-vote", before=1200, after=121)
    assert recorded([again], file)["b-rule"] == again
    assert (again.enough, SHORT.enough) == (False, True)


def test_what_was_measured_is_summed_up():
    assert SHORT.words == "1,200 -> 120 events, 4 steps"
    assert summary([WAITS, SHORT]).splitlines()[0].startswith("1 runs that broke a rule: 1 break the same one")
    assert table([WAITS, SHORT]).splitlines()[-2:] == [
        "| `a-waits` | expectation | 200 | 190 | 1 | 9.0 | - |",
        "| `b-rule` | one-vote | 1,200 | 120 | 2 | 3.2 | 4 |",
    ]
