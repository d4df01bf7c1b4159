"""`lab timeline`: its rows agree with the trace and fit the width, and its filters work."""

import functools
import io
import re
from dataclasses import dataclass
from pathlib import Path

import pytest

from labsim import Event, log, time
from raft.messages import AppendEntriesArgs, AppendEntriesReply, RequestVoteArgs, RequestVoteReply
from raft.raft import Raft
from raftlab.harness.in_process import InProcessLauncher
from raftlab.harness.run import run_test
from raftlab.scenarios.collection import collect
from raftlab.tools.cli import main
from raftlab.tools.selection import load_tests
from raftlab.tools.timeline.command import TimelineError, print_timeline
from raftlab.tools.timeline.labels import answer, clean, request, to_ascii
from raftlab.tools.timeline.model import build_model
from raftlab.tools.timeline.rows import RowFilter
from raftlab.trace.events import DropReason, LogLine, PersistedState, StartResult
from raftlab.trace.trace_file import read_trace, write_trace

REFERENCE = InProcessLauncher(Raft)

ROOT = Path(__file__).parents[4]


@functools.cache
def trace_of(name, seed=7, launcher=REFERENCE):
    part = name.rpartition("_")[2]
    files = [ROOT / "tests" / f"test_{part}{more}.py" for more in ("", "_extra")]
    function = next(test for file in files for test in load_tests(file) if test.name == name)
    return run_test(function, launcher, seed).simulation.trace


def draw(events, **options):
    options.setdefault("width", 120)
    file = io.StringIO()
    print_timeline(events, file=file, **options)
    return file.getvalue()


class Terminal(io.StringIO):
    encoding = "utf-8"

    def isatty(self):
        return True


def texts(model, peer):
    return [said.texts[0] for row in model.rows for said in row.cells.get(peer, ())]


# ---- a run made by hand ------------------------------------------------------------------------------------------


class Call:
    """What the timeline asks of a labrpc.Message."""

    def __init__(self, id_, source, target, args):
        self.id, self.source, self.target = id_, str(source), str(target)
        self.method_name = {RequestVoteArgs: "request_vote", AppendEntriesArgs: "append_entries"}[type(args)]
        self.rpc = self.service_method = f"Raft.{self.method_name}"
        self.reply = None
        self.decode_args = lambda: args

    def decode_reply(self):
        return self.reply


class ByHand:
    """Events as the network and the tester emit them."""

    def __init__(self, peers=3):
        self.events = []
        self._ids = 0
        self.at_ms = 0
        for peer in range(peers):
            self.add("boot", str(peer))
        for peer in range(peers):
            self.add("connect", str(peer))

    def add(self, kind, node="", detail=None, message=0, note=""):
        incarnation = 1 if node else 0
        self.events.append(Event(self.at_ms * 1_000_000, kind, node, incarnation, message, detail, note))

    def send(self, source, target, args):
        self._ids += 1
        message = Call(self._ids, source, target, args)
        self.add("send", str(source), message, self._ids)
        return message

    def event(self, kind, message, note=""):
        node = {"deliver": message.target, "answer": message.target, "reply": message.source}.get(kind, "")
        self.add(kind, node, message, message.id, note)

    def call(self, source, target, args, reply):
        message = self.send(source, target, args)
        message.reply = reply
        for kind in ("deliver", "answer", "reply"):
            self.event(kind, message)
        return message


def small_run():
    run = ByHand()
    run.add("phase", detail="Test: by hand")
    run.at_ms = 100
    run.add("persist", "0", PersistedState(b"x" * 9, b""))
    run.call(0, 1, RequestVoteArgs(1, 0, 0, 0), RequestVoteReply(1, True))
    lost = run.send(0, 2, RequestVoteArgs(1, 0, 0, 0))
    run.event("drop", lost, DropReason.LOST_REQUEST)
    for ms in (100, 200, 300, 400):
        run.at_ms = ms
        for peer in (1, 2):
            run.call(0, peer, AppendEntriesArgs(1, 0, 0, 0, [], 0), AppendEntriesReply(1, True))
    run.at_ms = 450
    run.add("disconnect", "0")
    run.add("crash", "0")
    run.at_ms = 500
    run.call(2, 1, RequestVoteArgs(2, 2, 0, 0), RequestVoteReply(3, False))
    run.add("log", "1", LogLine("vote", "no"))
    return run.events


