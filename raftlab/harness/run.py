"""One test, one seed, one run: the step that the plugin repeats, and whatever else repeats tests."""

from __future__ import annotations

import signal
import threading
import time as _time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from functools import cached_property
from pathlib import Path
from typing import Any

from labsim import Event, Simulation, current_simulation
from labsim.choices import ChoiceSource
from labsim.guard import forbid_exit
from raftlab.check.cluster_snapshot import ClusterSnapshot, take_snapshot
from raftlab.check.diagnosis import NamedFinding, diagnose
from raftlab.check.failure import Failure
from raftlab.check.rules import CHUNK, LIVENESS_RULES, RuleChecker
from raftlab.check.task_errors import point_into_peer
from raftlab.harness import report
from raftlab.harness.config import Config
from raftlab.harness.lab_test import LabTest
from raftlab.harness.launcher import PeerLauncher
from raftlab.harness.outcome import Outcome, outcome_of


@dataclass
class Run:
    """One run as it was made: the simulation with its trace, the clusters, the error itself."""

    seed: int
    test: str = ""
    error: BaseException | None = None
    digest: str = ""
    virtual_s: float = 0.0
    real_s: float = 0.0
    cpu_s: float = 0.0
    configs: list[Config] = field(default_factory=list)
    simulation: Simulation | None = None
    checker: RuleChecker | None = None
    remarks: list[str] = field(default_factory=list)  # with --race: what was unordered and is no failure

    @cached_property
    def findings(self) -> list[NamedFinding]:
        """The diagnoses that fit the failure, best first."""
        if self.error is None or self.simulation is None or not self.simulation.trace:
            return []
        return diagnose(self.simulation.trace, self.error, end_ns=self.simulation.now_ns)

    @property
    def causes(self) -> list[str]:
        """The likely causes of the failure: a paragraph for each diagnosis."""
        return [finding.paragraph for finding in self.findings]

    @property
    def checks_off(self) -> list[str]:
        """Which checks this peer's messages keep from looking, and why, a line each."""
        return [] if self.checker is None else self.checker.undecodable_notes

    @property
    def unverified(self) -> list[str]:
        """What it rests on that no check could verify, why, and what to change: a line each."""
        return [] if self.checker is None else self.checker.unverified

    def outcome(
        self,
        peer_files: Path | Sequence[Path] = (),
        test_file: Path | None = None,
        *,
        replay: str = "",
        shrink: str = "",
    ) -> Outcome:
        """What came of it. `replay`, `shrink`: commands; with the former it has a report, if the run failed.

        The files are those of outcome_of().
        """
        found = outcome_of(self.error, peer_files, test_file, self.unverified)
        found.test, found.seed = self.test, self.seed
        found.checks_off, found.unverified = self.checks_off, self.unverified
        found.alone = all(config.n == 1 for config in self.configs)
        if self.simulation is not None:
            trace = self.simulation.trace
            found.events = self.simulation.switches if trace is None else len(trace)
        found.digest, found.virtual_s = self.digest, self.virtual_s
        found.real_s, found.cpu_s = self.real_s, self.cpu_s
        if replay and found.failed and self.error is not None:
            found.headline = report.headline(self.error)
            found.report = report.describe(self.error, self.test, self.seed, replay, causes=self.causes, shrink=shrink)
        return found

    @property
    def lines(self) -> list[str]:
        """MIT's two lines for each config of a passed test."""
        return [f"{c.description} ...\n  {c.stats}" for c in self.configs if c.description and c.stats]


