"""What the documents promise exists: names, links, commands, options. The tests that they show pass."""

import ast
import contextlib
import re
import shlex

import pytest

import labgob
import labrpc
import raftapi
from raftlab import layout
from raftlab.check.harness_rules import HARNESS_RULES
from raftlab.check.rules.checker import RULES
from raftlab.harness.config import Config
from raftlab.harness.loader import load_peer
from raftlab.harness.run import run_test
from raftlab.tools import cli
from raftlab.tools.selection import load_tests, select
from unit.students import ROOT

ROWS = re.findall(
    r"^\| (.+) \| (.+) \|$", (ROOT / "docs" / "student" / "names.md").read_text(encoding="utf-8"), re.MULTILINE
)
PYTHON = [name for _, cell in ROWS for name in re.findall(r"`([^`]+)`", cell)]
CLASSES = {
    "Config": Config,
    "Persister": raftapi.Persister,
    **{name: getattr(labrpc, name) for name in ("ClientEnd", "Network", "Server", "Service")},
    "Encoder": labgob.Encoder,
    "Decoder": labgob.Decoder,
    "labgob": labgob,
}


def test_named_methods_exist():
    methods = [found for name in PYTHON for found in re.findall(r"\b([A-Z]\w+|labgob)\.([a-z]\w+)", name)]
    named = [(owner, method) for owner, method in methods if owner in CLASSES]
    assert len(named) > 30
    assert [f"{owner}.{method}" for owner, method in named if not hasattr(CLASSES[owner], method)] == []


def test_named_methods_of_raft_exist():
    tree = ast.parse((ROOT / "raft" / "raft.py").read_text(encoding="utf-8"))
    raft = next(node for node in tree.body if isinstance(node, ast.ClassDef) and node.name == "Raft")
    have = {node.name for node in raft.body if isinstance(node, ast.FunctionDef)}
    named = {found for name in PYTHON for found in re.findall(r"^Raft\.([a-z_]+)\(", name)}
    assert len(named) == 2
    assert named <= have


def test_readme_counts_the_tests_of_each_part():
    readme = (ROOT / "README.md").read_text(encoding="utf-8")
    shown = re.findall(r"^\| (\d[A-D]) \|.*\| (\d+) \+ (\d+) \|$", readme, re.MULTILINE)
    counted = [
        (
            part,
            *(str(len(re.findall(r"^def test_", (ROOT / "tests" / name).read_text(), re.MULTILINE))) for name in names),
        )
        for part in ("2A", "2B", "2C", "2D", "3A", "3B")
        for names in [(f"test_{part.lower()}.py", f"test_{part.lower()}_extra.py")]
    ]
    assert shown == counted


@pytest.mark.parametrize("page", ["ARCHITECTURE.md", "CONTRIBUTING.md"])
def test_files_and_tests_named_in_guides_exist(page):
    tops = (*layout.FOLDERS, "tests", "docs", "handout", "bench")
    there = [*ROOT.glob("*.*"), *(path for top in tops for path in [ROOT / top, *(ROOT / top).rglob("*")])]
    paths = [f"/{path.relative_to(ROOT).as_posix()}{'/' if path.is_dir() else ''}" for path in there]
    text = (ROOT / page).read_text(encoding="utf-8")
    # A file, or a folder with a slash at its end. NAME is for the reader to fill in.
    found = re.findall(r"(?<![\w/.<>-])(?:[a-z_]+/)+(?![\w.<*])|(?<![<>-])\b[\w/-]+\.(?:py|md|json|svg)\b", text)
    named = {name for name in found if "NAME" not in name}
    assert len(named) > 20
    assert [name for name in sorted(named) if not any(path.endswith(f"/{name}") for path in paths)] == []
    tests = "\n".join(path.read_text(encoding="utf-8") for path in (ROOT / "tests").rglob("test_*.py"))
    named = set(re.findall(r"\btest_[a-z0-9_]+\b(?!\.py|\()", text))
    assert [name for name in sorted(named) if f"def {name}(" not in tests] == []


