"""What a real SGLang 0.5.9 with two ranks showed, idle, stopped and killed: see tests/data/real_sglang/README.md."""

import json
import os
from datetime import datetime, timezone
from pathlib import Path

import pytest

from exporter_process import Scrape
from stallwatch.collectors.log import reader
from stallwatch.engines import engine_named, identify
from stallwatch.snapshot import Moment

FOLDER = Path(__file__).parent / "data" / "real_sglang"
SERVER = "sglang:31001"
RANKS = ("scheduler_TP0", "scheduler_TP1")
LOG = (FOLDER / "server.log").read_bytes()
ENDED = datetime(2026, 11, 29, 20, 38, 43, tzinfo=timezone.utc).timestamp()
SCRAPES = ("idle", "traffic", "stopped_4s", "stopped_64s", "continued")
SCRAPES += ("detokenizer_stopped", "detokenizer_continued", "detokenizer_killed")


def scrape(name):
    """Return one recorded scrape."""
    return Scrape((FOLDER / f"{name}.prom").read_text())


def processes():
    """Return the recorded texts of /proc, with the arguments of each process as a list."""
    return [
        {**texts, "argv": texts["cmdline"].split("\0")[:-1]}
        for texts in json.loads((FOLDER / "processes.json").read_text())
    ]


def log_after(size, tmp_path):
    """Return what the log collector tells once the log has this many bytes; its clock is that of the log's end."""
    path = tmp_path / "server.log"
    path.write_bytes(LOG[:size])
    os.utime(path, (ENDED, ENDED))
    read = reader({}, lambda _note: None, lambda: Moment(ENDED, 5000.0, 5000.0))
    target = {"server": SERVER, "engine": "sglang", "path": str(path), "root": "", "incarnation": "1", "started": None}
    reading, failures = read([target], frozenset())
    assert failures == ()
    return reading.logs[0]


def at(clock):
    """Return the monotonic time of a time of day, on the clock of `log_after`."""
    hour, minute, second = map(int, clock.split(":"))
    return 5000.0 - (ENDED - datetime(2026, 11, 29, hour, minute, second, tzinfo=timezone.utc).timestamp())


def state(seen, process):
    """Return the states that a scrape shows of a process."""
    return seen.holding("process_state", "state", server=SERVER, process=process)


def holds(seen, name, label):
    """Return what holds in a state set of the server's health."""
    return seen.holding(f"health_{name}", label, server=SERVER, path="/health")


def test_titles_tell_roles_and_ranks():
    """The launcher keeps its command line; its children are titled, and padded with NULs."""
    found = [identify(one["argv"]) for one in processes()]
    assert [(one.role, one.name, one.rank) for one in found] == [
        ("launcher", "launcher", ""),
        ("scheduler", "scheduler_TP0", "TP0"),
        ("scheduler", "scheduler_TP1", "TP1"),
        ("detokenizer", "detokenizer", ""),
    ]


def test_the_kernels_name_of_a_process_tells_its_role_where_there_is_no_title():
    """A zombie has no command line, and of its title only 15 bytes."""
    names = [one["stat"].partition("(")[2].rpartition(")")[0] for one in processes()]
    assert names == ["python", "sglang::schedul", "sglang::schedul", "sglang::detoken"]
    assert [found.role if (found := identify((name,))) else None for name in names] == [
        None,
        "scheduler",
        "scheduler",
        "detokenizer",
    ]


def test_the_command_line_tells_port_and_ranks():
    """Two schedulers belong to `--tp-size 2`, and they hold the first two GPUs."""
    engine = engine_named("sglang")
    argv = processes()[0]["argv"]
    launch = engine.launch(argv, Path.read_text)
    assert (launch.port, launch.tp_size, launch.model) == (31001, 2, "/srv/real/model")
    assert engine.expected(launch, argv) == len(RANKS)
    assert engine.gpu_ids(launch, ("TP0", "TP1")) == {"TP0": 0, "TP1": 1}


def test_the_log_tells_how_the_server_started_and_what_killed_it(tmp_path):
    """Both ranks got as far as ranks say, the server is ready since its line, and two lines tell of the end."""
    log = log_after(len(LOG), tmp_path)
    assert log.phase == "ready"
    assert log.phase_since == at("20:34:38")
    assert [(rank.rank, rank.phase) for rank in log.ranks] == [
        ("TP0", "allocating_memory"),
        ("TP1", "allocating_memory"),
    ]
    assert {kind: count for kind, count in log.errors.items() if count} == {
        "health_check_failed": 5,
        "scheduler_exception": 1,
        "process_died": 1,
    }


def test_probes_in_the_log_are_no_progress(tmp_path):
    """After the last decode batch only probes made the server write, one-token batches and access lines."""
    log = log_after(len(LOG), tmp_path)
    probes = LOG.count(b"Prefill batch, #new-seq: 1, #new-token: 1,")
    assert log.lines["heartbeat"] == probes == 10
    assert log.last_progress == at("20:37:28")
    assert log.last_heartbeat == at("20:38:38")


