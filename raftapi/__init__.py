"""The contract between the lab and the code under test.

A Raft peer puts an `ApplyMsg` on apply_ch for each committed command, and keeps what must outlive a crash in its
`Persister`. `Peer`, `KVServer` and `Clerk` say what the lab calls.

Promise: the lab and student code know of each other what is in this package, and nothing else. What student code writes
onto these modules and classes is gone after a crash (raftlab/harness/program.py). Not here: what peers send to each
other; that is raft/messages.py, and the student's own.

Start at apply_msg.py and persister.py.
"""

from raftapi.apply_msg import ApplyMsg
from raftapi.persister import Persister
from raftapi.protocols import Clerk, KVServer, Peer, PeerClass

__all__ = ["ApplyMsg", "Clerk", "KVServer", "Peer", "PeerClass", "Persister"]