def run_test(
    test: LabTest,
    launcher: PeerLauncher,
    seed: int,
    *,
    realtime: bool = False,
    simulation: Simulation | None = None,
    choice_source: ChoiceSource | None = None,
    checked: bool = True,
) -> Run:
    """Run the test once. What it raises is in the result, except KeyboardInterrupt.

    A choice source replaces the seed. The rules check every event, unless the simulation keeps no trace or `checked` is
    false.
    """
    began_cpu_s = _time.process_time()
    if realtime:
        simulation = None
    elif simulation is None:
        simulation = Simulation(seed, choice_source=choice_source)
    run = Run(seed, test.name, simulation=simulation)
    if simulation is not None and simulation.trace is not None and checked:
        run.checker = _check(simulation, simulation.trace)

    config_class = _config_class(test)

    def make_config(**how: Any) -> Config:
        # One cluster at a time: an earlier one is over.
        for earlier in run.configs:
            earlier.end()
            for i in range(earlier.n):
                if earlier.is_up(i):
                    earlier.crash1(i)
        config = config_class(launcher, **how)
        config.checker = run.checker
        run.configs.append(config)
        return config

    def main() -> None:
        try:
            test.function(make_config)
            for config in run.configs:
                config.end()
        finally:
            for config in reversed(run.configs):
                config.cleanup()

    with launcher.run(simulation):
        began_s = _time.perf_counter()
        try:
            if simulation is None:
                main()
            else:
                with _interruptible(simulation), forbid_exit():
                    simulation.run(main)
        except KeyboardInterrupt:
            raise
        except BaseException as error:
            run.error = error
    if run.checker is not None:
        _end_at_violation(run, run.checker)
    if isinstance(run.error, Failure) and run.error.rule and run.error.rule == test.breaks_rule:
        run.error = None  # a scenario for a wrong peer: that is what it expects
    if run.error is not None:
        point_into_peer(run.error, *launcher.classes)
    run.remarks = launcher.remarks
    if simulation is not None:
        run.digest = simulation.digest()
        run.virtual_s = simulation.now
    run.real_s = _time.perf_counter() - began_s
    run.cpu_s = _time.process_time() - began_cpu_s
    return run


def _config_class(test: LabTest) -> type[Config]:
    if not test.wants_service:
        return Config
    from raftlab.harness.kv_config import KVConfig  # most tests need no service

    return KVConfig


def _check(simulation: Simulation, trace: Sequence[Event]) -> RuleChecker:
    """Have the rules check every event, and the run end where one is broken."""
    checker = RuleChecker(trace)

    def observe(chunk: Sequence[Event]) -> None:
        checker.observe(chunk)
        if checker.violation is not None:
            failure = checker.violation.failure
            snapshot = take_snapshot(simulation)
            blocked = sorted(snapshot.blocked, key=lambda wait: wait.node != failure.peer)
            kept = tuple(blocked) if failure.rule in LIVENESS_RULES else ()
            simulation.fail(failure.extended(snapshot=replace(snapshot, blocked=kept)))

    simulation.subscribe(observe, chunk=CHUNK)
    return checker


def _end_at_violation(run: Run, checker: RuleChecker) -> None:
    """The run has gone on a little after a rule was broken. Nothing of that is reported: its trace and its clock end
    with the event that broke it."""
    simulation = run.simulation
    assert simulation is not None and simulation.trace is not None
    if checker.violation is None:
        try:
            checker.finish()
        except Exception as error:
            run.error = error  # the lab's own
            return
        if checker.violation is None:
            return
        # Whatever ended the run came after that.
        run.error = _with_snapshot_of(run.error, checker.violation.failure, simulation.now_ns)
    del simulation.trace[checker.violation.events :]
    simulation.now_ns = simulation.trace[-1].at_ns


def _with_snapshot_of(ended_by: BaseException | None, broken: Failure, ended_ns: int) -> Failure:
    """When the run is over nothing is blocked any more, but what ended it has a snapshot of what was, and when.

    Only of its threads: what peers reported by then may be later than the end of the trace.
    """
    if not isinstance(ended_by, Failure):
        return broken
    then = ended_by.snapshot
    blocked = then.blocked if broken.rule in LIVENESS_RULES else ()
    when = [f"  The threads below were blocked when the test gave up, at {ended_ns / 1e9:.3f} s."] if blocked else []
    return broken.extended(evidence=when, snapshot=ClusterSnapshot(blocked, then.held_locks, then.threads))


@contextmanager
def _interruptible(simulation: Simulation) -> Iterator[None]:
    """Ctrl-C ends the run itself: raised in whichever task is running, a bare `except:` of a peer would swallow it."""
    main_thread = threading.current_thread() is threading.main_thread()
    if not main_thread or signal.getsignal(signal.SIGINT) is not signal.default_int_handler:
        yield
        return

    def interrupt(signal_number: int, frame: object) -> None:
        if current_simulation() is simulation:
            simulation.fail(KeyboardInterrupt())
        raise KeyboardInterrupt

    signal.signal(signal.SIGINT, interrupt)
    try:
        yield
    finally:
        signal.signal(signal.SIGINT, signal.default_int_handler)
