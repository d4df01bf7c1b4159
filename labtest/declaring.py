"""Does a module only declare? Then nothing in it can change, and one execution of it serves every incarnation.

messages.py as it comes is such a module: imports, constants, dataclasses, enums, functions. It is read off the source,
and in doubt the answer is no: then the module is executed anew like raft.py, which is always right and only slower.

A class can be given attributes from outside too. Where that can be read off the source (`LogEntry.seen = {}`), its
module does more than declare; where it cannot, `Watch` takes back what was done. Start at `outline()`.
"""

from __future__ import annotations

import ast
from collections.abc import Iterable, Iterator
from functools import lru_cache
from types import ModuleType
from typing import Any, NamedTuple

# What may be called while the module is executed: these make nothing that could be changed later.
_CALLS = frozenset({"NewType", "TypeVar", "auto", "bytes", "field", "float", "frozenset", "int", "range", "str"})
_DECORATORS = frozenset(
    {
        "abstractmethod",
        "cached_property",  # kept in the object
        "classmethod",
        "dataclass",
        "final",
        "override",
        "property",
        "register",
        "setter",
        "staticmethod",
        "total_ordering",
        "unique",
    }
)
ANYTHING = "*"


def declares_only(tree: ast.Module) -> bool:
    names = top_level_names(tree)
    return all(_declares(statement, names) for statement in tree.body)


def top_level_names(tree: ast.Module) -> set[str]:
    """What the module makes or imports."""
    names: set[str] = set()
    for node in tree.body:
        if isinstance(node, ast.ClassDef | ast.FunctionDef | ast.AsyncFunctionDef):
            names.add(node.name)
        elif isinstance(node, ast.Import | ast.ImportFrom):
            names.update((alias.asname or alias.name).partition(".")[0] for alias in node.names)
        elif isinstance(node, ast.Assign | ast.AnnAssign):
            names.update(target.id for target in _targets(node) if isinstance(target, ast.Name))
    return names


def _targets(node: ast.Assign | ast.AnnAssign) -> list[ast.expr]:
    return node.targets if isinstance(node, ast.Assign) else [node.target]


def _declares(statement: ast.stmt, names: set[str]) -> bool:
    match statement:
        case ast.Import() | ast.ImportFrom() | ast.Pass() | ast.Expr(ast.Constant()):
            return True
        case ast.Assign() | ast.AnnAssign():
            targets = _targets(statement)
            if not all(isinstance(target, ast.Name) for target in targets):
                return False
            # __all__, __slots__, __match_args__: nobody changes these.
            fixed = all(isinstance(target, ast.Name) and target.id.startswith("__") for target in targets)
            return statement.value is None or _is_still(statement.value, lists=fixed)
        case ast.ClassDef():
            given = [*statement.bases, *(keyword.value for keyword in statement.keywords)]
            parts = all(map(_is_still, given)) and all(map(_is_known, statement.decorator_list))
            return parts and all(_declares(inner, names) for inner in statement.body)
        case ast.FunctionDef() | ast.AsyncFunctionDef():
            defaults = [*statement.args.defaults, *filter(None, statement.args.kw_defaults)]
            if not all(map(_is_still, defaults)) or not all(map(_is_known, statement.decorator_list)):
                return False
            inside = [node for inner in statement.body for node in ast.walk(inner)]
            return not any(isinstance(node, ast.Global) for node in inside) and not (
                (names | {"cls", ANYTHING}) & {name for node in inside for name in _changed_by(node)}
            )
        case ast.If(ast.Name("TYPE_CHECKING") | ast.Attribute(attr="TYPE_CHECKING")):
            return all(isinstance(inner, ast.Import | ast.ImportFrom) for inner in (*statement.body, *statement.orelse))
    return False


def _is_known(decorator: ast.expr) -> bool:
    if isinstance(decorator, ast.Call):
        given = [*decorator.args, *(keyword.value for keyword in decorator.keywords)]
        return all(map(_is_still, given)) and _is_known(decorator.func)
    return _last_name(decorator) in _DECORATORS


def _last_name(expression: ast.expr) -> str:
    match expression:
        case ast.Name(id=name) | ast.Attribute(attr=name):
            return name
    return ""


