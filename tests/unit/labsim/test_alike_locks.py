"""Lock and RLock, in every world."""

import copy
import math
import pickle
import weakref

import pytest

from unit.labsim.alike import PATIENCE_S, TICK_S, alike

both_locks = pytest.mark.parametrize("kind", ["Lock", "RLock"])


def make(world, kind):
    return getattr(world.threading, kind)()


@alike
@both_locks
def test_acquire_and_release(world, kind):
    lock = make(world, kind)
    assert lock.acquire() is True
    assert not world.free(lock)
    assert lock.release() is None
    assert world.free(lock)


@alike
@both_locks
def test_locks_are_independent(world, kind):
    one, other = make(world, kind), make(world, kind)
    with one:
        assert not world.free(one)
        assert world.free(other)


@alike
@both_locks
def test_acquire_waits_for_the_holder(world, kind):
    lock = make(world, kind)
    held = world.threading.Event()
    log = []

    def holder():
        with lock:
            held.set()
            world.time.sleep(TICK_S)
            log.append("holder lets go")

    started_s = world.time.monotonic()
    thread = world.spawn(holder)
    assert held.wait(PATIENCE_S)
    assert lock.acquire()
    log.append("main has it")
    lock.release()
    world.assert_elapsed(started_s, at_least=TICK_S)
    world.join(thread)
    assert log == ["holder lets go", "main has it"]


@alike
@both_locks
def test_a_waiting_acquire_does_not_get_through_while_held(world, kind):
    lock = make(world, kind)
    about_to, got = world.threading.Event(), []

    def contender():
        about_to.set()
        with lock:
            got.append(True)

    lock.acquire()
    thread = world.spawn(contender)
    assert about_to.wait(PATIENCE_S)
    world.time.sleep(TICK_S)
    assert got == []
    lock.release()
    world.join(thread)
    assert got == [True]


@alike
@both_locks
def test_one_release_lets_one_waiter_in(world, kind):
    lock = make(world, kind)
    inside, most, served = [0], [0], []

    def contender(number):
        with lock:
            inside[0] += 1
            most[0] = max(most[0], inside[0])
            world.time.sleep(0.001)
            inside[0] -= 1
            served.append(number)

    lock.acquire()
    threads = [world.spawn(contender, number) for number in range(5)]
    lock.release()
    world.join(*threads)
    assert most == [1]
    assert sorted(served) == [0, 1, 2, 3, 4]


@alike
@both_locks
@pytest.mark.parametrize("args", [(False,), (0,), (True, 0), (True, 0.0)])
def test_acquire_that_may_not_wait_gives_up_at_once(world, kind, args):
    lock = make(world, kind)
    with world.held_elsewhere(lock):
        started_s = world.time.monotonic()
        assert lock.acquire(*args) is False
        world.assert_elapsed(started_s, at_least=0)
    assert lock.acquire(*args) is True
    lock.release()


@alike
@both_locks
def test_acquire_takes_keywords(world, kind):
    lock = make(world, kind)
    assert lock.acquire(blocking=True, timeout=-1) is True
    lock.release()
    assert lock.acquire(blocking=False) is True
    lock.release()
    assert lock.acquire(timeout=TICK_S) is True
    lock.release()


@alike
@both_locks
def test_acquire_gives_up_after_its_timeout(world, kind):
    lock = make(world, kind)
    with world.held_elsewhere(lock):
        started_s = world.time.monotonic()
        assert lock.acquire(timeout=TICK_S) is False
        world.assert_elapsed(started_s, at_least=TICK_S)
        started_s = world.time.monotonic()
        assert lock.acquire(True, TICK_S) is False
        world.assert_elapsed(started_s, at_least=TICK_S)
    assert world.free(lock)


