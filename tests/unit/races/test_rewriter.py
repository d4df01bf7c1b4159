"""Rewritten code behaves the same and keeps its lines."""

import ast
import inspect
import sys
import textwrap
import traceback
from types import ModuleType

import pytest

from raftapi import Persister
from raftlab.harness.launcher import LoadError
from raftlab.harness.loader import load_peer, load_program
from raftlab.races.fields import FieldNames
from raftlab.races.instrumentation import _PASS_THROUGH
from raftlab.races.rewriter import rewrite
from raftlab.races.sites import SiteTable
from unit.races.run_peer import run_peer

# Each defines main(). Its result, or its error and line, must not change.
PROGRAMS = {
    "decorators and closures": """
        import functools
        def twice(f):
            @functools.wraps(f)
            def wrapper(*args, **kwargs):
                return f(*args, **kwargs) + f(*args, **kwargs)
            return wrapper
        def main():
            total = 0
            def add(n):
                nonlocal total
                total += n
                return total
            return twice(add)(5), add(1), total
        """,
    "comprehensions, walrus, lambda, starred": """
        class P:
            def __init__(self):
                self.xs = [1, 2, 3]
                self.xs.append(4)
        def main():
            p = P()
            first, *rest = p.xs
            picked = [y for x in p.xs if (y := x * 2) > 2]
            pairs = {k: v for k, v in zip(p.xs, rest)}
            return picked, pairs, {*p.xs}, (lambda q: q.xs[-1])(p), max(*p.xs), first, [*p.xs]
        """,
    "generators and yield from": """
        class P:
            n = 0
        def count(p):
            while p.n < 3:
                p.n += 1
                got = yield p.n
                if got:
                    p.n = got
            return "done"
        def main():
            p = P()
            def outer():
                told = yield from count(p)
                yield told
            return list(outer()), p.n
        """,
    "match": """
        class P:
            __match_args__ = ("kind", "n")
            def __init__(self, kind, n):
                self.kind, self.n = kind, n
        def look(p):
            match p:
                case P("a", n) if p.n > 1:
                    return n
                case P(kind="b"):
                    p.n += 1
                    return p.n
                case {"x": [1, *rest]}:
                    return rest
                case _:
                    return None
        def main():
            return look(P("a", 2)), look(P("b", 5)), look({"x": [1, 2]}), look(3)
        """,
    "properties, dataclasses, slots, private names, super": """
        from dataclasses import dataclass, field
        @dataclass(slots=True)
        class Point:
            x: int = 0
            seen: list = field(default_factory=list)
            def __post_init__(self):
                self.x += 1
        class Base:
            def __init__(self):
                self.__secret = 1
                self.value = 2
            @property
            def secret(self):
                return self.__secret
            @secret.setter
            def secret(self, value):
                self.__secret = value
        class Derived(Base):
            def __init__(self):
                super().__init__()
                self.__secret = 10
            def both(self):
                self.secret += 5
                return self.secret, self.__secret, super().secret
        def main():
            point = Point()
            point.seen += [1]
            point.seen[0] += 7
            return point, Derived().both()
        """,
    "order of evaluation": """
        told = []
        class P:
            def __getattr__(self, name):
                told.append("get " + name)
                return 1
            def __setattr__(self, name, value):
                told.append(f"set {name} {value}")
        def p(tag):
            told.append(tag)
            return P()
        def value(tag):
            told.append(tag)
            return 2
        def main():
            p("a").x = value("b")
            p("c").x += value("d")
            p("e").x, p("f").y = value("g"), value("h")
            boxes = {}
            def box(tag):
                told.append(tag)
                return boxes
            box("i")[value("j")] = value("k")
            box("l")[value("m")] += value("n")
            for p("o").z in (1, 2):
                pass
            return told, boxes
        """,
    "in-place operators are in place": """
        class P:
            def __init__(self):
                self.log, self.n = [], 0
        def main():
            p = P()
            same = p.log
            p.log += [1, 2]
            p.log *= 2
            same[1:2] += [9]
            del p.log[0], same[0]
            p.n |= 5
            del p.n
            return same, same is p.log, hasattr(p, "n")
        """,
    "with, try, loops, else": """
        class Held:
            def __enter__(self):
                return 5
            def __exit__(self, *_):
                return True
        class P:
            pass
        def main():
            p = P()
            p.trail = []
            with Held() as p.x, Held() as y:
                p.trail.append(p.x + y)
                raise ValueError
            for i in range(3):
                if i == 1:
                    continue
                p.trail.append(i)
            else:
                p.trail.append("else")
            try:
                p.missing
            except AttributeError as error:
                p.trail.append(str(error))
            finally:
                p.trail.append("finally")
            while p.trail:
                p.last = p.trail.pop(0)
                if len(p.trail) < 2:
                    break
            return p.trail, p.last, f"{p.last!r:>5}", p.trail and p.last
        """,
    "classes in functions, global": """
        count = 0
        def main():
            global count
            count += 1
            class Inner:
                n = count
                def up(self):
                    self.n += 1
                    return self.n
            return Inner().up(), count
        """,
    "an exception": """
        class P:
            def __init__(self):
                self.log = []
            def look(self, i):
                self.log.append(1)

                return self.log[
                    i + 1
                ]
        def main():
            return P().look(
                7
            )
        """,
    "a missing attribute": """
        class P:
            def __init__(self):
                self.term = 1
            def step(self):
                self.term = self.term + 1
                return self.trem
        def main():
            p = P()
            p.trem = 1
            del p.trem
            return p.step()
        """,
}


