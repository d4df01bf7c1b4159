"""The pytest plugin: a test that asks for `make_config` runs inside a simulation.

It adds --seed, --runs, --raft, --realtime and --check-determinism, prints MIT's line for what passes, and a short
report with the line that replays it for what fails.
"""

from __future__ import annotations

import json
import random
from collections.abc import Generator
from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest

from labtest import determinism, report
from labtest.loading import DEFAULT, LoadError, load_peer_class
from labtest.running import Run, run_test

_PEER = pytest.StashKey[Any]()
_SEED = pytest.StashKey[int]()
_MAX_CHUNKS = 16  # per test, so that workers share the work of --runs evenly


def pytest_addoption(parser: pytest.Parser) -> None:
    group = parser.getgroup("raftlab", "the Raft lab")
    group.addoption("--seed", type=int, metavar="N", help="the first seed (default: a fresh one, printed)")
    group.addoption("--runs", type=int, default=1, metavar="N", help="run each lab test over N seeds: N, N+1, ...")
    group.addoption("--raft", type=Path, default=DEFAULT, metavar="PATH", help=f"the raft.py to test ({DEFAULT})")
    group.addoption("--realtime", action="store_true", help="real threads and the real clock instead of virtual time")
    group.addoption(
        "--check-determinism",
        action="store_true",
        help="run each lab test again in another process and name the first event that differs",
    )
    group.addoption("--record-events", type=Path, help="write the events of the run to this file (for the above)")


def pytest_configure(config: pytest.Config) -> None:
    worker = getattr(config, "workerinput", None)
    if worker is not None:
        config.stash[_SEED] = worker["raftlab_seed"]
    else:
        seed = config.getoption("--seed")
        config.stash[_SEED] = random.SystemRandom().randrange(2**31) if seed is None else seed
    if config.getoption("--runs") < 1:
        raise pytest.UsageError(f"--runs must be at least 1, got {config.getoption('--runs')}")


@pytest.hookimpl(optionalhook=True)
def pytest_configure_node(node: Any) -> None:
    node.workerinput["raftlab_seed"] = node.config.stash[_SEED]


def pytest_report_header(config: pytest.Config) -> str:
    runs = config.getoption("--runs")
    seeds = f"seed {config.stash[_SEED]}" if runs == 1 else f"{runs} seeds from {config.stash[_SEED]}"
    clock = ", real time" if config.getoption("--realtime") else ""
    return f"raftlab: {config.getoption('--raft')}, {seeds}{clock}"


def _is_lab_test(item: pytest.Item) -> bool:
    return "make_config" in getattr(item, "fixturenames", ())


def _peer_class(config: pytest.Config) -> Any:
    if _PEER not in config.stash:
        try:
            config.stash[_PEER] = load_peer_class(config.getoption("--raft"))
        except LoadError as error:
            raise pytest.UsageError(str(error)) from None
    return config.stash[_PEER]


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    if any(_is_lab_test(item) for item in items):
        _peer_class(config)  # fail now, once, rather than in every test


