"""The simulation: cooperative tasks, and a virtual clock that advances only when every task waits.

Promise: one seed and one program give one run. The choice source (choices.py) decides which ready task runs next and
every random number; nothing depends on the wall clock, hash order or memory addresses. `digest()` summarizes a run, so
that two runs can be compared.

Not promised: parallelism. A task runs until it waits (sleep, lock, queue, join, ...), or until code that calls
`preempt()` preempts it.

Start reading at `Simulation.run()`, then `_switch()`. The scheduler is `_switch()` and `_advance()`; the task that is
about to wait calls them.
"""

from __future__ import annotations

import _thread
import hashlib
import math
import sys
import traceback
from array import array
from collections.abc import Callable, Iterator
from heapq import heapify, heappop, heappush
from operator import itemgetter
from random import Random
from types import FrameType
from typing import TYPE_CHECKING, Any, NoReturn, TypeVar
from zlib import crc32

from greenlet import GreenletExit, getcurrent, greenlet  # type: ignore[import-untyped]  # it ships no types

from labsim import garbage, guard, stacks, waits, watchdog
from labsim.choices import ChoiceKind, ChoiceSource, NodeSeed, SeededSource, TesterStream
from labsim.current import run_context
from labsim.errors import (
    Deadlock,
    Livelock,
    NodeKilled,
    RealWorldError,
    SimulationError,
    TaskFailed,
    Unresponsive,
)
from labsim.task import Node, Task, TimerHandle
from labsim.trace import Event, Listener, Subscription

if TYPE_CHECKING:
    from labsim.ordered import Ordering

T = TypeVar("T")

NS_PER_S = 1_000_000_000
_DIGEST_BATCH = 16_384
_INT63 = 2**63 - 1  # what the digest holds of a clock that has run for centuries
_FEW_STALE_TIMERS = 64
_FIRED = -1  # in Task.timer: the time was up, the task is ready or has run since


def seconds_to_ns(seconds: float) -> int:
    """The nearest nanosecond, but at least 1 for a positive time: a sleep always advances the clock."""
    ns = int(seconds * NS_PER_S + 0.5)
    return ns if ns or not seconds else 1


def _nothing() -> None:
    pass


