"""What a log tells of a server, on made and real logs, over restarts of either side."""

import os
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path

import msgspec
import pytest

from stallwatch.child import fields_of
from stallwatch.collectors import log as module
from stallwatch.collectors.log import LogReading, families, reader, target
from stallwatch.logs.markers import ERROR_KINDS, KINDS
from stallwatch.snapshot import Failure, Launch, Moment, Process, Server

LOGS = Path(__file__).parents[1] / "data" / "logs"
BOOTED = 500_000.0  # how long the machine of these tests has been up
STARTED = 1_772_618_400.0
SERVER = "sglang:30000"


class Watch:
    """Reads one log, with a clock that stands still until it is told."""

    def __init__(self, path, engine="sglang"):
        self.now = Moment(STARTED, BOOTED, BOOTED)
        self.notes = []
        self.read = reader({}, self.notes.append, lambda: self.now)
        self.target = {
            "server": SERVER,
            "engine": engine,
            "path": str(path),
            "root": "",
            "incarnation": "1.1",
            "started": None,
        }

    def wait(self, seconds):
        """Let time pass."""
        self.now = Moment(self.now.unix + seconds, self.now.monotonic + seconds, self.now.boottime + seconds)

    def look(self):
        """Read the log, which is there."""
        reading, failures = self.read([self.target], frozenset())
        assert failures == ()
        return reading.logs[0]

    def failure(self):
        """Try to read the log, and return why that failed."""
        reading, failures = self.read([self.target], frozenset())
        assert reading.logs == ()
        return failures[0]


@pytest.fixture
def path(tmp_path):
    """Give a path for a log that is not there yet."""
    return tmp_path / "server.log"


@pytest.fixture
def watch(path):
    """Give a watch of that path."""
    return Watch(path)


def append(path, text):
    """Write a text to the end of a file."""
    with path.open("ab") as file:
        file.write(text.encode() if isinstance(text, str) else text)


def written(path, data, age=0.0):
    """Write a file that was last written so long ago."""
    path.write_bytes(data if isinstance(data, bytes) else data.encode())
    os.utime(path, (STARTED - age, STARTED - age))


def told(log):
    """Return what must not depend on when the log was read."""
    ranks = [(rank.rank, rank.phase) for rank in log.ranks]
    return log.phase, log.progress, ranks, log.last_marker, log.last_marker_rank, log.lines, log.errors, log.stopping


def count_of_descriptors():
    """Count what this process has open."""
    return len(list(Path("/proc/self/fd").iterdir()))


@contextmanager
def as_nobody():
    """Act for a moment as a user without rights."""
    user = os.geteuid()
    if user == 0:
        os.seteuid(65534)
    try:
        yield
    finally:
        os.seteuid(user)


