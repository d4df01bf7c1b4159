"""The three RPCs of the paper: their names on the wire, in the paper and in scenarios, and their fields.

Promise: all code of the lab takes these names and fields from here. Start at `RPCS`.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, NamedTuple

VOTE = "Raft.request_vote"
APPEND = "Raft.append_entries"
INSTALL = "Raft.install_snapshot"

# By name, in the order of Figures 2 and 13: the type, or None if the lab does not read the field.
Fields = Mapping[str, type | tuple[type, ...] | None]


class PaperRpc(NamedTuple):
    method: str  # on the wire
    paper_name: str
    short_name: str  # in a step of a scenario, on a timeline, and in the names of the rules' methods
    fields: tuple[Fields, Fields]  # of the arguments, of the reply

    @property
    def method_name(self) -> str:
        """Without its service's name: "request_vote"."""
        return self.method.rpartition(".")[2]

    @property
    def args_type(self) -> str:
        return f"{self.paper_name}Args"

    @property
    def reply_type(self) -> str:
        return f"{self.paper_name}Reply"


_PAPER_RPCS = (
    PaperRpc(
        VOTE,
        "RequestVote",
        "vote",
        (
            {"term": int, "candidate_id": None, "last_log_index": int, "last_log_term": int},
            {"term": int, "vote_granted": bool},
        ),
    ),
    PaperRpc(
        APPEND,
        "AppendEntries",
        "append",
        (
            {
                "term": int,
                "leader_id": None,
                "prev_log_index": int,
                "prev_log_term": int,
                "entries": (list, tuple),
                "leader_commit": int,
            },
            {"term": int, "success": bool},
        ),
    ),
    PaperRpc(
        INSTALL,
        "InstallSnapshot",
        "snapshot",
        (
            {
                "term": int,
                "leader_id": None,
                "last_included_index": int,
                "last_included_term": int,
                "offset": None,
                "data": None,
                "done": None,
            },
            {"term": int},
        ),
    ),
)
RPCS = {rpc.method: rpc for rpc in _PAPER_RPCS}
METHOD_OF = {rpc.short_name: rpc.method for rpc in _PAPER_RPCS}
_BY_SPELLING = {rpc.paper_name.lower(): rpc.method for rpc in _PAPER_RPCS}


def rpc_of(message: Any) -> str:
    """VOTE, APPEND, INSTALL, or the name of an RPC that is not from the paper.

    In any spelling: a peer with Go's names, which rules do not decode, still gets a timeline.
    """
    rpc: str = message.rpc
    return rpc if rpc in RPCS else _BY_SPELLING.get(message.method_name.replace("_", "").lower(), rpc)
