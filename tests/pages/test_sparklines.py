"""Sparklines: where lines, gaps and the mark stand, and what is said of them to those who do not see them."""

import re

import pytest

from stallwatch.pages.sparklines import BOTTOM, HEIGHT, STEP, TOP, Mark, sparklines
from stallwatch.trends import POINTS, SIGNALS, HalfHour, Trend

END = 100_000.0
WIDTH = STEP * POINTS
FLAT = (0.5, 0.5)
GAP = None


def half_hour(now=FLAT, **points):
    """Return a half hour whose signals have these last points."""
    signals = dict.fromkeys(SIGNALS, ()) | points
    padded = {signal: (GAP,) * (POINTS - len(last)) + tuple(last) for signal, last in signals.items()}
    return HalfHour(END, {signal: Trend(points, now if any(points) else None) for signal, points in padded.items()})


def row(html, label):
    """Return the row of the signal with this label."""
    return next(part for part in html.split('<div class="chart ')[1:] if f">{label}</span>" in part)


def paths(html, of):
    """Return the paths of one class."""
    return re.findall(rf'<path class="{of}" d="([^"]*)"', html)


def test_a_flat_stretch_is_one_line_from_edge_to_edge():
    """Only its ends are drawn, over the whole width of its points."""
    html = row(sparklines("k", half_hour(utilization=[FLAT] * POINTS), None), "GPU busy")
    middle = round((TOP + BOTTOM) / 2)
    assert paths(html, "line") == [f"M0 {middle}L5 {middle}L{WIDTH - 5} {middle}L{WIDTH} {middle}"]
    assert paths(html, "band") == []


def test_a_gap_stays_empty():
    """Each stretch that was read is a line of its own, also a single point."""
    html = row(sparklines("k", half_hour(utilization=[FLAT, GAP, FLAT, FLAT]), None), "GPU busy")
    (line,) = paths(html, "line")
    begins = [stretch.split(" ")[0] for stretch in line.split("M")[1:]]
    ends = [stretch.rpartition("L")[2].split(" ")[0] for stretch in line.split("M")[1:]]
    assert list(zip(begins, ends, strict=True)) == [("260", "270"), ("280", "300")]


def test_ranks_that_differ_make_a_band():
    """The area between the lowest and the highest is filled, down to the ground for one that rests."""
    html = row(sparklines("k", half_hour((0.0, 1.0), utilization=[(0.0, 1.0)] * 3), None), "GPU busy")
    (band,) = paths(html, "band")
    assert band.endswith("Z")
    assert {int(y) for y in re.findall(r" (\d+)", band)} == {TOP, BOTTOM}
    assert ">0\N{EN DASH}100 %</span>" in html


def test_nothing_read_is_no_line_and_says_so():
    """Neither zero nor an empty cell: `not read`, in the row and for screen readers."""
    html = row(sparklines("k", half_hour(), None), "Tokens")
    assert paths(html, "line") == []
    assert 'class="value unread">not read<' in html
    assert "Not read in the last 30 minutes." in html


def test_the_mark_stands_at_the_same_place_in_every_row():
    """A line through all rows, from the top of each to its bottom."""
    mark = Mark(END - 900, "last movement 15 min ago", trouble=True)
    html = sparklines("k", half_hour(utilization=[FLAT] * POINTS), mark)
    assert paths(html, "mark trouble") == [f"M{WIDTH // 2} 0V{HEIGHT}"] * 5
    assert "│ last movement 15 min ago" in html
    assert "The line marks: last movement 15 min ago." in html


@pytest.mark.parametrize("age", [1801, 7200])
def test_a_moment_before_the_axis_is_said_instead(age):
    """No mark is drawn, and its label says that it lies before."""
    html = sparklines("k", half_hour(utilization=[FLAT] * POINTS), Mark(END - age, "idle for 2 h"))
    assert paths(html, "mark") == []
    assert "← idle for 2 h, before these 30 min" in html


@pytest.mark.parametrize(("known", "minutes"), [(1, 5), (30, 5), (31, 10), (90, 15), (91, 30), (180, 30)])
def test_the_axis_is_as_long_as_what_is_known(known, minutes):
    """What has been seen for a few minutes fills its charts, in all rows alike, and the axis says how long it is."""
    half = half_hour(utilization=[FLAT] * known, tokens=[FLAT])
    html = sparklines("k", half, Mark(END - 60 * minutes / 2, "idle"))
    assert f"<span>-{minutes} min</span>" in html
    assert set(re.findall(r'viewBox="0 0 (\d+) ', html)) == {str(60 * minutes)}
    assert paths(html, "mark") == [f"M{30 * minutes} 0V{HEIGHT}"] * 5
    (line,) = paths(row(html, "GPU busy"), "line")
    assert line.startswith(f"M{60 * minutes - STEP * known} ")
    assert line.rpartition("L")[2].startswith(f"{60 * minutes} ")


def test_power_is_drawn_against_its_limit():
    """Without a limit the highest power seen is the scale."""
    points = {"power": [(350.0, 350.0)]}
    half = row(sparklines("k", half_hour(**points), None, power_limit=700.0), "GPU power")
    full = row(sparklines("k", half_hour(**points), None), "GPU power")
    assert f" {round((TOP + BOTTOM) / 2)}" in paths(half, "line")[0]
    assert f" {TOP}" in paths(full, "line")[0]


def test_each_chart_has_a_name_and_a_description():
    """Title and description of each chart are referred to by ids that occur once."""
    html = sparklines("server-a", half_hour(utilization=[(0.2, 0.4), FLAT]), None)
    ids = re.findall(r' id="([^"]+)"', html)
    labelled = " ".join(re.findall(r'aria-(?:labelledby|describedby)="([^"]+)"', html)).split()
    assert len(ids) == len(set(ids)) == 10
    assert sorted(labelled) == sorted(ids)
    assert "Now 50 %; 20 % to 50 % in the 20 s of 5 min that were read." in html
