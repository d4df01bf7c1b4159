"""All small changes of a Python source that are likely to be bugs: an operator, a constant, a deleted statement.

Positions come from the syntax tree, and the source text is changed there, so the rest stays as it is, with comments and
line numbers.

Promise: a source gives one list, in the order of the file. Every change compiles. None changes a docstring, a type, an
import, a call of log() or the text of an error. Not promised: that a change is a bug. Some are equivalent; `meaning()`
detects the simplest. Locks are not changed, because locking bugs need other tests.

Start at `changes_of()`. Which changes there are is in `_Finder`, a method for each kind of node.
"""

from __future__ import annotations

import ast
import io
import tokenize
from bisect import bisect_left
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from itertools import pairwise
from types import CodeType
from typing import Any

# For each operator its replacements: the other bound, then the opposite.
_COMPARISONS: dict[type[ast.cmpop], tuple[str, ...]] = {
    ast.Lt: ("<=", ">="),
    ast.LtE: ("<", ">"),
    ast.Gt: (">=", "<="),
    ast.GtE: (">", "<"),
    ast.Eq: ("!=", ">=", "<="),
    ast.NotEq: ("==", ">", "<"),
    ast.Is: ("is not",),
    ast.IsNot: ("is",),
    ast.In: ("not in",),
    ast.NotIn: ("in",),
}
_WORDS = {"<": "lt", "<=": "le", ">": "gt", ">=": "ge", "==": "eq", "!=": "ne", "+": "plus", "-": "minus"}
_ARITHMETIC: dict[type[ast.operator], str] = {ast.Add: "-", ast.Sub: "+", ast.Div: "*"}
# Fields that can replace each other. Fields of `self` are those that the file assigns.
_NEIGHBOURS = (
    ("commit_index", "last_applied", "last_included_index"),
    ("next_index", "match_index"),
    ("prev_log_index", "prev_log_term"),
    ("last_log_index", "last_log_term"),
    ("last_included_index", "last_included_term"),
    ("conflict_index", "conflict_term"),
)
_OF_ITS_ARGUMENT = ("sorted", "reversed", "abs")  # f(x) and x have the same type
_COUNTED = ("index", "term")  # names that end like this are numbers, unless they are lists


@dataclass(frozen=True)
class Span:
    """Replace the bytes from `start` to `end` by `new`."""

    start: int
    end: int
    new: str


@dataclass(frozen=True)
class Change:
    function: str  # that it is in, or "module"
    family: str  # comparison, arithmetic, constant, condition, statement, call or neighbour
    kind: str  # "lt-le"
    line: int
    spans: tuple[Span, ...]

    def applied_to(self, source: str) -> str:
        data = source.encode()
        for span in sorted(self.spans, key=lambda span: -span.start):
            # Open brackets keep their lines; a deleted statement leaves empty lines.
            lines = data.count(b"\n", span.start, span.end) - span.new.count("\n")
            data = data[: span.start] + (span.new + "\n" * lines).encode() + data[span.end :]
        return data.decode()


def changes_of(source: str) -> list[Change]:
    """All changes, by position."""
    finder = _Finder(source)
    finder.visit(finder.tree)
    return sorted(finder.found, key=lambda change: change.spans[0].start)


def meaning(source: str) -> Any:
    """Sources with equal meanings compile to the same program, apart from line numbers."""
    return _meaning_of(compile(source, "raft.py", "exec"))


def _meaning_of(code: CodeType) -> Any:
    constants = tuple(
        _meaning_of(each) if isinstance(each, CodeType) else (type(each).__name__, repr(each))
        for each in code.co_consts
    )
    names = code.co_names, code.co_varnames, code.co_freevars, code.co_cellvars
    return code.co_name, code.co_flags, code.co_code, code.co_exceptiontable, constants, names


