"""Logs that are rotated while they are read: real files, a real writer at full speed, and no line is missed."""

import os
import re
import subprocess
import sys
import time

import pytest

from stallwatch.logs import rotation
from stallwatch.logs.place import Place
from stallwatch.logs.tail import Tail

SECONDS = 3
WRITER = r"""
import os, shutil, sys, time

path, way, seconds = sys.argv[1], sys.argv[2], float(sys.argv[3])
filler = b"[2026-01-01 00:00:00 TP0] Decode batch. #running-req: 12, #token: 3456, token usage: 0.45, gen\n" * 5000
log, generation, phase, written = open(path, "ab", buffering=0), 0, 0, 0


def rotate():
    global log, generation
    generation += 1
    if way == "rename":
        log.close()
        os.rename(path, f"{path}.{generation}")
        log = open(path, "ab", buffering=0)
    else:
        shutil.copyfile(path, f"{path}.{generation}")
        log.truncate(0)


begin = time.monotonic()
while (now := time.monotonic() - begin) < seconds:
    if now > generation + 1:
        rotate()
    log.write(b"[2026-01-01 00:00:00] phase %d begins\n" % phase)
    phase += 1
    log.write(filler)
    written += len(filler)
    time.sleep(max(0.0, written / 100e6 - (time.monotonic() - begin)))  # not more than 100 MB/s
print(phase, generation, written)
"""


@pytest.fixture
def path(tmp_path):
    """Give a path for a log that is not there yet, and remove what was written at the end."""
    yield tmp_path / "app.log"
    for file in tmp_path.glob("app.log*"):
        file.unlink()


def append(path, data):
    """Write to the end of a file."""
    with path.open("ab") as file:
        file.write(data)


def read(tail):
    """Return what is new."""
    return b"".join(tail.look())


@pytest.mark.parametrize("way", ["rename", "copytruncate"])
def test_no_phase_is_missed_when_a_fast_log_is_rotated_each_second(path, way):
    """A process writes as much as it can, up to 100 MB/s; all its phases are seen once and in order."""
    path.touch()
    tail, phases = Tail(str(path)), []

    def look():
        for lines in tail.look():
            phases.extend(int(number) for number in re.findall(rb"phase (\d+) begins\n", lines))

    look()
    command = [sys.executable, "-c", WRITER, str(path), way, str(SECONDS)]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as writer:
        while writer.poll() is None:
            look()
            time.sleep(0.2 if tail.behind else 1.0)
        last, generations, written = map(int, writer.stdout.read().split())
    look()
    while tail.behind:
        look()
    tail.close()
    print(f"{way}: {written / 1e6 / SECONDS:.0f} MB/s, {last} phases, {generations} rotations")
    assert phases == list(range(last))
    assert (tail.rotations, tail.skipped_bytes) == (generations, 0)


def test_what_was_written_before_a_truncation_is_read_in_the_copy(path):
    """The end of the old log, also a line that goes on there, comes before the new one."""
    tail = Tail(str(path))
    append(path, b"one\ntw")
    assert read(tail) == b"one\n"
    append(path, b"o\nthree\n")
    path.with_name("app.log.1").write_bytes(path.read_bytes())
    path.write_bytes(b"four\n")
    assert read(tail) == b"two\nthree\nfour\n"
    assert tail.rotations == 1
    tail.close()


def test_a_truncated_file_that_has_grown_past_our_place_is_read_from_its_beginning(path):
    """Its size alone does not tell."""
    tail = Tail(str(path))
    append(path, b"one\n")
    read(tail)
    path.write_bytes(b"another one, and longer\n")
    assert read(tail) == b"another one, and longer\n"
    assert tail.rotations == 1
    tail.close()


def test_copied_and_truncated_twice_between_two_looks(path):
    """Both copies are read, in order; older ones and other files are not."""
    older, other = path.with_name("app.log.9"), path.with_name("app.log.other")
    older.write_bytes(b"older\n")
    other.write_bytes(b"other\n")
    tail = Tail(str(path))
    append(path, b"one\n")
    read(tail)
    append(path, b"two\n")
    path.with_name("app.log.2").write_bytes(path.read_bytes())
    path.write_bytes(b"three\n")
    path.with_name("app.log.1").write_bytes(path.read_bytes())
    path.write_bytes(b"four\n")
    append(other, b"more of it\n")
    assert read(tail) == b"two\nthree\nfour\n"
    assert tail.rotations == 2
    tail.close()


