"""Barrier, in every runtime."""

import pytest

from unit.labsim.alike import PATIENCE_S, TICK_S, alike, outcome


def start_waiters(runtime, barrier, count, *args):
    """Threads that are certainly inside barrier.wait() when this returns, and the list of their outcomes."""
    outcomes = []
    threads = [runtime.spawn(lambda: outcomes.append(outcome(lambda: barrier.wait(*args)))) for _ in range(count)]
    runtime.until(lambda: barrier.n_waiting == count)
    return threads, outcomes


def assert_all_broken(runtime, outcomes, count):
    assert len(outcomes) == count
    assert all(isinstance(each, runtime.threading.BrokenBarrierError) for each in outcomes), outcomes


@alike
def test_fresh_barrier(runtime):
    barrier = runtime.threading.Barrier(3)
    assert (barrier.parties, barrier.n_waiting, barrier.broken) == (3, 0, False)
    assert issubclass(runtime.threading.BrokenBarrierError, RuntimeError)


@alike
def test_last_arrival_lets_everyone_through(runtime):
    barrier = runtime.threading.Barrier(4)
    threads, numbers = start_waiters(runtime, barrier, 3)
    runtime.time.sleep(0.002)
    assert numbers == []
    assert barrier.n_waiting == 3
    numbers.append(barrier.wait())
    runtime.join(*threads)
    assert sorted(numbers) == [0, 1, 2, 3]
    assert (barrier.n_waiting, barrier.broken) == (0, False)


@alike
def test_single_party_never_waits(runtime):
    barrier = runtime.threading.Barrier(1)
    started_s = runtime.time.monotonic()
    assert [barrier.wait() for _ in range(3)] == [0, 0, 0]
    runtime.assert_elapsed(started_s, at_least=0)


@alike
def test_waits_for_the_slowest(runtime):
    barrier = runtime.threading.Barrier(2)

    def slow():
        runtime.time.sleep(TICK_S)
        barrier.wait(PATIENCE_S)

    started_s = runtime.time.monotonic()
    thread = runtime.spawn(slow)
    barrier.wait(PATIENCE_S)
    runtime.assert_elapsed(started_s, at_least=TICK_S)
    runtime.join(thread)


@alike
def test_rounds_do_not_overlap(runtime):
    """Nobody is in round n+1 while somebody has not finished round n."""
    parties, rounds = 4, 6
    barrier = runtime.threading.Barrier(parties)
    log = []

    def runner():
        for number in range(rounds):
            log.append(number)
            barrier.wait(PATIENCE_S)

    runtime.join(*[runtime.spawn(runner) for _ in range(parties)])
    assert log == [number for number in range(rounds) for _ in range(parties)]


@alike
def test_each_round_hands_out_each_number_once(runtime):
    barrier = runtime.threading.Barrier(3)
    numbers = {0: [], 1: [], 2: []}

    def runner():
        for number in range(3):
            numbers[number].append(barrier.wait(PATIENCE_S))

    runtime.join(*[runtime.spawn(runner) for _ in range(3)])
    assert [sorted(numbers[number]) for number in range(3)] == [[0, 1, 2]] * 3


@alike
def test_action_runs_once_a_round_before_anyone_leaves(runtime):
    log = []
    barrier = runtime.threading.Barrier(3, action=lambda: log.append("action"))

    def runner():
        for _ in range(2):
            barrier.wait(PATIENCE_S)
            log.append("through")
            barrier.wait(PATIENCE_S)

    runtime.join(*[runtime.spawn(runner) for _ in range(3)])
    assert log == ["action", "through", "through", "through", "action"] * 2


@alike
def test_failing_action_breaks_the_barrier(runtime):
    def action():
        raise KeyError("action")

    barrier = runtime.threading.Barrier(3, action)
    threads, outcomes = start_waiters(runtime, barrier, 2)
    with pytest.raises(KeyError, match="action"):
        barrier.wait()
    runtime.join(*threads)
    assert_all_broken(runtime, outcomes, 2)
    assert barrier.broken is True


