"""What `lab zoo shrink` notes of each mutant, and what docs/zoo.md says of it."""

from labtools.zoo.shrunk import HEADING, Measured, record, recorded, shrunk_markdown
from labtools.zoo.telling import sections, with_section

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


def test_the_page_tells_rules_first_and_a_hunt_leaves_that_section():
    page = with_section("# Hunts\n\ntext\n", HEADING, shrunk_markdown([WAITS, SHORT]))
    assert page.startswith(f"# Hunts\n\ntext\n\n{HEADING}\n")
    section = sections(page, [HEADING])
    assert f"# Hunts\n\ntext\n{section}" == page
    assert "1 runs that broke a rule: 1 break the same one" in section
    assert section.splitlines()[-2:] == [
        "| `b-rule` | one-vote | 1,200 | 120 | 2 | 3.2 | 4 |",
        "| `a-waits` | expectation | 200 | 190 | 1 | 9.0 | - |",
    ]


def test_a_section_is_written_anew_where_it_stands():
    page = "# Hunts\n\n## Hunted\n\nold\n\n## Shrunk\n\nkept\n"
    assert with_section(page, "## Hunted", "## Hunted\n\nnew\n") == page.replace("old\n", "new\n")
    assert with_section(page, "## Shrunk", "## Shrunk\n\nnew\n") == page.replace("kept", "new")
    assert sections(page, ["## Hunted", "## Shrunk"]) == page.removeprefix("# Hunts\n")
    assert sections("# Hunts\n", ["## Hunted"]) == ""
