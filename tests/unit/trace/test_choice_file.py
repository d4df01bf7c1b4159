"""A run replays from its recorded choices, and changing one choice keeps the others."""

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from labrpc.conditions import Transit
from labsim.choices import Choices, DefaultSource, OverridingSource, RecordingSource, SeededSource
from raftlab.harness.loader import load_peer
from raftlab.harness.options import DEFAULT, DEFAULT_KV
from raftlab.harness.run import run_test
from raftlab.scenarios.collection import collect
from raftlab.tools.selection import select
from raftlab.trace.choice_file import ChoiceFileError, read_choices, write_choices
from unit.soak import SOAK

SEED = 3
ROOT = Path(__file__).parents[3]


def run(name, choice_source):
    (test,) = select([name], [])
    return run_test(test, load_peer(DEFAULT), 0, choice_source=choice_source)


# What the other process does: every file of choices in a folder once more, and its digest.
REPLAY_ALL = """
import sys
from pathlib import Path
from labsim.choices import DefaultSource, OverridingSource
from raftlab.trace.choice_file import read_choices
from raftlab.harness.loader import load_peer
from raftlab.harness.options import DEFAULT, DEFAULT_KV
from raftlab.harness.run import run_test
from raftlab.tools.selection import select

peer = load_peer(DEFAULT, kv=DEFAULT_KV)
tests = {test.name: test for test in select([], [])}
for path in sorted(Path(sys.argv[1]).iterdir()):
    header, choices = read_choices(path)
    run = run_test(tests[header.test], peer, 0, choice_source=OverridingSource(DefaultSource(), choices))
    print(header.test, run.digest, run.error)
"""


def test_every_test_replays_from_its_choices(tmp_path):
    """Every ninth, unless this is a soak."""
    expected = []
    peer = load_peer(DEFAULT, kv=DEFAULT_KV)
    tests = sorted(select([], []), key=lambda test: test.name)[:: 1 if SOAK else 9]
    for test in tests:
        recording = RecordingSource(SeededSource(SEED))
        done = run_test(test, peer, 0, choice_source=recording)
        write_choices(tmp_path / test.name, recording.choices, test=test.name, digest=done.digest)
        expected.append(f"{test.name} {done.digest} None")
    assert {name.split()[0][-2:] for name in expected} == {"2a", "2b", "2c", "2d", "3a", "3b"}
    told = subprocess.run(
        [sys.executable, "-c", REPLAY_ALL, str(tmp_path)],
        cwd=ROOT,
        env={**os.environ, "PYTHONHASHSEED": "12345"},
        capture_output=True,
        text=True,
        check=True,
    ).stdout.splitlines()
    assert told == expected


def transits(choices, place_kinds=("request", "reply")):
    return {key: value for key, value in choices.chosen.items() if key[0][0] in place_kinds}