def execute(source, *, rewritten):
    file = f"<a peer, {'rewritten' if rewritten else 'as it is'}>"
    module = ModuleType("a_peer")
    sys.modules["a_peer"] = module
    try:
        if rewritten:
            vars(module).update(_PASS_THROUGH)
            code = rewrite(source, file, SiteTable(), FieldNames([ast.parse(source)]))
        else:
            code = compile(source, file, "exec", dont_inherit=True)
        exec(code, vars(module))
        try:
            return repr(module.main())
        except Exception as error:
            frames = [frame for frame in traceback.extract_tb(error.__traceback__) if frame.filename == file]
            return type(error), str(error), [(frame.lineno, frame.name) for frame in frames]
    finally:
        del sys.modules["a_peer"]


@pytest.mark.parametrize("name", PROGRAMS)
def test_rewritten_code_behaves_the_same(name):
    source = textwrap.dedent(PROGRAMS[name]).encode()
    assert execute(source, rewritten=True) == execute(source, rewritten=False)


@pytest.mark.parametrize("name", [name for name in PROGRAMS if "exception" not in name and "missing" not in name])
def test_rewritten_code_behaves_the_same_in_a_run(name):
    source = textwrap.dedent(PROGRAMS[name])
    ran = run_peer(source, preempt=True)
    assert ran.error is None
    assert repr(ran.value) == execute(source.encode(), rewritten=False)


def test_line_ends_and_encodings_are_kept():
    source = "# coding: latin-1\r\n# \xe9\r\ndef main():\r\n    x = [1,\r\n         2]\r\n    return x[9]\r\n"
    both = [execute(source.encode("latin-1"), rewritten=rewritten) for rewritten in (True, False)]
    assert both[0] == both[1]
    assert both[0][2] == [(6, "main")]


RAFT = """
from dataclasses import dataclass
{imports}

class Raft:
    def __init__(self, peers, me, persister, apply_ch):
        self.me = me

    def start(self, command):
        return -1, 0, False

    def get_state(self):
        return 0, False

    def kill(self):
        {kill}
"""


@pytest.mark.usefixtures("raft_package_restored")
def test_syntax_error_is_unchanged(tmp_path):
    told = []
    (tmp_path / "raft.py").write_text(RAFT.format(imports="", kill="return self.me +"))
    for race in (False, True):
        with pytest.raises(LoadError) as caught:
            load_peer(tmp_path / "raft.py", race=race)
        told.append(str(caught.value))
    assert told[0] == told[1]
    assert "raft.py:16: SyntaxError: invalid syntax" in told[1]


@pytest.mark.usefixtures("raft_package_restored")
def test_star_imports_and_inspect_work(tmp_path, monkeypatch):
    monkeypatch.syspath_prepend(str(tmp_path))
    (tmp_path / "beside_race.py").write_text("def helper(peer):\n    peer.me = peer.me + 1\n    return peer.me\n")
    (tmp_path / "raft.py").write_text(RAFT.format(imports="from beside_race import *", kill="return helper(self)"))
    program = load_program(tmp_path / "raft.py", race=True)
    peer = program([], 4, Persister(), None)
    assert peer.kill() == 5
    assert inspect.getsource(program.peer_class.kill) == "    def kill(self):\n        return helper(self)\n"
    assert inspect.getsource(sys.modules["beside_race"].helper).startswith("def helper(peer):\n    peer.me")


def test_async_and_special_methods_are_not_rewritten():
    source = textwrap.dedent("""
        class P:
            async def wait(self):
                self.x = 1
            def __repr__(self):
                return self.x
            def __del__(self):
                self.x = 2
            def other(self):
                self.x = 3
        """)
    code = rewrite(source.encode(), "p.py", SiteTable(), FieldNames([ast.parse(source)]))
    (p,) = [constant for constant in code.co_consts if hasattr(constant, "co_name")]
    methods = {method.co_name: method.co_names for method in p.co_consts if hasattr(method, "co_name")}
    assert methods == {
        "wait": ("x",),
        "__repr__": ("x",),
        "__del__": ("x",),
        "other": ("__preempt__", "__write_field__"),
    }
