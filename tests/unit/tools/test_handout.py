"""The handout works by itself and contains no part of the solution."""

import ast
import os
import re
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from raftlab import layout
from raftlab.tools import cli, handout
from unit.students import ROOT

REFERENCE = (ROOT / "raft" / "raft.py").read_text(encoding="utf-8")
SERVICE = {name: (ROOT / "kv" / name).read_text(encoding="utf-8") for name in ("server.py", "client.py")}
SKELETON = (ROOT / "handout" / "raft.py").read_text(encoding="utf-8")
SERVICE_SKELETON = {name: (ROOT / "handout" / f"kv_{name}").read_text(encoding="utf-8") for name in SERVICE}
COMMANDS = ["next", "watch", "stress", "scenario", "fuzz", "replay", "shrink", "timeline", "page", "live", "cluster"]
NOT_FOR_STUDENTS = re.compile(r"\b(mutants?|grad(e|er|ing)|tests/unit|bench|hidden|handout)\b", re.IGNORECASE)


@pytest.fixture(scope="module")
def tree(tmp_path_factory):
    """A written handout; tests that change it take a copy."""
    out = tmp_path_factory.mktemp("handout") / "lab"
    assert handout.write(out) == []
    return out


def run(tree, *command, code):
    """What a command prints with the handout as its working directory, so that its own packages are used."""
    kept_out = ("PYTEST_", "COLUMNS", "MAKE", "MFLAGS", "PYTHONPATH")
    environment = {name: value for name, value in os.environ.items() if not name.startswith(kept_out)}
    environment.pop("CI", None)  # it makes pytest write summaries of any width
    environment["PYTHONDONTWRITEBYTECODE"] = "1"
    done = subprocess.run(command, cwd=tree, env=environment, capture_output=True, text=True, timeout=110)
    text = done.stdout + done.stderr
    assert done.returncode == code, text
    return text


def run_tests(tree, *files, code):
    options = ["-q", "-n0", "--seed=7", "-p", "no:cacheprovider"]
    return run(tree, sys.executable, "-m", "pytest", *options, *files, code=code)


def number_of_tests(tree, *files):
    found = sum(len(re.findall(r"^def test_", (tree / file).read_text(), re.MULTILINE)) for file in files)
    assert found
    return found


# ---- it works on its own -------------------------------------------------------------------------------------------


def test_reference_passes_in_the_handout(tree, tmp_path):
    lab = shutil.copytree(tree, tmp_path / "lab")
    for name in ("raft/raft.py", "raft/messages.py", "kv/server.py", "kv/client.py", "kv/messages.py"):
        shutil.copy(ROOT / name, lab / name)
    files = ("tests/test_2a.py", "tests/test_2a_extra.py", "tests/test_2b.py", "tests/test_3a_extra.py")
    out = run_tests(lab, *files, code=0)
    assert re.search(rf"\n{number_of_tests(lab, *files)} passed in ", out)


def test_handout_imports_its_own_modules(tree):
    modules = sorted(
        ".".join(path.relative_to(tree).with_suffix("").parts).removesuffix(".__init__")
        for folder in layout.FOLDERS
        for path in (tree / folder).rglob("*.py")
        if path.name != "__main__.py"
    )
    assert "raftlab.tools.stress.worker" in modules
    code = f"""
import importlib, sys
for name in {modules!r}:
    importlib.import_module(name)
for name, module in sys.modules.items():
    if name.partition(".")[0] in {layout.FOLDERS!r}:
        print(name, module.__file__)
"""
    imported = dict(line.split() for line in run(tree, sys.executable, "-c", code, code=0).splitlines())
    # Not one is missing and was found in this project instead.
    assert {name: file for name, file in imported.items() if not file.startswith(f"{tree}/")} == {}
    assert set(imported) == set(modules)


def test_skeleton_is_clean(tree):
    ruff = Path(sys.executable).parent / "ruff"
    run(tree, ruff, "check", "--no-cache", ".", code=0)
    run(tree, ruff, "format", "--no-cache", "--check", ".", code=0)


def test_named_packages_exist(tree):
    project = (tree / "pyproject.toml").read_text(encoding="utf-8")
    named = re.search(r"^packages = (\[.*\])$", project, re.MULTILINE)
    assert ast.literal_eval(named[1]) == list(layout.FOLDERS)
    assert [folder for folder in layout.FOLDERS if not (tree / folder / "__init__.py").is_file()] == []


