"""The tester of services: what it observes, what it reports, and what it leaves undecided."""

import re

import pytest

from labsim import Simulation, time
from raftlab.check.linearizability import CheckResult, HistoryCheck
from raftlab.harness import kv_config, report
from raftlab.harness.kv_config import Undecided
from raftlab.harness.launcher import LoadError
from raftlab.harness.loader import load_peer
from raftlab.harness.outcome import Ending
from raftlab.harness.run import run_test
from raftlab.scenarios.collection import collect
from raftlab.tools.selection import load_tests
from raftlab.trace.events import INVOKE, RETURN, SNAPSHOT
from tests.mutants.tool.mutants import load_mutants
from unit.students import ROOT, pytest_run, squeezed

RAFT = ROOT / "raft" / "raft.py"
KV = ROOT / "kv" / "server.py"
TESTS = {test.name: test for file in sorted((ROOT / "tests").glob("test_3*.py")) for test in load_tests(file)}

pytestmark = pytest.mark.usefixtures("raft_package_restored")


def service(tmp_path, *changes, file="server.py"):
    """The reference's service with each (old, new) replaced once."""
    for name in ("server.py", "client.py"):
        source = (ROOT / "kv" / name).read_text(encoding="utf-8")
        for old, new in changes if name == file else ():
            assert source.count(old) == 1, f"the reference has changed: {source.count(old)} times {old!r}"
            source = source.replace(old, new)
        (tmp_path / name).write_text(source, encoding="utf-8")
    return tmp_path / "server.py"


@collect
def a_few(make_kv_config):
    cfg = make_kv_config(servers=3, max_raft_state=500)
    cfg.begin("Test: a few operations")
    client = cfg.make_client()
    for number in range(30):
        client.append("x", f"<{number}>")
    client.get("x")


def report_of(path, test=a_few, seed=1):
    run = run_test(test, load_peer(RAFT, kv=path), seed)
    assert run.error is not None, "the service passed"
    return squeezed("\n".join(report.message_lines(run.error)))


# ---- observations --------------------------------------------------------------------------------------------------


def test_trace_has_operations_and_snapshots():
    run = run_test(a_few, load_peer(RAFT, kv=KV), 1)
    assert run.error is None
    trace = run.simulation.trace
    operations = [event for event in trace if event.kind in (INVOKE, RETURN)]
    assert {event.node for event in operations} == {"client 0"}
    assert len(operations) == 62
    assert (operations[-1].detail.op, operations[-1].detail.key) == ("get", "x")
    assert operations[-1].detail.value == "".join(f"<{number}>" for number in range(30))
    assert any(event.kind == SNAPSHOT for event in trace)
    assert run.checks_off == []  # a service's RPCs are not Raft's, and are ignored
    assert run.lines[0].startswith("Test: a few operations")
    assert " 31 " in run.lines[0]


@pytest.mark.parametrize("name", ["test_crash_anywhere_3a", "test_snapshot_crash_anywhere_3b"])
def test_one_seed_is_one_run(name):
    program = load_peer(RAFT, kv=KV)
    digests = {run_test(TESTS[name], program, 3).digest for _ in range(2)}
    assert len(digests) == 1


def test_seed_gives_the_same_run_in_another_process():
    args = (ROOT / "tests/test_3b_extra.py", "-q", "-n0", "--seed", 7, "--check-determinism", "-k", "outlive")
    assert "1 passed" in pytest_run(*args, cwd=ROOT, code=0)


def test_a_service_runs_on_real_threads():
    out = pytest_run(
        ROOT / "tests/test_3a.py", "-q", "-n0", "--realtime", "-k", "one_key or one_partition", cwd=ROOT, code=0
    )
    assert "2 passed" in out


def test_restarted_service_has_only_its_disk(tmp_path):
    path = service(tmp_path, ("LOOK_S = 0.1\n", "LOOK_S = 0.1\nSURVIVES = []\n"), ("self.me = me\n", SURVIVES))
    assert run_test(TESTS["test_persist_one_client_3a"], load_peer(RAFT, kv=path), 1).error is None


SURVIVES = """self.me = me
        assert not SURVIVES, "a variable of the module outlived a crash, or two servers share it"
        SURVIVES.append(me)
"""


