"""Names a call in a function so that edits of comments, texts or layout do not change the name.

Promise: `call_site()` names a call by its function's qualified name and by its ordinal among the function's calls of
certain names, in source order. Comments, formatting, docstrings, local variables and the module do not matter, nor does
the name of a test: `test_figure8_2c.<locals>.client` is `test.<locals>.client`. Adding a call to a function may change
the ordinals of that function's calls only.

Not promised: unique names. A call inside another's arguments shares the other's name, and so does a call through
another name; counts per call site then cover both.

Start at `call_site()`.
"""

from __future__ import annotations

import dis
from bisect import bisect_left
from collections.abc import Set
from functools import lru_cache
from types import CodeType, FrameType

# The instructions that load a function by name. Local variables are left out, so that they can be renamed.
_LOADS = frozenset(("LOAD_GLOBAL", "LOAD_NAME", "LOAD_ATTR", "LOAD_METHOD"))
_ATTRIBUTES = frozenset(("LOAD_ATTR", "LOAD_METHOD"))


def call_site(frame: FrameType, names: Set[str]) -> str:
    """The call that the frame is making, as `function#ordinal`."""
    code = frame.f_code
    function = code.co_qualname
    if function.startswith("test_"):
        _, dot, inside = function.partition(".")
        function = f"test{dot}{inside}"
    offsets, ordinals = _calls_of(code, frozenset(names))
    i = bisect_left(offsets, frame.f_lasti)
    return f"{function}#{ordinals[i - 1] if i else 0}"


@lru_cache(maxsize=1024)
def _calls_of(code: CodeType, names: frozenset[str]) -> tuple[list[int], list[int]]:
    """The bytecode offsets where one of the names is loaded, and the ordinal of each in the source, from 1."""
    instructions = [each for each in dis.get_instructions(code) if each.opname not in ("CACHE", "EXTENDED_ARG")]
    offsets, positions = [], []
    for i, each in enumerate(instructions):
        # `random.random()` is one call, not two: the first name is a module.
        is_module = i + 1 < len(instructions) and instructions[i + 1].opname in _ATTRIBUTES
        if each.opname in _LOADS and each.argval in names and not is_module:
            where = each.positions
            line, column = (where.lineno, where.end_col_offset) if where is not None else (None, None)
            offsets.append(each.offset)
            positions.append((line or 0, column or 0))
    # The body of a `finally` is compiled twice, but is one place in the source.
    in_order = {position: ordinal for ordinal, position in enumerate(sorted(set(positions)), start=1)}
    return offsets, [in_order[position] for position in positions]
