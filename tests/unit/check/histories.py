"""Histories for the tests of the checker: made by a real register, spoiled or not, and judged by trying everything."""

import random

from raftlab.check.linearizability import ClientOperation, OperationKind
from raftlab.check.linearizability.history import NEVER


def by_brute_force(operations):
    """Whether some order of all operations, with or without those that never returned, explains every get."""

    def possible(left, value):
        if all(one.pending for one in left):
            return True
        until = min(one.returned for one in left)
        for one in left:
            if one.called < until:
                rest = [other for other in left if other is not one]
                if one.pending and possible(rest, value):
                    return True
                if one.kind is OperationKind.GET:
                    if (one.pending or one.value == value) and possible(rest, value):
                        return True
                elif possible(rest, one.value if one.kind is OperationKind.PUT else value + one.value):
                    return True
        return False

    keys = dict.fromkeys(one.key for one in operations)
    return all(possible([one for one in operations if one.key == key], "") for key in keys)


def made(chance, *, clients, operations, keys=1, written=None, appends=0.3, gets=0.4, lost=0.0):
    """A linearizable history: every operation takes effect at some moment between its call and its return.

    `written` gives the value of a write; by default no two are alike. `lost`: how many never return.
    """
    waiting = dict.fromkeys(range(clients))  # by client: its operation, and whether it took effect
    state, history, moment, begun = {}, [], 0, 0
    while begun < operations or any(waiting.values()):
        ready = [client for client in waiting if waiting[client] or begun < operations]
        client = chance.choice(ready)
        moment += 1
        if waiting[client] is None:
            kind = (
                OperationKind.GET
                if chance.random() < gets
                else OperationKind.APPEND
                if chance.random() < appends
                else OperationKind.PUT
            )
            value = "" if kind is OperationKind.GET else written(begun) if written else f"<{begun}>"
            key = f"k{chance.randrange(keys)}"
            operation = ClientOperation(f"client {client}", kind, key, value, moment, called_s=moment / 1000)
            history.append(operation)
            waiting[client] = [operation, False]
            begun += 1
            continue
        operation, done = waiting[client]
        if not done:
            waiting[client][1] = True
            if operation.kind is OperationKind.GET:
                operation.value = state.get(operation.key, "")
            else:
                before = state.get(operation.key, "") if operation.kind is OperationKind.APPEND else ""
                state[operation.key] = before + operation.value
            if chance.random() >= lost:
                continue
            if (
                chance.random() < 0.5 or operation.kind is OperationKind.GET
            ):  # it took effect, but the client got no reply
                waiting[client] = None
                continue
        operation.returned, operation.returned_s = moment, moment / 1000
        waiting[client] = None
    return history


def spoiled(history, chance):
    """One get returns what another of its key has, or the same with a piece of it more or less. Maybe right still."""
    gets = [one for one in history if one.kind is OperationKind.GET and one.returned != NEVER]
    if gets:
        get = chance.choice(gets)
        values = [one.value for one in history if one.key == get.key]
        get.value = chance.choice(["", *values, get.value + chance.choice(values), chance.choice(values)])
    return history


def small(seed):
    """A small one, right or wrong, with values that are all different or not."""
    chance = random.Random(seed)
    alike = chance.random() < 0.4
    history = made(
        chance,
        clients=chance.randint(1, 4),
        operations=chance.randint(1, 8),
        keys=chance.randint(1, 2),
        written=(lambda _: chance.choice("ab")) if alike else None,
        appends=chance.choice([0, 0.3, 0.7, 1]),
        gets=chance.choice([0.3, 0.5, 0.7]),
        lost=chance.choice([0, 0.3]),
    )
    for _ in range(chance.choice([0, 1, 1, 2, 3])):
        spoiled(history, chance)
    if chance.random() < 0.2:  # a write that came later than it did
        one = chance.choice(history)
        moment = max(other.called for other in history) + 100
        one.called, one.returned = moment, moment + 1
    return history
