"""The clerk: what a client talks to, and what talks to the servers for it.

Promise: each call takes effect once, however often it has to be sent. Not promised: that a call returns while no
majority of the servers can be reached; it tries until then. One call at a time: a client with several threads needs a
clerk for each.

Start at Clerk._ask().
"""

from typing import Any

from kv.messages import OK, GetArgs, PutAppendArgs
from labrpc import ClientEnd
from labsim import random, time

# After a round in which nobody led. An election takes longer, and so the servers are not asked all the time.
PAUSE_S = 0.03


class Clerk:
    """One client's clerk. `servers` are ends that lead to all servers."""

    def __init__(self, servers: list[ClientEnd]) -> None:
        self.servers = servers
        self.client_id = random.getrandbits(62)  # nobody else's
        self.seq = 0  # of the latest request; the servers remember the latest of each client
        self.leader = 0  # who has answered last: most often it still leads

    def get(self, key: str) -> str:
        """The value of a key, "" if it has none."""
        return str(self._ask("KVServer.get", GetArgs(self.client_id, self._next(), key)).value)

    def put(self, key: str, value: str) -> None:
        """Replace the value of a key."""
        self._ask("KVServer.put_append", PutAppendArgs(self.client_id, self._next(), "put", key, value))

    def append(self, key: str, value: str) -> None:
        """Put something behind the value of a key."""
        self._ask("KVServer.put_append", PutAppendArgs(self.client_id, self._next(), "append", key, value))

    def _next(self) -> int:
        self.seq += 1
        return self.seq

    def _ask(self, method: str, args: Any) -> Any:
        """Ask one server after the other, with the very same request, until one has done it."""
        while True:
            for _ in self.servers:
                reply = self.servers[self.leader].call(method, args)
                if reply is not None and reply.err == OK:
                    return reply
                self.leader = (self.leader + 1) % len(self.servers)
            time.sleep(PAUSE_S)
