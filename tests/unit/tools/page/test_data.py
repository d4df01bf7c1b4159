"""The page's data agrees with the trace, and hostile text stays text. test_page.py has the tests in a browser."""

import json
import re
import zlib
from base64 import b64decode
from dataclasses import dataclass
from pathlib import Path

import pytest

from labsim import time
from raftlab.harness.loader import load_peer
from raftlab.harness.options import DEFAULT
from raftlab.harness.run import run_test
from raftlab.scenarios.collection import collect
from raftlab.tools.page.collapsed import COLLAPSED, SHOWN
from raftlab.tools.page.command import run_summary
from raftlab.tools.page.data import page_data
from raftlab.tools.page.fields import _fields_of, _flat, run_with_fields
from raftlab.tools.page.html import bundle, compressed, render_page
from raftlab.tools.page.wire import ROLES, UP
from raftlab.tools.selection import select
from raftlab.trace.events import ANSWER, MESSAGE_KINDS, SEND
from raftlab.trace.trace_file import read_trace, write_trace
from unit.tools.peers import ROOT, lab, make_peer


def unpacked(html):
    (data,) = re.findall(r'<script type="application/octet-stream" id="data">([^<]*)</script>', html)
    return json.loads(zlib.decompress(b64decode(data)))


@pytest.fixture(scope="module")
def launcher():
    return load_peer(DEFAULT)


@pytest.fixture(scope="module")
def snapshots(launcher):
    """A run with crashes, losses and snapshots, with what the peers held themselves."""
    (test,) = select(["test_snapshot_install_unreliable_crash_2d"])
    run, watch = run_with_fields(test, launcher, 5)
    assert run.error is None
    return run, watch


def last(changes, default=0):
    return changes[-1] if changes else default


def rebuilt(changes):
    """A log, from its changes."""
    base, entries = 0, []
    for _, new_base, _, keep, added in changes:
        kept = entries[max(new_base - base, 0) : max(keep - base, 0)]
        kept += [-1] * (keep - new_base - len(kept))
        numbers = [
            first + k if first >= 0 else -1
            for first, count in zip(added[::2], added[1::2], strict=True)
            for k in range(count)
        ]
        base, entries = new_base, kept + numbers
    return base, entries


def test_derived_state_matches_the_peers_fields(snapshots):
    run, watch = snapshots
    data = page_data(run.simulation.trace, {}, watch)
    for lane, state in enumerate(data["states"]):
        fields = data["fields"][lane]
        own = {name: data["texts"][last(changes)] for name, changes in fields["values"].items()}
        assert last(state["condition"]) & UP
        assert str(last(state["term"])) == own["current_term"]
        assert str(last(state["commit"])) == own["commit_index"]
        assert str(last(state["applied"])) == own["last_applied"]
        _, items = rebuilt(fields["lists"]["log"])
        base, entries = rebuilt(state["log"])
        told = [f"t{data['entries']['term'][n]} {data['texts'][data['entries']['text'][n]]}" for n in entries]
        # The peer keeps one entry that stands for what its snapshot has replaced.
        assert [data["texts"][item] for item in items[1:]] == told
        assert base > 0


def test_reading_fields_does_not_change_the_run(snapshots, launcher):
    run, _ = snapshots
    (test,) = select(["test_snapshot_install_unreliable_crash_2d"])
    assert run_test(test, launcher, 5).digest == run.digest


def test_field_change_names_the_running_line(snapshots):
    run, watch = snapshots
    data = page_data(run.simulation.trace, {}, watch)
    lines = {data["texts"][line] for line in data["fields"][0]["lines"][1::2]}
    assert all("raft.py:" in line for line in lines)
    assert any("persist" in line for line in lines)


def test_fields_in_slots_and_in_a_state_object_are_found():
    @dataclass(frozen=True, slots=True)
    class State:
        term: int
        log: tuple[str, ...] = ()

    class Base:
        __slots__ = ("me", "never_set")

    class Peer(Base):
        __slots__ = ("__dict__", "state")

    peer = Peer()
    peer.me, peer.state, peer.other = 1, State(3, ("x",)), [2]
    assert dict(_flat(_fields_of(peer))) == {"me": 1, "state.term": 3, "state.log": ("x",), "other": [2]}
    assert _fields_of(None) == {}


def test_a_saved_trace_gives_the_same_page(snapshots, tmp_path):
    run, _ = snapshots
    trace = run.simulation.trace
    write_trace(tmp_path / "run.jsonl", trace)
    assert page_data(read_trace(tmp_path / "run.jsonl").events, {}) == page_data(trace, {})


def test_the_data_is_at_most_a_third_of_the_traces_json(snapshots, tmp_path):
    run, watch = snapshots
    write_trace(tmp_path / "run.jsonl", run.simulation.trace)
    assert 3 * len(compressed(page_data(run.simulation.trace, {}, watch))) <= (tmp_path / "run.jsonl").stat().st_size


