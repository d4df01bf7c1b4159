"""The command itself, before any tool has its turn."""

import importlib

import pytest

from raftlab.tools import cli


@pytest.mark.parametrize("words", [["fuzz"], ["fuzz", "--help"]])
def test_ctrl_c_while_a_tool_is_imported_is_an_end_in_one_word(words, monkeypatch, capsys):
    def interrupted(name):
        raise KeyboardInterrupt

    monkeypatch.setattr(importlib, "import_module", interrupted)
    assert cli.main(words) == 130
    assert capsys.readouterr().err == "interrupted\n"