@pytest.mark.parametrize(
    ("name", "phase", "progress", "marker", "errors"),
    [
        ("start_ok_0.4.6.post5_tp2", "ready", 44, "decode", {}),
        ("start_ok_0.5.2_tp2", "ready", 44, "decode", {}),
        ("start_ok_0.5.6_tp2", "ready", 44, "decode", {}),
        ("start_ok_0.5.6_tp4_eagle", "ready", 108, "decode", {}),
        ("start_ok_worker_node_rank1_0.5.6_tp16", "ready", 66, "worker_ready", {}),
        ("hang_in_dist_init_0.5.6_tp8", "distributed_init", 9, "dist_init", {}),
        ("hang_after_shards_100pct_0.5.6_tp8", "loading_weights", 31, "loading", {}),
        ("hang_after_weights_all_ranks_0.5.6_tp8", "loaded", 39, "load_end", {}),
        ("serving_hang_health_failed_0.5.6_tp2", "ready", 44, "decode", {"health_check_failed": 3}),
        ("watchdog_timeout_0.5.2_tp2", "ready", 44, "decode", {"watchdog_timeout": 1, "process_died": 1}),
        ("sglang_0.5.9_steady", "stopping", 39, "decode", {"http_exception": 2}),
        ("sglang_0.5.9_term", "stopping", 37, "decode", {}),
        ("sglang_0.5.9_kill_tp1", "ready", 21, "prefill", {"scheduler_exception": 1, "process_died": 1}),
        ("sglang_0.5.9_watchdog", "ready", 25, "decode", {"watchdog_timeout": 1, "process_died": 1}),
        ("sglang_0.5.9_stop_tp1", "ready", 62, "decode", {"health_check_failed": 8, "http_exception": 4}),
        ("vllm_0.32.0_steady", "stopping", 15, "throughput", {"process_died": 1}),
        ("vllm_0.32.0_dp2_tp2", "stopping", 28, "ready", {}),
        ("vllm_0.32.0_stop_tp1", "ready", 15, "ready", {"process_died": 2}),
    ],
)
def test_whole_logs(name, phase, progress, marker, errors):
    """Each log of a whole life tells its phase, its progress and what failed."""
    log = Watch(LOGS / f"{name}.log", name.split("_")[0].replace("start", "sglang")).look()
    assert (log.phase, log.lines["progress"], log.last_marker) == (phase, progress, marker)
    assert {kind: count for kind, count in log.errors.items() if count} == errors
    assert sum(log.lines.values()) == count_of_lines(LOGS / f"{name}.log")


def count_of_lines(path):
    """Count the lines that are not empty the slow way."""
    return sum(1 for line in path.read_bytes().replace(b"\r", b"\n").split(b"\n") if line)


@pytest.mark.parametrize("size", [1, 7, 333, 5000])
@pytest.mark.parametrize(
    "name",
    ["hang_after_shards_100pct_0.5.6_tp8.log", "hang_after_weights_TP5_missing_0.5.6_tp8.log", "tqdm_stderr.raw"],
)
def test_a_log_that_grows_bit_by_bit_tells_the_same(path, watch, name, size):
    """However the bytes arrive, phases, ranks and counts are those of the whole file."""
    data = (LOGS / name).read_bytes()
    path.write_bytes(b"")
    for at in range(0, len(data), size):
        append(path, data[at : at + size])
        log = watch.look()
    assert told(log) == told(Watch(LOGS / name).look())


@pytest.mark.parametrize(
    "name", ["sglang_0.5.9_stop_detok.log", "start_ok_0.5.6_tp4_eagle.log", "vllm_0.32.0_steady.log"]
)
def test_a_long_log_that_grows_bit_by_bit_tells_the_same(path, name):
    """The same holds for the logs of whole lives."""
    data, watch = (LOGS / name).read_bytes(), Watch(path, name.split("_")[0])
    path.write_bytes(b"")
    for at in range(0, len(data), 997):
        append(path, data[at : at + 997])
        log = watch.look()
    assert told(log) == told(Watch(LOGS / name, name.split("_")[0]).look())


def test_a_step_that_does_not_end_is_seen():
    """A worker was stopped before the first request, and a minute later the engine core says that it waits for it."""
    log = Watch(LOGS / "vllm_0.32.0_stop_tp1.log", "vllm").look()
    assert log.step_wait is not None
    assert log.step_wait == log.last_heartbeat > log.last_progress
    assert Watch(LOGS / "vllm_0.32.0_dp2_tp2.log", "vllm").look().step_wait is None


def test_the_rank_that_lags_is_seen():
    """After the hidden barrier all ranks have loaded but TP5."""
    log = Watch(LOGS / "hang_after_weights_TP5_missing_0.5.6_tp8.log").look()
    assert {rank.rank: rank.phase for rank in log.ranks if rank.phase != "loaded"} == {"TP5": "loading_weights"}
    assert [rank.rank for rank in log.ranks] == [f"TP{number}" for number in range(8)]
    assert (log.phase, log.last_marker, log.last_marker_rank) == ("loaded", "load_end", "TP7")


