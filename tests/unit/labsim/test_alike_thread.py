"""Thread and the functions around it, in every runtime."""

import contextvars
import functools
import re
import threading as standard_threading
import weakref

import pytest

from unit.labsim.alike import PATIENCE_S, TICK_S, alike


@alike
def test_target_gets_args_and_kwargs(runtime):
    got = []

    def target(*args, **kwargs):
        got.append((args, kwargs))

    thread = runtime.threading.Thread(target=target, args=(1, "two"), kwargs={"three": 3})
    thread.start()
    runtime.join(thread)
    assert got == [((1, "two"), {"three": 3})]


@alike
def test_args_may_be_a_list(runtime):
    got = []
    thread = runtime.threading.Thread(target=lambda *args: got.extend(args), args=[1, 2])
    thread.start()
    runtime.join(thread)
    assert got == [1, 2]


@alike
def test_parameters_stand_in_the_standard_order(runtime):
    got = []
    thread = runtime.threading.Thread(None, lambda *a, **k: got.append((a, k)), "by position", (1,), {"x": 2})
    assert thread.name == "by position"
    thread.start()
    runtime.join(thread)
    assert got == [((1,), {"x": 2})]


@alike
def test_daemon_is_keyword_only(runtime):
    with pytest.raises(TypeError):
        runtime.threading.Thread(None, None, None, (), None, True)


@alike
def test_a_group_is_refused(runtime):
    with pytest.raises(AssertionError):
        runtime.threading.Thread(group="workers")


@alike
def test_without_target_a_thread_starts_and_ends(runtime):
    thread = runtime.threading.Thread()
    thread.start()
    runtime.join(thread)
    assert thread.ident is not None


@alike
def test_life_of_a_thread(runtime):
    started, let_go = runtime.threading.Event(), runtime.threading.Event()

    def target():
        started.set()
        let_go.wait(PATIENCE_S)

    thread = runtime.threading.Thread(target=target, name="lived")
    assert not thread.is_alive()
    assert thread.ident is None
    assert "lived" in repr(thread) and "initial" in repr(thread)

    assert thread.start() is None
    assert started.wait(PATIENCE_S)
    assert thread.is_alive()
    ident = thread.ident
    assert isinstance(ident, int) and ident != 0
    assert "lived" in repr(thread) and "started" in repr(thread)

    let_go.set()
    assert thread.join() is None
    assert not thread.is_alive()
    assert thread.ident == ident
    assert "lived" in repr(thread) and "stopped" in repr(thread)


@alike
def test_is_alive_and_has_ident_as_soon_as_start_returns(runtime):
    let_go = runtime.threading.Event()
    thread = runtime.threading.Thread(target=let_go.wait, args=(PATIENCE_S,))
    thread.start()
    assert thread.is_alive()
    assert isinstance(thread.ident, int)
    let_go.set()
    runtime.join(thread)


@alike
def test_repr_shows_class_and_daemon(runtime):
    class Worker(runtime.threading.Thread):
        pass

    assert "Worker" in repr(Worker(name="w"))
    assert "daemon" in repr(Worker(daemon=True))
    assert "daemon" not in repr(Worker(daemon=False))


@alike
def test_start_twice_is_refused(runtime):
    let_go = runtime.threading.Event()
    thread = runtime.threading.Thread(target=let_go.wait, args=(PATIENCE_S,))
    thread.start()
    with pytest.raises(RuntimeError):
        thread.start()
    let_go.set()
    runtime.join(thread)
    with pytest.raises(RuntimeError):
        thread.start()


@alike
def test_join_before_start_is_refused(runtime):
    with pytest.raises(RuntimeError):
        runtime.threading.Thread().join()


@alike
def test_join_of_oneself_is_refused(runtime):
    refused = runtime.elsewhere(lambda: runtime.threading.current_thread().join())
    assert isinstance(refused, RuntimeError)


@alike
def test_join_waits_for_the_end(runtime):
    log = []

    def target():
        runtime.time.sleep(TICK_S)
        log.append("end of thread")

    started_s = runtime.time.monotonic()
    thread = runtime.spawn(target)
    thread.join()
    log.append("joined")
    runtime.assert_elapsed(started_s, at_least=TICK_S)
    assert log == ["end of thread", "joined"]