class Simulation:
    """Owns the clock, the tasks, the timers, the random streams and the trace of one run."""

    def __init__(
        self,
        seed: int,
        *,
        choice_source: ChoiceSource | None = None,
        trace: bool = True,
        livelock_switches: int = 1_000_000,
        unresponsive_s: float | None = 5.0,
    ) -> None:
        if not isinstance(seed, int):
            raise TypeError(f"Simulation(): seed must be an int, got {seed!r}")
        if livelock_switches < 1:
            raise ValueError(f"Simulation(): livelock_switches must be at least 1, got {livelock_switches}")
        if unresponsive_s is not None and unresponsive_s <= 0:
            raise ValueError(f"Simulation(): unresponsive_s must be above 0, or None, got {unresponsive_s}")
        self.seed = seed
        self.choice_source: ChoiceSource = SeededSource(seed) if choice_source is None else choice_source
        self.now_ns = 0
        self.switches = 0
        self.trace: list[Event] | None = [] if trace else None
        self.unresponsive_s = unresponsive_s
        self.no_delays = False  # a preempted task is ready again at once
        self.ordering: Ordering | None = None  # set before run() to track happens-before
        self.os_thread = 0  # the OS thread it runs in, for the watchdog
        self.current: Task = None  # type: ignore[assignment]  # set by run(); there is none before
        self._livelock_switches = livelock_switches
        self._livelock_at = livelock_switches
        self._ready: list[Task] = []
        self._timers: list[tuple[int, int, Task | TimerHandle]] = []
        self._timer_seq = 0
        self._stale_timers = 0
        self._paused_nodes = 0  # how many nodes are paused
        self._frozen_clocks = 0  # how many nodes have frozen clocks
        self.one_clock = True  # no node's clock was ever frozen, so all show the same time
        self._task_seq = 0
        self._tester_threads = 0
        self._numbers: dict[str, int] = {}
        self._tasks: dict[Task, None] = {}
        self._incarnations: dict[str, int] = {}
        self._tester_stream = TesterStream(self.choice_source)
        self.pick = self.choice_source.pick
        self._decisions: list[int] = []
        self._hash = hashlib.blake2b(digest_size=16)
        self._subscriptions: list[Subscription] = []
        self._emitted = 0  # events in the trace, without log lines
        self._deliver_at: float = math.inf  # the number of them that completes the next listener's chunk
        self.main_greenlet: greenlet | None = None  # the one that called run()
        self._starting: Task | None = None  # the task that the main greenlet starts next
        self._idle: list[greenlet] = []  # finished greenlets, kept because making one costs 20 switches
        # Greenlets of killed tasks. Kept because dropping one would run its finally blocks.
        self._killed_greenlets: list[greenlet] = []
        self._failure: BaseException | None = None
        # The current task while functions of call_later() run.
        self._clock = Task(0, "clock", None, self._tester_stream, _nothing, (), {})
        self._state = "new"

    # ---- running -----------------------------------------------------------------------------

    def run(self, main: Callable[[], T]) -> T:
        """Run `main` as the first task and return its value. All tasks have ended afterwards.

        An exception in `main` is raised as it is; an exception in any other task is raised as `TaskFailed`.
        """
        if run_context.simulation is not None:
            raise SimulationError("run(): a simulation is running in this thread already; simulations cannot be nested")
        if self._state != "new":
            raise SimulationError(
                "run(): this Simulation has run already; to repeat a run, make a new Simulation with the same seed"
            )
        self._state = "running"
        self.main_greenlet = getcurrent()
        self.os_thread = _thread.get_ident()
        try:
            # The watchdog first: its thread is a real one.
            with watchdog.watched(self), guard.installed(), garbage.controlled_gc():
                run_context.simulation = self
                try:
                    main_task = self.spawn(main, name="main")
                    self._ready.clear()
                    self._starting = main_task
                    self._start_greenlets()
                finally:
                    self._unwind_everything()
                    run_context.simulation = None
        finally:
            self._state = "over"
            run_context.simulation = None
            self.main_greenlet = None
        if self._failure is not None:
            # The cycle failure -> traceback -> frame -> self would keep the whole run alive.
            failure, self._failure = self._failure, None
            try:
                raise failure
            finally:
                del failure
        return main_task.value  # type: ignore[no-any-return]

    def _start_greenlets(self) -> None:
        """Start greenlets from the main greenlet, until the run ends.

        Not where the task is chosen, because a greenlet inherits the recursion depth of the one that starts it.
        """
        while self._starting is not None:
            task, self._starting = self._starting, None
            self.current = task
            task.greenlet = greenlet(self._work, self.main_greenlet)
            task.greenlet.switch()

    def _unwind_everything(self) -> None:
        """Free the stacks of all unfinished tasks. Nothing that they do now can affect the run."""
        self._state = "closing"
        # Their finally blocks may emit events, which must not reach the trace or the digest.
        decisions, self._decisions = self._decisions, []
        trace, self.trace = self.trace, None
        leftover = [task.greenlet for task in self._tasks if task.greenlet is not None]
        # Do not report a task that is ended inside a __del__ (see _cannot_wait).
        tell_unraisable = sys.unraisablehook
        sys.unraisablehook = lambda args: None if args.exc_type is GreenletExit else tell_unraisable(args)
        for g in (*leftover, *self._killed_greenlets, *self._idle):
            if not g.dead:
                try:
                    g.throw(GreenletExit)
                except (Exception, SystemExit):
                    pass  # errors that a dying task's handlers raise do not matter
                except BaseException as stop:
                    self._failure = stop  # Ctrl-C, or a test runner's timeout
            if not g.dead:
                _stubborn.append(g)
        sys.unraisablehook = tell_unraisable
        self._tasks.clear()
        self._killed_greenlets.clear()
        self._idle.clear()
        self._ready.clear()
        self._timers.clear()
        self._decisions = decisions
        self.trace = trace

    def fail(self, failure: BaseException) -> NoReturn:
        """End the run with this failure. The calling task never runs another line."""
        if self._failure is None:
            self._failure = failure
        self._leave()

    def _leave(self) -> NoReturn:
        main_greenlet = self.main_greenlet
        if main_greenlet is None or main_greenlet is getcurrent():
            raise self._failure or SimulationError("this object belongs to a simulation that has ended; make a new one")
        while True:
            main_greenlet.switch()

    # ---- tasks ---------------------------------------------------------------------------------

    def spawn(
        self,
        fn: Callable[..., Any],
        *args: Any,
        name: str | None = None,
        node: Node | None = None,
        kwargs: dict[str, Any] | None = None,
        entry_point: str = "",
    ) -> Task:
        """A new task, ready to run `fn(*args, **kwargs)`. Without a node it belongs to the tester.

        `entry_point`: for a call from outside the node, the called method of the node's program.
        """
        self._task_seq = id_ = self._task_seq + 1
        if name is None:
            name = getattr(fn, "__name__", "task")
        stream: Random = self._tester_stream
        if node is not None:
            if not node.alive:
                raise NodeKilled(f"spawn({name}): node {node} is dead")
            stream = node.stream
        task = Task(id_, name, node, stream, fn, args, kwargs, entry_point)
        self._tasks[task] = None
        if node is not None:
            node.tasks[task] = None
            if self.ordering is not None:
                self.ordering.began(task, self.current)
        self._ready.append(task)
        return task

    def call_on(self, node: Node, fn: Callable[..., T], *args: Any, name: str | None = None) -> T:
        """Run `fn(*args)` as a task of `node`, wait for it, return its value; NodeKilled if the node dies."""
        task = self.spawn(fn, *args, name=name, node=node)
        self.join(task)
        if task.fn is not None:
            raise NodeKilled(f"{task.name}: node {node} died before the call returned")
        return task.value  # type: ignore[no-any-return]

    def join(self, task: Task, timeout_ns: int | None = None) -> bool:
        """Wait until `task` has finished or was killed. False: the timeout came first."""
        if task.dead:
            return True
        me = self.current
        if task.joiners is None:
            task.joiners = []
        task.joiners.append(me)
        if self.park(task, timeout_ns):
            return True
        if task.joiners is not None:
            task.joiners.remove(me)
        return False

    def interrupt_main(self, error: BaseException) -> None:
        """Raise this error in the main task: where it waits now or, if it is running, where it waits next."""
        main = next(iter(self._tasks))

        def switch() -> None:
            Simulation._switch(self)
            if self.current is main:
                del self._switch
                raise error

        # On this instance, so that it costs other runs nothing.
        self._switch = switch  # type: ignore[method-assign]
        if main is not self.current and main not in self._ready:
            self.wake(main)

    def end_other_testers(self) -> None:
        """End all tasks of the tester but the current one, which an interrupt may have left in lists of waiters."""
        me = self.current
        for task in list(self._tasks):
            if task.joiners is not None and me in task.joiners:
                task.joiners.remove(me)
            if task.node is not None or task is me:
                continue
            if task in self._ready:
                self._ready.remove(task)
            if task.timer > 0:
                task.timer = 0
                self._count_stale_timer()
            if task.greenlet is not None:
                self._killed_greenlets.append(task.greenlet)
                task.greenlet = None
            self._end(task)

    def tasks(self) -> Iterator[Task]:
        """Every task that has not ended, oldest first."""
        return iter(tuple(self._tasks))

    def timeouts_ns(self) -> dict[Task, int]:
        """How long until the timeout of each wait that has one, unless its clock is frozen."""
        return {
            waiter: at_ns - self.now_ns
            for at_ns, seq, waiter in self._timers
            if isinstance(waiter, Task) and seq == waiter.timer
        }

    def _end(self, task: Task) -> None:
        task.dead = True
        del self._tasks[task]
        if task.node is not None:
            del task.node.tasks[task]
            if task.order is not None:
                task.order.end()
        joiners = task.joiners
        if joiners:
            task.joiners = None
            for joiner in joiners:
                self.wake(joiner)

    def _work(self) -> None:
        """The body of every greenlet: run task after task."""
        me = getcurrent()
        main = 1  # the first task's id
        while True:
            task = self.current
            try:
                kwargs = task.kwargs
                task.value = task.fn(*task.args, **kwargs) if kwargs else task.fn(*task.args)  # type: ignore[misc]
            except BaseException as error:
                if self._state != "running":
                    raise  # to _unwind_everything()
                # As in a real thread, SystemExit ends only this task. In main it ends the program.
                if task.id == main or not isinstance(error, (SystemExit, GreenletExit)):
                    self._failure = self._failure_of(task, error, is_main=task.id == main)
                del error
            if self._state != "running":
                return
            task.fn = None
            task.args = ()
            task.kwargs = kwargs = None
            task.greenlet = None
            if task.id == main or self._failure is not None:
                return  # to the main greenlet, the parent of every greenlet
            self._end(task)
            # The next task must not find this one's context variables (a decimal precision, say).
            me.gr_context = None
            self._idle.append(me)
            following = self._choose_next()
            del task
            if following.greenlet is None:
                # A task that has not started can reuse this greenlet, without a switch.
                self._idle.pop()
                following.greenlet = me
                self.current = following
            else:
                self.current = following
                following.greenlet.switch()
            del following

    def _failure_of(self, task: Task, error: BaseException, *, is_main: bool) -> BaseException:
        # Not an Exception (Ctrl-C, a test runner's timeout): not a failure of the task that happened to be running.
        if is_main or not isinstance(error, Exception) or isinstance(error, (RealWorldError, Unresponsive)):
            return error
        # The first frame is _work(), which does not help the reader.
        own = error.__traceback__.tb_next if error.__traceback__ is not None else None
        error = error.with_traceback(own)
        text = "".join(traceback.format_exception(type(error), error, own)).rstrip()
        where = f" of node {task.node}" if task.node is not None else ""
        failed = TaskFailed(
            f"task {task.name}{where} ended with an exception at {self.now:.6f} s:\n{text}",
            task=task.name,
            node=task.node.name if task.node is not None else None,
            entry_point=task.entry_point,
        )
        failed.__cause__ = error
        return failed

    # ---- waiting and switching -----------------------------------------------------------------

    def park(self, waiting_for: Any, timeout_ns: int | None = None) -> bool:
        """Make the current task wait. True: wake() ended the wait; False: the timeout came first.

        `waiting_for` is what a deadlock report names: a string, or an object with `describe_wait()`.
        """
        task = self.current
        task.waiting_for = waiting_for
        task.since_ns = self.now_ns
        if timeout_ns is not None:
            self._timer_seq = seq = self._timer_seq + 1
            task.timer = seq
            if self._frozen_clocks and timeout_ns and task.node is not None and task.node.clock_frozen:
                task.node.timers.append((task.node.frozen_at_ns + timeout_ns, seq, task))
            else:
                heappush(self._timers, (self.now_ns + timeout_ns, seq, task))
        else:
            task.timer = 0
        self._switch()
        task.waiting_for = None
        return task.woken

    def wake(self, task: Task) -> None:
        """Make a parked task ready. A dead one stays dead."""
        if task.dead:
            return
        if task.timer:
            if task.timer == _FIRED:
                # Its timeout fired at this very instant and it is ready already, but it was woken before it ran.
                task.woken = True
                return
            task.timer = 0
            self._count_stale_timer()
        task.woken = True
        self._ready.append(task)

    def sleep(self, duration_ns: int) -> None:
        """park("sleep", duration_ns), inlined because it is the most frequent wait; 0 only lets other tasks run."""
        task = self.current
        if self._frozen_clocks and duration_ns:
            self.park("sleep", duration_ns)
        elif duration_ns:
            task.waiting_for = "sleep"
            task.since_ns = now_ns = self.now_ns
            self._timer_seq = task.timer = seq = self._timer_seq + 1
            heappush(self._timers, (now_ns + duration_ns, seq, task))
            self._switch()
            task.waiting_for = None
        else:
            self._ready.append(task)
            self._switch()

    def preempt(self, delay_ns: int = 0) -> None:
        """Preempt the current task: other ready tasks run first. It is ready again after `delay_ns`.

        The delay counts as the node's lost time (lost_time_ns()). Where a task cannot wait (in a timer's function, in
        garbage collection) this does nothing.
        """
        if self._state != "running":
            return
        task = self.current
        node = task.node
        if not delay_ns or node is None or self.no_delays:
            self.sleep(0)
            return
        self.begin_delay(node)
        self.call_later(delay_ns, self.wake, task)
        self.park("preemption")
        self.end_delay(node)

    def begin_delay(self, node: Node) -> None:
        """One more task of the node is preempted with a delay."""
        self._begin_lost_time(node)
        node.delayed += 1

    def end_delay(self, node: Node) -> None:
        node.delayed -= 1
        self._end_lost_time(node)

    def _switch(self) -> None:
        """Run other tasks until this one is chosen again."""
        if self._state != "running":
            self._cannot_wait()
        following = self._choose_next()
        if following is not self.current:
            g = following.greenlet
            if g is None:
                # It has not started: reuse an idle greenlet, or let the main greenlet make one.
                if self._idle:
                    g = following.greenlet = self._idle.pop()
                else:
                    self._starting = following
                    g = self.main_greenlet
            self.current = following
            g.switch()  # type: ignore[union-attr]  # there is a main greenlet during a run

    def _cannot_wait(self) -> NoReturn:
        if self._state == "in a timer":
            # Not raised here: a handler in the task whose stack this is could swallow it.
            self.fail(
                SimulationError(
                    f"call_later(): the function must not wait, but it waits {waits.describe_wait(self.current)}; "
                    "let it spawn() a task that waits"
                )
            )
        if self._state == "collecting":
            self.fail(
                SimulationError(
                    f"__del__() must not wait when garbage is collected, but it waits "
                    f"{waits.describe_wait(self.current)}:\n{stacks.describe_stack(sys._getframe(1))}"
                )
            )
        self._leave()

    def _choose_next(self) -> Task:
        ready = self._ready
        if self._paused_nodes:
            self._park_paused()
        while not ready:
            self._advance()
            if self._paused_nodes:
                self._park_paused()
        self.switches += 1
        if self.switches > self._livelock_at:
            self._fail_livelock()
        n = len(ready)
        following = ready.pop() if n == 1 else ready.pop(self.pick(self.now_ns, ready))
        self._decisions.append(following.id)
        return following

    def _advance(self) -> None:
        """No task is ready: advance the clock to the next timer and wake what is due."""
        timers = self._timers
        ready = self._ready
        while not ready:
            if not timers:
                self.fail(self._deadlock())
            when, seq, due = heappop(timers)
            if due.timer != seq:
                self._stale_timers -= 1
                continue
            if when != self.now_ns:
                self.now_ns = when
                self._livelock_at = self.switches + self._livelock_switches
                self._decisions.append(-(when & _INT63))
                if len(self._decisions) > _DIGEST_BATCH:
                    self._fold_decisions()
                    self._collect_garbage()
            while True:
                if due.__class__ is Task:
                    due.timer = _FIRED
                    due.woken = False
                    ready.append(due)
                else:
                    due.timer = 0
                    self._fire(due)  # type: ignore[arg-type]
                # Everything due at this instant becomes ready together, so that the seed orders it.
                while timers and timers[0][0] == when:
                    _, seq, due = heappop(timers)
                    if due.timer == seq:
                        break
                    self._stale_timers -= 1
                else:
                    break

    def _fire(self, call: TimerHandle) -> None:
        # Runs on the stack of whichever task is about to wait, but must not be taken for it: that task's node
        # may be the one it kills, and a failure must not surface there.
        waiting = self.current
        self.current = clock = self._clock
        self._state = "in a timer"
        try:
            call.fn(*call.args)
        except BaseException as error:
            self.fail(self._failure_of(clock, error, is_main=False))
        self._state = "running"
        self.current = waiting

    def _collect_garbage(self) -> None:
        # As in _fire(): the __del__ of whatever is found must not be taken for the task that is about to wait.
        waiting = self.current
        self.current = self._clock
        self._state = "collecting"
        garbage.collect()
        if self._state != "collecting":
            raise GreenletExit  # a __del__ ended the run, and swallowed what should have ended this task
        self._state = "running"
        self.current = waiting

    # ---- timers ----------------------------------------------------------------------------------

    def call_later(self, delay_ns: int, fn: Callable[..., None], *args: Any) -> TimerHandle:
        """Call `fn(*args)` after `delay_ns` of virtual time. The function must not wait; it may spawn tasks."""
        self._timer_seq = seq = self._timer_seq + 1
        call = TimerHandle(fn, args, seq)
        heappush(self._timers, (self.now_ns + delay_ns, seq, call))
        return call

    def cancel(self, call: TimerHandle) -> None:
        if call.timer:
            call.timer = 0
            call.args = ()
            self._count_stale_timer()

    def pending_calls(self) -> list[TimerHandle]:
        """What call_later() has yet to call, the next first."""
        return [
            due
            for _, seq, due in sorted(self._timers, key=itemgetter(0, 1))
            if due.timer == seq and due.__class__ is TimerHandle
        ]

    def _count_stale_timer(self) -> None:
        """A canceled timer stays in the heap until its time, or until half of the timers are canceled."""
        self._stale_timers += 1
        if self._stale_timers > _FEW_STALE_TIMERS and self._stale_timers * 2 > len(self._timers):
            # In place: _advance() may be looking at this very list.
            self._timers[:] = [entry for entry in self._timers if entry[2].timer == entry[1]]
            heapify(self._timers)
            self._stale_timers = 0

    # ---- nodes -----------------------------------------------------------------------------------

    def node(self, name: str) -> Node:
        """The next incarnation of the peer called `name`."""
        incarnation = self._incarnations.get(name, 0) + 1
        self._incarnations[name] = incarnation
        seed = self.choice_source.choose((ChoiceKind.NODE, name), incarnation, NodeSeed(name, incarnation))
        return Node(name, incarnation, Random(seed))

    def kill(self, node: Node) -> None:
        """End all tasks of `node` at once, like a power cut: none of them runs another line.

        A task may kill its own node; then this call does not return.
        """
        if not node.alive:
            return
        node.alive = False
        if node.on_kill is not None:
            node.on_kill()
        self._paused_nodes -= node.paused
        self._frozen_clocks -= node.clock_frozen
        node.paused = node.clock_frozen = False
        node.arrivals.clear()
        node.timers.clear()
        killed = list(node.tasks)
        # Mark all of them before waking any joiner or waiter, which may be among them.
        for task in killed:
            task.dead = True
        were_ready = [task for task in self._ready if task.dead] + node.parked
        node.parked.clear()
        self._ready[:] = [task for task in self._ready if not task.dead]
        for task in killed:
            if task.greenlet is not None:
                self._killed_greenlets.append(task.greenlet)
                task.greenlet = None
            if task.timer > 0:
                task.timer = 0
                self._count_stale_timer()
            self._end(task)
        # What was handed to a dead task before it ran (a semaphore's unit, a notification) goes to another task.
        for task in were_ready:
            if task.woken and (pass_on := getattr(task.waiting_for, "waiter_died", None)) is not None:
                pass_on()
        # Survivors that wait for what a dead task held (a lock of the tester, say) get it now.
        for task in self._tasks:
            holder_died = getattr(task.waiting_for, "holder_died", None)
            if holder_died is not None:
                holder_died()
        if self.current.node is node:
            self._switch()

    # ---- paused nodes, and frozen clocks -------------------------------------------------------------------

    def pause(self, node: Node) -> None:
        """Stop a node like a process with SIGSTOP: its tasks do not run, and messages to it wait. Its clock goes on.

        A task may pause its own node; then this call returns when the node resumes.
        """
        self._check_alive("pause", node)
        if node.paused:
            raise SimulationError(f"pause(): node {node} is paused already; resume() it first")
        self._begin_lost_time(node)
        node.paused = True
        self._paused_nodes += 1
        if self.current.node is node:
            self.sleep(0)

    def resume(self, node: Node) -> None:
        """Continue a paused node: overdue timers fire, and waiting messages arrive in order."""
        self._check_alive("resume", node)
        if not node.paused:
            raise SimulationError(f"resume(): node {node} is not paused; pause() it first")
        node.paused = False
        self._paused_nodes -= 1
        self._end_lost_time(node)
        self._ready += node.parked
        node.parked.clear()
        arrivals, node.arrivals = node.arrivals, []
        for fn, args in arrivals:
            fn(*args)

    def freeze_clock(self, node: Node) -> None:
        """Stop the node's clock while its tasks go on running. Its timers keep their remaining times."""
        self._check_alive("freeze_clock", node)
        if node.clock_frozen:
            raise SimulationError(
                f"freeze_clock(): the clock of node {node} is frozen already; unfreeze_clock() it first"
            )
        self._begin_lost_time(node)
        node.frozen_at_ns = self.time_of(node)
        node.clock_frozen = True
        self._frozen_clocks += 1
        self.one_clock = False
        others = []
        for entry in self._timers:
            when, seq, due = entry
            # Timers that are due now (a timeout of 0, say) still fire.
            if due.__class__ is Task and due.node is node and when > self.now_ns:
                if due.timer == seq:
                    node.timers.append((when - node.behind_ns, seq, due))
                else:
                    self._stale_timers -= 1
            else:
                others.append(entry)
        heapify(others)
        # In place: _advance() may be looking at this very list.
        self._timers[:] = others

    def unfreeze_clock(self, node: Node) -> None:
        """Let the node's clock go on from where it was frozen."""
        self._check_alive("unfreeze_clock", node)
        if not node.clock_frozen:
            raise SimulationError(f"unfreeze_clock(): the clock of node {node} is not frozen; freeze_clock() it first")
        node.behind_ns = self.now_ns - node.frozen_at_ns
        node.clock_frozen = False
        self._frozen_clocks -= 1
        self._end_lost_time(node)
        for own_ns, seq, task in node.timers:
            if task.timer == seq:
                heappush(self._timers, (own_ns + node.behind_ns, seq, task))
        node.timers.clear()

    def time_of(self, node: Node | None) -> int:
        """The node's clock in ns (None: the tester's): the simulation's clock, less the time it was frozen."""
        if node is None:
            return self.now_ns
        return node.frozen_at_ns if node.clock_frozen else self.now_ns - node.behind_ns

    def lost_time_ns(self, node: Node | None, since_ns: int) -> int:
        """How long since then the node was paused, preempted with a delay, or had its clock frozen."""
        if node is None or (node.unavailable_since_ns is None and not node.lost_time):
            return 0
        lost_time_ns = sum(max(0, end_ns - max(begin_ns, since_ns)) for begin_ns, end_ns in node.lost_time)
        if node.unavailable_since_ns is not None:
            lost_time_ns += self.now_ns - max(node.unavailable_since_ns, since_ns)
        return lost_time_ns

    def when_running(self, node: Node, fn: Callable[..., None], *args: Any) -> None:
        """Call it now or, if the node is paused, when it resumes. For messages from outside."""
        if node.paused:
            node.arrivals.append((fn, args))
        else:
            fn(*args)

    def _park_paused(self) -> None:
        """Park the ready tasks of paused nodes until their nodes resume."""
        ready = self._ready
        running = []
        for task in ready:
            if task.node is not None and task.node.paused:
                task.node.parked.append(task)
            else:
                running.append(task)
        ready[:] = running

    def _check_alive(self, what: str, node: Node) -> None:
        if not node.alive:
            raise NodeKilled(f"{what}(): node {node} is dead")

    def _begin_lost_time(self, node: Node) -> None:
        if node.unavailable_since_ns is None:
            node.unavailable_since_ns = self.now_ns

    def _end_lost_time(self, node: Node) -> None:
        if node.unavailable_since_ns is not None and not node.paused and not node.clock_frozen and not node.delayed:
            node.lost_time.append((node.unavailable_since_ns, self.now_ns))
            node.unavailable_since_ns = None

    # ---- clock, trace ----------------------------------------------------------------------

    @property
    def now(self) -> float:
        """Virtual seconds since the simulation began."""
        return self.now_ns / NS_PER_S

    def next_thread_number(self) -> int:
        """The number of a thread without a name. Each node counts its own threads, as each process would."""
        node = self.current.node
        if node is None:
            self._tester_threads += 1
            return self._tester_threads
        node.threads += 1
        return node.threads

    def next_number(self, kind: str) -> int:
        """Count objects of a kind in this run, so that the keys of their choices differ."""
        self._numbers[kind] = number = self._numbers.get(kind, 0) + 1
        return number

    def emit(
        self, kind: str, node: Node | None, detail: Any, fingerprint: int, message: int = 0, note: str = ""
    ) -> None:
        """Add an event to the trace, and its kind and fingerprint to the digest, which does not need a trace.

        `fingerprint`: of numbers and of what peers or clients send, never of the lab's own texts or names
        (trace.fingerprint_of()). `message`: the id of the message that the event is about.
        """
        self._decisions.append(fingerprint ^ (_kind_codes.get(kind) or _kind_code(kind)))
        trace = self.trace
        if trace is not None:
            if node is None:
                trace.append(Event(self.now_ns, kind, "", 0, message, detail, note))
            else:
                trace.append(Event(self.now_ns, kind, node.name, node.incarnation, message, detail, note))
            self._emitted += 1
            if self._emitted >= self._deliver_at:
                self._deliver(trace)

    def record(self, event: Event) -> None:
        """Add a log line to the trace only, not to the digest.

        It does not count toward a chunk, because what listeners do with a chunk must not depend on log lines.
        """
        trace = self.trace
        if trace is not None:
            trace.append(event)
            for subscription in self._subscriptions:
                if subscription.chunk == 1:
                    subscription.deliver(trace, self._emitted)

    def subscribe(self, listener: Listener, *, chunk: int = 1) -> None:
        """Call `listener(events)` with the new events of the trace after every `chunk` events, on the stack of the task
        that causes the last of them. The listener may end the run with fail().

        With a chunk of 1 the listener gets every event at once. Larger chunks are cheaper. Log lines do not count, and
        the last events of a run may not complete a chunk: read them from the trace.
        """
        if self.trace is None:
            raise SimulationError("subscribe(): this simulation has no trace; make it with trace=True")
        if chunk < 1:
            raise ValueError(f"subscribe(): chunk must be at least 1, got {chunk}")
        self._subscriptions.append(Subscription(listener, chunk, len(self.trace), self._emitted + chunk))
        self._deliver_at = min(self._deliver_at, self._emitted + chunk)

    def _deliver(self, trace: list[Event]) -> None:
        emitted = self._emitted
        for subscription in self._subscriptions:
            if emitted >= subscription.due:
                subscription.deliver(trace, emitted)
        self._deliver_at = min(subscription.due for subscription in self._subscriptions)

    def deliver_now(self) -> None:
        """Give every listener its remaining events, even if its chunk is not complete."""
        if self.trace is not None:
            for subscription in self._subscriptions:
                subscription.deliver(self.trace, self._emitted)
            self._deliver_at = min((subscription.due for subscription in self._subscriptions), default=math.inf)

    def digest(self) -> str:
        """A hash of the run so far, in 32 hex digits: every scheduling decision, clock step and event."""
        so_far = self._hash.copy()
        so_far.update(array("q", self._decisions).tobytes())
        return so_far.hexdigest()

    def _fold_decisions(self) -> None:
        self._hash.update(array("q", self._decisions).tobytes())
        self._decisions.clear()

    # ---- reports -------------------------------------------------------------------------------------

    def _fail_livelock(self) -> NoReturn:
        lately = set(self._decisions[-200:])
        running = waits.waits_of(self, (task for task in self._tasks if task.id in lately))
        self.fail(
            Livelock(
                f"Livelock at {self.now:.6f} s: tasks have switched {self._livelock_switches:,} times and virtual time "
                "has not advanced. Wait on a Condition, or sleep for more than 0 s.\n"
                f"These tasks run in turn:\n{waits.describe_waits(running)}",
                waits=running,
            )
        )

    def _deadlock(self) -> Deadlock:
        waiting = waits.waits_of(self, self._tasks)
        nodes = "".join(f" Node {node} {why}." for node, why in self._unavailable())
        return Deadlock(
            f"Deadlock at {self.now:.6f} s: every task waits and no timer is set.{nodes}\n"
            f"{waits.describe_waits(waiting)}",
            waits=waiting,
        )

    def _unavailable(self) -> Iterator[tuple[Node, str]]:
        for node in dict.fromkeys(task.node for task in self._tasks):
            if node is not None and node.paused:
                yield node, "is paused"
            if node is not None and node.clock_frozen:
                yield node, "has a frozen clock"

    def frames_of(self, task: Task) -> FrameType | None:
        """The innermost frame of a task; None if it has not started."""
        if task is self.current and getcurrent() is task.greenlet:
            return sys._getframe(1)
        return None if task.greenlet is None else task.greenlet.gr_frame


# Greenlets whose own handlers keep them from ending (`except BaseException: continue` around a wait).
# They stay parked forever: dropping them would only raise in them once more.
_stubborn: list[greenlet] = []

_kind_codes: dict[str, int] = {}


def _kind_code(kind: str) -> int:
    code = _kind_codes[kind] = crc32(kind.encode()) << 31
    return code