def _is_still(expression: ast.expr, *, lists: bool = False) -> bool:
    """Whether its value is one that nobody can change, or somebody else's already."""
    match expression:
        case ast.Constant() | ast.Name() | ast.Attribute(value=ast.Name()) | ast.JoinedStr():
            return True
        case ast.Attribute(value=value) | ast.UnaryOp(operand=value):
            return _is_still(value)
        case ast.Subscript(value=value, slice=index):
            return _is_still(value) and _is_still(index, lists=True)
        case ast.BinOp(left=left, right=right):
            return _is_still(left) and _is_still(right)
        case ast.Tuple(elts=items):
            return all(_is_still(item, lists=lists) for item in items)
        case ast.List(elts=items):
            return lists and all(_is_still(item, lists=lists) for item in items)
        case ast.Lambda(args=ast.arguments(defaults=[], kw_defaults=[])):
            return True
        case ast.Call(func=function, args=args, keywords=keywords):
            given = [*args, *(keyword.value for keyword in keywords)]
            return _last_name(function) in _CALLS and all(_is_still(item) for item in given)
    return False


def names_changed(nodes: Iterable[ast.AST]) -> set[str]:
    """The names of whatever is given attributes, or loses some, anywhere in the module; "*" if that could be a class
    that is not named."""
    return {name for node in nodes for name in _changed_by(node)} - {"self"}


def _changed_by(node: ast.AST) -> Iterator[str]:
    match node:
        case ast.Attribute(value=owner, ctx=ast.Store() | ast.Del()):
            yield from _named(owner)
        case ast.Call(func=ast.Name("setattr" | "delattr"), args=[owner, *_]):
            yield from _named(owner)


def _named(owner: ast.expr) -> Iterator[str]:
    match owner:
        case ast.Attribute(attr="__class__") | ast.Call(func=ast.Name("type")):
            yield ANYTHING
        case ast.Name(id=name):
            yield name
        case ast.Attribute(value=value, attr=name):
            yield name
            yield from _named(value)


def imports(nodes: Iterable[ast.AST], package: str) -> Iterator[str]:
    """The full names of what the module imports: of `from a import b` both a and a.b."""
    for node in nodes:
        if isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            base = node.module or ""
            if node.level:
                above = package.rsplit(".", node.level - 1)[0]
                base = f"{above}.{base}".rstrip(".")
            yield base
            yield from (f"{base}.{alias.name}" for alias in node.names)


class Outline(NamedTuple):
    """What can be read off a module's source, before it is executed."""

    declares_only: bool
    names: set[str]  # what it makes or imports
    classes: list[str]
    changes: set[str]  # the names of whatever it gives attributes
    imports: set[str]


@lru_cache(maxsize=64)  # the same files are loaded again and again, by tests above all
def outline(source: bytes, package: str) -> Outline:
    """To be read, not changed."""
    tree = ast.parse(source)
    nodes = list(ast.walk(tree))
    classes = [node.name for node in tree.body if isinstance(node, ast.ClassDef)]
    return Outline(
        declares_only(tree), top_level_names(tree), classes, names_changed(nodes), set(imports(nodes, package))
    )


class Watch:
    """Some classes of a module, as it made them."""

    def __init__(self, module: ModuleType, classes: list[str]) -> None:
        made: list[type] = [getattr(module, name) for name in classes]
        self._were = {cls: dict(vars(cls)) for cls in made}

    @property
    def is_changed(self) -> bool:
        return any(vars(cls) != were and any(_differences(cls, were)) for cls, were in self._were.items())

    def undo(self) -> None:
        for cls, were in self._were.items():
            now: Any = vars(cls)
            if now == were:
                continue
            for name in list(_differences(cls, were)):
                if name in were:
                    setattr(cls, name, were[name])
                else:
                    delattr(cls, name)
            # What libraries note there (msgspec, copy) stays.
            were.update(now)


def _differences(cls: type, were: dict[str, Any]) -> Iterator[str]:
    now = vars(cls)
    for name in were:
        if name not in now or now[name] is not were[name]:
            yield name
    for name in now:
        if name not in were and not name.startswith("__"):
            yield name
