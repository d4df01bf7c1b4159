"""Lock and RLock, in every runtime."""

import copy
import math
import pickle
import weakref

import pytest

from unit.labsim.alike import PATIENCE_S, TICK_S, alike

both_locks = pytest.mark.parametrize("kind", ["Lock", "RLock"])


def make(runtime, kind):
    return getattr(runtime.threading, kind)()


@alike
@both_locks
def test_acquire_and_release(runtime, kind):
    lock = make(runtime, kind)
    assert lock.acquire() is True
    assert not runtime.free(lock)
    assert lock.release() is None
    assert runtime.free(lock)


@alike
@both_locks
def test_locks_are_independent(runtime, kind):
    one, other = make(runtime, kind), make(runtime, kind)
    with one:
        assert not runtime.free(one)
        assert runtime.free(other)


@alike
@both_locks
def test_acquire_waits_for_the_holder(runtime, kind):
    lock = make(runtime, kind)
    held = runtime.threading.Event()
    log = []

    def holder():
        with lock:
            held.set()
            runtime.time.sleep(TICK_S)
            log.append("holder lets go")

    started_s = runtime.time.monotonic()
    thread = runtime.spawn(holder)
    assert held.wait(PATIENCE_S)
    assert lock.acquire()
    log.append("main has it")
    lock.release()
    runtime.assert_elapsed(started_s, at_least=TICK_S)
    runtime.join(thread)
    assert log == ["holder lets go", "main has it"]


@alike
@both_locks
def test_a_waiting_acquire_does_not_get_through_while_held(runtime, kind):
    lock = make(runtime, kind)
    about_to, got = runtime.threading.Event(), []

    def contender():
        about_to.set()
        with lock:
            got.append(True)

    lock.acquire()
    thread = runtime.spawn(contender)
    assert about_to.wait(PATIENCE_S)
    runtime.time.sleep(TICK_S)
    assert got == []
    lock.release()
    runtime.join(thread)
    assert got == [True]


@alike
@both_locks
def test_one_release_lets_one_waiter_in(runtime, kind):
    lock = make(runtime, kind)
    inside, most, served = [0], [0], []

    def contender(number):
        with lock:
            inside[0] += 1
            most[0] = max(most[0], inside[0])
            runtime.time.sleep(0.001)
            inside[0] -= 1
            served.append(number)

    lock.acquire()
    threads = [runtime.spawn(contender, number) for number in range(5)]
    lock.release()
    runtime.join(*threads)
    assert most == [1]
    assert sorted(served) == [0, 1, 2, 3, 4]


@alike
@both_locks
@pytest.mark.parametrize("args", [(False,), (0,), (True, 0), (True, 0.0)])
def test_acquire_that_may_not_wait_gives_up_at_once(runtime, kind, args):
    lock = make(runtime, kind)
    with runtime.held_elsewhere(lock):
        started_s = runtime.time.monotonic()
        assert lock.acquire(*args) is False
        runtime.assert_elapsed(started_s, at_least=0)
    assert lock.acquire(*args) is True
    lock.release()


@alike
@both_locks
def test_acquire_takes_keywords(runtime, kind):
    lock = make(runtime, kind)
    assert lock.acquire(blocking=True, timeout=-1) is True
    lock.release()
    assert lock.acquire(blocking=False) is True
    lock.release()
    assert lock.acquire(timeout=TICK_S) is True
    lock.release()


@alike
@both_locks
def test_acquire_gives_up_after_its_timeout(runtime, kind):
    lock = make(runtime, kind)
    with runtime.held_elsewhere(lock):
        started_s = runtime.time.monotonic()
        assert lock.acquire(timeout=TICK_S) is False
        runtime.assert_elapsed(started_s, at_least=TICK_S)
        started_s = runtime.time.monotonic()
        assert lock.acquire(True, TICK_S) is False
        runtime.assert_elapsed(started_s, at_least=TICK_S)
    assert runtime.free(lock)


