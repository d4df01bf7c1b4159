"""Servers and the services they offer.

A service is any object. Callers can call its methods that take one annotated argument and annotate their reply:
`def request_vote(self, args: RequestVoteArgs) -> RequestVoteReply`. The annotations are the wire types.
"""

from __future__ import annotations

import inspect
import typing
from collections.abc import Callable
from contextlib import suppress
from typing import Any, NamedTuple, Protocol

from labgob import DecodeError, EncodeError, decode, encode
from labrpc.errors import RpcError
from labrpc.message import Message
from labsim import Node


class RemoteHandlers(Protocol):
    """Runs the handlers of a server in another process. It replies later, by Network.answer()."""

    def deliver(self, message: Message) -> None: ...


class Handler(NamedTuple):
    """One callable method: the bound method and the types of its argument and reply."""

    method: Callable[[Any], Any]
    args_type: Any
    reply_type: Any


def full_name(type_: Any) -> str:
    return f"{type_.__module__}.{type_.__qualname__}" if isinstance(type_, type) else repr(type_)


def is_same_type(one: Any, other: Any) -> bool:
    """Whether these types come from the same definition. Every peer executes its own copy of a module, so its classes
    are other objects than its neighbors'.

    `one` may also be the full name of a type that this process does not have.
    """
    if isinstance(one, str):
        return one == full_name(other)
    if isinstance(one, type) and isinstance(other, type):
        return one.__qualname__ == other.__qualname__ and one.__module__ == other.__module__
    return repr(one) == repr(other)  # list[raft.raft.Entry], ...: a repr has the names


class Service:
    """The methods of one object, under a name (its class's, unless given)."""

    def __init__(self, receiver: object, name: str | None = None) -> None:
        self.receiver = receiver
        self.name = type(receiver).__name__ if name is None else name

    def find_handler(self, method_name: str) -> Handler:
        method = None if method_name.startswith("_") else getattr(self.receiver, method_name, None)
        if not callable(method):
            have = ", ".join(name for name, _ in inspect.getmembers(self.receiver, callable) if name[0] != "_")
            raise RpcError(f"{self.name} has no method {method_name!r}; its methods: {have or 'none'}")
        signature = inspect.signature(method)
        parameters = list(signature.parameters)

        def cannot(why: str) -> RpcError:
            return RpcError(f"{self.name}.{method_name}{signature} cannot be an RPC: {why}")

        try:
            hints = typing.get_type_hints(getattr(method, "__func__", method))
        except NameError as error:
            raise cannot(f"{error}; define this name at module level, or import it there") from None
        if len(parameters) != 1 or parameters[0] not in hints or "return" not in hints:
            raise cannot(
                f"annotate its one argument and its reply, as in 'def {method_name}(self, args: Args) -> Reply'"
            )
        if hints["return"] is type(None):
            raise cannot("it returns None, which the caller takes for a lost reply; return a value")
        return Handler(method, hints[parameters[0]], hints["return"])


class Server:
    """A bundle of services with one address. In a simulation its handlers run as tasks of `node`."""

    def __init__(self, node: Node | None = None) -> None:
        self.node = node
        self.count = 0  # requests that reached it
        self.killed = False  # kill() was called: a handler that returns None sends no reply
        # For the tester: called in the handler's task, just after a reply was sent.
        self.on_answer: Callable[[], None] | None = None
        # Runs the handlers, if another process does.
        self.remote: RemoteHandlers | None = None
        self._services: dict[str, Service] = {}
        self.handlers: dict[str, Handler] = {}  # of every "Service.method" called so far
        # The reply type of every method that this server's own peer has called; None: this server does not offer it.
        self.own_reply_types: dict[str, Any] = {}

    def add_service(self, service: Service) -> None:
        self._services[service.name] = service
        self.handlers.clear()
        self.own_reply_types.clear()

    def find_handler(self, service_method: str) -> Handler:
        service_name, dot, method_name = service_method.rpartition(".")
        if not dot:
            raise RpcError(f"{service_method!r} is not a method; write 'Service.method', as in 'Raft.request_vote'")
        service = self._services.get(service_name)
        if service is None:
            have = ", ".join(self._services) or "none"
            raise RpcError(f"no service {service_name!r} for {service_method!r}; its services: {have}")
        handler = self.handlers[service_method] = service.find_handler(method_name)
        return handler

    def own_reply_type(self, service_method: str, reply_type: Any) -> Any:
        """The type in which this server's own peer decodes the reply: its own copy of the class, if it has one."""
        if service_method not in self.own_reply_types:
            self.own_reply_types[service_method] = None
            with suppress(RpcError):
                self.own_reply_types[service_method] = self.find_handler(service_method).reply_type
        own = self.own_reply_types[service_method]
        return own if is_same_type(own, reply_type) else reply_type

    def handle(
        self, service_method: str, request: bytes, sent_type: Any, source: str, target: str
    ) -> tuple[bytes | None, Any]:
        """Decode, call the method, encode. Returns the reply and its type; None from a killed server: no reply.

        `sent_type`: the argument's type or its full name; "" if it is not known.
        """
        handler, args = self.read(service_method, request, sent_type, source, target)
        return self.run(handler, args, service_method, target), handler.reply_type

    def read(
        self, service_method: str, request: bytes, sent_type: Any, source: str, target: str
    ) -> tuple[Handler, Any]:
        """The handler and its argument. An error here is the caller's mistake."""
        try:
            handler = self.handlers.get(service_method) or self.find_handler(service_method)
        except RpcError as error:
            raise RpcError(f"{source} called {service_method!r} of {target}: {error}") from None
        args_type = handler.args_type
        if (
            sent_type is not args_type
            and args_type.__class__ is type
            and sent_type != ""
            and not is_same_type(sent_type, args_type)
        ):
            raise RpcError(
                f"{source} called {service_method} of {target} with {_named(sent_type)}; pass {_named(args_type)}"
            )
        try:
            return handler, decode(request, args_type)
        except DecodeError as error:
            raise RpcError(
                f"{source} called {service_method} of {target} with an argument of the wrong type: {error}"
            ) from error

    def run(self, handler: Handler, args: Any, service_method: str, target: str) -> bytes | None:
        """The encoded reply, or None. An error here is the method's mistake."""
        reply_type = handler.reply_type
        try:
            reply = handler.method(args)
        except SystemExit as error:
            # It would end the task silently, and the caller would wait forever.
            raise RpcError(
                f"{service_method} of {target} called sys.exit({error}); return from the method, or raise an error"
            ) from error
        if reply is None and self.killed:
            return None
        if reply.__class__ is not reply_type and (reply_type.__class__ is type or reply is None):
            wanted = (
                f", which the caller takes for a lost reply; return {_named(reply_type)}"
                if reply is None
                else f"; return {_named(reply_type)}, as annotated"
            )
            wrong = RpcError(f"{service_method} of {target} returned {_named(type(reply))}{wanted}")
            wrong.returned = type(reply)
            raise wrong
        try:
            return encode(reply)
        except EncodeError as error:
            raise RpcError(f"{service_method} of {target} returned a value that cannot be encoded: {error}") from error


def _named(type_: Any) -> str:
    if type_ is type(None):
        return "None"
    if isinstance(type_, str):
        name = type_.rpartition(".")[2]
    else:
        name = type_.__name__ if type_.__class__ is type else str(type_)
    return f"{'an' if name[0] in 'aeiouAEIOU' else 'a'} {name}"
