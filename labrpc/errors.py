"""What goes wrong in a call that is not the network's doing: a mistake in the program, never a silent None."""

from __future__ import annotations

__all__ = ["RpcError"]


class RpcError(RuntimeError):
    """A call that could never work: no such service or method, a wrong argument or reply type.

    `returned` is the type of a reply that is not the promised one.
    """

    returned: type | None = None
