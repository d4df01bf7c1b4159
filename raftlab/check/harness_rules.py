"""Rules that the tester and its services check directly, not by reading the trace.

So they are also checked on real threads, where there is no trace. Reports and statistics treat all rules alike.
"""

from __future__ import annotations

from typing import NamedTuple


class HarnessRule(NamedTuple):
    name: str
    title: str
    section: str
    checked_by: str  # "service" or "tester"; "race": raftlab/races, with --race
    is_omission: bool = False  # as of a Rule


STATE_MACHINE_SAFETY = HarnessRule(
    "state-machine-safety",
    "All peers apply the same command at an index, across restarts and snapshots",
    "§5.4.3",
    "service",
)
APPLY_ORDER = HarnessRule(
    "apply-order", "A peer applies every index exactly once, in order", "Figure 2: All Servers", "service"
)
SNAPSHOT_FORWARD = HarnessRule(
    "snapshot-forward",
    "A snapshot on apply_ch has the index that it claims and never moves the service back",
    "§7",
    "service",
)
SNAPSHOT_SAVED = HarnessRule(
    "snapshot-saved", "A peer saves each snapshot that is passed to snapshot()", "§7", "service"
)
START_RETURNS_AT_ONCE = HarnessRule("start-returns-at-once", "start() returns immediately", "MIT's lab", "tester")
CALLS_RETURN = HarnessRule(
    "calls-return",
    "The constructor, start(), get_state() and kill() return within 10 s",
    "MIT's lab",
    "tester",
    is_omission=True,
)
QUIET_DEATH = HarnessRule(
    "quiet-death", "A peer stops sending, saving and applying within a second after kill()", "MIT's lab", "tester"
)
LINEARIZABILITY = HarnessRule(
    "linearizability",
    "Histories must be linearizable",
    "§8",
    "tester",
)
SERVICE_LISTENS = HarnessRule(
    "service-listens", "A service receives what its peer puts on apply_ch", "MIT's lab", "service"
)
SNAPSHOT_OF_APPLIED = HarnessRule(
    "snapshot-of-applied",
    "A service takes snapshots only of entries that it has applied",
    "§7",
    "service",
)
RACE = HarnessRule(
    "race",
    "Conflicting accesses by two threads must be ordered by a lock or other synchronization",
    "--race",
    "race",
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