@alike
@both_locks
def test_acquire_gets_the_lock_within_its_timeout(runtime, kind):
    lock = make(runtime, kind)
    held = runtime.threading.Event()

    def holder():
        with lock:
            held.set()
            runtime.time.sleep(TICK_S)

    started_s = runtime.time.monotonic()
    thread = runtime.spawn(holder)
    assert held.wait(PATIENCE_S)
    assert lock.acquire(timeout=PATIENCE_S) is True
    runtime.assert_elapsed(started_s, at_least=TICK_S)
    assert not runtime.free(lock)
    lock.release()
    runtime.join(thread)


@alike
@both_locks
def test_a_waiter_that_timed_out_does_not_swallow_the_release(runtime, kind):
    lock = make(runtime, kind)
    with runtime.held_elsewhere(lock):
        for _ in range(3):
            assert lock.acquire(timeout=0.001) is False
    assert lock.acquire(timeout=PATIENCE_S) is True
    lock.release()
    assert runtime.free(lock)


@alike
@both_locks
@pytest.mark.parametrize("timeout", [0, 1, 0.5, -2])
def test_not_blocking_takes_no_timeout(runtime, kind, timeout):
    lock = make(runtime, kind)
    with pytest.raises(ValueError, match="timeout"):
        lock.acquire(False, timeout)
    assert runtime.free(lock)


@alike
@both_locks
@pytest.mark.parametrize("timeout", [-2, -0.5, -100, math.nan])
def test_acquire_refuses_a_negative_timeout(runtime, kind, timeout):
    lock = make(runtime, kind)
    with pytest.raises(ValueError):  # noqa: PT011  (each runtime words it its own way)
        lock.acquire(timeout=timeout)
    assert runtime.free(lock)


@alike
@both_locks
@pytest.mark.parametrize("timeout", [1e100, math.inf])
def test_acquire_refuses_a_timeout_beyond_the_clock(runtime, kind, timeout):
    lock = make(runtime, kind)
    with pytest.raises(OverflowError):
        lock.acquire(timeout=timeout)
    with pytest.raises(OverflowError):
        lock.acquire(timeout=runtime.threading.TIMEOUT_MAX * 2)
    assert runtime.free(lock)


@alike
@both_locks
@pytest.mark.parametrize("timeout", ["1", None, [1]])
def test_acquire_refuses_a_timeout_that_is_no_number(runtime, kind, timeout):
    lock = make(runtime, kind)
    with pytest.raises(TypeError):
        lock.acquire(timeout=timeout)
    assert runtime.free(lock)


@alike
@both_locks
def test_timeout_max_is_allowed(runtime, kind):
    lock = make(runtime, kind)
    assert lock.acquire(timeout=runtime.threading.TIMEOUT_MAX) is True
    lock.release()


@alike
@both_locks
def test_context_manager(runtime, kind):
    lock = make(runtime, kind)
    with lock as entered:
        assert entered is True
        assert not runtime.free(lock)
    assert runtime.free(lock)


@alike
@both_locks
def test_context_manager_releases_on_an_exception(runtime, kind):
    lock = make(runtime, kind)

    def fail_inside():
        with lock:
            raise KeyError("inside")

    with pytest.raises(KeyError, match="inside"):
        fail_inside()
    assert runtime.free(lock)


@alike
@both_locks
def test_release_of_a_free_lock_is_refused(runtime, kind):
    lock = make(runtime, kind)
    with pytest.raises(RuntimeError):
        lock.release()
    lock.acquire()
    lock.release()
    with pytest.raises(RuntimeError):
        lock.release()
    assert runtime.free(lock)


@alike
@both_locks
def test_repr_tells_locked_from_unlocked(runtime, kind):
    lock = make(runtime, kind)
    assert "unlocked" in repr(lock)
    with lock:
        assert "locked" in repr(lock) and "unlocked" not in repr(lock)
    assert "unlocked" in repr(lock)


@alike
@both_locks
def test_a_lock_cannot_be_copied(runtime, kind):
    """Two locks where the program thinks it has one would be worse than an error."""
    lock = make(runtime, kind)
    for duplicate in (copy.copy, copy.deepcopy, pickle.dumps):
        with pytest.raises(TypeError):
            duplicate(lock)


