"""The pytest plugin: a test that asks for `make_config` or `make_scenario`, or a scenario, runs inside a simulation.

It adds --seed, --runs, --raft, --realtime and --check-determinism. A passed test prints MIT's line, a failed one a
short report with the command that replays it.

Promise: one seed is one run, alone or with other tests, in this process or in a worker. Only the test function runs
inside the simulation; its other fixtures are set up before it and torn down after it.

Start reading at `pytest_pyfunc_call()`.
"""

from __future__ import annotations

import gc
import random
import re
import shlex
from collections.abc import Collection, Generator
from contextlib import chdir, suppress
from dataclasses import asdict, replace
from itertools import pairwise
from pathlib import Path
from typing import Any, NoReturn

import pytest

from labsim import Simulation, Unresponsive
from labsim.stacks import short_path
from raftlab.check.failure import Failure
from raftlab.harness import determinism, records, report
from raftlab.harness.lab_test import LabTest, LabTestKind
from raftlab.harness.launcher import LoadError, PeerLauncher
from raftlab.harness.options import (
    DEFAULT,
    DEFAULT_KV,
    KV,
    RAFT,
    RUN,
    RUNS,
    SEED,
    add_options,
    command_line,
    given,
    run_line,
)
from raftlab.harness.outcome import Ending
from raftlab.harness.run import Run, run_test
from raftlab.layout import project_of
from raftlab.pytest_plugin import hooks
from raftlab.pytest_plugin.hooks import LAB_TEST
from raftlab.pytest_plugin.output import (
    CHECK_OFF,
    CHUNKS_MAX,
    FAILED,
    PASSED,
    REAL_S,
    REMARK,
    RUNS_MADE,
    UNVERIFIED,
    FailedRun,
    Printer,
    property_of,
)
from raftlab.sandbox.loader import launcher_for
from raftlab.scenarios.collection import collect

SCENARIO = ".scenario"  # the suffix of a file of steps

_LAUNCHER = pytest.StashKey[PeerLauncher]()
_SEED = pytest.StashKey[int]()
_MAX_OUTPUT_LINES = 100  # of a failed test's output

_NEEDS_IN_PROCESS = {
    "--realtime": "sandboxed peers need virtual time",
    "--pdb": "the peer's frames are in another process",
    "--check-determinism": "the peer's threads are in another process",
}


def pytest_addoption(parser: pytest.Parser) -> None:
    group = parser.getgroup("raftlab", "the Raft lab")
    add_options(
        group.addoption,
        *RUN,
        replace(SEED, help="first seed (default: a new one, which is printed)"),
        replace(RUNS, type=int, default=1, help="run each lab test with N seeds, from --seed on"),
        replace(RAFT, default=None, help=f"{RAFT.help} (default: {DEFAULT})"),
        replace(KV, default=None, help=f"{KV.help} (default: {DEFAULT_KV})"),
    )
    group.addoption("--realtime", action="store_true", help="use real threads and the real clock")
    group.addoption(
        "--check-determinism",
        action="store_true",
        help="run each lab test twice and report the first event that differs",
    )
    group.addoption("--record-events", type=Path, help="write the events of the run to this file")


def pytest_addhooks(pluginmanager: pytest.PytestPluginManager) -> None:
    pluginmanager.add_hookspecs(hooks)


def pytest_configure(config: pytest.Config) -> None:
    worker = getattr(config, "workerinput", None)
    if worker is not None:
        config.stash[_SEED] = worker["raftlab_seed"]
    else:
        seed = config.getoption("--seed")
        config.stash[_SEED] = random.SystemRandom().randrange(2**31) if seed is None else seed
    if config.getoption("--runs") < 1:
        raise pytest.UsageError(f"--runs must be at least 1, got {config.getoption('--runs')}")
    if config.getoption("--isolated"):
        for option, why in _NEEDS_IN_PROCESS.items():
            if config.getoption(option):
                raise pytest.UsageError(f"{option} is not supported with --isolated: {why}")
    if config.getoption("--realtime") and config.getoption("--race"):
        raise pytest.UsageError("--race is not supported with --realtime: only virtual time controls preemption")
    if config.getoption("--realtime") and config.getoption("--check-determinism"):
        raise pytest.UsageError("--check-determinism needs virtual time: real threads run differently every time")