def test_cut_links_end_with_their_cluster():
    run = ByHand()
    run.add("partition", detail=[["0"], ["1", "2"]])
    run.add("cluster", detail=3)
    run.add("log", "0", LogLine("vote", "no"))
    rows = build_model(run.events).rows
    assert rows[-2].marks["0"].cut
    assert not rows[-1].marks["0"].cut


def test_a_small_run_line_by_line():
    assert draw(small_run(), width=100).splitlines() == [
        "L leader  C candidate  | follower  lc: disconnected   t3 term 3   4/2 index 4 of term 2",
        "   time   peer 0                         peer 1                         peer 2",
        " 0.0000 -- peers 0, 1, 2 start " + "-" * 68,
        "        == Test: by hand " + "=" * 74,
        " 0.1000 C candidate in term 1 + saved  |                              |",
        "        C ->1,2 vote t1 last 0/0       | granted                      | x lost request",
        "        L leader of term 1             |                              |",
        "        L ->1,2 heartbeat t1 0/0 c0    | ok                           | ok",
        " 0.2000 L ... 3 heartbeats in 0.2 s    |                              |",
        " 0.4500 -- peer 0 crashes " + "-" * 73,
        " 0.5000                                |                              C candidate in term 2",
        "                                       | denied, is at t3             C ->1 vote t2 last 0/0",
        "                                       |                              | follows in term 3",
        "                                       | [vote] no                    |",
        "53 events; 6 repetitions collapsed; --all shows every event, with message numbers; topics from log(): vote",
    ]


def test_all_shows_each_event_in_order():
    events = small_run()
    model = build_model(events, RowFilter(everything=True))
    roles = [row for row in model.rows for cell in row.cells.values() for said in cell if said.tone in ROLES]
    banners = [row for row in model.rows if row.banner]
    # Booting three peers is one banner, and so is connecting them.
    assert len(model.rows) == len(events) - 2 - 2 + len(roles)
    assert [row.banner for row in banners][:2] == ["peers 0, 1, 2 start", "peers 0, 1, 2 are reconnected"]
    assert texts(model, "0")[:8] == [
        "saved 9 B",
        "candidate in term 1",
        "→1 vote t1 last 0/0 #1",
        "←1 granted #1",
        "→2 vote t1 last 0/0 #2",
        "✗2 lost request #2",
        "leader of term 1",
        "→1 heartbeat t1 prev 0/0 c0 #3",
    ]


ROLES = ("leader", "candidate", "follower")


def test_a_stale_leader_that_is_refused_becomes_a_follower():
    run = ByHand()
    run.call(0, 1, AppendEntriesArgs(1, 0, 0, 0, [], 0), AppendEntriesReply(1, True))
    run.at_ms = 10
    run.call(0, 1, AppendEntriesArgs(1, 0, 0, 0, [], 0), AppendEntriesReply(4, False))
    model = build_model(run.events)
    assert model.rows[-1].marks["0"].role == "follower"
    assert "follows in term 4" in texts(model, "0")
    assert "no, is at t4" in texts(model, "1")


def test_a_leader_that_votes_in_a_newer_term_follows_it():
    run = ByHand()
    run.call(0, 1, AppendEntriesArgs(1, 0, 0, 0, [], 0), AppendEntriesReply(1, True))
    run.at_ms = 10
    run.call(1, 0, RequestVoteArgs(2, 1, 0, 0), RequestVoteReply(2, True))
    model = build_model(run.events)
    assert texts(model, "0")[-2:] == ["granted", "follows in term 2"]
    assert model.rows[-1].marks["0"].role == "follower"


def test_a_leader_whose_vote_request_is_late_still_leads():
    run = ByHand()
    run.at_ms = 100
    run.call(0, 1, RequestVoteArgs(1, 0, 0, 0), RequestVoteReply(1, True))
    run.at_ms = 110
    run.call(0, 1, AppendEntriesArgs(1, 0, 0, 0, [], 0), AppendEntriesReply(1, True))
    run.call(0, 2, RequestVoteArgs(1, 0, 0, 0), RequestVoteReply(1, True))
    model = build_model(run.events)
    roles = [text for text in texts(model, "0") if text.startswith(("leader", "candidate"))]
    assert roles == ["candidate in term 1", "leader of term 1"]
    assert model.rows[-1].marks["0"].role == "leader"
    assert "→2 vote t1 last 0/0" in texts(model, "0")
    # A new term is a new campaign.
    run.call(0, 2, RequestVoteArgs(2, 0, 0, 0), RequestVoteReply(2, True))
    assert "candidate in term 2" in texts(build_model(run.events), "0")