# ---- it leads ------------------------------------------------------------------------------------------------------


def line_of_hole(name):
    (line,) = [n for n, text in enumerate(SKELETON.splitlines(), 1) if re.search(rf'Error\("2[A-D]: {name},', text)]
    return line


def test_part_2a_fails_at_the_first_hole(tree, tmp_path):
    lab = shutil.copytree(tree, tmp_path / "lab")
    files = ("tests/test_2a.py", "tests/test_2a_extra.py")
    out = run_tests(lab, *files, code=1)
    told = "NotImplementedError: 2A: get_state, Figure 2 and §5.1"
    first = re.search(rf"^FAILED (\w+)  seed 7: {re.escape(told)}$", out, re.MULTILINE)[1]
    as_it = re.findall(rf"^FAILED \w+  seed 7: same failure as {first}$", out, re.MULTILINE)
    assert len(as_it) == number_of_tests(lab, *files) - 1
    where = f"raft/raft.py:{line_of_hole('get_state')} in get_state "
    assert out.count(f"\n  {told}\n  In peer 0, get_state():\n      {where}") == 1
    assert re.search(rf"\n{number_of_tests(lab, *files)} failed in ", out)
    # A line while it runs, and one below the first.
    assert len(out.splitlines()) <= 15 + 2 * number_of_tests(lab, *files)


def test_guide_shows_the_first_failure(tree):
    guide = (tree / "docs/student/guide/setup.md").read_text(encoding="utf-8")
    hole = SKELETON.splitlines()[line_of_hole("get_state") - 1].strip()
    assert f"      raft/raft.py:{line_of_hole('get_state')} in get_state              {hole}\n" in guide


def test_part_3a_fails_at_the_first_hole_of_the_service(tree, tmp_path):
    lab = shutil.copytree(tree, tmp_path / "lab")
    for name in ("raft.py", "messages.py"):  # parts 2A to 2D are done
        shutil.copy(ROOT / "raft" / name, lab / "raft" / name)
    files = ("tests/test_3a.py", "tests/test_3b.py")
    out = run_tests(lab, *files, code=1)
    told = "NotImplementedError: 3A: _applier, §8 and §5.3 (state machines)"
    assert f"FAILED test_basic_3a  seed 7: {told}\n" in out
    as_it = re.findall(r"^FAILED \w+  seed 7: same failure as test_basic_3a$", out, re.MULTILINE)
    assert len(as_it) == number_of_tests(lab, *files) - 1
    line = next(
        n for n, text in enumerate(SERVICE_SKELETON["server.py"].splitlines(), 1) if 'Error("3A: _applier,' in text
    )
    assert f"\n      kv/server.py:{line} in _applier " in out


def holes(skeleton=SKELETON):
    """(function, text) of every NotImplementedError in the skeleton."""
    for function in ast.walk(ast.parse(skeleton)):
        if isinstance(function, ast.FunctionDef):
            for node in ast.walk(function):
                if isinstance(node, ast.Raise):
                    assert isinstance(node.exc, ast.Call) and ast.unparse(node.exc.func) == "NotImplementedError"
                    yield function.name, ast.literal_eval(node.exc.args[0])


def test_every_hole_names_part_and_section():
    assert [name for name, _ in holes()] == [
        "start",
        "get_state",
        "snapshot",
        "_persist",
        "_read_persist",
        "_ticker",
        "request_vote",
        "append_entries",
        "install_snapshot",
    ]
    unclear = [
        text for name, text in holes() if not re.match(rf"2[A-D]: {name}, .*(Figure (2|12|13)\b|§[57](\.\d)?)", text)
    ]
    assert unclear == []


# ---- nothing of the solution ---------------------------------------------------------------------------------------


def test_every_hole_of_the_service_names_part_and_section():
    found = {name: list(holes(source)) for name, source in SERVICE_SKELETON.items()}
    assert [name for name, _ in found["server.py"]] == ["get", "put_append", "_applier", "_take_snapshot", "_install"]
    assert [name for name, _ in found["client.py"]] == ["get", "put", "append"]
    texts = [(name, text) for each in found.values() for name, text in each]
    assert [text for name, text in texts if not re.match(rf"3[AB]: {name}, .*§[578]", text)] == []


