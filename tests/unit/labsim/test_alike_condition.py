"""Condition, over each kind of lock, in every world."""

import pytest

from unit.labsim.alike import PATIENCE_S, TICK_S, alike, outcome

every_lock = pytest.mark.parametrize("lock_kind", ["default", "Lock", "RLock"])


def make(world, lock_kind):
    if lock_kind == "default":
        return world.threading.Condition()
    return world.threading.Condition(getattr(world.threading, lock_kind)())


def start_waiters(world, cond, count, timeout_s=None):
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

    threads = [world.spawn(waiter) for _ in range(count)]
    world.until(all_in)
    return threads, woken


def notify(cond, *args):
    with cond:
        assert cond.notify(*args) is None


def notify_all(cond):
    with cond:
        assert cond.notify_all() is None


@alike
@every_lock
def test_wait_returns_true_when_notified(world, lock_kind):
    cond = make(world, lock_kind)
    threads, woken = start_waiters(world, cond, 1)
    assert woken == []
    notify(cond)
    world.join(*threads)
    assert woken == [True]


@alike
@every_lock
def test_wait_with_a_timeout_returns_true_when_notified_in_time(world, lock_kind):
    cond = make(world, lock_kind)
    threads, woken = start_waiters(world, cond, 1, PATIENCE_S)
    notify(cond)
    world.join(*threads)
    assert woken == [True]


@alike
@every_lock
def test_wait_gives_up_after_its_timeout(world, lock_kind):
    cond = make(world, lock_kind)
    with cond:
        started_s = world.time.monotonic()
        assert cond.wait(timeout=TICK_S) is False
        world.assert_elapsed(started_s, at_least=TICK_S)
        assert not world.free(cond)
    assert world.free(cond)


@alike
@every_lock
@pytest.mark.parametrize("timeout_s", [0, -1, -0.5])
def test_wait_without_time_left_returns_false_at_once(world, lock_kind, timeout_s):
    cond = make(world, lock_kind)
    with cond:
        started_s = world.time.monotonic()
        assert cond.wait(timeout_s) is False
        world.assert_elapsed(started_s, at_least=0)
        assert not world.free(cond)


@alike
@every_lock
@pytest.mark.parametrize(("timeout", "error"), [("1", TypeError), (1e100, OverflowError)])
def test_wait_refuses_a_bad_timeout_and_keeps_the_lock(world, lock_kind, timeout, error):
    cond = make(world, lock_kind)
    with cond:
        with pytest.raises(error):
            cond.wait(timeout)
        assert not world.free(cond)
    assert world.free(cond)


@alike
@every_lock
def test_wait_lets_go_of_the_lock_and_takes_it_back(world, lock_kind):
    cond = make(world, lock_kind)
    log = []

    def notifier():
        with cond:  # only possible once the waiter waits
            log.append("notifier in")
            cond.notify()
            world.time.sleep(0.001)
            log.append("notifier out")

    with cond:
        thread = world.spawn(notifier)
        log.append("waiter waits")
        assert cond.wait(PATIENCE_S) is True
        log.append("waiter back")
        assert not world.free(cond)
    world.join(thread)
    assert log == ["waiter waits", "notifier in", "notifier out", "waiter back"]


@alike
@every_lock
def test_a_timed_out_wait_still_waits_for_the_lock(world, lock_kind):
    cond = make(world, lock_kind)
    log = []

    def long_holder():
        with cond:
            world.time.sleep(3 * TICK_S)
            log.append("holder out")

    started_s = world.time.monotonic()
    with cond:
        thread = world.spawn(long_holder)
        cond.wait(TICK_S)
        # On real threads the holder may come late and find the wait over; then there is nothing to see.
        if world.simulated:
            assert log == ["holder out"]
            world.assert_elapsed(started_s, at_least=3 * TICK_S)
        assert not world.free(cond)
    world.join(thread)


@alike
@every_lock
def test_notify_wakes_one_by_default(world, lock_kind):
    cond = make(world, lock_kind)
    threads, woken = start_waiters(world, cond, 3)
    for expected in (1, 2, 3):
        notify(cond)
        world.until(lambda: len(woken) >= expected)  # noqa: B023  (called before expected changes)
        world.time.sleep(0.002)
        assert woken == [True] * expected
    world.join(*threads)


@alike
@every_lock
def test_notify_n_wakes_exactly_n(world, lock_kind):
    cond = make(world, lock_kind)
    threads, woken = start_waiters(world, cond, 5)
    notify(cond, 2)
    world.until(lambda: len(woken) >= 2)
    world.time.sleep(TICK_S)
    assert woken == [True] * 2
    notify(cond, 3)
    world.join(*threads)
    assert woken == [True] * 5


