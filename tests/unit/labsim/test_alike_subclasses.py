"""Subclasses of the drop-ins, and what counts as an instance of them, in every runtime."""

import abc
import copy
import fractions

import pytest

from labsim import Simulation, queue, threading, time
from unit.labsim.alike import PATIENCE_S, TICK_S, alike, simulated_only

MAKERS = {
    "Lock": lambda runtime: runtime.threading.Lock(),
    "RLock": lambda runtime: runtime.threading.RLock(),
    "Condition": lambda runtime: runtime.threading.Condition(),
    "Event": lambda runtime: runtime.threading.Event(),
    "Semaphore": lambda runtime: runtime.threading.Semaphore(),
    "BoundedSemaphore": lambda runtime: runtime.threading.BoundedSemaphore(),
    "Barrier": lambda runtime: runtime.threading.Barrier(2),
    "Thread": lambda runtime: runtime.threading.Thread(),
    "Timer": lambda runtime: runtime.threading.Timer(1, print),
    "local": lambda runtime: runtime.threading.local(),
    "Queue": lambda runtime: runtime.queue.Queue(),
    "LifoQueue": lambda runtime: runtime.queue.LifoQueue(),
    "PriorityQueue": lambda runtime: runtime.queue.PriorityQueue(),
    "SimpleQueue": lambda runtime: runtime.queue.SimpleQueue(),
}
every_class = pytest.mark.parametrize("name", MAKERS)


def class_of(runtime, name):
    return getattr(runtime.queue if "Queue" in name else runtime.threading, name)


@alike
@pytest.mark.parametrize("name", [name for name in MAKERS if "Lock" not in name])
def test_is_an_instance_of_its_class_and_of_no_other(runtime, name):
    made = MAKERS[name](runtime)
    assert isinstance(made, class_of(runtime, name))
    relatives = {
        "BoundedSemaphore": {"Semaphore"},
        "Timer": {"Thread"},
        "LifoQueue": {"Queue"},
        "PriorityQueue": {"Queue"},
    }
    for other in MAKERS:
        if other != name and "Lock" not in other:  # the standard Lock and RLock are functions
            assert isinstance(made, class_of(runtime, other)) is (other in relatives.get(name, ())), other


def test_locks_are_instances_of_their_classes_too():
    def check():
        lock, rlock = threading.Lock(), threading.RLock()
        assert isinstance(lock, threading.Lock) and not isinstance(lock, threading.RLock)
        assert isinstance(rlock, threading.RLock) and not isinstance(rlock, threading.Lock)

    check()
    Simulation(1).run(check)


@alike
@every_class
def test_deepcopy_is_refused(runtime, name):
    with pytest.raises(TypeError):
        copy.deepcopy(MAKERS[name](runtime))


@alike
def test_queue_with_its_own_arguments(runtime):
    class Inbox(runtime.queue.Queue):
        def __init__(self, owner, *, size):
            super().__init__(size)
            self.owner = owner

        def put(self, item, block=True, timeout=None):
            super().put((self.owner, item), block, timeout)

    inbox = Inbox("me", size=1)
    inbox.put(1)
    assert inbox.full()
    thread = runtime.spawn(inbox.put, 2)
    assert [inbox.get(timeout=PATIENCE_S) for _ in range(2)] == [("me", 1), ("me", 2)]
    runtime.join(thread)
    assert isinstance(inbox, Inbox) and isinstance(inbox, runtime.queue.Queue)


@alike
def test_subclass_of_a_subclass_with_a_mixin(runtime):
    class Named:
        name = "nobody"

        def greet(self):
            return f"I am {self.name}"

    class Base(Named, runtime.queue.PriorityQueue):
        def _put(self, item):
            super()._put(-item)

    class Derived(Base):
        name = "derived"

        def _get(self):
            return -super()._get()

    q = Derived()
    for item in (1, 3, 2):
        q.put(item)
    assert [q.get() for _ in range(3)] == [3, 2, 1]
    assert q.greet() == "I am derived"
    assert isinstance(q, Base) and isinstance(q, Named) and isinstance(q, runtime.queue.PriorityQueue)


@alike
def test_simple_queue_subclass(runtime):
    class Doubling(runtime.queue.SimpleQueue):
        def __init__(self, factor):
            super().__init__()
            self.factor = factor

        def put(self, item):
            super().put(self.factor * item)

    q = Doubling(2)
    thread = runtime.spawn(q.put, 4)
    assert q.get(timeout=PATIENCE_S) == 8
    runtime.join(thread)


@alike
def test_condition_subclass(runtime):
    class Counting(runtime.threading.Condition):
        def __init__(self, lock=None, *, label):
            super().__init__(lock)
            self.label, self.waits = label, 0

        def wait(self, timeout=None):
            self.waits += 1
            return super().wait(timeout)

    cond, state = Counting(runtime.threading.Lock(), label="state"), []

    def change():
        with cond:
            state.append(1)
            cond.notify_all()

    with cond:
        thread = runtime.spawn(change)
        assert cond.wait_for(lambda: state, PATIENCE_S) == [1]
    runtime.join(thread)
    assert (cond.label, cond.waits) == ("state", 1)
    with cond:
        assert cond.wait(0.001) is False


@alike
@pytest.mark.parametrize("kind", ["Semaphore", "BoundedSemaphore"])
def test_semaphore_subclass(runtime, kind):
    class Pool(getattr(runtime.threading, kind)):
        def __init__(self):
            super().__init__(2)
            self.released = 0

        def release(self, n=1):
            super().release(n)
            self.released += n

    pool = Pool()
    with pool, pool:
        assert pool.acquire(blocking=False) is False
    assert pool.released == 2
    assert pool.acquire(blocking=False) is True


