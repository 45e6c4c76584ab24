"""Whatever a log, a page, a reply or a file says is read or left out: it never ends a reader, nor fills memory."""

import asyncio
import json
import math
import os
import re
import struct
from contextlib import suppress
from pathlib import Path
from tempfile import TemporaryDirectory

import yaml
from hypothesis import given
from hypothesis import strategies as st

from health_servers import answering, serving
from hostile_parts import ANYTHING, LOGS, PAGES, QUICK, REPLIES, SLOW
from readings import a_log, a_snapshot, gpus, processes
from stallwatch.collectors import log
from stallwatch.collectors.engine import EngineCollector
from stallwatch.collectors.health import RESULTS, HealthCollector
from stallwatch.config import ConfigError, EngineSettings, ProbeSettings
from stallwatch.engines.metrics import MOST_RANKS, NAMES, ranks_of
from stallwatch.flight import FlightRecorder
from stallwatch.loads import MAGIC, VERSION, read_loads
from stallwatch.logs import life
from stallwatch.logs.markers import ERROR_KINDS, KINDS
from stallwatch.node.inside import held_itself
from stallwatch.recording import Lines, recorded
from stallwatch.replay import play_recording
from stallwatch.settings.sources import load
from stallwatch.snapshot import Launch, Server
from stallwatch.watcher import Watcher

RANK = re.compile(r"(?:_?(?:ATTN_|MOE_)?[A-Z]{2,3}[0-9]{1,5})+")


def test_a_log_of_any_bytes_is_read():
    """Each line has a kind, each rank is one that engines have, and no number is too long."""
    target = {"server": "s", "root": "", "incarnation": "1", "started": None}

    @QUICK
    @given(LOGS, LOGS, st.sampled_from(("sglang", "vllm")))
    def check(before, after, engine):
        with TemporaryDirectory() as folder:
            path = Path(folder) / "log"
            path.write_bytes(before)
            read = log.reader({}, lambda _note: None)
            for more in (b"", after, after):
                with path.open("ab") as file:
                    file.write(more)
                reading, failures = read([{**target, "engine": engine, "path": str(path)}], frozenset())
                assert failures == ()
                (seen,) = reading.logs
                assert set(seen.lines) <= set(KINDS)
                assert set(seen.errors) <= set(ERROR_KINDS)
                assert all(RANK.fullmatch(rank.rank) for rank in seen.ranks)
                assert len(seen.engine_version) <= 42
                assert seen.progress is None or 0 <= seen.progress <= 1
            read([], frozenset())

    check()


def test_ranks_without_end_are_counted_and_left_out(tmp_path):
    """Their lines are lines, and no more."""
    path = tmp_path / "log"
    path.write_text("".join(f"[2026-01-01 00:00:00 TP{rank}] Load weight begin.\n" for rank in range(1000)))
    target = {"server": "s", "engine": "sglang", "path": str(path), "root": "", "incarnation": "1", "started": None}
    reading, _ = log.reader({}, lambda _note: None)([target], frozenset())
    assert (len(reading.logs[0].ranks), reading.dropped) == (life.MOST_RANKS, 1000 - life.MOST_RANKS)
    assert reading.logs[0].lines["progress"] == 1000


@QUICK
@given(PAGES, st.sampled_from(("sglang", "vllm")))
def test_a_page_of_any_text_is_read(text, engine):
    """Its ranks are small numbers, and its values are finite."""
    with suppress(ValueError):
        ranks, _ = ranks_of(text.encode(), NAMES[engine])
        assert len(ranks) <= MOST_RANKS
        assert all(rank.dp_rank == "" or (rank.dp_rank.isdecimal() and len(rank.dp_rank) <= 5) for rank in ranks)
        values = [value for rank in ranks for value in (rank.running, rank.queued, *rank.tokens.values())]
        assert all(value is None or math.isfinite(value) for value in values)


def test_replies_of_any_bytes_have_an_outcome():
    """To a health probe and to a request for metrics."""

    async def ask(reply):
        health, engine = HealthCollector(), EngineCollector()
        async with serving(answering(reply)) as port:
            server = Server("s", "sglang", Launch(port=port), address="127.0.0.1")
            reading, failures = await health.collect(server, ProbeSettings(timeout=1.0))
            assert failures == ()
            assert [probe.result in RESULTS for probe in reading.probes] == [True]
            _, failures = await engine.collect(server, EngineSettings(timeout=1.0))
            assert all(failure.reason.replace("_", "").isalpha() for failure in failures)
        await health.close()
        await engine.close()

    @SLOW
    @given(REPLIES)
    def check(reply):
        asyncio.run(ask(reply))

    check()