@alike
@pytest.mark.parametrize("kind", ["Lock", "RLock", "Condition", "Event", "Semaphore"])
def test_may_be_weakly_referenced(runtime, kind):
    made = make(runtime, kind)
    assert weakref.ref(made)() is made


@alike
@both_locks
def test_a_lock_outlives_the_thread_that_died_holding_it(runtime, kind):
    """Nobody releases for the dead: the lock stays held."""
    lock = make(runtime, kind)
    assert runtime.elsewhere(lock.acquire) is True
    assert lock.acquire(blocking=False) is False
    started_s = runtime.time.monotonic()
    assert lock.acquire(timeout=TICK_S) is False
    runtime.assert_elapsed(started_s, at_least=TICK_S)


@alike
def test_lock_locked(runtime):
    lock = runtime.threading.Lock()
    assert lock.locked() is False
    with lock:
        assert lock.locked() is True
        assert runtime.elsewhere(lock.locked) is True
    assert lock.locked() is False


@alike
def test_lock_takes_no_arguments(runtime):
    with pytest.raises(TypeError):
        runtime.threading.Lock(1)


@alike
def test_lock_is_not_reentrant(runtime):
    lock = runtime.threading.Lock()
    with lock:
        assert lock.acquire(blocking=False) is False
        started_s = runtime.time.monotonic()
        assert lock.acquire(timeout=TICK_S) is False
        runtime.assert_elapsed(started_s, at_least=TICK_S)


@alike
def test_lock_may_be_released_by_another_thread(runtime):
    lock = runtime.threading.Lock()
    lock.acquire()
    assert runtime.elsewhere(lock.release) is None
    assert lock.locked() is False


@alike
def test_lock_taken_by_a_thread_that_is_gone_may_be_released(runtime):
    lock = runtime.threading.Lock()
    assert runtime.elsewhere(lock.acquire) is True
    assert lock.locked() is True
    lock.release()
    assert lock.locked() is False


@alike
def test_lock_released_by_another_thread_wakes_its_owner(runtime):
    """A lock as a signal: the owner waits on its own lock until somebody else releases it."""
    lock = runtime.threading.Lock()
    started_s = runtime.time.monotonic()

    def release_later():
        runtime.time.sleep(TICK_S)
        lock.release()

    lock.acquire()
    thread = runtime.spawn(release_later)
    assert lock.acquire(timeout=PATIENCE_S) is True
    runtime.assert_elapsed(started_s, at_least=TICK_S)
    runtime.join(thread)
    assert lock.locked() is True


@alike
def test_rlock_is_reentrant(runtime):
    lock = runtime.threading.RLock()
    for _ in range(3):
        assert lock.acquire() is True
    assert lock.acquire(blocking=False) is True
    assert lock.acquire(timeout=TICK_S) is True
    for _ in range(4):
        lock.release()
        assert not runtime.free(lock)
    lock.release()
    assert runtime.free(lock)
    with pytest.raises(RuntimeError):
        lock.release()


@alike
def test_rlock_context_managers_nest(runtime):
    lock = runtime.threading.RLock()
    with lock:
        with lock:
            assert not runtime.free(lock)
        assert not runtime.free(lock)
    assert runtime.free(lock)


@alike
def test_rlock_release_by_another_thread_is_refused(runtime):
    lock = runtime.threading.RLock()
    with lock:
        assert isinstance(runtime.elsewhere(lock.release), RuntimeError)
        assert not runtime.free(lock)
    assert runtime.free(lock)


@alike
def test_rlock_bad_timeout_is_refused_to_its_owner_too(runtime):
    lock = runtime.threading.RLock()
    with lock:
        with pytest.raises(ValueError, match="timeout"):
            lock.acquire(False, 1)
        with pytest.raises(ValueError, match="timeout"):
            lock.acquire(timeout=-2)
    assert runtime.free(lock)


@alike
def test_failed_rlock_attempts_do_not_change_the_owners_count(runtime):
    lock = runtime.threading.RLock()
    lock.acquire()
    lock.acquire()
    assert runtime.elsewhere(lambda: lock.acquire(timeout=0.001)) is False
    lock.release()
    assert not runtime.free(lock)
    lock.release()
    assert runtime.free(lock)
