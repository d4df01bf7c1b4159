"""Processes that a test looks for: whose children they are, and whether they are gone."""

import sys
import time
from pathlib import Path

import pytest

on_linux = pytest.mark.skipif(not sys.platform.startswith("linux"), reason="reads /proc")


def children_of(pid: int) -> list[int]:
    threads = Path(f"/proc/{pid}/task").glob("*/children")
    return [int(child) for children in threads for child in children.read_text().split()]


def gone(pid: int) -> bool:
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] == "Z"
    except (FileNotFoundError, ProcessLookupError):
        return True


def wait_until(condition, limit_s=100.0):
    until_s = time.monotonic() + limit_s
    while not condition():
        assert time.monotonic() < until_s, "it has not happened in time"
        time.sleep(0.05)
