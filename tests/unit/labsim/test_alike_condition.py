"""Condition, over each kind of lock, in every runtime."""

import pytest

from unit.labsim.alike import PATIENCE_S, TICK_S, alike, outcome

every_lock = pytest.mark.parametrize("lock_kind", ["default", "Lock", "RLock"])


def make(runtime, lock_kind):
    if lock_kind == "default":
        return runtime.threading.Condition()
    return runtime.threading.Condition(getattr(runtime.threading, lock_kind)())


def start_waiters(runtime, cond, count, timeout_s=None):
    """Threads that are certainly inside cond.wait() when this returns, and the list of what wait() gave them.

    Certainly: each counts itself in while holding the lock, and only wait() lets go of it.
    """
    entered, woken = [], []

    def waiter():
        with cond:
            entered.append(True)
            woken.append(cond.wait(timeout_s))

    def all_in():
        with cond:
            return len(entered) == count

    threads = [runtime.spawn(waiter) for _ in range(count)]
    runtime.until(all_in)
    return threads, woken


def notify(cond, *args):
    with cond:
        assert cond.notify(*args) is None


def notify_all(cond):
    with cond:
        assert cond.notify_all() is None


@alike
@every_lock
def test_wait_returns_true_when_notified(runtime, lock_kind):
    cond = make(runtime, lock_kind)
    threads, woken = start_waiters(runtime, cond, 1)
    assert woken == []
    notify(cond)
    runtime.join(*threads)
    assert woken == [True]


@alike
@every_lock
def test_wait_with_a_timeout_returns_true_when_notified_in_time(runtime, lock_kind):
    cond = make(runtime, lock_kind)
    threads, woken = start_waiters(runtime, cond, 1, PATIENCE_S)
    notify(cond)
    runtime.join(*threads)
    assert woken == [True]


@alike
@every_lock
def test_wait_gives_up_after_its_timeout(runtime, lock_kind):
    cond = make(runtime, lock_kind)
    with cond:
        started_s = runtime.time.monotonic()
        assert cond.wait(timeout=TICK_S) is False
        runtime.assert_elapsed(started_s, at_least=TICK_S)
        assert not runtime.free(cond)
    assert runtime.free(cond)


@alike
@every_lock
@pytest.mark.parametrize("timeout_s", [0, -1, -0.5])
def test_wait_without_time_left_returns_false_at_once(runtime, lock_kind, timeout_s):
    cond = make(runtime, lock_kind)
    with cond:
        started_s = runtime.time.monotonic()
        assert cond.wait(timeout_s) is False
        runtime.assert_elapsed(started_s, at_least=0)
        assert not runtime.free(cond)


@alike
@every_lock
@pytest.mark.parametrize(("timeout", "error"), [("1", TypeError), (1e100, OverflowError)])
def test_wait_refuses_a_bad_timeout_and_keeps_the_lock(runtime, lock_kind, timeout, error):
    cond = make(runtime, lock_kind)
    with cond:
        with pytest.raises(error):
            cond.wait(timeout)
        assert not runtime.free(cond)
    assert runtime.free(cond)


@alike
@every_lock
def test_wait_lets_go_of_the_lock_and_takes_it_back(runtime, lock_kind):
    cond = make(runtime, lock_kind)
    log = []

    def notifier():
        with cond:  # only possible once the waiter waits
            log.append("notifier in")
            cond.notify()
            runtime.time.sleep(0.001)
            log.append("notifier out")

    with cond:
        thread = runtime.spawn(notifier)
        log.append("waiter waits")
        assert cond.wait(PATIENCE_S) is True
        log.append("waiter back")
        assert not runtime.free(cond)
    runtime.join(thread)
    assert log == ["waiter waits", "notifier in", "notifier out", "waiter back"]


@alike
@every_lock
def test_a_timed_out_wait_still_waits_for_the_lock(runtime, lock_kind):
    cond = make(runtime, lock_kind)
    log = []

    def long_holder():
        with cond:
            runtime.time.sleep(3 * TICK_S)
            log.append("holder out")

    started_s = runtime.time.monotonic()
    with cond:
        thread = runtime.spawn(long_holder)
        cond.wait(TICK_S)
        # On real threads the holder may come late and find the wait over; then there is nothing to see.
        if runtime.simulated:
            assert log == ["holder out"]
            runtime.assert_elapsed(started_s, at_least=3 * TICK_S)
        assert not runtime.free(cond)
    runtime.join(thread)


@alike
@every_lock
def test_notify_wakes_one_by_default(runtime, lock_kind):
    cond = make(runtime, lock_kind)
    threads, woken = start_waiters(runtime, cond, 3)
    for expected in (1, 2, 3):
        notify(cond)
        runtime.until(lambda: len(woken) >= expected)  # noqa: B023  (called before expected changes)
        runtime.time.sleep(0.002)
        assert woken == [True] * expected
    runtime.join(*threads)


@alike
@every_lock
def test_notify_n_wakes_exactly_n(runtime, lock_kind):
    cond = make(runtime, lock_kind)
    threads, woken = start_waiters(runtime, cond, 5)
    notify(cond, 2)
    runtime.until(lambda: len(woken) >= 2)
    runtime.time.sleep(TICK_S)
    assert woken == [True] * 2
    notify(cond, 3)
    runtime.join(*threads)
    assert woken == [True] * 5


