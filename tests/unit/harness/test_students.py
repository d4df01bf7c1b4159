"""Each usual mistake of a student gives a short failure that names the line, within seconds."""

import inspect
import sys
from itertools import count

import pytest

from labsim import Simulation, time
from raftlab.harness.config import MAX_TEST_S
from raftlab.harness.launcher import LoadError
from raftlab.harness.loader import load_peer
from raftlab.harness.run import run_test
from raftlab.scenarios.collection import collect
from raftlab.tools.selection import select
from unit.students import agree, edited_reference, elect, line_of, peer, renamed_package, report_of, squeezed, written

pytestmark = pytest.mark.usefixtures("raft_package_restored")


# ---- a file that cannot be loaded ----------------------------------------------------------------------------------


def load_error(path):
    with pytest.raises(LoadError) as caught:
        load_peer(path)
    return str(caught.value).replace(str(path), "raft.py")


@pytest.mark.parametrize(
    ("source", "text"),
    [
        (
            "class Raft:\n    def start(self, command)\n        pass\n",
            "raft.py:2: SyntaxError: expected ':'\n    def start(self, command)",
        ),
        (
            "class Raft:\n    def start(self):\n    pass\n",
            "raft.py:3: IndentationError: expected an indented block after function definition on line 2\n    pass",
        ),
        (
            "\nLIMIT = int('many')\n",
            "raft.py:2: ValueError while importing it: invalid literal for int() with base 10: 'many'\n"
            "    LIMIT = int('many')",
        ),
        (
            "import numpie\n",
            "raft.py:1: ModuleNotFoundError while importing it: No module named 'numpie'\n    import numpie",
        ),
        ("import sys\nsys.exit(3)\n", "raft.py:2: importing it calls sys.exit()\n    sys.exit(3)"),
        ("LIMIT = '\0'\n", "raft.py: SyntaxError: source code string cannot contain null bytes"),
        ("", "raft.py: no class Raft"),
        ("class raft:\n    pass\n", "raft.py: no class Raft; it has raft"),
        ("class Raft:\n    pass\n", "raft.py: class Raft has no method start, no get_state, no kill"),
        (
            "class Raft:\n    def start(self): ...\n    def GetState(self): ...\n    def kill(self): ...\n",
            "raft.py: class Raft has no method get_state (rename GetState to get_state)",
        ),
    ],
)
def test_invalid_file_is_refused_in_one_sentence(tmp_path, source, text):
    assert load_error(written(tmp_path, source)) == text


def test_a_missing_file(tmp_path):
    assert load_error(tmp_path / "raft.py") == "raft.py: no such file; RAFT must name a raft.py"


def test_import_that_does_not_end_is_refused(tmp_path, monkeypatch):
    monkeypatch.setattr("raftlab.harness.loader.IMPORT_LIMIT_S", 0.3)
    ticks = count()
    monkeypatch.setattr(
        "raftlab.harness.loader.time.process_time", lambda: next(ticks)
    )  # no other process uses the processor
    path = written(tmp_path, "def wait():\n    while True:\n        pass\n\n\nwait()\n")
    message = load_error(path)
    assert message.startswith("raft.py:")
    assert "the import did not finish within 0 s; it is still at this line\n" in message


def test_slow_import_on_a_busy_machine_gets_more_time(tmp_path, monkeypatch):
    monkeypatch.setattr("raftlab.harness.loader.IMPORT_LIMIT_S", 0.05)
    monkeypatch.setattr("raftlab.harness.loader.time.process_time", lambda: 0.0)  # others have the processor
    wait = "until_s = time.monotonic() + {seconds}\nwhile time.monotonic() < until_s:\n    pass\n"
    slow = f"from labsim import queue, random, threading, time\n{wait}"
    assert load_peer(peer(tmp_path, imports=slow.format(seconds=0.15))).has_method("kill")
    assert "did not finish" in load_error(peer(tmp_path, imports=slow.format(seconds=60)))


def test_warning_about_the_file_is_not_a_failure(tmp_path):
    path = peer(tmp_path, init='self.pattern = "\\d"')
    assert load_peer(path).has_method("kill")


# ---- exceptions ----------------------------------------------------------------------------------------------------


def test_an_exception_in_init(tmp_path):
    path = peer(tmp_path, init="self.log = self.entries")
    text = report_of(path)
    assert text.splitlines()[:2] == ["AttributeError: 'Raft' object has no attribute 'entries'", "In peer 0, Raft():"]
    assert squeezed(text).endswith(f"{line_of(path, 'self.entries')} in __init__ self.log = self.entries")


