"""The parts of `lab stress` that need no worker: order of runs, grouping, progress, summaries."""

import io
import json
import re
from concurrent.futures import Future
from pathlib import Path
from types import SimpleNamespace

import msgspec
import pytest
from rich.console import Console

from raftlab.harness import records
from raftlab.harness.options import DEFAULT, DEFAULT_KV
from raftlab.harness.outcome import Ending, Outcome
from raftlab.tools.selection import select
from raftlab.tools.stress import progress
from raftlab.tools.stress.stress_run import Plan, run_stress
from raftlab.tools.stress.summary import as_text, describe_rate, wrapped
from raftlab.tools.stress.tally import Tally
from raftlab.tools.workers.job_bundle import JobBundle
from raftlab.tools.workers.pool import PoolLost

SETUP = {"run_limit_s": 60.0}
PASSED, EXCEPTION = Ending.PASSED, Ending.EXCEPTION


def ran(test, seed, ending=PASSED, **more):
    return Outcome(test=test, seed=seed, ending=ending, **more)


class FakePool:
    """Makes every run at once, and notes it."""

    slots = 2

    def __init__(self, fails=lambda test, seed: False):
        self.made = []
        self.fails = fails

    def ask(self, requests, limit_s):
        future = Future()
        answers = []
        for test, seed in (json.loads(request).values() for request in requests):
            self.made.append((test, seed))
            failed = self.fails(test, seed)
            done = ran(test, seed, EXCEPTION if failed else PASSED, virtual_s=1.0, real_s=0.01, text="x" * failed)
            answers.append(msgspec.json.encode(done))
        future.set_result(answers)
        return future

    def shutdown(self):
        pass


# ---- which runs ----------------------------------------------------------------------------------------------