def test_example_in_the_docs_passes(tmp_path):
    page = (ROOT / "docs" / "student" / "kv.md").read_text(encoding="utf-8")
    (source,) = re.findall(r"```python\n(.*?)```", page, re.DOTALL)
    (tmp_path / "my_tests.py").write_text(source, encoding="utf-8")
    (test,) = load_tests(tmp_path / "my_tests.py")
    for seed in range(3):
        assert run_test(test, load_peer(RAFT, kv=KV), seed).error is None


# ---- what it reports -----------------------------------------------------------------------------------------------


def deaf(tmp_path):
    return service(tmp_path, ("                msg = self.apply_ch.get(timeout=PATIENCE_S)\n", DEAF))


DEAF = """                if self.last_applied >= 5:
                    time.sleep(30)
                msg = self.apply_ch.get(timeout=PATIENCE_S)
"""


def test_service_that_does_not_read_apply_ch_is_reported(tmp_path):
    text = report_of(deaf(tmp_path))
    assert re.search(r"taken nothing from apply_ch for 0\.\d s, although .*; it has applied up to 5\. One thread", text)


def test_snapshot_beyond_the_applied_index_is_reported(tmp_path):
    path = service(tmp_path, ("snapshot(self.last_applied, state", "snapshot(self.last_applied + 2, state"))
    assert re.search(
        r"the service of server \d passed its peer a snapshot of index (\d+), but has received only indexes up to \d+ ",
        report_of(path),
    )


def test_wrong_apply_order_is_reported_for_any_service(tmp_path):
    peer = tmp_path / "peer.py"
    source = RAFT.read_text(encoding="utf-8")
    old = "command_index=self.last_applied)"
    assert source.count(old) == 1
    peer.write_text(source.replace(old, "command_index=self.last_applied - (self.last_applied == 4))"))
    run = run_test(a_few, load_peer(peer, kv=KV), 1)
    assert run.outcome().name == "apply-order"


NEVER_SEEN = "        return known is not None and known.seq == op.seq\n"


def test_violation_is_drawn_with_its_server_and_likely_cause(tmp_path):
    path = service(tmp_path, ("        return known is not None and known.seq >= op.seq\n", NEVER_SEEN))
    run = run_test(TESTS["test_duplicated_requests_3a"], load_peer(RAFT, kv=path), 1)
    outcome = run.outcome()
    assert (outcome.ending, outcome.name) == (Ending.RULE, "linearizability")
    assert outcome.mistake == "rule | linearizability, twice"  # not to be mixed up with, say, stale reads
    lines = report.message_lines(run.error)
    assert lines[0] == "Broken rule: Histories must be linearizable (§8)"
    assert "took effect twice" in lines[1]
    assert any("├" in line for line in lines)
    assert any(re.match(r"  Server \d answered the read of client \d when it had applied up to \d+", x) for x in lines)
    assert any(line.startswith("Likely: a retransmitted request was executed twice.") for line in lines)


def test_nonlinearizable_history_is_reported_first(tmp_path):
    @collect
    def notices(make_kv_config):
        cfg = make_kv_config(servers=3)
        cfg.begin("Test: notices something")
        client = cfg.make_client()
        client.put("x", "1")
        client.get("x")
        cfg.fail("the test's own words")

    assert report_of(KV, notices).startswith("the test's own words")
    path = service(tmp_path, ('            value = self.data.get(op.key, "")\n', '            value = ""\n'))
    assert report_of(path, notices).startswith("Broken rule: Histories must be linearizable (§8)")


def test_client_that_cannot_finish_is_reported(tmp_path):
    @collect
    def stuck(make_kv_config):
        cfg = make_kv_config(servers=3)
        cfg.begin("Test: nobody answers")
        cfg.disconnect(0, 1)
        cfg.spawn_clients(1, lambda me, client: client.put("x", "1")).finish(limit_s=3)

    text = report_of(KV, stuck)
    assert text.startswith(
        "client 0 cannot finish, although a majority of the servers is up: put('x'), called at 0.000 s"
    )


