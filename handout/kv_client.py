"""The clerk: a client calls it, and it calls the servers. You write it.

Each operation takes effect exactly once, however often it is sent (§8). Each client of the tester has its own clerk,
so a clerk has only one call at a time.
"""

from kv.messages import OK, GetArgs, PutAppendArgs  # noqa: F401  # all of them will be needed
from labrpc import ClientEnd
from labsim import log, random, time  # noqa: F401  # most of them will be needed


class Clerk:
    """The clerk of one client. `servers` are the ends of all servers; you have to find the leader yourself."""

    def __init__(self, servers: list[ClientEnd]) -> None:
        self.servers = servers
        # 3A: what identifies this client and each of its requests (§8).

    def get(self, key: str) -> str:
        """Return the value of a key, or "" if it has none. Try until a server answers:

            reply = self.servers[i].call("KVServer.get", GetArgs(key))

        reply is a GetReply, or None if the request or the reply was lost, or the server is down.
        """
        raise NotImplementedError("3A: get, §8")

    def put(self, key: str, value: str) -> None:
        """Replace the value of a key."""
        raise NotImplementedError("3A: put, §8")

    def append(self, key: str, value: str) -> None:
        """Append to the value of a key."""
        raise NotImplementedError("3A: append, §8")