def test_only_repetitions_are_collapsed(snapshots):
    run, _ = snapshots
    trace = run.simulation.trace
    data = page_data(trace, {})
    events, calls = data["events"], data["calls"]
    assert {len(column) for column in events.values()} == {len(trace)}
    at_ns = 0
    for place, event in enumerate(trace):
        at_ns += events["time"][place]
        assert (at_ns, event.kind) == (event.at_ns, data["kinds"][events["kind"][place]])
        if event.kind in MESSAGE_KINDS:
            call = events["call"][place]
            assert calls["id"][call] == event.message
            assert data["lanes"][calls["from"][call]]["name"] == event.detail.source
        if event.kind == SEND:
            assert data["values"][calls["args"][events["call"][place]]]["term"] == event.detail.decode_args().term
        if event.kind == ANSWER:
            assert data["values"][calls["reply"][events["call"][place]]]["term"] == event.detail.decode_reply().term
        if events["shown"][place] == COLLAPSED and event.kind == SEND:
            first, end, told = data["folds"][events["fold"][place]]
            assert first <= place <= end and told
    assert events["shown"].count(SHOWN) > 100


def test_every_cause_is_earlier_and_of_the_same_message_or_peer(snapshots):
    run, _ = snapshots
    trace = run.simulation.trace
    causes = page_data(trace, {})["events"]["cause"]
    for place, back in enumerate(causes):
        if back:
            event, cause = trace[place], trace[place - back]
            assert event.message == cause.message or (event.node, event.at_ns) == (cause.node, cause.at_ns)
        else:
            assert trace[place].kind not in ("deliver", "answer", "reply")


def test_leader_is_shown_at_its_first_message(snapshots):
    run, _ = snapshots
    data = page_data(run.simulation.trace, {})
    for place, lane, text, role in data["became"]:
        wordings = data["texts"][text]
        assert ROLES[role][:4] in wordings[0] or ROLES[role] == "follower"
        if ROLES[role] == "leader":
            assert run.simulation.trace[place].node == data["lanes"][lane]["name"]


HOSTILE = "</script><img src=x onerror=\"document.title='owned'\"><!-- ]]> \u2028 @@DATA@@"
_IN_THE_PEER = f"""
from labsim import log
log("</script>", {HOSTILE!r} + chr(0xD800))
self.note = chr(0xD800) + {HOSTILE!r}
self.much = ["{"much " * 50}" * 40_000]
"""


def hostile_run(folder):
    """A peer that writes hostile things wherever it can."""

    @collect
    def test(make_config):
        cfg = make_config(servers=3)
        cfg.begin("Test (2B): hostile")
        cfg.one(HOSTILE, 3, retry=True)
        cfg.one("long " * 2_000_000, 3, retry=True)
        cfg.check_one_leader()
        time.sleep(0.3)  # each is looked at when something happens to it

    run, watch = run_with_fields(test, load_peer(make_peer(folder, _IN_THE_PEER)), 1)
    assert run.error is None
    return run, watch


def hostile_page(folder):
    run, watch = hostile_run(folder)
    told = run_summary(run, f"test {HOSTILE}", HOSTILE) | {"failed": True, "headline": HOSTILE, "evidence": [HOSTILE]}
    return render_page(page_data(run.simulation.trace, told, watch), HOSTILE)


def test_hostile_text_stays_text(tmp_path):
    html = hostile_page(tmp_path)
    html.encode("utf-8")  # no lone surrogate
    assert len(html) < 400_000
    # Of the lower-case tags, only the page's own.
    assert html.count("</script>") == 2
    assert "<img" not in html
    data = unpacked(html)
    texts = [text for told in data["texts"] for text in ([told] if isinstance(told, str) else told)]
    assert sum("onerror" in text for text in texts) >= 3  # a command, a log() line, a field
    assert any("\\ud800" in text for text in texts)
    assert max(map(len, texts)) <= 400


def test_the_modules_are_one_script_without_imports():
    script = bundle("main.js")
    assert "import {" not in script and "\nexport " not in script
    assert "</script" not in script.lower() and "innerHTML" not in script and "http" not in script


def test_the_command_writes_a_page(tmp_path, capsys):
    out = tmp_path / "pages" / "run.html"
    assert lab("page", "test_initial_election_2a", "--seed", 7, "--out", out) == 0
    assert capsys.readouterr().out == f"wrote {out}: passed\n"
    assert unpacked(out.read_text())["run"]["test"] == "test_initial_election_2a"


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        ([], "name either TEST or --trace FILE"),
        (["2a", "--seed", 1], "2a matches "),
        (["test_none"], "no test matches 'test_none'"),
        (
            ["test_initial_election_2a", "--fields", "--isolated"],
            "--fields is not supported with --isolated: ",
        ),
        (["--trace", "x", "--fields"], "--fields is not supported with --trace: "),
        (["--trace", "no/such/file"], "no/such/file: No such file or directory"),
    ],
)
def test_wrong_options_of_page_are_refused(arguments, said, capsys):
    assert lab("page", *arguments) == 2
    assert capsys.readouterr().err.startswith(f"lab page: {said}")


def test_unwritable_page_is_reported(tmp_path, capsys):
    (tmp_path / "file").write_text("")
    assert lab("page", "test_initial_election_2a", "--seed", 7, "--out", tmp_path / "file" / "x.html") == 2
    assert capsys.readouterr().err.startswith(f"lab page: {tmp_path / 'file' / 'x.html'}: ")


def test_docs_name_every_key():
    keys = re.findall(r'^  \["([^"]+)", ', (ROOT / "raftlab/tools/page/web/page.js").read_text(), re.MULTILINE)
    told = (Path(ROOT) / "docs/student/page.md").read_text()
    assert len(keys) > 10
    for key in keys:
        assert f"`{key.strip()}`" in told