@alike
@every_lock
def test_notify_takes_n_by_keyword_and_may_be_more_than_wait(runtime, lock_kind):
    cond = make(runtime, lock_kind)
    threads, woken = start_waiters(runtime, cond, 2)
    with cond:
        cond.notify(n=100)
    runtime.join(*threads)
    assert woken == [True] * 2


@alike
@every_lock
def test_two_notifies_in_a_row_wake_two_waiters(runtime, lock_kind):
    """The second may not be spent on a waiter the first has already chosen but who has not run yet."""
    cond = make(runtime, lock_kind)
    threads, woken = start_waiters(runtime, cond, 2)
    with cond:
        cond.notify()
        cond.notify()
    runtime.join(*threads)
    assert woken == [True] * 2


@alike
@every_lock
def test_notify_zero_wakes_nobody(runtime, lock_kind):
    cond = make(runtime, lock_kind)
    threads, woken = start_waiters(runtime, cond, 2)
    notify(cond, 0)
    runtime.time.sleep(TICK_S)
    assert woken == []
    notify_all(cond)
    runtime.join(*threads)


@alike
@every_lock
def test_notify_all_wakes_everyone(runtime, lock_kind):
    cond = make(runtime, lock_kind)
    threads, woken = start_waiters(runtime, cond, 5)
    notify_all(cond)
    runtime.join(*threads)
    assert woken == [True] * 5


@alike
@every_lock
def test_a_notify_nobody_waits_for_is_forgotten(runtime, lock_kind):
    cond = make(runtime, lock_kind)
    notify(cond, 3)
    notify_all(cond)
    with cond:
        started_s = runtime.time.monotonic()
        assert cond.wait(TICK_S) is False
        runtime.assert_elapsed(started_s, at_least=TICK_S)


@alike
@every_lock
def test_a_waiter_that_timed_out_does_not_swallow_a_notify(runtime, lock_kind):
    cond = make(runtime, lock_kind)
    with cond:
        assert cond.wait(0.001) is False
    threads, woken = start_waiters(runtime, cond, 1)
    with cond:
        assert cond.wait(0.001) is False
    notify(cond)
    runtime.join(*threads)
    assert woken == [True]


@alike
@every_lock
def test_a_woken_waiter_does_not_run_until_the_notifier_lets_go(runtime, lock_kind):
    cond = make(runtime, lock_kind)
    threads, woken = start_waiters(runtime, cond, 3)
    with cond:
        cond.notify_all()
        runtime.time.sleep(TICK_S)
        assert woken == []
    runtime.join(*threads)
    assert woken == [True] * 3


@alike
@every_lock
@pytest.mark.parametrize("call", ["wait", "notify", "notify_all"])
def test_without_the_lock_is_refused(runtime, lock_kind, call):
    cond = make(runtime, lock_kind)
    with pytest.raises(RuntimeError):
        getattr(cond, call)()
    with cond:
        pass
    with pytest.raises(RuntimeError):
        getattr(cond, call)()
    assert runtime.free(cond)


@alike
@every_lock
def test_wait_without_the_lock_is_refused(runtime, lock_kind):
    cond = make(runtime, lock_kind)
    with pytest.raises(RuntimeError):
        cond.wait(TICK_S)
    with pytest.raises(RuntimeError):
        cond.wait_for(lambda: False, TICK_S)


@alike
@pytest.mark.parametrize("lock_kind", ["default", "RLock"])
@pytest.mark.parametrize("call", ["wait", "notify", "notify_all"])
def test_condition_over_an_rlock_checks_the_owner(runtime, lock_kind, call):
    cond = make(runtime, lock_kind)
    with runtime.held_elsewhere(cond):
        assert isinstance(outcome(getattr(cond, call)), RuntimeError)


@alike
@every_lock
def test_wait_for_without_timeout(runtime, lock_kind):
    cond = make(runtime, lock_kind)
    state, got = [0], []

    def waiter():
        with cond:
            got.append(cond.wait_for(lambda: state[0] == 3 and "three"))

    thread = runtime.spawn(waiter)
    for number in (1, 2, 3):
        runtime.time.sleep(0.001)
        assert got == []
        with cond:
            state[0] = number
            cond.notify()
    runtime.join(thread)
    assert got == ["three"]


@alike
@every_lock
def test_wait_for_what_holds_already_does_not_wait(runtime, lock_kind):
    cond = make(runtime, lock_kind)
    with cond:
        started_s = runtime.time.monotonic()
        assert cond.wait_for(lambda: "yes") == "yes"
        assert cond.wait_for(lambda: 7, timeout=PATIENCE_S) == 7
        runtime.assert_elapsed(started_s, at_least=0)
        assert not runtime.free(cond)


@alike
@every_lock
def test_wait_for_gives_up_after_its_timeout(runtime, lock_kind):
    cond = make(runtime, lock_kind)
    with cond:
        started_s = runtime.time.monotonic()
        assert cond.wait_for(lambda: 0, timeout=TICK_S) == 0
        runtime.assert_elapsed(started_s, at_least=TICK_S)
        assert not runtime.free(cond)


