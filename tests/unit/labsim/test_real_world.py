"""The guard: a task that uses the real clock, threads or random gets an error; other code is not affected."""

import importlib
import itertools
import logging
import os
import queue as real_queue
import random as real_random
import subprocess
import sys
import textwrap
import threading as real_threading
import time as real_time

import pytest

from labsim import RealWorldError, Simulation, SimulationError, guard, threading, time

# Loaded here, so that their rules are in place; what happens when they are not has its own tests.
for _name in (
    "asyncio",
    "concurrent.futures.thread",
    "concurrent.futures.process",
    "multiprocessing",
    "uuid",
    "secrets",
):
    importlib.import_module(_name)

_numbers = itertools.count()


@pytest.fixture
def student(tmp_path, monkeypatch):
    """Writes a student's module into the working directory and imports it."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.syspath_prepend(tmp_path)
    monkeypatch.setattr(sys, "dont_write_bytecode", True)
    imported = []

    def write(source):
        name = f"student{next(_numbers)}"
        (tmp_path / f"{name}.py").write_text(textwrap.dedent(source))
        imported.append(name)
        return importlib.import_module(name)

    yield write
    for name in imported:
        sys.modules.pop(name, None)


def refusal(fn):
    """The text of the RealWorldError that `fn`, run in a thread of a peer, ends the run with."""
    sim = Simulation(1)

    def main():
        sim.spawn(threading.Thread(target=fn).start, node=sim.node("peer-0"))
        time.sleep(1)
        pytest.fail("nobody minded")

    with pytest.raises(RealWorldError) as caught:
        sim.run(main)
    return str(caught.value)


STOPS = "stops every peer at once"
CLOCK = "reads the real clock, so the run cannot be replayed"
THREAD = "runs outside the simulation"
LOCK = "is not simulated, and waiting for it stops every peer at once"
CHANCE = "ignores the seed, so the run cannot be replayed"
REAL_TIME = "acts in real time"
USE_TIME = "use 'from labsim import time'"
USE_THREADING = "use 'from labsim import threading'"
USE_QUEUE = "use 'from labsim import queue'"
USE_RANDOM = "use 'from labsim import random'"
USE_THREADS = "use threads: 'from labsim import threading'"
NO_POOL = (
    "start a threading.Thread for each piece of work and put its result into a queue.Queue "
    "('from labsim import threading, queue')"
)
NO_PROCESSES = "use threads and RPCs only"
USE_TIMER = "use threading.Timer ('from labsim import threading')"

REFUSED = [
    ("time.sleep(1)", "time.sleep()", STOPS, USE_TIME),
    *(
        (f"time.{name}()", f"time.{name}()", CLOCK, USE_TIME)
        for name in ("time", "time_ns", "monotonic", "monotonic_ns", "perf_counter", "perf_counter_ns", "process_time")
    ),
    ("time.localtime()", "time.localtime()", CLOCK, USE_TIME),
    ("threading.Thread(target=print).start()", "threading.Thread.start()", THREAD, USE_THREADING),
    ("threading.Timer(1, print).start()", "threading.Thread.start()", THREAD, USE_THREADING),
    ("threading.Lock()", "threading.Lock()", LOCK, USE_THREADING),
    ("threading.RLock()", "threading.RLock()", LOCK, USE_THREADING),
    ("threading.Condition()", "threading.Condition()", LOCK, USE_THREADING),
    ("threading.Event()", "threading.Event()", LOCK, USE_THREADING),
    ("threading.Semaphore()", "threading.Semaphore()", LOCK, USE_THREADING),
    ("threading.BoundedSemaphore()", "threading.BoundedSemaphore()", LOCK, USE_THREADING),
    ("threading.Barrier(2)", "threading.Barrier()", LOCK, USE_THREADING),
    ("_thread.start_new_thread(print, ())", "_thread.start_new_thread()", THREAD, USE_THREADING),
    ("queue.Queue()", "queue.Queue()", LOCK, USE_QUEUE),
    ("queue.PriorityQueue()", "queue.Queue()", LOCK, USE_QUEUE),
    ("queue.SimpleQueue()", "queue.SimpleQueue()", LOCK, USE_QUEUE),
    ("random.random()", "random.random()", CHANCE, USE_RANDOM),
    ("random.randint(1, 6)", "random.randint()", CHANCE, USE_RANDOM),
    ("random.uniform(1, 6)", "random.uniform()", CHANCE, USE_RANDOM),
    ("random.shuffle([])", "random.shuffle()", CHANCE, USE_RANDOM),
    ("random.seed(1)", "random.seed()", CHANCE, USE_RANDOM),
    ("random.Random()", "random.Random()", CHANCE, USE_RANDOM),
    ("random.SystemRandom(1).random()", "random.SystemRandom.random()", CHANCE, USE_RANDOM),
    ("random.SystemRandom(1).getrandbits(8)", "random.SystemRandom.getrandbits()", CHANCE, USE_RANDOM),
    ("os.urandom(8)", "os.urandom()", CHANCE, USE_RANDOM),
    ("uuid.uuid4()", "uuid.uuid4()", CHANCE, USE_RANDOM),
    ("secrets.token_hex()", "secrets.token_hex()", CHANCE, USE_RANDOM),
    ("secrets.randbelow(6)", "secrets.randbelow()", CHANCE, USE_RANDOM),
    ("asyncio.run(None)", "asyncio.run()", THREAD, USE_THREADS),
    (
        "concurrent.futures.ThreadPoolExecutor()",
        "concurrent.futures.thread.ThreadPoolExecutor()",
        THREAD,
        NO_POOL,
    ),
    (
        "concurrent.futures.ProcessPoolExecutor()",
        "concurrent.futures.process.ProcessPoolExecutor()",
        THREAD,
        NO_POOL,
    ),
    (
        "multiprocessing.Process(target=print).start()",
        "multiprocessing.process.BaseProcess.start()",
        THREAD,
        NO_PROCESSES,
    ),
    ("subprocess.run(['true'])", "subprocess.Popen()", THREAD, NO_PROCESSES),
    ("os.fork()", "os.fork()", THREAD, NO_PROCESSES),
    ("os.system('true')", "os.system()", THREAD, NO_PROCESSES),
    ("os.popen('true')", "os.popen()", THREAD, NO_PROCESSES),
    ("signal.alarm(1)", "signal.alarm()", REAL_TIME, USE_TIMER),
    ("signal.setitimer(signal.ITIMER_REAL, 1)", "signal.setitimer()", REAL_TIME, USE_TIMER),
    ("select.select([], [], [], 1)", "select.select()", STOPS, USE_TIME),
]


@pytest.mark.parametrize(("call", "named", "why", "fix"), REFUSED, ids=[row[0] for row in REFUSED])
def test_the_real_thing_is_refused_with_line_and_fix(student, call, named, why, fix):
    module = call.partition("(")[0].rpartition(".")[0].removesuffix(".ThreadPoolExecutor")
    module = module if module.startswith("concurrent") else module.partition(".")[0]
    peer = student(f"import {module}\n\n\ndef peer():\n    {call}\n")
    assert refusal(peer.peer) == f"{named} in {peer.__name__}.py:5 {why}; {fix}"


@pytest.mark.parametrize(
    ("module", "name", "call", "why"),
    [
        ("time", "sleep", "sleep(1)", STOPS),
        ("time", "time", "time()", CLOCK),
        ("time", "monotonic", "monotonic()", CLOCK),
        ("threading", "Lock", "Lock()", LOCK),
        ("threading", "RLock", "RLock()", LOCK),
        ("queue", "SimpleQueue", "SimpleQueue()", LOCK),
        ("random", "random", "random()", CHANCE),
        ("random", "randint", "randint(1, 6)", CHANCE),
    ],
)
def test_what_was_imported_by_name_is_refused_too(student, module, name, call, why):
    peer = student(f"from {module} import {name}\n\n\ndef peer():\n    {call}\n")
    assert refusal(peer.peer) == (
        f"{module}.{name}() in {peer.__name__}.py:5 {why}; use 'from labsim.{module} import {name}'"
    )
    assert getattr(peer, name) is getattr(importlib.import_module(module), name)  # put back


def test_renamed_import_in_a_students_module_is_guarded(student):
    helper = student("from time import sleep as nap\n\n\ndef pause():\n    nap(1)\n")
    peer = student(f"import {helper.__name__}\n\n\ndef peer():\n    {helper.__name__}.pause()\n")
    assert refusal(peer.peer) == f"time.sleep() in {helper.__name__}.py:5 {STOPS}; use 'from labsim.time import sleep'"


def test_imported_by_name_between_two_runs(student):
    """A module is looked through once, and again when it has another number of names."""
    peer = student("def peer():\n    sleep(1)\n\n\ndef take():\n    global sleep\n    from time import sleep\n")
    Simulation(1).run(lambda: None)
    peer.take()
    assert f" in {peer.__name__}.py:2 " in refusal(peer.peer)
    assert f" in {peer.__name__}.py:2 " in refusal(peer.peer)


def test_import_by_name_in_a_replaced_module_is_guarded(student, tmp_path):
    peer = student("def nap():\n    pass\n\n\ndef peer():\n    nap(1)\n")
    Simulation(1).run(lambda: None)
    (tmp_path / f"{peer.__name__}.py").write_text("from time import sleep as nap\n\n\ndef peer():\n    nap(1)\n")
    del sys.modules[peer.__name__]
    importlib.invalidate_caches()
    other = importlib.import_module(peer.__name__)
    assert f" in {peer.__name__}.py:5 " in refusal(other.peer)


def test_unused_real_imports_are_allowed(student):
    peer = student("from time import sleep\nfrom labsim import time\n\n\ndef peer():\n    time.sleep(1)\n")
    Simulation(1).run(peer.peer)


def test_imported_by_name_inside_a_function(student):
    peer = student("def peer():\n    from time import sleep\n    sleep(1)\n")
    assert refusal(peer.peer) == f"time.sleep() in {peer.__name__}.py:3 {STOPS}; {USE_TIME}"


@pytest.mark.parametrize("name", ["Condition", "Event", "Semaphore", "Thread", "Timer"])
def test_classes_imported_by_name(student, name):
    arguments = {"Thread": "", "Timer": "1, print"}.get(name, "")
    start = ".start()" if name in ("Thread", "Timer") else ""
    peer = student(f"from threading import {name}\n\n\ndef peer():\n    {name}({arguments}){start}\n")
    assert f" in {peer.__name__}.py:5 " in refusal(peer.peer)


def test_a_subclass_of_the_real_thread(student):
    peer = student(
        """
        import threading


        class Ticker(threading.Thread):
            def run(self):
                pass


        def peer():
            ticker = Ticker()
            ticker.start()
        """
    )
    assert refusal(peer.peer) == f"threading.Thread.start() in {peer.__name__}.py:12 {THREAD}; {USE_THREADING}"


def test_waiting_for_a_real_event_made_outside_is_refused(student):
    peer = student("import threading\n\nevent = threading.Event()\n\n\ndef peer():\n    event.wait()\n")
    assert refusal(peer.peer) == f"threading.Condition.wait() in {peer.__name__}.py:7 {STOPS}; {USE_THREADING}"


def test_waiting_for_a_future_is_called_by_its_name(student):
    peer = student("from concurrent.futures import Future\n\n\ndef peer():\n    return Future().result()\n")
    assert refusal(peer.peer) == (
        f"concurrent.futures.Future.result() in {peer.__name__}.py:5 {STOPS}; "
        "wait for a threading.Event or a queue.Queue ('from labsim import threading, queue')"
    )


def test_a_process_pool_cannot_fork_behind_our_back(student):
    """Made outside, used inside: the library forks on the task's behalf."""
    peer = student(
        """
        import multiprocessing

        context = multiprocessing.get_context("fork")


        def peer():
            context.Process(target=print).start()
        """
    )
    assert f" in {peer.__name__}.py:8 " in refusal(peer.peer)


