"""Recordings: what is written is read again, and judged as it was seen."""

import gzip
import io
import json
from dataclasses import replace

import pytest

from readings import NAME, a_log, a_server, a_snapshot, gpus, health, moment, processes
from small_disks import small_disk
from stallwatch.collectors.kernel import Blocked, KernelReading, Xid
from stallwatch.config import ConfigError
from stallwatch.recording import Lines, Recorder, line_of, read_recording, recorded
from stallwatch.recordingfile import LONGEST_LINE, lines_of
from stallwatch.simulation.replay import replay
from stallwatch.snapshot import Failure, Snapshot


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


def a_course():
    """Return snapshots of which each differs from the one before in one way; some are as it was."""
    server, gpu, failure = a_server(gpus=()), gpus(0.0), Failure("engine", "refused", "", NAME)
    whole = (gpu, processes(0.0), a_log(0.0), health(0.0))
    courses = [
        (whole, (server,), ()),
        (whole, (server,), (failure,)),
        ((gpu, processes(2.0, rchar=7), a_log(0.0, lines={"progress": 1}), health(0.0)), (server,), (failure,)),
        ((processes(3.0, rchar=9), a_log(0.0, lines={}), health(0.0)), (server,), ()),
        ((processes(3.0, rchar=9), health(0.0), health(4.0, server="other")), (replace(server, log_path="/l"),), ()),
        ((), (), ()),
        (whole, (server,), ()),
    ]
    return [
        Snapshot(moment(float(n)), servers, readings, failures)
        for n, (readings, servers, failures) in enumerate(courses)
    ]


def test_lines_that_leave_out_what_is_as_before_are_read_exactly(tmp_path):
    """What is really empty, has gone, has come or has changed is as it was seen; the first line is whole."""
    path, lines, course = tmp_path / "r.jsonl", Lines(), a_course()
    written = [lines.line(snapshot) for snapshot in course]
    path.write_bytes(b"".join(written))
    assert list(read_recording(path)) == course
    assert written[0] == line_of(course[0])
    assert b'"failures":{"=":[]}' in written[3]


def test_a_line_says_no_more_than_what_has_changed():
    """A node on which nothing happens costs no more than the time."""
    lines, first = Lines(), a_snapshot(0.0, gpus(0.0), processes(0.0))
    assert len(lines.line(first)) > 2000
    later = json.loads(lines.line(replace(first, moment=moment(1.0))))
    assert later == {"moment": {"unix": 1_800_000_001.0, "monotonic": 1.0, "boottime": 5001.0}, "changed": {}}


def test_a_whole_line_begins_anew(tmp_path):
    """Recordings can be put together, and what a file of before leaves out is empty in it."""
    path, lines, course = tmp_path / "r.jsonl", Lines(), a_course()
    old = b'{"moment":{"unix":9.0,"monotonic":9.0,"boottime":9.0},"servers":[]}\n'
    path.write_bytes(lines.line(course[0]) + old + line_of(course[1]))
    assert list(read_recording(path)) == [course[0], Snapshot(course[0].moment.__class__(9.0, 9.0, 9.0)), course[1]]


def test_a_line_may_carry_what_was_remembered(tmp_path):
    """The first, where it is given."""
    path, lines = tmp_path / "r.jsonl", Lines()
    path.write_bytes(lines.line(a_snapshot(1.0), {"at": 1.0}) + lines.line(a_snapshot(2.0), {"at": 2.0}))
    assert [one.memory for one in recorded(path)] == [{"at": 1.0}, None]


