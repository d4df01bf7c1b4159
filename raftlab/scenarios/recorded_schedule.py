"""Records what a test does to its cluster, omits operations if a choice says so, and replays them without the test.

A test is a program: what it does depends on what it observes. Its operations are a list: at 1.2 s peer 0 gets a
command, at 1.9 s peer 2 crashes. `record_operations()` writes that list while a test runs. `make_schedule_test()` makes
a test from such a list that performs each operation at its time. It skips an operation that no longer applies: peer 2
is down already, or a restarted peer is up because the crash was removed from the list.

Each recorded fault is also a choice: the choice source may say that it does not happen. Its key is the operation, the
call in the test (labsim/callsite.py), and how often that call has done it. What would end the fault then does nothing.

Promise: a test that is not recorded runs as if this module did not exist.

Start at `record_operations()`; trace/operations.py says what an operation is.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterable
from dataclasses import replace
from functools import wraps
from pathlib import Path
from types import FrameType
from typing import Any

from labsim import Simulation, Task, current_simulation
from labsim.callsite import call_site
from labsim.choices import ChoiceKind, ChoicePoint, Constant
from labsim.stacks import is_user_code, location_of, short_path
from raftlab.harness.config import Config
from raftlab.harness.kv_config import KVConfig
from raftlab.harness.lab_test import LabTest, LabTestKind
from raftlab.scenarios.runner import make_lab_test
from raftlab.scenarios.text import parse_script
from raftlab.trace.operations import (
    ASKS,
    CLIENT,
    CONDITIONS,
    ENDS,
    FAULTS,
    NETWORK,
    OPERATIONS,
    FailureLocation,
    RecordedCluster,
    RecordedSchedule,
    ScheduledOperation,
)


class ScheduleRecording:
    """The recorded operations of one run."""

    def __init__(self) -> None:
        self.clusters: list[RecordedCluster] = []
        self.failed_at: FailureLocation | None = None


# ---- recording ------------------------------------------------------------------------------------------------------


def record_operations(test: LabTest, recording: ScheduleRecording) -> LabTest:
    """The same test, with its operations recorded, and its faults choices."""

    @wraps(test.function)
    def recorded(make: Callable[..., Config]) -> Any:
        def make_recorded(**how: Any) -> Config:
            simulation = current_simulation()
            assert simulation is not None
            made_ns = simulation.now_ns
            config = make(**how)
            cluster = RecordedCluster(how, len(recording.clusters) + 1, made_ns, [], [])
            recording.clusters.append(cluster)
            _OperationRecorder(simulation, config, cluster, recording)
            return config

        return test.function(make_recorded)

    return replace(test, function=recorded)


_RECORDED = frozenset((*FAULTS, *CONDITIONS, *ENDS))


class _OperationRecorder:
    """Wraps the methods of one cluster."""

    def __init__(
        self, simulation: Simulation, config: Config, cluster: RecordedCluster, recording: ScheduleRecording
    ) -> None:
        self._simulation = simulation
        self._config = config
        self._cluster = cluster
        self._recording = recording
        self._main = next(simulation.tasks())
        self._inside: set[Task] = set()  # tasks that are inside an operation
        self._threads: dict[Task, str] = {}
        self._counts: dict[ChoicePoint, int] = {}
        self._suppressed: set[tuple[str, Any]] = set()  # faults that were chosen not to happen, until their end
        self._clients = 0
        for name in (*FAULTS, *ENDS, *ASKS):
            setattr(config, name, self._recorded(name, getattr(config, name)))
        for name in CONDITIONS:
            setattr(config.network, name, self._recorded(f"{NETWORK}{name}", getattr(config.network, name)))
        if isinstance(config, KVConfig):
            setattr(config, "make_client", self._recorded_clients(config.make_client))  # noqa: B010  # one way for all
            setattr(config, "connect_client", self._recorded("connect_client", config.connect_client))  # noqa: B010
        setattr(config, "fail", self._recorded_fail(config.fail))  # noqa: B010
        setattr(config, "end", self._recorded_end(config.end))  # noqa: B010

    def _recorded(self, does: str, method: Callable[..., Any]) -> Callable[..., Any]:
        @wraps(method)
        def operation(*args: Any, **kwargs: Any) -> Any:
            task = self._simulation.current
            if task.node is not None or task in self._inside:
                return method(*args, **kwargs)  # part of another operation, or an armed crash
            self._inside.add(task)
            try:
                if does in ("connect", "disconnect", "resume"):
                    for i in args:
                        self._record(does, method, [i], {}, task)
                    return None
                return self._record(does, method, list(args), kwargs, task)
            finally:
                self._inside.discard(task)

        return operation

    def _record(
        self, does: str, method: Callable[..., Any], args: list[Any], kwargs: dict[str, Any], task: Task
    ) -> Any:
        operation = self._make_operation(does, args, kwargs, task)
        if does not in ASKS and does != "connect_client" and not self._choose_fault(operation):
            return None
        if does == "start1" and self._config.is_up(args[0]):
            self._cluster.acts.append(self._make_operation("crash1", args, {}, task))
        self._cluster.acts.append(operation)
        return method(*args, **kwargs)

    def _make_operation(self, does: str, args: list[Any], kwargs: dict[str, Any], task: Task) -> ScheduledOperation:
        named = [getattr(one, "name", one) for one in args]  # a client, by its name
        given = [list(one) if isinstance(one, Iterable) and not isinstance(one, str) else one for one in named]
        if does in ("start", "take_snapshot"):
            given = named
        at_ns = self._simulation.now_ns - self._cluster.made_ns
        return ScheduledOperation(at_ns, does, given, dict(kwargs), self._thread(task))

    def _thread(self, task: Task) -> str:
        if task is self._main:
            return ""
        if task not in self._threads:
            self._threads[task] = f"{task.name} #{len(self._threads) + 1}"
        return self._threads[task]

    def _choose_fault(self, operation: ScheduledOperation) -> bool:
        what = (operation.does, operation.peer if operation.peer is not None else str(operation.args[:2]))
        fault_kind = {"start1": "crash1", "connect": "disconnect", "resume": "pause"}.get(operation.does)
        if fault_kind is not None:
            fault = (fault_kind, operation.peer)
            if fault in self._suppressed:
                self._suppressed.discard(fault)
                return False
            # After a crash that did not happen it is still connected.
            return not (fault_kind == "disconnect" and self._config.connected(operation.args[0]) and self._counts)
        if operation.ends_something:
            return True
        point = (ChoiceKind.FAULT, operation.does, self._call_site())
        self._counts[point] = ordinal = self._counts.get(point, 0) + 1
        if self._simulation.choice_source.choose(point, ordinal, Constant(True)):
            self._cluster.faults.append(point)
            return True
        self._suppressed.add(what)
        return False

    def _call_site(self) -> str:
        """The innermost call in user code."""
        frame: FrameType | None = sys._getframe(1)
        while frame is not None and not is_user_code(frame.f_code.co_filename):
            frame = frame.f_back
        return "" if frame is None else call_site(frame, _RECORDED)

    def _recorded_clients(self, make_client: Callable[..., Any]) -> Callable[..., Any]:
        @wraps(make_client)
        def make(reaches: Any = None) -> Any:
            reaches = None if reaches is None else list(reaches)
            client = make_client(reaches)
            self._clients += 1
            task = self._simulation.current
            self._cluster.acts.append(self._make_operation("make_client", [client.name, reaches], {}, task))
            for name in OPERATIONS:
                setattr(client, name, self._recorded_operation(client.name, name, getattr(client, name)))
            return client

        return make

    def _recorded_operation(self, client: str, name: str, method: Callable[..., Any]) -> Callable[..., Any]:
        @wraps(method)
        def operation(*args: Any) -> Any:
            task = self._simulation.current
            self._cluster.acts.append(self._make_operation(f"{CLIENT}{name}", [client, *args], {}, task))
            return method(*args)

        return operation

    def _recorded_fail(self, fail: Callable[..., Any]) -> Callable[..., Any]:
        @wraps(fail)
        def recorded(*args: Any, **kwargs: Any) -> Any:
            if self._recording.failed_at is None:
                simulation = self._simulation
                own = simulation.current is self._main
                self._recording.failed_at = _test_location(
                    sys._getframe(1) if own else simulation.frames_of(self._main)
                )
            return fail(*args, **kwargs)

        return recorded

    def _recorded_end(self, end: Callable[..., Any]) -> Callable[..., Any]:
        @wraps(end)
        def recorded() -> Any:
            self._cluster.ended_ns = self._simulation.now_ns - self._cluster.made_ns
            self._inside.add(self._simulation.current)  # its operations are not the test's
            result = end()  # a failure ends the run without an exception here
            self._inside.discard(self._simulation.current)
            self._cluster.ended_ns = None
            return result

        return recorded


def _test_location(frame: FrameType | None) -> FailureLocation | None:
    """The innermost line of user code, and the function of the lab that it called."""
    called = ""
    while frame is not None:
        if is_user_code(frame.f_code.co_filename):
            location = location_of(frame)
            return FailureLocation(f"{short_path(location.file)}:{location.line}", called)
        called = frame.f_code.co_name
        frame = frame.f_back
    return None


# ---- replaying ------------------------------------------------------------------------------------------------------


def make_schedule_test(schedule: RecordedSchedule, *, performed: set[int] | None = None) -> LabTest:
    """A test that executes the schedule. `did` gets the numbers of the operations that were applicable."""
    if schedule.steps:
        return make_lab_test(parse_script("\n".join(schedule.steps), "shrunk.scenario"))

    def run(make_config: Callable[..., Config]) -> None:
        config = make_config(**schedule.how)
        simulation = current_simulation()
        assert simulation is not None
        began_ns = simulation.now_ns
        if schedule.snapshot_every is not None:
            config.snapshot_every(schedule.snapshot_every)
        runner = _ScheduleRunner(simulation, config, set() if performed is None else performed)
        threads: dict[str, list[tuple[int, ScheduledOperation]]] = {}
        for number, operation in enumerate(schedule.acts):
            threads.setdefault(operation.by, []).append((number, operation))
        for number, operation in enumerate(schedule.acts):
            if not operation.by:
                runner.perform_all([(number, operation)], began_ns)
            elif operation.by in threads:
                # Only now, because earlier operations create the clients it needs.
                simulation.spawn(runner.perform_all, threads.pop(operation.by), began_ns, name=operation.by)
        runner.wait_until(began_ns + schedule.end_ns)

    return LabTest("play", Path(), LabTestKind.SERVICE if schedule.service else LabTestKind.PEER, run)


class _ScheduleRunner:
    def __init__(self, simulation: Simulation, config: Config, performed: set[int]) -> None:
        self._simulation = simulation
        self._config = config
        self._performed = performed
        self._clients: dict[str, Any] = {}

    def wait_until(self, at_ns: int) -> None:
        if at_ns > self._simulation.now_ns:
            self._simulation.sleep(at_ns - self._simulation.now_ns)

    def perform_all(self, acts: Iterable[tuple[int, ScheduledOperation]], began_ns: int) -> None:
        for number, operation in acts:
            self.wait_until(began_ns + operation.at_ns)
            if self._is_applicable(operation):
                conditions = self._config.network.conditions
                self._performed.add(number)
                self._perform(operation)
                if operation.does.startswith(NETWORK) and self._config.network.conditions == conditions:
                    self._performed.discard(number)

    def _is_applicable(self, operation: ScheduledOperation) -> bool:
        config, i = self._config, operation.peer
        if i is not None and i >= config.n:
            return False
        if operation.does in ("make_client", "connect_client") or operation.does.startswith(CLIENT):
            return operation.does == "make_client" or operation.args[0] in self._clients
        if operation.does.startswith(NETWORK) or i is None:
            return True
        if operation.does == "start1":
            return not config.is_up(i)
        if operation.does == "connect":
            return not config.connected(i) and config.is_up(i)
        if operation.does == "disconnect":
            return config.connected(i)
        if operation.does == "crash_at":
            return config.is_up(i) and (not operation.ends_something or config.is_armed(i))
        if operation.does == "resume":
            return config.is_up(i) and config.is_paused(i)
        return config.is_up(i) and (operation.does == "crash1" or not config.is_paused(i))

    def _perform(self, operation: ScheduledOperation) -> None:
        config, args = self._config, operation.args
        if operation.does == "make_client":
            assert isinstance(config, KVConfig)
            self._clients[args[0]] = config.make_client(args[1])
        elif operation.does == "connect_client":
            assert isinstance(config, KVConfig)
            config.connect_client(self._clients[args[0]], args[1])
        elif operation.does.startswith(CLIENT):
            getattr(self._clients[args[0]], operation.does.removeprefix(CLIENT))(*args[1:])
        elif operation.does.startswith(NETWORK):
            getattr(config.network, operation.does.removeprefix(NETWORK))(*args, **operation.kwargs)
        elif operation.does == "take_snapshot":
            if args[1] <= max(config.applied(args[0]), default=0):
                config.take_snapshot(*args)
        else:
            getattr(config, operation.does)(*args, **operation.kwargs)
