"""How did the signals of a server run? Rows of small charts over one axis of time, so that what stops together is seen.

Each row is an SVG of its own, as wide as its neighbours and without a gap between them: a mark at one moment, drawn in
every row, reads as one line. What could not be read leaves the chart empty there. The axis is half an hour, and as long
as less is known, the shortest of some spans that holds it.
"""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from itertools import groupby

from stallwatch.pages import words
from stallwatch.pages.markup import Html, tag
from stallwatch.trends import POINT_SECONDS, POINTS, HalfHour, Point, Trend
from stallwatch.wording import duration

STEP, HEIGHT, TOP, BOTTOM = 10, 100, 14, 94
"""Of a point and of a chart, in its own units; values are drawn between top and bottom."""
SPANS = (30, 60, 90, POINTS)
"""How many points an axis may have: those of 5, 10, 15 and 30 min."""


@dataclass(frozen=True, slots=True)
class Row:
    """One signal: its name on the page, how a value is written, the least height of its scale."""

    signal: str
    label: str
    written: words.Written
    least: float


@dataclass(frozen=True, slots=True)
class Mark:
    """A moment (monotonic) that is drawn through all rows; one of trouble is drawn more strongly."""

    at: float
    label: str
    trouble: bool = False


ROWS = (
    Row("utilization", "GPU busy", words.percent, 1.0),
    Row("power", "GPU power", words.watts, 100.0),
    Row("cpu", "CPU cores", words.cores, 1.0),
    Row("tokens", "Tokens", words.rate, 1.0),
    Row("log_age", "Log age", duration, 60.0),
)


@dataclass(frozen=True, slots=True)
class _Chart:
    """One row as it is drawn: values up to `top`, and the mark at `place`, None where that is not on the axis."""

    key: str
    row: Row
    trend: Trend
    span: int  # points on the axis
    top: float
    mark: Mark | None
    place: float | None

    @property
    def width(self) -> int:
        """Return its width, in its own units."""
        return STEP * self.span


def sparklines(key: str, half_hour: HalfHour, mark: Mark | None, power_limit: float | None = None) -> Html:
    """Return the charts of one server; `key` makes the ids of its elements unique, `power_limit` is in watts."""
    span = _span(half_hour)
    place = None if mark is None else _place(mark.at, half_hour.end, span)
    charts = []
    for row in ROWS:
        trend = half_hour.trends[row.signal]
        trend = replace(trend, points=trend.points[-span:])
        least = power_limit or row.least if row.signal == "power" else row.least
        charts.append(_Chart(f"{key}-{row.signal}", row, trend, span, max(least, trend.peak or 0.0), mark, place))
    axis = tag(
        "div", tag("span", f"-{_minutes(span)} min"), _told(mark, place, span), tag("span", "now"), class_="axis"
    )
    return tag("div", [_row(chart) for chart in charts], axis, class_="charts")


def _span(half_hour: HalfHour) -> int:
    known = [
        len(trend.points) - n for trend in half_hour.trends.values() for n, point in enumerate(trend.points) if point
    ]
    return next(span for span in SPANS if span >= max(known, default=POINTS))


def _minutes(span: int) -> str:
    return f"{span * POINT_SECONDS / 60:.0f}"


def _told(mark: Mark | None, place: float | None, span: int) -> Html | None:
    if mark is None:
        return None
    sign = "│" if mark.trouble else "┆"
    text = f"{sign} {mark.label}" if place is not None else f"← {mark.label}, before these {_minutes(span)} min"
    return tag("span", text, class_=_class_of(mark))


def _class_of(mark: Mark) -> str:
    return "mark trouble" if mark.trouble else "mark"


def _row(chart: _Chart) -> Html:
    now = chart.trend.now
    return tag(
        "div",
        tag("span", chart.row.label, class_="label"),
        _drawn(chart),
        tag("span", _written(now, chart.row), class_="value" if now else "value unread"),
        class_=f"chart {chart.row.signal.replace('_', '-')}",
    )