def surface(source, class_name="Raft"):
    """The public methods of the class, and its constructor: name, parameters and result, as they are annotated."""
    (raft,) = [n for n in ast.parse(source).body if isinstance(n, ast.ClassDef) and n.name == class_name]
    return {
        f"{method.name}({ast.unparse(method.args)}) -> {ast.unparse(method.returns)}"
        for method in raft.body
        if isinstance(method, ast.FunctionDef) and (method.name == "__init__" or not method.name.startswith("_"))
    }


def test_skeleton_and_reference_have_the_same_interface():
    assert surface(SKELETON) == surface(REFERENCE)
    assert len(surface(SKELETON)) == 8


def test_service_skeleton_has_the_same_interface():
    for name, class_name, count in (("server.py", "KVServer", 4), ("client.py", "Clerk", 4)):
        assert surface(SERVICE_SKELETON[name], class_name) == surface(SERVICE[name], class_name)
        assert len(surface(SERVICE[name], class_name)) == count


def fields(file):
    classes = [node for node in ast.parse(file.read_text(encoding="utf-8")).body if isinstance(node, ast.ClassDef)]
    return {c.name: [ast.unparse(field) for field in c.body if isinstance(field, ast.AnnAssign)] for c in classes}


def test_messages_are_those_of_the_reference(tree):
    theirs, ours = fields(tree / "raft" / "messages.py"), fields(ROOT / "raft" / "messages.py")
    assert theirs["AppendEntriesReply"] == ["term: int", "success: bool"]
    hints = [field for field in ours["AppendEntriesReply"] if field not in theirs["AppendEntriesReply"]]
    assert hints == ["conflict_term: int = 0", "conflict_index: int = 0"]
    assert theirs | {"AppendEntriesReply": []} == ours | {"AppendEntriesReply": []}


TRIVIAL = {
    ")",
    "break",
    "continue",
    "else:",
    "return",
    "return False",
    "return None",
    "return True",
    "return reply",
    "try:",
}
GIVEN = {
    # The constructor stores what it is given.
    "self.apply_ch = apply_ch",
    "self.me = me",
    "self.peers = peers",
    "self.persister = persister",
    "self.max_raft_state = max_raft_state",
    "self.raft = raft",
    "self.servers = servers",
    "threading.Thread(target=self._applier, daemon=True).start()",
    # One lock, and a flag for kill(): where MIT's skeleton begins, too.
    "self.dead = threading.Event()",
    "self.dead.set()",
    "self.mu = threading.Lock()",
    "with self.mu:",
}
# The tester reads messages and disks as well, and says some things in the same words.
SAID_BY_THE_TESTER = {
    *("except queue.Empty:", "if not reply.success:", "if saved:", "last = args.prev_log_index", "pause_s = 0.0"),
    *("if snapshot:", "while True:", 'value = ""', "self.last_applied = 0", "self.last_applied = index"),
}


def squeezed_lines(text):
    return [" ".join(line.split()) for line in text.splitlines()]


def solution_lines(source):
    """Every line of the reference's function bodies, without docstrings and comments."""
    lines = squeezed_lines(re.sub(r"  # .*", "", source))
    found = set()
    for function in ast.walk(ast.parse(source)):
        if isinstance(function, ast.FunctionDef):
            for statement in function.body[ast.get_docstring(function) is not None :]:
                found |= set(lines[statement.lineno - 1 : statement.end_lineno])
    return {line for line in found if line and not line.startswith("#")}


def test_handout_has_no_line_of_the_solution(tree):
    lines = set().union(*(solution_lines(source) for source in (REFERENCE, *SERVICE.values())))
    lines = lines - TRIVIAL - GIVEN - SAID_BY_THE_TESTER
    assert len(lines) > 200
    assert "self._commit_through(min(args.leader_commit, prev + len(args.entries)))" in lines
    assert "self.answered[op.client_id] = Answered(op.seq, value)" in lines
    texts = {path: path.read_bytes().decode(errors="replace") for path in tree.rglob("*") if path.is_file()}
    everything = "\n".join(line for text in texts.values() for line in squeezed_lines(text))
    assert sorted(line for line in lines if line in everything) == []