@alike
def test_join_may_be_repeated(runtime):
    thread = runtime.spawn(lambda: None)
    thread.join()
    thread.join()
    thread.join(timeout=TICK_S)
    assert not thread.is_alive()


@alike
def test_several_threads_may_join_one(runtime):
    let_go = runtime.threading.Event()
    awaited = runtime.spawn(let_go.wait, PATIENCE_S)
    seen = []

    def joiner():
        awaited.join()
        seen.append(awaited.is_alive())

    joiners = [runtime.spawn(joiner) for _ in range(3)]
    let_go.set()
    runtime.join(*joiners)
    assert seen == [False] * 3


@alike
def test_join_gives_up_after_its_timeout(runtime):
    let_go = runtime.threading.Event()
    thread = runtime.spawn(let_go.wait, PATIENCE_S)
    started_s = runtime.time.monotonic()
    assert thread.join(timeout=TICK_S) is None
    runtime.assert_elapsed(started_s, at_least=TICK_S)
    assert thread.is_alive()
    let_go.set()
    runtime.join(thread)


@alike
@pytest.mark.parametrize("timeout_s", [0, 0.0, -1, -0.5])
def test_join_without_time_left_returns_at_once(runtime, timeout_s):
    let_go = runtime.threading.Event()
    thread = runtime.spawn(let_go.wait, PATIENCE_S)
    started_s = runtime.time.monotonic()
    thread.join(timeout_s)
    runtime.assert_elapsed(started_s, at_least=0)
    assert thread.is_alive()
    let_go.set()
    runtime.join(thread)


@alike
def test_join_returns_before_its_timeout_when_the_thread_ends(runtime):
    started_s = runtime.time.monotonic()
    thread = runtime.spawn(runtime.time.sleep, TICK_S)
    thread.join(PATIENCE_S)
    runtime.assert_elapsed(started_s, at_least=TICK_S)
    assert not thread.is_alive()


@alike
def test_join_refuses_a_timeout_that_is_no_number(runtime):
    let_go = runtime.threading.Event()
    thread = runtime.spawn(let_go.wait, PATIENCE_S)
    with pytest.raises(TypeError):
        thread.join("1")
    assert thread.is_alive()
    let_go.set()
    runtime.join(thread)


@alike
def test_subclass_overriding_run(runtime):
    class Adder(runtime.threading.Thread):
        def __init__(self, a, b):
            super().__init__(name="adder", daemon=True)
            self.a, self.b = a, b
            self.total = None

        def run(self):
            self.total = self.a + self.b

    thread = Adder(2, 3)
    assert thread.daemon and thread.name == "adder"
    thread.start()
    runtime.join(thread)
    assert thread.total == 5


@alike
def test_subclass_may_call_the_standard_run(runtime):
    log = []

    class Wrapped(runtime.threading.Thread):
        def run(self):
            log.append("before")
            super().run()
            log.append("after")

    thread = Wrapped(target=log.append, args=("target",))
    thread.start()
    runtime.join(thread)
    assert log == ["before", "target", "after"]


@alike
def test_run_called_directly_runs_in_the_caller(runtime):
    seen = []
    thread = runtime.threading.Thread(target=lambda: seen.append(runtime.threading.current_thread()))
    thread.run()
    assert seen == [runtime.threading.current_thread()]
    assert thread.ident is None


@alike
def test_subclass_that_forgets_super_init_is_refused(runtime):
    class Forgetful(runtime.threading.Thread):
        def __init__(self):
            pass

    with pytest.raises(RuntimeError):
        Forgetful().start()


@alike
def test_default_name_has_number_and_target(runtime):
    def chase():
        pass

    first = runtime.threading.Thread(target=chase).name
    second = runtime.threading.Thread(target=chase).name
    numbers = [re.fullmatch(r"Thread-(\d+) \(chase\)", name) for name in (first, second)]
    assert all(numbers), (first, second)
    assert int(numbers[1][1]) == int(numbers[0][1]) + 1


