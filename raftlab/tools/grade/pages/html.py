"""HTML that is safe against text from submissions: markup has the type `Html`, and all other text is escaped.

Promise: `el()` escapes every child and attribute that is not `Html`, so escaping cannot be forgotten. Escaped text
cannot reorder or hide text around it. A page needs no other file and no network, and its policy forbids loading any.
The same arguments give the same bytes.

Start at `el()` and `page()`.
"""

from __future__ import annotations

import base64
import hashlib
import os
import re
from collections.abc import Iterable
from html import escape
from urllib.parse import quote

from raftlab.tools.grade.pages.style import CSS
from raftlab.tools.grade.values.rubric import FUZZ, OTHER, RACE

_ANSI = re.compile(r"\x1b\[[0-?]*[ -/]*[@-~]")
# Control characters, and those without width or that change text direction: invisible, they could change a text.
_UNSEEN = re.compile(
    "[\x00-\x08\x0b-\x1f\x7f-\x9f\xad\u034f\u061c\u115f\u1160\u17b4\u17b5\u180e\u200b\u200e\u200f\u2028-\u202e"
    "\u2060-\u206f\u3164\ufeff\uffa0\ufff0-\ufffb\ufffe\uffff\U000e0000-\U000e00ff]"
)
_SURROGATE = re.compile("[\ud800-\udfff]")
# More accents on one letter than any language uses would cover the lines above and below.
_ACCENT = "[\u0300-\u036f\u0483-\u0489\u1ab0-\u1aff\u1dc0-\u1dff\u20d0-\u20f0\ufe20-\ufe2f]"
_PILE = re.compile(f"({_ACCENT}{{4}}){_ACCENT}+")
_INDENT_MAX = 12  # more leaves no room on a phone
_INLINE = frozenset(("a", "b", "bdi", "code", "i", "pre", "small", "span", "td", "th"))


class Html(str):
    """Markup. Adding a plain string to one gives a plain string again, which is escaped like any other."""

    __slots__ = ()


def visible(text: str) -> str:
    """The text, with invisible characters replaced by a sign or a number, and without terminal colors."""
    text = _ANSI.sub("", text.replace("\r\n", "\n"))
    text = _SURROGATE.sub("\ufffd", _UNSEEN.sub(_sign, text))
    return _PILE.sub(r"\1", text)


def _sign(found: re.Match[str]) -> str:
    code = ord(found.group())
    if code < 0x20:
        return chr(0x2400 + code)  # Unicode's pictures of control characters are in the same order
    return "␡" if code == 0x7F else f"[U+{code:04X}]"


def clipped(text: str, chars_max: int) -> str:
    return text if len(text) <= chars_max else f"{text[: chars_max - 1]}…"


def safe(text: str) -> Html:
    return text if isinstance(text, Html) else Html(escape(visible(text), quote=True))


def join(parts: Iterable[str]) -> Html:
    return Html("".join(safe(part) for part in parts))


def el(name: str, *children: str, **attributes: str) -> Html:
    """`el("td", "<b>", class_="number")`. Attributes that are "" are left out."""
    given = "".join(
        f' {key.rstrip("_").replace("_", "-")}="{safe(value)}"' for key, value in attributes.items() if value
    )
    after = "" if name in _INLINE else "\n"
    return Html(f"<{name}{given}>{join(children)}</{name}>{after}")


def part_name(part: str) -> str:
    return {OTHER: "Other", RACE: "Races", FUZZ: "Random runs"}.get(part) or f"Part {part.upper()}"


def code(name: str) -> Html:
    """A name from a program, which may wrap after its underscores."""
    return el("code", Html("_<wbr>".join(safe(part) for part in name.split("_"))))


def lines(text: str) -> Html:
    """Preformatted text. Lines that are too long wrap with an indent, so that line starts stay visible."""
    rows = []
    for line in visible(text.rstrip()).split("\n"):
        indent = min(len(line) - len(line.lstrip(" ")), _INDENT_MAX)
        rows.append(el("span", f"{line}\n", style=f"--indent:{indent}ch" if indent else ""))
    return el("pre", *rows, tabindex="0")


def bar(share: float, *, bad: bool = False) -> Html:
    """A decorative bar, beside its number."""
    width = el("span", style=f"width:{100 * min(max(share, 0.0), 1.0):.1f}%")
    return el("span", width, class_="bar bad" if bad else "bar", aria_hidden="true")


def table(head: Iterable[str], rows: Iterable[str], **attributes: str) -> Html:
    """`head`: the cells of the first row. A table wider than the screen scrolls by itself."""
    whole = el("table", el("thead", el("tr", *head)), el("tbody", *rows), **attributes)
    return el("div", whole, class_="scroll")


def heads(*names: str) -> list[Html]:
    """A name that begins with # is for a column of numbers."""
    return [el("th", name.removeprefix("#"), scope="col", class_="number" * name.startswith("#")) for name in names]


def local_link(path: str) -> str:
    """A relative path as a link, which stays relative whatever the file's name."""
    try:
        raw = os.fsencode(path)
    except UnicodeEncodeError:
        raw = path.encode("utf-8", "replace")
    return f"./{quote(raw, safe='/')}"


def page(title: str, body: Iterable[str], script: str = "") -> str:
    """The whole document. Its policy forbids loading or running anything else."""
    policy = "default-src 'none'; style-src 'unsafe-inline'; base-uri 'none'; form-action 'none'"
    running = Html("")
    if script:
        digest = base64.b64encode(hashlib.sha256(script.encode()).digest()).decode()
        policy += f"; script-src 'sha256-{digest}'"
        running = Html(f"<script>{script}</script>\n")
    return (
        "<!DOCTYPE html>\n"
        '<html lang="en">\n<head>\n<meta charset="utf-8">\n'
        f'<meta http-equiv="Content-Security-Policy" content="{policy}">\n'
        '<meta name="viewport" content="width=device-width, initial-scale=1">\n'
        '<meta name="color-scheme" content="light dark">\n'
        '<meta name="referrer" content="no-referrer">\n'
        f"<title>{safe(clipped(title, 200))}</title>\n<style>{CSS}</style>\n</head>\n<body>\n"
        f"{el('main', *body)}{running}</body>\n</html>\n"
    )
