"""Rewrites a peer's source: adds a call between statements, and around each read or write of a field.

Promise: the code does the same in the same order, and each statement keeps its line: tracebacks, inspect and the
debugger show the student's file. Not rewritten: module-level code, `async` functions, and methods in which a thread
cannot wait or that the lab calls (`__del__`, `__repr__`, `__eq__`, ...).

    self.x                  __read_field__(self, 'x', 7)
    self.x = e              __write_field__(e, self, 'x', 8)
    self.x += e             .t = self; .v = __read_field__(.t, 'x', 9); .v += e; __preempt__();
                            __write_field__(.v, .t, 'x', 10)
    self.log.append(e)      __write_container__(__read_field__(self, 'log', 11), None, 12).append(e)
    self.log[i]             __read_container__(__read_field__(self, 'log', 13), i, 14)[i]

The numbers are sites (sites.py). preemption.py and detector.py define the functions. fields.py finds the fields that
matter first. Start at `rewrite()`.
"""

from __future__ import annotations

import ast
from collections.abc import Sequence
from typing import Any, TypeVar

from raftlab.races.fields import READERS, WRITERS, FieldNames, mangled
from raftlab.races.sites import SiteTable

S = TypeVar("S", bound=ast.stmt)

# The lab may call these, or Python does where a thread cannot wait.
_NOT_REWRITTEN = frozenset(
    f"__{name}__"
    for name in (
        *("class_getitem", "copy", "deepcopy", "del", "delattr", "dir", "eq", "format", "ge", "getattr"),
        *("getattribute", "getstate", "gt", "hash", "init_subclass", "le", "lt", "ne", "new", "reduce", "reduce_ex"),
        *("repr", "set_name", "setattr", "setstate", "sizeof", "str"),
    )
)
# The key of an element that is not known. None is the whole container.
_UNKNOWN = Ellipsis


def rewrite(
    source: bytes, file: str, sites: SiteTable, fields: FieldNames, *, preempt: bool = True, detect: bool = True
) -> Any:
    """The rewritten code of a module. Raises SyntaxError as compile() does."""
    tree = ast.parse(source, file)
    if preempt or detect:
        sites.begin_file(file, source)
        tree = _Rewriter(sites, fields, preempt=preempt, detect=detect).visit(tree)
        ast.fix_missing_locations(tree)
    return compile(tree, file, "exec", dont_inherit=True)