def _drawn(chart: _Chart) -> Html:
    key, row, mark = chart.key, chart.row, chart.mark
    runs = list(_runs(chart.trend.points))
    spread = "".join(_band(begin, run, chart.top) for begin, run in runs if any(low != high for low, high in run))
    line = "".join(_line(begin, run, chart.top) for begin, run in runs)
    return tag(
        "svg",
        tag("title", row.label, id=f"{key}-t"),
        tag("desc", _described(chart), id=f"{key}-d"),
        tag("path", class_="base", d=f"M0 {BOTTOM}H{chart.width}"),
        tag("path", class_="band", d=spread) if spread else None,
        tag("path", class_="line", d=line) if line else None,
        tag("path", class_=_class_of(mark), d=f"M{chart.place:.0f} 0V{HEIGHT}")
        if mark and chart.place is not None
        else None,
        role="img",
        aria_labelledby=f"{key}-t",
        aria_describedby=f"{key}-d",
        viewBox=f"0 0 {chart.width} {HEIGHT}",
        preserveAspectRatio="none",
    )


def _runs(points: Sequence[Point]) -> Iterable[tuple[int, list[tuple[float, float]]]]:
    """Yield what was read without a break, with the number of its first point."""
    for is_read, group in groupby(enumerate(points), key=lambda numbered: numbered[1] is not None):
        if is_read:
            numbered = list(group)
            yield numbered[0][0], [point for _, point in numbered if point]


def _line(begin: int, run: Sequence[tuple[float, float]], top: float) -> str:
    return _path(begin, [high for _, high in run], top, "M")


def _band(begin: int, run: Sequence[tuple[float, float]], top: float) -> str:
    """Return the area between the lowest and the highest values."""
    lows = _path(begin, [low for low, _ in run], top, "M")
    highs = [high for _, high in run]
    return f"{lows}{_path(begin, highs, top, 'L', backwards=True)}Z"


def _path(begin: int, values: Sequence[float], top: float, first: str, *, backwards: bool = False) -> str:
    """Return a line through values, from the left edge of its first point to the right edge of its last."""
    unit = (BOTTOM - TOP) / top
    heights = [round(BOTTOM - unit * value) for value in values]  # no value is below 0 or above the top
    corners = [f"{STEP * begin} {heights[0]}"]
    last = len(heights) - 1
    # In a flat stretch only the ends count, which keeps the page small.
    for n, y in enumerate(heights):
        if not 0 < n < last or not heights[n - 1] == y == heights[n + 1]:
            corners.append(f"{STEP * (begin + n) + STEP // 2} {y}")
    corners.append(f"{STEP * (begin + len(values))} {heights[-1]}")
    return first + "L".join(corners[::-1] if backwards else corners)


def _place(at: float, end: float, span: int) -> float | None:
    """Return where a moment is on the axis, None where it is before it."""
    place = STEP * (span - (end - at) / POINT_SECONDS)
    return place if 0 <= place <= STEP * span else None


def _written(point: Point, row: Row) -> str:
    if point is None:
        return "not read"
    low, high = row.written(point[0]), row.written(point[1])
    if low == high:
        return high
    unit = next((unit for unit in (" %", " W") if high.endswith(unit)), "")
    return f"{low.removesuffix(unit)}{words.DASH}{high}"


def _described(chart: _Chart) -> str:
    """Say what a chart shows to those who do not see it."""
    row, trend, mark = chart.row, chart.trend, chart.mark
    known = [point for point in trend.points if point]
    if not known:
        return f"Not read in the last {_minutes(chart.span)} minutes."
    lowest, highest = row.written(min(low for low, _ in known)), row.written(max(high for _, high in known))
    minutes = duration(len(known) * POINT_SECONDS)
    marked = f" The line marks: {mark.label}." if mark and chart.place is not None else ""
    read = f"in the {minutes} of {_minutes(chart.span)} min that were read"
    return f"Now {_written(trend.now, row)}; {lowest} to {highest} {read}.{marked}"
