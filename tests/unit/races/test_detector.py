"""The race detector: what it reports, what it does not, and the report."""

import pytest

from raftlab.check.failure import Failure
from unit.races.run_peer import run_peer

PEER = """
class Peer:
    def __init__(self):
        self.mu = threading.Lock()
        self.other_mu = threading.Lock()
        self.term = 0
        self.log = []
        self.next = [0, 0]
        self.dead = False
        self.view = (0, 0)
        self.done = threading.Event()
        self.box = queue.Queue()

def make():
    global peer
    peer = Peer()
"""


def race(body, *calls):
    return run_peer(PEER + body, calls=calls or ("one", "two"))


def test_report_has_both_lines_and_the_missing_lock():
    ran = race("""
def one():
    with peer.mu:
        peer.term += 5
def two():
    return peer.term
""")
    assert isinstance(ran.error, Failure)
    assert ran.error.rule == "race"
    assert ran.report == [
        "Data race on peer.term: peer 1 writes it at peer.py:21 in one(), holding self.mu",
        "                        and reads it at peer.py:23 in two(), without a lock; the accesses are not ordered.",
        "  Likely: two() accesses it outside `with self.mu:`.",
    ]
    assert [(place.line, place.function) for place in ran.error.places] == [(21, "one"), (23, "two")]


def test_race_without_effect_is_reported():
    # one() runs a second before two(), which does not order them.
    ran = race("""
def one():
    peer.term += 5
def two():
    time.sleep(1)
    peer.term += 6
""")
    assert ran.report[0] == "Data race on peer.term: peer 1 writes it at peer.py:20 in one(), without a lock"
    assert ran.report[-1] == "  Likely: neither access holds a lock; guard peer.term with one."


@pytest.mark.parametrize(
    "body",
    [
        "def one():\n    with peer.mu:\n        peer.term += 1\n"
        "def two():\n    with peer.mu:\n        return peer.term\n",
        "def one():\n    peer.term = 1\n    peer.done.set()\ndef two():\n    peer.done.wait()\n    peer.term = 2\n",
        "def one():\n    peer.term = 1\n    peer.done.set()\n"
        "def two():\n    while not peer.done.is_set():\n        time.sleep(1)\n    peer.term = 2\n",
        "def one():\n    peer.log.append(1)\n    peer.box.put(1)\n"
        "def two():\n    peer.box.get()\n    peer.log.append(2)\n",
        # A lock that one thread acquires and another releases is a signal.
        "def one():\n    peer.mu.acquire()\n    time.sleep(2)\n    peer.term = 1\n    peer.other_mu.acquire()\n"
        "    peer.mu.release()\n"
        "def two():\n    time.sleep(1)\n    peer.mu.acquire()\n    peer.term = 2\n",
        # Elements with different keys are different.
        "def one():\n    peer.next[0] = 1\ndef two():\n    peer.next[1] += 1\n",
    ],
    ids=["lock", "event", "event seen", "queue", "lock as a signal", "elements"],
)
def test_ordered_accesses_are_not_reported(body):
    ran = race(body)
    assert ran.error is None
    assert ran.remarks == []


@pytest.mark.parametrize(
    ("body", "first"),
    [
        ("def one():\n    peer.log.append(1)\ndef two():\n    return len(peer.log)\n", "Data race on peer.log"),
        (
            "def one():\n    peer.next[0] = 1\ndef two():\n    i = 0\n    return peer.next[i]\n",
            "Data race on peer.next",
        ),
        ("def one():\n    peer.next[0] = 1\ndef two():\n    return sorted(peer.next)\n", "Data race on peer.next"),
        (
            "def one():\n    peer.log.append(1)\ndef two():\n    log = peer.log\n    log.clear()\n",
            "Data race on peer.log",
        ),
        ("def one():\n    peer.log += [1]\ndef two():\n    return [x for x in peer.log]\n", "Data race on peer.log"),
        ("def one():\n    del peer.next[0]\ndef two():\n    return 3 in peer.next\n", "Data race on peer.next"),
        ("def one():\n    peer.term, x = 1, 2\ndef two():\n    peer.term = peer.term + 1\n", "Data race on peer.term"),
    ],
)
def test_accesses_to_containers_are_checked(body, first):
    assert race(body).report[0].startswith(first)


def test_different_locks_do_not_order():
    ran = race("""
def one():
    with peer.mu:
        peer.term += 1
def two():
    with peer.other_mu:
        peer.term += 1
""")
    assert ran.report[-1] == "  Likely: the two accesses hold different locks."


def test_start_and_join_order_threads():
    assert (
        race(
            """
def work():
    peer.term += 1
def one():
    peer.term = 1
    thread = threading.Thread(target=work)
    thread.start()
    thread.join()
    peer.term += 1
    return peer.term
""",
            "one",
        ).value
        == 3
    )


