"""The flight recorder: the last half hour in bounded memory, and what replay says of it is what was said live."""

import gc
import io
import json
import os
import tracemalloc
from itertools import pairwise

import msgspec
import pytest

from readings import a_log, a_server, a_snapshot, gpus, processes
from stallwatch.flight import LEAST_BYTES, FlightRecorder
from stallwatch.recording import read_recording, recorded
from stallwatch.recordingfile import IN_BUNDLE
from stallwatch.replay import play_recording
from stallwatch.sections import Limits
from stallwatch.simulation.replay import replay
from stallwatch.simulation.scenario import SHIPPED, load_scenario, scenario_of
from stallwatch.simulation.virtual import VirtualNode
from stallwatch.snapshot import Failure
from stallwatch.watcher import Watcher

STEP = 5.0

COLD = {
    "name": "a start that hangs for long",
    "node": {"gpus": 2},
    "servers": [
        {
            "args": ["--tp-size", "2", "--port", "30000"],
            "segments": [
                {
                    "for": "18m",
                    "phase": "loading_weights",
                    "gpu": {"utilization": 3, "memory_gib": {"from": 1, "to": 60}, "power_watts": 90},
                    "scheduler": {"cpu": 1.0, "read_mib_per_second": 300},
                    "log": "progress",
                    "health": "refused",
                },
                {
                    "for": "22m",
                    "gpu": {"utilization": 0, "memory_gib": 60, "power_watts": 60},
                    "scheduler": {"cpu": 0, "state": "S"},
                    "log": "silent",
                },
            ],
        }
    ],
}


def flown(scenario, recorder):
    """Return what was said live of a scenario at each Unix time, with a recorder that flew along."""
    node, said, t = VirtualNode(scenario), {}, 0.0
    limits = {one.server.name: msgspec.structs.replace(Limits(), **one.played.limits) for one in node.players}
    watcher = Watcher(lambda name: limits.get(name, Limits()))
    while t <= scenario.seconds:
        seen = node.look(t, STEP if t else 0.0)
        judged = watcher.look(seen.moment, seen.servers, seen.readings, seen.failures)
        recorder.take(judged.snapshot, watcher.remember)
        said[seen.moment.unix] = words(judged.verdicts)
        t += STEP
    return said


def words(verdicts):
    """Return state and signature of each server."""
    return {name: (verdict.state, verdict.signature) for name, verdict in verdicts.items()}


def bundled(recorder, folder):
    """Write the bundle of a recorder and return its directory."""
    folder.mkdir()
    (folder / IN_BUNDLE).write_bytes(recorder.dump())
    return folder


def replayed(bundle):
    """Return what is said of a bundle at each Unix time."""
    return {look.moment.unix: words(look.verdicts) for look in play_recording(recorded(bundle))}


def changes(said):
    """Return when it became otherwise."""
    times = sorted(said)
    return {now: said[now] for before, now in pairwise(times) if said[before] != said[now]}


def test_a_bundle_says_what_was_said_live(tmp_path):
    """A hang in the last half hour of forty minutes: the same changes at the same times, with other limits earlier."""
    recorder = FlightRecorder()
    live = flown(scenario_of(COLD), recorder)
    bundle = bundled(recorder, tmp_path / "bundle")
    again = replayed(bundle)
    assert 1800 <= max(again) - min(again) <= 1860
    assert again == {now: said for now, said in live.items() if now in again}
    *_, (_, suspect), (at, stalled) = changes(again).items()
    assert suspect["sglang:30000"][0] == "suspect"
    assert stalled["sglang:30000"] == ("stalled", "cold_deadlock")

    def stalled_at(*limits):
        out = io.StringIO()
        assert replay(bundle, as_json=True, limits=limits, out=out) == 0
        told = [json.loads(line) for line in out.getvalue().splitlines()]
        return min(again) + next(line["t"] for line in told if line["verdict"] == "stalled")

    assert stalled_at() == at
    tried = ("start_without_movement=3m", "start_without_movement_partial=3m")
    assert stalled_at(*tried) < at - 60


def test_limits_of_a_server_that_serves_can_be_tried(tmp_path):
    """`stalled=3m` on a hang with requests on board."""
    recorder = FlightRecorder()
    live = flown(load_scenario(SHIPPED / "cold_deadlock_while_serving.yml"), recorder)
    bundle, times = bundled(recorder, tmp_path / "bundle"), []
    for limits in ((), ("stalled=3m",)):
        out = io.StringIO()
        replay(bundle, as_json=True, limits=limits, out=out)
        told = [json.loads(line) for line in out.getvalue().splitlines()]
        times.append(next(line["t"] for line in told if line["verdict"] == "stalled"))
    assert times[0] - times[1] == 60
    assert min(live) + times[0] in changes(live)