@alike
@every_lock
def test_notify_takes_n_by_keyword_and_may_be_more_than_wait(world, lock_kind):
    cond = make(world, lock_kind)
    threads, woken = start_waiters(world, cond, 2)
    with cond:
        cond.notify(n=100)
    world.join(*threads)
    assert woken == [True] * 2


@alike
@every_lock
def test_two_notifies_in_a_row_wake_two_waiters(world, lock_kind):
    """The second may not be spent on a waiter the first has already chosen but who has not run yet."""
    cond = make(world, lock_kind)
    threads, woken = start_waiters(world, cond, 2)
    with cond:
        cond.notify()
        cond.notify()
    world.join(*threads)
    assert woken == [True] * 2


@alike
@every_lock
def test_notify_zero_wakes_nobody(world, lock_kind):
    cond = make(world, lock_kind)
    threads, woken = start_waiters(world, cond, 2)
    notify(cond, 0)
    world.time.sleep(TICK_S)
    assert woken == []
    notify_all(cond)
    world.join(*threads)


@alike
@every_lock
def test_notify_all_wakes_everyone(world, lock_kind):
    cond = make(world, lock_kind)
    threads, woken = start_waiters(world, cond, 5)
    notify_all(cond)
    world.join(*threads)
    assert woken == [True] * 5


@alike
@every_lock
def test_a_notify_nobody_waits_for_is_forgotten(world, lock_kind):
    cond = make(world, lock_kind)
    notify(cond, 3)
    notify_all(cond)
    with cond:
        started_s = world.time.monotonic()
        assert cond.wait(TICK_S) is False
        world.assert_elapsed(started_s, at_least=TICK_S)


@alike
@every_lock
def test_a_waiter_that_timed_out_does_not_swallow_a_notify(world, lock_kind):
    cond = make(world, lock_kind)
    with cond:
        assert cond.wait(0.001) is False
    threads, woken = start_waiters(world, cond, 1)
    with cond:
        assert cond.wait(0.001) is False
    notify(cond)
    world.join(*threads)
    assert woken == [True]


@alike
@every_lock
def test_a_woken_waiter_does_not_run_until_the_notifier_lets_go(world, lock_kind):
    cond = make(world, lock_kind)
    threads, woken = start_waiters(world, cond, 3)
    with cond:
        cond.notify_all()
        world.time.sleep(TICK_S)
        assert woken == []
    world.join(*threads)
    assert woken == [True] * 3


@alike
@every_lock
@pytest.mark.parametrize("call", ["wait", "notify", "notify_all"])
def test_without_the_lock_is_refused(world, lock_kind, call):
    cond = make(world, lock_kind)
    with pytest.raises(RuntimeError):
        getattr(cond, call)()
    with cond:
        pass
    with pytest.raises(RuntimeError):
        getattr(cond, call)()
    assert world.free(cond)


@alike
@every_lock
def test_wait_without_the_lock_is_refused(world, lock_kind):
    cond = make(world, lock_kind)
    with pytest.raises(RuntimeError):
        cond.wait(TICK_S)
    with pytest.raises(RuntimeError):
        cond.wait_for(lambda: False, TICK_S)


@alike
@pytest.mark.parametrize("lock_kind", ["default", "RLock"])
@pytest.mark.parametrize("call", ["wait", "notify", "notify_all"])
def test_over_an_rlock_somebody_elses_lock_does_not_count(world, lock_kind, call):
    cond = make(world, lock_kind)
    with world.held_elsewhere(cond):
        assert isinstance(outcome(getattr(cond, call)), RuntimeError)


@alike
@every_lock
def test_wait_for_without_timeout(world, lock_kind):
    cond = make(world, lock_kind)
    state, got = [0], []

    def waiter():
        with cond:
            got.append(cond.wait_for(lambda: state[0] == 3 and "three"))

    thread = world.spawn(waiter)
    for number in (1, 2, 3):
        world.time.sleep(0.001)
        assert got == []
        with cond:
            state[0] = number
            cond.notify()
    world.join(thread)
    assert got == ["three"]


@alike
@every_lock
def test_wait_for_what_holds_already_does_not_wait(world, lock_kind):
    cond = make(world, lock_kind)
    with cond:
        started_s = world.time.monotonic()
        assert cond.wait_for(lambda: "yes") == "yes"
        assert cond.wait_for(lambda: 7, timeout=PATIENCE_S) == 7
        world.assert_elapsed(started_s, at_least=0)
        assert not world.free(cond)


@alike
@every_lock
def test_wait_for_gives_up_after_its_timeout(world, lock_kind):
    cond = make(world, lock_kind)
    with cond:
        started_s = world.time.monotonic()
        assert cond.wait_for(lambda: 0, timeout=TICK_S) == 0
        world.assert_elapsed(started_s, at_least=TICK_S)
        assert not world.free(cond)


