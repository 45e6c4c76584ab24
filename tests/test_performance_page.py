"""What `make bench` measures is put together rightly, and stands on the page."""

import importlib
import re
import sys
from dataclasses import replace
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]


@pytest.fixture
def script(monkeypatch):
    """Return scripts of benchmarks/ and docs/ as modules."""
    monkeypatch.syspath_prepend(ROOT / "docs")
    monkeypatch.syspath_prepend(ROOT / "benchmarks")
    known = set(sys.modules)
    yield importlib.import_module
    for name in set(sys.modules) - known:
        if str(getattr(sys.modules[name], "__file__", "")).startswith((str(ROOT / "docs"), str(ROOT / "benchmarks"))):
            del sys.modules[name]


def test_each_part_of_the_page_is_measured(script):
    """The page has a place for each, and only for those."""
    places = re.findall(r"<!-- measured (\w+) -->", (ROOT / "docs" / "performance.md").read_text())
    assert sorted(places) == sorted(script("make_performance").PARTS)


def test_a_part_that_was_not_measured_stays(script, tmp_path, monkeypatch):
    """Whoever measures one thing anew keeps the rest of the page."""
    page = script("make_performance")
    monkeypatch.setattr(page, "RESULTS", tmp_path)
    (tmp_path / "start.json").write_text('{"complete": [0.9], "check": [0.3, 0.2, 0.4], "check alone": [0.5]}')
    text = "<!-- measured start -->\nold\n<!-- end -->\nbetween\n<!-- measured compare -->\nkept\n<!-- end -->\n"
    told = page.rewritten(text)
    assert "0.90 s after" in told
    assert "`stallwatch check` took 0.30 s" in told
    assert "old" not in told
    assert "between\n<!-- measured compare -->\nkept\n" in told


def test_the_four_together_cost_their_sum_and_the_slowest_scrape(script):
    """CPU, memory, bytes and series add up; Prometheus has it all when the last one has answered."""
    compare = script("compare")
    one = compare.Cost(
        cpu_seconds=1.0, memory_mib=20.0, shared_out_mib=18.0, p50_ms=2.0, p99_ms=9.0, bytes=1000, series=10
    )
    both = compare.together([one, replace(one, p50_ms=5.0, p99_ms=6.0)])
    assert both == compare.Cost(2.0, 40.0, 36.0, 5.0, 9.0, 2000, 20)


def test_a_comparison_is_lost_by_one_row(script):
    """Stallwatch is ahead only where it costs less CPU and memory, and answers sooner."""
    compare = script("compare")
    ours = compare.Cost(
        cpu_seconds=1.0, memory_mib=50.0, shared_out_mib=40.0, p50_ms=1.0, p99_ms=2.0, bytes=1, series=1
    )
    for worse, is_ahead in (({}, True), ({"memory_mib": 100.0}, False), ({"p99_ms": 9.0}, False)):
        runs = [
            {
                compare.STALLWATCH: replace(ours, **worse),
                compare.TOGETHER: compare.Cost(3.0, 90.0, 80.0, 8.0, 9.0, 2, 2),
            }
        ]
        assert compare.ahead(compare.summary(runs)) is is_ahead
    assert "| CPU s per 60 s | 1 | 3 | 0.33 |" in compare.table("node", compare.summary(runs))


@pytest.mark.parametrize(
    ("costs", "steep"), [((0.5, 1.0, 1.5), False), ((0.5, 0.6, 0.7), False), ((0.5, 0.6, 3.0), True)]
)
def test_what_grows_faster_than_what_is_watched_is_told(script, costs, steep):
    """A straight line is fine, a curve that bends upwards is not."""
    growth = script("growth")
    points = [growth.Point(count, cpu, 80.0, 500, 5.0) for count, cpu in zip((1, 8, 16), costs, strict=True)]
    assert growth.steepens(points) is steep


def test_the_picture_has_a_curve_for_each(script):
    """Two rows, one for CPU and one for memory, with a point for each value."""
    points = [{"count": count, "cpu_seconds": count / 10, "memory_mib": 80.0} for count in (1, 8, 16)]
    drawn = script("growth_picture").picture({"GPUs": points, "ranks": points})
    assert drawn.count("<polyline") == 4
    assert drawn.count("<circle") == 12
    assert "GPUs: CPU s per 60 s" in drawn