def test_an_exception_in_a_thread(tmp_path):
    path = peer(tmp_path, tick="self.next_index[0] = 1")
    text = report_of(path)
    assert text.splitlines()[0] == "AttributeError: 'Raft' object has no attribute 'next_index'"
    assert "(ticker):" in text.splitlines()[1]
    assert squeezed(text).endswith(f"{line_of(path, 'self.next_index')} in ticker self.next_index[0] = 1")


def test_an_exception_in_a_handler(tmp_path):
    path = peer(tmp_path, tick="self.ask_next()", vote="raise KeyError('voted_for')")
    text = report_of(path)
    assert text.splitlines()[0] == "KeyError: 'voted_for'"
    assert ", Raft.request_vote from " in text.splitlines()[1]
    assert f"{line_of(path, 'raise KeyError')} in request_vote raise KeyError('voted_for') args=" in squeezed(text)


def test_index_error_shows_the_numbers_in_its_line(tmp_path):
    """Python's message does not have the index and the length of the list."""
    path = edited_reference(
        tmp_path,
        ("last = self._last_log_index()\n            up_to", "last = self._last_log_index() + 3\n            up_to"),
        ("self.match_index: list[int] = []", "self.match_index: list[int] = self.next_index"),
        ("return self.log[index - self.last_included_index].term", READS_BOTH),
    )
    lines = report_of(path).splitlines()
    assert lines[0] == "IndexError: list index out of range"
    assert lines[3] == "        index=3"
    in_hand = squeezed(" ".join(lines[5:]))
    assert "args=RequestVoteArgs(term=1, candidate_id=" in in_hand and "last_log_index=0, last_log_term=0)" in in_hand
    assert in_hand.count("args=") == 1
    peers = in_hand.partition("Peer: ")[2]
    assert "len(self.log)=1, self.last_included_index=0" in peers
    assert "self.next_index is the list self.match_index" in peers and peers.count("is the list") == 1
    assert "self.current_term=1" in peers and "self.voted_for=None" in peers
    assert "self.mu" not in peers and "len(self.peers)" not in peers


READS_BOTH = "return self.log[index - self.last_included_index].term + 0 * len(self.next_index + self.match_index)"


def test_numbers_are_shown_only_for_index_errors(tmp_path):
    edit = ("up_to_date = (", "up_to_date = {}[self.current_term] or (")
    elsewhere = ("up_to_date = (", "up_to_date = None + self.current_term or (")
    path = edited_reference(tmp_path, edit)
    assert "Peer: " in report_of(path)
    assert "Peer: " not in report_of(path, realtime=True)
    assert "Peer: " not in report_of(edited_reference(tmp_path, elsewhere))


def test_unfinished_skeleton_method_names_its_task(tmp_path):
    path = peer(tmp_path, state="0, False\n        raise NotImplementedError('2A: term, and whether it leads')")
    path.write_text(path.read_text().replace("return 0, False\n        raise", "raise"))
    text = report_of(path)
    assert text.splitlines()[:2] == [
        "NotImplementedError: 2A: term, and whether it leads",
        "In peer 0, get_state():",
    ]
    assert line_of(path, "raise NotImplementedError") in text


def test_frames_of_the_lab_are_not_shown(tmp_path):
    text = report_of(peer(tmp_path, tick="self.ask_next()", vote="raise KeyError('x')"))
    assert "labrpc" not in text and "raftlab" not in text and "labsim" not in text


# ---- wrong results -------------------------------------------------------------------------------------------------


def test_init_with_the_wrong_arguments(tmp_path):
    path = peer(tmp_path)
    path.write_text(path.read_text().replace("me, persister, apply_ch)", "me, persister)"))
    text = report_of(path)
    assert text.startswith("TypeError: Raft.__init__() takes 4 positional arguments but 5 were given\n")
    assert squeezed(text).endswith(f"{line_of(path, 'def __init__')} def __init__(self, peers, me, persister):")


@pytest.mark.parametrize("result", ["None", "(False, 0)", "(True, True)", "(1, False, 2)", "1"])
def test_get_state_returns_the_wrong_shape(tmp_path, result):
    path = peer(tmp_path, state=result)
    text = report_of(path)
    first = f"get_state() of peer 0 returned {result}; it must return (term: int, is_leader: bool)"
    assert text.splitlines()[0] == first
    assert squeezed(text).endswith(f"{line_of(path, 'def get_state')} def get_state(self):")


def test_start_returns_the_wrong_shape(tmp_path):
    path = peer(tmp_path, start="False")
    text = report_of(path, agree)
    first = "start() of peer 1 returned False; it must return (index: int, term: int, is_leader: bool)"
    assert text.splitlines()[0] == first
    assert squeezed(text).endswith(f"{line_of(path, 'def start')} def start(self, command):")


