"""Queue and its relatives, in every runtime."""

import math

import pytest

from unit.labsim.alike import PATIENCE_S, TICK_S, alike, outcome, simulated_only

# Those with a size and task_done(), then with the one that has neither.
sized = pytest.mark.parametrize("kind", ["Queue", "LifoQueue", "PriorityQueue"])
every_kind = pytest.mark.parametrize("kind", ["Queue", "LifoQueue", "PriorityQueue", "SimpleQueue"])


def make(runtime, kind, *args, **kwargs):
    return getattr(runtime.queue, kind)(*args, **kwargs)


def drain(q):
    return [q.get_nowait() for _ in range(q.qsize())]


@alike
@pytest.mark.parametrize(
    ("kind", "expected"),
    [
        ("Queue", [3, 1, 2]),
        ("SimpleQueue", [3, 1, 2]),
        ("LifoQueue", [2, 1, 3]),
        ("PriorityQueue", [1, 2, 3]),
    ],
)
def test_order(runtime, kind, expected):
    q = make(runtime, kind)
    for item in (3, 1, 2):
        assert q.put(item) is None
    assert [q.get() for _ in range(3)] == expected


@alike
def test_priority_queue_orders_what_arrives_between_gets(runtime):
    q = runtime.queue.PriorityQueue()
    for entry in [(5, "e"), (1, "a"), (3, "c")]:
        q.put(entry)
    assert q.get() == (1, "a")
    q.put((2, "b"))
    assert [q.get() for _ in range(3)] == [(2, "b"), (3, "c"), (5, "e")]


@alike
@every_kind
def test_size(runtime, kind):
    q = make(runtime, kind)
    assert (q.qsize(), q.empty()) == (0, True)
    q.put(1)
    q.put(2)
    assert (q.qsize(), q.empty()) == (2, False)
    q.get()
    q.get()
    assert (q.qsize(), q.empty()) == (0, True)


@alike
@sized
def test_full(runtime, kind):
    q = make(runtime, kind, 2)
    assert q.maxsize == 2
    assert q.full() is False
    q.put(1)
    assert q.full() is False
    q.put(2)
    assert q.full() is True
    q.get()
    assert q.full() is False


@alike
@sized
@pytest.mark.parametrize("maxsize", [0, -1])
def test_without_maxsize_never_full(runtime, kind, maxsize):
    q = make(runtime, kind, maxsize=maxsize)
    for item in range(100):
        q.put_nowait(item)
    assert q.full() is False
    assert q.qsize() == 100


@alike
@every_kind
def test_any_object_may_be_queued(runtime, kind):
    q = make(runtime, kind)
    for item in (None, False, 0, "", []):
        q.put(item)
        assert q.get() == item


@alike
def test_exceptions(runtime):
    assert issubclass(runtime.queue.Empty, Exception)
    assert issubclass(runtime.queue.Full, Exception)
    assert not issubclass(runtime.queue.Empty, runtime.queue.Full)


@alike
@every_kind
@pytest.mark.parametrize(
    "get",
    [
        lambda q: q.get_nowait(),
        lambda q: q.get(False),
        lambda q: q.get(block=False),
        lambda q: q.get(block=False, timeout=PATIENCE_S),
        lambda q: q.get(False, -1),
        lambda q: q.get(timeout=0),
        lambda q: q.get(True, 0.0),
    ],
    ids=["nowait", "False", "block=False", "block=False,timeout", "False,-1", "timeout=0", "True,0.0"],
)
def test_get_that_may_not_wait(runtime, kind, get):
    q = make(runtime, kind)
    started_s = runtime.time.monotonic()
    with pytest.raises(runtime.queue.Empty):
        get(q)
    runtime.assert_elapsed(started_s, at_least=0)
    q.put("item")
    assert get(q) == "item"


