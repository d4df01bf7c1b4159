"""Builds traces event by event, for tests of rules and diagnoses."""

from labgob import encode
from labrpc import Message
from labsim import Event
from raft.messages import (
    AppendEntriesArgs,
    AppendEntriesReply,
    ApplyMsg,
    InstallSnapshotArgs,
    InstallSnapshotReply,
    LogEntry,
    RequestVoteArgs,
    RequestVoteReply,
)
from raftlab.check.rules import RuleChecker
from raftlab.trace import events

METHODS = {
    RequestVoteArgs: "Raft.request_vote",
    AppendEntriesArgs: "Raft.append_entries",
    InstallSnapshotArgs: "Raft.install_snapshot",
}


class TraceBuilder:
    """A trace and its checker. Every event takes a millisecond; nothing else happens."""

    def __init__(self, servers=3):
        self.trace = []
        self.checker = RuleChecker(self.trace)
        self.now_ms = 0
        self.incarnations = {}
        self.messages = 0
        self.emit("cluster", "", servers)

    def emit(self, kind, node="", detail=None, message=0):
        self.now_ms += 1
        event = Event(self.now_ms * 1_000_000, kind, node, self.incarnations.get(node, 1), message, detail)
        self.trace.append(event)

    def broken_rule(self):
        """The name of the first rule that is broken, or None."""
        self.checker.finish()
        return None if self.checker.violation is None else self.checker.violation.failure.rule

    def failure(self):
        """The failure of the first rule that is broken."""
        self.checker.finish()
        return self.checker.violation.failure

    # ---- the events of a message -------------------------------------------------------------------------------------

    def send(self, source, target, args, method=""):
        self.messages += 1
        message = Message(self.messages, source, target, method or METHODS[type(args)], encode(args), type(args))
        self.emit("send", source, message, message.id)
        return message

    def deliver(self, message):
        self.emit("deliver", message.target, message, message.id)
        return message

    def answer(self, message, reply, *, arrives=True):
        message.reply, message.reply_type = encode(reply), type(reply)
        self.emit("answer", message.target, message, message.id)
        if arrives:
            self.emit("reply", message.source, message, message.id)

    def begin_save(self, node, number):
        self.emit("saving", node, number)

    def save(self, *nodes, snapshot=b"", number=0):
        for node in nodes:
            self.emit("persist", node, events.PersistedState(b"state", snapshot, number))

    def crash(self, node):
        self.emit("crash", node)
        self.incarnations[node] = self.incarnations.get(node, 1) + 1
        self.emit("restore", node, 0)

    # ---- whole exchanges, correct by default --------------------------------------------------------------

    def vote(self, source, target, term, *, last=(0, 0), granted=True, saved=True, reply_term=None):
        """`last` is (index, term), as everywhere here."""
        message = self.deliver(self.send(source, target, RequestVoteArgs(term, int(source), *last)))
        if saved:
            self.save(target)
        self.answer(message, RequestVoteReply(term if reply_term is None else reply_term, granted))

    def elect(self, leader, term, *, last=(0, 0), voters="012"):
        self.save(leader)
        for voter in voters:
            if voter != leader:
                self.vote(leader, voter, term, last=last)

    def append(
        self, leader, follower, term, prev=(0, 0), entries=(), commit=0, *, success=True, saved=True, reply_term=None
    ):
        """`entries` are (term, command)."""
        args = AppendEntriesArgs(term, int(leader), *prev, [LogEntry(*entry) for entry in entries], commit)
        message = self.deliver(self.send(leader, follower, args))
        if saved:
            self.save(follower)
        self.answer(message, AppendEntriesReply(term if reply_term is None else reply_term, success))

    def install(self, leader, follower, term, last, *, reply_term=None):
        message = self.deliver(self.send(leader, follower, InstallSnapshotArgs(term, int(leader), *last, b"")))
        self.save(follower)
        self.answer(message, InstallSnapshotReply(term if reply_term is None else reply_term))

    def start(self, node, index, term, command):
        self.emit("start", node, command)
        self.save(node)
        self.emit("started", node, events.StartResult(command, index, term, True))

    def apply(self, node, index, command):
        self.emit("apply", node, ApplyMsg(True, command, index))

    def agree(self, leader, term, index, command, *, prev_term=None, followers="012", commit=0):
        """Start a command and send it to the followers, which accept it."""
        self.start(leader, index, term, command)
        prev = (index - 1, (term if index > 1 else 0) if prev_term is None else prev_term)
        for follower in followers:
            if follower != leader:
                self.append(leader, follower, term, prev, [(term, command)], commit)


def build_agreement():
    """Peer 0 leads term 1 and has committed command 10; all have applied it."""
    builder = TraceBuilder()
    builder.elect("0", 1)
    builder.agree("0", 1, 1, 10)
    for follower in "12":
        builder.append("0", follower, 1, prev=(1, 1), commit=1)
    for node in "012":
        builder.apply(node, 1, 10)
    return builder