class _Text:
    """The source in bytes, and its tokens."""

    def __init__(self, source: str) -> None:
        self.data = source.encode()
        self._starts = [0]
        for line in self.data.splitlines(keepends=True):
            self._starts.append(self._starts[-1] + len(line))
        lines = source.splitlines(keepends=True)
        passed_over = (tokenize.COMMENT, tokenize.NL, tokenize.NEWLINE, tokenize.INDENT, tokenize.DEDENT)
        # (start, end, text) of tokens that are not blank or comments, by position.
        self.tokens: list[tuple[int, int, str]] = [
            (self._offset(lines, *token.start), self._offset(lines, *token.end), token.string)
            for token in tokenize.generate_tokens(io.StringIO(source).readline)
            if token.type not in (*passed_over, tokenize.ENDMARKER)
        ]
        self.tokens.append((len(self.data), len(self.data), ""))

    def _offset(self, lines: Sequence[str], line: int, column: int) -> int:
        return self._starts[line - 1] + len(lines[line - 1][:column].encode())

    def start(self, node: ast.expr | ast.stmt | ast.keyword) -> int:
        return self._starts[node.lineno - 1] + node.col_offset

    def end(self, node: ast.expr | ast.stmt | ast.keyword) -> int:
        assert node.end_lineno is not None and node.end_col_offset is not None
        return self._starts[node.end_lineno - 1] + node.end_col_offset

    def of(self, node: ast.expr | ast.stmt) -> str:
        return self.data[self.start(node) : self.end(node)].decode()

    def operator(self, left: ast.expr, right: ast.expr) -> tuple[int, int]:
        """The position of the operator between two operands, which may be in brackets."""
        from_, until = (bisect_left(self.tokens, (at,)) for at in (self.end(left), self.start(right)))
        between = [token for token in self.tokens[from_:until] if token[2] not in ("(", ")")]
        return between[0][0], between[-1][1]

    def before(self, at: int) -> tuple[int, int, str]:
        """The last token that starts before this position."""
        return self.tokens[bisect_left(self.tokens, (at,)) - 1]

    def after(self, at: int) -> tuple[int, int, str]:
        return self.tokens[bisect_left(self.tokens, (at,))]

    def rest_of_line(self, at: int) -> int:
        """The end of the line, if only a comment follows."""
        end = self.data.find(b"\n", at)
        return end if end >= 0 and self.after(at)[0] > end else at


