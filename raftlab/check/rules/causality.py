"""What a server can know, by happens-before, whatever its messages say.

A server can know of a start() or of a save if a chain of messages leads from there to the server, over other servers or
clients. What a message contains does not matter. Start at `Causality`.
"""

from __future__ import annotations

from labsim import Event

# By server: how many of its start() calls and saves are known (a vector clock).
Clock = tuple[int, ...]
# A clock, and by server the clock that is known to be on its disk.
Knowledge = tuple[Clock, tuple[Clock | None, ...]]


class _Node:
    """A server, or a client."""

    __slots__ = ("clock", "disks", "durable", "knowledge", "merged")

    def __init__(self, servers: int) -> None:
        self.clock = [0] * servers
        self.disks: list[Clock | None] = [None] * servers
        self.knowledge: Knowledge | None = None  # both of these, until one changes
        self.durable: Knowledge = ((0,) * servers, (None,) * servers)  # at its last save
        self.merged: dict[str, Knowledge] = {}  # by sender: what arrived last

    def refresh(self) -> Knowledge:
        known = self.knowledge = (tuple(self.clock), tuple(self.disks))
        return known


class _NodesByName(dict[str, _Node]):
    # A dict and not a method: every message uses it.
    def __init__(self, servers: int) -> None:
        super().__init__()
        self.servers = servers

    def __missing__(self, name: str) -> _Node:
        node = self[name] = _Node(self.servers)
        return node


class Causality:
    def __init__(self, servers: int) -> None:
        self._servers = servers
        self._nodes = _NodesByName(servers)
        # By message, what its sender knew.
        self._requests: dict[int, Knowledge] = {}
        self._replies: dict[int, Knowledge] = {}

    def record_send(self, event: Event) -> None:
        node = self._nodes[event.node]
        self._requests[event.message] = node.knowledge or node.refresh()

    def record_delivery(self, event: Event) -> None:
        known = self._requests.get(event.message)
        node = self._nodes[event.node]
        source = event.detail.source
        if known is not None and node.merged.get(source) is not known:
            self._merge(node, source, known)

    def record_answer(self, event: Event) -> None:
        node = self._nodes[event.node]
        self._replies[event.message] = node.knowledge or node.refresh()

    def record_reply(self, event: Event) -> None:
        known = self._replies.get(event.message)
        node = self._nodes[event.node]
        source = event.detail.target
        if known is not None and node.merged.get(source) is not known:
            self._merge(node, source, known)

    def _merge(self, node: _Node, source: str, known: Knowledge) -> None:
        node.merged[source] = known
        clock, disks = known
        for server in range(self._servers):
            if clock[server] > node.clock[server]:
                node.clock[server] = clock[server]
                node.knowledge = None
            disk, before = disks[server], node.disks[server]
            if disk is not None and disk is not before and (before is None or disk[server] > before[server]):
                node.disks[server] = disk
                node.knowledge = None

    def record_start(self, server: str) -> int:
        """The number of this call, in the server's clock."""
        return self._tick(server)

    def record_save(self, server: str) -> None:
        self._tick(server)
        node = self._nodes[server]
        node.disks[int(server)] = tuple(node.clock)
        node.durable = node.refresh()

    def _tick(self, server: str) -> int:
        node = self._nodes[server]
        node.clock[int(server)] += 1
        node.knowledge = None
        return node.clock[int(server)]

    def record_crash(self, server: str) -> None:
        """It knows what is on its disk, and nothing else."""
        node = self._nodes[server]
        own = node.clock[int(server)]
        clock, disks = node.durable
        node.clock, node.disks = list(clock), list(disks)
        node.clock[int(server)] = own
        node.knowledge = None
        node.merged.clear()

    def may_have_saved(self, observer: str, starter: str, call: int) -> list[str]:
        """The servers that saved after they could know of that start(), by saves that the observer can know of."""
        disks = self._nodes[observer].disks
        return [str(server) for server, disk in enumerate(disks) if disk is not None and disk[int(starter)] >= call]
