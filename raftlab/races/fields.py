"""Finds in a peer's source the fields that change while its threads run, and those that hold containers.

Fields are found by name, not by class: `anything.x = ...` makes x a field of every class. So too many accesses are
checked rather than too few. Fields set by setattr() or `__dict__` are not found. Start at `FieldNames`.
"""

from __future__ import annotations

import ast
from collections.abc import Iterable, Iterator

WRITERS = frozenset(
    (
        *("add", "append", "appendleft", "clear", "difference_update", "discard", "extend", "extendleft", "insert"),
        *("intersection_update", "move_to_end", "pop", "popitem", "popleft", "remove", "reverse", "rotate"),
        *("setdefault", "sort", "subtract", "symmetric_difference_update", "update"),
    )
)
READERS = frozenset(
    (
        *("copy", "count", "difference", "elements", "get", "index", "intersection", "isdisjoint", "issubset"),
        *("issuperset", "items", "keys", "most_common", "symmetric_difference", "union", "values"),
    )
)
_NUMBERS = (int, float)


class FieldNames:
    """`changing`: assigned outside `__init__`, or in it after a thread may have started. `containers`: items are added,
    removed or replaced."""

    def __init__(self, trees: Iterable[ast.Module]) -> None:
        trees = list(trees)
        starters = _thread_starters(trees)
        self.changing: set[str] = set()
        self.containers: set[str] = set()
        for tree in trees:
            for name, is_early in _assigned_attributes(tree, "", starters):
                if not is_early:
                    self.changing.add(name)
            for class_name, node in _walk_with_class(tree, ""):
                self._add_containers(node, class_name)
                if isinstance(node, ast.FunctionDef):
                    self._add_changed_aliases(node, class_name)

    def aliases_in(self, function: ast.FunctionDef) -> frozenset[str]:
        """Local names of containers in fields, as `log` in `log = self.log`."""
        return frozenset(name for name, attribute in _aliases(function) if attribute in self.containers)

    def _add_containers(self, node: ast.AST, class_name: str) -> None:
        changed = _changed_container(node)
        if isinstance(changed, ast.Attribute):
            self.containers.add(mangled(changed.attr, class_name))

    def _add_changed_aliases(self, function: ast.FunctionDef, class_name: str) -> None:
        aliases = dict(_aliases(function))
        for node in ast.walk(function) if aliases else ():
            changed = _changed_container(node)
            if isinstance(changed, ast.Name) and changed.id in aliases:
                self.containers.add(mangled(aliases[changed.id], class_name))


def mangled(name: str, class_name: str) -> str:
    """The name after Python's mangling of `self.__x`."""
    if class_name and name.startswith("__") and not name.endswith("__"):
        return f"_{class_name.lstrip('_')}{name}" if class_name.strip("_") else name
    return name


def _changed_container(node: ast.AST) -> ast.expr | None:
    """The container that this node changes, if any."""
    if isinstance(node, ast.Subscript) and not isinstance(node.ctx, ast.Load):
        return node.value
    if isinstance(node, ast.Call) and isinstance(node.func, ast.Attribute) and node.func.attr in WRITERS:
        return node.func.value
    if isinstance(node, ast.AugAssign):
        if isinstance(node.target, ast.Subscript):
            return node.target.value
        if not (isinstance(node.value, ast.Constant) and isinstance(node.value.value, _NUMBERS)):
            return node.target
    return None


def _aliases(function: ast.FunctionDef) -> Iterator[tuple[str, str]]:
    for node in ast.walk(function):
        if isinstance(node, ast.Assign) and isinstance(node.value, ast.Attribute):
            yield from ((name.id, node.value.attr) for name in node.targets if isinstance(name, ast.Name))
        elif isinstance(node, (ast.AnnAssign, ast.NamedExpr)):
            name, value = node.target, node.value
            if isinstance(name, ast.Name) and isinstance(value, ast.Attribute):
                yield name.id, value.attr


def _walk_with_class(node: ast.AST, class_name: str) -> Iterator[tuple[str, ast.AST]]:
    yield class_name, node
    for child in ast.iter_child_nodes(node):
        yield from _walk_with_class(child, child.name if isinstance(child, ast.ClassDef) else class_name)


def _thread_starters(trees: list[ast.Module]) -> set[str]:
    """Names of functions that may start a thread, directly or through calls."""
    calls: dict[str, set[str]] = {}
    for tree in trees:
        for node in ast.walk(tree):
            if isinstance(node, ast.FunctionDef):
                calls.setdefault(node.name, set()).update(_called_names(node))
    found = {"start"}
    while True:
        more = {name for name, called in calls.items() if called & found} - found
        if not more:
            return found
        found |= more


def _called_names(node: ast.AST) -> set[str]:
    called = set()
    for call in ast.walk(node):
        if isinstance(call, ast.Call):
            func = call.func
            called.add(func.attr if isinstance(func, ast.Attribute) else func.id if isinstance(func, ast.Name) else "")
    return called


def _assigned_attributes(node: ast.AST, class_name: str, starters: set[str]) -> Iterator[tuple[str, bool]]:
    """Every assigned attribute, and whether that is in __init__ before a thread may run."""
    for child in ast.iter_child_nodes(node):
        inner_class = child.name if isinstance(child, ast.ClassDef) else class_name
        if isinstance(child, ast.FunctionDef) and child.name in ("__init__", "__post_init__") and class_name:
            may_run = False
            self_name = [argument.arg for argument in (*child.args.posonlyargs, *child.args.args)][:1]
            for statement in child.body:
                may_run = may_run or bool(_called_names(statement) & starters)
                for one in ast.walk(statement):
                    if isinstance(one, ast.Attribute) and not isinstance(one.ctx, ast.Load):
                        # Only of self, and not in a nested function, which may run later.
                        is_self = isinstance(one.value, ast.Name) and [one.value.id] == self_name
                        early = is_self and not may_run and not isinstance(statement, ast.FunctionDef)
                        yield mangled(one.attr, class_name), early
        else:
            if isinstance(child, ast.Attribute) and not isinstance(child.ctx, ast.Load):
                yield mangled(child.attr, class_name), False
            yield from _assigned_attributes(child, inner_class, starters)