@alike
@every_lock
def test_wait_for_counts_its_timeout_over_false_alarms(world, lock_kind):
    """Notifies that change nothing must not start the timeout anew."""
    cond = make(world, lock_kind)
    stop = world.threading.Event()

    def nag():
        while not stop.is_set():
            with cond:
                cond.notify_all()
            world.time.sleep(TICK_S / 4.5)

    thread = world.spawn(nag)
    with cond:
        started_s = world.time.monotonic()
        assert cond.wait_for(lambda: False, TICK_S) is False
        world.assert_elapsed(started_s, at_least=TICK_S)
    stop.set()
    world.join(thread)


@alike
@every_lock
def test_wait_for_succeeds_within_its_timeout(world, lock_kind):
    cond = make(world, lock_kind)
    ready = []

    def make_ready():
        world.time.sleep(TICK_S)
        with cond:
            ready.append(True)
            cond.notify()

    started_s = world.time.monotonic()
    thread = world.spawn(make_ready)
    with cond:
        assert cond.wait_for(lambda: ready, timeout=PATIENCE_S) == [True]
        world.assert_elapsed(started_s, at_least=TICK_S)
    world.join(thread)


@alike
@every_lock
def test_wait_for_asks_with_the_lock_held(world, lock_kind):
    cond = make(world, lock_kind)
    free_when_asked = []
    with cond:
        cond.wait_for(lambda: free_when_asked.append(world.free(cond)), timeout=TICK_S)
    assert len(free_when_asked) >= 2
    assert not any(free_when_asked)


@alike
@pytest.mark.parametrize("lock_kind", ["default", "RLock"])
def test_wait_lets_go_of_every_level_and_restores_them(world, lock_kind):
    cond = make(world, lock_kind)
    cond.acquire()
    cond.acquire()
    cond.acquire()
    thread = world.spawn(notify, cond)  # can only get in if all three levels are released
    assert cond.wait(PATIENCE_S) is True
    world.join(thread)
    cond.release()
    assert not world.free(cond)
    cond.release()
    assert not world.free(cond)
    cond.release()
    assert world.free(cond)
    with pytest.raises(RuntimeError):
        cond.release()


@alike
@pytest.mark.parametrize("lock_kind", ["default", "RLock"])
def test_a_timed_out_wait_restores_every_level(world, lock_kind):
    cond = make(world, lock_kind)
    with cond, cond:
        assert cond.wait(0.001) is False
        cond.notify_all()
    assert world.free(cond)


@alike
@every_lock
def test_acquire_release_and_context_manager_are_the_locks(world, lock_kind):
    cond = make(world, lock_kind)
    assert cond.acquire() is True
    assert not world.free(cond)
    cond.release()
    assert world.free(cond)
    with cond as entered:
        assert entered is True
        assert not world.free(cond)
        assert world.elsewhere(lambda: cond.acquire(False)) is False
        assert world.elsewhere(lambda: cond.acquire(timeout=0.001)) is False
    assert world.free(cond)


@alike
@pytest.mark.parametrize("lock_kind", ["Lock", "RLock"])
def test_shares_the_lock_it_was_given(world, lock_kind):
    lock = getattr(world.threading, lock_kind)()
    cond = world.threading.Condition(lock)
    with lock:
        assert not world.free(cond)
        cond.notify()
    with cond:
        assert not world.free(lock)


@alike
def test_default_lock_is_reentrant(world):
    cond = world.threading.Condition()
    with cond, cond:
        assert not world.free(cond)
    assert world.free(cond)


@alike
@pytest.mark.parametrize("lock_kind", ["Lock", "RLock"])
def test_two_conditions_over_one_lock_wake_their_own(world, lock_kind):
    lock = getattr(world.threading, lock_kind)()
    left, right = world.threading.Condition(lock), world.threading.Condition(lock)
    left_threads, left_woken = start_waiters(world, left, 2)
    right_threads, right_woken = start_waiters(world, right, 2)
    notify_all(left)
    world.join(*left_threads)
    world.time.sleep(0.002)
    assert (left_woken, right_woken) == ([True] * 2, [])
    notify_all(right)
    world.join(*right_threads)
    assert right_woken == [True] * 2


@alike
@every_lock
def test_ping_pong(world, lock_kind):
    cond = make(world, lock_kind)
    turn, log = ["ping"], []

    def player(me, other):
        for _ in range(5):
            with cond:
                cond.wait_for(lambda: turn[0] == me)
                log.append(me)
                turn[0] = other
                cond.notify_all()

    world.join(world.spawn(player, "ping", "pong"), world.spawn(player, "pong", "ping"))
    assert log == ["ping", "pong"] * 5