@pytest.mark.parametrize("name", SCRAPES)
def test_the_log_up_to_a_scrape_tells_what_was_scraped(name, tmp_path):
    """Reading the log later and at once gives the counts of the exporter that followed it line by line."""
    seen = scrape(name)
    log = log_after(int(seen.value("log_size_bytes", server=SERVER)), tmp_path)
    for kind in ("progress", "heartbeat", "error"):
        assert log.lines[kind] == seen.value("log_lines_total", server=SERVER, kind=kind)
    errors = {labels["kind"]: value for labels, value in seen.all("log_errors_total", server=SERVER)}
    assert log.errors == errors


def test_an_idle_server_is_known_to_be_idle_and_a_serving_one_not_to_be():
    """Its schedulers spin while idle, so that CPU says nothing; log and probe tell the two apart."""
    idle, traffic = scrape("idle"), scrape("traffic")
    assert idle.value("server_idle", server=SERVER) == 1
    assert traffic.value("server_idle", server=SERVER) == 0
    assert (
        idle.value("log_staleness_seconds", server=SERVER) > 60 > traffic.value("log_staleness_seconds", server=SERVER)
    )
    for seen in (idle, traffic):
        assert all(seen.value("process_cpu_ratio", server=SERVER, process=rank) > 0.4 for rank in RANKS)
        assert holds(seen, "result", "result") == {"ok"}
        assert seen.value("health_latency_seconds", server=SERVER) >= 1


def test_a_stopped_rank_is_seen_at_once_and_its_peer_waits_asleep():
    """State T after 4 s, long before any probe fails; the peer sleeps on 2 % of a core and not on none."""
    for name in ("stopped_4s", "stopped_64s"):
        seen = scrape(name)
        assert state(seen, "scheduler_TP1") == {"T"}
        assert state(seen, "scheduler_TP0") == {"S"}
        assert seen.value("process_cpu_ratio", server=SERVER, process="scheduler_TP1") == 0
        assert seen.value("process_cpu_ratio", server=SERVER, process="scheduler_TP0") == pytest.approx(0.02, abs=0.005)
    assert holds(scrape("stopped_4s"), "result", "result") == {"ok"}


@pytest.mark.parametrize("name", ["stopped_64s", "detokenizer_stopped"])
def test_a_probe_of_a_stopped_server_fails_after_twenty_seconds(name):
    """The web process answers 503 in place of the scheduler, and the exporter says what is owed."""
    seen = scrape(name)
    assert seen.value("health_status_code", server=SERVER) == 503
    assert 20 <= seen.value("health_latency_seconds", server=SERVER) < 21
    assert holds(seen, "result", "result") == {"http_error"}
    assert holds(seen, "scope", "scope") == {"scheduler"}
    assert seen.value("health_consecutive_failures", server=SERVER) == 2
    assert {labels["reason"] for labels, _ in seen.all("server_demand_since_timestamp_seconds")} == {"probe_failing"}
    assert seen.value("server_idle", server=SERVER) == 0
    assert seen.age("log_last_progress_timestamp_seconds", server=SERVER) > 40


def test_a_server_that_goes_on_owes_nothing_more():
    """One good answer ends the demand, and the log moves again."""
    seen = scrape("continued")
    assert holds(seen, "result", "result") == {"ok"}
    assert seen.all("server_demand_since_timestamp_seconds") == []
    assert seen.value("log_staleness_seconds", server=SERVER) < 1
    assert all(state(seen, rank) <= {"R", "S"} for rank in RANKS)


def test_schedulers_spin_on_while_the_detokenizer_is_stopped():
    """Their CPU shows nothing of it; the state of the detokenizer does."""
    seen = scrape("detokenizer_stopped")
    assert state(seen, "detokenizer") == {"T"}
    assert all(seen.value("process_cpu_ratio", server=SERVER, process=rank) > 0.4 for rank in RANKS)


def test_a_killed_detokenizer_stays_as_a_zombie_while_the_server_lives():
    """It is in state Z and no longer counted, whereas both schedulers are."""
    seen = scrape("detokenizer_killed")
    assert state(seen, "detokenizer") == {"Z"}
    assert seen.value("server_processes", server=SERVER, role="detokenizer") == 0
    assert seen.value("server_processes", server=SERVER, role="scheduler") == len(RANKS)


def test_a_server_that_has_gone_leaves_no_series():
    """After the end nothing has a server label any more."""
    assert [sample for sample in scrape("killed").samples if "server" in sample[1]] == []


@pytest.mark.parametrize("name", [*SCRAPES, "killed"])
def test_recordings_hold_one_server_and_no_secret(name):
    """Only the server of the recording is in it, and no path of the machine it was made on."""
    seen = scrape(name)
    assert {labels["server"] for _, labels, _ in seen.samples if "server" in labels} <= {SERVER}
    assert "/tmp" not in seen.text
