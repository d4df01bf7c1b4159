"""Functions that make other plans from a plan: shifted in time, with fewer servers, with other server numbers.

Nothing here runs a plan. Start at `with_server_numbers()`.
"""

from __future__ import annotations

import random as _random
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace

from msgspec.structs import replace as changed

from labrpc.conditions import TRANSIT_KINDS, Transit
from labsim.choices import ChoiceKind, ChoicePoint, Choices, NodeSeed
from raftlab.tools.shrink.attempts import RunPlan, transits_of
from raftlab.trace.operations import ScheduledOperation

AskedNs = Mapping[tuple[ChoicePoint, int], int]

_INCARNATIONS_MAX = 3  # of a peer in a short run
_NEAR_NS = 150_000_000  # more than from one heartbeat to the next


def with_server_numbers(plan: RunPlan, names: dict[int, int], *, servers: int) -> RunPlan:
    """Renumber the servers. What refers to a server with the new number -1 is removed."""
    play = plan.play
    assert play is not None
    acts = [under for act in play.acts if (under := renumber_act(act, names)) is not None]
    choices = Choices()
    for (place, ordinal), value in plan.choices.chosen.items():
        parts = tuple(renumber_part(part, names) for part in place)
        if not any("-1" in part for part in parts):
            choices.chosen[parts, ordinal] = value
    for old, new in names.items():
        # Keep the server's timeouts under its new number.
        for incarnation in range(1, _INCARNATIONS_MAX + 1) if new not in (old, -1) else ():
            timeouts = NodeSeed(str(old), incarnation).default
            choices.chosen.setdefault(((ChoiceKind.NODE, str(new)), incarnation), timeouts)
    return replace(plan, choices=choices, play=changed(play, acts=acts, how={**play.how, "servers": servers}))


def with_and_without_acts(plan: RunPlan, choices: Choices) -> Iterator[RunPlan]:
    assert plan.play is not None
    if plan.play.acts:
        yield replace(plan, choices=choices, play=changed(plan.play, acts=[]))
    yield replace(plan, choices=choices)


def disconnected_spans(acts: Sequence[ScheduledOperation]) -> list[tuple[int, int, int]]:
    """Peers that are disconnected or alone in a partition, with begin and end."""
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


def shift_acts(acts: Sequence[ScheduledOperation], from_ns: int, by_ns: int) -> list[ScheduledOperation]:
    """Remove the time range of `by_ns` before `from_ns`: later acts come earlier, and those in the range happen at its
    begin. A link delay that spans the range is reduced by as much."""
    begin_ns = max(0, from_ns - by_ns)
    shift_acts = []
    for act in acts:
        if act.at_ns >= from_ns:
            shift_acts.append(changed(act, at_ns=act.at_ns - (from_ns - begin_ns)))
        else:
            act = _shorten_delay(act, begin_ns, by_ns)
            shift_acts.append(changed(act, at_ns=min(act.at_ns, begin_ns)))
    return shift_acts


def _shorten_delay(act: ScheduledOperation, begin_ns: int, by_ns: int) -> ScheduledOperation:
    took_ms = act.kwargs.get("latency_ms") if act.does == "network.link" else None
    under_way_ms = (begin_ns - act.at_ns) / 1e6
    if took_ms is None or not 0 < under_way_ms < took_ms[0]:
        return act
    takes_ms = [max(under_way_ms, ms - by_ns / 1e6) for ms in took_ms]
    return changed(act, kwargs={**act.kwargs, "latency_ms": takes_ms})


def shift_choices(choices: Choices, asked_ns: AskedNs, from_ns: int, by_ns: int) -> Choices:
    """The choices after removing the time range of `by_ns` before `from_ns`. Scheduling choices after it move to an
    earlier instant; messages that are in transit during all of it are delayed less."""
    found = Choices()
    found.chosen = dict(choices.chosen)
    for key, transit in transits_of(choices).items():
        left_ns = asked_ns.get(key, from_ns)
        if left_ns <= from_ns - by_ns:
            still_ns = from_ns - left_ns
            delay_ns = transit.delay_ns - (by_ns if transit.delay_ns >= still_ns else 0)
            duplicate_ns = transit.duplicate_ns and transit.duplicate_ns - (
                by_ns if transit.duplicate_ns >= still_ns else 0
            )
            found.chosen[key] = changed(transit, delay_ns=delay_ns, duplicate_ns=duplicate_ns)
    for (at_ns, nth), task in choices.picked.items():
        found.picked[at_ns - by_ns if at_ns >= from_ns else at_ns, nth] = task
    return found


