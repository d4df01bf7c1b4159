"""Numbers the places in a peer's source that read or write a field. Rewritten code passes these numbers.

Start at `SiteTable`.
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
    expression: str  # in the source: self.log
    is_constant: bool  # the value written is a literal
    in_own_init: bool  # in __init__, of self
    comment: str | None  # the text after `# race: ok` in that line


class SiteTable:
    """The sites in all modules of one peer."""

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
