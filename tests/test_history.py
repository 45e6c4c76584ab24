"""History: what counts as movement, and since when something is owed."""

import json
from dataclasses import replace

import pytest

from readings import GIB, NAME, a_log, a_sample, a_server, a_snapshot, gpus, health, moment, processes
from stallwatch.collectors.gpu import GpuProcess
from stallwatch.collectors.log import LogReading
from stallwatch.collectors.socket import ServerSockets, SocketReading
from stallwatch.history import History, limits_in_force
from stallwatch.sections import Limits
from stallwatch.snapshot import Failure, Launch

MIB = 1024**2


def history():
    """Return a history with the default limits."""
    return History(lambda _name: Limits())


def play(seconds, readings, start=0.0, past=None):
    """Look once a second at what `readings(now)` gives and return the last past."""
    past = past or history()
    for now in range(int(start), int(start + seconds) + 1):
        result = past.look(a_snapshot(float(now), *readings(float(now))))
    return result[NAME]


def test_every_readable_signal_has_an_age_from_the_first_sight():
    """A server seen for the first time at 50 has not moved since 50 in what can be read, and nothing else."""
    past = history().look(a_snapshot(50.0, processes(50.0), gpus(50.0)))[NAME]
    assert dict(past.moved) == {"gpu_memory": 50.0, "io": 50.0, "faults": 50.0, "compile": 50.0}


def test_a_signal_that_cannot_be_read_has_no_age():
    """Where the log is missing there is no age of it; when it comes back its own time counts."""
    past = history()
    assert "log" in past.look(a_snapshot(0.0, a_log(0.0, progress=-30.0)))[NAME].moved
    assert past.look(a_snapshot(1.0))[NAME].moved == {}
    assert past.look(a_snapshot(2.0, a_log(2.0, progress=-30.0)))[NAME].moved["log"] == -30.0


@pytest.mark.parametrize(("rise", "moves"), [(63 * MIB, False), (64 * MIB, True)])
def test_gpu_memory_moves_when_any_gpu_rises_by_64_mib(rise, moves):
    """The floor is 64 MiB on one GPU."""
    past = history()
    past.look(a_snapshot(0.0, gpus(0.0, memory=GIB)))
    moved = past.look(a_snapshot(5.0, gpus(5.0, memory=GIB + rise)))[NAME].moved["gpu_memory"]
    assert (moved == 5.0) == moves


def test_gpu_memory_that_rises_slowly_moves_all_the_same():
    """Steps of 20 MiB add up; a fall is no movement and sets the mark anew."""
    past = history()
    moved = []
    for now, used in enumerate((1000, 1020, 1040, 1064, 500, 540, 563, 564)):
        moved.append(past.look(a_snapshot(float(now), gpus(float(now), memory=used * MIB)))[NAME].moved["gpu_memory"])
    assert moved == [0.0, 0.0, 0.0, 3.0, 3.0, 3.0, 3.0, 7.0]


@pytest.mark.parametrize(
    ("signal", "counter", "floor"),
    [
        ("io", "rchar", MIB),
        ("io", "read_bytes", MIB),
        ("io", "write_bytes", MIB),
        ("faults", "faults", 1000),
        ("compile", "compiler_cpu_seconds", 0.2),
    ],
)
def test_counters_move_at_their_floor_and_not_below(signal, counter, floor):
    """Each counter of the process tree is movement from its floor per second on, measured over several seconds."""

    def rising(per_second):
        field = {"faults": "faults", "rchar": "rchar"}.get(counter, counter)
        return lambda now: (processes(now, **{field: now * per_second}),)

    assert play(30, rising(floor)).moved[signal] == 30.0
    assert play(30, rising(floor * 0.98)).moved[signal] == 0.0


def test_one_burst_is_not_a_trend():
    """A burst of 3 MiB in one second, with nothing before and after, is below 1 MiB/s over ten seconds."""
    assert play(40, lambda now: (processes(now, rchar=3 * MIB if now >= 20 else 0),)).moved["io"] == 0.0


def test_file_pages_that_rise_are_io():
    """Weights mapped from the page cache show neither reads nor rchar, but resident file pages."""
    assert play(20, lambda now: (processes(now, file_bytes=int(now) * MIB),)).moved["io"] == 20.0


def test_a_counter_that_begins_anew_is_no_movement():
    """With another worker the accumulated counters fall to zero: the stamp stays where it was."""
    past = history()
    play(20, lambda now: (processes(now, faults=int(now) * 5000),), past=past)
    result = play(20, lambda now: (processes(now, faults=0),), start=21, past=past)
    assert 20.0 <= result.moved["faults"] < 31.0