# ---- nothing that is not for students ------------------------------------------------------------------------------


def test_every_omitted_file_is_listed(tree):
    """A new module or page is in neither list: say here, or in raftlab/layout.py, whether students get it."""
    ours = {path.relative_to(ROOT).as_posix() for folder in layout.FOLDERS for path in (ROOT / folder).rglob("*.py")}
    ours |= {path.relative_to(ROOT).as_posix() for path in (ROOT / "docs").rglob("*.*")}
    theirs = {path.relative_to(tree).as_posix() for path in tree.rglob("*")}
    grader = r"raftlab/tools/grade/.*\.py|docs/(instructor|maintainer)/.*"
    left_out = {name for name in ours - theirs if not re.match(grader, name)}
    assert left_out == {
        "docs/commands.md",
        "raftlab/tools/handout.py",
        "docs/architecture.svg",
    }


def test_unlisted_file_is_omitted(monkeypatch, tmp_path):
    before = set(handout.files())
    skipped = shutil.ignore_patterns(".*venv*", ".git", "build", "__pycache__", ".*_cache", "*.egg-info")
    project = shutil.copytree(ROOT, tmp_path / "project", ignore=skipped)
    for name in (
        "raftlab/tools/grade/hidden.py",
        "raftlab/tools/solution.py",
        "docs/instructor/grading.md",
        "raft/raft_old.py",
        "raft/__pycache__/raft.pyc",
        "tests/test_hidden.py",
        "tests/test_2e.py",
        "tests/unit/test_2a.py",
        "handout/answers.md",
        "answers.md",
    ):
        (project / name).parent.mkdir(exist_ok=True)
        (project / name).write_text("secret")
    monkeypatch.setattr(handout, "PROJECT", project)
    assert set(handout.files()) == before


def test_top_of_the_tree(tree):
    assert {path.name for path in tree.iterdir()} == {
        *layout.FOLDERS,
        *(
            "docs",
            "tests",
            ".devcontainer",
            ".gitignore",
            ".vscode",
            "LICENSE",
            "Makefile",
            "README.md",
            "pyproject.toml",
            "requirements.lock",
        ),
    }
    parts = [f"test_{part}{more}.py" for part in ("2a", "2b", "2c", "2d", "3a", "3b") for more in ("", "_extra")]
    assert sorted(path.name for path in (tree / "tests").iterdir()) == sorted([*parts, "scenarios"])


def test_lab_lists_only_existing_commands(tree):
    out = run(tree, sys.executable, "-m", "raftlab", "--help", code=0)
    assert re.findall(r"^    (\w+)  ", out, re.MULTILINE) == COMMANDS
    assert NOT_FOR_STUDENTS.search(out) is None
    for command in COMMANDS:
        assert NOT_FOR_STUDENTS.search(run(tree, sys.executable, "-m", "raftlab", command, "--help", code=0)) is None
    assert "invalid choice: 'mutants'" in run(tree, sys.executable, "-m", "raftlab", "mutants", code=2)


def test_makefile_has_only_working_targets(tree):
    targets = re.findall(r"^([a-z0-9-]+)  +", run(tree, "make", "help", code=0), re.MULTILINE)
    parts = ["test-2a", "test-2b", "test-2c", "test-2d", "test-3a", "test-3b"]
    assert targets == [
        "help",
        "test",
        *parts,
        "next",
        "watch",
        "race",
        "stress",
        "scenario",
        "fuzz",
        "replay",
        "shrink",
        "timeline",
        "page",
        "live",
        "cluster",
        "lint",
        "clean",
    ]
    assert NOT_FOR_STUDENTS.findall((tree / "Makefile").read_text(encoding="utf-8")) == []


def test_docs_of_the_handout_have_no_dead_links(tree):
    pages = sorted(tree.rglob("*.md"))
    assert len(pages) > 20
    for page in pages:
        text = page.read_text(encoding="utf-8")
        assert NOT_FOR_STUDENTS.findall(text) == [], page
        links = [link for link in re.findall(r"\]\(([^)#]+)[^)]*\)", text) if "://" not in link]
        assert [link for link in links if not (page.parent / link).exists()] == [], page