def test_every_rule_is_in_the_list_of_checks():
    rows = [
        [cell.strip(" `") for cell in line.strip("|").split("|")]
        for line in (ROOT / "docs" / "student" / "rules.md").read_text(encoding="utf-8").splitlines()
        if line.startswith("| `")
    ]
    rules = [[r.name, r.title, r.section, "all" if r.concludes_from_silence else ""] for r in RULES]
    assert [row for row in rows if len(row) == 4] == rules
    assert [row for row in rows if len(row) == 3] == [
        [rule.name, f"{rule.title} ({rule.section})", rule.checked_by] for rule in HARNESS_RULES
    ]


def test_the_limits_of_time_name_rules():
    text = (ROOT / "docs" / "student" / "rules.md").read_text(encoding="utf-8")
    named = re.findall(r"\| `([a-z-]+)` \|$", text.partition("## Time")[2], re.MULTILINE)
    assert len(named) > 10
    assert set(named) <= {rule.name for rule in (*RULES, *HARNESS_RULES)}


@pytest.mark.parametrize(
    ("page", "test"),
    [
        ("README.md", "test_initial_election_2a"),
        ("README.md", "test_reelection_2a"),
        ("README.md", "test_many_elections_2a"),
        ("docs/student/guide/setup.md", "test_initial_election_2a"),
    ],
)
def test_shown_passing_run_is_real(page, test):
    (printed,) = run_test(select([test])[0], load_peer(ROOT / "raft" / "raft.py"), 7).lines
    assert printed.partition("  (")[0] in (ROOT / page).read_text(encoding="utf-8")


@pytest.mark.parametrize("seed", range(3))
@pytest.mark.parametrize("name", ["test_vote_outlives_a_crash", "test_leader_without_replies"])
def test_shown_tests_pass(name, seed, tmp_path):
    page = (ROOT / "docs" / "student" / "own-tests.md").read_text(encoding="utf-8")
    (source,) = re.findall(r"```python\n(.*?)```", page, re.DOTALL)
    file = tmp_path / "my_tests.py"
    file.write_text(source, encoding="utf-8")
    tests = {test.name: test for test in load_tests(file)}
    assert list(tests) == ["test_vote_outlives_a_crash", "test_leader_without_replies"]
    assert run_test(tests[name], load_peer(ROOT / "raft" / "raft.py"), seed).error is None


def test_named_faults_exist():
    page = (ROOT / "docs" / "student" / "own-tests.md").read_text(encoding="utf-8")
    named = set(re.findall(r"\bcfg\.(\w+)", page))
    assert {"crash_at", "slow_disks", "slow_snapshots", "partition", "link", "latency", "duplicates"} <= named
    assert [name for name in sorted(named) if not hasattr(Config, name)] == []


def test_commands_page_has_every_make_target():
    page = (ROOT / "docs" / "commands.md").read_text(encoding="utf-8")
    targets = re.findall(r"^([a-z0-9-]+):.*## ", (ROOT / "Makefile").read_text(encoding="utf-8"), re.MULTILINE)
    assert len(targets) > 15
    assert [name for name in targets if f"make {name}" not in page and not name.startswith("test-")] == []


PAGES = [*ROOT.glob("*.md"), *(ROOT / "docs").rglob("*.md")]


def links(page):
    """Page and anchor of every link; an anchor is "" for the top of a page."""
    for target, _, anchor in re.findall(r"\]\(([^)#\s]*)(#?)([^)]*)\)", page.read_text(encoding="utf-8")):
        if "://" not in target:
            yield (page.parent / target).resolve() if target else page, anchor


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.relative_to(ROOT).as_posix())
def test_pages_have_no_dead_links(page):
    for other, anchor in links(page):
        assert other.exists(), other
        if anchor:
            headings = re.findall(r"^#+ (.+)$", other.read_text(encoding="utf-8"), re.MULTILINE)
            slugs = [re.sub(r"[^\w -]", "", heading.lower()).replace(" ", "-") for heading in headings]
            assert anchor in slugs, f"{other}#{anchor}"