@pytest.mark.parametrize(
    ("name", "why", "fix"),
    [("asyncio", THREAD, USE_THREADS), ("subprocess", THREAD, NO_PROCESSES), ("multiprocessing", THREAD, NO_PROCESSES)],
)
def test_a_first_import_inside_a_task_is_refused(tmp_path, name, why, fix):
    """In a new process, because these modules are already loaded in this one."""
    (tmp_path / "peer.py").write_text(
        f"from labsim import Simulation\n\n\ndef main():\n    import {name}\n\n\nSimulation(1).run(main)\n"
    )
    done = subprocess.run(
        [sys.executable, "peer.py"],
        cwd=tmp_path,
        env={**os.environ, "PYTHONPATH": os.pathsep.join([str(guard.__file__).rpartition("labsim")[0], *sys.path])},
        capture_output=True,
        text=True,
        timeout=20,
        check=False,
    )
    assert done.stderr.splitlines()[-1] == f"labsim.errors.RealWorldError: 'import {name}' in peer.py:5 {why}; {fix}"


def test_a_bare_except_cannot_bury_it(student):
    peer = student(
        """
        import time
        from labsim import current_simulation

        ran_on = []


        def peer():
            while True:
                try:
                    time.sleep(1)
                except BaseException:
                    pass
                ran_on.append(current_simulation()._state)
        """
    )
    assert refusal(peer.peer).startswith(f"time.sleep() in {peer.__name__}.py:11 ")
    assert "running" not in peer.ran_on


