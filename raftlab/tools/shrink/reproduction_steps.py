"""The steps that reproduce a shrunk run, as text: "1.240 s  peer 2 crashes before its next save".

Start at `reproduction_steps()`.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from typing import Any, NamedTuple

from labrpc.conditions import Transit
from labsim import Event
from labsim.choices import ChoiceKind, ChoicePoint
from labsim.stacks import short_path
from raftlab.check.failure import short
from raftlab.tools.shrink.attempts import Attempt, transits_of
from raftlab.tools.shrink.scenario_writer import steps_in
from raftlab.trace import events
from raftlab.trace.operations import ASKS, CLIENT, ENDS, FAULTS, NETWORK, ScheduledOperation

_MS = 1_000_000
# Messages with shorter delays are only counted.
_SHORT_DELAY_NS = 20 * _MS
_BATCH_NS = 100 * _MS  # commands within this time share a line
_PICKS_MAX = 2
_PREEMPTIONS_MAX = 5  # of one peer
_GROUP_MIN = 3  # this many messages with the same outcome share a line


class _TimedStep(NamedTuple):
    at_ns: int
    text: str


def reproduction_steps(attempt: Attempt) -> list[str]:
    """Sorted by time; steps without a time come last."""
    if attempt.plan.play is not None and attempt.plan.play.steps:
        return steps_in(attempt.plan.play.steps)
    lines = [*_acts(_faults_or_all(attempt), attempt), *_messages(attempt), *_preemptions(attempt)]
    timed = [f"{line.at_ns / 1e9:.3f} s  {line.text}" for line in sorted(lines, key=lambda line: line.at_ns)]
    return [*timed, *_others(attempt)]


def reproduction_header(attempt: Attempt) -> str:
    """The line before the steps."""
    play = attempt.plan.play
    if play is None:
        dropped = sum(place[0] == "act" for place, _ in attempt.plan.choices.chosen)
        without = f" without {_count(dropped, 'fault')}" if dropped else ""
        return f"To reproduce the failure, run the test{without}"
    return f"To reproduce the failure with {_count(play.how.get('servers', 3), 'server')}"


def _count(number: int, what: str) -> str:
    return f"{number:,} {what}" if number == 1 else f"{number:,} {what}s"


# ---- what is done ---------------------------------------------------------------------------------------------------


def _faults_or_all(attempt: Attempt) -> list[ScheduledOperation]:
    if attempt.plan.play is not None:
        return list(attempt.plan.play.acts)
    return [act for cluster in attempt.notes.clusters for act in cluster.acts if act.does not in ASKS]


def _acts(acts: Sequence[ScheduledOperation], attempt: Attempt) -> Iterator[_TimedStep]:
    ended: set[int] = set()  # indexes of acts that an earlier line covers
    for number, act in enumerate(acts):
        if number in ended:
            continue
        later = [(n, other) for n, other in enumerate(acts) if n > number]
        if act.does == "start":
            same = [
                (n, other)
                for n, other in later
                if other.does == "start" and other.peer == act.peer and other.at_ns - act.at_ns < _BATCH_NS
            ]
            ended.update(n for n, _ in same)
            commands = [act.args[1], *(other.args[1] for _, other in same)]
            yield _TimedStep(act.at_ns, f"peer {act.peer} is given {_commands(commands)}")
        elif act.does in FAULTS or act.does.startswith(NETWORK):
            if act.ends_something:
                whole = act.does.startswith(NETWORK)
                text = "all links are restored" if whole else f"peer {act.peer} will not crash any more"
                yield _TimedStep(act.at_ns, text)
                continue
            until = next(((n, other) for n, other in later if _ends(other, act)), None)
            if until is not None and not act.does.startswith(NETWORK):
                ended.add(until[0])
                ended.update(n for n, other in later if other.does == "connect" and other.peer == act.peer)
            yield _TimedStep(act.at_ns, f"{_fault(act, attempt)}{_until(act, until)}")
        elif act.does in ENDS:
            if act.does != "connect":
                yield _TimedStep(act.at_ns, f"peer {act.peer} {'restarts' if act.does == 'start1' else 'resumes'}")
        elif act.does == "get_state":
            yield _TimedStep(act.at_ns, f"peer {act.peer} is asked for its state")
        elif act.does == "take_snapshot":
            yield _TimedStep(act.at_ns, f"the service of peer {act.peer} makes a snapshot up to index {act.args[1]}")
        elif act.does.startswith(CLIENT):
            name, key, *value = act.args
            word = {"get": f"reads {key!r}", "put": f"writes {short(value[:1])[1:-1]} to {key!r}"}.get(
                act.does.removeprefix(CLIENT), f"appends {short(value[:1])[1:-1]} to {key!r}"
            )
            yield _TimedStep(act.at_ns, f"{name} {word}")
        elif act.does == "make_client" and act.args[1] is not None:
            yield _TimedStep(act.at_ns, f"{act.args[0]} reaches only {_peers(act.args[1])}")
        elif act.does == "connect_client":
            yield _TimedStep(act.at_ns, f"{act.args[0]} reaches {_peers(act.args[1])}")


def _commands(commands: Sequence[Any]) -> str:
    if len(commands) == 1:
        return f"the command {short(commands[0])}"
    if len(commands) > 4:
        return f"{len(commands)} commands, {short(commands[0])} to {short(commands[-1])}"
    return f"the commands {', '.join(short(command) for command in commands)}"


def _peers(peers: Iterable[Any]) -> str:
    named = [str(peer) for peer in peers]
    return "no server" if not named else f"server {named[0]}" if len(named) == 1 else f"servers {', '.join(named)}"


def _fault(act: ScheduledOperation, attempt: Attempt) -> str:
    match act.does, act.args:
        case "crash1", [i, *_]:
            return f"peer {i} crashes"
        case "disconnect", [i, *_]:
            return f"peer {i} is disconnected"
        case "pause", [i, *_]:
            return f"peer {i} is paused"
        case "crash_at", [i, when, *_]:
            crash = next((e for e in attempt.trace if e.kind == events.CRASH and e.node == str(i)), None)
            at = "" if crash is None else f" at {crash.at_ns / 1e9:.3f} s"
            word, what = str(when).split()
            return f"peer {i} crashes {word} its next {what}{at}"
        case "slow_disks", [low, high, *_]:
            return f"every save takes {low:g} to {high:g} ms"
        case "slow_snapshots", [i, ms, *_]:
            return f"the service of peer {i} takes {ms:g} ms to make a snapshot"
        case "network.partition", sides:
            return f"the network is partitioned: {' | '.join(' '.join(map(str, side)) for side in sides)}"
        case "network.link", [source, target, *_]:
            return f"{source}->{target}: {_link(act.kwargs)}"
        case "network.latency", [low, high]:
            return f"messages take {low:g} to {high:g} ms"
        case "network.duplicates", [chance]:
            return f"{chance:.0%} of the requests are duplicated"
        case "network.reliable", [yes]:
            return "the network is reliable" if yes else "the network is unreliable"
        case "network.long_reordering", [yes]:
            return "replies may be delayed and reordered" if yes else "replies are not delayed"
    return f"{act.does}({', '.join(map(str, act.args))})"


def _link(changes: dict[str, Any]) -> str:
    parts = []
    if changes.get("cut"):
        parts.append("is cut")
    if changes.get("loss"):
        parts.append(f"loses {changes['loss']:.0%} of the messages")
    if changes.get("latency_ms") is not None:
        low, high = changes["latency_ms"]
        parts.append(f"takes {low:g} to {high:g} ms more")
    return " and ".join(parts) or "is restored"


def _ends(act: ScheduledOperation, fault: ScheduledOperation) -> bool:
    if fault.does == "network.partition":
        return act.does == fault.does
    begun = {"start1": ("crash1", "crash_at"), "connect": ("disconnect",), "resume": ("pause",)}.get(act.does, ())
    return fault.does in begun and act.peer == fault.peer


def _until(act: ScheduledOperation, until: tuple[int, ScheduledOperation] | None) -> str:
    if until is None or act.does.startswith(NETWORK):
        return ""
    end = until[1]
    if act.does in ("crash1", "crash_at"):
        return " and restarts" if end.at_ns == act.at_ns else f" and restarts at {end.at_ns / 1e9:.3f} s"
    return f" until {end.at_ns / 1e9:.3f} s"


# ---- what happens to messages ---------------------------------------------------------------------------------------


def _messages(attempt: Attempt) -> Iterator[_TimedStep]:
    sent = {
        (f"{event.detail.source}->{event.detail.target}", event.detail.rpc, event.detail.ordinal): event
        for event in attempt.trace
        if event.kind == events.SEND
    }
    alike: dict[tuple[ChoicePoint, str], list[tuple[int, Transit, Event | None]]] = {}
    for (place, ordinal), transit in transits_of(attempt.plan.choices).items():
        event = sent.get((place[1].partition(" of ")[0], place[2], ordinal))
        if not _is_short_delay(transit):
            kind = "lost" if transit.lost else "twice" if transit.duplicate_ns is not None else "late"
            alike.setdefault((place, kind), []).append((ordinal, transit, event))
    for (place, kind), group in alike.items():
        if len(group) < _GROUP_MIN:
            yield from (_transit(place, *one) for one in group)
        else:
            yield _transits(place, kind, group)


def _preemptions(attempt: Attempt) -> Iterator[_TimedStep]:
    """Preemptions (raftlab/races), one per line, or the number per peer if there are many."""
    preempted: dict[str, list[Event]] = {}
    for event in attempt.trace:
        if event.kind == events.PREEMPT:
            preempted.setdefault(event.node, []).append(event)
    for node, group in preempted.items():
        if len(group) > _PREEMPTIONS_MAX:
            yield _TimedStep(group[0].at_ns, f"threads of peer {node} are preempted {len(group)} times")
            continue
        for event in group:
            preemption = event.detail
            late = f" for {preemption.late_ns / _MS:.0f} ms" if preemption.late_ns else ""
            where = f"{short_path(preemption.file)}:{preemption.line}"
            yield _TimedStep(event.at_ns, f"{preemption.task} of peer {node} is preempted at {where}{late}")


def _transits(place: ChoicePoint, kind: str, group: Sequence[tuple[int, Transit, Event | None]]) -> _TimedStep:
    method = place[2].rpartition(".")[2]
    what = (
        f"{len(group)} {method}s {place[1]}"
        if place[0] == "request"
        else f"{len(group)} replies to {method} {place[1]}"
    )
    at_ns = min((event.at_ns for _, _, event in group if event is not None), default=0)
    if kind == "lost":
        return _TimedStep(at_ns, f"{what} are lost")
    if kind == "twice":
        return _TimedStep(at_ns, f"{what} arrive twice")
    delays = [transit.delay_ns / _MS for _, transit, _ in group]
    return _TimedStep(at_ns, f"{what} take {min(delays):.0f} to {max(delays):.0f} ms")


def _is_short_delay(transit: Transit) -> bool:
    return not transit.lost and transit.duplicate_ns is None and transit.delay_ns < _SHORT_DELAY_NS


def _transit(place: ChoicePoint, ordinal: int, transit: Transit, event: Event | None) -> _TimedStep:
    method = place[2].rpartition(".")[2]
    which = (
        f"{method} {place[1]}, number {ordinal}" if event is None else f"{method} {place[1]} (message {event.message})"
    )
    name = which if place[0] == "request" else f"the reply to {which}"
    at_ns = 0 if event is None else event.at_ns
    if transit.lost:
        return _TimedStep(at_ns, f"{name} is lost")
    if transit.duplicate_ns is not None:
        return _TimedStep(at_ns, f"{name} arrives twice, the second time after {transit.duplicate_ns / _MS:.0f} ms")
    return _TimedStep(at_ns, f"{name} takes {transit.delay_ns / _MS:.0f} ms")


def _others(attempt: Attempt) -> Iterator[str]:
    choices = attempt.plan.choices
    short_delays = sum(_is_short_delay(transit) for transit in transits_of(choices).values())
    kinds: dict[str, list[tuple[ChoicePoint, int]]] = {}
    for place, ordinal in choices.chosen:
        kinds.setdefault(place[0], []).append((place, ordinal))
    if ChoiceKind.NODE in kinds:
        peers = dict.fromkeys(place[1] for place, _ in kinds[ChoiceKind.NODE])
        yield f"the timeouts of {'peer' if len(peers) == 1 else 'peers'} {', '.join(peers)}"
    if ChoiceKind.SAVE in kinds:
        yield f"the duration of {_count(len(kinds[ChoiceKind.SAVE]), 'save')}"
    if ChoiceKind.CRASH in kinds:
        yield "the save or reply at which the peer crashes"
    if short_delays:
        yield f"the exact delay of {_count(short_delays, 'message')} (a few milliseconds)"
    if ChoiceKind.NO_REPLY in kinds:
        yield f"the time until {_count(len(kinds[ChoiceKind.NO_REPLY]), 'call')} failed for lack of a reply"
    if ChoiceKind.TESTER in kinds:
        yield f"{_count(len(kinds[ChoiceKind.TESTER]), 'random number')} that the test draws"
    picks = list(choices.picked.items())
    if len(picks) <= _PICKS_MAX:
        yield from (f"{at_ns / 1e9:.3f} s  {task} runs first" for (at_ns, _), task in picks)
    else:
        yield f"which thread runs first, at {len(picks)} points"
