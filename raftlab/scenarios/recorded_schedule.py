"""The acts of a test, noted while it runs, left out if a choice says so, and done again without the test.

A test is a program, and what it does depends on what it sees. Its acts are a list: at 1.2 s peer 0 is given a command,
at 1.9 s peer 2 crashes. `noting()` writes that list while a test runs; `playing()` makes a test of such a list, which
does each act at its time, whatever the peers do. An act that makes no sense any more (peer 2 is down already) is left
out, and so is a restart of a peer that is up: who takes a fault out of a list takes out what ends it.

Under `noting()` each fault is also a choice: the choice source may say that it does not happen. Its key is the act, the
call in the test (labsim/callsite.py), and how often that call has done it. What would end the fault then does nothing.

Promise: a test that nobody notes runs as if this module were not there.

Start at `noting()`; trace/operations.py says what an act is.
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
from raftlab.scenarios.as_test import as_test
from raftlab.scenarios.text import parse_script
from raftlab.trace.operations import (
    ASKS,
    CLIENT,
    CONDITIONS,
    ENDS,
    FAULTS,
    NETWORK,
    OPERATIONS,
    Act,
    Cluster,
    Play,
    Where,
)


class Notes:
    """Of one run."""

    def __init__(self) -> None:
        self.clusters: list[Cluster] = []
        self.gave_up: Where | None = None


# ---- noting ---------------------------------------------------------------------------------------------------------


def noting(test: LabTest, notes: Notes) -> LabTest:
    """The same test, its acts noted, and its faults a choice."""

    @wraps(test.function)
    def noted(make: Callable[..., Config]) -> Any:
        def make_noted(**how: Any) -> Config:
            simulation = current_simulation()
            assert simulation is not None
            made_ns = simulation.now_ns
            config = make(**how)
            cluster = Cluster(how, len(notes.clusters) + 1, made_ns, [], [])
            notes.clusters.append(cluster)
            _Noter(simulation, config, cluster, notes)
            return config

        return test.function(make_noted)

    return replace(test, function=noted)


_NOTED = frozenset((*FAULTS, *CONDITIONS, *ENDS))


class _Noter:
    """Stands before the methods of one cluster."""

    def __init__(self, simulation: Simulation, config: Config, cluster: Cluster, notes: Notes) -> None:
        self._simulation = simulation
        self._config = config
        self._cluster = cluster
        self._notes = notes
        self._main = next(simulation.tasks())
        self._inside: set[Task] = set()  # who is in an act already
        self._threads: dict[Task, str] = {}
        self._counts: dict[ChoicePoint, int] = {}
        self._did_not: set[tuple[str, Any]] = set()  # faults that did not happen, until they would have ended
        self._clients = 0
        for name in (*FAULTS, *ENDS, *ASKS):
            setattr(config, name, self._noted(name, getattr(config, name)))
        for name in CONDITIONS:
            setattr(config.network, name, self._noted(f"{NETWORK}{name}", getattr(config.network, name)))
        if isinstance(config, KVConfig):
            setattr(config, "make_client", self._noted_clients(config.make_client))  # noqa: B010  # one way for all
            setattr(config, "connect_client", self._noted("connect_client", config.connect_client))  # noqa: B010
        setattr(config, "fail", self._noted_fail(config.fail))  # noqa: B010
        setattr(config, "end", self._noted_end(config.end))  # noqa: B010

    def _noted(self, does: str, method: Callable[..., Any]) -> Callable[..., Any]:
        @wraps(method)
        def act(*args: Any, **kwargs: Any) -> Any:
            task = self._simulation.current
            if task.node is not None or task in self._inside:
                return method(*args, **kwargs)  # a part of another act, or a crash that was armed
            self._inside.add(task)
            try:
                if does in ("connect", "disconnect", "resume"):
                    for i in args:
                        self._do(does, method, [i], {}, task)
                    return None
                return self._do(does, method, list(args), kwargs, task)
            finally:
                self._inside.discard(task)

        return act

    def _do(self, does: str, method: Callable[..., Any], args: list[Any], kwargs: dict[str, Any], task: Task) -> Any:
        act = self._act(does, args, kwargs, task)
        if does not in ASKS and does != "connect_client" and not self._happens(act):
            return None
        if does == "start1" and self._config.is_up(args[0]):
            self._cluster.acts.append(self._act("crash1", args, {}, task))
        self._cluster.acts.append(act)
        return method(*args, **kwargs)

    def _act(self, does: str, args: list[Any], kwargs: dict[str, Any], task: Task) -> Act:
        named = [getattr(one, "name", one) for one in args]  # a client, by its name
        given = [list(one) if isinstance(one, Iterable) and not isinstance(one, str) else one for one in named]
        if does in ("start", "take_snapshot"):
            given = named
        at_ns = self._simulation.now_ns - self._cluster.made_ns
        return Act(at_ns, does, given, dict(kwargs), self._thread(task))

    def _thread(self, task: Task) -> str:
        if task is self._main:
            return ""
        if task not in self._threads:
            self._threads[task] = f"{task.name} #{len(self._threads) + 1}"
        return self._threads[task]

    def _happens(self, act: Act) -> bool:
        what = (act.does, act.peer if act.peer is not None else str(act.args[:2]))
        begun = {"start1": "crash1", "connect": "disconnect", "resume": "pause"}.get(act.does)
        if begun is not None:
            fault = (begun, act.peer)
            if fault in self._did_not:
                self._did_not.discard(fault)
                return False
            # After a crash that did not happen it is connected still.
            return not (begun == "disconnect" and self._config.connected(act.args[0]) and self._counts)
        if act.ends_something:
            return True
        place = (ChoiceKind.FAULT, act.does, self._call_site())
        self._counts[place] = ordinal = self._counts.get(place, 0) + 1
        if self._simulation.choice_source.choose(place, ordinal, Constant(True)):
            self._cluster.faults.append(place)
            return True
        self._did_not.add(what)
        return False

    def _call_site(self) -> str:
        """Of the reader's code, innermost."""
        frame: FrameType | None = sys._getframe(1)
        while frame is not None and not is_user_code(frame.f_code.co_filename):
            frame = frame.f_back
        return "" if frame is None else call_site(frame, _NOTED)

    def _noted_clients(self, make_client: Callable[..., Any]) -> Callable[..., Any]:
        @wraps(make_client)
        def make(reaches: Any = None) -> Any:
            reaches = None if reaches is None else list(reaches)
            client = make_client(reaches)
            self._clients += 1
            task = self._simulation.current
            self._cluster.acts.append(self._act("make_client", [client.name, reaches], {}, task))
            for name in OPERATIONS:
                setattr(client, name, self._noted_operation(client.name, name, getattr(client, name)))
            return client

        return make

    def _noted_operation(self, client: str, name: str, method: Callable[..., Any]) -> Callable[..., Any]:
        @wraps(method)
        def operation(*args: Any) -> Any:
            task = self._simulation.current
            self._cluster.acts.append(self._act(f"{CLIENT}{name}", [client, *args], {}, task))
            return method(*args)

        return operation

    def _noted_fail(self, fail: Callable[..., Any]) -> Callable[..., Any]:
        @wraps(fail)
        def noted(*args: Any, **kwargs: Any) -> Any:
            if self._notes.gave_up is None:
                simulation = self._simulation
                own = simulation.current is self._main
                self._notes.gave_up = where_of(sys._getframe(1) if own else simulation.frames_of(self._main))
            return fail(*args, **kwargs)

        return noted

    def _noted_end(self, end: Callable[..., Any]) -> Callable[..., Any]:
        @wraps(end)
        def noted() -> Any:
            self._cluster.ended_ns = self._simulation.now_ns - self._cluster.made_ns
            self._inside.add(self._simulation.current)  # what it does is no act of the test's
            result = end()  # a failure ends the run, and nothing is raised here
            self._inside.discard(self._simulation.current)
            self._cluster.ended_ns = None
            return result

        return noted