@alike
@sized
@pytest.mark.parametrize(
    "put",
    [
        lambda q: q.put_nowait(2),
        lambda q: q.put(2, False),
        lambda q: q.put(2, block=False),
        lambda q: q.put(2, block=False, timeout=PATIENCE_S),
        lambda q: q.put(2, False, -1),
        lambda q: q.put(2, timeout=0),
        lambda q: q.put(item=2, block=True, timeout=0.0),
    ],
    ids=["nowait", "False", "block=False", "block=False,timeout", "False,-1", "timeout=0", "keywords"],
)
def test_put_that_may_not_wait(runtime, kind, put):
    q = make(runtime, kind, 1)
    q.put(1)
    started_s = runtime.time.monotonic()
    with pytest.raises(runtime.queue.Full):
        put(q)
    runtime.assert_elapsed(started_s, at_least=0)
    assert drain(q) == [1]
    assert put(q) is None
    assert drain(q) == [2]


@alike
@every_kind
def test_get_gives_up_after_its_timeout(runtime, kind):
    q = make(runtime, kind)
    for get in (lambda: q.get(timeout=TICK_S), lambda: q.get(True, TICK_S)):
        started_s = runtime.time.monotonic()
        with pytest.raises(runtime.queue.Empty):
            get()
        runtime.assert_elapsed(started_s, at_least=TICK_S)


@alike
@sized
def test_put_gives_up_after_its_timeout(runtime, kind):
    q = make(runtime, kind, 1)
    q.put(1)
    for put in (lambda: q.put(2, timeout=TICK_S), lambda: q.put(2, True, TICK_S)):
        started_s = runtime.time.monotonic()
        with pytest.raises(runtime.queue.Full):
            put()
        runtime.assert_elapsed(started_s, at_least=TICK_S)
    assert drain(q) == [1]


@alike
@every_kind
@pytest.mark.parametrize("timeout_s", [-1, -0.5])
def test_get_refuses_a_negative_timeout_even_with_an_item_there(runtime, kind, timeout_s):
    q = make(runtime, kind)
    with pytest.raises(ValueError, match="non-negative"):
        q.get(timeout=timeout_s)
    q.put("item")
    with pytest.raises(ValueError, match="non-negative"):
        q.get(timeout=timeout_s)
    assert q.qsize() == 1


@alike
@sized
@pytest.mark.parametrize("timeout_s", [-1, -0.5])
def test_put_refuses_a_negative_timeout_even_with_room_there(runtime, kind, timeout_s):
    q = make(runtime, kind, 1)
    with pytest.raises(ValueError, match="non-negative"):
        q.put(1, timeout=timeout_s)
    assert q.qsize() == 0
    q.put(1)
    with pytest.raises(ValueError, match="non-negative"):
        q.put(2, timeout=timeout_s)
    assert q.qsize() == 1


@alike
@sized
def test_put_without_maxsize_ignores_its_timeout(runtime, kind):
    q = make(runtime, kind)
    q.put(1, timeout=-1)
    assert drain(q) == [1]


@alike
@every_kind
@pytest.mark.parametrize(("timeout", "error"), [("1", TypeError), (1e100, OverflowError), (math.inf, OverflowError)])
def test_get_refuses_a_bad_timeout(runtime, kind, timeout, error):
    q = make(runtime, kind)
    with pytest.raises(error):
        q.get(timeout=timeout)
    q.put(1)  # and nothing is left locked
    assert q.get() == 1


@alike
@every_kind
@pytest.mark.parametrize("timeout_s", [None, PATIENCE_S])
def test_get_waits_for_a_put(runtime, kind, timeout_s):
    q = make(runtime, kind)

    def put_later():
        runtime.time.sleep(TICK_S)
        q.put("late")

    started_s = runtime.time.monotonic()
    thread = runtime.spawn(put_later)
    assert q.get(timeout=timeout_s) == "late"
    runtime.assert_elapsed(started_s, at_least=TICK_S)
    runtime.join(thread)


