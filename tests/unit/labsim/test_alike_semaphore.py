"""Semaphore and BoundedSemaphore, in every runtime."""

import pytest

from unit.labsim.alike import PATIENCE_S, TICK_S, alike

both_kinds = pytest.mark.parametrize("kind", ["Semaphore", "BoundedSemaphore"])


def make(runtime, kind, *args, **kwargs):
    return getattr(runtime.threading, kind)(*args, **kwargs)


def units(semaphore):
    """How many acquires succeed without waiting; they are all given back."""
    count = 0
    while semaphore.acquire(blocking=False):
        count += 1
    for _ in range(count):
        semaphore.release()
    return count


@alike
@both_kinds
@pytest.mark.parametrize("value", [-1, -100])
def test_negative_initial_value_is_refused(runtime, kind, value):
    with pytest.raises(ValueError, match=">= 0"):
        make(runtime, kind, value)
    with pytest.raises(ValueError, match=">= 0"):
        make(runtime, kind, value=value)


@alike
@both_kinds
def test_initial_value(runtime, kind):
    assert units(make(runtime, kind)) == 1
    assert units(make(runtime, kind, 0)) == 0
    assert units(make(runtime, kind, 4)) == 4
    assert units(make(runtime, kind, value=2)) == 2


@alike
@both_kinds
def test_acquire_returns_whether_it_got_a_unit(runtime, kind):
    semaphore = make(runtime, kind, 2)
    assert semaphore.acquire() is True
    assert semaphore.acquire(blocking=True) is True
    assert semaphore.acquire(blocking=False) is False
    assert semaphore.acquire(False) is False
    assert semaphore.release() is None
    assert semaphore.acquire(False) is True


@alike
@both_kinds
def test_acquire_gives_up_after_its_timeout(runtime, kind):
    semaphore = make(runtime, kind, 0)
    for acquire in (lambda: semaphore.acquire(timeout=TICK_S), lambda: semaphore.acquire(True, TICK_S)):
        started_s = runtime.time.monotonic()
        assert acquire() is False
        runtime.assert_elapsed(started_s, at_least=TICK_S)


@alike
@both_kinds
@pytest.mark.parametrize("timeout_s", [0, 0.0, -1, -0.5])
def test_acquire_without_time_left_gives_up_at_once(runtime, kind, timeout_s):
    semaphore = make(runtime, kind, 1)
    started_s = runtime.time.monotonic()
    assert semaphore.acquire(timeout=timeout_s) is True
    assert semaphore.acquire(timeout=timeout_s) is False
    runtime.assert_elapsed(started_s, at_least=0)


@alike
@both_kinds
def test_not_blocking_takes_no_timeout(runtime, kind):
    semaphore = make(runtime, kind)
    with pytest.raises(ValueError, match="timeout"):
        semaphore.acquire(blocking=False, timeout=1.0)
    with pytest.raises(ValueError, match="timeout"):
        semaphore.acquire(False, 0)
    assert units(semaphore) == 1


@alike
@both_kinds
@pytest.mark.parametrize(("timeout", "error"), [("1", TypeError), (1e100, OverflowError)])
def test_acquire_refuses_a_bad_timeout(runtime, kind, timeout, error):
    semaphore = make(runtime, kind, 0)
    with pytest.raises(error):
        semaphore.acquire(timeout=timeout)


@alike
@both_kinds
@pytest.mark.parametrize("timeout_s", [None, PATIENCE_S])
def test_acquire_waits_for_a_release(runtime, kind, timeout_s):
    semaphore = make(runtime, kind, 1)
    semaphore.acquire()

    def release_later():
        runtime.time.sleep(TICK_S)
        semaphore.release()

    started_s = runtime.time.monotonic()
    thread = runtime.spawn(release_later)
    assert semaphore.acquire(timeout=timeout_s) is True
    runtime.assert_elapsed(started_s, at_least=TICK_S)
    runtime.join(thread)
    assert semaphore.acquire(blocking=False) is False


