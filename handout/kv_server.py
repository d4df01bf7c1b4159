"""The key/value service on one server, to be written: parts 3A and 3B, on top of your own Raft.

Every hole raises NotImplementedError and says its part and where the paper describes it. `make test-3a` runs into the
first one and names its line. What is here already is the surface that the tester calls: keep its names and signatures,
and add whatever you need beside it. The clerk is in client.py, the messages in messages.py.

"§" cites the extended version of "In Search of an Understandable Consensus Algorithm" by Ongaro and Ousterhout.
"""

from typing import TYPE_CHECKING

from kv.messages import GetArgs, GetReply, PutAppendArgs, PutAppendReply
from labrpc import ClientEnd

# Always labsim's, never the standard modules: they run in virtual time. log("topic", "text") writes into the timeline.
from labsim import log, queue, random, threading, time  # noqa: F401  # most of them will be needed
from raftapi import ApplyMsg, Persister

if TYPE_CHECKING:
    from raft.raft import Raft


class KVServer:
    """One server. `raft` is its peer, already at work: raft.start(command), raft.get_state(), raft.snapshot(...).

    What was agreed on comes out of `apply_ch`, in order, on every server. `servers` are the ends that lead to all
    servers, if you want them to talk to each other. 3B: when persister.raft_state_size() grows past `max_raft_state`
    bytes, take a snapshot; None means never.
    """

    def __init__(
        self,
        servers: list[ClientEnd],
        me: int,
        raft: "Raft",
        apply_ch: queue.Queue[ApplyMsg],
        persister: Persister,
        max_raft_state: int | None,
    ) -> None:
        """Start the service. Must return at once, so whatever goes on and on is a thread of its own."""
        self.servers = servers
        self.me = me
        self.raft = raft
        self.apply_ch = apply_ch
        self.persister = persister
        self.max_raft_state = max_raft_state
        self.mu = threading.Lock()  # guards everything below
        self.dead = threading.Event()  # set by kill()

        # 3A: the data itself, and what is needed so that a request that comes twice takes effect once (§8).

        # 3B: what a snapshot on the disk holds. Your Raft begins behind it, and hands up what comes after.
        if persister.read_snapshot():
            self._install(persister.read_snapshot())

        threading.Thread(target=self._applier, daemon=True).start()

    # ---- RPC handlers: what clerks call. Each runs in a thread of its own, and may wait. -------------

    def get(self, args: GetArgs) -> GetReply:
        """Answer when the read is agreed on. A server that leads no more may not know what was written since (§8)."""
        raise NotImplementedError("3A: get, §8 (read-only operations; through the log is the simple way)")

    def put_append(self, args: PutAppendArgs) -> PutAppendReply:
        """Answer when the write is agreed on and applied, or say that another server should be asked."""
        raise NotImplementedError("3A: put_append, §8")

    def kill(self) -> None:
        """The tester is done with this server. Its threads must see self.dead and end."""
        self.dead.set()

    # ---- Applying ------------------------------------------------------------------------------------

    def _applier(self) -> None:
        """A thread that lives as long as the server: takes one message after the other from apply_ch and does it.

        It alone changes the data. It must never wait for a handler; handlers wait for it:

            msg = self.apply_ch.get(timeout=0.5)    # queue.Empty if there was nothing: look at self.dead

        msg.command is what start() was given, on this server or on another.
        """
        raise NotImplementedError("3A: _applier, §8 and §5.3 (state machines)")

    # ---- Snapshots -----------------------------------------------------------------------------------

    def _take_snapshot(self, index: int) -> None:
        """All that must be there again after a restart, as bytes, to self.raft.snapshot(index, ...).

        The data, of course. What else would be lost with the log?
        """
        raise NotImplementedError("3B: _take_snapshot, §7 and Figure 12")

    def _install(self, snapshot: bytes) -> None:
        """The state becomes that of a snapshot: from the disk, or from apply_ch (msg.snapshot_valid)."""
        raise NotImplementedError("3B: _install, §7")