def test_a_copy_in_place_of_the_one_before(path):
    """Whoever keeps one copy writes it over the last one."""
    copy, tail = path.with_name("app.log.1"), Tail(str(path))
    for number in range(3):
        append(path, b"first of %d\n" % number)
        first = read(tail)
        append(path, b"last of %d\n" % number)
        copy.write_bytes(path.read_bytes())
        path.write_bytes(b"")
        assert first + read(tail) == b"first of %d\nlast of %d\n" % (number, number)
    assert tail.rotations == 3
    tail.close()


def test_a_copy_that_holds_less_than_was_read_is_not_read_again(path):
    """What came between copy and truncation was seen in the log itself."""
    tail = Tail(str(path))
    append(path, b"one\n")
    path.with_name("app.log.1").write_bytes(path.read_bytes())
    append(path, b"two\n")
    assert read(tail) == b"one\ntwo\n"
    path.write_bytes(b"three\n")
    assert read(tail) == b"three\n"
    tail.close()


def test_the_hole_that_a_writer_leaves_which_does_not_append_is_not_read(path):
    """It keeps its place in a truncated file, however far that is; nothing is said to be left out."""
    with path.open("wb", buffering=0) as writer:
        writer.write(b"one\n")
        writer.seek(2 << 40)  # as if it had written as much
        writer.write(b"two\n")
        tail = Tail(str(path))
        read(tail)
        os.truncate(path, 0)
        writer.write(b"three\n")
        assert read(tail) == b"three\n"
        os.truncate(path, 0)
        writer.write(b"four\n")
        assert read(tail) == b"four\n"
    assert (tail.rotations, tail.skipped_bytes) == (2, 0)
    tail.close()


def test_between_a_rename_and_the_new_file_nothing_is_missing(path):
    """A look in that moment reads the old file on, and is no error."""
    tail = Tail(str(path))
    append(path, b"one\n")
    read(tail)
    path.rename(path.with_name("app.log.1"))
    append(path.with_name("app.log.1"), b"two\n")
    assert read(tail) == b"two\n"
    append(path, b"three\n")
    assert read(tail) == b"three\n"
    tail.close()


def test_a_rotated_file_that_is_overwritten_before_it_is_read_is_left(path, monkeypatch):
    """What is lost of it is counted, and the log itself goes on."""
    monkeypatch.setattr("stallwatch.logs.tail.LOOK_BYTES", 1 << 20)
    tail, copy = Tail(str(path)), path.with_name("app.log.1")
    append(path, b"one\n")
    read(tail)
    append(path, b"x\n" * (2 << 20))
    path.rename(copy)
    append(path, b"three\n")
    read(tail)
    copy.write_bytes(b"something else\n" * (1 << 20))
    assert b"three\n" in read(tail)
    assert (tail.skipped_bytes > 1 << 20, tail.behind) == (True, False)
    tail.close()


def test_a_log_under_another_name_goes_on(path):
    """Discovery names the file that the server has open, and may look while that is being renamed."""
    tail, moved = Tail(str(path)), path.with_name("app.log.1")
    append(path, b"one\n")
    read(tail)
    path.rename(moved)
    append(moved, b"two\n")
    assert tail.goes_on_at(str(moved))
    assert read(tail) == b"two\n"
    append(path, b"three\n")
    assert tail.goes_on_at(str(path))
    assert read(tail) == b"three\n"
    assert not tail.goes_on_at(__file__)
    tail.close()


def test_descriptors_are_left_for_others(path, monkeypatch):
    """However many logs there are, they do not take the last descriptors of the process."""
    path.touch()
    file = rotation.open_log(Place(str(path)))
    os.close(file.descriptor)
    limit = file.descriptor + rotation.SPARE_DESCRIPTORS
    for soft, opens in ((limit + 1, True), (limit, False)):
        monkeypatch.setattr(rotation.resource, "getrlimit", lambda _kind, soft=soft: (soft, soft))
        if opens:
            os.close(rotation.open_log(Place(str(path))).descriptor)
        else:
            with pytest.raises(OSError, match="Too many open files"):
                rotation.open_log(Place(str(path)))


@pytest.mark.parametrize(
    ("name", "is_rotated"),
    [
        ("server.log.1", True),
        ("server.log-20260101", True),
        ("server.log.20260101-120000", True),
        ("server.log.old", True),
        ("server.log_other", False),
        ("server.log.other.1", False),
        ("server.log2.log", False),
        ("server.log.1.gz", False),
    ],
)
def test_only_what_rotation_names_so_was_this_log(tmp_path, name, is_rotated):
    """The log of another server may begin with the same name; its lines are not this one's."""
    (tmp_path / "server.log").touch()
    (tmp_path / name).touch()
    assert list(Place(str(tmp_path / "server.log")).siblings()) == [name] * is_rotated
