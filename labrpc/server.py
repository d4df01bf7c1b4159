"""Servers and the services they offer.

A service is any object; its methods that take one annotated argument and are annotated with their reply can be
called: `def request_vote(self, args: RequestVoteArgs) -> RequestVoteReply`. The annotations are the wire types.
"""

from __future__ import annotations

import inspect
import typing
from collections.abc import Callable
from typing import Any, NamedTuple

from labrpc.errors import RpcError
from labsim import Node


class Handler(NamedTuple):
    """One callable method: the bound method and the types of its argument and reply."""

    method: Callable[[Any], Any]
    args_type: Any
    reply_type: Any


class Service:
    """The methods of one object, under a name (its class's, unless given)."""

    def __init__(self, receiver: object, name: str | None = None) -> None:
        self.receiver = receiver
        self.name = type(receiver).__name__ if name is None else name
        self._handlers: dict[str, Handler] = {}

    def handler(self, method_name: str) -> Handler:
        found = self._handlers.get(method_name)
        if found is None:
            found = self._handlers[method_name] = self._look_up(method_name)
        return found

    def _look_up(self, method_name: str) -> Handler:
        method = None if method_name.startswith("_") else getattr(self.receiver, method_name, None)
        if not callable(method):
            have = ", ".join(name for name, _ in inspect.getmembers(self.receiver, callable) if name[0] != "_")
            raise RpcError(f"{self.name} has no method {method_name!r}; it has {have or 'none'}")
        parameters = list(inspect.signature(method).parameters)
        hints = typing.get_type_hints(getattr(method, "__func__", method))
        if len(parameters) != 1 or parameters[0] not in hints or "return" not in hints:
            raise RpcError(
                f"{self.name}.{method_name}{inspect.signature(method)} cannot be called over the network: it must take "
                f"one argument, and annotate it and the reply, as in 'def {method_name}(self, args: Args) -> Reply'"
            )
        return Handler(method, hints[parameters[0]], hints["return"])


class Server:
    """A bundle of services with one address. In a simulation its handlers run as tasks of `node`."""

    def __init__(self, node: Node | None = None) -> None:
        self.node = node
        self.count = 0  # requests that reached it
        self._services: dict[str, Service] = {}
        self._handlers: dict[str, Handler] = {}

    def add_service(self, service: Service) -> None:
        self._services[service.name] = service
        self._handlers.clear()

    def handler(self, service_method: str) -> Handler:
        """The handler of "Service.method"."""
        found = self._handlers.get(service_method)
        if found is None:
            service_name, dot, method_name = service_method.rpartition(".")
            if not dot:
                raise RpcError(f"{service_method!r} is no method; write 'Service.method', as in 'Raft.request_vote'")
            service = self._services.get(service_name)
            if service is None:
                have = ", ".join(self._services) or "none"
                raise RpcError(f"no service {service_name!r} for {service_method!r}; the server has {have}")
            found = self._handlers[service_method] = service.handler(method_name)
        return found
