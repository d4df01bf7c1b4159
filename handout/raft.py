"""A Raft peer: Figure 2 of the paper, then snapshots (§7, Figure 13). You write it.

Each hole raises NotImplementedError with its part and its section of the paper. Run `make test-2a` to see the first
one. docs/student/guide has a chapter for each part. The tester calls the methods in this file: keep their names and
signatures, and add whatever you need.

"§" cites the extended version of "In Search of an Understandable Consensus Algorithm" by Ongaro and Ousterhout.
"""

from typing import Any

from labrpc import ClientEnd

# Use these instead of the standard modules: they run in virtual time. log("topic", "text") writes into the timeline.
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
    """One peer. `peers[me]` is this peer. Committed commands and received snapshots go into `apply_ch`."""

    def __init__(self, peers: list[ClientEnd], me: int, persister: Persister, apply_ch: queue.Queue[ApplyMsg]) -> None:
        """Start the peer. Must return at once: start threads for long-running work."""
        self.peers = peers
        self.me = me
        self.persister = persister
        self.apply_ch = apply_ch
        self.mu = threading.Lock()  # protects all state below: read and change it under `with self.mu:`
        self.dead = threading.Event()  # set by kill()

        # 2A, 2B: the state of Figure 2, under the paper's names: current_term, voted_for, log, commit_index,
        # last_applied, next_index, match_index. Also state that is not in Figure 2, such as your role and your timer.

        # 2C: restore the state that was saved before a crash.
        self._read_persist(persister.read_raft_state())

        # 2A: start self._ticker: threading.Thread(target=self._ticker, daemon=True).start()
        # 2B: start one more thread, which puts committed commands into apply_ch.

    # ---- What the service calls ----------------------------------------------------------------------

    def start(self, command: Any) -> tuple[int, int, bool]:
        """Begin agreement on a command. Return (its index if it is ever committed, current term, is_leader).

        Return at once, without waiting for agreement. If this peer loses its leadership first, agreement may never
        come. A peer that is not the leader ignores the command and returns (-1, its term, False).
        """
        raise NotImplementedError("2B: start, Figure 2 (Leaders) and §5.3")

    def get_state(self) -> tuple[int, bool]:
        """Return the current term, and whether this peer believes it is the leader."""
        raise NotImplementedError("2A: get_state, Figure 2 and §5.1")

    def snapshot(self, index: int, snapshot: bytes) -> None:
        """The service has made a snapshot of everything up to and including index (§7).

        Discard these log entries. Save the snapshot and the shorter log together, in one save().
        """
        raise NotImplementedError("2D: snapshot, §7 and Figure 12")

    def kill(self) -> None:
        """The tester is done with this peer. Its threads must check self.dead, end, and send nothing more."""
        with self.mu:
            self.dead.set()

    # ---- Persistent state ----------------------------------------------------------------------------

    def _persist(self) -> None:
        """Save the persistent state of Figure 2. Call this method after every change, before you send anything.

        Encode the values in order (`import labgob` first):

            w = labgob.Encoder()
            w.encode(self.xxx)
            w.encode(self.yyy)
            self.persister.save(w.bytes())
        """
        raise NotImplementedError("2C: _persist, Figure 2 (Persistent state)")

    def _read_persist(self, data: bytes) -> None:
        """Restore what _persist() saved. On the first start, data is empty.

            r = labgob.Decoder(data)
            self.xxx = r.decode(int)
            self.yyy = r.decode(list[LogEntry])

        Decode the values in the order in which they were encoded, with the same types.
        """
        if not data:
            return
        raise NotImplementedError("2C: _read_persist, Figure 2 (Persistent state)")

    # ---- Elections and heartbeats --------------------------------------------------------------------

    def _ticker(self) -> None:
        """Runs in its own thread as long as the peer lives.

        Start an election when this peer has not heard from a leader for an election timeout. Send heartbeats while this
        peer is the leader. A call to another peer can take seconds to fail, so run each one in its own thread:

            reply = self.peers[peer].call("Raft.request_vote", args)

        reply is a RequestVoteReply, or None if the request or the reply was lost.
        """
        raise NotImplementedError("2A: _ticker, Figure 2 (Rules for Servers) and §5.2")

    # ---- RPC handlers: what other peers call ---------------------------------------------------------

    def request_vote(self, args: RequestVoteArgs) -> RequestVoteReply:
        """A candidate requests a vote."""
        raise NotImplementedError("2A: request_vote, Figure 2 and §5.2")

    def append_entries(self, args: AppendEntriesArgs) -> AppendEntriesReply:
        """The leader sends entries (2B), or no entries as a heartbeat (2A)."""
        raise NotImplementedError("2A: append_entries, Figure 2 and §5.2; with entries 2B, §5.3")

    def install_snapshot(self, args: InstallSnapshotArgs) -> InstallSnapshotReply:
        """The leader sends its snapshot, because it has discarded the entries that this peer needs."""
        raise NotImplementedError("2D: install_snapshot, Figure 13 and §7")