def test_main_is_no_exception(student):
    peer = student("import time\n\n\ndef peer():\n    time.sleep(1)\n")
    with pytest.raises(RealWorldError, match=r"time\.sleep\(\) in student\d+\.py:5 "):
        Simulation(1).run(peer.peer)


def test_harmless_uses_are_left_alone():
    """Arithmetic on given times, seeded generators, and locks of other code that are not waited for."""
    lock = real_threading.Lock()

    def main():
        with lock:
            pass
        return (
            real_time.gmtime(0).tm_year,
            real_time.strftime("%Y", real_time.gmtime(0)),
            real_random.Random(7).random(),
        )

    assert Simulation(1).run(main) == (1970, "1970", real_random.Random(7).random())


def test_a_package_can_be_trusted(student, tmp_path, monkeypatch):
    monkeypatch.setattr("labsim.stacks._libraries", list(sys.modules["labsim.stacks"]._libraries))
    peer = student("import time\n\n\ndef peer():\n    return time.time()\n")
    refusal(peer.peer)
    guard.trust(peer.__file__)
    try:
        assert abs(Simulation(1).run(peer.peer) - real_time.time()) < 60
    finally:
        monkeypatch.undo()
        sys.modules["labsim.stacks"].is_library.cache_clear()


def test_folder_with_a_trusted_prefix_is_not_trusted():
    labsim = guard.__file__.rpartition("/")[0]
    assert sys.modules["labsim.stacks"].is_library(f"{labsim}/guard.py")
    assert not sys.modules["labsim.stacks"].is_library(f"{labsim}_of_a_student/raft.py")