def test_a_save_that_has_only_begun_is_not_called_saved():
    run = ByHand()
    run.at_ms = 100
    run.add("saving", "0", 1)
    run.call(0, 1, RequestVoteArgs(1, 0, 0, 0), RequestVoteReply(1, True))
    assert texts(build_model(run.events), "0") == ["begins to save", "candidate in term 1", "→1 vote t1 last 0/0"]


def test_slow_start_is_shown_when_it_returns():
    run = ByHand()
    run.at_ms = 100
    run.add("start", "0", "x")
    run.add("saving", "0", 1)
    run.at_ms = 105
    run.add("persist", "0", PersistedState(b"x" * 9, b""))
    run.add("started", "0", StartResult("x", 1, 1, True))
    rows = build_model(run.events).rows
    assert [row.at_ns for row in rows] == sorted(row.at_ns for row in rows)
    told = texts(build_model(run.events), "0")
    assert told.index("begins to save") < told.index("start(x) ⇒ index 1 t1")


@pytest.mark.parametrize("name", ["test_snapshot_slow_disks_2d", "test_slow_disks_2c"])
def test_rows_are_in_order_on_slow_disks(name):
    rows = build_model(trace_of(name)).rows
    assert [row.at_ns for row in rows] == sorted(row.at_ns for row in rows)


@dataclass
class PreVoteReply:
    term: int
    granted: bool


def test_reply_to_own_rpc_fits_a_narrow_column():
    for granted, told in ((True, "t3 granted"), (False, "t3 not granted")):
        wordings = answer("pre_vote", None, PreVoteReply(3, granted))[1]
        assert wordings == (f"term=3 granted={granted}", told)
    assert answer("ping", None, None)[1] == ("answered",)
    assert request("pre_vote", RequestVoteArgs(4, 1, 0, 0))[1] == "pre_vote t4"


def test_candidate_follows_the_leader_of_its_term():
    run = ByHand()
    run.call(0, 1, RequestVoteArgs(1, 0, 0, 0), RequestVoteReply(1, False))
    run.at_ms = 10
    run.call(2, 0, AppendEntriesArgs(1, 2, 0, 0, [], 0), AppendEntriesReply(1, True))
    assert build_model(run.events).rows[-1].marks["0"].role == "follower"