@pytest.hookimpl(optionalhook=True)
def pytest_configure_node(node: Any) -> None:
    node.workerinput["raftlab_seed"] = node.config.stash[_SEED]


def _header(config: pytest.Config) -> str:
    runs = config.getoption("--runs")
    seeds = f"seed {config.stash[_SEED]}" if runs == 1 else f"{runs} seeds from {config.stash[_SEED]}"
    clock = ", real time" if config.getoption("--realtime") else ""
    where = ", sandboxed" if config.getoption("--isolated") else ""
    where += ", checking for races" if _race(config) else ""
    service = "" if config.getoption("--kv") is None else f" with {short_path(str(_kv(config)))}"
    return f"raftlab: {short_path(str(_raft(config)))}{service}, {seeds}{clock}{where}"


def pytest_report_header(config: pytest.Config) -> str:
    return _header(config)


# ---- the peer ------------------------------------------------------------------------------------------------


def _raft(config: pytest.Config) -> Path:
    """--raft, or raft/raft.py in the working directory or else in pytest's root directory."""
    return _path_option(config, "--raft", DEFAULT)


def _kv(config: pytest.Config) -> Path:
    return _path_option(config, "--kv", DEFAULT_KV)


def _path_option(config: pytest.Config, option: str, default: Path) -> Path:
    given: Path | None = config.getoption(option)
    if given is not None:
        return given
    return default if default.exists() or not (config.rootpath / default).exists() else config.rootpath / default


def _race(config: pytest.Config) -> bool:
    return bool(config.getoption("--race"))


def _kv_of(item: pytest.Function) -> Path | None:
    """The service, if this is a test of one."""
    return _kv(item.config) if item.stash[LAB_TEST].wants_service else None


def _launcher(config: pytest.Config, *, kv: bool) -> PeerLauncher:
    """The launcher of the peer and, with `kv`, of the service. Loads them once. Raises LoadError."""
    if _LAUNCHER not in config.stash or (kv and not config.stash[_LAUNCHER].has_service):
        isolated = config.getoption("--isolated")
        config.stash[_LAUNCHER] = launcher_for(
            _raft(config), isolated=isolated, kv=_kv(config) if kv else None, race=_race(config)
        )
    return config.stash[_LAUNCHER]


def _check_loadable(config: pytest.Config, *, kv: bool) -> None:
    """Report a load error once, now, rather than in every test."""
    try:
        _launcher(config, kv=kv)
    except LoadError as error:
        raise pytest.UsageError(str(error)) from None


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    # A usage error in a worker would end the whole session; there each test reports the load error.
    tests = [item.stash[LAB_TEST] for item in items if LAB_TEST in item.stash]
    if not hasattr(config, "workerinput") and tests:
        _check_loadable(config, kv=any(test.wants_service for test in tests))


@pytest.hookimpl(tryfirst=True)
def pytest_sessionstart(session: pytest.Session) -> None:
    config = session.config
    if hasattr(config, "workerinput"):
        return
    config.pluginmanager.register(Printer(config, _header(config)), "raftlab-printer")
    # With workers this process collects nothing, so it guesses from the files whether the peer is needed.
    if config.getoption("numprocesses", None):
        kinds = [kind for arg in config.args for kind in _kinds_in(arg)]
        if kinds:
            _check_loadable(config, kv=LabTestKind.SERVICE in kinds)


def _kinds_in(arg: str) -> list[LabTestKind]:
    path = Path(arg.partition("::")[0])
    files = [*path.rglob("test_*.py"), *path.rglob(f"*{SCENARIO}")] if path.is_dir() else [path]
    found = []
    for file in sorted(files):
        if file.suffix == SCENARIO:
            found.append(LabTestKind.SCENARIO)
            continue
        with suppress(OSError):
            text = file.read_bytes()
            found += [kind for kind in LabTestKind if kind.value.encode() in text]
    return found


# ---- the tests -----------------------------------------------------------------------------------------------


def pytest_collection_finish() -> None:
    """Exclude the collected tests from garbage collection, because they stay."""
    gc.freeze()


def pytest_collect_file(file_path: Path, parent: pytest.Collector) -> pytest.Collector | None:
    if file_path.suffix != SCENARIO:
        return None
    from raftlab.pytest_plugin.scenarios import ScenarioFile  # most runs have no scenarios

    file: ScenarioFile = ScenarioFile.from_parent(parent, path=file_path)
    return file


