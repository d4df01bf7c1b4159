"""Random changes of a source: which there are, and that other lines stay unchanged."""

import ast
import textwrap
from pathlib import Path

import pytest

from tests.mutants.tool.source_changes import changes_of, meaning

REFERENCE = Path("raft/raft.py").read_text()


def changed(source):
    """(kind, the line as it is now) of each, or all lines where more than one differs."""
    source = textwrap.dedent(source)
    found = []
    for change in changes_of(source):
        pairs = zip(source.splitlines(), change.applied_to(source).splitlines(), strict=True)
        found.append((change.kind, "\n".join(new.strip() for old, new in pairs if old != new)))
    return found


@pytest.mark.parametrize(
    ("source", "kind", "line"),
    [
        ("a < b", "lt-le", "a <= b"),
        ("a < b", "lt-ge", "a >= b"),
        ("a == b", "eq-ne", "a != b"),
        ("a == b", "eq-le", "a <= b"),
        ("a is not None", "is_not-is", "a is None"),
        ("a not in b", "not_in-in", "a in b"),
        ("(a) < (b)", "lt-le", "(a) <= (b)"),
        ("a <= b <= c", "first-out", "b <= c"),
        ("a <= b <= c", "last-out", "a <= b"),
        ("a in (None, b)", "element-1-out", "a in (b,)"),
        ("a in (None, b)", "element-2-out", "a in (None,)"),
        ("a + b", "plus-minus", "a - b"),
        ("a + b", "plus-1", "a + b + 1"),
        ("a - b", "minus-1", "a - b - 1"),
        ("a + 1", "1-2", "a + 2"),
        ("a + 1", "1-0", "a + 0"),
        ("a / 2", "by-times", "a * 2"),
        ("self.next_index", "plus-1", "self.next_index + 1"),
        ("True", "true-false", "False"),
        ("0", "0-minus_1", "-1"),
        ("0.1", "0.1-0.2", "0.2"),
        ("0.0", "0.0-1.0", "1.0"),
        ("a and b", "and-or", "a or b"),
        ("a and (b or c)", "operand-1-out", "(b or c)"),
        ("a or b or c", "operand-1-out", "b or c"),
        ("a or b or c", "operand-2-out", "a or c"),
        ("a or b or c", "operand-3-out", "a or b"),
        ("not a", "not-out", "a"),
        ("a if b else c", "if-negated", "a if not b else c"),
        ("a if b else c", "if-true", "a if True else c"),
        ("a if b else c", "if-false", "a if False else c"),
        ("x[i:]", "plus-1", "x[i + 1:]"),
        ("x[i:]", "minus-1", "x[i - 1:]"),
        ("x[0]", "0-1", "x[1]"),
        ("min(a, b)", "min-max", "max(a, b)"),
        ("max(a, b)", "max-argument-2", "b"),
        ("sorted(a)", "sorted-out", "a"),
        ("f(a, late=b)", "late-argument-out", "f(a)"),
        ("f(late=b, a=c)", "late-argument-out", "f(a=c)"),
        ("[a, *b]", "element-out", "[a]"),
        ("args.prev_log_index", "prev_log_index-prev_log_term", "args.prev_log_term"),
    ],
)
def test_a_value_can_be_changed(source, kind, line):
    assert (kind, f"v = {line}") in changed(f"v = {source}")