@alike
@every_lock
def test_wait_for_counts_its_timeout_over_false_alarms(runtime, lock_kind):
    """Notifies that change nothing must not start the timeout anew."""
    cond = make(runtime, lock_kind)
    stop = runtime.threading.Event()

    def nag():
        while not stop.is_set():
            with cond:
                cond.notify_all()
            runtime.time.sleep(TICK_S / 4.5)

    thread = runtime.spawn(nag)
    with cond:
        started_s = runtime.time.monotonic()
        assert cond.wait_for(lambda: False, TICK_S) is False
        runtime.assert_elapsed(started_s, at_least=TICK_S)
    stop.set()
    runtime.join(thread)


@alike
@every_lock
def test_wait_for_succeeds_within_its_timeout(runtime, lock_kind):
    cond = make(runtime, lock_kind)
    ready = []

    def make_ready():
        runtime.time.sleep(TICK_S)
        with cond:
            ready.append(True)
            cond.notify()

    started_s = runtime.time.monotonic()
    thread = runtime.spawn(make_ready)
    with cond:
        assert cond.wait_for(lambda: ready, timeout=PATIENCE_S) == [True]
        runtime.assert_elapsed(started_s, at_least=TICK_S)
    runtime.join(thread)


@alike
@every_lock
def test_wait_for_asks_with_the_lock_held(runtime, lock_kind):
    cond = make(runtime, lock_kind)
    free_when_asked = []
    with cond:
        cond.wait_for(lambda: free_when_asked.append(runtime.free(cond)), timeout=TICK_S)
    assert len(free_when_asked) >= 2
    assert not any(free_when_asked)


@alike
@pytest.mark.parametrize("lock_kind", ["default", "RLock"])
def test_wait_lets_go_of_every_level_and_restores_them(runtime, lock_kind):
    cond = make(runtime, lock_kind)
    cond.acquire()
    cond.acquire()
    cond.acquire()
    thread = runtime.spawn(notify, cond)  # can only get in if all three levels are released
    assert cond.wait(PATIENCE_S) is True
    runtime.join(thread)
    cond.release()
    assert not runtime.free(cond)
    cond.release()
    assert not runtime.free(cond)
    cond.release()
    assert runtime.free(cond)
    with pytest.raises(RuntimeError):
        cond.release()


@alike
@pytest.mark.parametrize("lock_kind", ["default", "RLock"])
def test_a_timed_out_wait_restores_every_level(runtime, lock_kind):
    cond = make(runtime, lock_kind)
    with cond, cond:
        assert cond.wait(0.001) is False
        cond.notify_all()
    assert runtime.free(cond)


@alike
@every_lock
def test_acquire_release_and_context_manager_are_the_locks(runtime, lock_kind):
    cond = make(runtime, lock_kind)
    assert cond.acquire() is True
    assert not runtime.free(cond)
    cond.release()
    assert runtime.free(cond)
    with cond as entered:
        assert entered is True
        assert not runtime.free(cond)
        assert runtime.elsewhere(lambda: cond.acquire(False)) is False
        assert runtime.elsewhere(lambda: cond.acquire(timeout=0.001)) is False
    assert runtime.free(cond)


@alike
@pytest.mark.parametrize("lock_kind", ["Lock", "RLock"])
def test_shares_the_lock_it_was_given(runtime, lock_kind):
    lock = getattr(runtime.threading, lock_kind)()
    cond = runtime.threading.Condition(lock)
    with lock:
        assert not runtime.free(cond)
        cond.notify()
    with cond:
        assert not runtime.free(lock)


@alike
def test_default_lock_is_reentrant(runtime):
    cond = runtime.threading.Condition()
    with cond, cond:
        assert not runtime.free(cond)
    assert runtime.free(cond)


@alike
@pytest.mark.parametrize("lock_kind", ["Lock", "RLock"])
def test_two_conditions_over_one_lock_wake_their_own(runtime, lock_kind):
    lock = getattr(runtime.threading, lock_kind)()
    left, right = runtime.threading.Condition(lock), runtime.threading.Condition(lock)
    left_threads, left_woken = start_waiters(runtime, left, 2)
    right_threads, right_woken = start_waiters(runtime, right, 2)
    notify_all(left)
    runtime.join(*left_threads)
    runtime.time.sleep(0.002)
    assert (left_woken, right_woken) == ([True] * 2, [])
    notify_all(right)
    runtime.join(*right_threads)
    assert right_woken == [True] * 2


@alike
@every_lock
def test_ping_pong(runtime, lock_kind):
    cond = make(runtime, lock_kind)
    turn, log = ["ping"], []

    def player(me, other):
        for _ in range(5):
            with cond:
                cond.wait_for(lambda: turn[0] == me)
                log.append(me)
                turn[0] = other
                cond.notify_all()

    runtime.join(runtime.spawn(player, "ping", "pong"), runtime.spawn(player, "pong", "ping"))
    assert log == ["ping", "pong"] * 5