@alike
@both_locks
def test_acquire_gets_the_lock_within_its_timeout(world, kind):
    lock = make(world, kind)
    held = world.threading.Event()

    def holder():
        with lock:
            held.set()
            world.time.sleep(TICK_S)

    started_s = world.time.monotonic()
    thread = world.spawn(holder)
    assert held.wait(PATIENCE_S)
    assert lock.acquire(timeout=PATIENCE_S) is True
    world.assert_elapsed(started_s, at_least=TICK_S)
    assert not world.free(lock)
    lock.release()
    world.join(thread)


@alike
@both_locks
def test_a_waiter_that_timed_out_does_not_swallow_the_release(world, kind):
    lock = make(world, kind)
    with world.held_elsewhere(lock):
        for _ in range(3):
            assert lock.acquire(timeout=0.001) is False
    assert lock.acquire(timeout=PATIENCE_S) is True
    lock.release()
    assert world.free(lock)


@alike
@both_locks
@pytest.mark.parametrize("timeout", [0, 1, 0.5, -2])
def test_not_blocking_takes_no_timeout(world, kind, timeout):
    lock = make(world, kind)
    with pytest.raises(ValueError, match="timeout"):
        lock.acquire(False, timeout)
    assert world.free(lock)


@alike
@both_locks
@pytest.mark.parametrize("timeout", [-2, -0.5, -100, math.nan])
def test_acquire_refuses_a_negative_timeout(world, kind, timeout):
    lock = make(world, kind)
    with pytest.raises(ValueError):  # noqa: PT011  (each world words it its own way)
        lock.acquire(timeout=timeout)
    assert world.free(lock)


@alike
@both_locks
@pytest.mark.parametrize("timeout", [1e100, math.inf])
def test_acquire_refuses_a_timeout_beyond_the_clock(world, kind, timeout):
    lock = make(world, kind)
    with pytest.raises(OverflowError):
        lock.acquire(timeout=timeout)
    with pytest.raises(OverflowError):
        lock.acquire(timeout=world.threading.TIMEOUT_MAX * 2)
    assert world.free(lock)


@alike
@both_locks
@pytest.mark.parametrize("timeout", ["1", None, [1]])
def test_acquire_refuses_a_timeout_that_is_no_number(world, kind, timeout):
    lock = make(world, kind)
    with pytest.raises(TypeError):
        lock.acquire(timeout=timeout)
    assert world.free(lock)


@alike
@both_locks
def test_timeout_max_is_allowed(world, kind):
    lock = make(world, kind)
    assert lock.acquire(timeout=world.threading.TIMEOUT_MAX) is True
    lock.release()


@alike
@both_locks
def test_context_manager(world, kind):
    lock = make(world, kind)
    with lock as entered:
        assert entered is True
        assert not world.free(lock)
    assert world.free(lock)


@alike
@both_locks
def test_context_manager_releases_on_an_exception(world, kind):
    lock = make(world, kind)

    def fail_inside():
        with lock:
            raise KeyError("inside")

    with pytest.raises(KeyError, match="inside"):
        fail_inside()
    assert world.free(lock)


@alike
@both_locks
def test_release_of_a_free_lock_is_refused(world, kind):
    lock = make(world, kind)
    with pytest.raises(RuntimeError):
        lock.release()
    lock.acquire()
    lock.release()
    with pytest.raises(RuntimeError):
        lock.release()
    assert world.free(lock)


@alike
@both_locks
def test_repr_tells_locked_from_unlocked(world, kind):
    lock = make(world, kind)
    assert "unlocked" in repr(lock)
    with lock:
        assert "locked" in repr(lock) and "unlocked" not in repr(lock)
    assert "unlocked" in repr(lock)


@alike
@both_locks
def test_a_lock_cannot_be_copied(world, kind):
    """Two locks where the program thinks it has one would be worse than an error."""
    lock = make(world, kind)
    for duplicate in (copy.copy, copy.deepcopy, pickle.dumps):
        with pytest.raises(TypeError):
            duplicate(lock)