def pytest_generate_tests(metafunc: pytest.Metafunc) -> None:
    """Many runs of one test become a few items, each a stretch of seeds."""
    runs = metafunc.config.getoption("--runs")
    if runs > 1 and "make_config" in metafunc.fixturenames:
        chunks = min(runs, _MAX_CHUNKS)
        edges = [runs * k // chunks for k in range(chunks + 1)]
        stretches = [(a, b) for a, b in pairwise(edges) if a < b]
        first = metafunc.config.stash[_SEED]
        ids = [f"seeds {first + a}-{first + b - 1}" for a, b in stretches]
        metafunc.parametrize("make_config", stretches, indirect=True, ids=ids)


@pytest.fixture
def make_config(request: pytest.FixtureRequest) -> Any:
    """make_config(servers=3, unreliable=False, snapshot=False): a cluster under test."""
    return getattr(request, "param", (0, 1))


@pytest.hookimpl(tryfirst=True)
def pytest_pyfunc_call(pyfuncitem: pytest.Function) -> bool | None:
    if not _is_lab_test(pyfuncitem):
        return None
    config = pyfuncitem.config
    names = pyfuncitem._fixtureinfo.argnames
    given = {name: pyfuncitem.funcargs[name] for name in names if name != "make_config"}
    stretch: Any = pyfuncitem.funcargs["make_config"]
    first, beyond = stretch

    def test(make_config: Any) -> None:
        pyfuncitem.obj(make_config=make_config, **given)

    total = 0.0
    for seed in range(config.stash[_SEED] + first, config.stash[_SEED] + beyond):
        run = _run(pyfuncitem, test, seed)
        total += run.real_s
        if run.error is not None:
            outcome = (pytest.skip.Exception, pytest.xfail.Exception)
            if isinstance(run.error, outcome):
                raise run.error
            raise LabFailure(_describe(pyfuncitem, run)) from None
    lines = run.lines
    if beyond - first > 1:
        lines.append(f"  ... {beyond - first} runs passed, {total:.1f} s real")
    pyfuncitem.user_properties.append(("raftlab", "\n".join(lines)))
    return True


def _run(item: pytest.Function, test: Any, seed: int) -> Run:
    config = item.config
    peer_class = _peer_class(config)
    record = config.getoption("--record-events")
    if record is None and not config.getoption("--check-determinism"):
        return run_test(test, peer_class, seed, realtime=config.getoption("--realtime"))
    from labsim import Simulation

    simulation = Simulation(seed)
    events = simulation.trace = determinism.Recorder()
    run = run_test(test, peer_class, seed, simulation=simulation)
    if record is not None:
        record.write_text(json.dumps(events))
    elif run.error is None:
        node_id = f"{item.location[0]}::{item.originalname}"
        raft = str(config.getoption("--raft"))
        difference = determinism.first_difference(
            events, determinism.record_elsewhere(node_id, seed, raft, config.rootpath)
        )
        if difference is not None:
            run.error = NotDeterministic(difference)
    return run


class NotDeterministic(Exception):
    """One seed gave two runs."""


class LabFailure(Exception):
    """Carries the finished report; pytest need not add its own."""


def _describe(item: pytest.Function, run: Run) -> str:
    assert run.error is not None
    raft = item.config.getoption("--raft")
    other = "" if raft == DEFAULT else f" RAFT={raft}"
    return report.describe(
        run.error, item.originalname, run.seed, f"make replay TEST={item.originalname} SEED={run.seed}{other}"
    )


@pytest.hookimpl(wrapper=True)
def pytest_runtest_makereport(
    item: pytest.Item, call: pytest.CallInfo[None]
) -> Generator[None, pytest.TestReport, pytest.TestReport]:
    result = yield
    if call.excinfo is not None and isinstance(call.excinfo.value, LabFailure):
        result.longrepr = str(call.excinfo.value)
    return result


@pytest.hookimpl(tryfirst=True)
def pytest_report_teststatus(report: pytest.TestReport | pytest.CollectReport, config: pytest.Config) -> Any:
    """No dot for a lab test that passed: its own line says more."""
    if isinstance(report, pytest.TestReport) and report.when == "call" and report.passed and _lines_of(report):
        return "passed", "", ""
    return None


class _Printer:
    """Prints the lab's lines as reports come in, from this process or from workers."""

    def __init__(self, config: pytest.Config) -> None:
        self._config = config

    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        reporter = self._config.pluginmanager.get_plugin("terminalreporter")
        if reporter is None or report.when != "call":
            return
        lines = _lines_of(report)
        if report.passed and lines:
            reporter.ensure_newline()
            reporter.write_line(lines)
        elif report.failed and isinstance(report.longrepr, str):
            reporter.ensure_newline()
            reporter.write_line(f"FAILED {report.longrepr.splitlines()[0]}", red=True)


def _lines_of(report: pytest.TestReport) -> str:
    return next((str(value) for name, value in report.user_properties if name == "raftlab"), "")


def pytest_sessionstart(session: pytest.Session) -> None:
    if not hasattr(session.config, "workerinput"):
        session.config.pluginmanager.register(_Printer(session.config), "raftlab-printer")
