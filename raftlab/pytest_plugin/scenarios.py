"""Collects .scenario files: each is one test, handled like a test function with make_config."""

from __future__ import annotations

from collections.abc import Iterator
from types import ModuleType

import pytest

from raftlab.pytest_plugin.hooks import LAB_TEST
from raftlab.scenarios.runner import make_lab_test
from raftlab.scenarios.text import ScriptError, read_script


class ScenarioFile(pytest.Module):
    """To pytest, a module with one test function."""

    def _getobj(self) -> ModuleType:
        try:
            self._lab_test = make_lab_test(read_script(self.path))
        except ScriptError as error:
            raise self.CollectError(str(error)) from None
        module = ModuleType(self._lab_test.name)
        setattr(module, self._lab_test.name, self._lab_test.function)
        return module

    def collect(self) -> Iterator[pytest.Item | pytest.Collector]:
        for item in super().collect():
            item.stash[LAB_TEST] = self._lab_test
            yield item

    def istestfunction(self, obj: object, name: str) -> bool:
        return callable(obj)

    def _register_setup_module_fixture(self) -> None:
        """A scenario has no setup functions."""

    _register_setup_function_fixture = _register_setup_module_fixture