def test_a_handler_that_is_called_but_missing(tmp_path):
    path = peer(tmp_path, tick="self.ask_next()", vote_def="def request_votes(self, args):")
    text = report_of(path)
    assert "RpcError: " in text and "Raft has no method 'request_vote'; its methods: " in text
    assert "request_votes" in text
    assert line_of(path, '"Raft.request_vote"') in text.splitlines()[-1]


def test_a_handler_without_annotations(tmp_path):
    path = peer(tmp_path, tick="self.ask_next()", vote_def="def request_vote(self, args):")
    text = report_of(path)
    assert "annotate its one argument and its reply" in text
    assert squeezed(text).endswith(f"{line_of(path, 'def request_vote')} def request_vote(self, args):")


def test_a_handler_that_returns_nothing(tmp_path):
    path = peer(tmp_path, tick="self.ask_next()", vote="return")
    text = report_of(path)
    assert "returned None, which the caller takes for a lost reply; return a RequestVoteReply" in text
    assert line_of(path, "def request_vote") in text.splitlines()[-1]


# ---- blocked calls -------------------------------------------------------------------------------------------------


def test_a_lock_taken_twice(tmp_path):
    path = peer(tmp_path, state="(self.mu.acquire(), self.mu.acquire())")
    text = report_of(path)
    assert text.splitlines()[1] == "get_state() of peer 0 has not returned for 10 s (virtual)"
    made, held = line_of(path, "threading.Lock()"), line_of(path, "self.mu.acquire()")
    assert f"get_state() of 0 has waited 10.000 s for a Lock made at {made}, held by itself" in text
    assert f"{held} in get_state return (self.mu.acquire(), self.mu.acquire())" in squeezed(text)


def test_a_lock_held_while_calling_a_peer(tmp_path):
    path = peer(
        tmp_path,
        tick="self.mu.acquire(); self.ask_next(); self.mu.release()",
        vote="self.mu.acquire()",
        state="(self.mu.acquire(), False)",
    )
    text = report_of(path)
    assert text.splitlines()[1] == "get_state() of peer 0 has not returned for 10 s (virtual)"
    first, second = [line for line in text.splitlines() if " has waited " in line][:2]
    assert first.startswith("  get_state() of 0 has waited ") and first.endswith(" held by Thread-1 (ticker) of 0")
    assert second.startswith("  Thread-1 (ticker) of 0 ") and second.endswith(
        " for the reply of 1 to Raft.request_vote"
    )


def test_a_call_that_does_not_return_shows_where_it_is(tmp_path):
    path = peer(tmp_path, state="time.sleep(3600)")
    assert f"{line_of(path, 'time.sleep(3600)')} in get_state return time.sleep(3600)" in squeezed(report_of(path))


def test_an_endless_loop(tmp_path):
    path = peer(tmp_path, tick="while True: pass")
    text = report_of(path, unresponsive_s=0.3)
    assert "has run for 0.3 s of processor time without waiting" in text.splitlines()[0]
    assert f"{line_of(path, 'while True: pass')} in ticker while True: pass" in squeezed(text)
    assert "Every loop must wait" in text


def test_a_loop_that_polls_the_clock(tmp_path):
    path = peer(tmp_path, tick="while time.monotonic() < 5: pass")
    text = report_of(path, unresponsive_s=0.3)
    assert f"{line_of(path, 'time.monotonic() < 5')} in ticker while" in squeezed(text)
    assert "Virtual time does not advance while a task runs." in text


def test_the_watchdog_waits_five_seconds_by_default():
    assert inspect.signature(Simulation).parameters["unresponsive_s"].default == 5.0


def test_a_thread_that_sleeps_for_no_time(tmp_path):
    path = peer(tmp_path, tick="while True: time.sleep(0)")
    text = report_of(path, livelock_switches=10_000)
    assert text.splitlines()[0].startswith("Livelock at 0.1")
    assert "sleep for more than 0 s" in text
    assert line_of(path, "time.sleep(0)") in text


def test_a_test_that_takes_too_long_in_virtual_time(tmp_path):
    @collect
    def waits(make_config):
        make_config(servers=3)
        time.sleep(MAX_TEST_S + 1)

    lines = report_of(peer(tmp_path), waits).splitlines()
    assert lines[0] == "The test took longer than 120 s (virtual)"
    assert lines[1].strip().endswith("time.sleep(MAX_TEST_S + 1)")
    assert lines[2:] == [
        "Peers at 120.000 s:",
        *(f"  {i}  connected, state not requested yet, applied up to 0" for i in range(3)),
    ]