@pytest.mark.parametrize(
    ("change", "why"),
    [
        ({"nothing": 1}, "changes 'nothing', which no snapshot has"),
        ({"moment": 1}, "changes 'moment'"),
        ({"gpu": {"0": {"gpus": {"9": 1}}}}, "changes '9', and there was no such thing before"),
        ({"gpu": {"0": {"at": "x"}}}, "Expected `float`, got `str`"),
        ({"log": {"0": {"logs": {"0": {"phase": "asleep"}}}}}, "a phase or an engine that is not known"),
        ({"gpu": None}, "Expected `array`, got `null`"),
    ],
)
def test_a_change_that_cannot_be_is_named(tmp_path, change, why):
    """With its file and line."""
    path = tmp_path / "r.jsonl"
    bad = json.dumps({"moment": {"unix": 1.0, "monotonic": 1.0, "boottime": 1.0}, "changed": change}).encode()
    path.write_bytes(line_of(a_course()[0]) + bad + b"\n")
    with pytest.raises(ConfigError, match=rf"r\.jsonl: line 2: is no snapshot: .*{why}"):
        list(read_recording(path))


def test_a_recording_that_begins_with_a_change_is_refused(tmp_path):
    """Nobody knows what was before."""
    path = tmp_path / "r.jsonl"
    path.write_bytes(b'{"moment":{"unix":1.0,"monotonic":1.0,"boottime":1.0},"changed":{}}\n')
    with pytest.raises(ConfigError, match=r"line 1: is no snapshot: .* no whole line comes before it"):
        list(read_recording(path))


def packed(path, seconds=100):
    """Write a packed recording of two members and return it."""
    half = a_hang(path.with_name("half.jsonl"), seconds=seconds).read_bytes()
    path.write_bytes(gzip.compress(half, mtime=0) + gzip.compress(half, mtime=0))
    return path


def test_a_packed_recording_is_read(tmp_path):
    """Its members one after another, and one that holds nothing."""
    assert len(list(read_recording(packed(tmp_path / "r.jsonl.gz")))) == 40
    for content in (b"", gzip.compress(b"")):
        (tmp_path / "empty.jsonl.gz").write_bytes(content)
        assert list(read_recording(tmp_path / "empty.jsonl.gz")) == []


def test_a_packed_recording_that_is_cut_short_loses_only_its_end(tmp_path):
    """Wherever it is cut, all lines before are read."""
    path = packed(tmp_path / "r.jsonl.gz")
    whole, all_of_it = path.read_bytes(), list(read_recording(path))
    for size in (5, len(whole) // 4, len(whole) // 2 + 3, len(whole) - 30, len(whole) - 4):
        path.write_bytes(whole[:size])
        some = list(read_recording(path))
        assert some == all_of_it[: len(some)]
    assert len(some) == 40  # only the checksum was missing


@pytest.mark.parametrize(
    ("content", "why"),
    [
        (b"nonsense", "line 1: cannot be unpacked: Not a gzipped file"),
        (gzip.compress(b"nonsense\n", mtime=0), "line 1: is no snapshot"),
        (
            gzip.compress(line_of(a_snapshot(1.0)), mtime=0) + b"nonsense",
            "line 2: cannot be unpacked: Not a gzipped file",
        ),
        (
            gzip.compress(line_of(a_snapshot(1.0)), mtime=0)[:-8] + bytes(8),
            "line 2: cannot be unpacked: CRC check failed",
        ),
        (gzip.compress(bytes(LONGEST_LINE + 1), mtime=0), "line 1: is no snapshot: longer than"),
    ],
)
def test_a_packed_file_that_is_no_recording_is_named(tmp_path, content, why):
    """With the line where it ceases to be one, also where little unpacks to very much."""
    path = tmp_path / "bad.jsonl.gz"
    path.write_bytes(content)
    with pytest.raises(ConfigError, match=rf"bad\.jsonl\.gz: {why}"):
        list(read_recording(path))


def test_no_more_is_unpacked_than_can_be_borne(tmp_path):
    """Of valid lines too."""
    path = packed(tmp_path / "r.jsonl.gz")
    size = len(next(lines_of(path)))
    with pytest.raises(ConfigError, match="line 4: holds more than can be unpacked here"):
        list(lines_of(path, most=3 * size + 9))