# ---- where it is written -------------------------------------------------------------------------------------------


def lab_handout(*args, capsys):
    code = cli.main(["handout", *map(str, args)])
    printed = capsys.readouterr()
    return code, printed.out, printed.err


def test_writes_into_a_new_folder_and_an_empty_one(tmp_path, capsys):
    (tmp_path / "empty").mkdir()
    for out in (tmp_path / "empty", tmp_path / "new" / "deep"):
        number = len(handout.files())
        said = f"wrote {number} files to {out}; start with its README.md\n"
        assert lab_handout(out, capsys=capsys) == (0, said, "")
        assert sum(path.is_file() for path in out.rglob("*")) == number


def test_nonempty_folder_is_refused(tmp_path, capsys):
    (tmp_path / "mine").write_text("")
    told = f"lab handout: OUT must be new or empty; {tmp_path} is not empty (use --force to write into it)\n"
    assert lab_handout(tmp_path, capsys=capsys) == (2, "", told)
    assert [path.name for path in tmp_path.iterdir()] == ["mine"]


def test_out_that_is_a_file_is_refused(tmp_path, capsys):
    file = tmp_path / "file"
    file.write_text("")
    told = f"lab handout: OUT must be a new or empty folder; {file} is a file\n"
    assert lab_handout(file, capsys=capsys) == (2, "", told)


def test_project_itself_is_refused(monkeypatch, tmp_path, capsys):
    monkeypatch.setattr(handout, "PROJECT", tmp_path)  # not the real one, in case it is not refused
    told = f"lab handout: OUT must not be the project itself, got {tmp_path}\n"
    assert lab_handout(tmp_path, "--force", capsys=capsys) == (2, "", told)


def test_force_keeps_the_students_files(tmp_path, capsys):
    handout.write(tmp_path)
    (tmp_path / "raft" / "raft.py").write_text("class Raft: ...")
    (tmp_path / "raft" / "helpers.py").write_text("mine")
    (tmp_path / "tests" / "test_2a.py").write_text("an older one")
    code, said, _ = lab_handout(tmp_path, "--force", capsys=capsys)
    assert code == 0
    assert said.splitlines() == [
        f"kept {tmp_path}/raft/raft.py: it differs from the file in the handout",
        f"wrote {len(handout.files()) - 1} files to {tmp_path}; start with its README.md",
    ]
    assert (tmp_path / "raft" / "raft.py").read_text() == "class Raft: ..."
    assert (tmp_path / "raft" / "helpers.py").read_text() == "mine"
    assert (tmp_path / "tests" / "test_2a.py").read_bytes() == (ROOT / "tests" / "test_2a.py").read_bytes()


def test_out_is_required(capsys):
    with pytest.raises(SystemExit) as ended:
        cli.main(["handout"])
    assert ended.value.code == 2
    assert "usage: lab handout" in capsys.readouterr().err
    # -o: .venv is as it is, and no business of this test.
    assert run(ROOT, "make", "-o", ".venv/.ready", "handout", "OUT=", code=2).startswith(
        "usage: make handout OUT=dir\n"
    )


def test_stale_list_is_reported(monkeypatch, capsys, tmp_path):
    monkeypatch.setitem(layout.FOR_STUDENTS, "docs/student", ("gone.md",))
    told = "lab handout: docs/student/gone.md names no file any more; correct raftlab/layout.py\n"
    assert lab_handout(tmp_path / "new", capsys=capsys) == (2, "", told)
    assert not (tmp_path / "new").exists()
    monkeypatch.setattr(handout, "MAKEFILE_ENDS", "# no such line")
    monkeypatch.setitem(layout.FOR_STUDENTS, "docs/student", ("names.md",))
    told = "lab handout: Makefile must contain the line '# no such line', where the students' copy ends\n"
    assert lab_handout(tmp_path / "new", capsys=capsys) == (2, "", told)


def test_missing_source_tree_is_reported(monkeypatch, capsys, tmp_path):
    monkeypatch.setattr(handout, "PROJECT", tmp_path)
    told = f"lab handout: {tmp_path} has no folder handout; run lab handout from a clone of the project\n"
    assert lab_handout(tmp_path / "new", capsys=capsys) == (2, "", told)