@alike
@pytest.mark.parametrize("kind", ["threading.Thread", "threading.Event", "queue.Queue"])
def test_may_be_combined_with_an_abstract_base_class(runtime, kind):
    module, name = kind.split(".")

    class Abstract(getattr(getattr(runtime, module), name), abc.ABC):
        @abc.abstractmethod
        def act(self):
            """Whatever."""

    class Concrete(Abstract):
        def act(self):
            return "acted"

    with pytest.raises(TypeError):
        Abstract()
    assert Concrete().act() == "acted"


@alike
def test_init_subclass_is_called_once_with_its_keywords(runtime):
    heard = []

    class Base(runtime.threading.Event):
        def __init_subclass__(cls, *, topic, **rest):
            super().__init_subclass__(**rest)
            heard.append((cls.__name__, topic))

    class Elected(Base, topic="election"):
        pass

    event = Elected()
    event.set()
    assert event.is_set()
    assert heard == [("Elected", "election")]


@alike
def test_local_subclass_with_a_property(runtime):
    class Mine(runtime.threading.local):
        @property
        def double(self):
            return 2 * self.value

        @double.setter
        def double(self, number):
            self.value = number // 2

    local = Mine()
    local.double = 8
    assert local.__dict__ == {"value": 4}

    def target():
        local.value = 1
        return local.double

    assert runtime.elsewhere(target) == 2
    assert local.double == 8


@alike
def test_local_dict_cannot_be_replaced(runtime):
    local = runtime.threading.local()
    with pytest.raises(AttributeError):
        local.__dict__ = {}
    with pytest.raises(AttributeError):
        del local.__dict__


@simulated_only
def test_local_lets_go_of_what_dead_threads_left(runtime):
    alive = [0]

    class Counted:
        def __init__(self):
            alive[0] += 1

        def __del__(self):
            alive[0] -= 1

    local = threading.local()

    def target():
        local.value = Counted()

    for _ in range(50):
        runtime.join(runtime.spawn(target))
    assert alive[0] <= 1


@alike
def test_simple_queue_is_no_queue(runtime):
    q = runtime.queue.SimpleQueue()
    assert not isinstance(q, runtime.queue.Queue)
    for name in ("task_done", "join", "full", "maxsize", "mutex"):
        assert not hasattr(q, name), name


@alike
@pytest.mark.parametrize(
    "wait",
    [
        lambda runtime, s: runtime.threading.Event().wait(s),
        lambda runtime, s: runtime.threading.Lock().acquire(timeout=s),
        lambda runtime, s: runtime.threading.RLock().acquire(timeout=s),
        lambda runtime, s: runtime.queue.SimpleQueue().get(timeout=s),
    ],
    ids=["Event", "Lock", "RLock", "SimpleQueue"],
)
def test_a_timeout_is_a_float_or_an_integer(runtime, wait):
    with pytest.raises(TypeError):
        wait(runtime, fractions.Fraction(1, 1000))


@alike
def test_who_holds_the_mutex_has_the_queue(runtime):
    q = runtime.queue.Queue()
    done = []

    def use():
        q.put(1)
        done.append(q.get())

    with q.mutex:
        thread = runtime.spawn(use)
        runtime.time.sleep(TICK_S)
        assert done == []
    runtime.join(thread)
    assert done == [1]


@simulated_only
def test_mutex_also_blocks_tasks_that_waited_before_it_was_made(runtime):
    q, got_s = queue.Queue(1), []

    def get_one():
        q.get()
        got_s.append(time.monotonic())

    thread = runtime.spawn(get_one)
    time.sleep(1)
    q.put(1)  # it is woken, and has not run yet
    with q.mutex:
        time.sleep(1)
        assert got_s == []
    runtime.join(thread)
    assert got_s == [2.0]


def test_end_of_a_run_is_no_error_in_condition_waiters():
    """Leaving `with cond:` gives back a lock that wait() had given back: at the end of a run nobody may complain."""
    caught, left = [], []

    class Inbox(queue.Queue):
        pass

    def main():
        by_lock, by_rlock, inbox = threading.Condition(threading.Lock()), threading.Condition(), Inbox()

        def wait(cond):
            with cond:
                cond.wait()

        def target(call, *args):
            try:
                call(*args)
            except Exception as error:
                caught.append(error)
            finally:
                left.append(call)

        for args in [(wait, by_lock), (wait, by_rlock), (inbox.get,)]:
            threading.Thread(target=target, args=args).start()
        time.sleep(1)

    Simulation(1).run(main)
    assert caught == []
    assert len(left) == 3


@alike
def test_an_empty_name_is_no_name(runtime):
    assert runtime.threading.Thread(name="").name.startswith("Thread-")


@alike
def test_time_functions_take_no_keywords(runtime):
    for call in (runtime.time.sleep, runtime.time.localtime, runtime.time.gmtime, runtime.time.ctime):
        with pytest.raises(TypeError):
            call(secs=0)


@alike
def test_thread_time_is_a_clock(runtime):
    assert 0 <= runtime.time.thread_time() <= runtime.time.thread_time()
    assert type(runtime.time.thread_time_ns()) is int


def test_condition_refuses_a_lock_of_another_simulation():
    lock = Simulation(1).run(threading.Lock)
    with pytest.raises(TypeError, match="lock must be a Lock or RLock of this simulation"):
        Simulation(1).run(lambda: threading.Condition(lock))
