"""Exposition: what is on the page, in which format, and that Prometheus' own checker finds nothing wrong with it."""

import gzip
import subprocess
from dataclasses import replace

import pytest
from prometheus_client.openmetrics.parser import text_string_to_metric_families as parse_openmetrics
from prometheus_client.parser import text_string_to_metric_families as parse_text

from readings import NAME, a_log, a_server, a_snapshot, gpus, health, processes
from stallwatch.collectors.engine import EngineRank, EngineReading
from stallwatch.exposition import FORMATS, MOST_SERIES, Exposition, bounded, chosen
from stallwatch.history import History
from stallwatch.lanes import LaneState
from stallwatch.notify.tally import Tally
from stallwatch.sections import Limits
from stallwatch.snapshot import Failure, Family
from stallwatch.verdict import judge
from stallwatch.view import View
from stallwatch.workers import WorkerState

OPENMETRICS = "application/openmetrics-text; version=1.0.0"


def a_view(now=100.0, *, servers=None, readings=None, lanes=None):
    """Return a view of a server that is ready, with every signal."""
    if readings is None:
        readings = (gpus(now), processes(now), a_log(now, progress=40.0), health(now))
    snapshot = a_snapshot(now, *readings, servers=servers)
    lane = LaneState("gpu", "", True, 0.01, now, (("nvml_error", 2),))
    rest = tuple(replace(lane, collector=name, failures=()) for name in ("process", "log", "health", "discovery"))
    pasts = History(lambda _name: Limits()).look(snapshot)
    workers = (WorkerState("host", True, 1, 0), WorkerState("trial", False, 0, 1))
    verdicts = {name: judge(past, snapshot.moment) for name, past in pasts.items()}
    return View(snapshot, pasts, lanes or (lane, *rest), workers, verdicts)


def samples(view, accept="text/plain"):
    """Return what a scrape of this view says: (name, labels) -> value."""
    text = Exposition(view).page(accept).plain.decode()
    parse = parse_openmetrics if accept == OPENMETRICS else parse_text
    return {(s.name, tuple(sorted(s.labels.items()))): s.value for family in parse(text) for s in family.samples}


def value(view, name, **labels):
    """Return one sample of a scrape, or None."""
    return samples(view).get((f"stallwatch_{name}", tuple(sorted(labels.items()))))


def test_both_formats_say_the_same():
    """Text and OpenMetrics hold the same samples, each readable by its own parser."""
    assert samples(a_view()) == samples(a_view(), OPENMETRICS)


def test_the_format_is_negotiated():
    """The Accept header decides, and plain text is what a browser gets."""
    exposition = Exposition(a_view())
    assert exposition.page(OPENMETRICS).content_type.startswith("application/openmetrics-text")
    assert exposition.page(OPENMETRICS).plain.endswith(b"# EOF\n")
    assert exposition.page("*/*").content_type.startswith("text/plain")
    assert b"# EOF" not in exposition.page("*/*").plain
    assert gzip.decompress(exposition.page("*/*").zipped) == exposition.page("*/*").plain


@pytest.mark.parametrize("version", ["abc", "1!9", "", "9" * 6000, "1.0.é", "2.0.0", "1.0.0;escaping=none"])
@pytest.mark.parametrize("kind", ["application/openmetrics-text", "text/plain"])
def test_an_accept_header_of_any_words_is_answered(kind, version):
    """A version that is none, or that nobody has, gets one of the formats that there are."""
    page = Exposition(a_view()).page(f"{kind};version={version}")
    assert page.content_type in FORMATS
    assert page.plain


def test_nobody_can_have_pages_kept_for_formats_that_are_made_up():
    """A page is kept and rendered anew for each format that is asked for, and of those there are few."""
    told = {chosen(f"application/openmetrics-text; version=1.{n}.0") for n in range(100)}
    assert (len(told), len(FORMATS)) == (1, 9)


def test_promtool_finds_nothing_wrong():
    """Prometheus' own checker accepts names, units, types and help texts."""
    text = Exposition(a_view()).page("text/plain").plain
    done = subprocess.run(["promtool", "check", "metrics"], input=text, capture_output=True, timeout=30, check=False)
    assert (done.returncode, done.stdout, done.stderr) == (0, b"", b"")


def test_the_signals_that_were_asked_for_are_gauges():
    """Utilization, memory, scheduler CPU, log staleness and health latency are there."""
    view = a_view()
    assert value(view, "gpu_utilization_ratio", gpu="0", uuid="GPU-0") == 0.0
    assert value(view, "gpu_memory_used_bytes", gpu="0", uuid="GPU-0") == 76 * 1024**3
    assert value(view, "process_cpu_ratio", server=NAME, process="scheduler_TP0") == 0.0
    assert value(view, "log_staleness_seconds", server=NAME) == 60.0
    assert value(view, "health_latency_seconds", server=NAME, path="/health") == 1.0


