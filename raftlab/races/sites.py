"""Places in a peer's source where a field is read or written, by number: what the rewritten code passes on.

Start at `Sites`.
"""

from __future__ import annotations

import ast
import re
from typing import NamedTuple

_COMMENT = re.compile(rb"#\s*race:\s*ok\b[\s,:;-]*(.*)")


class AccessSite(NamedTuple):
    file: str
    line: int
    function: str
    expression: str  # as it stands there: self.log
    is_constant: bool  # what is written is a literal
    in_own_init: bool  # in the __init__ of the object itself
    comment: str | None  # what the line's `# race: ok` says


class SiteTable:
    """Of one program, over all its modules."""

    def __init__(self) -> None:
        self._all: list[AccessSite] = []
        self._file = ""
        self._comments: dict[int, str] = {}

    def __getitem__(self, number: int) -> AccessSite:
        return self._all[number]

    def begin_file(self, file: str, source: bytes) -> None:
        self._file = file
        self._comments = {}
        for number, line in enumerate(source.splitlines(), start=1):
            if (found := _COMMENT.search(line)) is not None:
                self._comments[number] = found[1].decode(errors="replace").strip()

    def add(self, node: ast.expr, function: str, *, is_constant: bool, in_own_init: bool) -> int:
        lines = range(node.lineno, (node.end_lineno or node.lineno) + 1)
        comment = next((self._comments[line] for line in lines if line in self._comments), None)
        self._all.append(
            AccessSite(self._file, node.lineno, function, ast.unparse(node), is_constant, in_own_init, comment)
        )
        return len(self._all) - 1
