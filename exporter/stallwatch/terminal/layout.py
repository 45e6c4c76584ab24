"""How do texts and tables fit a terminal? In as many columns as it has, with colour only where one looks."""

import os
import re
import shutil
import textwrap
from collections.abc import Iterable, Sequence
from typing import NamedTuple, TextIO

from stallwatch.redaction import clean

WIDEST, NARROWEST = 100, 40
LONGEST_TEXT = 10_000
LONGEST_CELL = 24
INDENT = "  "
ODD = "> "
COLOURS = {"bad": "1;31", "doubtful": "1;33", "well": "1;32", "odd": "33", "quiet": "2"}
_SPAN = re.compile(r"`[^`]*`")
_GLUE = "\0"  # no text that is clean has one


class Line(NamedTuple):
    """One line, and what it is: a key of COLOURS, or nothing."""

    text: str
    style: str = ""


class Row(NamedTuple):
    """One row of a table; one that is odd is marked."""

    cells: tuple[str, ...]
    odd: bool = False


def width_of(stream: TextIO) -> int:
    """Return how many columns to use: those of the terminal within bounds, the most where it is none."""
    if not stream.isatty():
        return WIDEST
    return max(NARROWEST, min(WIDEST, shutil.get_terminal_size((WIDEST, 24)).columns))


def is_coloured(stream: TextIO) -> bool:
    """Tell whether colour may be used: on a terminal that has it, unless NO_COLOR says otherwise."""
    return stream.isatty() and not os.environ.get("NO_COLOR") and os.environ.get("TERM") != "dumb"


def printed(lines: Iterable[Line], stream: TextIO) -> str:
    """Return the lines as that stream takes them."""
    coloured = is_coloured(stream)
    text = "".join(f"{_painted(line) if coloured else line.text}\n" for line in lines)
    encoding = stream.encoding or "utf-8"
    return text.encode(encoding, "replace").decode(encoding)


def _painted(line: Line) -> str:
    code = COLOURS.get(line.style)
    return f"\x1b[{code}m{line.text}\x1b[0m" if code else line.text


def wrapped(text: str, width: int, *, first: str = INDENT, rest: str = INDENT, style: str = "") -> list[Line]:
    """Return a text as lines, with nothing in it that a terminal obeys; `code` is not broken where it fits a line."""
    whole = clean(text, LONGEST_TEXT)
    room = width - len(rest)
    glued = _SPAN.sub(lambda span: span[0].replace(" ", _GLUE) if len(span[0]) <= room else span[0], whole)
    broken = textwrap.wrap(glued, width, initial_indent=first, subsequent_indent=rest, break_on_hyphens=False)
    return [Line(line.replace(_GLUE, " "), style) for line in broken]


def labelled(label: str, text: str, width: int, size: int = 11) -> list[Line]:
    """Return a text behind its label."""
    return wrapped(text, width, first=f"{INDENT}{label.ljust(size)}", rest=INDENT + " " * size)


def table(columns: Sequence[str], rows: Sequence[Row], width: int, longest: int = LONGEST_CELL) -> list[Line]:
    """Return a table without its empty columns; what does not fit beside the first column follows below, with it.

    Nothing where that first column is all there is. A text is cut where it is longer than `longest`.
    """
    texts = [tuple(_cell(cell, longest) for cell in row.cells) for row in rows]
    kept = [n for n in range(len(columns)) if n == 0 or any(cells[n] for cells in texts)]
    if len(kept) < 2:
        return []
    sizes = {n: max(len(columns[n]), *(len(cells[n]) for cells in texts)) for n in kept}
    lines = []
    for block in _blocks(sizes, width - len(ODD)):
        lines.append(Line(_padded(INDENT, columns, block, sizes), "quiet"))
        lines += [
            Line(_padded(ODD if row.odd else INDENT, cells, block, sizes), "odd" if row.odd else "")
            for row, cells in zip(rows, texts, strict=True)
        ]
    return lines


def _blocks(sizes: dict[int, int], room: int) -> list[list[int]]:
    """Return which columns stand side by side, the first of all in each block."""
    head, *others = sizes
    blocks, used = [[head]], sizes[head]
    for column in others:
        needed = sizes[column] + 2
        if used + needed > room and len(blocks[-1]) > 1:
            blocks.append([head])
            used = sizes[head]
        blocks[-1].append(column)
        used += needed
    return blocks


def _padded(mark: str, cells: Sequence[str], block: Sequence[int], sizes: dict[int, int]) -> str:
    return (mark + "  ".join(cells[column].ljust(sizes[column]) for column in block)).rstrip()


def _cell(text: str, longest: int) -> str:
    shown = clean(text, longest + 1)
    return shown if len(shown) <= longest else f"{shown[: longest - 2]}.."