def test_without_permission_there_is_no_io_but_the_rest_counts():
    """Where neither io nor file pages can be read, io has no age."""
    reading = processes(0.0, rchar=None, read_bytes=None, write_bytes=None, resident_file_bytes=None)
    assert set(history().look(a_snapshot(0.0, reading))[NAME].moved) == {"faults", "compile"}


def test_not_ready_is_owed_since_the_server_was_started():
    """An exporter that starts beside a server hanging for 40 minutes says so: the processes tell their start."""
    server = a_server(born=-2400.0)
    past = history().look(a_snapshot(0.0, a_log(0.0, phase="loading_weights"), servers=(server,)))[NAME]
    assert (past.ready, past.demand_since["not_ready"]) == (False, pytest.approx(-2400.0))


def test_a_refused_port_alone_says_not_ready():
    """Without a log a refused port is enough to owe a start; weights in GPU memory give the coarse phase."""
    past = history().look(a_snapshot(0.0, health(0.0, "refused"), gpus(0.0)))[NAME]
    assert (past.ready, past.phase) == (False, "loaded")


def test_a_phase_holds_while_the_log_cannot_be_read():
    """A drain, or two nodes that meet, go on while their log is away for a while."""
    past = history()
    past.look(a_snapshot(0.0, a_log(0.0, phase="stopping")))
    result = past.look(a_snapshot(9.0, health(9.0, "refused")))[NAME]
    assert (result.phase, result.phase_since) == ("stopping", 0.0)


def test_ready_lasts_until_this_life_ends():
    """A server that was ready and now refuses is not starting again; one that is started again is."""
    past = history()
    past.look(a_snapshot(0.0, health(0.0)))
    assert past.look(a_snapshot(1.0, health(1.0, "refused", failures=1)))[NAME].ready
    again = a_server(born=10.0, incarnation="another")
    assert past.look(a_snapshot(11.0, health(11.0, "refused"), servers=(again,)))[NAME].ready is False


def test_one_failed_probe_is_not_a_demand_and_two_are():
    """A long prefill fails one probe; only failing again and again means that something is owed, since the first."""
    past = history()
    past.look(a_snapshot(0.0, health(0.0)))
    once = past.look(a_snapshot(40.0, health(40.0, "http_error", failures=1, latency=20.0, status=503)))[NAME]
    assert dict(once.demand_since) == {}
    assert (
        past.look(a_snapshot(41.0, health(40.0, "http_error", failures=1, latency=20.0, status=503)))[NAME].demand_since
        == {}
    )
    twice = past.look(a_snapshot(60.0, health(60.0, "http_error", failures=2, latency=20.0, status=503)))[NAME]
    assert dict(twice.demand_since) == {"probe_failing": 20.0}
    assert past.look(a_snapshot(75.0, health(75.0)))[NAME].demand_since == {}


def test_probes_that_were_refused_during_the_start_do_not_count():
    """A server that just became ready owes nothing for the probes that its start refused."""
    past = history()
    past.look(a_snapshot(0.0, health(0.0, "refused", failures=7), a_log(0.0, phase="capturing_graphs")))
    assert past.look(a_snapshot(1.0, health(0.0, "refused", failures=7), a_log(1.0)))[NAME].demand_since == {}


def test_answers_that_need_no_scheduler_are_no_failures():
    """401 is alive, and 404 is an endpoint that this version does not have."""
    past = history()
    past.look(a_snapshot(0.0, health(0.0)))
    for now, (result, status) in enumerate((("unauthorized", 401), ("http_error", 404))):
        reading = health(float(now), result, failures=9, status=status)
        assert past.look(a_snapshot(float(now), reading))[NAME].demand_since == {}


def test_a_demand_that_is_not_seen_for_a_minute_keeps_its_since():
    """A gap in the probes does not begin the count anew; a longer one ends it."""
    past = history()
    past.look(a_snapshot(0.0, health(0.0)))
    past.look(a_snapshot(25.0, health(25.0, "timeout", failures=1, latency=25.0)))
    past.look(a_snapshot(50.0, health(50.0, "timeout", failures=2, latency=25.0)))
    assert past.look(a_snapshot(110.0))[NAME].demand_since == {"probe_failing": 0.0}
    assert past.look(a_snapshot(111.0))[NAME].demand_since == {}


def test_when_a_gpu_was_last_busy():
    """From 5 % on a GPU is busy; 3 % is about zero; never seen busy counts from the first sight."""
    past = history()
    assert past.look(a_snapshot(10.0, gpus(10.0, utilization=0.03)))[NAME].gpus.busy_at == 10.0
    assert past.look(a_snapshot(20.0, gpus(20.0, utilization=0.05)))[NAME].gpus.busy_at == 20.0
    assert past.look(a_snapshot(30.0, gpus(30.0, utilization=0.02)))[NAME].gpus.busy_at == 20.0
    assert past.look(a_snapshot(40.0))[NAME].gpus.busy_at is None


