"""The pipe between whoever asks and a worker: every request gets one answer, whatever becomes of the process."""

import os
import signal
import sys
import threading
import time

import pytest

from raftlab.tools.workers.process import CannotStart, Closed, Launch, Lost, WorkerProcess, python_worker
from unit.students import ROOT

# Answers in capitals; some words do something else.
WORKER = """
import os, signal, sys, time
from raftlab.tools.workers.server import RETIRE, Refusal, serve, dump_stack_on_crash

def begin(greeting, asker):
    dump_stack_on_crash()
    print("nobody hears this")
    if greeting == b"refuse\\n": raise Refusal("not like this")
    if greeting == b"die\\n": sys.exit("a last word")
    done = 0
    def answers_to(line):
        nonlocal done
        word = line.decode().strip()
        print("nor this")
        os.write(1, b"nor that")
        if word == "die": os._exit(3)
        if word == "kill": os.kill(os.getpid(), signal.SIGKILL)
        if word == "sleep": time.sleep(60)
        if word == "tired" and done or word == "always": yield RETIRE
        done += 1
        yield f"{word.upper()} {done}".encode()
        if word == "last": yield RETIRE
    return answers_to

sys.exit(serve(begin))
"""


@pytest.fixture
def start():
    started = []

    def start(greeting="work", **options):
        def launch():
            return Launch(
                [sys.executable, "-P", "-c", WORKER],
                folder=ROOT,
                environment={**os.environ, "PYTHONPATH": str(ROOT)},
                greeting=greeting.encode(),
                **options,
            )

        started.append(WorkerProcess(launch))
        return started[-1]

    yield start
    for worker in started:
        worker.fresh()


def asked(worker, *words, limit_s=20.0):
    answers = worker.ask([word.encode() for word in words], limit_s)
    return [answer if isinstance(answer, Lost) else answer.decode() for answer in answers]


def test_requests_are_answered_in_order_by_one_process_and_nothing_else_is_heard(start):
    worker = start()
    assert asked(worker, "a", "b") == ["A 1", "B 2"]
    assert asked(worker) == []
    assert asked(worker, "c") == ["C 3"]
    worker.fresh()
    assert asked(worker, "d") == ["D 1"]


def test_a_death_costs_the_request_it_was_at_and_a_fresh_process_goes_on(start):
    before, died, after, killed = asked(start(), "a", "die", "b", "kill")
    assert (before, after) == ("A 1", "B 1")
    assert (died.late, died.how) == (False, "ended itself with exit status 3")
    assert (killed.late, killed.how) == (False, "was ended by SIGKILL (out of memory?)")


def test_who_takes_too_long_is_ended_and_its_stack_kept(start):
    began_s = time.monotonic()
    late, after = asked(start(shows_stack=True), "sleep", "b", limit_s=2.0)
    assert time.monotonic() - began_s < 30
    assert late.late and "in answers_to" in late.output
    assert after == "B 1"


def test_who_retires_is_replaced_and_no_request_is_lost(start):
    worker = start()
    assert asked(worker, "a", "tired", "b") == ["A 1", "TIRED 1", "B 2"]
    assert asked(worker, "last") == ["LAST 3"]
    assert asked(worker, "c", "d") == ["C 1", "D 2"]
    with pytest.raises(CannotStart, match="worker processes die before they can run anything"):
        asked(worker, "always")


def test_a_death_between_requests_is_nobodys(start):
    worker = start()
    assert asked(worker, "a") == ["A 1"]
    process = worker._process
    process.send_signal(signal.SIGKILL)
    process.wait()
    assert asked(worker, "b") == ["B 1"]


def test_who_cannot_start_says_why(start):
    with pytest.raises(CannotStart, match=r"^not like this$") as refused:
        start("refuse").start()
    assert refused.value.refused
    with pytest.raises(CannotStart) as died:
        start("die").start()
    assert str(died.value) == "the worker ended itself with exit status 1 while loading it\na last word"
    assert (died.value.refused, died.value.output) == (False, "a last word")


def test_closing_ends_it_now_from_any_thread(start):
    worker = start()
    assert asked(worker, "a") == ["A 1"]
    closing = threading.Timer(0.3, worker.close)
    closing.start()
    began_s = time.monotonic()
    with pytest.raises(Closed):
        asked(worker, "sleep")
    assert time.monotonic() - began_s < 15
    closing.join()
    with pytest.raises(Closed):
        asked(worker, "b")


def test_what_has_to_be_done_after_a_process_is_done_after_each(start):
    done = []
    worker = start(after=lambda: done.append("tidied"), kill=lambda process: (done.append("killed"), process.kill()))
    asked(worker, "die", "a")
    assert done == ["killed", "tidied"]
    worker.fresh()
    assert done == ["killed", "tidied"] * 2


def test_a_module_of_ours_is_started_without_the_folders_own_modules(tmp_path):
    (tmp_path / "json.py").write_text("raise RuntimeError('taken for a module')")
    setup = {"tests": ["test_initial_election_2a"]}
    (tmp_path / "tests").symlink_to(ROOT / "tests")
    (tmp_path / "raft").symlink_to(ROOT / "raft")
    worker = WorkerProcess(lambda: python_worker("tests.mutants.tool.worker", setup, folder=tmp_path, lab=ROOT))
    try:
        worker.start()
    finally:
        worker.fresh()