class _Finder(ast.NodeVisitor):
    """Collects the possible changes of each node of a file."""

    def __init__(self, source: str) -> None:
        self.tree = ast.parse(source)
        self.found: list[Change] = []
        self._text = _Text(source)
        self._function = "module"
        self._locals: dict[str, int] = {}  # of the current function: how often each is bound
        self._elifs: set[ast.If] = set()
        self._methods = {node.name: node for node in ast.walk(self.tree) if isinstance(node, ast.FunctionDef)}
        self._enums = dict(_enums(self.tree))
        makers: dict[str, ast.expr] = {}
        stored = [node for node in ast.walk(self.tree) if isinstance(node, ast.Attribute) and _is_stored(node)]
        for node in sorted(stored, key=self._text.start):
            makers.setdefault(node.attr, node)
        self._fields = set(makers)
        self._makers = set(makers.values())  # the assignments that create a field
        subscripts = [node.value for node in ast.walk(self.tree) if isinstance(node, ast.Subscript)]
        self._lists = {name for node in subscripts if (name := _name(node)) is not None}

    def _note(self, family: str, kind: str, *spans: tuple[int, int, str]) -> None:
        line = self._text.data.count(b"\n", 0, spans[0][0]) + 1
        self.found.append(
            Change(self._function, family, kind, line, tuple(Span(start, end, new) for start, end, new in spans))
        )

    def _replaced(self, family: str, kind: str, node: ast.expr | ast.stmt, new: str) -> None:
        self._note(family, kind, (self._text.start(node), self._text.end(node), new))

    # ---- which nodes are visited --------------------------------------------------------------------------------

    def visit_FunctionDef(self, node: ast.FunctionDef) -> None:  # ast's names
        outer = self._function, self._locals
        self._function, self._locals = node.name.strip("_"), _bindings(node)
        for default in (*node.args.defaults, *(each for each in node.args.kw_defaults if each is not None)):
            self.visit(default)
        self._all(node.body)
        self._function, self._locals = outer

    def visit_AnnAssign(self, node: ast.AnnAssign) -> None:
        self._assignment(node, [node.target])
        if node.value is not None:
            self._value(node.value)
            self.visit(node.value)

    def visit_JoinedStr(self, node: ast.JoinedStr) -> None:
        """Text: not changed."""

    def visit_Raise(self, node: ast.Raise) -> None:
        self._statement(node, "raise-out")

    def visit_Module(self, node: ast.Module) -> None:
        self._all(node.body)

    def visit_ClassDef(self, node: ast.ClassDef) -> None:
        self._all(node.body)

    def _all(self, nodes: Iterable[ast.AST]) -> None:
        for node in nodes:
            self.visit(node)

    # ---- statements ---------------------------------------------------------------------------------------------

    def _statement(self, node: ast.stmt, kind: str) -> None:
        self._statements([node], kind)

    def _statements(self, nodes: Sequence[ast.stmt], kind: str) -> None:
        start, end = self._text.start(nodes[0]), self._text.end(nodes[-1])
        if b"\n" in self._text.data[start:end]:
            end = self._text.rest_of_line(end)  # with the comment of the deleted statement
        self._note("statement", kind, (start, end, "pass"))

    def _assignment(self, node: ast.stmt, targets: Sequence[ast.expr]) -> None:
        """Delete an assignment, unless it creates the name: then nothing would work."""
        if self._function == "module":
            return
        each = [part for target in targets for part in ast.walk(target)]
        made = [part for part in each if isinstance(part, ast.Name) and _is_stored(part)]
        if not any(self._locals.get(name.id, 0) < 2 for name in made) and not self._makers.intersection(each):
            self._statement(node, "assignment-out")

    def visit_Assign(self, node: ast.Assign) -> None:
        self._assignment(node, node.targets)
        self._value(node.value)
        self.generic_visit(node)

    def visit_AugAssign(self, node: ast.AugAssign) -> None:
        self._assignment(node, [])
        if type(node.op) in (ast.Add, ast.Sub):
            new = _ARITHMETIC[type(node.op)]
            old = "+" if new == "-" else "-"
            start, end = self._text.operator(node.target, node.value)
            self._note("arithmetic", f"{_WORDS[old]}-{_WORDS[new]}", (start, end, f"{new}="))
        self.generic_visit(node)

    def visit_Delete(self, node: ast.Delete) -> None:
        self._statement(node, "del-out")
        self.generic_visit(node)

    def visit_Expr(self, node: ast.Expr) -> None:
        if not isinstance(node.value, ast.Call):
            return  # a docstring
        if _name(node.value.func) != "log":
            self._replaced("call", "call-out", node, "pass")
            self.generic_visit(node)

    def visit_Return(self, node: ast.Return) -> None:
        self._statement(node, "return-out")
        if node.value is not None:
            self._value(node.value)
        self.generic_visit(node)

    def visit_Break(self, node: ast.Break) -> None:
        self._statement(node, "break-out")

    def visit_Continue(self, node: ast.Continue) -> None:
        self._statement(node, "continue-out")

    def visit_For(self, node: ast.For) -> None:
        self._statement(node, "for-out")
        self.generic_visit(node)

    def visit_If(self, node: ast.If) -> None:
        self._condition(node.test, "if")
        if node.orelse and isinstance(node.orelse[0], ast.If) and self._text.of(node.orelse[0]).startswith("elif"):
            self._elifs.add(node.orelse[0])
        elif node.orelse:
            self._statements(node.orelse, "else-out")
        # Without an else this is the same as `if False`.
        if node.orelse and node not in self._elifs:
            self._statement(node, "if-out")
        self.generic_visit(node)

    def visit_While(self, node: ast.While) -> None:
        self._condition(node.test, "while")
        self.generic_visit(node)

    # ---- conditions ---------------------------------------------------------------------------------------------

    def visit_IfExp(self, node: ast.IfExp) -> None:
        self._condition(node.test, "if")
        self.generic_visit(node)

    def _condition(self, test: ast.expr, word: str) -> None:
        # A single comparison gets another operator; a `not` is removed.
        plain = isinstance(test, ast.Compare) and len(test.ops) == 1
        if not plain and not (isinstance(test, ast.UnaryOp) and isinstance(test.op, ast.Not)):
            text = self._text.of(test)
            simple = isinstance(test, ast.Name | ast.Attribute | ast.Call)
            self._replaced("condition", f"{word}-negated", test, f"not {text}" if simple else f"not ({text})")
        for value in ("True", "False"):
            if self._text.of(test) != value:
                self._replaced("condition", f"{word}-{value.lower()}", test, value)

    def visit_BoolOp(self, node: ast.BoolOp) -> None:
        places = [self._text.operator(*pair) for pair in pairwise(node.values)]
        old, new = ("and", "or") if isinstance(node.op, ast.And) else ("or", "and")
        self._note("condition", f"{old}-{new}", *((*place, new) for place in places))
        self._without_each("condition", node, places)
        self.generic_visit(node)

    def _without_each(self, family: str, node: ast.expr, operators: Sequence[tuple[int, int]]) -> None:
        """`a or b or c` without one of its operands, and the operator beside it."""
        start, end = self._text.start(node), self._text.end(node)
        self._note(family, "operand-1-out", (start, self._text.after(operators[0][1])[0], ""))
        for number, (place, _) in enumerate(operators, start=2):
            before = self._text.before(place)[1]
            until = self._text.before(operators[number - 1][0])[1] if number <= len(operators) else end
            self._note(family, f"operand-{number}-out", (before, until, ""))

    def visit_UnaryOp(self, node: ast.UnaryOp) -> None:
        if isinstance(node.op, ast.Not):
            start = self._text.start(node)
            self._note("condition", "not-out", (start, self._text.after(start + len("not"))[0], ""))
        self.generic_visit(node)

    def visit_Compare(self, node: ast.Compare) -> None:
        operands = [node.left, *node.comparators]
        places = [self._text.operator(*pair) for pair in pairwise(operands)]
        for op, (start, end) in zip(node.ops, places, strict=True):
            old = " ".join(self._text.data[start:end].decode().split())
            for new in _COMPARISONS[type(op)]:
                self._note("comparison", f"{_word(old)}-{_word(new)}", (start, end, new))
        if len(node.ops) > 1:  # a < b < c
            self._note("comparison", "first-out", (self._text.start(node), self._text.after(places[0][1])[0], ""))
            last = self._text.before(places[-1][0])[1]
            self._note("comparison", "last-out", (last, self._text.end(node), ""))
        for op, choice in zip(node.ops, node.comparators, strict=True):
            if isinstance(op, ast.In | ast.NotIn) and isinstance(choice, ast.Tuple) and len(choice.elts) == 2:
                for number, element in enumerate(reversed(choice.elts), start=1):
                    self._replaced("condition", f"element-{number}-out", choice, f"({self._text.of(element)},)")
        self.generic_visit(node)

    # ---- numbers and values -------------------------------------------------------------------------------------

    def _value(self, node: ast.expr) -> None:
        """A value that is assigned, returned or passed: off by one."""
        name = _name(node)
        if name is not None and name.endswith(_COUNTED) and name not in self._lists:
            self._off_by_one(node)

    def _off_by_one(self, node: ast.expr) -> None:
        at = self._text.end(node)
        self._note("arithmetic", "plus-1", (at, at, " + 1"))
        self._note("arithmetic", "minus-1", (at, at, " - 1"))

    def visit_BinOp(self, node: ast.BinOp) -> None:
        new = _ARITHMETIC.get(type(node.op))
        if new is not None:
            start, end = self._text.operator(node.left, node.right)
            old = self._text.data[start:end].decode()
            self._note("arithmetic", f"{_WORDS.get(old, 'by')}-{_WORDS.get(new, 'times')}", (start, end, new))
        # If it contains a number, change only that.
        if isinstance(node.op, ast.Add | ast.Sub) and not _has_number(node):
            self._off_by_one(node)
        # Change a + b - c only as a whole.
        for side in (node.left, node.right):
            if isinstance(side, ast.BinOp):
                self._inner(side)
            else:
                self.visit(side)

    def _inner(self, node: ast.BinOp) -> None:
        before = len(self.found)
        self.visit_BinOp(node)
        inner = self.found[before:]
        self.found[before:] = [each for each in inner if each.kind not in ("plus-1", "minus-1")]

    def visit_Constant(self, node: ast.Constant) -> None:
        value = node.value
        if isinstance(value, bool):
            news: tuple[float, ...] = (not value,)
        elif isinstance(value, int):
            news = (value + 1, value - 1)
        elif isinstance(value, float):
            news = (value * 2, value / 2) if value else (1.0,)
        else:
            return
        for new in news:
            self._replaced("constant", f"{value}-{new}".lower().replace("--", "-minus_"), node, repr(new))

    def visit_Subscript(self, node: ast.Subscript) -> None:
        if isinstance(node.slice, ast.Slice):
            for bound in (node.slice.lower, node.slice.upper):
                if isinstance(bound, ast.Name | ast.Attribute | ast.Call):
                    self._off_by_one(bound)
        self.generic_visit(node)

    def visit_List(self, node: ast.List) -> None:
        rest = [element for element in node.elts if not isinstance(element, ast.Starred)]
        if rest and len(rest) < len(node.elts):
            kept = ", ".join(self._text.of(element) for element in rest)
            self._replaced("statement", "element-out", node, f"[{kept}]")
        self.generic_visit(node)

    # ---- names --------------------------------------------------------------------------------------------------

    def visit_Attribute(self, node: ast.Attribute) -> None:
        owner = _name(node.value)
        if isinstance(node.ctx, ast.Load) and isinstance(node.value, ast.Name) and owner is not None:
            start, end = self._text.end(node) - len(node.attr), self._text.end(node)
            for other in self._neighbours(owner, node.attr):
                self._note("neighbour", f"{node.attr}-{other}".lower(), (start, end, other))
            if node.attr == "term" and "current_term" in self._fields and owner != "self":
                self._replaced("neighbour", "term-current_term", node, "self.current_term")
        self.generic_visit(node)

    def _neighbours(self, owner: str, name: str) -> Iterator[str]:
        for group in (*_NEIGHBOURS, *((self._enums[owner],) if owner in self._enums else ())):
            if name in group:
                yield from (
                    other for other in group if other != name and (owner in self._enums or self._has(owner, other))
                )

    def _has(self, owner: str, name: str) -> bool:
        """Fields of `self` are those that the file assigns; all others belong to messages."""
        return (name in self._fields) is (owner == "self")

    # ---- calls --------------------------------------------------------------------------------------------------

    def visit_Call(self, node: ast.Call) -> None:
        name = _name(node.func)
        plain = not node.keywords and not any(isinstance(arg, ast.Starred) for arg in node.args)
        if name in ("min", "max") and isinstance(node.func, ast.Name):
            other = "max" if name == "min" else "min"
            self._replaced("call", f"{name}-{other}", node.func, other)
            if plain and len(node.args) > 1:
                for number, arg in enumerate(node.args, start=1):
                    self._replaced("call", f"{name}-argument-{number}", node, self._text.of(arg))
        elif name in _OF_ITS_ARGUMENT and plain and len(node.args) == 1:
            self._replaced("call", f"{name}-out", node, self._text.of(node.args[0]))
        for arg in node.args:
            self._value(arg)
        for argument in self._left_to_choice(node):
            self._argument_out(argument)
        self.generic_visit(node)

    def _left_to_choice(self, node: ast.Call) -> Iterator[ast.expr | ast.keyword]:
        """Optional arguments of the call."""
        method = self._methods.get(_name(node.func) or "") if isinstance(node.func, ast.Attribute) else None
        if method is None:
            yield from node.keywords
            return
        if method.args.vararg is not None:
            return
        # Without self.
        positional = len(method.args.args) - 1
        if node.args and len(node.args) > positional - len(method.args.defaults):
            yield node.args[-1]
        needed = {
            arg.arg
            for arg, default in zip(method.args.kwonlyargs, method.args.kw_defaults, strict=True)
            if default is None
        }
        yield from (keyword for keyword in node.keywords if keyword.arg not in needed)

    def _argument_out(self, argument: ast.expr | ast.keyword) -> None:
        start, end = self._text.start(argument), self._text.end(argument)
        after, before = self._text.after(end), self._text.before(start)
        if after[2] == ",":
            following = self._text.after(after[1])[0]
            end = after[1] if b"\n" in self._text.data[after[1] : following] else following
        elif before[2] == ",":
            start = before[0]
        name = f"{argument.arg}-" if isinstance(argument, ast.keyword) else ""
        self._note("call", f"{name}argument-out", (start, end, ""))