@alike
@both_kinds
def test_a_waiter_that_timed_out_does_not_swallow_a_release(runtime, kind):
    semaphore = make(runtime, kind, 1)
    semaphore.acquire()
    for _ in range(3):
        assert semaphore.acquire(timeout=0.001) is False
    semaphore.release()
    assert units(semaphore) == 1


@alike
@both_kinds
def test_no_more_than_value_inside_at_once(runtime, kind):
    semaphore = make(runtime, kind, 3)
    mu = runtime.threading.Lock()
    inside, most = [0], [0]

    def visitor():
        with semaphore:
            with mu:
                inside[0] += 1
                most[0] = max(most[0], inside[0])
            runtime.time.sleep(0.002)
            with mu:
                inside[0] -= 1

    runtime.join(*[runtime.spawn(visitor) for _ in range(9)])
    assert inside == [0]
    assert most[0] <= 3
    if runtime.simulated:
        assert most == [3]
    assert units(semaphore) == 3


@alike
@both_kinds
def test_release_n_lets_n_in(runtime, kind):
    semaphore = make(runtime, kind, 5)
    for _ in range(5):
        semaphore.acquire()
    through = []

    def visitor():
        semaphore.acquire()
        through.append(True)

    threads = [runtime.spawn(visitor) for _ in range(5)]
    semaphore.release(2)
    runtime.until(lambda: len(through) >= 2)
    runtime.time.sleep(0.005)
    assert len(through) == 2
    semaphore.release(n=3)
    runtime.join(*threads)
    assert len(through) == 5
    assert units(semaphore) == 0


@alike
@both_kinds
@pytest.mark.parametrize("n", [0, -1])
def test_release_of_fewer_than_one_is_refused(runtime, kind, n):
    semaphore = make(runtime, kind, 1)
    with pytest.raises(ValueError, match="one or more"):
        semaphore.release(n)
    assert units(semaphore) == 1


@alike
@both_kinds
def test_may_be_released_by_another_thread(runtime, kind):
    semaphore = make(runtime, kind, 1)
    semaphore.acquire()
    assert runtime.elsewhere(semaphore.release) is None
    assert units(semaphore) == 1


@alike
@both_kinds
def test_context_manager(runtime, kind):
    semaphore = make(runtime, kind, 2)
    with semaphore as entered:
        assert entered is True
        assert units(semaphore) == 1
        with semaphore:
            assert units(semaphore) == 0
    assert units(semaphore) == 2

    def fail_inside():
        with semaphore:
            raise KeyError("inside")

    with pytest.raises(KeyError, match="inside"):
        fail_inside()
    assert units(semaphore) == 2


@alike
def test_semaphore_may_grow_beyond_its_initial_value(runtime):
    semaphore = runtime.threading.Semaphore(1)
    semaphore.release()
    semaphore.release(3)
    assert units(semaphore) == 5


@alike
def test_bounded_semaphore_may_not(runtime):
    semaphore = runtime.threading.BoundedSemaphore(2)
    with pytest.raises(ValueError, match="too many"):
        semaphore.release()
    semaphore.acquire()
    with pytest.raises(ValueError, match="too many"):
        semaphore.release(2)
    assert units(semaphore) == 1  # the refused release gave nothing back
    semaphore.release()
    with pytest.raises(ValueError, match="too many"):
        semaphore.release()
    assert units(semaphore) == 2


@alike
def test_bounded_semaphore_is_a_semaphore(runtime):
    assert issubclass(runtime.threading.BoundedSemaphore, runtime.threading.Semaphore)


@alike
def test_as_a_gate_between_two_threads(runtime):
    """Two semaphores make two threads take turns."""
    mine, yours = runtime.threading.Semaphore(1), runtime.threading.Semaphore(0)
    log = []

    def player(name, my_turn, your_turn):
        for _ in range(4):
            my_turn.acquire()
            log.append(name)
            your_turn.release()

    runtime.join(runtime.spawn(player, "tick", mine, yours), runtime.spawn(player, "tock", yours, mine))
    assert log == ["tick", "tock"] * 4
