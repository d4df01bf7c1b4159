"""Clerks as guests: each client's clerk is a process of its own, with neither a disk nor a server.

What a clerk returns is what its client is said to have got: that is the history which is checked. Start at
`clerk_guest()`.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from labrpc import ClientEnd, Network, Server
from labsim import Node, current_simulation
from labtest.isolation.host import Guest, Ties
from labtest.isolation.protocol import Setup

if TYPE_CHECKING:
    from labtest.isolation.programs import GuestProgram

# Of the memory of all servers together, what one clerk may use beyond what it begins with.
_SHARE = 16


def clerk_guest(program: GuestProgram, node: Node, network: Network, ends: Sequence[ClientEnd], number: int) -> Guest:
    """The process of one clerk, in which nothing has been made yet."""
    simulation = current_simulation()
    assert simulation is not None
    setup = Setup(
        node.name,
        node.incarnation,
        number,
        len(ends),
        node.stream.getrandbits(63),
        simulation.now_ns,
        b"",
        b"",
        lockstep=False,
        memory_mb=max(1, program.limits.memory_mb // _SHARE),
        cpu_s=program.limits.cpu_s,
    )
    # It serves nobody: the server is never made known to the network.
    return Guest(program, simulation, node, Ties(network, Server(node), ends), setup, f"the clerk of {node.name}")


class GuestClerk:
    """What a client calls."""

    def __init__(self, guest: Guest) -> None:
        self._guest = guest

    def get(self, key: str) -> Any:
        return self._guest.ask("Clerk.get", key)

    def put(self, key: str, value: str) -> None:
        self._guest.ask("Clerk.put", key, value)

    def append(self, key: str, value: str) -> None:
        self._guest.ask("Clerk.append", key, value)