def test_ranks_of_a_second_node_are_ordered_by_number():
    """TP10 comes after TP9."""
    log = Watch(LOGS / "start_ok_worker_node_rank1_0.5.6_tp16.log").look()
    assert [rank.rank for rank in log.ranks] == [f"TP{number}" for number in range(8, 16)]


def test_nothing_secret_leaves(path, watch):
    """Neither the key in the arguments nor a prompt reaches a reading or a failure."""
    append(path, "[2026-03-04 10:00:00] server_args=ServerArgs(model_path='/m', api_key='sk-Secret')\n")
    append(path, "[2026-03-04 10:00:00] Receive: obj=GenerateReqInput(text='sk-Secret')\n")
    append(path, "[2026-03-04 10:00:01 TP0] Scheduler hit an exception: sk-Secret\n")
    assert "sk-Secret" not in repr(watch.look())
    assert watch.look().phase == "launch"


def test_ages_at_first_sight_come_from_the_stated_times(path, watch):
    """Progress is as much older than the last write as the lines say, in whatever zone they were written."""
    written(path, (LOGS / "serving_hang_health_failed_0.5.6_tp2.log").read_bytes(), age=30)
    log = watch.look()
    assert log.last_write == BOOTED - 30
    assert log.last_progress == BOOTED - 30 - 92
    assert log.phase_since == BOOTED - 30 - 136  # ready at 10:00:43, last line at 10:02:59


def test_age_of_a_last_line_that_is_progress(path, watch):
    """Where the last line is progress it is as old as the file."""
    written(path, (LOGS / "hang_after_weights_all_ranks_0.5.6_tp8.log").read_bytes(), age=600)
    assert watch.look().last_progress == BOOTED - 600
    assert {rank.since for rank in watch.look().ranks} == {BOOTED - 600}


def test_age_of_a_bar_that_is_the_last_line(path, watch):
    """A bar states no time, but it is the last that was written."""
    written(path, (LOGS / "hang_after_shards_100pct_0.5.6_tp8.log").read_bytes(), age=600)
    log = watch.look()
    assert (log.last_progress, log.progress) == (BOOTED - 600, 1.0)


def test_age_of_a_bar_before_other_lines(path, watch):
    """A bar was drawn as long after the line before it as it says that it runs."""
    bar = "Loading safetensors checkpoint shards: 100% Completed | 5/5 [01:10<00:00,  2.00s/it]\n"
    lines = "[2026-03-04 10:00:00 TP0] Load weight begin. \n", bar, "[2026-03-04 10:08:00 TP0] something else\n"
    written(path, "".join(lines), age=0)
    assert watch.look().last_progress == BOOTED - 480 + 70


@pytest.mark.parametrize("before", ["", "[2026-99-99 99:99:99] odd\n"])
def test_age_without_stated_times(path, watch, before):
    """Where no line states a time, progress is no older than the last write."""
    bar = "Loading safetensors checkpoint shards: 100% Completed | 5/5 [01:10<00:00,  2.00s/it]\n"
    written(path, before + bar + "something else\n", age=50)
    assert watch.look().last_progress == BOOTED - 50


@pytest.mark.parametrize("age", [-3600.0, STARTED, STARTED + 1e9])
def test_a_modification_time_that_cannot_be(path, watch, age):
    """In the future or before 1970 it is taken for now."""
    written(path, "[2026-03-04 10:00:00 TP0] Load weight end. \n", age=age)
    log = watch.look()
    assert (log.last_write, log.last_progress) == (BOOTED, BOOTED)