@pytest.mark.parametrize(
    ("body", "kind", "left"),
    [
        ("self.a = 2", "assignment-out", "pass"),
        ("self.a += 1", "assignment-out", "pass"),
        ("self.a += 1", "plus-minus", "self.a -= 1"),
        ("f(a)", "call-out", "pass"),
        ("self.g(a)", "argument-out", "self.g()"),
        ("return a", "return-out", "pass"),
        ("return", "return-out", "pass"),
        ("raise ValueError", "raise-out", "pass"),
        ("del a[1]", "del-out", "pass"),
        ("while a: break", "break-out", "while a: pass"),
        ("while a: continue", "continue-out", "while a: pass"),
        ("while a: b()", "while-false", "while False: b()"),
        ("if a: b()", "if-negated", "if not a: b()"),
        ("if a and b: c()", "if-negated", "if not (a and b): c()"),
        ("for b in a: b()", "for-out", "pass"),
        ("if Role.A is a: pass", "a-b", "if Role.B is a: pass"),
        ("return self.next_index", "next_index-match_index", "return self.match_index"),
        ("return a.term", "term-current_term", "return self.current_term"),
    ],
)
def test_a_statement_can_be_changed(body, kind, left):
    source = f"""
    import enum
    class Role(enum.Enum):
        A = "a"
        B = "b"
    class Raft:
        def __init__(self):
            self.a = self.next_index = self.match_index = self.current_term = 0
        def g(self, late=None):
            pass
        def h(self, a, b):
            {body}
    """
    assert (kind, left) in changed(source)


def test_deleting_blocks_keeps_line_numbers():
    source = """
    def f(a):
        if a:
            b()
            c()
        else:
            d(
                1,
            )
            e()
        g()
    """
    assert ("else-out", "pass\n\n\n") in changed(source)
    assert ("if-out", "pass\n\n\n\n\n\n\n") in changed(source)


def test_removed_operand_line_stays_empty():
    source = """
    def f(a, b):
        return (
            a
            and b
        )
    """
    assert ("operand-1-out", "\nb") in changed(source)
    assert ("operand-2-out", "") in changed(source)


@pytest.mark.parametrize(
    "source",
    [
        '"""1 < 2"""',
        "import a",
        "from a import b",
        "a: dict[int, 1 + 2]",
        "def f(a: 1 = None, *, b: x < y = None) -> 3:\n    '''Words.'''",
        'log("a", "%d", 1 + 2)',
        'raise_ = f"{a + 1}"',
        "class A(enum.Enum):\n    B = 'b'",
    ],
)
def test_types_messages_and_locks_are_not_changed(source):
    assert changed(source) == []


def test_code_that_creates_names_is_not_deleted():
    source = """
    class A:
        def f(self):
            self.a = b = g()
            return self.a or b
    """
    assert [kind for kind, _ in changed(source) if kind == "assignment-out"] == []


def test_elif_is_not_a_separate_statement():
    source = """
    def f(a, b):
        if a:
            g()
        elif b:
            h()
    """
    assert [kind for kind, line in changed(source) if line.startswith("pass") and kind != "call-out"] == ["if-out"]


def test_columns_are_counted_in_bytes():
    assert ("lt-le", 'v = "§§" + a[b <= c]  # §') in changed('v = "§§" + a[b < c]  # §')


def test_same_bytecode_is_equivalent():
    assert meaning("if a:\n    pass\n") == meaning("\n\nif a:\n    pass  # nothing\n")
    assert meaning("def f():\n    return\n") == meaning("def f():\n    pass\n")
    assert meaning("a = 1") != meaning("a = 1.0") != meaning("a = True")
    assert meaning("def f():\n    return 1\n") != meaning("def f():\n    return 2\n")


def test_changes_are_valid_and_stay_in_function():
    changes = changes_of(REFERENCE)
    assert len(changes) > 500
    families = {change.family for change in changes}
    assert families == {"comparison", "arithmetic", "constant", "condition", "statement", "call", "neighbour"}
    functions = {
        node.name.strip("_"): node for node in ast.walk(ast.parse(REFERENCE)) if isinstance(node, ast.FunctionDef)
    }
    assert {change.function for change in changes} == {*functions, "module"}
    lines = REFERENCE.splitlines()
    for change in changes:
        now = change.applied_to(REFERENCE).splitlines()
        if change.function == "module":
            ast.parse("\n".join(now))
            continue
        first, last = functions[change.function].lineno - 1, functions[change.function].end_lineno
        assert now[first:last] != lines[first:last]
        assert (now[:first], now[last:]) == (lines[:first], lines[last:])
        ast.parse(textwrap.dedent("\n".join(now[first:last])))