def test_every_seed_of_every_test_is_run_once_and_tests_advance_together():
    pool, tally = FakePool(), Tally(["a", "b", "c"], 100)
    run_stress(pool, SETUP, Plan(57), tally, lambda: None)
    assert sorted(pool.made) == [(test, seed) for test in "abc" for seed in range(100, 157)]
    half = pool.made[: len(pool.made) // 2]
    assert all(sum(1 for test, _ in half if test == name) > 15 for name in "abc")
    assert tally.total.runs == tally.total.passed == 3 * 57


def test_grow_makes_rounds_of_10_100_1000_and_ends_after_a_round_that_failed():
    pool, tally = FakePool(lambda test, seed: seed == 60), Tally(["a", "b"], 0)
    run_stress(pool, SETUP, Plan(None, grow=True), tally, lambda: None)
    assert sorted(pool.made) == [(test, seed) for test in "ab" for seed in range(100)]
    assert {test for test, _ in pool.made[:20]} == {"a", "b"}
    assert max(seed for _, seed in pool.made[:20]) == 9
    assert tally.ended == "after the round that found a failure"


def test_grow_ends_at_runs():
    assert list(Plan(250, grow=True).rounds()) == [10, 100, 250]
    assert list(Plan(100, grow=True).rounds()) == [10, 100]
    assert list(Plan(5, grow=True).rounds()) == [5]


def test_until_fail_and_for_end_a_campaign_without_limit():
    pool, tally = FakePool(lambda test, seed: seed == 500), Tally(["a"], 0)
    run_stress(pool, SETUP, Plan(None, until_fail=True), tally, lambda: None)
    assert 501 <= len(pool.made) <= 501 + 5 * 100
    tally = Tally(["a"], 0)
    run_stress(FakePool(), SETUP, Plan(None, for_s=0.1), tally, lambda: None)
    assert 0.1 <= tally.elapsed_s < 5
    assert tally.ended == "at the time limit (--for)"


def test_a_pool_that_is_lost_ends_it_and_keeps_what_was_counted():
    class Dying(FakePool):
        def ask(self, requests, limit_s):
            if len(self.made) > 50:
                future = Future()
                future.set_exception(OSError("no route to host"))
                return future
            return super().ask(requests, limit_s)

    tally = Tally(["a"], 0)
    with pytest.raises(PoolLost, match="OSError: no route to host"):
        run_stress(Dying(), SETUP, Plan(1000), tally, lambda: None)
    assert 0 < tally.total.runs < 1000


def test_unverified_runs_are_counted_apart(tmp_path):
    tally = Tally(["a"], 0)
    tally.add([ran("a", 1), ran("a", 2, Ending.UNVERIFIED, unverified=["Leadership cannot be verified"])])
    assert (tally.total.runs, tally.total.passed, tally.total.failed, tally.total.unverified) == (2, 1, 0, 1)
    text = as_text(tally, None, tmp_path)
    assert "2 runs: 1 passed, 0 failed, 1 unverified, in" in text and "Leadership cannot be verified." in text


# ---- causes --------------------------------------------------------------------------------------------------


def failed(test, seed, *, events=10, ending=EXCEPTION, **more):
    return ran(test, seed, ending, events=events, **more)


def test_a_test_keeps_its_smallest_seed_and_its_shortest_run():
    tally = Tally(["a"], 0)
    tally.add([failed("a", seed, events=events, mistake="m") for seed, events in ((9, 50), (4, 70), (6, 20), (8, 20))])
    tally.add([failed("a", 1, events=1, mistake="another")])
    first, second = tally.causes
    (group,) = first.groups.values()
    assert (group.count, group.smallest.seed, group.shortest.seed) == (4, 4, 6)
    assert (second.count, second.shortest.seed) == (1, 1)


def test_one_mistake_in_many_tests_is_one_cause_with_its_tests_below(tmp_path):
    tests = ["test_c", "test_a", "test_b"]
    tally = Tally(tests, 0)
    tally.ended_s = tally.began_s + 1
    saved = {"ending": Ending.RULE, "mistake": "rule | saved", "name": "saved", "text": "peer 3 does not save"}
    tally.add([failed(test, seed, events=100 - seed, **saved) for seed in (1, 2) for test in sorted(tests)])
    tally.add([ran(test, 3) for test in tests])
    tally.add(
        [failed("test_a", 4, mistake="exception | KeyError | raft.py:7", text="KeyError: 'x'", where="raft.py:7")]
    )
    bundle = SimpleNamespace(replay_line=lambda test, seed, does="replay": f"{does.upper()} {test} {seed}")
    text = as_text(tally, bundle, tmp_path).partition("\n")[2]
    assert (
        text
        == f"""
2 causes of failure:

  1  saved: peer # does not save
     report  {tmp_path}/cause-1.txt
     replay  REPLAY test_a 2
     page    PAGE test_a 2
       test_c  2 of 3 runs, about one in 2; smallest seed 1, shortest run seed 2 (98 events)
       test_a  2 of 4 runs, about one in 2; smallest seed 1, shortest run seed 2 (98 events)
       test_b  2 of 3 runs, about one in 2; smallest seed 1, shortest run seed 2 (98 events)

  2  KeyError: '...'
     at raft.py:7
     report  {tmp_path}/cause-2.txt
     replay  REPLAY test_a 4
     page    PAGE test_a 4
       test_a  1 of 4 runs; seed 4 (10 events)"""
    )


def test_a_run_that_ended_its_process_is_no_example_where_there_is_another():
    tally = Tally(["a"], 0)
    tally.add([ran("a", 1, Ending.DIED, mistake="m"), failed("a", 2, mistake="m")])
    assert tally.causes[0].shortest.seed == 2


def test_a_long_sentence_is_wrapped_on_a_terminal_and_keeps_all_its_words():
    words = " ".join(f"word-{n}" for n in range(60))
    lines = wrapped(words, "     ", 80, "  1  ")
    assert max(map(len, lines)) <= 80
    assert " ".join(line[5:] for line in lines) == words
    assert wrapped(words, "     ", None) == [f"     {words}"]


def test_checks_that_are_off_are_said_once():
    tally = Tally(["a"], 0)
    tally.add([ran("a", seed, checks_off=["These are off"]) for seed in range(3)])
    tally.ended_s = tally.began_s + 1
    assert as_text(tally, None, Path("out")).splitlines()[1:] == ["These are off."]


def test_rates_read_as_people_say_them():
    assert describe_rate(1, 200) == "1 of 200 runs"
    assert describe_rate(5, 1000) == "5 of 1,000 runs, about one in 200"
    assert describe_rate(7, 7) == "every one of 7 runs"
    assert describe_rate(1, 1) == "the only run"


def test_a_line_names_the_service_for_tests_of_one_alone():
    tests = select(["test_initial_election_2a", "test_basic_3a"])
    given = {"raft": "raft/raft.py", "kv": "my/server.py", "race": True}
    bundle = JobBundle.of(DEFAULT, tests, kv=DEFAULT_KV, given=given, run_limit_s=1, memory_mb=0)
    assert (
        bundle.replay_line("test_initial_election_2a", 7) == "make replay TEST=test_initial_election_2a SEED=7 RACE=1"
    )
    assert bundle.replay_line("test_basic_3a", 7, "page").endswith("SEED=7 KV=my/server.py RACE=1")


# ---- progress ------------------------------------------------------------------------------------------------


def test_away_from_a_terminal_a_long_campaign_says_little(monkeypatch):
    now_s = [0.0]
    monkeypatch.setattr("raftlab.tools.stress.tally.time.monotonic", lambda: now_s[0])
    said = io.StringIO()
    tally = Tally(["a"], 0, wanted=100_000)
    tally.began_s = 0.0
    with progress.watching(tally, Console(file=said, width=200), Path("out")) as update:
        while now_s[0] < 10 * 3600:
            now_s[0] += 0.5
            tally.add([ran("a", 1, virtual_s=30.0, real_s=0.4)])
            if now_s[0] == 7:
                tally.add([ran("a", seed, Ending.DIED, text=f"cause {seed}") for seed in range(100)])
            update()
    lines = said.getvalue().splitlines()
    told = [line for line in lines if line.startswith("FAILED")]
    assert len(told) == 20
    assert told[1] == "FAILED a  seed 1: cause 1"
    assert "  report  out/cause-2.txt" in lines
    assert 50 < len(lines) - 2 * len(told) < 250
    assert "/100,000 runs: " in lines[0] and " left" in lines[0]


@pytest.mark.parametrize(("width", "height"), [(120, 40), (60, 12)])
def test_the_live_table_fits_the_terminal_and_shows_what_failed(width, height):
    said = io.StringIO()
    console = Console(file=said, force_terminal=True, width=width, height=height)
    tests = [f"test_number_{n}" for n in range(28)]
    tally = Tally(tests, 0, wanted=10)
    tally.add([ran(test, 1, virtual_s=3600.0, real_s=0.5) for test in tests])
    cause = " ".join(["a cause of failure", *["of many words"] * 5, "and the fix"])
    tally.add([ran("test_number_27", 2, EXCEPTION, text=cause)])
    with console.capture() as capture:
        console.print(progress._picture(tally, Path("out"), width, height))
    shown = capture.get()
    assert len(shown.splitlines()) <= height
    words = " ".join(re.sub(r"\x1b\[[0-9;]*m", "", shown).split())
    assert "1x test_number_27 seed 2; report out/cause-1.txt" in words
    assert cause in words


# ---- records -------------------------------------------------------------------------------------------------


def test_changes_name_the_file_that_changed(tmp_path):
    package = tmp_path / "raft"
    package.mkdir()
    for name in ("raft.py", "messages.py"):
        (package / name).write_text("x = 1\n")
    test_file = tmp_path / "test_2a.py"
    test_file.write_text("")
    then = records.code_hashes(package / "raft.py", test_file)
    assert records.changes(then, records.code_hashes(package / "raft.py", test_file)) == []
    (package / "messages.py").write_text("x = 2\n")
    (package / "new.py").write_text("")
    now = records.code_hashes(package / "raft.py", test_file)
    assert records.changes(then, now) == [str(package / "messages.py"), f"{package / 'new.py'} (new)"]
    assert records.changes(then | {"Python": "3.9.1"}, then) == [f"Python 3.9.1 then, {then['Python']} now"]


def test_a_file_alone_is_not_changed_by_its_neighbours(tmp_path):
    (tmp_path / "raft.py").write_text("")
    (tmp_path / "another.py").write_text("")
    assert records.files_of(tmp_path / "raft.py") == [tmp_path / "raft.py"]


def test_a_record_that_cannot_be_read_is_not_there(tmp_path):
    record = records.Record(test="t", seed=1, raft="raft.py", digest="d", report="r", code={})
    path = record.write(tmp_path)
    assert records.find([tmp_path, tmp_path / "none"], "t", 1, Path("raft.py")) == record
    assert records.find([tmp_path], "t", 2, Path("raft.py")) is None
    assert records.find([tmp_path], "t", 1, Path("other/raft.py")) is None
    path.write_text("{")
    assert records.find([tmp_path], "t", 1, Path("raft.py")) is None


def test_the_fix_that_the_simulation_names_is_told_in_its_own_words():
    says = "time.sleep() in raft.py:3 stops every peer at once; use 'from labsim import time'"
    refused, missed = ran("a", 1, Ending.SIMULATION, text=says), ran("a", 1, Ending.EXPECTATION, text="one(7): no 'x'")
    assert (refused.cause, missed.cause) == (says, "one(#): no '...'")
