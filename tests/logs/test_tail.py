"""Following a file: what is new, over every way in which logs are rotated, and at flat memory."""

import os
import sys
from itertools import count
from pathlib import Path

import pytest

from stallwatch.logs import tail as module
from stallwatch.logs.tail import Lines, Tail, clean
from stallwatch.node.inside import NotRegularFileError

BAR = b"Loading shards:  25% Completed | 1/4 [00:00<00:00,  4.99it/s]"


@pytest.fixture
def path(tmp_path):
    """Give a path for a log that is not there yet."""
    return tmp_path / "app.log"


@pytest.fixture
def follow(path):
    """Give a function that reads what is new at the path, through one tail."""
    tail = Tail(str(path))

    def look():
        return b"".join(tail.look())

    look.tail = tail
    yield look
    tail.close()


@pytest.fixture
def opened():
    """Give the list of what this process opens, and does not only hold, while the test runs."""
    paths, active = [], [True]

    def note(event, args):
        if event == "open" and active and not args[2] & os.O_PATH:
            paths.append(args[0])

    sys.addaudithook(note)
    yield paths
    active.clear()


def count_of_descriptors():
    """Count what this process has open."""
    return len(list(Path("/proc/self/fd").iterdir()))


def append(path, data):
    """Write to the end of a file."""
    with path.open("ab") as file:
        file.write(data)


@pytest.mark.parametrize("size", [1, 2, 3, 7, 64, 10_000])
def test_lines_are_the_same_however_the_file_is_cut(size):
    """Pieces of any size give the same lines."""
    data = (
        b"one\r\ntwo\n\n\r"
        + BAR
        + b"\r"
        + BAR
        + b"[x] three\n\x1b[32mgreen\x1b[0m\r\r\nbad \xff utf\xc3\n\0\0four\n"
        + BAR
    )
    lines = Lines()
    cut = b"".join(lines.cut(data[at : at + size]) for at in range(0, len(data), size))
    parts = [b"one", b"two", BAR, BAR, b"[x] three", b"green", b"bad \xff utf\xc3", b"four", BAR]
    assert cut == b"".join(part + b"\n" for part in parts)
    assert lines.unfinished == b""


def test_a_bar_is_whole_at_its_bracket_and_other_text_is_not():
    """A bar without a newline is given out at once; any other unfinished line is kept and can be looked at."""
    lines = Lines()
    assert lines.cut(b"\r" + BAR) == BAR + b"\n"
    assert lines.cut(b"\rLoad weight") == b""
    assert lines.unfinished == b"Load weight"
    assert lines.cut(b" end\n") == b"Load weight end\n"


def test_a_line_without_end_keeps_memory_flat(path, follow):
    """Of a line of 64 MiB only its first part is kept, and the line after it is whole."""
    path.write_bytes(b"one\n")
    follow()
    with path.open("ab") as file:
        file.write(b"begin ")
        for _ in range(64):
            file.write(b"x" * (1 << 20))
    assert follow() == b""
    assert follow.tail.unfinished.startswith(b"begin xxx")
    assert len(follow.tail.unfinished) == module.LONGEST_LINE
    append(path, b"\nnext\n")
    assert [line[:7] for line in follow().splitlines()] == [b"begin x", b"next"]


def test_missing_then_there(path, follow):
    """A file that is not there is an error, and is read from its beginning once it is."""
    with pytest.raises(FileNotFoundError):
        follow()
    path.write_bytes(b"one\n")
    assert follow() == b"one\n"
    assert follow() == b""
    assert follow.tail.rotations == 0


def test_renamed_and_created_anew(path, follow):
    """What came into the old file before the new one was made is not lost, also a line without an end."""
    path.write_bytes(b"one\n")
    follow()
    append(path, b"two\nthree")
    path.rename(path.with_name("app.log.1"))
    path.write_bytes(b"four\n")
    assert follow() == b"two\nthree\nfour\n"
    assert follow.tail.rotations == 1


def test_rotated_twice_between_two_looks(path, follow):
    """A file that had the name only between two looks is read too, in order, and older ones and archives are not."""
    path.with_name("app.log.3").write_bytes(b"old\n")
    path.write_bytes(b"one\n")
    follow()
    append(path, b"two\n")
    path.rename(path.with_name("app.log.2"))
    path.write_bytes(b"three\n")
    path.rename(path.with_name("app.log.1"))
    path.with_name("app.log.2.gz").write_bytes(b"two\n")
    path.write_bytes(b"four\n")
    assert follow() == b"two\nthree\nfour\n"
    assert follow.tail.rotations == 2


def test_copied_and_truncated(path, follow):
    """A file that got shorter is read from its beginning, and the NULs of a writer that kept its place are dropped."""
    path.write_bytes(b"x" * 99 + b"\n")
    follow()
    path.write_bytes(b"")
    assert follow() == b""
    assert follow.tail.rotations == 1
    with path.open("r+b") as file:
        file.seek(80)
        file.write(b"next\n")
    assert follow() == b"next\n"


