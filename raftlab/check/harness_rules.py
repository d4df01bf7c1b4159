"""Rules that are kept where things happen, by the services and by the tester, and not read off the trace.

So they hold on real threads too, where there is no trace. They are told, counted and listed like all the others.
"""

from __future__ import annotations

from typing import NamedTuple


class HarnessRule(NamedTuple):
    name: str
    title: str
    section: str
    by: str  # who keeps it: "service" or "tester"; "race": with --race, raftlab/races
    is_omission: bool = False  # as of a Rule


STATE_MACHINE_SAFETY = HarnessRule(
    "state-machine-safety",
    "One index holds one command, on all peers, over restarts and snapshots",
    "§5.4.3",
    "service",
)
APPLY_ORDER = HarnessRule(
    "apply-order", "A peer applies index after index, none twice and none left out", "Figure 2: All Servers", "service"
)
SNAPSHOT_FORWARD = HarnessRule(
    "snapshot-forward",
    "A snapshot handed up never rolls the service back, and is of the index it says",
    "§7",
    "service",
)
SNAPSHOT_SAVED = HarnessRule("snapshot-saved", "What snapshot() was given gets to the disk", "§7", "service")
START_RETURNS_AT_ONCE = HarnessRule("start-returns-at-once", "start() waits for nobody", "MIT's lab", "tester")
CALLS_RETURN = HarnessRule(
    "calls-return",
    "The constructor, start(), get_state() and kill() return within 10 s",
    "MIT's lab",
    "tester",
    is_omission=True,
)
QUIET_DEATH = HarnessRule(
    "quiet-death", "A second after kill() a peer sends, saves and applies nothing", "MIT's lab", "tester"
)
LINEARIZABILITY = HarnessRule(
    "linearizability",
    "Clients cannot tell the servers from one that does one thing at a time",
    "§8",
    "tester",
)
SERVICE_LISTENS = HarnessRule(
    "service-listens", "A service takes what its peer has put on apply_ch", "MIT's lab", "service"
)
SNAPSHOT_OF_APPLIED = HarnessRule(
    "snapshot-of-applied",
    "A service gives its peer snapshots of what was applied, and of no more",
    "§7",
    "service",
)
RACE = HarnessRule(
    "race", "Of two threads that touch one field, one writing, something says which comes first", "--race", "race"
)

HARNESS_RULES = (
    STATE_MACHINE_SAFETY,
    APPLY_ORDER,
    SNAPSHOT_FORWARD,
    SNAPSHOT_SAVED,
    START_RETURNS_AT_ONCE,
    CALLS_RETURN,
    QUIET_DEATH,
    LINEARIZABILITY,
    SERVICE_LISTENS,
    SNAPSHOT_OF_APPLIED,
    RACE,
)
