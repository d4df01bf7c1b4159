"""Names that the pages in docs/student promise exist, and the tests that own-tests.md shows pass."""

import ast
import dataclasses
import re

import pytest

import labgob
import labrpc
import raftapi
from raft import messages
from raftlab import layout
from raftlab.check.harness_rules import HARNESS_RULES
from raftlab.check.rules.checker import RULES
from raftlab.harness.config import Config
from raftlab.harness.loader import load_peer
from raftlab.harness.run import run_test
from raftlab.tools.selection import load_tests
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


def test_every_method_is_there():
    methods = [found for name in PYTHON for found in re.findall(r"\b([A-Z]\w+|labgob)\.([a-z]\w+)", name)]
    named = [(owner, method) for owner, method in methods if owner in CLASSES]
    assert len(named) > 40
    assert [f"{owner}.{method}" for owner, method in named if not hasattr(CLASSES[owner], method)] == []


def test_every_peer_method_is_there():
    tree = ast.parse((ROOT / "raft" / "raft.py").read_text(encoding="utf-8"))
    raft = next(node for node in tree.body if isinstance(node, ast.ClassDef) and node.name == "Raft")
    have = {node.name for node in raft.body if isinstance(node, ast.FunctionDef)}
    named = {found for name in PYTHON for found in re.findall(r"^Raft\.([a-z_]+)\(", name)}
    assert len(named) == 7
    assert named <= have


def test_every_message_has_its_fields():
    named = [(m[1], m[2].split(", ")) for name in PYTHON if (m := re.fullmatch(r"([A-Z]\w+)\(([a-z_, ]+)\)", name))]
    found = {owner: fields for owner, fields in named if hasattr(messages, owner) and owner != "ApplyMsg"}
    # Fields with a default are additions, which every peer is free to make: the reference's are no part of the promise.
    assert found == {
        owner: [f.name for f in dataclasses.fields(getattr(messages, owner)) if f.default is dataclasses.MISSING]
        for owner in found
    }
    assert len(found) == 7
    apply_msg = [field for owner, fields in named if owner == "ApplyMsg" for field in fields]
    assert apply_msg == [f.name for f in dataclasses.fields(messages.ApplyMsg)]


def test_every_test_is_there_and_none_is_missing():
    have = [
        name
        for part in ("2a", "2b", "2c", "2d", "3a", "3b")
        for name in re.findall(r"^def (test_\w+)", (ROOT / "tests" / f"test_{part}.py").read_text(), re.MULTILINE)
    ]
    assert sorted(name for name in PYTHON if name.startswith("test_")) == sorted(have)


@pytest.mark.parametrize("page", ["ARCHITECTURE.md", "CONTRIBUTING.md"])
def test_files_and_tests_that_a_guide_names_exist(page):
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
        for line in (ROOT / "docs" / "student" / "checks.md").read_text(encoding="utf-8").splitlines()
        if line.startswith("| `")
    ]
    rules = [[r.name, r.title, r.section, "all" if r.concludes_from_silence else ""] for r in RULES]
    assert [row for row in rows if len(row) == 4] == rules
    assert [row for row in rows if len(row) == 3] == [
        [rule.name, f"{rule.title} ({rule.section})", rule.by] for rule in HARNESS_RULES
    ]


def test_the_limits_of_time_name_rules():
    text = (ROOT / "docs" / "student" / "checks.md").read_text(encoding="utf-8")
    named = re.findall(r"\| `([a-z-]+)` \|$", text.partition("## Time")[2], re.MULTILINE)
    assert len(named) > 10
    assert set(named) <= {rule.name for rule in (*RULES, *HARNESS_RULES)}


@pytest.mark.parametrize("seed", range(3))
@pytest.mark.parametrize("name", ["test_vote_outlives_a_crash", "test_leader_that_hears_nobody"])
def test_the_tests_that_are_shown_pass(name, seed, tmp_path):
    page = (ROOT / "docs" / "student" / "own-tests.md").read_text(encoding="utf-8")
    (source,) = re.findall(r"```python\n(.*?)```", page, re.DOTALL)
    file = tmp_path / "my_tests.py"
    file.write_text(source, encoding="utf-8")
    tests = {test.name: test for test in load_tests(file)}
    assert list(tests) == ["test_vote_outlives_a_crash", "test_leader_that_hears_nobody"]
    assert run_test(tests[name], load_peer(ROOT / "raft" / "raft.py"), seed).error is None


def test_every_fault_in_the_page_on_tests_is_there():
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


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.relative_to(ROOT).as_posix())
def test_links_of_a_page_lead_somewhere(page):
    for target, _, anchor in re.findall(r"\]\(([^)#\s]*)(#?)([^)]*)\)", page.read_text(encoding="utf-8")):
        if "://" in target:
            continue
        other = page.parent / target if target else page
        assert other.exists(), target
        if anchor:
            headings = re.findall(r"^#+ (.+)$", other.read_text(encoding="utf-8"), re.MULTILINE)
            slugs = [re.sub(r"[^\w -]", "", heading.lower()).replace(" ", "-") for heading in headings]
            assert anchor in slugs, f"{target}#{anchor}"
