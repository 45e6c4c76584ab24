"""Recordings: what is written is read again, and judged as it was seen."""

import io
import json

import pytest

from readings import NAME, a_log, a_server, a_snapshot, gpus, health, processes
from small_disks import small_disk
from stallwatch.collectors.kernel import Blocked, KernelReading, Xid
from stallwatch.config import ConfigError
from stallwatch.recording import Recorder, line_of, read_recording
from stallwatch.simulation.replay import replay
from stallwatch.snapshot import Failure


def a_hang(path, seconds=700, step=5):
    """Record a server that stopped loading at the start, and return the file."""
    server = a_server(incarnation="1", ranks=1)
    with path.open("wb") as file:
        for now in map(float, range(0, seconds, step)):
            readings = (gpus(now, count=1), processes(now), a_log(now, phase="loading_weights"), health(now, "refused"))
            failure = Failure("engine", "refused", "", NAME)
            file.write(line_of(a_snapshot(now, *readings, servers=(server,), failures=(failure,))))
    return path


def test_a_snapshot_is_read_as_it_was_written(tmp_path):
    """Servers, readings and failures are the same; who holds which GPU is worked out anew."""
    path = tmp_path / "r.jsonl"
    xid = Xid("0000:10:00", 79, 2, 4.5, 4.5, "0", "GPU-0")
    kernel = KernelReading(5.0, (xid,), (Blocked(NAME, "scheduler_TP0", 122.0, 4.0),))
    readings = (gpus(5.0), processes(5.0), a_log(5.0), kernel, health(5.0))
    snapshot = a_snapshot(5.0, *readings, servers=(a_server(gpus=()),))
    path.write_bytes(line_of(snapshot))
    assert list(read_recording(path)) == [snapshot]


def test_a_node_on_which_very_much_was_seen_is_recorded_and_read(tmp_path):
    """The replies of all workers together make a longer line than one of them may send."""
    path = tmp_path / "r.jsonl"
    large = a_snapshot(5.0, failures=(Failure("engine", "refused", "x" * (17 << 20), NAME),))
    recorder = Recorder(path)
    recorder.take(large)
    recorder.take(a_snapshot(6.0))
    assert [snapshot.moment.monotonic for snapshot in read_recording(path)] == [5.0, 6.0]


def test_a_recording_is_judged(tmp_path):
    """A start that hangs on record is called as it would have been live."""
    out = io.StringIO()
    assert replay(a_hang(tmp_path / "hang.jsonl"), as_json=True, out=out) == 0
    said = [json.loads(line) for line in out.getvalue().splitlines()]
    assert said[-1]["verdict"] == "stalled"
    assert said[-1]["signature"] == "cold_deadlock"
    assert 295 <= said[-1]["t"] <= 305


def test_other_limits_can_be_tried_on_a_recording(tmp_path):
    """What was recorded is judged as it would have been with them."""
    out = io.StringIO()
    replay(a_hang(tmp_path / "hang.jsonl"), as_json=True, limits=["start_without_movement=2m"], out=out)
    said = [json.loads(line) for line in out.getvalue().splitlines()]
    assert said[-1]["verdict"] == "stalled"
    assert 115 <= said[-1]["t"] <= 125


def test_a_line_cut_short_at_the_end_is_left_out(tmp_path):
    """The recorder may have been killed in the middle of a line."""
    path = a_hang(tmp_path / "cut.jsonl", seconds=10)
    path.write_bytes(path.read_bytes()[:-20])
    assert len(list(read_recording(path))) == 1


def test_a_recording_goes_on_after_a_line_that_was_cut_short(tmp_path):
    """What is appended later makes no broken line of it; what somebody else wrote is left alone."""
    path = a_hang(tmp_path / "cut.jsonl", seconds=10)
    path.write_bytes(path.read_bytes()[:-20])
    Recorder(path).take(a_snapshot(20.0))
    assert [snapshot.moment.monotonic for snapshot in read_recording(path)] == [0.0, 20.0]
    path.write_bytes(b"a text")
    Recorder(path).take(a_snapshot(20.0))
    assert path.read_bytes().startswith(b'a text{"moment":')


def test_a_full_disk_costs_only_what_is_seen_meanwhile(tmp_path, capsys):
    """It is said once that it is full and once that it is not; all that was recorded can be read."""
    with small_disk(tmp_path / "disk") as fill:
        path = tmp_path / "disk" / "r.jsonl"
        recorder, readings = Recorder(path), (gpus(0.0), processes(0.0))
        recorder.take(a_snapshot(1.0, *readings))
        ballast = fill()
        for now in range(2, 30):
            recorder.take(a_snapshot(float(now), *readings))
        assert len(list(read_recording(path))) < 28
        before = len(list(read_recording(path)))
        ballast.unlink()
        recorder.take(a_snapshot(30.0, *readings))
        seen = [snapshot.moment.monotonic for snapshot in read_recording(path)]
        assert seen == [*map(float, range(1, before + 1)), 30.0]
        said = capsys.readouterr().err.splitlines()
        assert [line.partition("; ")[0] for line in said] == [
            f"stallwatch: {path}: cannot be written: No space left on device",
            f"stallwatch: {path}: can be written again",
        ]
        assert said[1].endswith(f": {29 - before}")


def test_a_file_that_cannot_be_made_is_named(tmp_path):
    """Before anything is looked at."""
    with pytest.raises(ConfigError, match=r"none/r\.jsonl: cannot be written: No such file or directory"):
        Recorder(tmp_path / "none" / "r.jsonl")


@pytest.mark.parametrize("text", [b"{}\n", b"nonsense\n", b'{"moment": 1}\n'])
def test_what_is_no_recording_is_named(tmp_path, text):
    """The error names file and line."""
    path = tmp_path / "bad.jsonl"
    path.write_bytes(text)
    with pytest.raises(ConfigError, match=r"bad\.jsonl: line 1: is no snapshot"):
        list(read_recording(path))


def test_a_file_that_is_not_there_is_named(tmp_path):
    """So does one that cannot be read."""
    with pytest.raises(ConfigError, match="cannot be read: No such file"):
        list(read_recording(tmp_path / "none.jsonl"))
