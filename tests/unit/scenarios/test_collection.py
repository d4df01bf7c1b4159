"""Making LabTests from functions: kind, name and part."""

from pathlib import Path

import pytest

from raftlab.harness.lab_test import LabTest, LabTestKind, part_of
from raftlab.scenarios.collection import collect


def of_peer(make_config): ...


def of_service(make_kv_config): ...


def of_scenario(make_scenario): ...


def of_nothing(tmp_path): ...


def test_kind_follows_from_the_parameters():
    assert collect(of_peer) == LabTest("of_peer", Path(__file__), LabTestKind.PEER, of_peer)
    assert collect(of_service).wants_service
    assert not collect(of_peer).wants_service
    assert collect(of_scenario).kind is LabTestKind.SCENARIO
    assert collect(of_nothing) is None


def test_arguments_override_the_function_s_properties():
    given = collect(of_nothing, name="test_x_3a", file=Path("x.py"), parameters=("tmp_path", "make_kv_config"))
    assert given == LabTest("test_x_3a", Path("x.py"), LabTestKind.SERVICE, of_nothing)
    assert given.part == "3a"


@pytest.mark.parametrize(
    ("name", "part"), [("test_x_2a", "2a"), ("test_x_3b", "3b"), ("test_2d_x", "2d"), ("test_x_2e", ""), ("test_x", "")]
)
def test_part_is_in_the_name(name, part):
    assert part_of(name) == part
