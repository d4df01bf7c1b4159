"""A rule: one statement about the protocol, checked by methods that are called for events.

A method is named for what happens to a message and for the RPC (vote, append, snapshot; without one: all three):

    on_send_append(event, peer, message, args)           `peer` is the sender; without entries, see AppendHead
    on_any_send(event, peer, message)                    any RPC, decodable or not
    on_any_answer(event, peer, message)                  to a decoded request of these three; the reply may not decode
    on_deliver_vote(event, peer, message, request)       `peer` is the receiver
    on_answer_vote(event, peer, message, request, reply, delivery)
    on_reply_append(event, peer, message, request, reply)     `peer` is the caller again

A method with the suffix `_new_term` gets only messages that may carry a new term, which are few. It does not get a
message of the peer's current term, if a reply to it is of that term too and its leader has already sent AppendEntries
in that term.

If a leader repeats an AppendEntries that differs in no byte from its last one, only on_any_send() gets it.

    on_new_entries(event, message, request, new_entries) entries that this leader had not sent before were delivered
    on_refuse(…)                                         success is False in the answer to AppendEntries; as on_answer
    on_command(event, peer, index, command)              a command was applied
    on_started(event, peer, started, began)              start() accepted a command; `began`: its earliest call
    on_claim(at_ns, peer, term)                          get_state() reported leadership of that term
    on_restore(peer)                                     a service begins from its snapshot
    on_crash(peer)
    on_persist(event, peer, saved)                       a save has taken effect
    on_first_save()                                      a peer saves for the first time in this run

Any other method name that begins with on_ raises TypeError when the class is defined.

The methods run before `self.facts` records the event, so it is what was known before.
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
    name: str  # in tables and statistics
    title: str  # what must hold; a report shows it after "Broken rule:"
    section: str  # of the paper
    # Whether it concludes something from a message that was not received. Then it first checks whether an undecodable
    # message has reached that peer (PeerFacts.undecodable), and assumes the best.
    concludes_from_silence = False
    # Whether an undecodable vote or term is enough for that (PeerFacts.undecodable_votes).
    is_about_votes = False
    # Whether a peer breaks it by not acting. That says little about the cause, so all diagnoses are tried.
    is_omission = False

    def __init_subclass__(cls) -> None:
        for name in vars(cls):
            if name.startswith("on_") and name not in _STEPS:
                near = difflib.get_close_matches(name, _STEPS, n=1)
                hint = f"; did you mean {near[0]}?" if near else ""
                raise TypeError(f"{cls.__name__}.{name}(): unknown event method{hint}")

    def __init__(self, facts: Facts, reporter: Reporter) -> None:
        self.facts = facts
        self._reporter = reporter

    def report_pending(self) -> None:
        """Report a violation that is still pending: another rule is broken and the run ends."""

    def report(self, text: str, *evidence: tuple[int, Message, str] | str, peer: str | None = None) -> NoReturn:
        """End the run. Evidence: lines, or (at_ns, message, "sent" | "delivered" | "answered"), each shown as a line.

        `peer`: the one that broke the rule, if it is not the one whose event this is.
        """
        self._reporter(self, text, *evidence, peer=peer)


def describe_message(at_ns: int, message: Message, what: str) -> str:
    """One message in one line: time, sender, receiver, and the important fields."""
    name = message.method_name
    line = f"  {at_ns / 1e9:.6f} s  {name} {message.source}->{message.target} {what}: {_fields(message)}"
    if what == "answered" or (what == "reply arrived"):
        line += f" -> {message.decode_reply()}"
    return line


def _fields(message: Message) -> str:
    args: Any = message.decode_args()
    try:
        return _paper_fields(message, args)
    except (AttributeError, TypeError):
        return short(args)


def _paper_fields(message: Message, args: Any) -> str:
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


# ---- text ------------------------------------------------------------------------------------------------------


def peers_text(names: Sequence[str]) -> str:
    """ "peer 1", "peers 0 and 2", "peers 0, 1 and 2"; at least one."""
    *rest, last = names
    return f"peers {', '.join(rest)} and {last}" if rest else f"peer {last}"


def majority_note(count: int, servers: int) -> str:
    """What to add to "2 of 4"."""
    return "; half is not a majority" if 2 * count == servers else ""
