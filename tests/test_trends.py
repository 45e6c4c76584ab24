"""Trends: what is remembered of the last half hour, and that it stays small."""

import sys
from dataclasses import replace

import pytest

from readings import NAME, a_log, a_server, a_snapshot, gpus, moment
from stallwatch.collectors.engine import EngineRank, EngineReading
from stallwatch.collectors.gpu import GpuReading
from stallwatch.history import History
from stallwatch.sections import Limits
from stallwatch.snapshot import Snapshot
from stallwatch.trends import POINT_SECONDS, POINTS, SIGNALS, Trends
from stallwatch.view import View

BEGIN = 10_000.0


class Node:
    """Views of one node, taken in one after another."""

    def __init__(self):
        self.trends = Trends()
        self._history = History(lambda _name: Limits())

    def look(self, at, *readings, servers=None):
        """Take in what is seen this many seconds after the beginning."""
        snapshot = a_snapshot(BEGIN + at, *readings, servers=servers)
        view = View(snapshot, self._history.look(snapshot), (), ())
        self.trends.take(view)

    def points(self, signal, server=NAME):
        """Return the points of a signal that there are, with their number, and what it is now."""
        trend = self.trends.of(server).trends[signal]
        return {n: point for n, point in enumerate(trend.points) if point}, trend.now


def tokens(at, count):
    """Return a reading of an engine that has made so many tokens."""
    return EngineReading(BEGIN + at, NAME, (EngineRank("0", 1.0, 0.0, {"decode": float(count)}, live=True),))


def uneven(at, *ratios, **fields):
    """Return a reading of GPUs that differ."""
    reading = gpus(BEGIN + at, count=len(ratios), **fields)
    each = zip(reading.gpus, ratios, strict=True)
    return GpuReading(reading.at, "", tuple(replace(gpu, utilization=ratio) for gpu, ratio in each))


def test_one_point_holds_the_lowest_and_the_highest_of_ten_seconds():
    """A GPU that rests beside busy ones, and a peak of a second, stay visible."""
    node = Node()
    for at, ratios in enumerate([(0.5, 0.5), (0.4, 0.9), (0.5, 0.6)]):
        node.look(at, uneven(at, *ratios))
    points, now = node.points("utilization")
    assert points == {POINTS - 1: pytest.approx((0.4, 0.9))}
    assert now == pytest.approx((0.5, 0.6))


def test_what_cannot_be_read_is_a_gap():
    """Neither a zero nor the value of before stands where nothing was read."""
    node = Node()
    node.look(0, uneven(0, 0.5))
    node.look(10)
    node.look(20, uneven(20, 0.0))
    points, _ = node.points("utilization")
    assert points == {POINTS - 3: (0.5, 0.5), POINTS - 1: (0.0, 0.0)}
    assert node.points("power") == ({}, None)


def test_ten_seconds_without_a_look_are_a_gap():
    """An exporter that was stopped for a minute leaves that minute empty."""
    node = Node()
    node.look(0, uneven(0, 0.5))
    node.look(60, uneven(60, 0.5))
    assert sorted(node.points("utilization")[0]) == [POINTS - 7, POINTS - 1]


def test_after_half_an_hour_nothing_is_left_of_before():
    """The ring begins again and shows only what is within its span, also after a long pause."""
    node = Node()
    node.look(0, uneven(0, 0.9))
    node.look(POINTS * POINT_SECONDS, uneven(1800, 0.1))
    assert node.points("utilization")[0] == {POINTS - 1: pytest.approx((0.1, 0.1))}
    node.look(10 * POINTS * POINT_SECONDS, uneven(18_000, 0.2))
    assert node.points("utilization")[0] == {POINTS - 1: pytest.approx((0.2, 0.2))}


def test_power_is_that_of_each_gpu():
    """The lowest and the highest power of the GPUs that the server holds."""
    node = Node()
    reading = gpus(BEGIN, power_watts=100.0)
    hot = replace(reading.gpus[3], power_watts=500.0)
    node.look(0, GpuReading(BEGIN, "", (*reading.gpus[:3], hot, *reading.gpus[4:])))
    assert node.points("power")[1] == (100.0, 500.0)


def test_tokens_are_a_rate_between_two_readings():
    """The first reading tells no rate, a counter that begins anew neither, and the last rate holds until the next."""
    node = Node()
    rates = []
    for at, reading_at, count in [
        (0, 0, 1000),
        (5, 5, 1500),
        (10, 5, 1500),
        (15, 15, 1500),
        (20, 20, 10),
        (25, 25, 60),
    ]:
        node.look(at, tokens(reading_at, count))
        rates.append(node.points("tokens")[1])
    assert rates == [None, (100.0, 100.0), (100.0, 100.0), (0.0, 0.0), None, (10.0, 10.0)]
    node.look(30)
    assert node.points("tokens")[1] is None


def test_the_age_of_the_log_is_that_of_its_last_progress():
    """It grows while nothing is written; before the first such line it counts from the first sight of the server."""
    node = Node()
    node.look(0, a_log(BEGIN, progress=BEGIN - 30))
    assert node.points("log_age")[1] == (30.0, 30.0)
    node.look(7, a_log(BEGIN + 7, progress=None))
    assert node.points("log_age")[1] == (7.0, 7.0)


def test_servers_that_are_gone_are_forgotten():
    """A name that comes back begins anew, and one that was never there has nothing."""
    node = Node()
    node.look(0, uneven(0, 0.9), servers=(a_server(), a_server(name="other:1")))
    node.look(10, uneven(10, 0.5), servers=(a_server(name="other:1"),))
    assert node.trends.of(NAME) is None
    assert node.trends.of("never:1") is None
    node.look(20, uneven(20, 0.5))
    assert len(node.points("utilization")[0]) == 1


def test_a_server_takes_a_few_kilobytes_and_no_more_with_time():
    """Hours later as much is held as after half an hour."""
    node = Node()
    sizes = []
    for at in (0, 10, 3600, 36_000):
        node.look(at, uneven(at, 0.5))
        sizes.append(size_of(node.trends))
    assert len(set(sizes)) == 1
    assert sizes[0] < 16 * 1024


def size_of(trends):
    """Return the bytes of all rings."""
    return sum(
        sys.getsizeof(ring) for server in trends._servers.values() for pair in server._rings.values() for ring in pair
    )


def test_every_signal_is_there_for_a_server_that_shows_nothing():
    """A page can be drawn of it: all gaps, and the end of the axis is now."""
    trends = Trends()
    snapshot = Snapshot(moment(BEGIN), (a_server(),))
    trends.take(View(snapshot, History(lambda _name: Limits()).look(snapshot), (), ()))
    half_hour = trends.of(NAME)
    assert tuple(half_hour.trends) == SIGNALS
    assert all(not any(trend.points) and trend.peak is None for trend in half_hour.trends.values())
    assert 0 < half_hour.end - BEGIN <= POINT_SECONDS
