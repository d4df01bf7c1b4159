"""How a network waits, delays and runs handlers: in virtual time or on real threads.

The network's own steps run one at a time: inside a simulation because tasks take turns, outside because they
hold `turn`.
"""

from __future__ import annotations

import os
import random
import sys
import threading
import traceback
from collections.abc import Callable
from contextlib import AbstractContextManager, nullcontext
from typing import Any

from labrpc.message import Message
from labrpc.server import Server
from labsim import Node, Simulation, Task, current_simulation


def make_transport(seed: int | None) -> VirtualTransport | RealTransport:
    simulation = current_simulation()
    return RealTransport(seed) if simulation is None else VirtualTransport(simulation)


class VirtualTransport:
    turn: AbstractContextManager[Any] = nullcontext()

    def __init__(self, simulation: Simulation) -> None:
        self._simulation = simulation
        self.stream = simulation.stream("network")
        self.later = simulation.call_later
        self._waiting: dict[int, Task] = {}

    def caller_node(self) -> Node | None:
        return self._simulation.current.node

    def emit(self, kind: str, node: Node | None, message: Message, fingerprint: int, note: str = "") -> None:
        self._simulation.emit(kind, node, message.id, message, fingerprint, note)

    def serve(self, fn: Callable[[Message, Server], None], message: Message, server: Server) -> None:
        # Named for reports: "Raft.request_vote from 2".
        self._simulation.spawn(
            fn, message, server, name=f"{message.service_method} from {message.source}", node=server.node
        )

    def wait(self, message: Message) -> None:
        if not message.done:
            self._waiting[message.id] = self._simulation.current
            self._simulation.park(_Reply(message))

    def finish(self, message: Message) -> None:
        caller = self._waiting.pop(message.id, None)
        if caller is not None and not caller.dead:
            if message.answered_by is not None:
                self.emit("reply", caller.node, message.answered_by, 0)
            self._simulation.wake(caller)

    def close(self) -> None:
        pass


class _Reply:
    """What a deadlock report says a caller waits for."""

    __slots__ = ("_message",)

    def __init__(self, message: Message) -> None:
        self._message = message

    def describe_wait(self, waiter: Task) -> str:
        return f"the reply of {self._message.target} to {self._message.service_method}"


class RealTransport:
    """Real threads, the real clock, no trace. For running one test for real, not for running many."""

    def __init__(self, seed: int | None) -> None:
        self.turn: AbstractContextManager[Any] = threading.RLock()
        self.stream = random.Random(seed)
        self._answered: dict[int, threading.Event] = {}
        self._closed = False

    def caller_node(self) -> Node | None:
        return None

    def emit(self, kind: str, node: Node | None, message: Message, fingerprint: int, note: str = "") -> None:
        pass

    def later(self, delay_ns: int, fn: Callable[..., None], *args: Any) -> None:
        def in_turn() -> None:
            with self.turn:
                fn(*args)

        timer = threading.Timer(delay_ns / 1e9, in_turn)
        timer.daemon = True
        timer.start()

    def serve(self, fn: Callable[[Message, Server], None], message: Message, server: Server) -> None:
        def handle() -> None:
            try:
                fn(message, server)
            except BaseException:
                # There is no run to end here. Silence would look like a lost message.
                traceback.print_exc(file=sys.stderr)
                os._exit(70)

        threading.Thread(target=handle, name=f"{message.service_method} from {message.source}", daemon=True).start()

    def wait(self, message: Message) -> None:
        with self.turn:
            if message.done:
                return
            answered = self._answered[message.id] = threading.Event()
        answered.wait()

    def finish(self, message: Message) -> None:
        answered = self._answered.pop(message.id, None)
        if answered is not None:
            answered.set()

    def close(self) -> None:
        self._closed = True
