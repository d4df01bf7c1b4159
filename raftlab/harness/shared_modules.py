"""Decides which modules of a peer are executed once for all incarnations: those in which nothing can change.

messages.py is usually such a module: its source has only imports, constants, dataclasses, enums and NamedTuples. A
module with anything else, such as a function, is executed for each incarnation, like raft.py: always correct, but
slower.

Other modules may set attributes of shared classes. If their source does so by name (`LogEntry.seen = {}`), the module
with this name is not shared. `OriginalAttributes` undoes the rest. Start at `outline()`.
"""

from __future__ import annotations

import ast
from collections.abc import Iterable, Iterator
from enum import EnumType
from functools import lru_cache
from importlib.util import resolve_name
from types import ModuleType
from typing import Any, NamedTuple

# Functions and decorators whose results have no state that can change.
_KNOWN = frozenset(("NewType", "auto", "dataclass", "field", "frozenset", "register", "unique"))
_SETTERS = frozenset(("setattr", "delattr", "__setattr__", "__delattr__", "vars"))
_DICTS = frozenset(("__annotations__", "__dataclass_fields__", "__dict__"))
ANYTHING = "*"


class ModuleOutline(NamedTuple):
    """Properties of a module's source. Immutable."""

    is_immutable: bool
    changes: frozenset[str]  # the names whose attributes it sets; ANYTHING if it may be a class without a name
    imports: frozenset[str]  # full names: of `from a import b` both a and a.b


@lru_cache(maxsize=64)  # tests load the same files repeatedly
def outline(source: bytes, package: str) -> ModuleOutline:
    tree = ast.parse(source)
    nodes = list(ast.walk(tree))
    is_immutable = all(map(_is_immutable, tree.body))
    return ModuleOutline(is_immutable, frozenset(_changes(nodes)), frozenset(_imports(nodes, package)))


def _is_immutable(statement: ast.stmt, *, in_class: bool = False) -> bool:
    """Whether the statement creates no mutable state."""
    match statement:
        case ast.Import() | ast.ImportFrom() | ast.Pass() | ast.Expr(ast.Constant()):
            return True
        case ast.Assign(targets=[ast.Name()], value=value) | ast.AnnAssign(target=ast.Name(), value=value):
            return value is None or _is_value(value)
        case ast.ClassDef(keywords=[]) if not in_class:
            parts = all(map(_is_value, statement.bases)) and all(map(_is_known, statement.decorator_list))
            return parts and all(_is_immutable(inner, in_class=True) for inner in statement.body)
    return False


def _is_value(expression: ast.expr) -> bool:
    """Whether its value is immutable, or made by another module."""
    match expression:
        case ast.Constant() | ast.Name():
            return True
        case ast.Attribute(value=value) | ast.UnaryOp(operand=value):
            return _is_value(value)
        case ast.BinOp(left=left, right=right):
            return _is_value(left) and _is_value(right)
        case ast.Subscript(value=value, slice=index):
            items = index.elts if isinstance(index, ast.Tuple) else [index]
            return _is_value(value) and all(isinstance(item, ast.List) or _is_value(item) for item in items)
        case ast.Tuple(elts=items):
            return all(map(_is_value, items))
        case ast.Call(func=function, args=args, keywords=keywords):
            return _is_known(function) and all(map(_is_value, [*args, *(each.value for each in keywords)]))
    return False


def _is_known(expression: ast.expr) -> bool:
    return _is_value(expression) if isinstance(expression, ast.Call) else _last_name(expression) in _KNOWN


def _last_name(expression: ast.AST) -> str:
    return str(getattr(expression, "attr", getattr(expression, "id", "")))


def _changes(nodes: Iterable[ast.AST]) -> Iterator[str]:
    """For `role.last.seen = {}`: role and last. Never self, which is an object of one incarnation."""
    for node in nodes:
        match node:
            case ast.Attribute(value=owner, ctx=ast.Store() | ast.Del()):
                pass
            case ast.Attribute(value=owner, attr=name) if name in _DICTS:
                pass
            case ast.Call(func=ast.Name(name) | ast.Attribute(attr=name), args=[owner, *_]) if name in _SETTERS:
                pass
            case _:
                continue
        names = {_last_name(each) for each in ast.walk(owner)} - {"", "self"}
        yield from {ANYTHING} if names & {"__class__", "type"} else names


def _imports(nodes: Iterable[ast.AST], package: str) -> Iterator[str]:
    for node in nodes:
        if isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            base = resolve_name("." * node.level + (node.module or ""), package)
            yield base
            yield from (f"{base}.{alias.name}" for alias in node.names)


class OriginalAttributes:
    """The original attributes of a module's classes and of the members of its enums."""

    def __init__(self, module: ModuleType) -> None:
        found = vars(module).values()
        made: list[Any] = [each for each in found if getattr(each, "__module__", None) == module.__name__]
        for enum in [each for each in made if isinstance(each, EnumType)]:
            made += enum
        self._attributes = [(each, dict(vars(each))) for each in made if hasattr(each, "__dict__")]

    @property
    def are_changed(self) -> bool:
        return bool(list(self._differences()))

    def restore(self) -> None:
        for owner, name, attributes in list(self._differences()):
            if name in attributes:
                setattr(owner, name, attributes[name])
            else:
                delattr(owner, name)

    def _differences(self) -> Iterator[tuple[Any, str, dict[str, Any]]]:
        """The attributes that differ. Caches of libraries (msgspec, copy) do not count."""
        for owner, attributes in self._attributes:
            now = vars(owner)
            if now == attributes:
                continue
            for name in attributes | dict(now):
                if now.get(name, owner) is not attributes[name] if name in attributes else not name.startswith("__"):
                    yield owner, name, attributes