def test_a_server_that_is_gone_is_forgotten():
    """History holds no more than the servers of the last snapshot."""
    past = history()
    past.look(a_snapshot(0.0))
    assert past.look(a_snapshot(1.0, servers=())) == {}
    assert past.look(a_snapshot(2.0))[NAME].first_seen == 2.0


def test_a_clock_step_moves_no_age():
    """Ages are monotonic: a Unix clock that jumps an hour changes nothing."""
    past = history()
    past.look(a_snapshot(0.0, processes(0.0)))
    snapshot = a_snapshot(60.0, processes(60.0))
    stepped = type(snapshot)(type(moment(0))(0.0, 60.0, 5060.0), snapshot.servers, snapshot.readings)
    assert past.look(stepped)[NAME].moved["faults"] == 0.0


@pytest.mark.parametrize(
    ("readable", "phase", "nnodes", "limit"),
    [
        (("log", "gpu_memory", "io", "faults", "compile"), "loading_weights", 1, 300.0),
        (("log", "io", "faults", "compile"), "loading_weights", 1, 600.0),
        (("log", "gpu_memory", "io", "faults", "compile"), "distributed_init", 2, 1800.0),
        (("log", "gpu_memory", "io", "faults", "compile"), "loading_weights", 2, 300.0),
        (("log", "gpu_memory", "io", "faults", "compile"), "loaded", 2, 600.0),
        (("log", "gpu_memory", "io", "faults", "compile"), None, 2, 300.0),
    ],
)
def test_how_long_a_start_may_rest(readable, phase, nnodes, limit):
    """Five minutes when every sign of movement can be read, ten when not, more while several nodes meet."""
    server = a_server(launch=Launch(port=30000, nnodes=nnodes))
    assert limits_in_force(Limits(), server, phase, frozenset(readable))["start_without_movement"] == limit


def test_a_signal_that_vanishes_keeps_its_stamp_for_judging():
    """A gap is no standstill: what moved before it is still known, though not published as if it were read."""
    past = history()
    play(20, lambda now: (processes(now, faults=int(now) * 5000), a_log(now, phase="loading_weights")), past=past)
    result = past.look(a_snapshot(50.0, a_log(50.0, phase="loading_weights")))[NAME]
    assert "faults" not in result.moved
    assert result.vanished["faults"] == 20.0
    assert result.stamps["faults"] == 20.0


def test_a_process_that_cannot_be_read_has_not_gone():
    """A rank whose files are in quarantine is no lost rank, as long as it is found; one that is not found is."""
    past, failure = history(), Failure("process", "quarantined", "pid 102", NAME)
    both = processes(0.0)
    both = replace(both, processes=(*both.processes, a_sample(process="scheduler_TP1", pid=102)))
    server = a_server(ranks=2)
    past.look(a_snapshot(0.0, both, servers=(server,)))

    def second(*, failures, servers):
        result = past.look(a_snapshot(30.0, processes(30.0), servers=servers, failures=failures))
        return result[NAME].ranks[1].missing_since

    assert second(failures=(failure,), servers=(server,)) is None
    assert second(failures=(failure,), servers=(replace(server, processes=server.processes[:2]),)) == 30.0


def test_what_is_remembered_counts_after_a_restart():
    """Stamps, demand and readiness go on for the same life of the server while the memory is young."""
    before = history()
    play(30, lambda now: (processes(now, faults=int(min(now, 10)) * 5000), a_log(now, phase="loaded")), past=before)
    memory = json.loads(json.dumps(before.remember(30.0)))
    for now, expected in ((90.0, 13.0), (331.0, 331.0)):
        after = history()
        after.recall(memory, now)
        moved = after.look(a_snapshot(now, processes(now, faults=50_000), a_log(now, phase="loaded")))[NAME].moved
        assert moved["faults"] == pytest.approx(expected, abs=8)


def test_what_rose_while_the_exporter_was_away_has_moved():
    """A counter that went on over the restart is movement at the first look, and one that began anew is not old."""
    before = history()
    play(30, lambda now: (processes(now, faults=int(now) * 5000),), past=before)
    for faults in (250 * 5000, 10):
        after = history()
        after.recall(before.remember(30.0), 250.0)
        assert after.look(a_snapshot(250.0, processes(250.0, faults=faults)))[NAME].moved["faults"] == 250.0


