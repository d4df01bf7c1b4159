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


class Causality:
    def __init__(self, servers: int) -> None:
        self._servers = servers
        self._nodes: dict[str, _Node] = {}
        self._requests: dict[int, Knowledge] = {}
        self._replies: dict[int, Knowledge] = {}

    def _node(self, name: str) -> _Node:
        node = self._nodes.get(name)
        if node is None:
            node = self._nodes[name] = _Node(self._servers)
        return node

    def _known(self, name: str) -> Knowledge:
        node = self._node(name)
        if node.knowledge is None:
            node.knowledge = (tuple(node.clock), tuple(node.disks))
        return node.knowledge

    def record_send(self, event: Event) -> None:
        self._requests[event.message] = self._known(event.node)

    def record_delivery(self, event: Event) -> None:
        self._merge(event.node, event.detail.source, self._requests.get(event.message))

    def record_answer(self, event: Event) -> None:
        self._replies[event.message] = self._known(event.node)

    def record_reply(self, event: Event) -> None:
        self._merge(event.node, event.detail.target, self._replies.get(event.message))

    def _merge(self, name: str, source: str, known: Knowledge | None) -> None:
        node = self._node(name)
        if known is None or node.merged.get(source) is known:
            return
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
        node = self._node(server)
        node.disks[int(server)] = tuple(node.clock)
        node.durable = self._known(server)

    def _tick(self, server: str) -> int:
        node = self._node(server)
        node.clock[int(server)] += 1
        node.knowledge = None
        return node.clock[int(server)]

    def record_crash(self, server: str) -> None:
        """It knows what is on its disk, and nothing else."""
        node = self._node(server)
        own = node.clock[int(server)]
        clock, disks = node.durable
        node.clock, node.disks = list(clock), list(disks)
        node.clock[int(server)] = own
        node.knowledge = None
        node.merged.clear()

    def may_have_saved(self, observer: str, starter: str, call: int) -> list[str]:
        """The servers that saved after they could know of that start(), by saves that the observer can know of."""
        disks = self._node(observer).disks
        return [str(server) for server, disk in enumerate(disks) if disk is not None and disk[int(starter)] >= call]
