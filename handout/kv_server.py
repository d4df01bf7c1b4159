"""The key/value service on one server: parts 3A and 3B, on top of your own Raft. You write it.

Each hole raises NotImplementedError with its part and its section of the paper. Run `make test-3a` to see the first
one. The tester calls the methods in this file: keep their names and signatures, and add whatever you need. The clerk is
in client.py, and the messages are in messages.py.

"§" cites the extended version of "In Search of an Understandable Consensus Algorithm" by Ongaro and Ousterhout.
"""

from typing import TYPE_CHECKING

from kv.messages import GetArgs, GetReply, PutAppendArgs, PutAppendReply
from labrpc import ClientEnd

# Use these instead of the standard modules: they run in virtual time. log("topic", "text") writes into the timeline.
from labsim import log, queue, random, threading, time  # noqa: F401  # most of them will be needed
from raftapi import ApplyMsg, Persister

if TYPE_CHECKING:
    from raft.raft import Raft


class KVServer:
    """One server. `raft` is its Raft peer, already running: raft.start(command), raft.get_state(), raft.snapshot(...).

    Committed commands come out of `apply_ch`, in the same order on every server. `servers` are the ends of all servers,
    in case your servers call each other. 3B: take a snapshot when persister.raft_state_size() exceeds `max_raft_state`
    bytes; None means never.
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
        """Start the service. Must return at once: start threads for long-running work."""
        self.servers = servers
        self.me = me
        self.raft = raft
        self.apply_ch = apply_ch
        self.persister = persister
        self.max_raft_state = max_raft_state
        self.mu = threading.Lock()  # protects all state below
        self.dead = threading.Event()  # set by kill()

        # 3A: the data, and what you need so that a repeated request takes effect only once (§8).

        # 3B: restore the snapshot on disk. Your Raft continues after it.
        if persister.read_snapshot():
            self._install(persister.read_snapshot())

        threading.Thread(target=self._applier, daemon=True).start()

    # ---- RPC handlers, called by clerks. Each call runs in its own thread and may wait. --------------

    def get(self, args: GetArgs) -> GetReply:
        """Answer when the read is committed. A deposed leader may not know of later writes (§8)."""
        raise NotImplementedError("3A: get, §8 (read-only operations; through the log is the simple way)")

    def put_append(self, args: PutAppendArgs) -> PutAppendReply:
        """Answer when the write is committed and applied, or answer WRONG_LEADER."""
        raise NotImplementedError("3A: put_append, §8")

    def kill(self) -> None:
        """The tester is done with this server. Its threads must check self.dead and end."""
        self.dead.set()

    # ---- Applying ------------------------------------------------------------------------------------

    def _applier(self) -> None:
        """Runs in its own thread: takes messages from apply_ch, one by one, and executes them.

        Only this thread changes the data. Handlers wait for it; it must never wait for a handler:

            msg = self.apply_ch.get(timeout=0.5)    # raises queue.Empty if there is none: check self.dead

        msg.command is a command that was passed to start(), on this server or on another.
        """
        raise NotImplementedError("3A: _applier, §8 and §5.3 (state machines)")

    # ---- Snapshots -----------------------------------------------------------------------------------

    def _take_snapshot(self, index: int) -> None:
        """Pass everything that must survive a restart, as bytes, to self.raft.snapshot(index, ...).

        Include the data, of course. What else would be lost with the log?
        """
        raise NotImplementedError("3B: _take_snapshot, §7 and Figure 12")

    def _install(self, snapshot: bytes) -> None:
        """Replace the state with the contents of a snapshot from the disk or from apply_ch (msg.snapshot_valid)."""
        raise NotImplementedError("3B: _install, §7")