def where_of(frame: FrameType | None) -> Where | None:
    """The innermost line of the reader's, and what of ours it had called."""
    called = ""
    while frame is not None:
        if is_user_code(frame.f_code.co_filename):
            place = location_of(frame)
            return Where(f"{short_path(place.file)}:{place.line}", called)
        called = frame.f_code.co_name
        frame = frame.f_back
    return None


# ---- playing --------------------------------------------------------------------------------------------------------


def playing(play: Play, *, did: set[int] | None = None) -> LabTest:
    """As a test. `did` gets the numbers of the acts that made sense when their time came."""
    if play.steps:
        return as_test(parse_script("\n".join(play.steps), "shrunk.scenario"))

    def run(make_config: Callable[..., Config]) -> None:
        config = make_config(**play.how)
        simulation = current_simulation()
        assert simulation is not None
        began_ns = simulation.now_ns
        if play.snapshot_every is not None:
            config.snapshot_every(play.snapshot_every)
        player = _Player(simulation, config, set() if did is None else did)
        actors: dict[str, list[tuple[int, Act]]] = {}
        for number, act in enumerate(play.acts):
            actors.setdefault(act.by, []).append((number, act))
        for number, act in enumerate(play.acts):
            if not act.by:
                player.act_all([(number, act)], began_ns)
            elif act.by in actors:
                # Only now: what it needs has been made before.
                simulation.spawn(player.act_all, actors.pop(act.by), began_ns, name=act.by)
        player.wait_until(began_ns + play.end_ns)

    return LabTest("play", Path(), LabTestKind.SERVICE if play.service else LabTestKind.PEER, run)


