"""Scenarios in pytest: each file is one test, with seeds, reports and all the rest, like a function that asks for
make_config."""

from __future__ import annotations

from types import ModuleType
from typing import Any

import pytest

from labtest.scenarios.playing import as_test
from labtest.scenarios.text import ScriptError, read_script


class ScenarioFile(pytest.Module):
    """A module, as far as pytest can see, with one test function in it."""

    def _getobj(self) -> ModuleType:
        try:
            script = read_script(self.path)
        except ScriptError as error:
            raise self.CollectError(str(error)) from None
        module = ModuleType(script.name)
        setattr(module, script.name, as_test(script))
        return module

    def istestfunction(self, obj: object, name: str) -> bool:
        return callable(obj)

    def _register_setup_module_fixture(self) -> None:
        """There is none."""

    _register_setup_function_fixture = _register_setup_module_fixture


def collect(path: Any, parent: pytest.Collector) -> ScenarioFile:
    file: ScenarioFile = ScenarioFile.from_parent(parent, path=path)
    return file
