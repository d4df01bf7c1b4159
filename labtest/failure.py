"""A test's verdict against a peer, in words for the person who has to find the bug."""

from __future__ import annotations

from collections.abc import Sequence

from labsim import Wait

__all__ = ["Failure", "short"]


class Failure(AssertionError):
    """What was expected and what was seen, in one or two sentences; `evidence` is the rest, a line each.

    `rule` names the rule of the protocol that was broken, where one was seen to be, and not merely a test that
    waited in vain. `peer` names the one that broke it, where a message of its own shows it. `stuck` are the tasks
    that wait where they should not.
    """

    def __init__(
        self,
        text: str,
        evidence: list[str] | None = None,
        *,
        rule: str | None = None,
        peer: str | None = None,
        stuck: Sequence[Wait] = (),
    ) -> None:
        super().__init__(text)
        self.text = text
        self.evidence = evidence or []
        self.rule = rule
        self.peer = peer
        self.stuck = stuck


def short(value: object, width: int = 60) -> str:
    """A value in a sentence: its repr, cut where it would drown the rest."""
    text = repr(value)
    return text if len(text) <= width else f"{text[: width - 3]}..."