def rematch_messages(choices: Choices, wanted_ns: AskedNs, asked_ns: AskedNs) -> Choices | None:
    """When fewer messages are sent, the fifth becomes the third. Assign each choice to the message or save of its kind
    that was sent at the intended time. `asked_ns`: the times in the other run. None if nothing changes."""
    places: dict[ChoicePoint, list[tuple[int, int]]] = {}
    for (place, ordinal), at_ns in asked_ns.items():
        places.setdefault(place, []).append((at_ns, ordinal))
    found = Choices()
    found.picked = choices.picked
    for (place, ordinal), value in choices.chosen.items():
        due_ns = wanted_ns.get((place, ordinal))
        if place[0] in (*TRANSIT_KINDS, ChoiceKind.SAVE) and due_ns is not None:
            near = [(abs(at_ns - due_ns), n) for at_ns, n in places.get(place, ()) if (place, n) not in found.chosen]
            distance_ns, nearest = min(near, default=(_NEAR_NS, ordinal))
            ordinal = nearest if distance_ns < _NEAR_NS else ordinal
        found.chosen[place, ordinal] = value
    return None if found.chosen.keys() == choices.chosen.keys() else found


def with_timeouts(choices: Choices, seed: int, servers: int) -> Choices:
    """The same choices with other timeouts for every server."""
    found = Choices()
    found.chosen, found.picked = dict(choices.chosen), choices.picked
    for i in range(servers):
        for incarnation in range(1, _INCARNATIONS_MAX + 1):
            timeouts = _random.Random(f"{seed} {i} {incarnation}").getrandbits(64)
            found.chosen[(ChoiceKind.NODE, str(i)), incarnation] = timeouts
    return found


def scale_delay(transit: Transit, part: float) -> Transit:
    return changed(
        transit,
        delay_ns=int(transit.delay_ns * part),
        duplicate_ns=None if transit.duplicate_ns is None else int(transit.duplicate_ns * part),
    )


def with_numbered_commands(plan: RunPlan) -> RunPlan:
    """The first command is 1, the next 2."""
    assert plan.play is not None
    numbers: dict[str, int] = {}
    acts = [
        act
        if act.does != "start"
        else changed(act, args=[act.args[0], numbers.setdefault(repr(act.args[1]), len(numbers) + 1)])
        for act in plan.play.acts
    ]
    return replace(plan, play=changed(plan.play, acts=acts))


def renumber_act(act: ScheduledOperation, names: dict[int, int]) -> ScheduledOperation | None:
    if act.peer is not None:
        if names[act.peer] < 0:
            return None
        return changed(act, args=[names[act.peer], *act.args[1:]])
    if act.does == "network.partition":
        sides = [[renumber_part(name, names) for name in side] for side in act.args]
        left = [side for side in ([name for name in side if name != "-1"] for side in sides) if side]
        return changed(act, args=left if len(left) > 1 else [])
    if act.does == "network.link":
        ends = [renumber_part(name, names) for name in act.args[:2]]
        return None if "-1" in ends else changed(act, args=[*ends, *act.args[2:]])
    if act.does in ("make_client", "connect_client") and act.args[1] is not None:
        return changed(act, args=[act.args[0], [names[i] for i in act.args[1] if names[i] >= 0]])
    return act


def renumber_part(part: str, names: dict[int, int]) -> str:
    """ "0", or "0->1". Other words stay as they are."""
    ends = part.split("->")
    return "->".join(str(names.get(int(end), int(end))) if end.isdecimal() else end for end in ends)