@alike
@pytest.mark.parametrize("kind", ["Lock", "RLock", "Condition", "Event", "Semaphore"])
def test_may_be_weakly_referenced(world, kind):
    made = make(world, kind)
    assert weakref.ref(made)() is made


@alike
@both_locks
def test_a_lock_outlives_the_thread_that_died_holding_it(world, kind):
    """Nobody releases for the dead: the lock stays held."""
    lock = make(world, kind)
    assert world.elsewhere(lock.acquire) is True
    assert lock.acquire(blocking=False) is False
    started_s = world.time.monotonic()
    assert lock.acquire(timeout=TICK_S) is False
    world.assert_elapsed(started_s, at_least=TICK_S)


@alike
def test_lock_locked(world):
    lock = world.threading.Lock()
    assert lock.locked() is False
    with lock:
        assert lock.locked() is True
        assert world.elsewhere(lock.locked) is True
    assert lock.locked() is False


@alike
def test_lock_takes_no_arguments(world):
    with pytest.raises(TypeError):
        world.threading.Lock(1)


@alike
def test_lock_is_not_reentrant(world):
    lock = world.threading.Lock()
    with lock:
        assert lock.acquire(blocking=False) is False
        started_s = world.time.monotonic()
        assert lock.acquire(timeout=TICK_S) is False
        world.assert_elapsed(started_s, at_least=TICK_S)


@alike
def test_lock_may_be_released_by_another_thread(world):
    lock = world.threading.Lock()
    lock.acquire()
    assert world.elsewhere(lock.release) is None
    assert lock.locked() is False


@alike
def test_lock_taken_by_a_thread_that_is_gone_may_be_released(world):
    lock = world.threading.Lock()
    assert world.elsewhere(lock.acquire) is True
    assert lock.locked() is True
    lock.release()
    assert lock.locked() is False


@alike
def test_lock_released_by_another_thread_wakes_its_owner(world):
    """A lock as a signal: the owner waits on its own lock until somebody else releases it."""
    lock = world.threading.Lock()
    started_s = world.time.monotonic()

    def release_later():
        world.time.sleep(TICK_S)
        lock.release()

    lock.acquire()
    thread = world.spawn(release_later)
    assert lock.acquire(timeout=PATIENCE_S) is True
    world.assert_elapsed(started_s, at_least=TICK_S)
    world.join(thread)
    assert lock.locked() is True


@alike
def test_rlock_is_reentrant(world):
    lock = world.threading.RLock()
    for _ in range(3):
        assert lock.acquire() is True
    assert lock.acquire(blocking=False) is True
    assert lock.acquire(timeout=TICK_S) is True
    for _ in range(4):
        lock.release()
        assert not world.free(lock)
    lock.release()
    assert world.free(lock)
    with pytest.raises(RuntimeError):
        lock.release()


@alike
def test_rlock_context_managers_nest(world):
    lock = world.threading.RLock()
    with lock:
        with lock:
            assert not world.free(lock)
        assert not world.free(lock)
    assert world.free(lock)


@alike
def test_rlock_release_by_another_thread_is_refused(world):
    lock = world.threading.RLock()
    with lock:
        assert isinstance(world.elsewhere(lock.release), RuntimeError)
        assert not world.free(lock)
    assert world.free(lock)


@alike
def test_rlock_bad_timeout_is_refused_to_its_owner_too(world):
    lock = world.threading.RLock()
    with lock:
        with pytest.raises(ValueError, match="timeout"):
            lock.acquire(False, 1)
        with pytest.raises(ValueError, match="timeout"):
            lock.acquire(timeout=-2)
    assert world.free(lock)


@alike
def test_failed_rlock_attempts_do_not_change_the_owners_count(world):
    lock = world.threading.RLock()
    lock.acquire()
    lock.acquire()
    assert world.elsewhere(lambda: lock.acquire(timeout=0.001)) is False
    lock.release()
    assert not world.free(lock)
    lock.release()
    assert world.free(lock)