@pytest.mark.parametrize(
    "name",
    [
        "compile_at_first_request",
        "crash",
        "frontend_stall",
        "gpu_lost",
        "health_fails_while_serving",
        "lost_scheduler",
        "only_probe_and_log",
        "orphaned_memory",
        "recovery",
        "split_ranks",
        "stopped_rank_idle",
        "worker_node_hung",
        "xid_79",
    ],
)
def test_a_recording_that_begins_in_the_middle_says_what_was_said_live(tmp_path, name):
    """Whatever a verdict rests on goes on from what was remembered where the recording begins."""
    recorder = FlightRecorder(seconds=120.0)
    live = flown(load_scenario(SHIPPED / f"{name}.yml"), recorder)
    again = replayed(bundled(recorder, tmp_path / "bundle"))
    assert len(again) < len(live) / 2
    assert again == {now: said for now, said in live.items() if now in again}


def test_what_an_exporter_before_it_knew_comes_with_the_first_servers(tmp_path):
    """Before any server is found, the memory is one of another moment, of servers that have not gone."""
    hung = (gpus(0.0, count=1), processes(0.0), a_log(0.0, phase="loading_weights"))
    first, second, recorder = Watcher(lambda _name: Limits()), Watcher(lambda _name: Limits()), FlightRecorder()
    server = a_server(incarnation="1", gpus=(), ranks=1)
    for now in range(0, 400, 5):
        first.look(a_snapshot(now).moment, (server,), hung)
    kept = first.remember(395.0)
    recorder.take(a_snapshot(400.0, servers=()), lambda _now: kept)
    second.recall(kept, 401.0)
    seen = a_snapshot(401.0, *hung, servers=(server,))
    live = second.look(seen.moment, seen.servers, seen.readings)
    recorder.take(live.snapshot, second.remember)
    assert replayed(bundled(recorder, tmp_path / "bundle")) == {
        a_snapshot(400.0).moment.unix: {},
        seen.moment.unix: words(live.verdicts),
    }
    assert live.verdicts["sglang:30000"].state == "stalled"


def test_what_is_taken_is_read_at_any_moment(tmp_path):
    """Exactly, and the recorder goes on."""
    recorder, taken = FlightRecorder(), []
    for now in map(float, range(150)):
        readings = (gpus(now // 5 * 5), processes(now, rchar=int(now) * 17), a_log(now, lines={"access": int(now)}))
        taken.append(a_snapshot(now, *readings, servers=(a_server(gpus=()),)))
        recorder.take(taken[-1])
        if now in {0.0, 1.0, 59.0, 60.0, 149.0}:
            assert list(read_recording(bundled(recorder, tmp_path / f"{now:g}"))) == taken


def test_nothing_taken_is_a_recording_of_nothing(tmp_path):
    """Which replay says, as of any bundle without a snapshot."""
    bundle = bundled(FlightRecorder(), tmp_path / "bundle")
    assert list(read_recording(bundle)) == []


def noise(now, size=2000):
    """Return a snapshot that nothing makes shorter."""
    return a_snapshot(now, failures=(Failure("engine", "refused", os.urandom(size).hex()),))


def test_the_oldest_is_dropped_where_it_becomes_too_much(tmp_path):
    """In parts, by what is held in memory, that of the compressor included."""
    FlightRecorder().take(noise(0.0))  # what is made at first use is nobody's recording
    recorder = FlightRecorder(most_bytes=LEAST_BYTES)
    tracemalloc.start()
    try:
        before = tracemalloc.get_traced_memory()[0]
        for now in map(float, range(1000)):
            recorder.take(noise(now))
            assert recorder.held_bytes <= LEAST_BYTES
        gc.collect()  # what only waits to be collected is not held
        held = tracemalloc.get_traced_memory()[0] - before
    finally:
        tracemalloc.stop()
    assert LEAST_BYTES / 2 < held < LEAST_BYTES * 1.1
    kept = [snapshot.moment.monotonic for snapshot in read_recording(bundled(recorder, tmp_path / "bundle"))]
    assert kept == [float(now) for now in range(int(kept[0]), 1000)]
    assert len(kept) > 200


def test_a_snapshot_that_is_too_much_by_itself_costs_only_what_was_before(tmp_path):
    """What comes after it is recorded, from a whole line on."""
    recorder = FlightRecorder(most_bytes=LEAST_BYTES)
    for now, size in ((1.0, 9), (2.0, LEAST_BYTES), (3.0, 9), (4.0, 9)):
        recorder.take(noise(now, size))
    kept = [snapshot.moment.monotonic for snapshot in read_recording(bundled(recorder, tmp_path / "bundle"))]
    assert kept == [3.0, 4.0]


def test_a_bound_below_what_it_takes_is_refused():
    """It would never hold anything."""
    with pytest.raises(ValueError, match="most_bytes: expected at least"):
        FlightRecorder(most_bytes=1000)


def test_what_is_held_reaches_back_to_where_the_half_hour_begins(tmp_path):
    """Also over a gap, as of a machine that slept."""
    recorder, kept = FlightRecorder(), {}
    for now in (0.0, 1.0, 4000.0, 4061.0, 6000.0):
        recorder.take(a_snapshot(now))
        bundle = bundled(recorder, tmp_path / f"{now:g}")
        kept[now] = [snapshot.moment.monotonic for snapshot in read_recording(bundle)]
    assert kept[4000.0] == [0.0, 1.0, 4000.0]
    assert kept[4061.0] == [0.0, 1.0, 4000.0, 4061.0]
    assert kept[6000.0] == [4061.0, 6000.0]
