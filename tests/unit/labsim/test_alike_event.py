"""Event, in every runtime."""

import pytest

from unit.labsim.alike import PATIENCE_S, TICK_S, alike


@alike
def test_set_clear_is_set(runtime):
    event = runtime.threading.Event()
    assert event.is_set() is False
    assert event.set() is None
    assert event.is_set() is True
    event.set()
    assert event.is_set() is True
    assert event.clear() is None
    assert event.is_set() is False
    event.clear()
    assert event.is_set() is False


@alike
@pytest.mark.parametrize("timeout_s", [None, 0, -1, TICK_S])
def test_wait_on_a_set_event_returns_true_at_once(runtime, timeout_s):
    event = runtime.threading.Event()
    event.set()
    started_s = runtime.time.monotonic()
    assert event.wait(timeout_s) is True
    assert event.wait(timeout=timeout_s) is True
    runtime.assert_elapsed(started_s, at_least=0)
    assert event.is_set() is True


@alike
def test_wait_gives_up_after_its_timeout(runtime):
    event = runtime.threading.Event()
    started_s = runtime.time.monotonic()
    assert event.wait(TICK_S) is False
    runtime.assert_elapsed(started_s, at_least=TICK_S)


@alike
@pytest.mark.parametrize("timeout_s", [0, 0.0, -1, -0.5])
def test_wait_without_time_left_returns_false_at_once(runtime, timeout_s):
    event = runtime.threading.Event()
    started_s = runtime.time.monotonic()
    assert event.wait(timeout_s) is False
    runtime.assert_elapsed(started_s, at_least=0)


@alike
@pytest.mark.parametrize(("timeout", "error"), [("1", TypeError), (1e100, OverflowError)])
def test_wait_refuses_a_bad_timeout(runtime, timeout, error):
    event = runtime.threading.Event()
    with pytest.raises(error):
        event.wait(timeout)


@alike
@pytest.mark.parametrize("timeout_s", [None, PATIENCE_S])
def test_wait_returns_true_once_set(runtime, timeout_s):
    event = runtime.threading.Event()

    def set_later():
        runtime.time.sleep(TICK_S)
        event.set()

    started_s = runtime.time.monotonic()
    thread = runtime.spawn(set_later)
    assert event.wait(timeout_s) is True
    runtime.assert_elapsed(started_s, at_least=TICK_S)
    runtime.join(thread)


@alike
def test_set_wakes_everyone(runtime):
    event = runtime.threading.Event()
    about_to, results = runtime.threading.Barrier(6), []

    def waiter():
        about_to.wait(PATIENCE_S)
        results.append(event.wait())

    threads = [runtime.spawn(waiter) for _ in range(5)]
    about_to.wait(PATIENCE_S)
    runtime.time.sleep(0.002)
    assert results == []
    event.set()
    runtime.join(*threads)
    assert results == [True] * 5


@alike
def test_after_clear_wait_waits_again(runtime):
    event = runtime.threading.Event()
    event.set()
    event.clear()
    started_s = runtime.time.monotonic()
    assert event.wait(TICK_S) is False
    runtime.assert_elapsed(started_s, at_least=TICK_S)


@alike
def test_set_then_clear_at_once_still_wakes_who_waited(runtime):
    """A waiter that was woken returns True even if the event is clear again by the time it runs."""
    event = runtime.threading.Event()
    results = []
    threads = [runtime.spawn(lambda: results.append(event.wait())) for _ in range(4)]

    def pulse_until_all_are_through():
        event.set()
        event.clear()
        return len(results) == 4

    # On real threads a waiter may not have reached wait() at the first pulse, hence more than one.
    runtime.until(pulse_until_all_are_through)
    runtime.join(*threads)
    assert results == [True] * 4
    assert event.is_set() is False


@alike
def test_waiting_with_timeouts_in_a_loop_ends_when_set(runtime):
    """The commonest loop of all: work every so often until told to stop."""
    stop = runtime.threading.Event()
    rounds = []

    def worker():
        while not stop.wait(TICK_S / 4):
            rounds.append(True)

    thread = runtime.spawn(worker)
    runtime.until(lambda: len(rounds) >= 3)
    stop.set()
    runtime.join(thread)


@alike
def test_may_be_subclassed(runtime):
    class Counted(runtime.threading.Event):
        def __init__(self):
            super().__init__()
            self.sets = 0

        def set(self):
            self.sets += 1
            super().set()

    event = Counted()
    thread = runtime.spawn(event.set)
    assert event.wait(PATIENCE_S) is True
    runtime.join(thread)
    assert event.sets == 1
    assert isinstance(event, runtime.threading.Event)
