"""The table of the paper's RPCs agrees with what students are given."""

import dataclasses

import pytest

from raft import messages
from raft.raft import Raft
from raftlab.trace.rpcs import APPEND, INSTALL, RPCS, VOTE, rpc_of
from raftlab.trace.trace_file import RecordedMessage


@pytest.mark.parametrize("rpc", RPCS.values(), ids=lambda rpc: rpc.short_name)
def test_the_paper_fields_are_in_messages_py(rpc):
    for name, fields in zip((rpc.args_type, rpc.reply_type), rpc.fields, strict=True):
        declared = [field.name for field in dataclasses.fields(getattr(messages, name))]
        assert set(declared) & set(fields) == {name for name in fields if name not in ("offset", "done")}
    assert callable(getattr(Raft, rpc.method_name))


@pytest.mark.parametrize(
    ("name", "rpc"),
    [
        ("request_vote", VOTE),
        ("RequestVote", VOTE),
        ("AppendEntries", APPEND),
        ("install_snapshot", INSTALL),
        ("pre_vote", ""),
    ],
)
def test_rpcs_are_known_in_other_spellings(name, rpc):
    message = RecordedMessage(1, "0", "1", f"Raft.{name}", None)
    assert rpc_of(message) == (rpc or f"Raft.{name}")