def test_service_that_waits_with_its_lock_is_diagnosed(tmp_path):
    (mutant,) = [mutant for mutant in load_mutants() if mutant.id == "kv-waits-with-the-lock"]

    @collect
    def one_put(make_kv_config):
        cfg = make_kv_config(servers=3)
        cfg.begin("Test: one put")
        cfg.spawn_clients(1, lambda me, client: client.put("x", "1")).finish(limit_s=3)

    text = report_of(mutant.write(tmp_path), one_put)
    assert re.search(
        r"Likely: server \d holds its lock while it waits\. Thread-\d+ \(_applier\) has waited 2\.\d s for that lock\.",
        text,
    )


def test_clerk_that_sends_nothing_fails_every_test(tmp_path):
    """Results of a student's clerk can only be contradicted by those of another client."""
    path = service(tmp_path)
    (tmp_path / "client.py").write_text(SENDS_NOTHING)
    program = load_peer(RAFT, kv=path)
    assert [name for name, test in TESTS.items() if run_test(test, program, 1).error is None] == []


SENDS_NOTHING = """
class Clerk:
    def __init__(self, servers):
        self.data = {}

    def get(self, key):
        return self.data.get(key, "")

    def put(self, key, value):
        self.data[key] = value

    def append(self, key, value):
        self.data[key] = self.get(key) + value
"""


def test_a_get_must_return_a_string(tmp_path):
    path = service(tmp_path, ("key)).value)\n", "key)).value) and None\n"), file="client.py")
    assert report_of(path).startswith("get('x') of client 0 returned None; it must return a str")


# ---- undecided histories -------------------------------------------------------------------------------------------


@collect
def equal_values(make_kv_config):
    cfg = make_kv_config(servers=3)
    cfg.begin("Test: equal values")

    def work(me, client):
        for _ in range(8):
            client.append("x", "a")
            client.get("x")
            time.sleep(0.01)

    cfg.run_clients(6, work)


def test_equal_values_are_searched():
    assert run_test(equal_values, load_peer(RAFT, kv=KV), 1).error is None


def test_unknown_linearizability_fails_as_the_lab_s_error(monkeypatch):
    monkeypatch.setattr(
        kv_config, "check", lambda operations, alive: HistoryCheck(CheckResult.UNKNOWN, key="x", steps=1_000_000)
    )
    run = run_test(equal_values, load_peer(RAFT, kv=KV), 1)
    assert isinstance(run.error, Undecided)
    assert run.outcome().ending is Ending.TEST  # the test's: the service has violated nothing
    text = squeezed(report.message_lines(run.error)[0])
    assert text.startswith("Undecided: the checker gave up on key 'x' after 1,000,000 steps, so it is unknown whether")
    assert "a defect of the test, not of the service: write unique values" in text


def test_long_linearizability_search_does_not_trip_the_watchdog(monkeypatch):
    """The watchdog measures processor time, so the result would depend on the machine."""

    def searching(operations, alive):
        for _ in range(1000):  # some seconds
            sum(range(100_000))
            alive()
        return HistoryCheck(CheckResult.OK)

    monkeypatch.setattr(kv_config, "check", searching)
    simulation = Simulation(1, unresponsive_s=0.3)
    assert run_test(a_few, load_peer(RAFT, kv=KV), 1, simulation=simulation).error is None


# ---- loading -------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("source", "said"),
    [
        ("class Server: ...", "no class KVServer; it has Server"),
        ("class KVServer: ...", "class KVServer has no method kill"),
        ("import kv.nowhere", "ModuleNotFoundError while importing it: No module named 'kv.nowhere'"),
    ],
)
def test_invalid_service_is_refused_with_its_file(tmp_path, source, said):
    path = tmp_path / "server.py"
    path.write_text(source)
    with pytest.raises(LoadError) as refused:
        load_peer(RAFT, kv=path)
    assert str(refused.value).startswith(str(path))
    assert said in str(refused.value)


def test_a_clerk_beside_the_service_is_used(tmp_path):
    path = service(tmp_path)
    (tmp_path / "client.py").write_text(
        "class Clerk:\n    def get(self, key): ...\n    def put(self, key, value): ...\n"
    )
    with pytest.raises(LoadError, match=r"client\.py: class Clerk has no method append"):
        load_peer(RAFT, kv=path)


def test_no_such_service():
    with pytest.raises(LoadError, match=r"no such file; KV must name a server\.py"):
        load_peer(RAFT, kv=ROOT / "kv" / "gone.py")
