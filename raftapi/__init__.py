"""The contract between the lab and the code under test.

A Raft peer puts an `ApplyMsg` on apply_ch for each committed command, and keeps what must outlive a crash in its
`Persister`. `Peer`, `KVServer` and `Clerk` are the methods that the lab calls.

Promise: the lab and student code depend on each other only through this package. What student code assigns to these
modules and classes is lost in a crash (raftlab/harness/program.py). The messages between peers are not part of the
contract; they are the student's own, in raft/messages.py.

Start at apply_msg.py and persister.py.
"""

from raftapi.apply_msg import ApplyMsg
from raftapi.persister import Persister
from raftapi.protocols import Clerk, KVServer, Peer, PeerClass

__all__ = ["ApplyMsg", "Clerk", "KVServer", "Peer", "PeerClass", "Persister"]