@pytest.mark.parametrize(
    "name", ["test_figure8_unreliable_2c", "test_backup_2b", "test_snapshot_install_unreliable_2d"]
)
def test_losing_one_message_keeps_all_other_transits(name):
    recording = RecordingSource(SeededSource(SEED))
    before = run(name, recording)
    requests = transits(recording.choices, ("request",))
    # One in the middle of the run that arrives.
    key = next(k for k in list(requests)[len(requests) // 3 :] if not requests[k].lost and "append" in k[0][2])
    choices = Choices()
    choices.chosen[key] = Transit(requests[key].delay_ns, lost=True)
    changed = RecordingSource(OverridingSource(SeededSource(SEED), choices))
    after = run(name, changed)
    assert after.error is None
    assert after.digest != before.digest

    there, here = transits(recording.choices), transits(changed.choices)
    assert here[key].lost
    common = (there.keys() & here.keys()) - {key}
    assert {k for k in common if there[k] != here[k]} <= _under_other_conditions(before, after, common)
    # Another leader may come of it, and with it other messages.
    assert len(common) > len(there) / 3

    # The two runs are one, event by event, until that message is lost and not delivered.
    told = [[(e.at_ns, e.kind, e.node, e.message, e.note) for e in r.simulation.trace] for r in (before, after)]
    parted = next(i for i, (a, b) in enumerate(zip(*told, strict=False)) if a != b)
    first = after.simulation.trace[parted]
    assert first.kind == "drop"
    assert (first.detail.source, first.detail.target) == tuple(key[0][1].split("->"))
    assert first.detail.ordinal == key[1]


def _under_other_conditions(before, after, keys):
    """The messages that went under way in one run while the tester had made the network another one."""
    conditions = []
    for done in (before, after):
        at = {}
        state = ()
        for event in done.simulation.trace:
            if event.kind in ("reliable", "latency", "link", "partition", "duplicates", "long_reordering"):
                state = (*state, event.kind, repr(event.detail))
            elif event.kind in ("send", "answer"):
                kind = "request" if event.kind == "send" else "reply"
                message = event.detail
                at[((kind, f"{message.source}->{message.target}", message.service_method), message.ordinal)] = state
        conditions.append(at)
    return {key for key in keys if conditions[0].get(key) != conditions[1].get(key)}


def test_two_clusters_in_one_test_share_no_choice():
    """Both have a link from 0 to 1, and a first save of server 0."""

    @collect
    def two(make_config):
        cfg = make_config(servers=3)
        cfg.slow_disks(0, 10)
        cfg.one("x", 3, retry=True)
        cfg = make_config(servers=3, unreliable=True)
        cfg.slow_disks(5, 20)
        cfg.one("y", 3, retry=True)

    launcher = load_peer(DEFAULT)
    for seed in range(4):
        recording = RecordingSource(SeededSource(seed))
        recorded = run_test(two, launcher, 0, choice_source=recording)
        repeated = run_test(two, launcher, 0, choice_source=OverridingSource(DefaultSource(), recording.choices))
        assert repeated.digest == recorded.digest
        assert recorded.error is None


def test_removed_line_makes_the_choice_the_default(tmp_path):
    recording = RecordingSource(SeededSource(SEED))
    run("test_basic_agree_2b", recording)
    path = tmp_path / "choices"
    write_choices(path, recording.choices, test="test_basic_agree_2b", digest="")
    lines = path.read_text().splitlines()
    number = next(i for i, line in enumerate(lines) if "append_entries" in line)
    told = json.loads(lines.pop(number))
    path.write_text("\n".join(lines))
    _, choices = read_choices(path)
    key = (tuple(told["place"]), told["ordinal"])
    again = RecordingSource(OverridingSource(DefaultSource(), choices))
    assert run("test_basic_agree_2b", again).error is None
    assert key in recording.choices.chosen
    assert key not in again.choices.chosen


def test_reference_passes_with_default_choices():
    for name in ("test_initial_election_2a", "test_basic_agree_2b", "test_persist1_2c", "test_snapshot_basic_2d"):
        assert run(name, DefaultSource()).error is None, name


def test_where_a_crash_falls_is_a_choice():
    asked = []

    class Asked(SeededSource):
        def choose(self, place, ordinal, distribution):
            value = super().choose(place, ordinal, distribution)
            if place[0] == "crash":
                asked.append((place, ordinal, value))
            return value

    before = run("test_crash_after_save_2c", Asked(SEED))
    assert asked, "somebody arms a crash"
    place, ordinal, nth = asked[0]
    choices = Choices()
    choices.chosen[place, ordinal] = nth + 1
    after = run("test_crash_after_save_2c", OverridingSource(SeededSource(SEED), choices))
    armed = [
        next(e.detail for e in done.simulation.trace if e.kind == "crash_at" and e.node == place[1])
        for done in (before, after)
    ]
    assert [point.nth for point in armed] == [nth, nth + 1]


@pytest.mark.parametrize(
    "value", [{"delay_ns": -500_000_000}, {"delay_ns": 2_000_000, "again_ns": -5}, {"delay_ns": 1e400}, -1, None]
)
def test_no_choice_turns_the_clock_back(value):
    @collect
    def test(make_config):
        cfg = make_config(servers=3)
        cfg.slow_disks(0, 10)
        cfg.one("x", 3, retry=True)

    choices, places = Choices(), [("save", str(i), "1") for i in range(3)]
    for source in range(3):
        for target in range(3):
            for kind in ("request", "reply", "no reply"):
                places += [(kind, f"{source}->{target}", f"Raft.{m}") for m in ("request_vote", "append_entries")]
    for place in places:
        for ordinal in range(1, 100):
            choices.chosen[place, ordinal] = value
    done = run_test(test, load_peer(DEFAULT), 0, choice_source=OverridingSource(DefaultSource(), choices))
    assert done.error is None
    at_ns = [event.at_ns for event in done.simulation.trace]
    assert at_ns == sorted(at_ns)


DEEP = "[" * 20_000 + "]" * 20_000


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("", ":1: not a file of choices"),
        ("{}", ":1: not a file of choices"),
        ('{"format":"raftlab choices","version":9,"test":"t"}', ":1: version 9 of the format; this program reads 2"),
        ('{"format":"raftlab choices","version":2,"test":"t"}\n{"place":["node"]}', ":2: not a choice: "),
        ('{"format":"raftlab choices","version":2,"test":"t"}\n\n{"at_ns":1,"nth":"x","task":"t"}', ":3: not a "),
        ('{"format":"raftlab choices","version":2,"test":"t"}\nnonsense', ":2: not a choice: "),
        (f'{{"format":"raftlab choices","version":2,"test":"t","x":{DEEP}}}', ":1: not a file of choices"),
        (
            f'{{"format":"raftlab choices","version":2,"test":"t"}}\n{{"place":[],"ordinal":1,"value":{DEEP}}}',
            ":2: not a choice: ",
        ),
    ],
)
def test_a_damaged_file_is_one_error_with_its_line(tmp_path, text, said):
    path = tmp_path / "choices"
    path.write_text(text)
    with pytest.raises(ChoiceFileError) as raised:
        read_choices(path)
    assert str(raised.value).startswith(f"{path}{said}")


def test_missing_file_is_an_error(tmp_path):
    with pytest.raises(ChoiceFileError, match="No such file"):
        read_choices(tmp_path / "none")
