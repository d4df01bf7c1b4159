"""Timer and local, in every runtime."""

import re

import pytest

from unit.labsim.alike import PATIENCE_S, TICK_S, alike


@alike
def test_timer_fires_after_its_interval(runtime):
    fired = []
    started_s = runtime.time.monotonic()
    timer = runtime.threading.Timer(TICK_S, fired.append, args=("fired",))
    assert timer.start() is None
    runtime.join(timer)
    runtime.assert_elapsed(started_s, at_least=TICK_S)
    assert fired == ["fired"]


@alike
def test_timer_passes_args_and_kwargs(runtime):
    got = []

    def target(*args, **kwargs):
        got.append((args, kwargs))

    timers = [
        runtime.threading.Timer(0, target),
        runtime.threading.Timer(0, target, [1, 2], {"x": 3}),
        runtime.threading.Timer(interval=0, function=target, args=(4,), kwargs={"y": 5}),
    ]
    for timer in timers:
        timer.start()
        runtime.join(timer)
    assert got == [((), {}), ((1, 2), {"x": 3}), ((4,), {"y": 5})]


@alike
def test_timers_do_not_share_their_default_arguments(runtime):
    first, second = runtime.threading.Timer(1, print), runtime.threading.Timer(1, print)
    first.args.append("only first")
    first.kwargs["only"] = "first"
    assert (second.args, second.kwargs) == ([], {})


@alike
def test_cancelled_timer_ends_early_without_firing(runtime):
    fired = []
    started_s = runtime.time.monotonic()
    timer = runtime.threading.Timer(3600, fired.append, args=(True,))
    timer.start()
    assert timer.is_alive()
    assert timer.cancel() is None
    runtime.join(timer)
    runtime.assert_elapsed(started_s, at_least=0)
    assert fired == []


@alike
def test_timer_cancelled_before_start_never_fires(runtime):
    fired = []
    timer = runtime.threading.Timer(TICK_S, fired.append, args=(True,))
    timer.cancel()
    timer.start()
    runtime.join(timer)
    assert fired == []


@alike
def test_cancel_after_firing_does_nothing(runtime):
    fired = []
    timer = runtime.threading.Timer(0, fired.append, args=(True,))
    timer.start()
    runtime.join(timer)
    timer.cancel()
    timer.cancel()
    assert fired == [True]


@alike
def test_timer_runs_its_function_in_its_own_thread(runtime):
    seen = []
    timer = runtime.threading.Timer(0, lambda: seen.append(runtime.threading.current_thread()))
    timer.start()
    runtime.join(timer)
    assert seen == [timer]


@alike
def test_timer_is_a_thread(runtime):
    timer = runtime.threading.Timer(1, print)
    assert isinstance(timer, runtime.threading.Thread)
    assert issubclass(runtime.threading.Timer, runtime.threading.Thread)
    assert re.fullmatch(r"Thread-\d+", timer.name), timer.name
    timer.daemon = True
    assert timer.daemon is True
    assert not timer.is_alive()


@alike
def test_finished_event_of_a_timer(runtime):
    timer = runtime.threading.Timer(TICK_S, lambda: None)
    assert timer.interval == TICK_S
    assert timer.finished.is_set() is False
    timer.start()
    assert timer.finished.wait(PATIENCE_S) is True
    runtime.join(timer)


@alike
def test_timers_fire_in_order_of_time(runtime):
    fired = []
    delays_s = [0.06, 0.0, 0.03]
    timers = [runtime.threading.Timer(delay_s, fired.append, args=(delay_s,)) for delay_s in delays_s]
    for timer in timers:
        timer.start()
    runtime.join(*timers)
    assert sorted(fired) == sorted(delays_s)
    if runtime.simulated:  # real threads may be late in any order
        assert fired == sorted(delays_s)


@alike
def test_timer_subclass_that_repeats(runtime):
    class Repeating(runtime.threading.Timer):
        def run(self):
            while not self.finished.wait(self.interval):
                self.function(*self.args, **self.kwargs)

    beats = []
    timer = Repeating(0.002, lambda: beats.append(True))
    timer.start()
    runtime.until(lambda: len(beats) >= 3)
    timer.cancel()
    runtime.join(timer)


@alike
def test_local_is_separate_for_each_thread(runtime):
    local = runtime.threading.local()
    local.value = "main"
    barrier = runtime.threading.Barrier(3)
    seen = []

    def target(mine):
        seen.append(hasattr(local, "value"))
        local.value = mine
        barrier.wait(PATIENCE_S)
        runtime.time.sleep(0.001)
        seen.append(local.value == mine)

    runtime.join(*[runtime.spawn(target, number) for number in range(3)])
    assert sorted(seen) == [False] * 3 + [True] * 3
    assert local.value == "main"


@alike
def test_local_attributes_missing_and_deleted(runtime):
    local = runtime.threading.local()
    with pytest.raises(AttributeError):
        local.value  # noqa: B018
    local.value = 1
    del local.value
    with pytest.raises(AttributeError):
        local.value  # noqa: B018
    with pytest.raises(AttributeError):
        del local.value
    assert getattr(local, "value", "default") == "default"


@alike
def test_local_has_a_dict_for_each_thread(runtime):
    local = runtime.threading.local()
    local.a, local.b = 1, 2
    assert local.__dict__ == {"a": 1, "b": 2}
    assert runtime.elsewhere(lambda: dict(local.__dict__)) == {}


@alike
def test_local_subclass_is_initialised_in_each_thread(runtime):
    made = []

    class Mine(runtime.threading.local):
        kind = "shared by the class"

        def __init__(self, first, *, second):
            made.append(runtime.threading.current_thread())
            self.items = [first, second]

    local = Mine(1, second=2)
    local.items.append("main's")

    def target():
        local.items.append("thread's")
        return list(local.items), local.kind

    assert runtime.elsewhere(target) == ([1, 2, "thread's"], "shared by the class")
    assert local.items == [1, 2, "main's"]
    assert len(made) == 2
    assert made[0] is runtime.threading.current_thread()
    assert made[1] is not made[0]


@alike
def test_local_subclass_is_initialized_in_each_thread(runtime):
    """Even where __init__ leaves no attribute behind."""
    made = []

    class Noted(runtime.threading.local):
        def __init__(self):
            made.append(runtime.threading.get_ident())

    local = Noted()
    assert made == [runtime.threading.get_ident()]

    def use_it_twice():
        hasattr(local, "anything")
        hasattr(local, "anything")
        return runtime.threading.get_ident()

    ident = runtime.elsewhere(use_it_twice)
    assert made == [runtime.threading.get_ident(), ident]


@alike
def test_local_without_init_takes_no_arguments(runtime):
    with pytest.raises(TypeError):
        runtime.threading.local(1)
    with pytest.raises(TypeError):
        runtime.threading.local(a=1)


@alike
def test_two_locals_are_independent(runtime):
    one, other = runtime.threading.local(), runtime.threading.local()
    one.value = 1
    assert not hasattr(other, "value")


@alike
def test_a_new_thread_never_inherits_a_dead_ones_values(runtime):
    local = runtime.threading.local()
    seen = []

    def target(number):
        seen.append(getattr(local, "value", None))
        local.value = number

    for number in range(5):
        runtime.join(runtime.spawn(target, number))
    assert seen == [None] * 5