@pytest.mark.parametrize(("away", "goes_on"), [(0.0, True), (40.0, True), (90.0, False)])
def test_what_was_so_without_a_break_goes_on_over_a_short_restart(away, goes_on):
    """A stopped rank, cold GPUs and failing probes are as old as they are; after a minute nobody knows."""

    def seen(now):
        stopped = replace(processes(now), processes=(a_sample(state="T"),))
        return a_snapshot(now, gpus(now), stopped, a_log(now), health(now, "timeout"), servers=(a_server(ranks=1),))

    before, after = history(), history()
    for now in range(0, 101, 10):
        live = before.look(seen(float(now)))[NAME]
    after.recall(json.loads(json.dumps(before.remember(100.0))), 100.0 + away)
    past = after.look(seen(100.0 + away))[NAME]
    if away:
        live = before.look(seen(100.0 + away))[NAME]
    known = (past.first_seen, past.gpus.cold_since, past.ranks[0].stopped_since, past.failing)
    assert known == ((0.0, 0.0, 0.0, ("/health",)) if goes_on else (190.0, 190.0, 190.0, ()))
    assert not goes_on or replace(past, xids=()) == replace(live, xids=())


@pytest.mark.parametrize("garbage", [None, 7, "x", [], {"at": "x"}, {"at": 5.0, "lives": [{}]}, {"at": 1e9}])
def test_a_memory_that_is_none_changes_nothing(garbage):
    """A file of another version, of another boot or full of anything is as good as none."""
    past = history()
    past.recall(garbage, 10.0)
    assert past.look(a_snapshot(10.0, processes(10.0)))[NAME].moved["faults"] == 10.0


@pytest.mark.parametrize(("result", "status"), [("unauthorized", 401), ("http_error", 404), ("tls_error", None)])
def test_without_a_log_a_server_that_refuses_only_us_is_up(result, status):
    """A port that refused while it loaded and now asks for a key, or knows no such path, is a server that started."""
    past = history()
    assert past.look(a_snapshot(0.0, health(0.0, "refused")))[NAME].ready is False
    assert past.look(a_snapshot(60.0, health(60.0, result, status=status)))[NAME].ready is True


@pytest.mark.parametrize(("phase", "progress", "ready"), [("warming_up", None, None), ("capturing_graphs", 0.5, False)])
def test_a_log_that_ends_with_the_start_says_no_more_of_an_engine_without_a_port(phase, progress, ready):
    """An engine inside a program writes no line when it is ready, so its last start line is no start that hangs."""
    server = a_server(address=None, launch=Launch(port=None))
    reading = a_log(0.0, phase=phase)
    reading = LogReading(0.0, (replace(reading.logs[0], progress=progress),))
    assert history().look(a_snapshot(0.0, reading, servers=(server,)))[NAME].ready is ready


def test_a_process_under_another_name_has_not_gone():
    """A label that gains the pid because another one of the title came is the same process."""
    past, server = history(), a_server(ranks=1)
    past.look(a_snapshot(0.0, processes(0.0), servers=(server,)))
    renamed = replace(server.processes[1], name="scheduler_TP0#101")
    other = replace(server, processes=(server.processes[0], renamed))
    sample = replace(processes(1.0).processes[0], process="scheduler_TP0#101")
    reading = replace(processes(1.0), processes=(sample,))
    ranks = past.look(a_snapshot(1.0, reading, servers=(other,)))[NAME].ranks
    assert [(rank.process, rank.missing_since) for rank in ranks] == [("scheduler_TP0#101", None)]


def test_a_neighbour_on_the_gpu_does_not_move_a_server():
    """What another process takes and gives back on a shared GPU is no movement of a start that hangs."""
    past = history()
    for now in range(0, 60, 5):
        used = (76 + now % 10) * GIB
        reading = gpus(float(now), memory=used)
        own = tuple(replace(gpu, processes=(GpuProcess(101 + gpu.index, 70 * GIB),)) for gpu in reading.gpus)
        moved = past.look(a_snapshot(float(now), replace(reading, gpus=own)))[NAME].moved["gpu_memory"]
    assert moved == 0.0


def test_a_restart_of_the_exporter_does_not_forget_that_the_scheduler_answered():
    """A gauge that sticks is no hang in the seconds until the first probe of the new exporter is in."""
    first = history()
    first.look(a_snapshot(0.0, health(0.0)))
    second = history()
    second.recall(first.remember(10.0), 11.0)
    assert second.look(a_snapshot(12.0))[NAME].cleared_at == 0.0


@pytest.mark.parametrize(("until", "owed_since"), [(14.0, None), (30.0, 10.0)])
def test_a_client_that_waits_for_a_moment_is_owed_nothing(until, owed_since):
    """Every server keeps who has just come waiting; one that still does seconds later is owed since then."""

    def readings(now):
        waits = 10.0 <= now <= until
        sockets = SocketReading(now, (ServerSockets(NAME, listening=True, accept_queue=int(waits), unread_bytes=0),))
        return (a_log(now, phase="ready"), sockets)

    past, told = history(), set()
    for now in range(41):
        told.add(past.look(a_snapshot(float(now), *readings(float(now))))[NAME].demand_since.get("socket"))
    assert told == {None, owed_since}