@alike
def test_default_name_without_a_target_name_is_the_number(runtime):
    class Worker(runtime.threading.Thread):
        pass

    for thread in (runtime.threading.Thread(), Worker(), runtime.threading.Thread(target=functools.partial(int))):
        assert re.fullmatch(r"Thread-\d+", thread.name), thread.name


@alike
def test_name_may_be_changed_and_is_always_a_string(runtime):
    let_go = runtime.threading.Event()
    thread = runtime.threading.Thread(target=let_go.wait, args=(PATIENCE_S,), name=5)
    assert thread.name == "5"
    thread.start()
    thread.name = "renamed"
    assert thread.name == "renamed"
    assert "renamed" in repr(thread)
    let_go.set()
    runtime.join(thread)


@alike
def test_daemon_flag(runtime):
    thread = runtime.threading.Thread()
    assert thread.daemon is False
    thread.daemon = True
    assert thread.daemon is True
    thread.start()
    runtime.join(thread)


@alike
def test_daemon_cannot_change_while_running(runtime):
    let_go = runtime.threading.Event()
    thread = runtime.spawn(let_go.wait, PATIENCE_S)
    with pytest.raises(RuntimeError):
        thread.daemon = False
    assert thread.daemon is True
    let_go.set()
    runtime.join(thread)


@alike
def test_daemon_is_inherited_from_the_creating_thread(runtime):
    inherited = {}

    def make_child(name):
        inherited[name] = runtime.threading.Thread().daemon

    for daemon in (True, False):
        thread = runtime.threading.Thread(target=make_child, args=(daemon,), daemon=daemon)
        thread.start()
        runtime.join(thread)
    assert inherited == {True: True, False: False}


@alike
def test_current_thread_and_ident_inside_a_thread(runtime):
    seen = []

    def target():
        seen.append((runtime.threading.current_thread(), runtime.threading.get_ident()))

    thread = runtime.spawn(target)
    runtime.join(thread)
    assert seen == [(thread, thread.ident)]


@alike
def test_live_threads_have_different_idents(runtime):
    barrier = runtime.threading.Barrier(5)
    idents = []

    def target():
        idents.append(runtime.threading.get_ident())
        barrier.wait(PATIENCE_S)

    threads = [runtime.spawn(target) for _ in range(4)]
    idents.append(runtime.threading.get_ident())
    barrier.wait(PATIENCE_S)
    runtime.join(*threads)
    assert len(set(idents)) == 5


@alike
def test_current_thread_stays_the_same_over_waits(runtime):
    stable = []

    def target():
        me, ident = runtime.threading.current_thread(), runtime.threading.get_ident()
        for _ in range(3):
            runtime.time.sleep(0.001)
            stable.append(
                runtime.threading.current_thread() is me and runtime.threading.get_ident() == ident == me.ident
            )

    runtime.join(*[runtime.spawn(target) for _ in range(3)])
    assert stable == [True] * 9


@alike
def test_the_first_thread_is_the_main_thread(runtime):
    main = runtime.threading.main_thread()
    assert runtime.threading.current_thread() is main
    assert main.ident == runtime.threading.get_ident()
    assert main.is_alive()
    assert main.daemon is False
    assert main in runtime.threading.enumerate()
    assert runtime.elsewhere(runtime.threading.main_thread) is main
    assert runtime.elsewhere(runtime.threading.current_thread) is not main


@alike
def test_the_main_thread_has_its_standard_name(runtime):
    assert runtime.threading.current_thread().name == "MainThread"


@alike
def test_current_thread_is_a_thread_everywhere(runtime):
    assert isinstance(runtime.threading.current_thread(), runtime.threading.Thread)
    assert isinstance(runtime.elsewhere(runtime.threading.current_thread), runtime.threading.Thread)


@alike
def test_enumerate_and_active_count(runtime):
    let_go = runtime.threading.Event()
    before = runtime.threading.enumerate()
    assert isinstance(before, list)
    assert runtime.threading.active_count() == len(before)
    unstarted = runtime.threading.Thread()
    threads = [runtime.spawn(let_go.wait, PATIENCE_S) for _ in range(3)]
    assert set(runtime.threading.enumerate()) == {*before, *threads}
    assert unstarted not in runtime.threading.enumerate()
    assert runtime.threading.active_count() == len(before) + 3
    let_go.set()
    runtime.join(*threads)
    assert set(runtime.threading.enumerate()) == set(before)
    assert runtime.threading.active_count() == len(before)


