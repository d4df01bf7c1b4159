"""sleep and the clocks, in every runtime."""

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
def test_sleep_refuses_what_is_no_length(runtime, seconds):
    with pytest.raises(ValueError):  # noqa: PT011  (each runtime words it its own way)
        runtime.time.sleep(seconds)


@alike
@pytest.mark.parametrize("seconds", ["1", b"1", None, [1], 1j, Fraction(1, 100), Decimal("0.01")])
def test_sleep_refuses_what_is_no_number(runtime, seconds):
    with pytest.raises(TypeError):
        runtime.time.sleep(seconds)


@alike
@pytest.mark.parametrize("seconds", [1e100, math.inf])
def test_sleep_refuses_what_the_clock_cannot_hold(runtime, seconds):
    with pytest.raises(OverflowError):
        runtime.time.sleep(seconds)


@alike
def test_sleep_takes_exactly_one_positional_argument(runtime):
    with pytest.raises(TypeError):
        runtime.time.sleep()
    with pytest.raises(TypeError):
        runtime.time.sleep(0, 0)
    with pytest.raises(TypeError):
        runtime.time.sleep(seconds=0)


@alike
@pytest.mark.parametrize("seconds", [0, 0.0, False, TICK_S])
def test_sleep_returns_nothing_after_that_long(runtime, seconds):
    started_s = runtime.time.monotonic()
    assert runtime.time.sleep(seconds) is None
    runtime.assert_elapsed(started_s, at_least=seconds)


@alike
def test_sleep_takes_what_counts_as_an_integer(runtime):
    class Zero:
        def __index__(self):
            return 0

    assert runtime.time.sleep(Zero()) is None


@alike
def test_sleep_zero_lets_others_run(runtime):
    flag = []
    thread = runtime.spawn(flag.append, True)
    for _ in range(100_000):
        if flag:
            break
        runtime.time.sleep(0)
    assert flag == [True]
    runtime.join(thread)


@alike
def test_sleeps_add_up(runtime):
    started_s = runtime.time.monotonic()
    for _ in range(4):
        runtime.time.sleep(TICK_S / 4)
    runtime.assert_elapsed(started_s, at_least=TICK_S)


@alike
def test_sleeping_threads_sleep_at_the_same_time(runtime):
    started_s = runtime.time.monotonic()
    threads = [runtime.spawn(runtime.time.sleep, TICK_S) for _ in range(5)]
    runtime.join(*threads)
    runtime.assert_elapsed(started_s, at_least=TICK_S)


@alike
@every_clock
def test_clock_is_a_float_and_its_ns_form_an_int(runtime, clock):
    assert type(getattr(runtime.time, clock)()) is float
    assert type(getattr(runtime.time, clock + "_ns")()) is int


@alike
@every_clock
@pytest.mark.parametrize("suffix", ["", "_ns"])
def test_clock_takes_no_argument(runtime, clock, suffix):
    with pytest.raises(TypeError):
        getattr(runtime.time, clock + suffix)(1)


@alike
@every_clock
def test_clock_advances_by_what_was_slept(runtime, clock):
    read, read_ns = getattr(runtime.time, clock), getattr(runtime.time, clock + "_ns")
    before_s, before_ns = read(), read_ns()
    runtime.time.sleep(TICK_S)
    elapsed_s, elapsed_ns = read() - before_s, read_ns() - before_ns
    if runtime.simulated:
        # time() counts from 1970: its float has no more than a quarter of a microsecond to give.
        assert elapsed_s == pytest.approx(TICK_S, abs=1e-6)
        assert elapsed_ns == pytest.approx(TICK_S * 1e9, abs=1)
    else:
        assert elapsed_s >= 0.6 * TICK_S
        assert elapsed_ns >= 0.6 * TICK_S * 1e9


@alike
@every_clock
def test_clock_agrees_with_its_ns_form(runtime, clock):
    before_ns = getattr(runtime.time, clock + "_ns")()
    between_s = getattr(runtime.time, clock)()
    after_ns = getattr(runtime.time, clock + "_ns")()
    assert before_ns - 1000 <= between_s * 1e9 <= after_ns + 1000


@alike
@pytest.mark.parametrize("clock", ["monotonic", "perf_counter"])
@pytest.mark.parametrize("suffix", ["", "_ns"])
def test_clock_never_goes_back_whoever_reads_it(runtime, clock, suffix):
    read = getattr(runtime.time, clock + suffix)
    readings = []
    mu = runtime.threading.Lock()

    def reader():
        for _ in range(20):
            with mu:
                readings.append(read())
            runtime.time.sleep(0.0005)

    runtime.join(*[runtime.spawn(reader) for _ in range(4)])
    assert len(readings) == 80
    assert readings == sorted(readings)
    assert readings[0] < readings[-1]


@alike
def test_clock_does_not_depend_on_the_thread(runtime):
    before_s = runtime.time.monotonic()
    elsewhere_s = runtime.elsewhere(runtime.time.monotonic)
    after_s = runtime.time.monotonic()
    assert before_s <= elsewhere_s <= after_s


@alike
def test_shorter_sleep_ends_first(runtime):
    log = []
    go = runtime.threading.Event()

    def sleeper(seconds):
        go.wait()
        runtime.time.sleep(seconds)
        log.append(seconds)

    delays_s = [0.06, 0.0, 0.03]
    threads = [runtime.spawn(sleeper, seconds) for seconds in delays_s]
    go.set()
    runtime.join(*threads)
    assert sorted(log) == sorted(delays_s)
    if runtime.simulated:  # real threads may be late in any order
        assert log == sorted(delays_s)


@alike
def test_calendar_functions_read_the_same_clock(runtime):
    runtime.time.sleep(TICK_S)
    before_s = runtime.time.time()
    utc, local = runtime.time.gmtime(), runtime.time.localtime()
    texts = [runtime.time.ctime(), runtime.time.asctime(), runtime.time.strftime("%Y-%m-%d %H:%M:%S")]
    after_s = runtime.time.time()
    assert int(before_s) <= calendar.timegm(utc) <= after_s
    assert int(before_s) <= runtime.time.mktime(local) <= after_s
    parsed = [
        runtime.time.strptime(texts[0]),
        runtime.time.strptime(texts[1]),
        runtime.time.strptime(texts[2], "%Y-%m-%d %H:%M:%S"),
    ]
    assert all(int(before_s) <= runtime.time.mktime(each) <= after_s for each in parsed), texts
