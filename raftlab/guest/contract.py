"""What a student's files must have, and how it is called: modules, classes, methods.

Nothing here imports or runs student code. Start at `CLASSES`.
"""

from __future__ import annotations

import inspect
import linecache
import traceback
import typing
from collections.abc import Callable, Sequence
from types import ModuleType
from typing import Any, TypeVar

from labsim.stacks import short_path
from raftlab.trace.rpcs import RPCS

PACKAGE = "raft"
PEER = "raft.raft"
# Parts 3A and 3B: the service above the peer, and the clerk that clients use.
SERVICE_PACKAGE = "kv"
SERVICE = "kv.server"
CLERK = "kv.client"
_REQUIRED = ("start", "get_state", "kill")
# By module: the required class and its required methods.
CLASSES = {
    PEER: ("Raft", _REQUIRED),
    SERVICE: ("KVServer", ("kill",)),
    CLERK: ("Clerk", ("get", "put", "append")),
}

T = TypeVar("T")


class ImportTimeout(BaseException):
    """The import does not finish. A BaseException, so that `except Exception` in the file does not catch it."""


class PeerCalledExit(Exception):
    """A peer's method raised SystemExit, which a thread would ignore silently."""


def call_peer(fn: Callable[..., T], args: tuple[Any, ...]) -> T:
    """Call a method of a peer. Raises PeerCalledExit instead of SystemExit."""
    try:
        return fn(*args)
    except SystemExit as error:
        raise PeerCalledExit("a peer must not call sys.exit()").with_traceback(error.__traceback__) from None


def renamed_rpcs(peer_class: Any) -> dict[str, str]:
    """The paper's RPCs that this class serves under other names, by the name that callers use: "Raft.ask_vote".

    An RPC is recognized by the type of its argument. It is not recognized if a method has the paper's name, or if
    several methods take that type: a pre-vote, for example, may use it as well.
    """
    methods: dict[str, list[str]] = {}
    for name in dir(peer_class):
        if not name.startswith("_"):
            methods.setdefault(_argument_type(getattr(peer_class, name, None)), []).append(name)
    return {
        f"Raft.{methods[rpc.args_type][0]}": rpc.method
        for rpc in RPCS.values()
        if len(methods.get(rpc.args_type, ())) == 1 and not callable(getattr(peer_class, rpc.method_name, None))
    }


def _argument_type(method: Any) -> str:
    """The name of the argument type of an RPC handler; "" if this is not a handler."""
    try:
        hints = typing.get_type_hints(method)
        parameters = [name for name in inspect.signature(method).parameters if name != "self"]
    except Exception:  # evaluating a student's annotation may raise anything
        return ""
    if len(parameters) != 1 or "return" not in hints:
        return ""
    return getattr(hints.get(parameters[0]), "__name__", "")


def missing_members(module: ModuleType, peer_class: Any, class_name: str, required: Sequence[str]) -> str:
    """What is missing in this module; "" if it can be tested."""
    if not isinstance(peer_class, type):
        classes = [name for name, value in vars(module).items() if _is_defined_in(module, value)]
        found = f"; it has {', '.join(classes)}" if classes else ""
        return f"no class {class_name}{found}"
    missing = [name for name in required if not callable(getattr(peer_class, name, None))]
    if not missing:
        return ""
    # Go's Start and GetState, Java's getState.
    by_lowercase = {name.replace("_", "").lower(): name for name in vars(peer_class) if not name.startswith("_")}
    similar = [f"{by_lowercase[key]} to {name}" for name in missing if (key := name.replace("_", "")) in by_lowercase]
    hint = f" (rename {', '.join(similar)})" if similar else ""
    return f"class {class_name} has no method {', no '.join(missing)}{hint}"


def _is_defined_in(module: ModuleType, value: object) -> bool:
    return isinstance(value, type) and value.__module__ == module.__name__


def describe_load_error(path: str, error: BaseException) -> str:
    """Why that file cannot be imported: the place and the error."""
    if isinstance(error, SyntaxError):
        where = short_path(error.filename or path)
        kind = type(error).__name__
        where += f":{error.lineno}" if error.lineno else ""
        source = f"\n    {error.text.strip()}" if error.text else ""
        return f"{where}: {kind}: {error.msg}{source}"
    frames = traceback.extract_tb(error.__traceback__)
    line = next((f.lineno for f in reversed(frames) if f.filename == path), None)
    where = f"{short_path(path)}{f':{line}' if line else ''}"
    source = f"\n    {linecache.getline(path, line).strip()}" if line else ""
    if isinstance(error, ImportTimeout):
        return f"{where}: the import did not finish within {error}; it is still at this line{source}"
    if isinstance(error, SystemExit):
        return f"{where}: importing it calls sys.exit(){source}"
    return f"{where}: {type(error).__name__} while importing it: {error}{source}"


def check_snapshot_arguments(index: Any, snapshot: Any) -> None:
    """Check what a service passes to snapshot()."""
    if not isinstance(index, int) or not isinstance(snapshot, bytes):
        raise TypeError(
            f"snapshot(index, snapshot) needs an int and bytes, got {type(index).__name__} and "
            f"{type(snapshot).__name__}"
        )
