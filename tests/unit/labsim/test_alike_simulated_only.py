"""What the drop-ins promise beyond the standard modules, and what only virtual time can afford to test."""

import random as standard_random

import pytest

import labsim
from labsim import Simulation, TaskFailed, queue, random, threading, time
from unit.labsim.alike import outcome, simulated_only


class Doubler(threading.Thread):
    """Defined where no simulation runs, as a student's module is; used inside one."""

    def __init__(self, number):
        super().__init__(name=f"doubler {number}")
        self.number = number

    def run(self):
        time.sleep(1)
        self.number *= 2


class Inbox(queue.Queue):
    def _put(self, item):
        super()._put(("seen", item))


class PerThread(threading.local):
    value = 0


class Die(random.Random):
    def throw(self):
        return self.randint(1, 6)


@simulated_only
def test_classes_derived_outside_work_inside(runtime):
    started_s = time.monotonic()
    doublers = [Doubler(number) for number in range(3)]
    for doubler in doublers:
        doubler.start()
    runtime.join(*doublers)
    runtime.assert_elapsed(started_s, at_least=1)
    assert [doubler.number for doubler in doublers] == [0, 2, 4]

    inbox = Inbox()
    thread = runtime.spawn(inbox.put, 1)
    assert inbox.get(timeout=5) == ("seen", 1)
    runtime.join(thread)

    local = PerThread()
    local.value = 1
    assert runtime.elsewhere(lambda: local.value) == 0
    assert Die(3).throw() == Die(3).throw()


@pytest.mark.parametrize("module", ["threading", "time", "queue", "random"])
def test_drop_ins_are_modules_names_can_be_imported_from(module):
    namespace = {}
    names = {"threading": "Thread", "time": "sleep", "queue": "Queue", "random": "random"}
    exec(f"from labsim.{module} import {names[module]} as name", namespace)
    assert namespace["name"] is getattr(getattr(labsim, module), names[module])


def test_an_exception_in_a_thread_ends_the_run():
    error = KeyError("mine")
    log = []

    def fail():
        time.sleep(1)
        raise error

    def main():
        threading.Thread(target=fail).start()
        time.sleep(2)
        log.append("main went on")

    with pytest.raises(TaskFailed) as caught:
        Simulation(1).run(main)
    assert caught.value.__cause__ is error
    assert log == []


def test_a_thread_that_never_ends_is_gone_after_the_run():
    log = []

    def forever():
        while True:
            time.sleep(1)
            log.append(time.monotonic())

    def main():
        threading.Thread(target=forever, daemon=True).start()
        time.sleep(3.5)

    Simulation(1).run(main)
    assert len(log) == 3
    assert Simulation(2).run(lambda: len(threading.enumerate())) == 1
    assert len(log) == 3


@simulated_only
def test_a_year_of_sleep_is_exact_and_costs_nothing(runtime):
    started_s = time.monotonic()
    started_ns = time.monotonic_ns()
    for _ in range(365):
        time.sleep(86_400)
    assert time.monotonic_ns() - started_ns == 365 * 86_400 * 10**9
    assert time.monotonic() - started_s == 365 * 86_400


@simulated_only
def test_working_takes_no_virtual_time(runtime):
    started_ns = time.monotonic_ns()
    sum(range(10_000))
    with threading.Lock():
        queue.Queue().put(1)
    runtime.join(*[runtime.spawn(lambda: None) for _ in range(20)])
    assert time.monotonic_ns() == started_ns


@simulated_only
def test_many_sleepers_wake_in_time_order(runtime):
    woken_s = []

    def sleeper(seconds):
        time.sleep(seconds)
        woken_s.append((seconds, time.monotonic() - started_s))

    started_s = time.monotonic()
    delays_s = [random.randint(1, 1000) / 512 for _ in range(300)]
    runtime.join(*[runtime.spawn(sleeper, seconds) for seconds in delays_s])
    assert [slept_s for slept_s, _ in woken_s] == sorted(delays_s)
    assert all(at_s == slept_s for slept_s, at_s in woken_s)


def some_ms(below):
    """Whole milliseconds, so that many things fall on one instant; 0 is among them."""
    return random.randrange(below) / 1000


def count_up(runtime, lock, *, threads, times):
    """Many threads add to one counter, each with a wait between reading and writing."""
    count = [0]

    def adder():
        for _ in range(times):
            with lock:
                seen = count[0]
                time.sleep(some_ms(3))
                count[0] = seen + 1

    runtime.join(*[runtime.spawn(adder) for _ in range(threads)])
    return count[0]


@simulated_only
@pytest.mark.parametrize("kind", ["Lock", "RLock", "Condition", "Semaphore", "BoundedSemaphore"])
def test_mutual_exclusion(runtime, kind):
    assert count_up(runtime, getattr(threading, kind)(), threads=40, times=10) == 400