def test_later_lines_have_the_moment_at_which_they_were_seen(path, watch):
    """After the first sight the clock of the log no longer matters, and other lines do not move progress."""
    written(path, "[2026-03-04 10:00:00 TP0] Load weight begin. \n", age=100)
    watch.look()
    watch.wait(5)
    append(path, "[1999-01-01 00:00:00 TP0] Load weight end. \n")
    log = watch.look()
    assert (log.last_write, log.last_progress, log.phase_since) == (BOOTED + 5,) * 3
    watch.wait(5)
    append(path, '[2026-03-04 10:00:00] INFO:     1.2.3.4:5 - "GET /health HTTP/1.1" 200 OK\n')
    log = watch.look()
    assert (log.last_write, log.last_progress) == (BOOTED + 10, BOOTED + 5)
    watch.wait(5)
    assert watch.look().last_write == BOOTED + 10


def test_our_own_probe_is_a_heartbeat_and_no_progress(path, watch):
    """What a health probe makes the engine write does not hide that nothing else moves."""
    append(path, "[2026-03-04 10:00:00] The server is fired up and ready to roll!\n")
    watch.look()
    watch.wait(20)
    append(
        path, "[2026-03-04 10:00:20 TP0] Prefill batch, #new-seq: 1, #new-token: 1, #cached-token: 0, token usage: 0\n"
    )
    log = watch.look()
    assert (log.last_progress, log.last_heartbeat) == (BOOTED, BOOTED + 20)


def test_the_last_bar_does_not_wait_for_a_newline(path, watch):
    """A bar without end counts when it is drawn, and the error behind it, minutes later, does not count for it."""
    path.write_bytes(b"")
    watch.look()
    append(path, "\rLoading safetensors checkpoint shards: 100% Completed | 4/4 [00:10<00:00,  2.00s/it]")
    assert watch.look().progress == 1.0
    watch.wait(480)
    append(path, "[2026-03-04 10:08:00 TP5] TP rank 5 could finish the model loading, but there are other ranks\n")
    log = watch.look()
    assert log.last_progress == BOOTED
    assert log.lines["progress"] == log.lines["error"] == log.errors["barrier_expired"] == 1


def test_an_unfinished_line_tells_its_phase_and_is_counted_once(path, watch):
    """What a buffered writer has written of a line is understood before its end comes."""
    path.write_bytes(b"")
    watch.look()
    append(path, "[2026-03-04 10:00:00 TP3] Load weight end. avail m")
    log = watch.look()
    assert (log.phase, log.ranks[0].rank, log.lines["progress"]) == ("loaded", "TP3", 0)
    append(path, "em=1 GB\n")
    assert watch.look().lines["progress"] == 1
    assert watch.look().lines["progress"] == 1


def test_a_new_life_in_the_same_file(path, watch):
    """The line with the arguments begins a life: phases restart, counts go on."""
    append(path, (LOGS / "start_ok_0.5.6_tp2.log").read_bytes())
    before = watch.look()
    append(path, (LOGS / "hang_in_dist_init_0.5.6_tp8.log").read_bytes())
    after = watch.look()
    assert (before.phase, after.phase, len(after.ranks)) == ("ready", "distributed_init", 8)
    assert after.lines["progress"] == before.lines["progress"] + 9


def test_only_the_last_life_counts_at_first_sight(path, watch):
    """Of two lives in one file the later one tells the phases."""
    append(path, (LOGS / "start_ok_0.5.6_tp2.log").read_bytes())
    append(path, (LOGS / "hang_in_dist_init_0.5.6_tp8.log").read_bytes())
    assert watch.look().phase == "distributed_init"


def test_a_log_of_an_earlier_life_does_not_make_a_new_server_ready(path, watch):
    """What was written before the server was started says nothing about it."""
    written(path, (LOGS / "start_ok_0.5.6_tp2.log").read_bytes(), age=300)
    watch.target["started"] = BOOTED - 60
    log = watch.look()
    assert (log.phase, log.ranks, log.last_progress) == (None, (), None)
    assert log.lines["progress"] == 44


