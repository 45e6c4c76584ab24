"""A scenario played in virtual time shows what its segments say: levels, ramps, gaps, lives."""

from itertools import pairwise

from stallwatch.collectors.engine import EngineReading
from stallwatch.collectors.gpu import GpuReading
from stallwatch.collectors.health import HealthReading
from stallwatch.collectors.kernel import KernelReading
from stallwatch.collectors.log import LogReading
from stallwatch.collectors.process import ProcessReading
from stallwatch.collectors.socket import SocketReading
from stallwatch.simulation.scenario import scenario_of
from stallwatch.simulation.virtual import VirtualNode

GIB = 1024**3


def played(*segments, step=5.0, until=None, server=None, **scenario):
    """Return the snapshots of one server by their times."""
    raw = {"servers": [{"args": ["--tp-size", "2"], **(server or {}), "segments": list(segments)}], **scenario}
    node = VirtualNode(scenario_of(raw))
    end = node.scenario.seconds if until is None else until
    times = [step * n for n in range(int(end / step) + 1)]
    return {t: node.look(t, t - before if t else 0.0) for before, t in pairwise([0.0, *times])}


def test_levels_stay_until_said_again_and_rates_do_not():
    """Memory stays; tokens per second fall to nothing where a segment does not speak of them."""
    busy = {"for": 20, "gpu": {"memory_gib": 40}, "engine": {"running": 3, "tokens_per_second": 10}}
    looks = played(busy, {"for": 20, "engine": {"queued": 1}})
    last = looks[40.0].get(EngineReading).ranks[0]
    assert (last.running, last.queued, last.tokens) == (3.0, 1.0, {"decode": 200.0})
    assert looks[40.0].get(GpuReading).gpus[0].memory_used == 40 * GIB


def test_a_counter_stands_still_from_the_moment_on_that_says_so():
    """What was counted until a change between two looks is in the look after it."""
    busy = {"for": 12, "engine": {"tokens_per_second": 10}}
    looks = played(busy, {"for": 20, "engine": {"tokens_per_second": 0}})
    totals = [looks[t].get(EngineReading).ranks[0].tokens["decode"] for t in (10.0, 15.0, 20.0)]
    assert totals[0] < totals[1] == totals[2]


def test_ramps_and_lists():
    """A ramp rises evenly; a list has one value for each GPU."""
    ramp = {"for": 40, "gpu": {"memory_gib": {"from": 0, "to": 40}, "utilization": [100, 0]}}
    gpus = played(ramp)[20.0].get(GpuReading).gpus
    assert [gpu.memory_used for gpu in gpus[:2]] == [20 * GIB, 20 * GIB]
    assert [gpu.utilization for gpu in gpus[:3]] == [1.0, 0.0, 0.0]


def test_null_cannot_be_read_and_what_was_never_given_is_absent():
    """A field or a whole signal may be null; nothing is made up for what no segment gives."""
    first = {"for": 10, "gpu": {"utilization": 50, "power_watts": None}, "log": "silent"}
    looks = played(first, {"for": 10, "gpu": None, "log": None})
    gpu = looks[5.0].get(GpuReading).gpus[0]
    assert (gpu.utilization, gpu.power_watts, gpu.memory_used) == (0.5, None, None)
    absent = (GpuReading, LogReading, EngineReading, HealthReading, ProcessReading, SocketReading)
    assert [kind for kind in absent if looks[15.0].get(kind)] == []


def test_a_probe_takes_its_time():
    """A good answer comes after a second, a timeout after 25; then the next is due."""
    looks = played({"for": 60, "health": "timeout"}, step=1.0)
    assert looks[24.0].get(HealthReading) is None
    probe = looks[25.0].get(HealthReading).probes[0]
    assert (probe.result, probe.scope, probe.latency) == ("timeout", "scheduler", 25.0)
    assert looks[50.0].get(HealthReading).probes[0].consecutive_failures == 2


def test_whose_answer_it_is_depends_on_the_version():
    """Old versions and worker nodes answer from the web process."""
    for server, scope in (
        ({"version": "0.4.9"}, "http"),
        ({"version": "0.5.9"}, "scheduler"),
        ({"args": ["--tp-size", "2", "--nnodes", "2", "--node-rank", "1"]}, "http"),
        ({"engine": "vllm", "args": []}, "http"),
    ):
        looks = played({"for": 30, "health": "ok"}, server=server)
        assert looks[30.0].get(HealthReading).probes[0].scope == scope


def test_a_new_life_is_another_server():
    """Other pids and another incarnation, and a log that begins anew."""
    first = {"for": 10, "phase": "ready", "scheduler": {"cpu": 1}, "exit": "crash"}
    looks = played(first, {"for": 10, "phase": "launch", "scheduler": {"cpu": 1}})
    before, after = (looks[t].servers[0] for t in (5.0, 15.0))
    assert before.incarnation != after.incarnation
    assert not {process.pid for process in before.processes} & {process.pid for process in after.processes}
    assert looks[15.0].get(LogReading).logs[0].phase == "launch"


