"""The command `lab` itself, before a tool runs."""

import importlib

import pytest

from raftlab.tools import cli


@pytest.mark.parametrize("words", [["fuzz"], ["fuzz", "--help"]])
def test_ctrl_c_during_import_prints_interrupted(words, monkeypatch, capsys):
    def interrupted(name):
        raise KeyboardInterrupt

    monkeypatch.setattr(importlib, "import_module", interrupted)
    assert cli.main(words) == 130
    assert capsys.readouterr().err == "interrupted\n"