def pytest_itemcollected(item: pytest.Item) -> None:
    """Stash the LabTest of a test function. Scenarios have theirs already."""
    if not isinstance(item, pytest.Function) or LAB_TEST in item.stash:
        return

    def call(made: Any) -> None:
        parameter = item.stash[LAB_TEST].kind.value
        others = {name: item.funcargs[name] for name in item._fixtureinfo.argnames if name != parameter}
        item.obj(**{parameter: made}, **others)

    test = collect(call, name=item.originalname, file=item.path, parameters=item._fixtureinfo.argnames)
    if test is not None:
        item.stash[LAB_TEST] = test


_LAB_SEEDS = "lab_seeds"  # the fixture below


def pytest_generate_tests(metafunc: pytest.Metafunc) -> None:
    """With --runs, make a few items of each test, each with a range of seeds."""
    runs = metafunc.config.getoption("--runs")
    if runs > 1 and _LAB_SEEDS in metafunc.fixturenames:
        chunks = min(runs, CHUNKS_MAX)
        edges = [runs * k // chunks for k in range(chunks + 1)]
        first = metafunc.config.stash[_SEED]
        ranges = [_SeedRange(range(first + a, first + b)) for a, b in pairwise(edges) if a < b]
        metafunc.parametrize(_LAB_SEEDS, ranges, indirect=True, ids=[str(seeds) for seeds in ranges])


class _SeedRange:
    """The value of the fixture outside the test: the seeds. Inside, it is the function that makes a Config."""

    def __init__(self, seeds: range) -> None:
        self.seeds = seeds

    def __str__(self) -> str:
        return f"seeds {self.seeds[0]}-{self.seeds[-1]}"

    def __call__(self, **_: Any) -> NoReturn:
        pytest.fail("call make_config() in the test itself: fixtures run outside the simulation", pytrace=False)


@pytest.fixture
def lab_seeds(request: pytest.FixtureRequest) -> _SeedRange:
    """The seeds, which the other fixtures return."""
    seed = request.config.stash[_SEED]
    return getattr(request, "param", None) or _SeedRange(range(seed, seed + 1))


@pytest.fixture
def make_config(lab_seeds: _SeedRange) -> _SeedRange:
    """make_config(servers=3, unreliable=False, snapshot=False): a cluster under test."""
    return lab_seeds


@pytest.fixture
def make_scenario(lab_seeds: _SeedRange) -> _SeedRange:
    """make_scenario(peers=3, snapshots=False, strict=False): a cluster in which nothing happens by itself."""
    return lab_seeds


@pytest.fixture
def make_kv_config(lab_seeds: _SeedRange) -> _SeedRange:
    """make_kv_config(servers=3, unreliable=False, max_raft_state=None): a cluster with a service, under test."""
    return lab_seeds


@pytest.hookimpl(tryfirst=True)
def pytest_runtest_protocol(item: pytest.Item) -> None:
    # Text in the buffer is not this test's output: see pytest_pyfunc_call().
    item.config.get_terminal_writer().flush()


@pytest.hookimpl(tryfirst=True)
def pytest_pyfunc_call(pyfuncitem: pytest.Function) -> bool | None:
    test = pyfuncitem.stash.get(LAB_TEST, None)
    if test is None:
        return None
    try:
        launcher = _launcher(pyfuncitem.config, kv=test.wants_service)
    except LoadError as error:
        raise LabFailure([_failed_to_load(pyfuncitem, error)]) from None
    seeds = _seeds_of(pyfuncitem).seeds
    properties = pyfuncitem.user_properties
    failures: list[FailedRun] = []
    total = 0.0
    for seed in seeds:
        run = _run(pyfuncitem, test, launcher, seed)
        total += run.real_s
        for name, lines in ((CHECK_OFF, run.checks_off), (REMARK, run.remarks), (UNVERIFIED, run.unverified)):
            properties.extend([(name, line) for line in lines if (name, line) not in properties])
        if run.error is not None:
            # pytest-timeout's text must get into the test's captured output, from which it is removed below.
            pyfuncitem.config.get_terminal_writer().flush()
            if isinstance(run.error, (pytest.skip.Exception, pytest.xfail.Exception, pytest.exit.Exception)):
                raise run.error
            failures.append(_failed_run(pyfuncitem, run, described={failed.mistake for failed in failures}))
            if isinstance(run.error, Unresponsive):
                # Each other test would take as long to fail.
                pyfuncitem.session.shouldfail = "a thread keeps running without ever waiting, so no other test can pass"
            if pyfuncitem.session.shouldfail or pyfuncitem.config.getoption("maxfail") == 1:
                break
    properties += [(RUNS_MADE, seed - seeds[0] + 1), (REAL_S, total)]
    if failures:
        raise LabFailure(failures)
    properties.append((PASSED, "\n".join(run.lines)))
    return True


def _seeds_of(item: pytest.Function) -> _SeedRange:
    seeds = item.funcargs[item.stash[LAB_TEST].kind.value]
    assert isinstance(seeds, _SeedRange)
    return seeds


def _run(item: pytest.Function, test: LabTest, launcher: PeerLauncher, seed: int) -> Run:
    config = item.config
    record = config.getoption("--record-events")
    if record is None and not config.getoption("--check-determinism"):
        return run_test(test, launcher, seed, realtime=config.getoption("--realtime"))
    if record is not None:
        determinism.shuffle_memory()
    simulation = Simulation(seed)
    recorder = determinism.Recorder(simulation)
    run = run_test(test, launcher, seed, simulation=simulation)
    if record is not None:
        determinism.write_record(record, recorder.lines, run.digest)
    elif not isinstance(run.error, pytest.skip.Exception):
        _compare(item, run, recorder.lines)
    return run


def _compare(item: pytest.Function, run: Run, events: list[Any]) -> None:
    config = item.config
    raft, kv = _raft(config), _kv_of(item)
    files = {RAFT.name: raft.absolute(), KV.name: None if kv is None else kv.absolute()}
    values = {**_given(item), SEED.name: run.seed, RUNS.name: 1, **files}
    second, digest = determinism.record_in_new_process(_node_id(item), values, config.rootpath, config.inipath)
    difference = determinism.first_difference(events, second)
    if difference is None and digest != run.digest:
        difference = "Nondeterministic: same events, but threads were scheduled in a different order"
    if difference is not None:
        suspects = determinism.suspects(raft / "raft.py" if raft.is_dir() else raft)
        causes = "\n".join(["Possible causes:", *(f"  {line}" for line in suspects)]) if suspects else _USUAL_CAUSES
        run.error = NotDeterministic(f"{difference}\n{causes}")


_USUAL_CAUSES = "Usual causes: the order of a set, sorting by id() or hash(), the real clock, unseeded random numbers."


def _node_id(item: pytest.Function) -> str:
    """With its absolute path, and without the parameter that --runs adds."""
    seeds = str(_seeds_of(item))
    name = item.name.replace(f"[{seeds}]", "").replace(f"{seeds}-", "").replace(f"-{seeds}", "")
    names = [parent.name for parent in item.listchain() if isinstance(parent, pytest.Class)]
    return "::".join([str(item.path), *names, name])


# ---- reports -------------------------------------------------------------------------------------------------


class NotDeterministic(Failure):
    """Two runs of one seed differ."""


def _failed_run(item: pytest.Function, run: Run, described: Collection[str]) -> FailedRun:
    assert run.error is not None
    name, headline = _display_name(item), report.headline(run.error)
    outcome = run.outcome(records.place_of_peer(_raft(item.config), _kv_of(item)), item.path)
    if outcome.mistake in described:
        return FailedRun(name, run.seed, headline, outcome.mistake)
    diagnosis = run.findings[0].name if run.findings else ""
    is_rule = outcome.ending is Ending.RULE
    return FailedRun(name, run.seed, headline, outcome.mistake, _describe(item, run), is_rule, diagnosis)


def _failed_to_load(item: pytest.Function, error: LoadError) -> FailedRun:
    return FailedRun(_display_name(item), None, str(error).partition("\n")[0], LoadError.__name__, str(error))


class LabFailure(Exception):
    """Carries the finished reports, so that pytest adds no traceback."""

    def __init__(self, failures: list[FailedRun]) -> None:
        super().__init__(failures[0].text)
        self.failures = failures


def _display_name(item: pytest.Function) -> str:
    """Without the parameter that --runs adds: the report names the seed."""
    return _node_id(item).rpartition("::")[2]


def _describe(item: pytest.Function, run: Run) -> str:
    assert run.error is not None
    replay = _replay_line(item, run.seed)
    shrink, page = _make_line("shrink", item, run.seed), _make_line("page", item, run.seed)
    text = report.describe(run.error, item.originalname, run.seed, replay, causes=run.causes, shrink=shrink, page=page)
    for line in item.ihook.pytest_raftlab_failed(item=item, run=run):
        text += f"\n  {line}"
    if not item.config.getoption("--realtime") and _is_replayable(item):
        raft, kv = _raft(item.config), _kv_of(item)
        project = project_of(Path.cwd())
        if project != Path.cwd():
            raft, kv = raft.resolve(), None if kv is None else kv.resolve()
        # In the project, where `lab replay` reads it. An unwritable folder must not hide the failure.
        with suppress(OSError), chdir(project):
            records.Record(
                test=item.originalname,
                seed=run.seed,
                raft=short_path(str(raft)),
                kv="" if kv is None else short_path(str(kv)),
                isolated=item.config.getoption("--isolated"),
                race=_race(item.config),
                digest=run.digest,
                report=text,
                code=records.code_hashes(raft, item.path, kv),
            ).write(records.PYTEST)
    return text


def _replay_line(item: pytest.Function, seed: int) -> str:
    if item.config.getoption("--realtime"):
        return "not possible with --realtime: real threads run differently every time"
    if _is_replayable(item) and item.path.suffix != SCENARIO:
        return _make_line("replay", item, seed)
    file = short_path(str(item.path))
    if _is_replayable(item):
        command = f"make scenario FILE={shlex.quote(file)}"
    else:
        command = f"pytest {shlex.quote(_node_id(item).replace(str(item.path), file, 1))}"
    return command_line(command, {SEED.name: seed, **_given(item)})


def _make_line(command: str, item: pytest.Function, seed: int) -> str:
    """The command that shrinks or draws the run, if make finds the test by name. Scenarios are short already."""
    if item.config.getoption("--realtime") or not _is_replayable(item) or item.path.suffix == SCENARIO:
        return ""
    return run_line(command, item.originalname, seed, _given(item))


def _given(item: pytest.Function) -> dict[str, Any]:
    return given(item.config.option, service=item.stash[LAB_TEST].wants_service)


def _is_replayable(item: pytest.Function) -> bool:
    """Whether `make replay` finds the test by name: only plain functions in the lab's own files.

    A scenario is replayed with `make scenario`.
    """
    if item.path.suffix == SCENARIO:
        return not _race(item.config)
    plain = len(item._fixtureinfo.argnames) == 1 and item.cls is None
    return plain and item.path.parent.name == "tests" and item.path.name.startswith(("test_2", "test_3"))


@pytest.hookimpl(wrapper=True)
def pytest_runtest_makereport(
    item: pytest.Item, call: pytest.CallInfo[None]
) -> Generator[None, pytest.TestReport, pytest.TestReport]:
    result = yield
    if call.excinfo is not None and isinstance(call.excinfo.value, LabFailure):
        result.longrepr = str(call.excinfo.value)
        result.user_properties.append((FAILED, [asdict(failed) for failed in call.excinfo.value.failures]))
        if not item.config.getoption("--realtime"):
            result.sections = [(name, _OTHER_THREADS.sub("", text)) for name, text in result.sections]
        result.sections = [(name, _shortened(text)) for name, text in result.sections if text]
    return result


# pytest-timeout prints the stacks of all other OS threads. In virtual time these are not the peers' threads.
_OTHER_THREADS = re.compile(r"\++ Timeout \++\n~.*?\n\++ Timeout \++\n?", re.DOTALL)


def _shortened(output: str) -> str:
    """The end of the output, where the failure is: a peer that prints a lot would bury the report."""
    lines = output.splitlines(keepends=True)
    if len(lines) <= _MAX_OUTPUT_LINES:
        return output
    left_out = len(lines) - _MAX_OUTPUT_LINES
    return "".join([f"... {left_out:,} earlier lines; pytest -s -n 0 shows all\n", *lines[left_out:]])


@pytest.hookimpl(tryfirst=True)
def pytest_report_teststatus(report: pytest.TestReport | pytest.CollectReport, config: pytest.Config) -> Any:
    """No dot or F for a lab test: it has its own line."""
    if isinstance(report, pytest.TestReport) and report.when == "call":
        if report.passed and property_of(report, PASSED):
            return "passed", "", ""
        if report.failed and FailedRun.read(report):
            return "failed", "", ("FAILED", {"red": True})
    return None