def test_a_new_incarnation_forgets_what_the_log_told_before(path, watch):
    """A server that is started again and has written nothing yet has no phase."""
    append(path, "[2026-03-04 10:00:00] The server is fired up and ready to roll!\n")
    assert watch.look().phase == "ready"
    watch.wait(100)
    watch.target |= {"incarnation": "2.2", "started": BOOTED + 99}
    log = watch.look()
    assert (log.phase, log.last_progress, log.lines["progress"]) == (None, None, 1)


def test_a_new_incarnation_that_has_already_told_of_itself_keeps_that(path, watch):
    """The log may name the new life before discovery does."""
    append(path, "[2026-03-04 10:00:00] The server is fired up and ready to roll!\n")
    watch.look()
    watch.wait(100)
    append(path, (LOGS / "hang_in_dist_init_0.5.6_tp8.log").read_bytes())
    watch.look()
    watch.wait(3)
    watch.target |= {"incarnation": "2.2", "started": BOOTED + 95}
    assert watch.look().phase == "distributed_init"


def test_another_path_is_another_log_and_counts_go_on(path, watch, tmp_path):
    """When a server writes to another file its phases are those of the new file."""
    append(path, "[2026-03-04 10:00:00] The server is fired up and ready to roll!\n")
    watch.look()
    watch.target["path"] = str(tmp_path / "other.log")
    append(tmp_path / "other.log", "[2026-03-04 10:00:00 TP0] Load weight begin. \n")
    log = watch.look()
    assert (log.phase, log.path, log.lines["progress"]) == ("loading_weights", watch.target["path"], 2)


def test_a_log_that_is_seen_while_it_is_renamed_is_the_same_log(path, watch):
    """Discovery may name the old file for a look; what the log has told of this life stays told."""
    append(path, "[2026-03-04 10:00:00] The server is fired up and ready to roll!\n")
    watch.look()
    path.rename(path.with_name("server.log.1"))
    for name in ("server.log.1", "server.log"):
        append(path.with_name(name), "[2026-03-04 10:00:01] one more line\n")
        watch.target["path"] = str(path.with_name(name))
        assert watch.look().phase == "ready"
    assert watch.look().lines["other"] == 2


def test_a_server_that_serves_is_ready_although_its_start_is_out_of_sight(path, watch):
    """Decode lines in the last part of a large log are written by a ready server only."""
    append(path, "[2026-03-04 10:00:00 TP0] Decode batch, #running-req: 5, #token: 3100, #queue-req: 0\n")
    assert watch.look().phase == "ready"


def test_waiting_for_somebody_is_told(path, watch):
    """A gated launch waits on purpose, until it goes on."""
    append(path, "[2026-03-04 10:00:00 TP0] Gated launch waiting for activation. rank=0\n")
    log = watch.look()
    assert (log.waiting, log.last_heartbeat, log.last_progress) == ("gated", BOOTED, None)
    append(path, "[2026-03-04 10:00:00 TP0] Gated launch activated. elapsed=3 s\n")
    assert watch.look().waiting == ""


def test_rotation_and_truncation_are_counted(path, watch):
    """Progress goes on over a rotation, and each is counted."""
    append(path, "[2026-03-04 10:00:00 TP0] Load weight begin. \n")
    watch.look()
    path.rename(path.with_name("server.log.1"))
    append(path, "[2026-03-04 10:00:00 TP0] Load weight end. \n")
    assert watch.look().rotations == 1
    path.write_bytes(b"")
    log = watch.look()
    assert (log.rotations, log.phase, log.size_bytes) == (2, "loaded", 0)


def test_failures(path, watch, tmp_path):
    """What cannot be read is named, with the path and without raising."""
    assert watch.failure() == Failure("log", "not_found", f"log {path}", SERVER)
    path.mkdir()
    assert watch.failure().reason == "is_a_directory"
    path.rmdir()
    os.mkfifo(path)
    assert watch.failure().reason == "not_a_regular_file"
    path.unlink()
    path.write_bytes(b"x\n")
    path.chmod(0)
    with as_nobody():
        assert watch.failure().reason == "permission_denied"
    watch.target["path"] = str(tmp_path / ("x" * 300))
    assert watch.failure().reason == "io_error"