@simulated_only
def test_without_mutual_exclusion_counts_are_lost(runtime):
    """The test above can fail: take the lock away and it does."""
    assert count_up(runtime, threading.Semaphore(2), threads=40, times=10) < 400


@simulated_only
def test_mutual_exclusion_with_impatient_threads(runtime):
    """Some give up waiting; nobody enters twice, no release is lost, and the lock ends free."""
    lock = threading.Lock()
    count, got, gave_up = [0], [0], [0]

    def adder():
        for _ in range(10):
            if lock.acquire(timeout=some_ms(10)):
                seen = count[0]
                time.sleep(some_ms(3))
                count[0] = seen + 1
                got[0] += 1
                lock.release()
            else:
                gave_up[0] += 1

    runtime.join(*[runtime.spawn(adder) for _ in range(30)])
    assert count == got
    assert got[0] + gave_up[0] == 300
    assert got[0] > 0 and gave_up[0] > 0
    assert not lock.locked()


@simulated_only
@pytest.mark.parametrize("maxsize", [0, 1, 3])
def test_producers_and_consumers(runtime, maxsize):
    q = queue.Queue(maxsize)
    got = []

    def producer(name):
        for number in range(20):
            time.sleep(some_ms(5))
            q.put((name, number))

    def consumer():
        while (item := q.get()) is not None:
            got.append(item)
            time.sleep(some_ms(5))
            q.task_done()

    producers = [runtime.spawn(producer, name) for name in "abcd"]
    consumers = [threading.Thread(target=consumer) for _ in range(3)]
    for thread in consumers:
        thread.start()
    for thread in producers:
        thread.join()
    q.join()
    assert sorted(got) == [(name, number) for name in "abcd" for number in range(20)]
    for name in "abcd":
        assert [number for who, number in got if who == name] == list(range(20))
    for _ in consumers:
        q.put(None)
    runtime.join(*consumers)


@simulated_only
def test_bounded_buffer_by_hand(runtime):
    """The textbook's buffer: one lock, two conditions."""
    mu = threading.Lock()
    not_empty, not_full = threading.Condition(mu), threading.Condition(mu)
    buffer, got, most = [], [], [0]

    def producer(name):
        for number in range(20):
            with not_full:
                while len(buffer) == 2:
                    not_full.wait()
                buffer.append((name, number))
                most[0] = max(most[0], len(buffer))
                not_empty.notify()
            time.sleep(some_ms(5))

    def consumer():
        for _ in range(20):
            with not_empty:
                while not buffer:
                    not_empty.wait(timeout=some_ms(5))
                got.append(buffer.pop(0))
                not_full.notify()
            time.sleep(some_ms(5))

    threads = [runtime.spawn(producer, name) for name in "abc"] + [runtime.spawn(consumer) for _ in range(3)]
    runtime.join(*threads)
    assert sorted(got) == [(name, number) for name in "abc" for number in range(20)]
    assert most == [2]


@simulated_only
def test_philosophers_who_sort_their_forks_all_eat(runtime):
    forks = [threading.Lock() for _ in range(5)]
    meals = [0] * 5

    def philosopher(seat):
        first, second = sorted((seat, (seat + 1) % 5))
        for _ in range(20):
            with forks[first], forks[second]:
                meals[seat] += 1
                time.sleep(some_ms(5))

    runtime.join(*[runtime.spawn(philosopher, seat) for seat in range(5)])
    assert meals == [20] * 5