def test_ages_are_times_on_the_clock_of_the_snapshot():
    """The snapshot's time less a published time is the age."""
    view = a_view()
    now = value(view, "snapshot_timestamp_seconds")
    assert now - value(view, "log_last_progress_timestamp_seconds", server=NAME) == 60.0
    assert now - value(view, "server_last_movement_timestamp_seconds", server=NAME, signal="log") == 60.0


def test_one_phase_holds():
    """The phase is one of a closed set, the others are 0."""
    found = {
        dict(labels)["phase"]: v for (name, labels), v in samples(a_view()).items() if name == "stallwatch_server_phase"
    }
    assert found["ready"] == 1.0
    assert sum(found.values()) == 1.0
    assert len(found) == 10


def test_a_server_that_has_gone_leaves_nothing_behind():
    """After a server goes no series names it any more."""
    exposition = Exposition(a_view())
    exposition.page("text/plain")
    exposition.publish(a_view(101.0, servers=(), readings=(gpus(101.0),)))
    assert NAME.encode() not in exposition.page("text/plain").plain


def test_a_signal_that_cannot_be_read_is_absent_and_named():
    """Without a log there is no staleness, not even 0, and signal_success says which signal it is."""
    view = a_view(readings=(gpus(100.0), processes(100.0), health(100.0)))
    assert value(view, "log_staleness_seconds", server=NAME) is None
    assert value(view, "signal_success", server=NAME, signal="log") == 0.0
    assert value(view, "signal_success", server=NAME, signal="gpu") == 1.0


def test_lost_gpus_are_no_signal():
    """When all GPUs of a server are lost its gpu signal is missing, and they stay its GPUs."""
    view = a_view(readings=(gpus(100.0, lost=True, memory=None),))
    assert value(view, "signal_success", server=NAME, signal="gpu") == 0.0
    assert value(view, "server_gpu_info", server=NAME, gpu="3", uuid="GPU-3", rank="TP3") == 1.0


def test_the_limits_of_each_server_are_published():
    """What the rules compare with is there for each server."""
    assert value(a_view(), "server_limit_seconds", server=NAME, limit="silent") == 600.0


def test_a_server_of_several_nodes_tells_how_many_there_are():
    """Each node says of itself where they meet, in one spelling; a server of one node has no such series."""
    launch = replace(a_server().launch, nnodes=4, node_rank=3, dist_init_addr="TCP://Node-0:5000")
    view = a_view(servers=(a_server(launch=launch),))
    assert value(view, "server_group_nodes", server=NAME, group="node-0:5000", node_rank="3") == 4.0
    assert all(name != "stallwatch_server_group_nodes" for name, _ in samples(a_view()))


def test_schedulers_present_and_expected():
    """A scheduler that is gone shows as fewer than expected, down to zero."""
    assert value(a_view(), "server_processes", server=NAME, role="scheduler") == 1.0
    assert value(a_view(), "server_expected_processes", server=NAME, role="scheduler") == 8.0


def test_the_exporter_tells_of_itself():
    """Collectors and workers have their success, failures, restarts and stuck ones."""
    view = a_view()
    assert value(view, "collector_success", collector="gpu") == 1.0
    assert value(view, "collector_failures_total", collector="gpu", reason="nvml_error") == 2.0
    assert value(view, "worker_up", worker="host") == 1.0
    assert value(view, "worker_up", worker="trial") is None
    assert value(view, "worker_abandoned", worker="trial") == 1.0


def test_hostile_names_do_not_break_the_page():
    """A model that is called like an exposition line stays a label value."""
    launch = replace(a_server().launch, model='x"} 1\nstallwatch_fake 1\n\\')
    view = a_view(servers=(a_server(launch=launch),))
    assert not any(name == "stallwatch_fake" for name, _ in samples(view))
    assert any(
        dict(labels).get("model") == launch.model for name, labels in samples(view) if name == "stallwatch_server_info"
    )


def test_one_collector_states_only_so_many_series():
    """The rest is left out, whole families later on too, and counted."""
    samples = tuple(((str(number),), 1.0) for number in range(6))
    kept, dropped = bounded([Family(name, "X.", "gauge", ("a",), samples) for name in "xyz"], 8)
    assert ([len(family.samples) for family in kept], dropped) == ([6, 2, 0], 10)


def test_what_is_left_out_is_counted_and_logged_once(caplog):
    """A server of thousands of ranks leaves the other collectors whole."""
    ranks = tuple(EngineRank(str(number), 1.0, 1.0) for number in range(20_000))
    exposition = Exposition(a_view(readings=(health(100.0), EngineReading(100.0, NAME, ranks))))
    for now in (100.0, 101.0):
        view = a_view(now, readings=(health(now), EngineReading(now, NAME, ranks)))
        exposition.publish(view)
        text = exposition.page("text/plain").plain.decode()
        assert text.count("\nstallwatch_engine_") == MOST_SERIES
        assert "stallwatch_health_success{" in text
    assert 'stallwatch_collector_dropped_total{collector="engine"} 30000.0' in text
    assert [record.getMessage() for record in caplog.records] == ["too many series"]