class _Rewriter(ast.NodeTransformer):
    def __init__(self, sites: SiteTable, fields: FieldNames, *, preempt: bool, detect: bool) -> None:
        self._sites = sites
        self._fields = fields
        self._preempt = preempt
        self._detect = detect
        self._function = ""  # the current function; "" at module level
        self._class = ""
        self._self_name = ""  # the first parameter of a method
        self._aliases: frozenset[str] = frozenset()  # local names that may refer to a container in a field
        self._outer_names: frozenset[str] = frozenset()  # names that the function declares global or nonlocal
        self._temporaries = 0

    # ---- functions, classes, statements ------------------------------------------------------------------------------

    def visit_ClassDef(self, node: ast.ClassDef) -> ast.AST:
        saved = self._class, self._function
        self._class, self._function = node.name, ""
        node.body = [self.visit(statement) for statement in node.body]
        self._class, self._function = saved
        return node

    def visit_AsyncFunctionDef(self, node: ast.AsyncFunctionDef) -> ast.AST:
        return node

    def visit_FunctionDef(self, node: ast.FunctionDef) -> ast.AST:
        if node.name in _NOT_REWRITTEN:
            return node
        if self._function:
            node.args = self.visit(node.args)
        saved = self._function, self._self_name, self._aliases, self._outer_names
        arguments = [*node.args.posonlyargs, *node.args.args]
        self._function = node.name
        self._self_name = arguments[0].arg if arguments and self._class else ""
        # A nested function sees the names of the outer one.
        self._aliases = self._aliases | self._fields.aliases_in(node)
        self._outer_names = frozenset(
            name for inner in ast.walk(node) if isinstance(inner, (ast.Global, ast.Nonlocal)) for name in inner.names
        )
        node.body = self._block(node.body)
        self._function, self._self_name, self._aliases, self._outer_names = saved
        return node

    def visit_Lambda(self, node: ast.Lambda) -> ast.AST:
        saved = self._function
        self._function = self._function or "<lambda>"
        node.body = self.visit(node.body)
        self._function = saved
        return node

    def _block(self, statements: Sequence[ast.stmt]) -> list[ast.stmt]:
        """The statements of a function, with a call before each."""
        new: list[ast.stmt] = []
        for number, statement in enumerate(statements):
            is_text = isinstance(statement, ast.Expr) and isinstance(statement.value, ast.Constant)
            if self._preempt and not is_text and not isinstance(statement, (ast.Global, ast.Nonlocal, ast.Pass)):
                new.append(self._preemption_call(statement))
            rewritten = self.visit(statement)
            new += rewritten if isinstance(rewritten, list) else [rewritten]
            if self._preempt and number + 1 < len(statements) and _may_release_lock(statement):
                following = statements[number + 1 :]
                new.append(
                    self._preemption_call(
                        following[0], "__relock__" if _takes_lock_again(following) else "__unlocked__"
                    )
                )
        return new

    def _preemption_call(self, at: ast.AST, name: str = "__preempt__") -> ast.stmt:
        return _at(at, ast.Expr(ast.Call(ast.Name(name, ast.Load()), [], [])))

    def generic_visit(self, node: ast.AST) -> ast.AST:
        if self._function and not isinstance(node, ast.Lambda):
            for name in ("body", "orelse", "finalbody"):
                block = getattr(node, name, None)
                if isinstance(block, list) and block and isinstance(block[0], ast.stmt):
                    setattr(node, name, self._block(block))
            # The rest: expressions, except clauses, cases.
            for name, value in ast.iter_fields(node):
                if name in ("body", "orelse", "finalbody") and isinstance(value, list):
                    continue
                if isinstance(value, ast.AST):
                    setattr(node, name, self.visit(value))
                elif isinstance(value, list):
                    setattr(node, name, [self.visit(one) if isinstance(one, ast.AST) else one for one in value])
            return node
        return super().generic_visit(node)

    def visit_Match(self, node: ast.Match) -> ast.AST:
        if not self._function:
            return super().generic_visit(node)
        node.subject = self.visit(node.subject)
        for case in node.cases:  # names in a pattern are not expressions
            if case.guard is not None:
                case.guard = self.visit(case.guard)
            case.body = self._block(case.body)
        return node

    # ---- assignments -------------------------------------------------------------------------------------------------

    def visit_Assign(self, node: ast.Assign) -> ast.AST:
        if not self._function:
            return super().generic_visit(node)
        target = node.targets[0]
        if len(node.targets) == 1 and isinstance(target, ast.Attribute) and self._is_write_recorded(target):
            return self._write_field(self.visit(node.value), self.visit(target.value), target, node)
        node.value = self.visit(node.value)
        node.targets = [self.visit(target) for target in node.targets]
        return node

    def visit_AnnAssign(self, node: ast.AnnAssign) -> Any:
        if not self._function:
            return node
        if node.value is None:
            return node  # only an annotation
        if isinstance(node.target, ast.Attribute) and self._is_write_recorded(node.target):
            return self._write_field(self.visit(node.value), self.visit(node.target.value), node.target, node)
        node.value = self.visit(node.value)
        node.target = self.visit(node.target)
        return node

    def _write_field(self, value: ast.expr, owner: ast.expr, target: ast.Attribute, statement: ast.stmt) -> ast.stmt:
        is_constant = isinstance(statement, (ast.Assign, ast.AnnAssign)) and isinstance(statement.value, ast.Constant)
        site = self._site(target, is_constant=is_constant, in_own_init=self._is_own_init(target))
        name = ast.Constant(self._mangled(target.attr))
        return _at(statement, ast.Expr(_call("__write_field__", value, owner, name, site)))

    def visit_AugAssign(self, node: ast.AugAssign) -> Any:
        target = node.target
        if not self._function or (isinstance(target, ast.Subscript) and isinstance(target.slice, ast.Slice)):
            return self.generic_visit(node)
        if isinstance(target, ast.Name):
            node.value = self.visit(node.value)
            if not self._preempt or target.id not in self._outer_names:
                return node
            value = self._temporary()
            return [
                _at(node, ast.Assign([_store(value)], ast.Name(target.id, ast.Load()))),
                _at(node, ast.AugAssign(_store(value), node.op, node.value)),
                self._preemption_call(node),
                _at(node, ast.Assign([ast.Name(target.id, ast.Store())], _load(value))),
            ]
        owner, value = self._temporary(), self._temporary()
        rewritten: list[ast.stmt] = []
        if isinstance(target, ast.Attribute):
            rewritten.append(_at(node, ast.Assign([_store(owner)], self.visit(target.value))))
            load: ast.expr = ast.copy_location(ast.Attribute(_load(owner), target.attr, ast.Load()), target)
            store: ast.expr = ast.Attribute(_load(owner), target.attr, ast.Store())
        else:
            container = self._container(target.value)
            key = self._temporary()
            rewritten.append(_at(node, ast.Assign([_store(owner)], container or self.visit(target.value))))
            rewritten.append(_at(node, ast.Assign([_store(key)], self.visit(target.slice))))
            read = write = _load(owner)
            if container is not None:
                read = _call("__read_container__", _load(owner), _load(key), self._site(target.value))
                write = _call("__write_container__", _load(owner), _load(key), self._site(target.value))
            load = ast.copy_location(ast.Subscript(read, _load(key), ast.Load()), target)
            store = ast.Subscript(write, _load(key), ast.Store())
        if isinstance(target, ast.Attribute) and self._is_read_recorded(target):
            load = self._read_field(_load(owner), target)
        rewritten.append(_at(node, ast.Assign([_store(value)], load)))
        rewritten.append(_at(node, ast.AugAssign(_store(value), node.op, self.visit(node.value))))
        if self._preempt:
            rewritten.append(self._preemption_call(node))
        if isinstance(target, ast.Attribute) and self._is_write_recorded(target):
            rewritten.append(self._write_field(_load(value), _load(owner), target, node))
        else:
            rewritten.append(_at(node, ast.Assign([store], _load(value))))
        return rewritten

    # ---- expressions -------------------------------------------------------------------------------------------------

    def visit_Attribute(self, node: ast.Attribute) -> ast.AST:
        if not self._function or not self._detect:
            return super().generic_visit(node)
        owner = self.visit(node.value)
        if isinstance(node.ctx, ast.Load):
            if self._is_read_recorded(node):
                return self._read_field(owner, node)
        elif self._is_write_recorded(node):
            site = self._site(node, in_own_init=self._is_own_init(node))
            owner = _call("__write_target__", owner, ast.Constant(self._mangled(node.attr)), site)
        return ast.copy_location(ast.Attribute(owner, node.attr, node.ctx), node)

    def _read_field(self, owner: ast.expr, node: ast.Attribute) -> ast.expr:
        call = _call("__read_field__", owner, ast.Constant(self._mangled(node.attr)), self._site(node))
        return ast.copy_location(call, node)

    def visit_Subscript(self, node: ast.Subscript) -> ast.AST:
        container = self._container(node.value)
        if container is None:
            return super().generic_visit(node)
        load = isinstance(node.ctx, ast.Load)
        site = self._site(node.value)
        if isinstance(node.slice, (ast.Name, ast.Constant)):
            key: ast.expr = ast.Name(node.slice.id, ast.Load()) if isinstance(node.slice, ast.Name) else node.slice
        elif isinstance(node.slice, ast.Slice):
            key = ast.Constant(None)
        elif load:
            return ast.copy_location(_call("__read_item__", container, self.visit(node.slice), site), node)
        else:
            key = ast.Constant(_UNKNOWN)
        recorded = _call("__read_container__" if load else "__write_container__", container, key, site)
        return ast.copy_location(ast.Subscript(recorded, self.visit(node.slice), node.ctx), node)

    def visit_Call(self, node: ast.Call) -> ast.AST:
        if not self._function or not self._detect:
            return super().generic_visit(node)
        func = node.func
        container = self._container(func.value) if isinstance(func, ast.Attribute) else None
        if isinstance(func, ast.Attribute) and container is not None and func.attr in (READERS | WRITERS):
            key: ast.expr = ast.Constant(None)
            if func.attr in ("get", "setdefault") and node.args and isinstance(node.args[0], (ast.Name, ast.Constant)):
                key = node.args[0]
            recorded = _call(
                "__write_container__" if func.attr in WRITERS else "__read_container__",
                container,
                key,
                self._site(func.value),
            )
            node.func = ast.copy_location(ast.Attribute(recorded, func.attr, ast.Load()), func)
        else:
            node.func = self.visit(func)
        node.args = [self._read_all(argument) for argument in node.args]
        for keyword in node.keywords:
            keyword.value = self._read_all(keyword.value)
        return node

    def visit_For(self, node: ast.For) -> ast.AST:
        if not self._function:
            return super().generic_visit(node)
        node.iter = self._read_all(node.iter)
        node.target = self.visit(node.target)
        node.body = self._block(node.body)
        node.orelse = self._block(node.orelse)
        return node

    def visit_comprehension(self, node: ast.comprehension) -> ast.AST:
        node.iter = self._read_all(node.iter)
        node.target = self.visit(node.target)
        node.ifs = [self.visit(test) for test in node.ifs]
        return node

    def visit_Compare(self, node: ast.Compare) -> ast.AST:
        if any(not isinstance(operator, (ast.Is, ast.IsNot)) for operator in node.ops):
            node.left = self._read_all(node.left)
            node.comparators = [self._read_all(operand) for operand in node.comparators]
            return node
        return super().generic_visit(node)

    def visit_BinOp(self, node: ast.BinOp) -> ast.AST:
        node.left, node.right = self._read_all(node.left), self._read_all(node.right)
        return node

    def visit_Starred(self, node: ast.Starred) -> ast.AST:
        node.value = self._read_all(node.value) if isinstance(node.ctx, ast.Load) else self.visit(node.value)
        return node

    def visit_UnaryOp(self, node: ast.UnaryOp) -> ast.AST:
        node.operand = self._read_all(node.operand)
        return node

    def visit_FormattedValue(self, node: ast.FormattedValue) -> ast.AST:
        node.value = self._read_all(node.value)
        return node

    def _read_all(self, node: ast.expr) -> Any:
        """An expression that reads all of a container, if it is one."""
        container = self._container(node)
        if container is None:
            return self.visit(node)
        return ast.copy_location(_call("__read_container__", container, ast.Constant(None), self._site(node)), node)

    def _container(self, node: ast.expr) -> ast.expr | None:
        """The rewritten expression, if it may be a container in a field; otherwise None."""
        if not self._detect or not self._function:
            return None
        if isinstance(node, ast.Name) and node.id in self._aliases:
            return node
        if isinstance(node, ast.Attribute) and self._mangled(node.attr) in self._fields.containers:
            return self.visit(node)  # type: ignore[no-any-return]
        return None

    # ---- which fields matter -----------------------------------------------------------------------------------------

    def _is_read_recorded(self, node: ast.Attribute) -> bool:
        return self._detect and self._mangled(node.attr) in self._fields.changing

    def _is_write_recorded(self, node: ast.Attribute) -> bool:
        name = self._mangled(node.attr)
        return self._detect and (name in self._fields.changing or name in self._fields.containers)

    def _is_own_init(self, node: ast.Attribute) -> bool:
        is_self = isinstance(node.value, ast.Name) and node.value.id == self._self_name
        return is_self and self._function in ("__init__", "__post_init__")

    def _mangled(self, name: str) -> str:
        return mangled(name, self._class)

    def _site(self, node: ast.expr, *, is_constant: bool = False, in_own_init: bool = False) -> ast.Constant:
        return ast.Constant(self._sites.add(node, self._function, is_constant=is_constant, in_own_init=in_own_init))

    def _temporary(self) -> str:
        # Not an identifier, so it cannot collide with a name in the peer.
        self._temporaries += 1
        return f".race{self._temporaries}"