# ---- logging -----------------------------------------------------------------------------------------------------


def test_log_lines_carry_virtual_time():
    records = []
    logger = logging.getLogger("labsim.test_log_lines")
    logger.setLevel(logging.INFO)
    handler = logging.Handler()
    handler.emit = records.append
    logger.addHandler(handler)

    def main():
        logger.info("one")
        time.sleep(12.5)
        logger.info("two")
        logging.Formatter("%(asctime)s").format(records[0])
        return time.time()

    try:
        end_s = Simulation(1).run(main)
    finally:
        logger.removeHandler(handler)
    first, second = (record.created for record in records)
    assert second - first == 12.5
    assert second == end_s


def test_a_logger_and_handler_can_be_made_inside_a_task(tmp_path):
    def main():
        handler = logging.FileHandler(tmp_path / "log.txt")
        logger = logging.getLogger("labsim.test_made_inside")
        logger.addHandler(handler)
        logger.warning("written")
        logger.removeHandler(handler)
        handler.close()

    Simulation(1).run(main)
    assert (tmp_path / "log.txt").read_text() == "written\n"


# ---- other code ----------------------------------------------------------------------------------------------------


def test_other_os_threads_use_the_real_modules():
    problems, rounds = [], []
    stop = real_threading.Event()
    lock, items = real_threading.Lock(), real_queue.Queue()

    def outsider():
        try:
            while not stop.is_set() or not rounds:
                began_s = real_time.monotonic()
                real_time.sleep(0.001)
                assert real_time.monotonic() > began_s
                assert real_time.time() > 1_500_000_000
                with real_threading.Lock(), lock:
                    real_random.random()
                inner = real_threading.Thread(target=items.put, args=(os.urandom(4),))
                inner.start()
                inner.join()
                items.get(timeout=5)
                rounds.append(1)
        except BaseException as error:
            problems.append(error)

    def main():
        # About 0.2 s of real time in the simulation, all in virtual waits.
        for _ in range(60_000):
            time.sleep(0.001)
        return len(rounds)

    thread = real_threading.Thread(target=outsider)
    thread.start()
    try:
        during = Simulation(1).run(main)
    finally:
        stop.set()
        thread.join()
    assert problems == []
    assert during > 0


