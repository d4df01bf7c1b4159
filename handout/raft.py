"""A Raft peer, to be written: Figure 2 of the paper, then the snapshots of §7 and Figure 13.

Every hole raises NotImplementedError and says its part and where the paper describes it. `make test-2a` runs into
the first one and names its line; begin there, and README.md says what each part asks. What is here already is the
surface that the tester calls: keep its names and signatures, and add whatever you need beside it.

"§" cites the extended version of "In Search of an Understandable Consensus Algorithm" by Ongaro and Ousterhout.
"""

from typing import Any

from labrpc import ClientEnd

# Always labsim's, never the standard modules: they run in virtual time. log("topic", "text") writes into the timeline.
from labsim import log, queue, random, threading, time  # noqa: F401  # all of them will be needed
from raft.messages import (
    AppendEntriesArgs,
    AppendEntriesReply,
    ApplyMsg,
    InstallSnapshotArgs,
    InstallSnapshotReply,
    LogEntry,  # noqa: F401  # for your log
    RequestVoteArgs,
    RequestVoteReply,
)
from raft.persister import Persister


class Raft:
    """One peer. `peers[me]` is this one; committed commands and received snapshots go to `apply_ch`."""

    def __init__(self, peers: list[ClientEnd], me: int, persister: Persister, apply_ch: queue.Queue[ApplyMsg]) -> None:
        """Start the peer. Must return at once, so whatever goes on and on is a thread of its own."""
        self.peers = peers
        self.me = me
        self.persister = persister
        self.apply_ch = apply_ch
        self.mu = threading.Lock()  # guards everything below; `with self.mu:` around whatever reads or changes it
        self.dead = threading.Event()  # set by kill()

        # 2A, 2B: the state of Figure 2 goes here, under its own names: current_term, voted_for, log, commit_index,
        # last_applied, next_index, match_index; and what Figure 2 leaves to you, such as your role and your timer.

        # 2C: what was saved before a crash. After it was read, the state above is what it was.
        self._read_persist(persister.read_raft_state())

        threading.Thread(target=self._ticker, daemon=True).start()
        # 2B: one more thread, which hands what is committed to apply_ch.

    # ---- What the service calls ----------------------------------------------------------------------

    def start(self, command: Any) -> tuple[int, int, bool]:
        """Begin agreement on a command: (its index if ever committed, current term, whether we lead).

        Returns at once, long before there is agreement, and perhaps there never will be: the leader may lose its
        office first. A peer that does not lead takes nothing, and returns (-1, its term, False).
        """
        raise NotImplementedError("2B: start, Figure 2 (Leaders) and §5.3")

    def get_state(self) -> tuple[int, bool]:
        """The current term, and whether this peer believes it leads."""
        raise NotImplementedError("2A: get_state, Figure 2 and §5.1")

    def snapshot(self, index: int, snapshot: bytes) -> None:
        """The service's snapshot replaces every entry up to and including index (§7).

        The service has applied all of them. Save the snapshot and the shorter log together, in one save().
        """
        raise NotImplementedError("2D: snapshot, §7 and Figure 12")

    def kill(self) -> None:
        """The tester is done with this peer. Its threads must see self.dead and end, and send nothing more."""
        with self.mu:
            self.dead.set()

    # ---- Persistent state ----------------------------------------------------------------------------

    def _persist(self) -> None:
        """Save what Figure 2 calls persistent. Call it after every change, before anyone can learn of it.

        Values are put one after the other, and come back in that order:

            w = labgob.Encoder()
            w.encode(self.xxx)
            w.encode(self.yyy)
            self.persister.save(w.bytes())

        `import labgob` first.
        """
        raise NotImplementedError("2C: _persist, Figure 2 (Persistent state)")

    def _read_persist(self, data: bytes) -> None:
        """Restore what _persist() saved; the first time there is nothing.

            r = labgob.Decoder(data)
            self.xxx = r.decode(int)
            self.yyy = r.decode(list[LogEntry])

        What is read must be read in the order, and as the types, in which it was saved.
        """
        if not data:
            return
        raise NotImplementedError("2C: _read_persist, Figure 2 (Persistent state)")

    # ---- Elections and heartbeats --------------------------------------------------------------------

    def _ticker(self) -> None:
        """A thread that lives as long as the peer.

        It starts an election when there was no word from a leader for an election timeout, and sends heartbeats
        while this peer leads. A call to another peer may take seconds to fail, so each gets a thread of its own:

            reply = self.peers[peer].call("Raft.request_vote", args)

        The reply is a RequestVoteReply, or None if the request or the reply was lost.
        """
        raise NotImplementedError("2A: _ticker, Figure 2 (Rules for Servers) and §5.2")

    # ---- RPC handlers: what other peers call ---------------------------------------------------------

    def request_vote(self, args: RequestVoteArgs) -> RequestVoteReply:
        """A candidate asks for our vote."""
        raise NotImplementedError("2A: request_vote, Figure 2 and §5.2")

    def append_entries(self, args: AppendEntriesArgs) -> AppendEntriesReply:
        """The leader sends entries (2B), or none, which is a heartbeat (2A)."""
        raise NotImplementedError("2A: append_entries, Figure 2 and §5.2; with entries 2B, §5.3")

    def install_snapshot(self, args: InstallSnapshotArgs) -> InstallSnapshotReply:
        """The leader sends its snapshot, because it no longer has the entries that we lack."""
        raise NotImplementedError("2D: install_snapshot, Figure 13 and §7")
