"""Draws what one more of something costs: a row of small curves for CPU, one for memory."""

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

WIDTH, HEIGHT, GAP, LEFT, TOP = 170, 120, 62, 56, 40
ROWS = (("cpu_seconds", "CPU s per 60 s", "#3465a4"), ("memory_mib", "MiB", "#4e9a06"))
FONT = 'font-family="sans-serif"'
INK, GRID = "#777777", "#77777733"

Points = Sequence[Mapping[str, Any]]


def picture(found: Mapping[str, Points]) -> str:
    """Return the curves as an SVG that is read on a light page and on a dark one."""
    width = LEFT + len(found) * (WIDTH + GAP)
    height = TOP + len(ROWS) * (HEIGHT + GAP)
    parts = [part for row in range(len(ROWS)) for part in _row(found, row)]
    head = f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {width} {height}" font-size="11" {FONT}>'
    return "\n".join((head, *parts, "</svg>\n"))


def _row(found: Mapping[str, Points], row: int) -> Iterator[str]:
    key, unit, colour = ROWS[row]
    for column, (name, points) in enumerate(found.items()):
        left, top = LEFT + column * (WIDTH + GAP), TOP + row * (HEIGHT + GAP)
        most = _ceiling(max(point[key] for point in points))
        yield f'<g transform="translate({left} {top})">'
        yield from _frame(most, points[-1]["count"])
        yield from _curve([(point["count"], point[key]) for point in points], most, colour)
        yield _text(WIDTH / 2, -10, f"{name}: {unit}", "middle")
        yield "</g>"


def _frame(most: float, last: float) -> Iterator[str]:
    for share in (0.0, 0.5, 1.0):
        y = HEIGHT * (1 - share)
        yield f'<line x1="0" y1="{y}" x2="{WIDTH}" y2="{y}" stroke="{GRID}"/>'
        yield _text(-6, y + 4, f"{most * share:,.3g}", "end")
    yield _text(0, HEIGHT + 16, "0", "middle")
    yield _text(WIDTH, HEIGHT + 16, f"{last:,}", "middle")


def _curve(points: Sequence[tuple[float, float]], most: float, colour: str) -> Iterator[str]:
    places = [(WIDTH * x / points[-1][0], HEIGHT * (1 - y / most)) for x, y in points]
    line = " ".join(f"{x:.1f},{y:.1f}" for x, y in places)
    yield f'<polyline points="{line}" fill="none" stroke="{colour}" stroke-width="2"/>'
    for x, y in places:
        yield f'<circle cx="{x:.1f}" cy="{y:.1f}" r="2.5" fill="{colour}"/>'


def _text(x: float, y: float, text: str, anchor: str) -> str:
    return f'<text x="{x}" y="{y}" text-anchor="{anchor}" fill="{INK}">{text}</text>'


def _ceiling(value: float) -> float:
    """Return a round number that is not less."""
    step = 10 ** (len(str(int(value))) - 1)
    return next(step * part / 2 for part in range(1, 21) if step * part / 2 >= value)
