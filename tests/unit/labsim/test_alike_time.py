"""sleep and the clocks, in every world."""

import calendar
import math
from decimal import Decimal
from fractions import Fraction

import pytest

from unit.labsim.alike import TICK_S, alike

CLOCKS = ["monotonic", "perf_counter", "time"]
every_clock = pytest.mark.parametrize("clock", CLOCKS)


@alike
@pytest.mark.parametrize("seconds", [-1, -0.001, -1e9, math.nan])
def test_sleep_refuses_what_is_no_length(world, seconds):
    with pytest.raises(ValueError):  # noqa: PT011  (each world words it its own way)
        world.time.sleep(seconds)


@alike
@pytest.mark.parametrize("seconds", ["1", b"1", None, [1], 1j, Fraction(1, 100), Decimal("0.01")])
def test_sleep_refuses_what_is_no_number(world, seconds):
    with pytest.raises(TypeError):
        world.time.sleep(seconds)


@alike
@pytest.mark.parametrize("seconds", [1e100, math.inf])
def test_sleep_refuses_what_the_clock_cannot_hold(world, seconds):
    with pytest.raises(OverflowError):
        world.time.sleep(seconds)


@alike
def test_sleep_takes_exactly_one_positional_argument(world):
    with pytest.raises(TypeError):
        world.time.sleep()
    with pytest.raises(TypeError):
        world.time.sleep(0, 0)
    with pytest.raises(TypeError):
        world.time.sleep(seconds=0)


@alike
@pytest.mark.parametrize("seconds", [0, 0.0, False, TICK_S])
def test_sleep_returns_nothing_after_that_long(world, seconds):
    started_s = world.time.monotonic()
    assert world.time.sleep(seconds) is None
    world.assert_elapsed(started_s, at_least=seconds)


@alike
def test_sleep_takes_what_counts_as_an_integer(world):
    class Zero:
        def __index__(self):
            return 0

    assert world.time.sleep(Zero()) is None


@alike
def test_sleep_zero_lets_others_run(world):
    flag = []
    thread = world.spawn(flag.append, True)
    for _ in range(100_000):
        if flag:
            break
        world.time.sleep(0)
    assert flag == [True]
    world.join(thread)


@alike
def test_sleeps_add_up(world):
    started_s = world.time.monotonic()
    for _ in range(4):
        world.time.sleep(TICK_S / 4)
    world.assert_elapsed(started_s, at_least=TICK_S)


@alike
def test_sleeping_threads_sleep_at_the_same_time(world):
    started_s = world.time.monotonic()
    threads = [world.spawn(world.time.sleep, TICK_S) for _ in range(5)]
    world.join(*threads)
    world.assert_elapsed(started_s, at_least=TICK_S)


@alike
@every_clock
def test_clock_is_a_float_and_its_ns_form_an_int(world, clock):
    assert type(getattr(world.time, clock)()) is float
    assert type(getattr(world.time, clock + "_ns")()) is int


@alike
@every_clock
@pytest.mark.parametrize("suffix", ["", "_ns"])
def test_clock_takes_no_argument(world, clock, suffix):
    with pytest.raises(TypeError):
        getattr(world.time, clock + suffix)(1)


@alike
@every_clock
def test_clock_advances_by_what_was_slept(world, clock):
    read, read_ns = getattr(world.time, clock), getattr(world.time, clock + "_ns")
    before_s, before_ns = read(), read_ns()
    world.time.sleep(TICK_S)
    elapsed_s, elapsed_ns = read() - before_s, read_ns() - before_ns
    if world.simulated:
        # time() counts from 1970: its float has no more than a quarter of a microsecond to give.
        assert elapsed_s == pytest.approx(TICK_S, abs=1e-6)
        assert elapsed_ns == pytest.approx(TICK_S * 1e9, abs=1)
    else:
        assert elapsed_s >= 0.6 * TICK_S
        assert elapsed_ns >= 0.6 * TICK_S * 1e9


@alike
@every_clock
def test_clock_agrees_with_its_ns_form(world, clock):
    before_ns = getattr(world.time, clock + "_ns")()
    between_s = getattr(world.time, clock)()
    after_ns = getattr(world.time, clock + "_ns")()
    assert before_ns - 1000 <= between_s * 1e9 <= after_ns + 1000


@alike
@pytest.mark.parametrize("clock", ["monotonic", "perf_counter"])
@pytest.mark.parametrize("suffix", ["", "_ns"])
def test_clock_never_goes_back_whoever_reads_it(world, clock, suffix):
    read = getattr(world.time, clock + suffix)
    readings = []
    mu = world.threading.Lock()

    def reader():
        for _ in range(20):
            with mu:
                readings.append(read())
            world.time.sleep(0.0005)

    world.join(*[world.spawn(reader) for _ in range(4)])
    assert len(readings) == 80
    assert readings == sorted(readings)
    assert readings[0] < readings[-1]


@alike
def test_clock_does_not_depend_on_the_thread(world):
    before_s = world.time.monotonic()
    elsewhere_s = world.elsewhere(world.time.monotonic)
    after_s = world.time.monotonic()
    assert before_s <= elsewhere_s <= after_s


@alike
def test_shorter_sleep_ends_first(world):
    log = []
    go = world.threading.Event()

    def sleeper(seconds):
        go.wait()
        world.time.sleep(seconds)
        log.append(seconds)

    delays_s = [0.06, 0.0, 0.03]
    threads = [world.spawn(sleeper, seconds) for seconds in delays_s]
    go.set()
    world.join(*threads)
    assert sorted(log) == sorted(delays_s)
    if world.simulated:  # real threads may be late in any order
        assert log == sorted(delays_s)


@alike
def test_calendar_functions_read_the_same_clock(world):
    world.time.sleep(TICK_S)
    before_s = world.time.time()
    utc, local = world.time.gmtime(), world.time.localtime()
    texts = [world.time.ctime(), world.time.asctime(), world.time.strftime("%Y-%m-%d %H:%M:%S")]
    after_s = world.time.time()
    assert int(before_s) <= calendar.timegm(utc) <= after_s
    assert int(before_s) <= world.time.mktime(local) <= after_s
    parsed = [
        world.time.strptime(texts[0]),
        world.time.strptime(texts[1]),
        world.time.strptime(texts[2], "%Y-%m-%d %H:%M:%S"),
    ]
    assert all(int(before_s) <= world.time.mktime(each) <= after_s for each in parsed), texts