@pytest.mark.parametrize("late", [False, True])
def test_late_request_and_late_reply_have_rows(late):
    run = ByHand()
    message = run.send(0, 1, RequestVoteArgs(3, 0, 7, 2))
    message.reply = RequestVoteReply(3, True)
    run.at_ms = 50 if late else 2
    run.event("deliver", message)
    run.add("persist", "1", PersistedState(b"", b""))
    run.event("answer", message)
    run.at_ms = 90 if late else 4
    run.event("reply", message)
    model = build_model(run.events)
    rows = [
        (row.at_ns // 10**6, peer, said.texts[0]) for row in model.rows for peer, c in row.cells.items() for said in c
    ]
    assert rows == [
        (0, "0", "candidate in term 3"),
        (0, "0", "→1 vote t3 last 7/2"),
        *(
            [(50, "1", "←0 vote t3 last 7/2 ⇒ granted · saved"), (90, "0", "←1 granted")]
            if late
            else [(0, "1", ""), (0, "1", "granted · saved")]  # beside the request, not beside the new role
        ),
    ]


def test_lost_reply_is_shown_at_its_sender():
    run = ByHand()
    message = run.send(0, 1, AppendEntriesArgs(1, 0, 0, 0, [], 0))
    message.reply = AppendEntriesReply(1, True)
    run.event("deliver", message)
    run.event("answer", message)
    run.event("drop", message, DropReason.LOST_REPLY)
    assert "ok ✗ lost reply" in texts(build_model(run.events), "1")


def test_unanswered_request_is_not_ok():
    run = ByHand()
    message = run.send(0, 1, AppendEntriesArgs(1, 0, 0, 0, [], 0))
    run.event("deliver", message)
    run.at_ms = 20
    run.add("crash", "1")
    run.event("drop", message, DropReason.SERVER_GONE)
    model = build_model(run.events)
    assert texts(model, "1") == ["←0 heartbeat t1 prev 0/0 c0"]
    assert "✗1 server gone" in texts(model, "0")


# ---- real runs -----------------------------------------------------------------------------------------------------


def test_roles_match_the_peers():
    seen = []

    @collect
    def test(make_config):
        cfg = make_config(servers=5)
        for _ in range(4):
            leader = cfg.check_one_leader()
            cfg.crash1(leader)
            time.sleep(0.001)
            cfg.check_one_leader()
            cfg.restart(leader)
            cfg.check_one_leader()
            time.sleep(0.3)
            seen.append((cfg._runtime.now, {str(i): cfg.get_state(i)[1] for i in range(5)}))

    run = run_test(test, REFERENCE, 5)
    assert run.error is None
    rows = build_model(run.simulation.trace, RowFilter(everything=True)).rows
    for now_s, leads in seen:
        marks = [row for row in rows if row.at_ns <= now_s * 1e9][-1].marks
        assert {peer: mark.role == "leader" for peer, mark in marks.items()} == leads


def test_disconnected_and_down_are_marked():
    seen = {}

    @collect
    def test(make_config):
        cfg = make_config(servers=3)
        leader = cfg.check_one_leader()
        cfg.disconnect(leader)
        other = cfg.others(leader)[0]
        cfg.crash1(other)
        time.sleep(0.5)
        seen.update(leader=str(leader), other=str(other))

    run = run_test(test, REFERENCE, 5)
    marks = build_model(run.simulation.trace).rows[-1].marks
    assert marks[seen["leader"]] == ("leader", True)
    assert marks[seen["other"]].role == "down"


@pytest.mark.parametrize(
    "name", ["test_reelection_2a", "test_backup_2b", "test_figure8_2c", "test_snapshot_install_2d"]
)
def test_every_call_is_shown_or_counted(name):
    events = trace_of(name)
    model = build_model(events)
    sends = sum(event.kind == "send" for event in events)
    shown = 0
    for row in model.rows:
        for peer, cell in row.cells.items():
            for said in cell:
                found = re.match(r"→(\S+) ", said.texts[0])
                if found and said.tone in ("vote", "append", "snapshot"):
                    others = len(model.peers) - 1
                    shown += others if found[1] == "all" else len(found[1].split(","))
                assert peer in model.peers
    refused = sum(event.kind == "started" and not event.detail.is_leader for event in events)
    counted = model.collapsed
    assert sends <= shown + counted <= sends + refused


@pytest.mark.parametrize("name", ["test_initial_election_2a", "test_many_elections_2a", "test_fail_no_agree_2b"])
@pytest.mark.parametrize("width", [80, 100, 120, 200])
@pytest.mark.parametrize("everything", [False, True])
def test_no_line_is_wider_than_asked(name, width, everything):
    text = draw(trace_of(name), width=width, everything=everything)
    table = text.splitlines()[:-1]
    assert max(map(len, table)) <= width
    assert all(line == line.rstrip() for line in table)
    assert len(table) >= 9


def test_heartbeats_are_collapsed():
    events = trace_of("test_initial_election_2a")
    lines = draw(events).splitlines()
    assert len(lines) < 25 < sum(event.kind == "send" for event in events) / 2
    assert re.search(r"\.\.\. \d\d heartbeats in \d\.\d s", "\n".join(lines))
    assert len(draw(events, everything=True).splitlines()) > len(events) - 10


def test_piped_output_is_ascii_without_color():
    text = draw(trace_of("test_rejoin_2b"))
    assert text.isascii() and "\x1b" not in text


def test_terminal_output_has_color_unless_disabled(monkeypatch):
    events = trace_of("test_reelection_2a")
    monkeypatch.setenv("TERM", "xterm-256color")
    monkeypatch.delenv("NO_COLOR", raising=False)
    print_timeline(events, file=(coloured := Terminal()), width=120)
    monkeypatch.setenv("NO_COLOR", "1")
    print_timeline(events, file=(plain := Terminal()), width=120)
    assert "\x1b[" in coloured.getvalue() and "█" in coloured.getvalue()
    assert not re.search("\x1b\\[[0-9;]*3[0-9]", plain.getvalue()) and "█" in plain.getvalue()
    stripped = [re.sub("\x1b\\[[0-9;]*m", "", t.getvalue()) for t in (coloured, plain)]
    assert stripped[0] == stripped[1]


def test_a_saved_trace_reads_like_the_run_itself(tmp_path):
    for name in ("test_reelection_2a", "test_rpc_bytes_2b", "test_persist1_2c", "test_snapshot_install_unreliable_2d"):
        events = trace_of(name)
        write_trace(tmp_path / "t", events)
        for everything in (False, True):
            assert draw(read_trace(tmp_path / "t").events, everything=everything) == draw(events, everything=everything)


# ---- filters -------------------------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def rejoin():
    return trace_of("test_rejoin_2b")


def test_only_some_peers(rejoin):
    model = build_model(rejoin, RowFilter(peers=frozenset("1")))
    assert model.peers == ["1"]
    assert all(set(row.cells) == {"1"} for row in model.rows if not row.banner)
    # Its callers have no column, so the request is told where it arrived.
    assert any(text.startswith("←2 append t1 prev 0/0") and "⇒ ok · saved" in text for text in texts(model, "1"))


def test_only_some_topics(rejoin):
    elections = build_model(rejoin, RowFilter(topics=frozenset(["election"])))
    tones = {said.tone for row in elections.rows for cell in row.cells.values() for said in cell}
    assert tones <= {*ROLES, "vote", "good", "bad", "lost", "folded", ""}
    assert {"leader", "candidate", "vote"} <= tones
    applied = build_model(rejoin, RowFilter(topics=frozenset(["apply"])))
    assert {said.tone for row in applied.rows for cell in row.cells.values() for said in cell} == {"apply"}
    persisted = build_model(rejoin, RowFilter(topics=frozenset(["persist"])))
    saved = [text for peer in "012" for text in texts(persisted, peer)]
    assert len(saved) == sum(event.kind == "persist" for event in rejoin)
    network = build_model(rejoin, RowFilter(topics=frozenset(["network"])))
    assert all(
        "✗" in s.texts[0] or "too late" in s.texts[0] or s.tone in ("vote", "append", "folded", "")
        for r in network.rows
        for c in r.cells.values()
        for s in c
    )


def test_only_some_time(rejoin):
    model = build_model(rejoin, RowFilter(from_ns=1_000_000_000, to_ns=2_000_000_000))
    assert model.rows
    assert all(1_000_000_000 <= row.at_ns <= 2_000_000_000 for row in model.rows)
    # Roles are known from before.
    assert "leader" in {mark.role for mark in model.rows[0].marks.values()}


def test_only_one_term(rejoin):
    text = draw(rejoin, term=2)
    assert "leader of term 2" in text and "append t2" in text
    # An answer to a message of the term may tell of a later one.
    assert not re.search(r"(?<!is at )\bt[13]\b", text.split("\n", 1)[1])


def test_one_message_and_its_reply(rejoin):
    some = next(event.message for event in rejoin if event.kind == "answer")
    text = draw(rejoin, follow=some, legend=False)
    rows = [line for line in text.splitlines()[1:-1] if "--" not in line]
    assert len(rows) == sum(event.message == some for event in rejoin) == 4
    assert all(f"#{some}" in row for row in rows)


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"peers": [9]}, "--peer must be one of 0, 1, 2, got 9"),
        (
            {"topics": ["elections"]},
            "--topic must be one of election, log, snapshot, persist, apply, network, "
            "client, preemption, got 'elections'",
        ),
        ({"follow": 99999}, "--follow must be a message number from 1 to "),
    ],
)
def test_unknown_filter_value_lists_the_known_ones(rejoin, options, message):
    with pytest.raises(TimelineError, match=re.escape(message)):
        draw(rejoin, **options)


