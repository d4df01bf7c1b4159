"""The clerk, to be written: what a client talks to, and what talks to the servers for it.

Each call takes effect once, however often it has to be sent (§8). One call at a time: the tester gives each of its
clients a clerk of its own.
"""

from kv.messages import OK, GetArgs, PutAppendArgs  # noqa: F401  # all of them will be needed
from labrpc import ClientEnd
from labsim import log, random, time  # noqa: F401  # most of them will be needed


class Clerk:
    """One client's clerk. `servers` are ends that lead to all servers; which of them leads nobody tells you."""

    def __init__(self, servers: list[ClientEnd]) -> None:
        self.servers = servers
        # 3A: what tells your requests from everybody else's, and from each other (§8).

    def get(self, key: str) -> str:
        """The value of a key, "" if it has none. Tries until a server answers:

            reply = self.servers[i].call("KVServer.get", GetArgs(key))

        The reply is a GetReply, or None if the request or the reply was lost, or the server is gone.
        """
        raise NotImplementedError("3A: get, §8")

    def put(self, key: str, value: str) -> None:
        """Replace the value of a key."""
        raise NotImplementedError("3A: put, §8")

    def append(self, key: str, value: str) -> None:
        """Put something behind the value of a key."""
        raise NotImplementedError("3A: append, §8")