def test_unchanged_readings_are_not_rendered_again():
    """A collector whose reading is the same as before costs nothing in the next rendering."""
    view = a_view()
    exposition = Exposition(view)
    exposition.page("text/plain")
    before = {key: chunk.text for key, chunk in exposition._chunks.items()}
    later = a_view(101.0, readings=view.snapshot.readings)
    exposition.publish(later)
    after = {key: chunk.text for key, chunk in exposition._chunks.items()}
    same = {name for (_, name), text in after.items() if before[_, name] is text}
    assert {"gpu", "build"} <= same
    assert "own" not in same


@pytest.mark.parametrize("reloaded", [True, False])
def test_the_last_reload_is_told(reloaded):
    """A configuration that could not be read shows."""
    page = Exposition(a_view(), reloaded=lambda: reloaded).page("text/plain").plain.decode()
    assert f"stallwatch_config_last_reload_successful {float(reloaded)}" in page


def test_what_came_of_notifications_is_told_where_any_are_to_be_sent():
    """Each result from 0 on, and when the last one was taken on the clock of the snapshot; else nothing at all."""
    assert "stallwatch_notification" not in Exposition(a_view()).page("text/plain").plain.decode()
    tally = Tally().with_one("failed", 90.0).with_one("delivered", 95.0).with_one("failed", 99.0)
    page = Exposition(a_view(100.0), tally=lambda: tally).page("text/plain").plain.decode()
    scrape = {line.rpartition(" ")[0]: float(line.rpartition(" ")[2]) for line in page.splitlines() if line[0] != "#"}
    counts = {result: scrape[f'stallwatch_notifications_total{{result="{result}"}}'] for result in tally.counts}
    assert counts == {"delivered": 1.0, "failed": 2.0, "given_up": 0.0}
    last = scrape["stallwatch_notification_last_success_timestamp_seconds"]
    assert scrape["stallwatch_snapshot_timestamp_seconds"] - last == 5.0


def test_failures_of_one_server_are_no_failed_collector():
    """What one server does not offer leaves the collector successful."""
    snapshot = a_snapshot(1.0, failures=(Failure("log", "terminal", "", NAME),))
    assert (
        value(
            View(snapshot, {}, (LaneState("log", "", True, None, None, ()),), ()), "collector_success", collector="log"
        )
        == 1.0
    )


def owed(**past):
    """Return what a scrape says is owed, in seconds, when this is known of the server."""
    view = a_view()
    known = replace(view.pasts[NAME], **past)
    scrape = replace(view, pasts={NAME: known})
    now = value(scrape, "snapshot_timestamp_seconds")
    found = samples(scrape).items()
    return {
        dict(labels)["reason"]: now - at
        for (name, labels), at in found
        if name == "stallwatch_server_demand_since_timestamp_seconds"
    }


def test_a_probe_that_the_scheduler_answered_begins_the_count_anew():
    """A gauge that sticks beside probes that are answered never has been owed for long; a start has no such excuse."""
    assert owed(demand_since={"running": 10.0}, cleared_at=None) == {"running": 90.0}
    assert owed(demand_since={"running": 10.0}, cleared_at=95.0) == {"running": 5.0}
    assert owed(demand_since={"not_ready": 10.0}, cleared_at=95.0) == {"not_ready": 90.0}


def test_a_start_that_waits_on_purpose_owes_nothing():
    """A gated launch is not ready because somebody wants it so."""
    assert owed(demand_since={"not_ready": 10.0}, waiting="gated") == {}


def test_what_one_group_cannot_say_does_not_silence_the_others(caplog):
    """A fault of ours in the families of one collector is logged once, and all others are on the page."""
    view = a_view()
    broken = replace(
        view, snapshot=replace(view.snapshot, readings=(*view.snapshot.readings, health(100.0, scope=None)))
    )
    exposition = Exposition(replace(broken, pasts={NAME: None}))
    page = exposition.page("text/plain").plain
    assert b"stallwatch_gpu_utilization_ratio" in page
    assert b"stallwatch_snapshot_timestamp_seconds" in page
    assert b"stallwatch_server_verdict{" not in page
    exposition.publish(replace(broken, pasts={NAME: None}))
    assert caplog.text.count("cannot be published") == 1


def test_one_verdict_holds():
    """The verdict is one of a closed set, and of the signatures at most one holds."""
    found = {
        dict(labels)["verdict"]: v
        for (name, labels), v in samples(a_view()).items()
        if name == "stallwatch_server_verdict"
    }
    assert found.pop("idle") == 1.0
    assert set(found.values()) == {0.0}
    assert value(a_view(), "server_idle", server=NAME) == 1.0
    assert value(a_view(), "server_signature", server=NAME, signature="cold_deadlock") == 0.0
