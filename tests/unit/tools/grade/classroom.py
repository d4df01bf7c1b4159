"""A class of 60 submissions to test the grader: 20 correct peers with trivial edits, 25 mutants, 15 hostile ones.

python tests/unit/tools/grade/classroom.py OUT, from the project's root, writes OUT/class, OUT/hidden and
OUT/expected.json, which has the expected score of each: "full", "less", "nothing". Then: lab grade OUT/class
--hidden OUT/hidden --out OUT/grades.
With a second argument, the folder of grades, it compares the scores instead.
"""

from __future__ import annotations

import csv
import io
import json
import sys
import tarfile
import zipfile
from pathlib import Path

import hostile

from tests.mutants.tool.mutants import load_mutants

CORRECT, MUTANTS = 20, 25
HOSTILE = (
    "endless_loop",
    "fork_bomb_unseen",
    "memory_hog",
    "much_output",
    "exit_zero",
    "exit_zero_later",
    "raises_in_import",
    "syntax_error",
    "patches_config",
    "patches_pytest",
    "answers_for_itself",
    "kills_everybody",
    "sleeps_unseen",
    "patches_now_and_then",
    "leaves_daemons",
)
HIDDEN = '''"""Hidden tests of a course, written like the public ones."""

from labsim import time


def test_agreement_after_the_leader_is_cut_off_twice_2b(make_config):
    cfg = make_config(servers=5)
    cfg.begin("Test (2B, hidden): the leader is cut off twice")
    cfg.one(1, 5, retry=True)
    for command in (2, 3):
        leader = cfg.check_one_leader()
        cfg.disconnect(leader)
        cfg.one(command, 4, retry=True)
        cfg.connect(leader)
    cfg.one(4, 5, retry=True)


def test_everybody_restarts_on_a_bad_network_2c(make_config):
    cfg = make_config(servers=3, unreliable=True)
    cfg.begin("Test (2C, hidden): everybody restarts, on a bad network")
    for command in range(1, 6):
        cfg.one(command, 3, retry=True)
        for i in range(3):
            cfg.crash1(i)
        for i in range(3):
            cfg.start1(i)
            cfg.connect(i)
        time.sleep(0.5)
    cfg.one(6, 3, retry=True)
'''


def write(out: Path) -> None:
    reference = Path("raft/raft.py").read_text()
    class_ = out / "class"
    class_.mkdir(parents=True)
    (out / "hidden").mkdir()
    (out / "hidden" / "hidden_tests.py").write_text(HIDDEN)
    expected = {}
    for i in range(CORRECT):
        name = f"correct{i:02}"
        _hand_in(class_, name, f"# Handed in by student {i}.\n" + "\n" * (i % 3) + reference, form=i % 4)
        expected[name] = "full"
    mutants = [
        m for m in load_mutants() if not m.correct and not m.of_service and not m.message_edits and not m.liveness
    ]
    for i in range(MUTANTS):
        mutant = mutants[i * len(mutants) // MUTANTS]
        name = f"mutant_{mutant.id}"
        _hand_in(class_, name, mutant.source(), form=i % 4)
        expected[name] = "less"
    peers = {peer.name: peer for peer in hostile.peers(reference)}
    for name in HOSTILE:
        (class_ / f"{name}.py").write_text(peers[name].source)
        expected[name] = "full" if peers[name].earns else "nothing"
    (out / "expected.json").write_text(json.dumps(expected, indent=1))


def _hand_in(class_: Path, name: str, source: str, *, form: int) -> None:
    """As a file, a folder, a zip or a tar."""
    if form == 0:
        (class_ / f"{name}.py").write_text(source)
    elif form == 1:
        (class_ / name / "raft").mkdir(parents=True)
        (class_ / name / "raft" / "raft.py").write_text(source)
    elif form == 2:
        with zipfile.ZipFile(class_ / f"{name}.zip", "w") as archive:
            archive.writestr("lab/raft/raft.py", source)
    else:
        with tarfile.open(class_ / f"{name}.tar.gz", "w:gz") as archive:
            member = tarfile.TarInfo("raft.py")
            member.size = len(source.encode())
            archive.addfile(member, io.BytesIO(source.encode()))


def compare(out: Path, grades: Path) -> int:
    expected = json.loads((out / "expected.json").read_text())
    wrong = 0
    with (grades / "scores.csv").open(newline="") as file:
        rows = {row["submission"]: row for row in csv.DictReader(file)}
    for name, want in expected.items():
        score, of = float(rows[name]["score"]), float(rows[name]["of"])
        got = "full" if score == of else "nothing" if score == 0 else "less"
        if got != want and not (want == "less" and got == "nothing"):
            wrong += 1
            print(f"{name}: {score:g} of {of:g}, expected {want}")
    print(f"{len(expected)} submissions, {wrong} not as expected")
    return 1 if wrong or len(rows) != len(expected) else 0


if __name__ == "__main__":
    if len(sys.argv) not in (2, 3):
        sys.exit(__doc__)
    where = Path(sys.argv[1])
    if len(sys.argv) == 3:
        sys.exit(compare(where, Path(sys.argv[2])))
    write(where)
