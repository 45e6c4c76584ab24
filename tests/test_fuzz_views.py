"""Whatever stands in a view, each rendering of it is whole: nothing in it can forge a line, a label or a tag."""

import asyncio
import io
import json
import logging
import re
import subprocess
from contextlib import suppress
from html.parser import HTMLParser
from pathlib import Path
from tempfile import TemporaryDirectory

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from prometheus_client.openmetrics.parser import text_string_to_metric_families as parse_openmetrics
from prometheus_client.parser import text_string_to_metric_families as parse_text

from readings import a_log, a_server, a_snapshot, gpus, health, processes
from stallwatch.collectors.engine import EngineRank, EngineReading
from stallwatch.collectors.socket import ServerSockets, SocketReading
from stallwatch.config import ConfigError
from stallwatch.exposition import Exposition
from stallwatch.journal import Changes, setup
from stallwatch.lanes import LaneState
from stallwatch.logs.rank_phase import RankPhase
from stallwatch.recording import Lines, line_of, recorded
from stallwatch.replay import play_recording
from stallwatch.report import report
from stallwatch.snapshot import Failure
from stallwatch.status import StatusPage
from stallwatch.terminal.servers import lines
from stallwatch.trends import Trends
from stallwatch.view import View

HOSTILE = (
    'x"} 1\nstallwatch_fake 1\n# EOF\n\\',
    "\r\nts=0 level=error msg=forged",
    "</li><script>alert(1)</script><!--",
    "\x1b[2J\x1b]0;title\x07",
    "\u202eevil\u2028\x85",
    "é" * 300,
    "{version} {0}",
    "",
    "\0",
)
TEXTS = st.one_of(st.sampled_from(HOSTILE), st.text(max_size=20))
NUMBERS = st.one_of(st.integers(-(2**63), 2**64), st.floats(allow_nan=False, allow_infinity=False), st.booleans())
LEAVES = st.one_of(TEXTS, NUMBERS, st.none(), st.just([]), st.just({}), st.lists(TEXTS, max_size=2))
PLENTY = settings(max_examples=30, deadline=None, suppress_health_check=list(HealthCheck))
TAGS = re.findall(
    r"\w+",
    "a article b bdi body caption dd desc details div dl dt footer g h1 h2 h3 head header html li line link main meta "
    "nav noscript p path progress rect script section span summary svg table tbody td text th thead time title tr ul",
)


def a_rich_snapshot(now):
    """Return a snapshot with a reading of each kind."""
    readings = (
        gpus(now, count=2, power_watts=100.0, throttle_reasons=("idle",), recovery_action="none"),
        processes(now),
        a_log(
            now, progress=40.0, ranks=(RankPhase("TP0", "loaded", 1.0),), lines={"other": 1}, errors={"nccl_error": 1}
        ),
        health(now, status=200),
        EngineReading(now, "sglang:30000", (EngineRank("0", 1.0, 2.0, {"decode": 5.0}, heartbeat=now),), "metrics"),
        SocketReading(now, (ServerSockets("sglang:30000", True, 1, 2),)),
    )
    failures = (Failure("log", "not_found", "log /x", "sglang:30000"), Failure("gpu", "no_gpu", "none"))
    return a_snapshot(
        now, *readings, servers=(a_server(ranks=2, gpus=(), log_path="/x", version="1"),), failures=failures
    )


COURSE = [a_rich_snapshot(100.0 + 60 * step) for step in range(3)]
LINES = [json.loads(line_of(snapshot)) for snapshot in COURSE]


def leaves(node, path=()):
    """Yield the way to every plain value."""
    pairs = node.items() if isinstance(node, dict) else enumerate(node) if isinstance(node, list) else ()
    for key, inner in pairs:
        yield from leaves(inner, (*path, key)) if isinstance(inner, (dict, list)) and inner else [(*path, key)]


WAYS = [way for way in leaves(LINES[0]) if way[0] != "moment"]


def altered(changes):
    """Return the recording with these values in these places of all its lines."""
    lines = json.loads(json.dumps(LINES))
    for line in lines:
        for way, value in changes:
            inner = line
            for key in way[:-1]:
                inner = inner[key]
            inner[way[-1]] = value
    return b"".join(json.dumps(line).encode() + b"\n" for line in lines)


def played(recording):
    """Return the views that a recording gives; raises ConfigError where it is none."""
    with TemporaryDirectory() as folder:
        path = Path(folder) / "recording"
        path.write_bytes(recording)
        looks = list(play_recording(recorded(path)))
    lanes = tuple(LaneState(name, "", True, 0.1, 1.0, (("error", 1),), 3) for name in ("gpu", "log"))
    return [View(look.snapshot, look.pasts, lanes, (), look.verdicts, look.not_ready_seconds) for look in looks]