@alike
def test_a_thread_sees_itself_in_enumerate(runtime):
    assert runtime.elsewhere(lambda: runtime.threading.current_thread() in runtime.threading.enumerate()) is True


@alike
def test_system_exit_ends_only_its_own_thread(runtime, monkeypatch):
    # pytest's own hook would report even the one exception that the standard hook passes over.
    monkeypatch.setattr(standard_threading, "excepthook", standard_threading.__excepthook__)
    log = []

    def target():
        log.append("before")
        raise SystemExit

    thread = runtime.spawn(target)
    runtime.join(thread)
    assert log == ["before"]


@alike
def test_threads_may_start_threads(runtime):
    depths = []

    def descend(depth):
        depths.append(depth)
        if depth < 5:
            runtime.join(runtime.spawn(descend, depth + 1))

    runtime.join(runtime.spawn(descend, 0))
    assert depths == [0, 1, 2, 3, 4, 5]


@alike
def test_the_exception_being_handled_belongs_to_its_thread(runtime):
    """Every thread waits inside its except block, then re-raises: it must meet its own exception again."""
    barrier = runtime.threading.Barrier(4)
    met = []

    def target(number):
        try:
            try:
                raise ValueError(number)
            except ValueError:
                barrier.wait(PATIENCE_S)
                runtime.time.sleep(0.001 * (4 - number))
                raise
        except ValueError as error:
            met.append((number, error.args[0]))

    runtime.join(*[runtime.spawn(target, number) for number in range(4)])
    assert sorted(met) == [(n, n) for n in range(4)]


@alike
def test_threads_hash_and_compare_by_identity(runtime):
    a, b = runtime.threading.Thread(name="same"), runtime.threading.Thread(name="same")
    assert a != b
    assert len({a, b, a}) == 2


@alike
def test_timeout_max_is_a_usable_timeout(runtime):
    assert runtime.threading.TIMEOUT_MAX > 3600
    thread = runtime.spawn(lambda: None)
    thread.join(runtime.threading.TIMEOUT_MAX)
    assert not thread.is_alive()


@alike
def test_subclass_may_read_target_and_args(runtime):
    """The usual way to get a value back from a thread."""

    class Returning(runtime.threading.Thread):
        def run(self):
            self.value = self._target(*self._args, **self._kwargs)

        def join(self, timeout=None):
            super().join(timeout)
            return self.value

    thread = Returning(target=divmod, args=(17, 5))
    thread.start()
    assert thread.join() == (3, 2)


@alike
def test_each_thread_has_its_own_stack_depth(runtime):
    """A thread may recurse deeply however deep its creator is; and so on, thread by thread."""

    def dive(depth, bottom):
        return bottom() if depth == 0 else dive(depth - 1, bottom)

    def start_the_next(left):
        if left:
            return dive(300, lambda: runtime.elsewhere(lambda: start_the_next(left - 1)))
        return "bottom"

    assert start_the_next(5) == "bottom"


@alike
def test_context_variables_belong_to_their_thread(runtime):
    variable = contextvars.ContextVar("variable", default="default")
    variable.set("main's")
    seen = []

    def target(number):
        seen.append(variable.get())
        variable.set(number)
        runtime.time.sleep(0.001)
        assert variable.get() == number

    for number in range(3):  # one after the other, then together
        runtime.join(runtime.spawn(target, number))
    runtime.join(*[runtime.spawn(target, number) for number in range(3)])
    assert seen == ["default"] * 6
    assert variable.get() == "main's"


@alike
def test_thread_does_not_inherit_the_handled_exception(runtime):
    def fail():
        raise KeyError("thread's")

    try:
        raise ValueError("main's")
    except ValueError:
        error = runtime.elsewhere(fail)
    assert isinstance(error, KeyError)
    assert error.__context__ is None


@alike
def test_a_thread_may_be_weakly_referenced(runtime):
    thread = runtime.threading.Thread()
    assert weakref.ref(thread)() is thread