@alike
@sized
@pytest.mark.parametrize("timeout_s", [None, PATIENCE_S])
def test_put_waits_for_a_get(runtime, kind, timeout_s):
    q = make(runtime, kind, 1)
    q.put(1)
    got = []

    def get_later():
        runtime.time.sleep(TICK_S)
        got.append(q.get())

    started_s = runtime.time.monotonic()
    thread = runtime.spawn(get_later)
    q.put(2, timeout=timeout_s)
    runtime.assert_elapsed(started_s, at_least=TICK_S)
    runtime.join(thread)
    assert got == [1]
    assert drain(q) == [2]


@alike
@every_kind
def test_a_getter_that_timed_out_does_not_swallow_an_item(runtime, kind):
    q = make(runtime, kind)
    for _ in range(3):
        assert isinstance(outcome(lambda: q.get(timeout=0.001)), runtime.queue.Empty)
    q.put(1)
    assert q.get(timeout=PATIENCE_S) == 1


@alike
@every_kind
def test_each_item_goes_to_one_of_many_getters(runtime, kind):
    q = make(runtime, kind)
    got = []
    threads = [runtime.spawn(lambda: got.append(q.get())) for _ in range(5)]
    for item in range(5):
        q.put(item)
    runtime.join(*threads)
    assert sorted(got) == [0, 1, 2, 3, 4]
    assert q.empty()


@alike
@sized
def test_bounded_queue_passes_everything_through(runtime, kind):
    q = make(runtime, kind, 2)
    got, sizes = [], []

    def producer(first):
        for item in range(first, first + 10):
            q.put(item)
            sizes.append(q.qsize())

    def consumer():
        while (item := q.get()) >= 0:
            got.append(item)

    producers = [runtime.spawn(producer, first) for first in (0, 10, 20)]
    consumers = [runtime.spawn(consumer) for _ in range(2)]
    runtime.join(*producers)
    runtime.until(q.empty)  # a stop must not overtake an item, as it would in a LifoQueue
    for _ in consumers:
        q.put(-1)
    runtime.join(*consumers)
    assert sorted(got) == list(range(30))
    assert max(sizes) <= 2


@alike
@pytest.mark.parametrize("kind", ["Queue", "SimpleQueue"])
def test_one_producers_items_stay_in_order(runtime, kind):
    q = make(runtime, kind)
    thread = runtime.spawn(lambda: [q.put(item) for item in range(50)])
    got = [q.get() for _ in range(50)]
    runtime.join(thread)
    assert got == list(range(50))


@alike
@sized
def test_task_done_more_often_than_put_is_refused(runtime, kind):
    q = make(runtime, kind)
    with pytest.raises(ValueError, match="too many"):
        q.task_done()
    q.put(1)
    q.get()
    assert q.task_done() is None
    with pytest.raises(ValueError, match="too many"):
        q.task_done()


@alike
@sized
def test_join_of_an_idle_queue_returns_at_once(runtime, kind):
    q = make(runtime, kind)
    started_s = runtime.time.monotonic()
    assert q.join() is None
    q.put(1)
    q.get()
    q.task_done()
    assert q.join() is None
    runtime.assert_elapsed(started_s, at_least=0)


@alike
@sized
def test_join_waits_until_every_item_is_done(runtime, kind):
    q = make(runtime, kind)
    done = []

    def worker():
        while (item := q.get()) is not None:
            runtime.time.sleep(0.001)
            done.append(item)
            q.task_done()

    for item in range(6):
        q.put(item)
    started_s = runtime.time.monotonic()
    workers = [runtime.spawn(worker) for _ in range(2)]
    q.join()
    assert sorted(done) == [0, 1, 2, 3, 4, 5]
    runtime.assert_elapsed(started_s, at_least=0.003)
    for _ in workers:
        q.put(None)
        runtime.until(q.empty)  # one at a time: a PriorityQueue cannot compare two Nones
    runtime.join(*workers)