def _name(node: ast.expr) -> str | None:
    """The last part of a dotted name."""
    return node.id if isinstance(node, ast.Name) else node.attr if isinstance(node, ast.Attribute) else None


def _is_stored(node: ast.Name | ast.Attribute) -> bool:
    return isinstance(node.ctx, ast.Store)


def _word(operator: str) -> str:
    return _WORDS.get(operator, operator.replace(" ", "_"))


def _has_number(node: ast.expr) -> bool:
    return any(isinstance(part, ast.Constant) for part in _terms(node))


def _terms(node: ast.expr) -> Iterator[ast.expr]:
    if isinstance(node, ast.BinOp):
        yield from _terms(node.left)
        yield from _terms(node.right)
    else:
        yield node


def _bindings(function: ast.FunctionDef) -> dict[str, int]:
    arguments = function.args
    names = [arg.arg for arg in (*arguments.posonlyargs, *arguments.args, *arguments.kwonlyargs)]
    names += [
        node.id for node in ast.walk(function) if isinstance(node, ast.Name) and not isinstance(node.ctx, ast.Load)
    ]
    return {name: names.count(name) for name in names}


def _enums(tree: ast.Module) -> Iterator[tuple[str, tuple[str, ...]]]:
    """The members of every Enum class."""
    for node in ast.walk(tree):
        if isinstance(node, ast.ClassDef) and any((_name(base) or "").endswith("Enum") for base in node.bases):
            names = [
                target.id
                for each in node.body
                if isinstance(each, ast.Assign)
                for target in each.targets
                if isinstance(target, ast.Name)
            ]
            yield node.name, tuple(names)
