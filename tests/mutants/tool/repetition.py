"""Replays minimized runs and scenarios on a peer, in a separate process, and reports the broken rule of each.

    python -m tests.mutants.tool.repetition RAFT [--kv KV] FILE ...

Prints a JSON list: for each FILE the ending, the rule, and whether it is exactly the recorded run.
"""

from __future__ import annotations

import argparse
import json
import sys
from dataclasses import replace
from pathlib import Path
from typing import Any

from labsim.choices import DefaultSource, OverridingSource
from raftlab.harness.launcher import PeerLauncher
from raftlab.harness.loader import load_peer
from raftlab.harness.options import KV, RACE, add_options
from raftlab.tools.selection import SCENARIO, load_tests, select
from raftlab.trace.choice_file import read_choices

SEED = 1


def repeat(file: Path, launcher: PeerLauncher) -> dict[str, Any]:
    from raftlab.harness.outcome import Ending
    from raftlab.harness.run import run_test
    from raftlab.scenarios.recorded_schedule import ScheduleRecording, make_schedule_test, record_operations

    digest = ""
    if file.suffix == SCENARIO:
        run = run_test(load_tests(file)[0], launcher, SEED)
    else:
        header, choices = read_choices(file)
        digest = header.digest
        if header.play is not None:
            test = make_schedule_test(header.play)
        else:
            test = record_operations(select([header.test])[0], ScheduleRecording())
        run = run_test(test, launcher, 0, choice_source=OverridingSource(DefaultSource(), choices))
    outcome = run.outcome()
    ending = outcome.ending if outcome.failed else Ending.PASSED
    return {"ending": ending, "rule": outcome.name, "same": run.digest == digest}


def main() -> int:
    parser = argparse.ArgumentParser()
    parser.add_argument("raft", type=Path)
    parser.add_argument("files", type=Path, nargs="+")
    add_options(parser.add_argument, replace(KV, default=None), RACE)
    args = parser.parse_args()
    launcher = load_peer(args.raft, kv=args.kv, race=args.race)
    print(json.dumps([repeat(file, launcher) for file in args.files]))
    return 0


if __name__ == "__main__":
    sys.exit(main())