def test_filters_without_a_match_are_reported(rejoin):
    assert draw(rejoin, from_s=1000).splitlines()[-1].endswith("no event matches the filters")
    assert "0 events" in draw([])


def test_long_run_omits_its_middle(rejoin):
    rows = len(build_model(rejoin).rows)
    whole = draw(rejoin, legend=False).splitlines()
    text = draw(rejoin, max_rows=10, ending="FAILED: for a reason", legend=False).splitlines()
    assert text[:3] == whole[:3]
    (left_out,) = [line for line in text if f"== {rows - 10:,} rows, " in line and "are omitted here; " in line]
    assert "; lab timeline shows them all ==" in left_out
    assert text[-3].split() == whole[-2].split() and "-- FAILED: for a reason -" in text[-2]
    assert draw(rejoin, max_rows=rows, legend=False).splitlines() == whole


def test_a_long_failure_is_wrapped_at_the_end_of_the_table(rejoin):
    words = " ".join(["FAILED: what is wrong", *["and what is not"] * 12, "and the fix"])
    text = draw(rejoin, max_rows=4, ending=words, legend=False)
    assert words in " ".join(text.replace("-", "").split())
    assert max(map(len, text.splitlines()[:-1])) <= 120


class Talkative(Raft):
    def _become_leader(self):
        log("office", "I lead\nterm %d \x1b[31m!", self.current_term)
        super()._become_leader()