def test_condition_orders_by_its_lock():
    ran = race("""
def one():
    with peer.changed:
        while not peer.log:
            peer.changed.wait()
        return peer.log.pop()
def two():
    with peer.mu:
        peer.log.append(7)
        peer.changed.notify()
def make():
    global peer
    peer = Peer()
    peer.changed = threading.Condition(peer.mu)
""")
    assert ran.error is None
    assert ran.value == 7


def test_reading_a_field_of_tuples_is_not_reported():
    ran = race("""
def one():
    with peer.mu:
        peer.view = (1, 2)
def two():
    a, b = peer.view
""")
    assert ran.error is None
    assert race("def one():\n    peer.view = (1, 1)\ndef two():\n    peer.view = (2, 2)\n").error is not None


@pytest.mark.parametrize("frozen", [True, False])
def test_only_frozen_dataclasses_may_be_read_without_lock(frozen):
    ran = race(f"""
import dataclasses
@dataclasses.dataclass(frozen={frozen})
class State:
    term: int
def one():
    with peer.mu:
        peer.view = State(2)
def two():
    return peer.view
""")
    assert (ran.error is None) is frozen


def test_flag_that_changes_once_is_benign():
    flag = "def one():\n    with peer.mu:\n        peer.dead = True\ndef two():\n    return peer.dead\n"
    ran = race(flag)
    assert ran.error is None
    assert ran.remarks == [
        "peer.dead is written at peer.py:20 and read at peer.py:22 without synchronization: this is not a "
        "failure, because it changes once, from one constant to another; a threading.Event would be clearer"
    ]
    back = flag + "    with peer.mu:\n        peer.dead = False\n"
    assert race(back.replace("return peer.dead", "time.sleep(1)\n    seen = peer.dead")).error.rule == "race"


def test_commented_line_is_benign_and_mentioned():
    ran = race("""
def one():
    with peer.mu:
        peer.term += 1
def two():
    return peer.term  # race: ok, any recent term will do
""")
    assert ran.error is None
    assert ran.remarks == [
        "peer.term is written at peer.py:21 and read at peer.py:23 without synchronization: "
        "this is marked as intended (any recent term will do)"
    ]


def test_thread_started_before_fields_are_set_is_reported():
    ran = run_peer(
        """
class Peer:
    def __init__(self):
        self.term = 0
        threading.Thread(target=self.work).start()
        self.votes = 0
        self.term = 1
    def work(self):
        time.sleep(1)
        return self.votes
def main():
    Peer()
    time.sleep(2)
"""
    )
    assert ran.report[0] == "Data race on self.votes: peer 1 writes it at peer.py:7 in __init__(), without a lock"
    assert ran.report[-1] == "  Likely: __init__() starts a thread before it sets self.votes; start threads last."


def test_slots_and_private_names_are_checked():
    ran = run_peer(
        """
class Batch:
    __slots__ = ("__size", "mu")
    def __init__(self):
        self.mu = threading.Lock()
        self.__size = 0
    def grow(self):
        with self.mu:
            self.__size += 1
    def size(self):
        return self.__size
def main():
    for _ in range(5000):
        Batch().grow()
    batch = Batch()
    threading.Thread(target=batch.grow).start()
    time.sleep(1)
    return batch.size()
"""
    )
    assert (
        ran.report[0]
        == "Data race on self.__size: peer 1 writes it at peer.py:10 in grow(), holding a Lock made at peer.py:6"
    )
    assert ran.report[1].strip().startswith("and reads it at peer.py:12 in size(), without a lock")


def test_subclasses_of_locks_and_queues_order():
    ran = run_peer(
        """
class Box(queue.Queue):
    def _put(self, item):
        super()._put(item + 1)
class Mutex(threading.Lock):
    pass
class Peer:
    def __init__(self):
        self.box, self.mu, self.n = Box(), Mutex(), 0
def main():
    peer = Peer()
    def work():
        with peer.mu:
            peer.n += 1
        peer.box.put(1)
    threading.Thread(target=work).start()
    with peer.mu:
        peer.n += 1
    got = peer.box.get()
    return got, peer.n, type(peer.box).__name__
"""
    )
    assert ran.error is None
    assert ran.value == (2, 2, "Box")


def test_properties_are_checked_in_their_own_code():
    ran = run_peer(
        """
class Mine(threading.local):
    n = 0
class Peer:
    def __init__(self):
        self.mu, self._term, self.mine = threading.Lock(), 0, Mine()
    @property
    def term(self):
        with self.mu:
            return self._term
    @term.setter
    def term(self, term):
        with self.mu:
            self._term = term
    def work(self):
        self.term += 1
        self.mine.n += 1
def main():
    peer = Peer()
    threading.Thread(target=peer.work).start()
    peer.work()
    time.sleep(1)
    return peer.term, peer.mine.n
"""
    )
    assert ran.error is None
    assert ran.value == (2, 1)