# ---- real modules --------------------------------------------------------------------------------------------------

LABSIM = "from labsim import queue, random, threading, time"


@pytest.mark.parametrize(
    ("changes", "culprit", "text"),
    [
        (
            {"imports": "import time\nfrom labsim import threading"},
            "time.sleep(0.1)",
            "time.sleep() in {} stops every peer at once; use 'from labsim import time'",
        ),
        (
            {"imports": f"from time import sleep\n{LABSIM}", "tick": "sleep(1)"},
            " sleep(1)",
            "time.sleep() in {} stops every peer at once; use 'from labsim.time import sleep'",
        ),
        (
            {"imports": "import threading\nfrom labsim import time"},
            "threading.Lock()",
            "threading.Lock() in {} is not simulated, and waiting for it stops every peer at once; "
            "use 'from labsim import threading'",
        ),
        (
            {"imports": f"{LABSIM}\nimport random", "tick": "random.uniform(1, 2)"},
            "random.uniform(1, 2)",
            "random.uniform() in {} ignores the seed, so the run cannot be replayed; use 'from labsim import random'",
        ),
        (
            {"imports": f"{LABSIM}\nimport time as t", "tick": "t.monotonic()"},
            "t.monotonic()",
            "time.monotonic() in {} reads the real clock, so the run cannot be replayed; use 'from labsim import time'",
        ),
        (
            {"imports": f"{LABSIM}\nimport sys", "tick": "sys.exit(1)"},
            "sys.exit(1)",
            "sys.exit() in {} would end only this thread; return from the function, or raise an error",
        ),
    ],
)
def test_the_real_modules_are_refused_with_the_fix(tmp_path, changes, culprit, text):
    path = peer(tmp_path, **changes)
    where = line_of(path, culprit)
    first, second = report_of(path).splitlines()
    assert first == text.format(where)
    at, _, source = squeezed(second).partition(" in ")
    assert (at, source.partition(" ")[2]) == (
        where,
        culprit.strip() if "Lock" not in culprit else "self.mu = threading.Lock()",
    )


def test_sys_exit_is_restored_after_a_run(tmp_path):
    before = sys.exit
    report_of(peer(tmp_path, tick="self.nothing"))
    assert sys.exit is before


def test_system_exit_in_a_method_is_an_error(tmp_path):
    path = peer(tmp_path, state="0, False")
    path.write_text(path.read_text().replace("return 0, False", "raise SystemExit(4)"))
    text = report_of(path)
    assert text.splitlines()[0] == "PeerCalledExit: a peer must not call sys.exit()"
    assert line_of(path, "raise SystemExit(4)") in text


# ---- the test's line -----------------------------------------------------------------------------------------------


def test_failure_names_the_line_of_the_test(tmp_path):
    text = report_of(peer(tmp_path))
    assert text.splitlines()[0].startswith("Expected one leader among the connected servers")
    assert squeezed(text.splitlines()[1]).endswith("in elect cfg.check_one_leader()")


def test_failure_in_a_service_names_the_line_of_the_test(tmp_path):
    text = report_of(peer(tmp_path, init="self.apply_ch = apply_ch", tick="self.apply_ch.put('committed')"))
    assert text.splitlines()[0].endswith("put 'committed' on apply_ch; it must be an ApplyMsg")
    assert squeezed(text.splitlines()[1]).endswith("in elect cfg.check_one_leader()")


def test_a_package_with_its_own_messages_is_tested_with_them(tmp_path):
    messages = renamed_package(tmp_path) / "messages.py"
    messages.write_text(messages.read_text() + "\n\nMINE = True\n")
    (tmp_path / "persister.py").unlink()  # what is not there is the lab's
    launcher = load_peer(tmp_path)
    assert sys.modules["raft.messages"].MINE
    assert run_test(agree, launcher, 7).error is None


def test_base_peers_of_these_tests_pass(tmp_path):
    assert run_test(agree, load_peer(edited_reference(tmp_path)), 7).error is None
    assert report_of(peer(tmp_path), elect).startswith("Expected one leader")


def test_leader_may_send_entries_in_any_number_of_messages(tmp_path):
    """Only the search for the last common entry must be short."""
    one = ("entries = self.log[prev + 1 - base :]", "entries = self.log[prev + 1 - base : prev + 2 - base]")
    (test,) = select(["test_backup_costs_few_rpcs_2b"])
    assert run_test(test, load_peer(edited_reference(tmp_path, one)), 1).error is None