def test_quarantine_and_notes(path, watch):
    """The path is noted before it is touched, and is not touched when that got stuck before."""
    path.write_bytes(b"x\n")
    watch.look()
    assert watch.notes == [f"log {path}"]
    reading, failures = watch.read([watch.target], frozenset({f"log {path}"}))
    assert (reading.logs, failures[0].reason, watch.notes) == ((), "quarantined", [f"log {path}"])


def test_a_server_that_is_gone_is_forgotten(path, watch):
    """Its file is closed and its counts end."""
    append(path, "[2026-03-04 10:00:00 TP0] Load weight begin. \n")
    before = count_of_descriptors()
    watch.look()
    assert count_of_descriptors() == before + 1
    watch.read([], frozenset())
    assert count_of_descriptors() == before
    assert watch.look().lines["progress"] == 1


def test_the_reading_crosses_as_json(path, watch):
    """What the worker sends is what the exporter decodes."""
    written(path, (LOGS / "start_ok_0.5.6_tp2.log").read_bytes(), age=5)
    reading, _ = watch.read([watch.target], frozenset())
    sent = msgspec.json.encode(msgspec.to_builtins(reading))
    assert msgspec.json.decode(sent, type=LogReading) == reading
    assert set(fields_of(reading)) == {"at", "dropped", "logs"}


def test_target():
    """A server without a log is not asked for; of others the worker learns what it needs."""
    process = Process(7, 70, 0.7, "launcher", "launcher")
    processes = (process, Process(8, 90, 0.9, "scheduler", "scheduler_TP0", "TP0"))
    server = Server("a", "sglang", Launch(), processes, incarnation="7.70")
    assert target(server) is None
    found = target(replace(server, log_path="/x"))
    assert found == {"server": "a", "engine": "sglang", "path": "/x", "root": "", "incarnation": "7.70", "started": 0.7}


def test_families(path, watch):
    """Every kind is there from the start, ages are stated as times, and what is not known is absent."""
    written(path, "x\n", age=100)
    reading, _ = watch.read([watch.target], frozenset())
    by_name = {family.name: family for family in families([reading], watch.now)}
    values = {(name, *labels): value for name, family in by_name.items() for labels, value in family.samples}
    assert values["stallwatch_log_last_write_timestamp_seconds", SERVER] == STARTED - 100
    assert values["stallwatch_log_size_bytes", SERVER] == 2
    assert by_name["stallwatch_log_last_progress_timestamp_seconds"].samples == ()
    assert by_name["stallwatch_log_staleness_seconds"].samples == ()
    lines = {labels[1]: value for labels, value in by_name["stallwatch_log_lines_total"].samples}
    assert lines == dict.fromkeys(KINDS, 0) | {"other": 1}
    errors = {labels[1]: value for labels, value in by_name["stallwatch_log_errors_total"].samples}
    assert errors == dict.fromkeys(ERROR_KINDS, 0)


def test_staleness(path, watch):
    """The age of the last progress is stated as of the moment of the snapshot."""
    written(path, "[2026-03-04 10:00:00 TP0] Load weight end. \n", age=100)
    reading, _ = watch.read([watch.target], frozenset())
    watch.wait(20)
    by_name = {family.name: family for family in families([reading], watch.now)}
    assert by_name["stallwatch_log_staleness_seconds"].samples == (((SERVER,), 120.0),)
    assert by_name["stallwatch_log_last_progress_timestamp_seconds"].samples == (((SERVER,), STARTED - 100),)


def test_no_families_without_readings():
    """Without a reading no series is stated, and the families are the same."""
    found = list(families([], Moment(STARTED, BOOTED, BOOTED)))
    assert {family.name for family in found} >= {"stallwatch_log_lines_total", "stallwatch_log_skipped_bytes_total"}
    assert all(family.samples == () for family in found)
    assert module.NAME == "log"
