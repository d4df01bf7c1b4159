"""What a rule is: one statement about the protocol, and the events it wants to see.

A rule is a class with methods named for what happens to a message, and for which RPC (vote, append, snapshot; without
one: all three):

    on_send_append(event, peer, message, args)           `peer` is the sender; no entries yet, see AppendHead
    on_any_send(event, peer, message)                    of these three or not, readable or not
    on_any_answer(event, peer, message)                  to one of these three that could be read, readable or not
    on_deliver_vote(event, peer, message, request)       `peer` is the receiver
    on_answer_vote(event, peer, message, request, reply, delivery)
    on_reply_append(event, peer, message, request, reply)     `peer` is the caller again

With `_new_term` after it, a method sees only messages whose terms are news: most say nothing about terms that was not
said before. They are of the term that their seat has shown (and, when sent, has heard of), a reply too, and a leader
that sends one has sent an AppendEntries in that term before. Rules about terms skip those.

An AppendEntries that its leader has just sent, word for word, and sends again, with no news of its log in between, is
repeated: only on_any_send() sees it.

    on_new_entries(event, message, request, fresh)             entries were delivered that are new from this leader
    on_refuse(…)                                         an AppendEntries was answered with no; as on_answer
    on_command(event, peer, index, command)              one was applied
    on_started(event, peer, started, began)              start() said yes; `began`: when it was called, at the earliest
    on_claim(at_ns, peer, term)                          get_state() said that it leads that term
    on_restore(peer)                                     a service begins from its snapshot
    on_crash(peer)
    on_persist(event, peer, saved)                       a save has taken effect
    on_first_save()                                      somebody saves for the first time

A method of another name that begins with on_ is an error when the class is made, not a rule that never looks.

They run before the shared facts take the event in, so `self.facts` is what was known before it.
"""

from __future__ import annotations

import difflib
from collections.abc import Sequence
from typing import Any, NoReturn, Protocol

from labrpc import Message
from raftlab.check.failure import short
from raftlab.check.rules.facts import Facts
from raftlab.trace.rpcs import APPEND, INSTALL, RPCS, VOTE

NewEntries = list[tuple[int, Any]]  # (index, entry)


class Reporter(Protocol):
    def __call__(
        self, rule: Rule, text: str, *evidence: tuple[int, Message, str] | str, peer: str | None = None
    ) -> NoReturn: ...


NEW_TERM = "_new_term"
_MESSAGE_STEPS = ("on_send", "on_deliver", "on_answer", "on_reply")
_OF_RPCS = ("", *(f"_{rpc.short_name}" for rpc in RPCS.values()))
_STEPS = {
    *(f"{step}{rpc}{news}" for step in _MESSAGE_STEPS for rpc in _OF_RPCS for news in ("", NEW_TERM)),
    "on_any_send",
    "on_any_answer",
    "on_new_entries",
    "on_refuse",
    "on_command",
    "on_started",
    "on_claim",
    "on_restore",
    "on_crash",
    "on_persist",
    "on_first_save",
}


class Rule:
    name: str  # for tables and statistics
    title: str  # begins the sentence in a report
    section: str  # where the paper says so
    # Whether it holds against a peer that something was never said. Then it asks first whether something that nobody
    # can read has reached that peer (PeerFacts.undecodable), and assumes the best.
    concludes_from_silence = False
    # Of these, whether a vote, or news of a term, is enough for that (PeerFacts.undecodable_votes).
    is_about_votes = False
    # Whether it is broken by what a peer does not do. That says little about why, so the usual diagnoses are asked.
    is_omission = False

    def __init_subclass__(cls) -> None:
        for name in vars(cls):
            if name.startswith("on_") and name not in _STEPS:
                near = difflib.get_close_matches(name, _STEPS, n=1)
                hint = f"; did you mean {near[0]}?" if near else ""
                raise TypeError(f"{cls.__name__}.{name}(): nothing of that name happens to a rule{hint}")

    def __init__(self, facts: Facts, reporter: Reporter) -> None:
        self.facts = facts
        self._reporter = reporter

    def report_pending(self) -> None:
        """Another rule was broken and the run ends. Whoever waits before it accuses somebody does it now."""

    def report(self, text: str, *evidence: tuple[int, Message, str] | str, peer: str | None = None) -> NoReturn:
        """Evidence: lines, or (at_ns, message, "sent" | "delivered" | "answered") to be told as one.

        `peer`: who is to blame, if it is not the one whose event this is.
        """
        self._reporter(self, text, *evidence, peer=peer)


def describe_message(at_ns: int, message: Message, what: str) -> str:
    """One message in one line: when, from whom to whom, and the fields that matter."""
    name = message.method_name
    line = f"  {at_ns / 1e9:.6f} s  {name} {message.source}->{message.target} {what}: {_fields(message)}"
    if what == "answered" or (what == "reply arrived"):
        line += f" -> {message.decode_reply()}"
    return line


def _fields(message: Message) -> str:
    args: Any = message.decode_args()
    try:
        return _fields_that_matter(message, args)
    except (AttributeError, TypeError):  # it has not the paper's
        return short(args)


def _fields_that_matter(message: Message, args: Any) -> str:
    if message.rpc == VOTE:
        return f"term {args.term}, last entry {args.last_log_index} of term {args.last_log_term}"
    if message.rpc == APPEND:
        return (
            f"term {args.term}, prev {args.prev_log_index} of term {args.prev_log_term}, "
            f"{len(args.entries)} entries, leader_commit {args.leader_commit}"
        )
    if message.rpc == INSTALL:
        return f"term {args.term}, snapshot through {args.last_included_index} of term {args.last_included_term}"
    return short(args)


# ---- words -----------------------------------------------------------------------------------------------------


def peers_text(names: Sequence[str]) -> str:
    """ "peer 1", "peers 0 and 2", "peers 0, 1 and 2"; at least one."""
    *rest, last = names
    return f"peers {', '.join(rest)} and {last}" if rest else f"peer {last}"


def majority_note(count: int, servers: int) -> str:
    """What to add to "2 of 4"."""
    return ", and half is no majority" if 2 * count == servers else ""
