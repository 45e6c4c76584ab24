"""Report: what the JSON about each server holds, and that all of it can be read as JSON by others."""

import json

import pytest

from readings import GIB, NAME, a_log, a_server, gpus, health, moment, processes
from stallwatch.report import report
from stallwatch.sections import Limits
from stallwatch.snapshot import Failure, Place
from stallwatch.verdict import SIGNATURES, VERDICTS
from stallwatch.view import View
from stallwatch.watcher import Watcher

PROMISED = ("server", "engine", "verdict", "signature", "since", "reason", "missing")
READINGS = ("phase", "pending_requests", "last_movement", "owed_since", "ranks", "replicas", "gpus", "health", "limits")


def serving(now):
    """Return what a healthy server shows."""
    return gpus(now), processes(now), a_log(now, progress=40.0), health(now, latency=1.00049)


def said(*times, readings=serving, servers=None, failures=()):
    """Look at these moments and return what is reported of the last, as another program reads it."""
    watcher = Watcher(lambda _name: Limits())
    for now in times or (100.0,):
        seen = watcher.look(moment(now), (a_server(),) if servers is None else servers, tuple(readings(now)), failures)
    view = View(seen.snapshot, seen.pasts, (), (), seen.verdicts, seen.not_ready_seconds)
    text = json.dumps(report(view), allow_nan=False)
    return json.loads(text)


def test_each_server_has_its_verdict_and_what_that_rests_on():
    """The promised keys come first, in their order, then the readings."""
    status = said()
    assert list(status) == ["time", "servers", "failures"]
    entry = status["servers"][0]
    assert tuple(entry)[: len(PROMISED)] == PROMISED
    assert entry.keys() > set(READINGS)
    assert (entry["server"], entry["engine"]) == (NAME, "sglang")
    assert entry["verdict"] in VERDICTS
    assert entry["signature"] in {"", *SIGNATURES}
    assert entry["reason"].endswith(".")


def test_times_are_unix_seconds():
    """Nothing that is monotonic gets out: the log moved at 40, the phase began then, and the probe ended at 100."""
    status = said()
    entry = status["servers"][0]
    at, then = moment(100.0).unix, moment(40.0).unix
    assert status["time"] == at
    assert (entry["last_movement"]["log"], entry["phase_since"]) == (then, then)
    assert (entry["health"][0]["at"], entry["health"][0]["last_success"]) == (at, at)
    assert entry["since"] <= at


def test_the_readings_are_said_in_base_units():
    """Memory in bytes, utilization as a ratio, latency in seconds."""
    entry = said()["servers"][0]
    shown = entry["gpus"]
    assert (shown["count"], shown["indices"]) == (8, list(range(8)))
    assert (shown["memory_used_min"], shown["memory_used_max"]) == (76 * GIB, 76 * GIB)
    assert (shown["utilization_min"], shown["utilization_max"]) == (0.0, 0.0)
    assert entry["health"][0]["latency"] == pytest.approx(1.0005)
    assert entry["limits"]["stalled"] == Limits().stalled


def test_each_rank_has_a_row():
    """What was read of a process stands with its rank."""
    entry = said(99.0, 100.0)["servers"][0]
    row = next(row for row in entry["ranks"] if row["process"] == "scheduler_TP0")
    assert (row["rank"], row["state"]) == ("TP0", "S")
    assert row["missing_since"] is None


def test_what_is_missing_is_null_and_named_and_never_zero():
    """Without any reading the verdict is unknown, and the failures say why."""
    failures = (Failure("gpu", "library_not_found", "nvmlInit"), Failure("log", "terminal", "to a terminal", NAME))
    servers = (a_server(gpus=(Place("GPU-0", 0, "TP0"),)),)
    status = said(readings=lambda _now: (), servers=servers, failures=failures)
    entry = status["servers"][0]
    assert entry["verdict"] == "unknown"
    assert any("gpu" in missing for missing in entry["missing"])
    assert any("log" in missing for missing in entry["missing"])
    assert (entry["phase"], entry["pending_requests"], entry["health"]) == (None, None, [])
    assert {entry["gpus"][key] for key in ("utilization_max", "memory_used_max", "power_ratio")} == {None}
    assert [(one["collector"], one["server"], one["reason"]) for one in status["failures"]] == [
        ("gpu", "", "library_not_found"),
        ("log", NAME, "terminal"),
    ]


def test_a_node_without_servers_has_an_empty_list():
    """There is nothing to say, and that is said."""
    assert said(servers=())["servers"] == []
