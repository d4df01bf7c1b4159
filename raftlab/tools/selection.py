"""Selects tests by name, glob, part (2a ... 3b) or file, without pytest.

A lab test is a function `test_*` with one parameter (`make_config`, `make_scenario` or, for a service,
`make_kv_config`), or a scenario file. Every tool that runs tests selects them here and calls
`raftlab.harness.run.run_test`.
"""

from __future__ import annotations

import importlib.util
import inspect
import os
import re
import sys
import zlib
from collections.abc import Callable, Iterable
from fnmatch import fnmatchcase
from pathlib import Path
from types import ModuleType
from typing import Any

from labsim.stacks import short_path
from raftlab.harness.lab_test import LabTest, LabTestKind, part_of
from raftlab.scenarios.collection import collect

# Relative to the working directory.
TESTS = Path("tests")
SCENARIOS = "scenarios"  # the folder of scenarios in TESTS, and the pattern that selects all of them
SCENARIO = ".scenario"


def service_for(tests: Iterable[LabTest], kv: Path) -> Path | None:
    """The service to load with the peer, if any of these tests needs one."""
    return kv if any(test.wants_service for test in tests) else None


class SelectionError(Exception):
    """No test matches the selection, or a file cannot be loaded; the message names it and the alternatives."""


def default_files() -> list[Path]:
    """The lab's test files, parts and extensions alike, in order."""
    return sorted(TESTS.glob("test_[23][a-d]*.py"))


def scenario_files() -> list[Path]:
    """The lab's scenarios, in order."""
    return sorted((TESTS / SCENARIOS).rglob(f"*{SCENARIO}"))


def load_tests(file: Path) -> list[LabTest]:
    """The lab tests of one file, in the file's order."""
    file = file.resolve()
    if file.suffix == SCENARIO:
        return [_load_scenario(file)]
    tests = [
        collect(value, name=name, file=file)
        for name, value in vars(_module(file)).items()
        if name.startswith("test_") and inspect.isfunction(value) and _is_runnable(value)
    ]
    return [test for test in tests if test is not None]


def _is_runnable(function: Callable[..., Any]) -> bool:
    """Whether it has one parameter. Calling a generator or a coroutine would run nothing and pass."""
    runs_nothing = inspect.iscoroutinefunction(function) or inspect.isgeneratorfunction(function)
    return len(inspect.signature(function).parameters) == 1 and not runs_nothing


def _load_scenario(file: Path) -> LabTest:
    # Imported only now: a peer with its own messages module must be loaded before the tester.
    from raftlab.scenarios.runner import make_lab_test
    from raftlab.scenarios.text import ScriptError, read_script

    try:
        script = read_script(file)
    except ScriptError as error:
        raise SelectionError(str(error)) from None
    return make_lab_test(script)


def _module(file: Path) -> ModuleType:
    if not file.is_file():
        raise SelectionError(f"{short_path(str(file))}: no such test file")
    # The checksum distinguishes a-b.py from a_b.py.
    name = f"labtests_{re.sub(r'[^0-9A-Za-z]', '_', str(file))}_{zlib.crc32(os.fsencode(file)):08x}"
    module = sys.modules.get(name)
    if module is None:
        spec = importlib.util.spec_from_file_location(name, file)
        assert spec is not None and spec.loader is not None
        module = importlib.util.module_from_spec(spec)
        sys.modules[name] = module
        try:
            spec.loader.exec_module(module)
        except BaseException as error:  # including pytest.skip() and sys.exit(), which do not raise an Exception
            del sys.modules[name]
            if isinstance(error, KeyboardInterrupt):
                raise
            raise SelectionError(
                f"{short_path(str(file))}: {type(error).__name__} while loading it: {error}"
            ) from error
    return module


def not_lab_tests(file: Path) -> dict[str, str]:
    """Tests in the file that pytest would run but the lab does not, each with the reason."""
    if file.suffix == SCENARIO:
        return {}
    known = {test.name for test in load_tests(file)}
    found = {}
    for name, value in vars(_module(file.resolve())).items():
        if inspect.isfunction(value) and name.startswith("test") and (name not in known or _parametrized(value)):
            found[name] = _why_not(name, value)
        elif inspect.isclass(value) and any(key.startswith("test") for key in vars(value)):
            found[name] = "it is a class; write its tests as functions"
    return found


def _why_not(name: str, function: Callable[..., Any]) -> str:
    if _parametrized(function):
        # Checked before its parameters, which are not the problem.
        return (
            "it is parametrized, and points are given per function; write one function for each set of values, or "
            "one with a loop"
        )
    if inspect.iscoroutinefunction(function) or inspect.isasyncgenfunction(function):
        return "it is async; write it as an ordinary function"
    if inspect.isgeneratorfunction(function):
        return "it contains yield, so calling it runs nothing; write it as an ordinary function"
    parameters = list(inspect.signature(function).parameters)
    others = [parameter for parameter in parameters if parameter not in _PARAMETERS]
    if others or len(parameters) > 1:
        asked = ", ".join(others or parameters)
        return f"it has the parameter {asked}; a lab test has one parameter, make_config or make_kv_config"
    if not parameters:
        return "it has no parameter; add make_config, or choose a name that does not start with test"
    return f"its name starts with test, but not with test_; rename it to test_{name.removeprefix('test')}"


def _parametrized(function: Callable[..., Any]) -> bool:
    return any(mark.name == "parametrize" for mark in getattr(function, "pytestmark", ()))


_PARAMETERS = [kind.value for kind in LabTestKind]


def select(patterns: Iterable[str], files: Iterable[Path] = ()) -> list[LabTest]:
    """The tests that match any pattern: a name, a glob, a part, or `scenarios`. Without patterns all tests, but only
    those scenarios that are in `files`."""
    given = list(files)
    tests = [test for file in (given or default_files()) for test in load_tests(file)]
    patterns = list(patterns)
    if not patterns:
        return tests
    # A scenario has the name of its file, so only selected ones need to be read.
    scenarios = [] if given else [file.resolve() for file in scenario_files()]
    there = [(test.name, test.file) for test in tests] + [(file.stem, file) for file in scenarios]
    for pattern in patterns:
        if not any(_matches(name, file, pattern) for name, file in there):
            near = [name for name, _ in there if pattern.strip("*") in name][:5]
            hint = f"; did you mean {', '.join(near)}?" if near else f"; lab stress --list shows all {len(there)} tests"
            raise SelectionError(f"no test matches {pattern!r}{hint}")
    chosen = {place for place in there if any(_matches(*place, pattern) for pattern in patterns)}
    return [
        *(test for test in tests if (test.name, test.file) in chosen),
        *(_load_scenario(file) for file in scenarios if (file.stem, file) in chosen),
    ]


def _matches(name: str, file: Path, pattern: str) -> bool:
    if pattern == SCENARIOS:
        return file.suffix == SCENARIO
    return part_of(name) == pattern.lower() or fnmatchcase(name, pattern)