@alike
@sized
def test_join_is_not_satisfied_by_get_alone(runtime, kind):
    q = make(runtime, kind)
    q.put(1)
    q.get()
    joined = []

    def joiner():
        q.join()
        joined.append(True)

    thread = runtime.spawn(joiner)
    runtime.time.sleep(TICK_S)
    assert joined == []
    assert q.unfinished_tasks == 1
    q.task_done()
    runtime.join(thread)
    assert joined == [True]


@alike
@sized
def test_refused_put_is_no_task(runtime, kind):
    q = make(runtime, kind, 1)
    q.put(1)
    assert isinstance(outcome(lambda: q.put_nowait(2)), runtime.queue.Full)
    q.get()
    q.task_done()
    q.join()
    with pytest.raises(ValueError, match="too many"):
        q.task_done()


@alike
@sized
def test_clearing_under_the_mutex(runtime, kind):
    """Not documented, yet the way everyone empties a queue."""
    q = make(runtime, kind)
    for item in range(3):
        q.put(item)
    with q.mutex:
        assert sorted(q.queue) == [0, 1, 2]
        q.queue.clear()
    assert q.empty()


@alike
@every_kind
def test_may_be_subscripted_in_annotations(runtime, kind):
    def take(q: getattr(runtime.queue, kind)[int]) -> int:
        return q.get()

    q = make(runtime, kind)
    q.put(1)
    assert take(q) == 1


@alike
@sized
def test_kinds_are_queues(runtime, kind):
    q = make(runtime, kind)
    assert isinstance(q, runtime.queue.Queue)
    assert isinstance(q, getattr(runtime.queue, kind))


@alike
def test_subclass_overriding_put(runtime):
    """The hooks the standard module's own subclasses use: _init, _qsize, _put, _get."""

    class DistinctQueue(runtime.queue.Queue):
        def _init(self, maxsize):
            self.items = {}

        def _qsize(self):
            return len(self.items)

        def _put(self, item):
            self.items[item] = True

        def _get(self):
            item = next(iter(self.items))
            del self.items[item]
            return item

    q = DistinctQueue(maxsize=2)
    q.put("a")
    q.put("a")
    q.put("b")
    assert q.full()
    thread = runtime.spawn(q.put, "c")
    assert [q.get(timeout=PATIENCE_S) for _ in range(3)] == ["a", "b", "c"]
    runtime.join(thread)


@simulated_only
def test_hooks_of_a_subclass_run_under_the_mutex(runtime):
    busy, calls = [False], [0]

    def alone():
        assert not busy[0], "two threads inside the hooks"
        busy[0] = True
        calls[0] += 1
        runtime.time.sleep(0.001)  # every other task gets its chance to come in
        busy[0] = False

    class SlowQueue(runtime.queue.Queue):
        def _put(self, item):
            alone()
            super()._put(item)

        def _get(self):
            alone()
            return super()._get()

    q = SlowQueue(2)
    got = []
    putters = [runtime.spawn(q.put, item) for item in range(5)]
    getters = [runtime.spawn(lambda: got.append(q.get())) for _ in range(5)]
    runtime.join(*putters, *getters)
    assert sorted(got) == [0, 1, 2, 3, 4]
    assert calls == [10]


@alike
def test_simple_queue_put_ignores_block_and_timeout(runtime):
    q = runtime.queue.SimpleQueue()
    q.put(1, False)
    q.put(2, True, -1)
    q.put(item=3, block=True, timeout=TICK_S)
    q.put_nowait(4)
    assert [q.get() for _ in range(4)] == [1, 2, 3, 4]


@alike
def test_simple_queue_has_no_maxsize(runtime):
    with pytest.raises(TypeError):
        runtime.queue.SimpleQueue(3)


@alike
def test_failing_comparison_in_a_priority_queue_leaves_it_usable(runtime):
    q = runtime.queue.PriorityQueue()
    q.put((1, "a"))
    with pytest.raises(TypeError):
        q.put((1, None))
    assert outcome(lambda: q.get(timeout=PATIENCE_S)) is not None
    assert runtime.elsewhere(q.qsize) == q.qsize()
