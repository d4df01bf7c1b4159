"""The error for a call that a mistake in the program makes impossible. It never becomes a silent None."""

from __future__ import annotations

__all__ = ["RpcError"]


class RpcError(RuntimeError):
    """A call that can never work: an unknown service or method, a wrong argument or reply type.

    `returned` is the type of the reply, if it differs from the annotation.
    """

    returned: type | None = None