def who_goes_when(seed):
    """The order in which ten threads, all ready at once, get through; and what they drew."""
    log = []

    def target(number):
        for _ in range(3):
            time.sleep(0)
            log.append((number, random.random()))

    def main():
        threads = [threading.Thread(target=target, args=(number,)) for number in range(10)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()

    Simulation(seed).run(main)
    return log


def test_one_seed_is_one_run():
    assert who_goes_when(3) == who_goes_when(3)


def test_other_seeds_are_other_runs():
    orders = {tuple(number for number, _ in who_goes_when(seed)) for seed in range(10)}
    assert len(orders) > 1


@pytest.mark.parametrize(
    "draw",
    [
        lambda: random.random(),
        lambda: random.Random().random(),
        lambda: (random.seed(), random.random())[1],
        lambda: (random.seed(None), random.random())[1],
    ],
    ids=["module", "Random()", "seed()", "seed(None)"],
)
def test_unseeded_randomness_comes_from_the_simulations_seed(draw):
    drawn = {seed: Simulation(seed).run(draw) for seed in range(5)}
    assert len(set(drawn.values())) == 5
    outside_before = standard_random.getstate()
    try:
        standard_random.seed(99)
        assert {seed: Simulation(seed).run(draw) for seed in range(5)} == drawn
    finally:
        standard_random.setstate(outside_before)


def test_a_simulation_leaves_the_randomness_outside_alone():
    before = standard_random.getstate()
    Simulation(1).run(lambda: (random.seed(5), random.random(), random.shuffle([1, 2, 3])))
    assert standard_random.getstate() == before


# ---- a timeout and a wake-up at the same instant ---------------------------------------------------------
#
# Real threads almost never meet this; on a virtual clock, where all sleep whole milliseconds, it is common.
# Either may win. Each entry gives: wait (with a timeout), wake, and whether a result leaves nothing lost.


def race_event(runtime):
    event = threading.Event()
    return event.wait, event.set, lambda woken: woken in (True, False) and event.is_set()


def race_condition(runtime):
    cond = threading.Condition()

    def wait(timeout_s):
        with cond:
            return cond.wait(timeout_s)

    def wake():
        with cond:
            cond.notify()

    return wait, wake, lambda woken: woken in (True, False) and cond.acquire(blocking=False)


def race_lock(runtime):
    lock = threading.Lock()
    lock.acquire()
    return lambda timeout_s: lock.acquire(timeout=timeout_s), lock.release, lambda got: lock.locked() is got


def race_rlock(runtime):
    """Its owner is a third thread, because only the owner can release it."""
    lock, owned, let_go = threading.RLock(), threading.Event(), threading.Event()

    def own_it():
        with lock:
            owned.set()
            let_go.wait()

    threading.Thread(target=own_it).start()
    owned.wait()
    return (
        lambda timeout_s: lock.acquire(timeout=timeout_s),
        let_go.set,
        lambda got: runtime.free(lock) is not got,
    )


def race_semaphore(runtime):
    semaphore = threading.Semaphore(0)
    return (
        lambda timeout_s: semaphore.acquire(timeout=timeout_s),
        semaphore.release,
        lambda got: semaphore.acquire(blocking=False) is not got,
    )


def race_get(runtime, kind="Queue"):
    q = getattr(queue, kind)()
    return (
        lambda timeout_s: outcome(lambda: q.get(timeout=timeout_s)),
        lambda: q.put("item"),
        lambda got: (got == "item" and q.empty()) or (isinstance(got, queue.Empty) and q.qsize() == 1),
    )


def race_put(runtime):
    q = queue.Queue(1)
    q.put("first")
    return (
        lambda timeout_s: outcome(lambda: q.put("second", timeout=timeout_s)),
        q.get,
        lambda put: (put is None and q.qsize() == 1) or (isinstance(put, queue.Full) and q.empty()),
    )


def race_join(runtime):
    end = threading.Event()
    thread = threading.Thread(target=end.wait)
    thread.start()
    return thread.join, end.set, lambda _: end.is_set()


def race_barrier(runtime):
    barrier = threading.Barrier(2)
    return (
        lambda timeout_s: outcome(lambda: barrier.wait(timeout_s)),
        lambda: outcome(lambda: barrier.wait(0.001)),
        lambda number: isinstance(number, threading.BrokenBarrierError) is barrier.broken,
    )


@simulated_only
@pytest.mark.parametrize(
    "race",
    [
        race_event,
        race_condition,
        race_lock,
        race_rlock,
        race_semaphore,
        race_get,
        lambda runtime: race_get(runtime, "SimpleQueue"),
        race_put,
        race_join,
        race_barrier,
    ],
    ids=[
        "Event",
        "Condition",
        "Lock",
        "RLock",
        "Semaphore",
        "get",
        "SimpleQueue.get",
        "put",
        "join",
        "Barrier",
    ],
)
def test_timeout_and_wake_up_at_the_same_instant(runtime, race):
    """Nothing is lost, and whoever was woken twice over does not wake from its next sleep too early."""
    for _ in range(20):
        wait, wake, nothing_lost = race(runtime)
        verdicts = []

        def waiter(wait=wait, nothing_lost=nothing_lost, verdicts=verdicts):
            result = wait(0.5)
            started_s = time.monotonic()
            time.sleep(1)
            verdicts.append((time.monotonic() - started_s, bool(nothing_lost(result))))

        thread = runtime.spawn(waiter)
        time.sleep(0.5)
        wake()
        runtime.join(thread)
        assert verdicts == [(1.0, True)]


@simulated_only
def test_wake_ups_at_the_instant_of_the_timeouts(runtime):
    """Five waiters whose time is up, five units for them, all at once: taken and left over must make five."""
    semaphore, got = threading.Semaphore(0), []
    waiters = [runtime.spawn(lambda: got.append(semaphore.acquire(timeout=0.5))) for _ in range(5)]

    def release_later():
        time.sleep(0.5)
        semaphore.release()

    runtime.join(*waiters, *[runtime.spawn(release_later) for _ in range(5)])
    left = 0
    while semaphore.acquire(blocking=False):
        left += 1
    assert got.count(True) + left == 5
    assert len(got) == 5
