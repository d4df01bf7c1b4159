"""Renders rows as a table of any width, in color or ASCII: time runs down, one column per peer, roles at its left edge.

Does not use rich.Table, which measures every cell twice: a long run has twenty thousand cells.
Start at `Table.__rich_console__`.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from functools import cache

from rich.cells import cell_len, chop_cells
from rich.console import Console, ConsoleOptions, RenderResult
from rich.segment import Segment
from rich.style import Style

from raftlab.tools.timeline.labels import to_ascii
from raftlab.tools.timeline.rows import Label, Mark, Row

_TONES = {
    "leader": "bold color(16) on green",
    "candidate": "bold color(16) on yellow",
    "follower": "bold bright_blue",
    "vote": "yellow",
    "append": "default",
    "snapshot": "magenta",
    "good": "green",
    "bad": "bright_red",
    "quiet": "bright_black",
    "folded": "bright_black",
    "lost": "red",
    "network": "red",
    "persist": "bright_black",
    "saving": "bright_black",
    "apply": "cyan",
    "start": "bright_white",
    "student": "bright_magenta",
    "phase": "bold",
    "fault": "bold red",
    "heal": "bold green",
    "time": "bright_black",
    "head": "bold",
}
_EDGES = {
    "leader": "bold green",
    "candidate": "bold yellow",
    "follower": "bright_blue",
    "paused": "magenta",
    "down": "default",
}
# By role, connected and disconnected. The shape differs as well as the color: not every screen or printer has colors.
_GLYPHS = {"leader": "█▓", "candidate": "▌▖", "follower": "│┊", "paused": "╳╳", "down": "  "}
_LETTERS = {"leader": "Ll", "candidate": "Cc", "follower": "|:", "paused": "xx", "down": "  "}

_MOST_LINES = 4
_MOST_LINES_OF_STUDENTS = 8
_MOST_LINES_OF_BANNERS = 8
_NARROWEST = 8
_ROOMY = 16
_HEAD_EVERY = 50


class Table:
    """A rich renderable. `clock` writes the time of a row."""

    def __init__(
        self,
        peers: Sequence[str],
        rows: Sequence[Row],
        *,
        ascii_only: bool = False,
        legend: bool = True,
        clock: Callable[[int], str] | None = None,
    ) -> None:
        self._peers = list(peers)
        self._rows = rows
        self._ascii = ascii_only
        self._legend = legend
        self._gap = " "
        self._clock = clock or (lambda at_ns: f"{at_ns / 1e9:.4f}")
        self._time_width = max((len(self._clock(row.at_ns)) for row in (*rows[:1], *rows[-1:])), default=0)
        self._time_width = max(self._time_width, 7)

    def __rich_console__(self, console: Console, options: ConsoleOptions) -> RenderResult:
        count = max(len(self._peers), 1)
        # The time and a gap; then for each peer its edge, a space, the text and, if there is room, another space.
        space = options.max_width - self._time_width - 1
        self._gap = " " if space // count >= _ROOMY else ""
        around = 2 + len(self._gap)
        widths = [max(space // count + (i < space % count) - around, _NARROWEST) for i in range(count)]
        if self._legend:
            yield from self._legend_line(options.max_width)
        since_head = _HEAD_EVERY
        before_ns: int | None = None
        for row in self._rows:
            if since_head >= _HEAD_EVERY:
                yield from self._head(widths)
                since_head = 0
            time = "" if row.at_ns == before_ns else self._clock(row.at_ns)
            before_ns = row.at_ns
            if row.banner:
                yield from self._banner(row, time, sum(widths) + around * count)
                since_head += 1
            else:
                for line in self._lines(row, time, widths):
                    yield from line
                    since_head += 1

    def _text(self, text: str) -> str:
        return to_ascii(text) if self._ascii else text

    def _legend_line(self, width: int) -> Iterator[Segment]:
        glyphs = _LETTERS if self._ascii else _GLYPHS
        shown = 0
        paused = any(mark.role == "paused" for row in self._rows for mark in row.marks.values())
        for role in ("leader", "candidate", "follower", *(["paused"] if paused else [])):
            yield Segment(f"{glyphs[role][0]} ", _style(_EDGES[role]))
            yield Segment(f"{role}  ")
            shown += len(role) + 4
        cut = "".join(glyphs[role][1] for role in ("leader", "candidate", "follower"))
        rest = f"{cut} disconnected"
        for more in ("   t3 term 3", "   4/2 index 4 of term 2", "   +1 one entry", "   c3 commit index 3"):
            if shown + len(rest) + len(more) <= width:
                rest += more
        yield Segment(rest, _style(_TONES["quiet"]))
        yield Segment.line()

    def _head(self, widths: list[int]) -> Iterator[Segment]:
        head = _style(_TONES["head"])
        yield Segment(f"{'time':>{self._time_width}} ", _style(_TONES["time"]))
        line = ""
        for peer, width in zip(self._peers, widths, strict=True):
            line += f"  {_fit(self._text(f'peer {peer}' if peer.isdigit() else peer), width)}{self._gap}"
        yield Segment(line.rstrip(), head)
        yield Segment.line()

    def _banner(self, row: Row, time: str, width: int) -> Iterator[Segment]:
        rule = self._text("━" if row.tone == "phase" else "─")
        text = self._text(row.banner)
        room = width - 6
        # The text of a failure may be long, and its end is the advice, so wrap it.
        text, *more = self._wrap(text, room, _MOST_LINES_OF_BANNERS) if cell_len(text) > room else [text]
        line = f"{rule * 2} {text} ".rstrip() + " "
        yield Segment(f"{time:>{self._time_width}} ", _style(_TONES["time"]))
        yield Segment(f"{line}{rule * max(width - cell_len(line) - 1, 2)}", _style(_TONES[row.tone]))
        yield Segment.line()
        for line in more:
            yield Segment(f"{' ' * (self._time_width + 3)}{line}", _style(_TONES[row.tone]))
            yield Segment.line()

    def _lines(self, row: Row, time: str, widths: list[int]) -> Iterator[list[Segment]]:
        cells = [
            self._cell(row.cells[peer], width) if peer in row.cells else ()
            for peer, width in zip(self._peers, widths, strict=True)
        ]
        edges = [self._edge(row.marks.get(peer)) for peer in self._peers]
        for number in range(max(map(len, cells), default=0)):
            line = [Segment(f"{'' if number else time:>{self._time_width}} ", _style(_TONES["time"]))]
            for edge, cell, width in zip(edges, cells, widths, strict=True):
                line.append(edge)
                line.append(_SPACE)
                if number < len(cell):
                    tone, text, padding = cell[number]
                    line.append(Segment(text, _style(_TONES.get(tone, "default"))))
                    line.append(Segment(" " * padding + self._gap))
                else:
                    line.append(Segment(" " * width + self._gap))
            # No trailing blanks: they would wrap in a slightly narrower terminal.
            while line and not line[-1].text.strip():
                line.pop()
            line.append(Segment.line())
            yield line

    def _edge(self, mark: Mark | None) -> Segment:
        if mark is None:
            return _SPACE
        glyph = (_LETTERS if self._ascii else _GLYPHS)[mark.role][mark.cut]
        return Segment(glyph, _style(_EDGES[mark.role]))

    def _cell(self, labels: list[Label], width: int) -> list[tuple[str, str, int]]:
        """(tone, text, padding) per line."""
        lines = []
        for tone, texts in labels:
            for text in texts:
                text = self._text(text)
                length = len(text) if text.isascii() else cell_len(text)
                if length <= width:
                    lines.append((tone, text, width - length))
                    break
            else:
                most = _MOST_LINES_OF_STUDENTS if tone == "student" else _MOST_LINES
                lines.extend((tone, part, width - cell_len(part)) for part in self._wrap(text, width, most))
        return lines

    def _wrap(self, text: str, width: int, most: int) -> list[str]:
        """Wrap at spaces if possible, into at most `most` lines."""
        lines: list[str] = []
        line = ""
        for word in text.split(" "):
            indent = " " if lines or line else ""
            candidate = f"{line} {word}" if line.strip() else f"{line}{word}"
            if cell_len(candidate) <= width:
                line = candidate
                continue
            if line.strip():
                lines.append(line)
                indent = " "
                line = ""
            *whole, line = chop_cells(word, width - 1) if cell_len(word) > width - len(indent) else [word]
            lines.extend(f"{indent if lines or i else ''}{part}" for i, part in enumerate(whole))
            line = f"{indent if lines else ''}{line}"
        if line.strip():
            lines.append(line)
        if len(lines) > most:
            dots = self._text("…")
            last = lines[most - 1]
            lines = [*lines[: most - 1], f"{chop_cells(last, width - len(dots))[0]}{dots}"]
        return lines


@cache
def _style(definition: str) -> Style:
    return Style.parse(definition)


_SPACE = Segment(" ")


def _fit(text: str, width: int) -> str:
    length = cell_len(text)
    return text + " " * (width - length) if length <= width else chop_cells(text, width)[0]
