"""Other plans made of a plan: earlier, with fewer servers, under other numbers. Nothing here runs.

Start at `renamed()`.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import replace

from msgspec.structs import replace as changed

from labsim.deciding import Choices, NodeSeed
from labtest.acts import Act
from labtools.shrink.attempts import Plan

_LIVES = 3  # of a peer, at most, in a run that is short


def renamed(plan: Plan, names: dict[int, int], *, servers: int) -> Plan:
    """Each server under another number; what is about number -1 is left out."""
    play = plan.play
    assert play is not None
    acts = [under for act in play.acts if (under := renamed_act(act, names)) is not None]
    choices = Choices()
    for (place, ordinal), value in plan.choices.chosen.items():
        parts = tuple(renamed_part(part, names) for part in place)
        if not any("-1" in part for part in parts):
            choices.chosen[parts, ordinal] = value
    for old, new in names.items():
        # Under another number it draws the same timeouts.
        for incarnation in range(1, _LIVES + 1) if new not in (old, -1) else ():
            timeouts = NodeSeed(str(old), incarnation).plain
            choices.chosen.setdefault((("node", str(new)), incarnation), timeouts)
    return replace(plan, choices=choices, play=changed(play, acts=acts, how={**play.how, "servers": servers}))


def with_acts_or_none(plan: Plan, choices: Choices) -> Iterator[Plan]:
    assert plan.play is not None
    if plan.play.acts:
        yield replace(plan, choices=choices, play=changed(plan.play, acts=[]))
    yield replace(plan, choices=choices)


def cut_off(acts: Sequence[Act]) -> list[tuple[int, int, int]]:
    """Which peer reaches nobody, from when until when."""
    found, end_ns = [], acts[-1].at_ns + 1 if acts else 0
    for number, act in enumerate(acts):
        later = acts[number + 1 :]
        if act.does == "disconnect":
            back = next((other.at_ns for other in later if other.does == "connect" and other.peer == act.peer), end_ns)
            found.append((act.args[0], act.at_ns, back))
        elif act.does == "network.partition":
            next_ns = next((other.at_ns for other in later if other.does == act.does), end_ns)
            found += [(int(side[0]), act.at_ns, next_ns) for side in act.args if len(side) == 1]
    return found


def moved(acts: Sequence[Act], from_ns: int, by_ns: int) -> list[Act]:
    """Those from that time on come so much earlier; who was in between is there at its begin."""
    begin_ns = max(0, from_ns - by_ns)
    moved = []
    for act in acts:
        if act.at_ns >= from_ns:
            moved.append(changed(act, at_ns=act.at_ns - (from_ns - begin_ns)))
        else:
            moved.append(changed(act, at_ns=min(act.at_ns, begin_ns)))
    return moved


def renamed_act(act: Act, names: dict[int, int]) -> Act | None:
    if act.peer is not None:
        if names[act.peer] < 0:
            return None
        return changed(act, args=[names[act.peer], *act.args[1:]])
    if act.does == "network.partition":
        sides = [[renamed_part(name, names) for name in side] for side in act.args]
        left = [side for side in ([name for name in side if name != "-1"] for side in sides) if side]
        return changed(act, args=left if len(left) > 1 else [])
    if act.does == "network.link":
        ends = [renamed_part(name, names) for name in act.args[:2]]
        return None if "-1" in ends else changed(act, args=[*ends, *act.args[2:]])
    if act.does in ("make_client", "connect_client") and act.args[1] is not None:
        return changed(act, args=[act.args[0], [names[i] for i in act.args[1] if names[i] >= 0]])
    return act


def renamed_part(part: str, names: dict[int, int]) -> str:
    """ "0", or "0->1". Other words stay as they are."""
    ends = part.split("->")
    return "->".join(str(names.get(int(end), int(end))) if end.isdecimal() else end for end in ends)