@pytest.mark.parametrize(
    ("question", "page", "heading"),
    [
        ("how do I start", "docs/student/guide/setup.md", "# Set up"),
        ("my test fails, what now", "docs/student/guide/failing.md", "# When a test fails"),
        ("how do I debug a deadlock", "docs/student/guide/failing.md", "## A deadlock"),
        ("may I use pre-vote", "docs/student/rules.md", "## What a correct peer may do"),
        ("how do I write a hidden test", "docs/instructor/grading.md", "### Hidden tests"),
        ("how do I explain a score", "docs/instructor/README.md", "## 7. Explain a score, regrade"),
        ("how do I add a rule", "CONTRIBUTING.md", "## A rule"),
        ("what does the sandbox allow", "docs/instructor/sandbox.md", "## What the sandbox blocks"),
        ("does it run on Windows", "README.md", "## Requirements"),
        ("what does one seed promise", "docs/student/determinism.md", "# One seed, one run"),
    ],
)
def test_answer_is_at_most_two_clicks_from_readme(question, page, heading):
    near = {ROOT / "README.md"}
    for _ in range(2):
        near |= {other for one in near if one.suffix == ".md" for other, _ in links(one)}
    assert ROOT / page in near, question
    assert heading in (ROOT / page).read_text(encoding="utf-8").splitlines(), question


def commands_of(page):
    """Every `lab`, `make` and `pytest` command of a page, and every option, in its text and in its blocks."""
    text = page.read_text(encoding="utf-8")
    blocks = "\n".join(re.findall(r"^ *```.*?^ *```", text, re.DOTALL | re.MULTILINE))
    prose = re.sub(r"^ *```.*?^ *```", "", text, flags=re.DOTALL | re.MULTILINE)
    commands = [" ".join(span.split()) for span in re.findall(r"`([^`]+)`", prose)]
    start = r"(?:^|^\$ |  |run: )((?:\.venv/bin/)?(?:lab|make|pytest) (?!\w+:).*?)(?=  |$| #| \|)"
    return [one.removeprefix(".venv/bin/") for one in commands + re.findall(start, blocks, re.MULTILINE)]


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.relative_to(ROOT).as_posix())
def test_commands_of_a_page_exist(page, capsys):
    makefile = (ROOT / "Makefile").read_text(encoding="utf-8")
    targets = {*re.findall(r"^[a-z0-9-]+(?=:)|\btest-\d\w", makefile, re.MULTILINE), "…"}
    variables = set(re.findall(r"\b[A-Z]+\b", makefile))
    tops = (ROOT / top for top in ("raftlab", "tests/mutants/tool", "tests/digests"))
    sources = "".join(path.read_text(encoding="utf-8") for top in tops for path in top.rglob("*.py"))
    named = re.findall(r'"--(\w[\w-]*)"|Option\("([a-z-]+)"', sources)
    options = {f"--{no}{flag or shared}" for flag, shared in named for no in ("", "no-")} | {"--help"}
    wrong = []
    for command in commands_of(page):
        program, *words = command.split()
        used = {word.partition("=")[0] for word in (program, *words) if re.match(r"--\w", word)}
        if program == "make":
            given = [word.partition("=") for word in shlex.split(command)[1:]]
            wrong += [command for name, is_set, _ in given if name not in (variables if is_set else targets)]
        elif program in ("lab", "pytest") or not words or program.startswith("--"):
            wrong += [f"{command}: {option}" for option in used - options]
        if program == "lab" and words and not words[0].isupper():
            with contextlib.suppress(SystemExit):
                cli._parsed(shlex.split(command)[1:])
            refused = re.findall(r"error: (.*(?:unrecognized|invalid choice).*)", capsys.readouterr().err)
            wrong += [f"{command}: {reason}" for reason in refused]
    assert wrong == []