@QUICK
@given(st.integers(0, 300), st.integers(0, 70_000), st.binary(max_size=400), st.booleans())
def test_a_load_file_of_any_bytes_is_read_or_refused(slots, size, rest, known):
    """Whatever its header promises, no more is read than is there."""
    with TemporaryDirectory() as folder:
        path = Path(folder) / "loads"
        path.write_bytes(struct.pack("<4sHHI", MAGIC if known else rest[:4], VERSION, slots, size) + rest)
        with suppress(ValueError), held_itself(str(path)) as held:
            assert all(load.running >= 0 and load.queued >= 0 for load in read_loads(held, os.getuid()))


KEYS = st.sampled_from(("web", "interval", "health", "servers", "limits", "log", "path", "state", "gpu", "x\n"))


@QUICK
@given(st.one_of(st.binary(max_size=60), st.dictionaries(KEYS, ANYTHING, max_size=4)))
def test_a_configuration_of_any_content_is_read_or_refused_in_one_line(content):
    """Never by another exception."""
    with TemporaryDirectory() as folder:
        path = Path(folder) / "c.yml"
        path.write_bytes(
            content if isinstance(content, bytes) else yaml.safe_dump(content, allow_unicode=True).encode()
        )
        refused = ""
        try:
            load({"config.file": str(path)}, {})
        except ConfigError as error:
            refused = str(error)
        assert refused.isprintable()


MOMENT = {"unix": 1.0, "monotonic": 1.0, "boottime": 1.0}
PARTS = st.sampled_from(
    ("servers", "failures", "gpu", "process", "log", "health", "memory", "0", "gpus", "logs", "=", "at")
)
CHANGES = st.recursive(ANYTHING, lambda inner: st.dictionaries(PARTS, inner, max_size=3), max_leaves=6)


def read_or_refused(path):
    """Read a recording; what is wrong with it is said in one line that names the file."""
    refused, looks = str(path), []
    try:
        looks = list(play_recording(recorded(path)))
    except ConfigError as error:
        refused = str(error)
    assert refused.startswith(str(path))
    assert refused.isprintable()
    return looks


@QUICK
@given(st.lists(st.one_of(CHANGES, st.binary(max_size=30)), max_size=3), ANYTHING)
def test_a_recording_of_any_changes_is_read_or_refused(told, memory):
    """After a line that is whole, or without any."""
    whole = Lines().line(
        a_snapshot(1.0, gpus(1.0), a_log(1.0)),
        json.loads(json.dumps(memory, default=str)) if isinstance(memory, dict) else None,
    )
    lines = [one if isinstance(one, bytes) else json.dumps({"moment": MOMENT, "changed": one}).encode() for one in told]
    with TemporaryDirectory() as folder:
        path = Path(folder) / "r.jsonl"
        for begin in (whole, b""):
            path.write_bytes(begin + b"".join(line + b"\n" for line in lines))
            read_or_refused(path)


@QUICK
@given(st.integers(0, 10_000), st.binary(max_size=8), st.integers(0, 10_000))
def test_a_packed_recording_with_anything_in_it_is_read_or_refused(at, noise, end):
    """Bytes that have changed, are missing or come after."""
    recorder = FlightRecorder()
    for now in range(20):
        recorder.take(a_snapshot(float(now), gpus(float(now)), processes(float(now))))
    content = bytearray(recorder.dump())
    content[at % len(content) : at % len(content) + len(noise)] = noise
    with TemporaryDirectory() as folder:
        path = Path(folder) / "recording.jsonl.gz"
        path.write_bytes(content[: end % len(content)] if end % 2 else content)
        assert len(read_or_refused(path)) <= 20
        read_or_refused(Path(folder))


@QUICK
@given(ANYTHING)
def test_a_memory_of_any_content_is_recalled_or_forgotten(memory):
    """What was kept may have been written by anything."""
    Watcher(lambda _name: None).recall(memory, 100.0)