class Tags(HTMLParser):
    """Collects the tags of a page."""

    def __init__(self, page):
        super().__init__()
        self.seen = []
        self.feed(page)

    def handle_starttag(self, tag, attrs):
        """Note one."""
        self.seen.append((tag, [name for name, _ in attrs if name.startswith("on")]))


def require_whole(view):
    """Render a view in every way, and read each as those who get it do."""
    exposition = Exposition(view)
    pages = [
        exposition.page(kind).plain.decode() for kind in ("text/plain", "application/openmetrics-text; version=1.0.0")
    ]
    told = [
        {(s.name, tuple(sorted(s.labels.items()))): s.value for family in parse(page) for s in family.samples}
        for parse, page in zip((parse_text, parse_openmetrics), pages, strict=True)
    ]
    assert told[0] == told[1]
    assert exposition._broken == set()
    assert all(name.startswith(("stallwatch_", "process_")) and name != "stallwatch_fake" for name, _ in told[0])
    trends = Trends()
    trends.take(view)
    page = asyncio.run(StatusPage(lambda: view, trends, "/metrics").rendered()).plain.decode()
    seen = Tags(page).seen
    assert {tag for tag, _ in seen} <= set(TAGS)
    assert [tag for tag, _ in seen].count("script") == 1  # ours
    assert not [handlers for _, handlers in seen if handlers]
    answer = json.loads(json.dumps(report(view), allow_nan=False))
    assert all(line.text.isprintable() for line in lines(answer, answer["servers"]))
    assert all(len(line.text) <= 60 for line in lines(answer, answer["servers"], width=60))
    for form in ("logfmt", "json"):
        stream = io.StringIO()
        Changes(setup(form, stream=stream)).see(
            {(f.collector, f.server, f.reason): f.detail for f in view.snapshot.failures}
        )
        assert all(line.isprintable() for line in stream.getvalue().split("\n"))
        assert len(stream.getvalue().splitlines()) <= len(view.snapshot.failures)
    line_of(view.snapshot)


@pytest.fixture(autouse=True)
def _quiet():
    yield
    logger = logging.getLogger("stallwatch")
    for handler in list(logger.handlers):
        logger.removeHandler(handler)
    logger.propagate = True


def test_the_recording_that_is_altered_is_a_good_one():
    """Otherwise the tests below would only see refusals."""
    views = played(altered([]))
    assert [list(view.verdicts) for view in views] == [["sglang:30000"]] * 3
    for view in views:
        require_whole(view)


@PLENTY
@given(st.lists(st.tuples(st.sampled_from(WAYS), TEXTS), min_size=1, max_size=6))
def test_no_text_breaks_a_rendering(changes):
    """Hostile words in any place of a snapshot stay words, or the recording is refused."""
    with suppress(ConfigError):
        for view in played(altered(changes)):
            require_whole(view)


@PLENTY
@given(st.lists(st.tuples(st.sampled_from(WAYS), LEAVES), min_size=1, max_size=4))
def test_no_value_breaks_a_rendering(changes):
    """So do numbers of any size and values of the wrong kind."""
    with suppress(ConfigError):
        for view in played(altered(changes)):
            require_whole(view)


@settings(max_examples=100, deadline=None)
@given(st.data())
def test_a_damaged_recording_is_refused_in_one_line(data):
    """Bytes may be anything, and lines cut anywhere, whole ones and those that say what has changed."""
    lines = Lines()
    whole = data.draw(st.sampled_from((altered([]), b"".join(map(lines.line, COURSE)))))
    at = data.draw(st.integers(0, len(whole)))
    with suppress(ConfigError):
        played(whole[:at] + data.draw(st.binary(max_size=20)) + whole[at + data.draw(st.integers(0, 20)) :])


def test_promtool_finds_nothing_wrong_with_hostile_words():
    """Each word stands in every place that takes a text, one after the other."""
    for word in HOSTILE:
        texts = [(way, word) for way in WAYS if way[-1] in {"model", "version", "uuid", "driver_version", "detail"}]
        page = Exposition(played(altered(texts))[-1]).page("text/plain").plain
        found = subprocess.run(["promtool", "check", "metrics"], input=page, capture_output=True, check=False)
        assert (found.returncode, found.stdout, found.stderr) == (0, b"", b"")