def test_how_a_server_went_stands_in_its_log():
    """After an orderly end the log tells of it; after a crash it does not."""
    for how in ("orderly", "crash"):
        looks = played({"for": 10, "phase": "ready", "exit": how}, until=15.0)
        assert looks[15.0].servers == ()
        assert looks[15.0].get(LogReading).logs[0].stopping == (how == "orderly")


def test_processes_go_die_and_stop():
    """A gone one is neither found nor sampled, a zombie and a stopped one show their state."""
    words = {"scheduler_TP0": "zombie", "scheduler_TP1": "gone", "detokenizer": "stopped"}
    look = played({"for": 10, "scheduler": {"cpu": 1}, "processes": words})[10.0]
    states = {sample.process: sample.state for sample in look.get(ProcessReading).processes}
    assert states == {"launcher": "S", "scheduler_TP0": "Z", "detokenizer": "T"}
    assert "scheduler_TP1" not in {process.name for process in look.servers[0].processes}


def test_literal_lines_are_read_as_the_log_is():
    """Once, at the begin of their segment."""
    lines = ["[2026-01-01 10:00:00 TP0] Load weight begin. avail mem=90.00 GB", "anything else"]
    log = played({"for": 30, "log": lines})[30.0].get(LogReading).logs[0]
    assert (log.phase, log.phase_since, log.ranks[0].rank) == ("loading_weights", 100_000.0, "TP0")


def test_the_clock_may_be_set():
    """Unix time steps, the monotonic clock does not."""
    looks = played({"for": 60}, watcher=[{"at": "30s", "what": {"clock_step": "-6m"}}])
    before, after = looks[25.0].moment, looks[30.0].moment
    assert (after.unix - before.unix, after.monotonic - before.monotonic) == (-355.0, 5.0)


def test_a_gpu_is_lost_or_faulty():
    """A lost one has no values, a critical Xid makes the driver ask for a reset, a lesser one does not."""
    look = played({"for": 10, "gpu": {"utilization": 5, "lost": [1], "xid": {0: 79, 2: 31}}})[5.0]
    gpus = look.get(GpuReading).gpus
    assert (gpus[0].recovery_action, gpus[1].lost, gpus[1].utilization) == ("gpu_reset", True, None)
    assert gpus[2].recovery_action is None


def test_the_kernel_log_has_a_line_for_each_xid():
    """From the begin of its segment on and once for each, also when the server has gone; none where none is given."""
    looks = played(
        {"for": 10, "gpu": {"utilization": 5}},
        {"for": 10, "gpu": {"xid": {0: 79, 2: 31}}},
        {"for": 10, "gpu": {"xid": {0: 79}}, "exit": "crash"},
        until=40.0,
    )
    assert looks[5.0].get(KernelReading) is None
    told = {t: {(xid.address, xid.code): xid for xid in looks[t].get(KernelReading).xids} for t in (15.0, 40.0)}
    addresses = [gpu.pci_bus_id for gpu in looks[5.0].get(GpuReading).gpus]
    assert told[15.0].keys() == {(addresses[0], 79), (addresses[2], 31)}
    first, last = told[15.0][addresses[0], 79], told[40.0][addresses[0], 79]
    assert (first.count, first.last_at, first.fault_at) == (1, 100_010.0, 100_010.0)
    assert (last.count, last.last_at) == (2, 100_020.0)
    assert told[40.0][addresses[2], 31].fault_at is None


def test_a_shared_gpu_shows_the_sum():
    """Memory adds up; the higher utilization shows, and so does what only one of them gives."""
    one = {"args": ["--port", "1"], "segments": [{"for": 9, "gpu": {"utilization": 80, "memory_gib": 30}}]}
    other = {"args": ["--port", "2"], "segments": [{"for": 9, "gpu": {"utilization": 5, "memory_gib": 20}}]}
    node = VirtualNode(scenario_of({"servers": [one, other]}))
    gpu = node.look(0.0, 0.0).get(GpuReading).gpus[0]
    assert (gpu.utilization, gpu.memory_used, len(gpu.processes)) == (0.8, 50 * GIB, 2)


def test_a_list_for_all_gpus_tells_of_those_that_nobody_holds():
    """The third and fourth GPU belong to no server."""
    looks = played({"for": 9, "gpu": {"utilization": [0, 0, 0, 100]}}, node={"gpus": 4})
    assert [gpu.utilization for gpu in looks[5.0].get(GpuReading).gpus] == [0.0, 0.0, 0.0, 1.0]