def test_log_lines_appear_beside_events():
    events = trace_of("test_initial_election_2a", launcher=InProcessLauncher(Talkative))
    text = draw(events)
    assert "[office] I lead \\ term 1 +[31m!" in text
    only = build_model(events, RowFilter(topics=frozenset(["office"])))
    assert [s.tone for row in only.rows for cell in row.cells.values() for s in cell] == ["student"]
    assert text.splitlines()[-1].endswith("topics from log(): office")


def test_control_characters_do_not_reach_the_terminal():
    assert clean("a\x1b[2Jb\x07\r\nc\td") == "a·[2Jb· ↵ c d"
    assert to_ascii("→1 … é") == "->1 ... \\xe9"


# ---- the command -----------------------------------------------------------------------------------------------------


@pytest.fixture
def lab(monkeypatch, capsys):
    monkeypatch.chdir(ROOT)

    def run(*arguments):
        code = main(["timeline", *map(str, arguments)])
        captured = capsys.readouterr()
        return code, captured.out, captured.err

    return run


def test_the_command_runs_a_test_and_shows_it(lab):
    code, out, _ = lab("test_initial_election_2a", "--seed", 7, "--width", 100)
    assert code == 0
    assert out.startswith("test_initial_election_2a  seed 7  passed, ")
    assert "leader of term 1" in out
    assert lab("test_initial_election_2a", "--seed", 7, "--width", 100)[1] == out


def test_the_command_saves_and_reads_a_trace(lab, tmp_path):
    file = tmp_path / "run.jsonl"
    assert lab("test_rejoin_2b", "--seed", 7, "--save", file) == (0, "", f"wrote {file}\n")
    _, live, _ = lab("test_rejoin_2b", "--seed", 7)
    code, saved, _ = lab("--trace", file)
    assert code == 0
    assert saved.splitlines()[0] == "test_rejoin_2b  seed 7"
    assert saved.splitlines()[1:] == live.splitlines()[1:]


def test_the_command_writes_shiviz_and_svg(lab, tmp_path):
    assert lab("test_rejoin_2b", "--seed", 7, "--shiviz", tmp_path / "s")[0] == 0
    assert (
        (tmp_path / "s").read_text().startswith("tester {" if "tester" in (tmp_path / "s").read_text()[:8] else "peer")
    )
    assert lab("test_rejoin_2b", "--seed", 7, "--unicode", "--svg", tmp_path / "p.svg")[0] == 0
    assert "<svg" in (tmp_path / "p.svg").read_text() and "leader" in (tmp_path / "p.svg").read_text()


def test_timeline_of_a_failed_test_ends_with_the_failure(lab, tmp_path):
    file = tmp_path / "test_own.py"
    file.write_text("def test_own(make_config):\n    make_config(servers=3).fail('as expected')\n")
    code, out, _ = lab("test_own", "--file", file, "--seed", 1)
    assert code == 0
    assert "failed after 0.0 s" in out.splitlines()[0]
    assert "-- FAILED: as expected -" in out.splitlines()[-2]


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ([], "name exactly one of TEST, --trace FILE and --import FILE"),
        (["x", "--trace", "y"], "name exactly one of "),
        (["test_nothing"], "no test matches 'test_nothing'"),
        (["2a"], " tests; name one: test_initial_election_2a, "),
        (["--trace", "/nowhere"], "/nowhere: No such file or directory"),
        (["--import", "/nowhere"], "/nowhere: No such file or directory"),
        (["test_initial_election_2a", "--width", "10"], "--width must be at least 40, got 10"),
        (["test_initial_election_2a", "--raft", "/nowhere.py"], "/nowhere.py: no such file"),
        (["test_initial_election_2a", "--save", "/nowhere/x"], "/nowhere/x: No such file or directory"),
        (
            ["--import", "/nowhere", "--topic", "election"],
            "--topic needs a trace, so it is not supported with --import",
        ),
    ],
)
def test_mistakes_are_one_line_and_exit_2(lab, arguments, message):
    code, out, err = lab(*arguments)
    assert (code, out) == (2, "")
    assert err.startswith("lab timeline: ") and message in err and err.count("\n") == 1