def _patched():
    """Every attribute the guard has a rule for, as it is now."""
    found = {}
    for rule in guard._RULES:
        owner = sys.modules.get(rule.module)
        *classes, name = rule.attribute.split(".")
        for class_name in classes:
            owner = getattr(owner, class_name)
        if owner is not None and name in vars(owner):
            found[f"{rule.module}.{rule.attribute}"] = vars(owner)[name]
    return found


@pytest.mark.parametrize("failure", [None, ZeroDivisionError, RealWorldError, KeyboardInterrupt])
def test_after_the_run_everything_is_the_original(failure):
    before, finders = _patched(), list(sys.meta_path)
    assert len(before) > 70
    during = {}

    def main():
        during.update(_patched())
        if failure is RealWorldError:
            real_time.sleep(1)
        elif failure is not None:
            raise failure

    if failure is None:
        Simulation(1).run(main)
    else:
        with pytest.raises(failure):
            Simulation(1).run(main)
    after = _patched()
    assert [name for name in before if after[name] is not before[name]] == []
    assert [name for name in before if during[name] is before[name]] == []
    assert sys.meta_path == finders


def test_a_refused_second_run_leaves_the_guard_in_place():
    def main():
        with pytest.raises(SimulationError):
            Simulation(2).run(lambda: None)
        real_time.sleep(1)

    with pytest.raises(RealWorldError):
        Simulation(1).run(main)


def test_pytest_timeout_and_xdist_work_as_ever(tmp_path):
    """A test that never ends is ended by pytest-timeout, in a worker of pytest-xdist."""
    (tmp_path / "test_inner.py").write_text(
        textwrap.dedent(
            """
            import pytest
            from labsim import Simulation, threading, time

            def spin():
                while True:
                    pass

            @pytest.mark.timeout(0.5)
            def test_too_slow():
                def main():
                    threading.Thread(target=spin).start()
                    time.sleep(1)
                Simulation(1, unresponsive_s=60).run(main)

            @pytest.mark.parametrize("seed", range(4))
            def test_fine(seed):
                assert Simulation(seed).run(lambda: time.sleep(3600)) is None
            """
        )
    )
    done = subprocess.run(
        [sys.executable, "-m", "pytest", "-q", "-n1", "-p", "no:cacheprovider", "test_inner.py"],
        cwd=tmp_path,
        env={**os.environ, "PYTHONPATH": str(guard.__file__).rpartition("labsim")[0]},
        capture_output=True,
        text=True,
        check=False,
    )
    assert "1 failed, 4 passed" in done.stdout, done.stdout + done.stderr
    assert "Timeout (>0.5s) from pytest-timeout" in done.stdout