def test_a_long_hole_of_nuls_costs_no_line(path, follow):
    """NULs do not count towards the longest line, so that what follows them is whole."""
    path.write_bytes(b"a\n")
    follow()
    with path.open("r+b") as file:
        file.truncate(0)
        file.seek(3 << 20)
        file.write(b"after\n")
    assert follow() == b"after\n"


def test_deleted_stays_readable_until_created_anew(path, follow):
    """A deleted file is followed through the open descriptor, and a new one under the name takes over."""
    with path.open("ab", buffering=0) as writer:
        writer.write(b"one\n")
        follow()
        path.unlink()
        writer.write(b"two\n")
        assert follow() == b"two\n"
        path.write_bytes(b"new\n")
        writer.write(b"three\n")
        assert follow() == b"three\nnew\n"


def test_deleted_file_of_another_process_is_read_through_its_descriptor(path):
    """The name /proc/PID/fd/N leads to a file that no directory has any more."""
    with path.open("ab", buffering=0) as writer:
        writer.write(b"one\n")
        path.unlink()
        tail = Tail(f"/proc/{os.getpid()}/fd/{writer.fileno()}")
        assert b"".join(tail.look()) == b"one\n"
        tail.close()


def test_symlink_that_is_pointed_elsewhere(path, tmp_path):
    """A symlink is followed, and pointing it elsewhere is a rotation."""
    for name in ("first", "second"):
        (tmp_path / name).write_bytes(name.encode() + b"\n")
    path.symlink_to("first")
    tail = Tail(str(path))
    assert b"".join(tail.look()) == b"first\n"
    path.unlink()
    path.symlink_to("second")
    assert b"".join(tail.look()) == b"second\n"
    assert tail.rotations == 1
    tail.close()


def test_what_is_no_regular_file_is_never_opened(path, tmp_path, follow, opened):
    """A pipe, a device and a directory are refused by their status alone, also behind a symlink."""
    os.mkfifo(tmp_path / "pipe")
    for target in (tmp_path / "pipe", "/dev/null"):
        path.symlink_to(target)
        with pytest.raises(NotRegularFileError):
            follow()
        path.unlink()
    path.mkdir()
    with pytest.raises(IsADirectoryError):
        follow()
    assert opened == []
    path.rmdir()
    path.write_bytes(b"one\n")
    opened.clear()
    assert follow() == b"one\n"
    assert len(opened) == 2, "the file, and its folder"


def test_descriptors_do_not_pile_up(path, follow):
    """After many rotations one descriptor is open, and none after closing."""
    before = count_of_descriptors()
    for _ in range(20):
        path.unlink(missing_ok=True)
        path.write_bytes(b"x\n")
        assert follow() == b"x\n"
    assert count_of_descriptors() == before + 1
    follow.tail.close()
    assert count_of_descriptors() == before


def test_a_large_file_is_first_read_near_its_end_from_the_beginning_of_a_line(path, follow):
    """At first sight at most the last 8 MiB are read, and no half line."""
    line = b"%015d\n"
    lines = 2 * module.HISTORY // 16 + 7
    path.write_bytes(b"".join(line % number for number in range(lines)))
    read = follow()
    assert len(read) == module.HISTORY
    assert read.startswith(line % (lines - module.HISTORY // 16))
    assert follow.tail.skipped_bytes == 0


def test_a_reader_too_far_behind_jumps_to_the_end_and_says_so(path, follow):
    """What is left out is counted."""
    path.write_bytes(b"one\n")
    follow()
    with path.open("ab") as file:
        file.truncate(module.FURTHEST_BEHIND + (1 << 20))
        file.seek(0, os.SEEK_END)
        file.write(b"\nlast\n")
    assert follow() == b"last\n"
    assert follow.tail.skipped_bytes > module.FURTHEST_BEHIND - module.HISTORY - (1 << 20)
    assert not follow.tail.behind


def test_a_look_ends_when_its_time_is_over(path):
    """When reading takes long the rest is left for the next look."""
    path.write_bytes(b"x\n" * (2 << 20))
    ticks = count(step=module.LOOK_SECONDS / 2.5)
    tail = Tail(str(path), clock=lambda: next(ticks))
    first = len(b"".join(tail.look()))
    assert 0 < first < 4 << 20
    assert tail.behind
    rest = first
    while tail.behind:
        rest += len(b"".join(tail.look()))
    assert rest == 4 << 20
    tail.close()


def test_clean_leaves_plain_lines_alone():
    """Lines without anything odd come back as they are."""
    assert clean(b"one\ntwo 50%\n") == b"one\ntwo 50%\n"
