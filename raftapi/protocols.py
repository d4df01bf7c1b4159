"""The methods of student code that the lab calls: of a Raft peer, of the service, and of the clients' clerk."""

from collections.abc import Callable
from typing import TYPE_CHECKING, Any, Protocol, TypeAlias

if TYPE_CHECKING:
    from labrpc import ClientEnd
    from labsim import queue
    from raftapi.apply_msg import ApplyMsg
    from raftapi.persister import Persister


class Peer(Protocol):
    """A Raft peer: the class Raft in raft/raft.py."""

    def start(self, command: Any) -> tuple[int, int, bool]: ...
    def get_state(self) -> tuple[int, bool]: ...
    def snapshot(self, index: int, snapshot: bytes) -> None: ...
    def kill(self) -> None: ...


PeerClass: TypeAlias = "Callable[[list[ClientEnd], int, Persister, queue.Queue[ApplyMsg]], Peer]"


class KVServer(Protocol):
    """The service on one server, of parts 3A and 3B: the class KVServer in kv/server.py."""

    def kill(self) -> None: ...


class Clerk(Protocol):
    """A client's interface to the service: the class Clerk in kv/client.py."""

    def get(self, key: str) -> str: ...
    def put(self, key: str, value: str) -> None: ...
    def append(self, key: str, value: str) -> None: ...