def _may_release_lock(statement: ast.stmt) -> bool:
    """Probably releases a lock: `with self.mu:` (not a call, which would make a new object), or release()."""
    if isinstance(statement, ast.Expr) and isinstance(statement.value, ast.Call):
        func = statement.value.func
        return isinstance(func, ast.Attribute) and func.attr == "release"
    return isinstance(statement, ast.With) and isinstance(statement.items[0].context_expr, (ast.Attribute, ast.Name))


def _takes_lock_again(statements: Sequence[ast.stmt]) -> bool:
    """Whether the next critical section starts before any call."""
    for statement in statements:
        if isinstance(statement, ast.With) and _may_release_lock(statement):
            return True
        if any(isinstance(node, ast.Call) for node in ast.walk(statement)):
            return False
    return False


def _at(where: ast.AST, new: S) -> S:
    for node in ast.walk(new):
        if "lineno" in node._attributes and not hasattr(node, "lineno"):
            ast.copy_location(node, where)
    return new


def _call(name: str, *arguments: ast.expr) -> ast.Call:
    return ast.Call(ast.Name(name, ast.Load()), list(arguments), [])


def _load(name: str) -> ast.expr:
    return ast.Name(name, ast.Load())


def _store(name: str) -> ast.Name:
    return ast.Name(name, ast.Store())