class _Player:
    def __init__(self, simulation: Simulation, config: Config, did: set[int]) -> None:
        self._simulation = simulation
        self._config = config
        self._did = did
        self._clients: dict[str, Any] = {}

    def wait_until(self, at_ns: int) -> None:
        if at_ns > self._simulation.now_ns:
            self._simulation.sleep(at_ns - self._simulation.now_ns)

    def act_all(self, acts: Iterable[tuple[int, Act]], began_ns: int) -> None:
        for number, act in acts:
            self.wait_until(began_ns + act.at_ns)
            if self._makes_sense(act):
                conditions = self._config.network.conditions
                self._did.add(number)
                self._perform(act)
                if act.does.startswith(NETWORK) and self._config.network.conditions == conditions:
                    self._did.discard(number)

    def _makes_sense(self, act: Act) -> bool:
        config, i = self._config, act.peer
        if i is not None and i >= config.n:
            return False
        if act.does in ("make_client", "connect_client") or act.does.startswith(CLIENT):
            return act.does == "make_client" or act.args[0] in self._clients
        if act.does.startswith(NETWORK) or i is None:
            return True
        if act.does == "start1":
            return not config.is_up(i)
        if act.does == "connect":
            return not config.connected(i) and config.is_up(i)
        if act.does == "disconnect":
            return config.connected(i)
        if act.does == "crash_at":
            return config.is_up(i) and (not act.ends_something or config.is_armed(i))
        if act.does == "resume":
            return config.is_up(i) and config.is_paused(i)
        return config.is_up(i) and (act.does == "crash1" or not config.is_paused(i))

    def _perform(self, act: Act) -> None:
        config, args = self._config, act.args
        if act.does == "make_client":
            assert isinstance(config, KVConfig)
            self._clients[args[0]] = config.make_client(args[1])
        elif act.does == "connect_client":
            assert isinstance(config, KVConfig)
            config.connect_client(self._clients[args[0]], args[1])
        elif act.does.startswith(CLIENT):
            getattr(self._clients[args[0]], act.does.removeprefix(CLIENT))(*args[1:])
        elif act.does.startswith(NETWORK):
            getattr(config.network, act.does.removeprefix(NETWORK))(*args, **act.kwargs)
        elif act.does == "take_snapshot":
            if args[1] <= max(config.applied(args[0]), default=0):
                config.take_snapshot(*args)
        else:
            getattr(config, act.does)(*args, **act.kwargs)
