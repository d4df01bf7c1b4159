"""What the tester does to a cluster, as data: at 1.2 s start() is called on peer 0, at 1.9 s peer 2 crashes.

scenarios/recorded_schedule.py records such a list while a test runs, and replays it without the test. This module knows
nothing of peers and messages.

Start at `ScheduledOperation`.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import msgspec

from labrpc import conditions
from labsim.choices import ChoicePoint

# Methods of Config. The first are faults; the second end them; the third ask something of a peer or a service.
FAULTS = ("crash1", "disconnect", "pause", "crash_at", "slow_disks", "slow_snapshots")
ENDS = ("start1", "connect", "resume")
ASKS = ("start", "get_state", "take_snapshot")
# Of its network, and with "network." before the name in an act: faults, or the end of one.
CONDITIONS = tuple(conditions.DETAILS)
# Of a client of a service, and with "client." before the name.
OPERATIONS = ("get", "put", "append")

NETWORK = "network."
CLIENT = "client."
_PEERS_FIRST = frozenset((*FAULTS, *ENDS, *ASKS)) - {"slow_disks"}  # whose first argument is a server


class ScheduledOperation(msgspec.Struct, frozen=True, omit_defaults=True):
    """One operation. `at_ns` counts from the start of its cluster. `by`: the thread of the test; "": the main one."""

    at_ns: int
    does: str
    args: list[Any]
    kwargs: dict[str, Any] = {}
    by: str = ""

    @property
    def peer(self) -> int | None:
        """The server that it acts on, if it acts on one."""
        return self.args[0] if self.does in _PEERS_FIRST and self.args else None

    @property
    def ends_something(self) -> bool:
        """Whether it ends an earlier fault, and so is removed with it."""
        if self.does in ENDS:
            return True
        if self.does == f"{NETWORK}partition":
            return not self.args
        if self.does == f"{NETWORK}link":
            return self.kwargs.get("cut") is False or self.kwargs.get("loss") == 0
        return self.does == "crash_at" and self.args[1:2] == [None]

    @property
    def sets_up(self) -> bool:
        """Whether later operations may depend on it."""
        return self.does in ("make_client", "connect_client") or self.does.startswith(NETWORK)


class RecordedCluster(msgspec.Struct):
    """What the tester did to one cluster. `number`: its ordinal in the run, from 1."""

    how: dict[str, Any]
    number: int
    made_ns: int
    acts: list[ScheduledOperation]
    faults: list[ChoicePoint]  # that happened: where, each time
    ended_ns: int | None = None  # if the run has failed when the test said that it was over: when that was


class FailureLocation(msgspec.Struct, frozen=True):
    """Where a test failed: its own line, and the function of the lab that it had called."""

    line: str
    called: str


class RecordedSchedule(msgspec.Struct, omit_defaults=True):
    """A run without its test: how the cluster is made, the operations, and the end. Or the lines of a scenario, which
    contain all of that."""

    how: dict[str, Any]
    service: bool
    acts: Sequence[ScheduledOperation]
    end_ns: int
    snapshot_every: int | None = None  # commands, where it is not as usual (2D)
    steps: list[str] = []  # of a scenario; then there are no acts


class CrashHere(msgspec.Struct):
    """A crash that the test does not make, with a restart at once. `at`: after how many events."""

    at: int
    peer: int


class Interventions(msgspec.Struct, omit_defaults=True):
    """What a user did to the run of a test besides changing choices: crashes, and steps of a scenario from some event
    on."""

    crashes: list[CrashHere] = []
    taken_over_at: int | None = None  # after how many events
    steps: list[str] = []