@alike
def test_abort_breaks_who_waits_and_who_comes(runtime):
    barrier = runtime.threading.Barrier(3)
    threads, outcomes = start_waiters(runtime, barrier, 2)
    assert barrier.abort() is None
    runtime.join(*threads)
    assert_all_broken(runtime, outcomes, 2)
    assert barrier.broken is True
    with pytest.raises(runtime.threading.BrokenBarrierError):
        barrier.wait()
    assert barrier.n_waiting == 0


@alike
def test_reset_breaks_who_waits_but_not_who_comes(runtime):
    barrier = runtime.threading.Barrier(3)
    threads, outcomes = start_waiters(runtime, barrier, 2)
    assert barrier.reset() is None
    runtime.join(*threads)
    assert_all_broken(runtime, outcomes, 2)
    assert (barrier.broken, barrier.n_waiting) == (False, 0)

    threads, numbers = start_waiters(runtime, barrier, 2)
    numbers.append(barrier.wait(PATIENCE_S))
    runtime.join(*threads)
    assert sorted(numbers) == [0, 1, 2]


@alike
def test_reset_of_an_idle_barrier_changes_nothing(runtime):
    barrier = runtime.threading.Barrier(2)
    barrier.reset()
    threads, numbers = start_waiters(runtime, barrier, 1)
    numbers.append(barrier.wait(PATIENCE_S))
    runtime.join(*threads)
    assert sorted(numbers) == [0, 1]


@alike
def test_reset_mends_a_broken_barrier(runtime):
    barrier = runtime.threading.Barrier(2)
    barrier.abort()
    assert barrier.broken is True
    barrier.reset()
    assert barrier.broken is False
    threads, numbers = start_waiters(runtime, barrier, 1)
    numbers.append(barrier.wait(PATIENCE_S))
    runtime.join(*threads)
    assert sorted(numbers) == [0, 1]


@alike
def test_timeout_breaks_the_barrier(runtime):
    barrier = runtime.threading.Barrier(2)
    started_s = runtime.time.monotonic()
    with pytest.raises(runtime.threading.BrokenBarrierError):
        barrier.wait(timeout=TICK_S)
    runtime.assert_elapsed(started_s, at_least=TICK_S)
    assert barrier.broken is True
    with pytest.raises(runtime.threading.BrokenBarrierError):
        barrier.wait()


@alike
def test_one_timeout_breaks_it_for_all(runtime):
    barrier = runtime.threading.Barrier(4)
    threads, outcomes = start_waiters(runtime, barrier, 2)
    with pytest.raises(runtime.threading.BrokenBarrierError):
        barrier.wait(0.001)
    runtime.join(*threads)
    assert_all_broken(runtime, outcomes, 2)


@alike
@pytest.mark.parametrize("timeout_s", [0, -1])
def test_wait_without_time_left_breaks_it_at_once(runtime, timeout_s):
    barrier = runtime.threading.Barrier(2)
    started_s = runtime.time.monotonic()
    with pytest.raises(runtime.threading.BrokenBarrierError):
        barrier.wait(timeout_s)
    runtime.assert_elapsed(started_s, at_least=0)
    assert barrier.broken is True


@alike
def test_timeout_given_to_the_constructor_is_the_default(runtime):
    barrier = runtime.threading.Barrier(2, timeout=TICK_S)
    started_s = runtime.time.monotonic()
    with pytest.raises(runtime.threading.BrokenBarrierError):
        barrier.wait()
    runtime.assert_elapsed(started_s, at_least=TICK_S)


@alike
def test_timeout_given_to_wait_wins_over_the_default(runtime):
    barrier = runtime.threading.Barrier(2, timeout=PATIENCE_S)
    started_s = runtime.time.monotonic()
    with pytest.raises(runtime.threading.BrokenBarrierError):
        barrier.wait(TICK_S)
    runtime.assert_elapsed(started_s, at_least=TICK_S)


@alike
def test_parameters_stand_in_the_standard_order(runtime):
    log = []
    barrier = runtime.threading.Barrier(1, lambda: log.append("action"), PATIENCE_S)
    barrier.wait()
    assert log == ["action"]
