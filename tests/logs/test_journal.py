"""The journal: what a service or a container wrote there is followed like a file; what it does not show is absent."""

import json
import os
import signal
import time
from pathlib import Path

import pytest

from stallwatch.logs import journal
from stallwatch.logs.journal import Journal, holds, path_of_container, path_of_unit, recent

UNIT = "journal:_SYSTEMD_UNIT=sglang.service"
ID = "ab" * 32


def entry(message, number=1, written=1_700_000_000.5):
    """Return one entry as journalctl writes it."""
    cursor = f"s=c0ffee;i={number:x};b=1;m=2;t=3;x=4"
    fields = {"__CURSOR": cursor, "__REALTIME_TIMESTAMP": str(int(written * 1e6)), "MESSAGE": message}
    return json.dumps(fields, separators=(",", ":")) + "\n"


class Program:
    """A journalctl that says what stands in files: `past` once, then what comes to `coming`; it notes its orders."""

    def __init__(self, folder):
        self.past, self.coming, self.orders = folder / "past", folder / "coming", folder / "orders"
        self.path = folder / "journalctl"
        self.past.write_text("")
        self.coming.write_text("")
        self.says(f'case "$*" in *--follow*) exec tail -n +1 -f {self.coming};; *) cat {self.past};; esac')

    def says(self, shell):
        """Do this instead."""
        self.path.write_text(f'#!/bin/sh\necho "$$ $*" >> {self.orders}\n{shell}\n')
        self.path.chmod(0o755)

    def write(self, *entries, to=None):
        """Append entries to what comes."""
        with (to or self.coming).open("a") as file:
            file.writelines(entries)

    @property
    def asked(self):
        """Return the orders it was started with."""
        return [line.split()[1:] for line in self.orders.read_text().splitlines()]

    @property
    def pid(self):
        """Return the pid of the one that was started last."""
        return int(self.orders.read_text().splitlines()[-1].split()[0])


@pytest.fixture
def program(tmp_path):
    """Return a program."""
    return Program(tmp_path)


@pytest.fixture
def followed(program):
    """Return what follows a unit by it."""
    made = Journal(UNIT, program=str(program.path))
    yield made
    made.close()


def lines_of(followed, within=5.0, until=1):
    """Return the lines of several looks, once there are so many."""
    end, found = time.monotonic() + within, b""
    while found.count(b"\n") < until and time.monotonic() < end:
        found += b"".join(followed.look())
    return found.decode().splitlines()


@pytest.mark.parametrize(
    ("cgroup", "path"),
    [
        ("0::/system.slice/sglang.service", "journal:_SYSTEMD_UNIT=sglang.service"),
        ("0::/system.slice/serve.slice/sglang@kimi.service/work", "journal:_SYSTEMD_UNIT=sglang@kimi.service"),
        ("4:memory:/\n1:name=systemd:/system.slice/a\\x2db.service\n0::/", "journal:_SYSTEMD_UNIT=a\\x2db.service"),
        (
            "0::/user.slice/user-1000.slice/user@1000.service/app.slice/sglang.service",
            "journal:_SYSTEMD_UNIT=user@1000.service,_SYSTEMD_USER_UNIT=sglang.service",
        ),
        ("0::/user.slice/user-1000.slice/session-3.scope", None),
        ("0::/system.slice/docker-abc.scope", None),
        ("0::/system.slice/--all.service x=y.service", None),
        ("4:memory:/system.slice/sglang.service\n0::/", None),
        ("", None),
    ],
)
def test_a_service_is_told_by_its_control_group(cgroup, path):
    """It is the kernel that says so, not the process; a name that could be an order is none."""
    assert path_of_unit(cgroup) == path


@pytest.mark.parametrize(
    ("message", "text"),
    [
        ("Load weight end.", b"Load weight end."),
        (list(b"\x1b[1mLoading\x1b[0m 10%"), b"Loading 10%"),
        (list(b"caf\xe9"), b"caf\xe9"),
        ("one\ntwo", b"one\ntwo"),
        (["first", list(b"second")], b"first\nsecond"),
        ("\ud800", b"?"),
        ([999, -1], b""),
        (None, b""),
        ({"a": 1}, b""),
    ],
)
def test_a_message_is_taken_in_each_of_its_forms(program, message, text):
    """Text, numbers where there are colours or other bytes, a list where the field came twice; null is none."""
    program.past.write_text(entry(message))
    assert recent(UNIT, program=str(program.path)) == (text + b"\n" if text else b"")


def test_what_is_no_entry_is_left_out(program):
    """Half a line, another language, a number."""
    program.past.write_text('{"MESSAGE":\nnull\n7\n[]\n{"MESS":"x"}\n' + entry("good"))
    assert recent(UNIT, program=str(program.path)) == b"good\n"


def test_the_past_is_read_to_its_end_and_then_what_comes(program, followed):
    """What follows begins after the last entry of the past, so that nothing is missed or seen twice."""
    program.past.write_text(entry("old", 1) + entry("older", 2, written=1_700_000_009.25))
    assert lines_of(followed, until=2) == ["old", "older"]
    assert (followed.behind, followed.grew, followed.modified, followed.size) == (False, True, 1_700_000_009.25, 10)
    assert (b"".join(followed.look()), followed.grew) == (b"", False)
    program.write(entry("new", 3), entry([27, 91, 49, 109, 33], 4, written=1_700_000_011.0))
    assert lines_of(followed, until=2) == ["new", "!"]
    assert (followed.modified, followed.unfinished, followed.rotations) == (1_700_000_011.0, b"", 0)
    past, coming = program.asked
    assert past[-2:] == ["_SYSTEMD_UNIT=sglang.service", f"--lines={journal.HISTORY_LINES}"]
    assert coming[-3:] == ["--follow", "--no-tail", "--after-cursor=s=c0ffee;i=2;b=1;m=2;t=3;x=4"]


def test_an_entry_that_comes_in_parts_is_taken_once_it_is_whole(program, followed):
    """A pipe gives what is there."""
    program.past.write_text(entry("old"))
    assert lines_of(followed) == ["old"]
    whole = entry("in two parts", 2)
    program.write(whole[:40])
    b"".join(followed.look())
    assert followed.grew is False
    program.write(whole[40:])
    assert lines_of(followed) == ["in two parts"]


def test_an_entry_without_end_takes_no_memory(program, followed, monkeypatch):
    """It is dropped up to its end, and what was left out is told."""
    monkeypatch.setattr(journal, "LONGEST_ENTRY", 1000)
    program.past.write_text(entry("old"))
    assert lines_of(followed) == ["old"]
    program.write(entry("x" * 200_000, 2), entry("after", 3))
    assert lines_of(followed) == ["after"]
    assert followed.skipped_bytes > 1000
    assert len(followed._rest) <= 1000


def test_a_journal_that_shows_nothing_is_not_silent_but_absent(program):
    """Who may not read it sees no line; the past is asked for again, but not at each look."""
    now = [0.0]
    followed = Journal(UNIT, lambda: now[0], str(program.path))
    for _ in range(3):
        with pytest.raises(FileNotFoundError):
            b"".join(followed.look())
    assert len(program.asked) == 1
    program.past.write_text(entry("now we may"))
    now[0] += journal.TRY_AGAIN_SECONDS
    assert b"".join(followed.look()) == b"now we may\n"
    followed.close()


@pytest.mark.parametrize(
    ("shell", "error"),
    [
        ("echo 'No journal files were opened due to insufficient permissions.' >&2; exit 1", PermissionError),
        ("exit 3", OSError),
    ],
)
def test_why_there_is_nothing_to_read_is_told(program, shell, error):
    """As for a file."""
    program.says(shell)
    with pytest.raises(error):
        b"".join(Journal(UNIT, program=str(program.path)).look())
    with pytest.raises(error):
        recent(UNIT, program=str(program.path))


def test_a_program_that_is_not_there_is_missed(tmp_path):
    """A container seldom has it."""
    nowhere = str(tmp_path / "journalctl")
    with pytest.raises(FileNotFoundError):
        b"".join(Journal(UNIT, program=nowhere).look())
    assert not journal.is_here(nowhere)
    assert not holds(UNIT, nowhere)


def test_a_place_that_is_none_is_not_asked_for(program):
    """What is handed over as an order must be a match of ours."""
    for path in ("journal:--vacuum-size=1", "journal:", "journal:_PID=1", "journal:_SYSTEMD_UNIT=a b"):
        with pytest.raises(FileNotFoundError):
            Journal(path, program=str(program.path))
        with pytest.raises(FileNotFoundError):
            recent(path, program=str(program.path))
    assert not program.orders.exists()


def test_a_program_that_does_not_answer_holds_nobody_up(program, followed):
    """A look takes no longer than one of a file, and nothing is told of a log that has shown nothing."""
    program.says("exec sleep 60")
    began = time.monotonic()
    with pytest.raises(OSError, match="has not answered"):
        b"".join(followed.look())
    assert time.monotonic() - began < 3.0
    with pytest.raises(TimeoutError):
        recent(UNIT, program=str(program.path), within=0.2)


def raised_by(followed):
    """Return what one look raises, None where it does not."""
    try:
        b"".join(followed.look())
    except OSError as error:
        return error
    return None


def error_of(followed, within=5.0):
    """Return what a look comes to raise."""
    end = time.monotonic() + within
    while (error := raised_by(followed)) is None and time.monotonic() < end:
        pass
    return error


def test_a_program_that_ends_is_started_again_where_it_was(program):
    """Not more often than each ten seconds; until then the log is absent."""
    now = [0.0]
    followed = Journal(UNIT, lambda: now[0], str(program.path))
    program.past.write_text(entry("old"))
    assert lines_of(followed) == ["old"]
    program.write(entry("new", 2))
    assert lines_of(followed) == ["new"]
    now[0] += journal.TRY_AGAIN_SECONDS
    os.kill(program.pid, signal.SIGKILL)
    program.coming.write_text(entry("again", 3))
    assert lines_of(followed) == ["again"]
    assert program.asked[-1][-1] == "--after-cursor=s=c0ffee;i=2;b=1;m=2;t=3;x=4"
    os.kill(program.pid, signal.SIGKILL)
    assert str(error_of(followed)) == "journalctl ended with -9"
    assert len(program.asked) == 3
    now[0] += journal.TRY_AGAIN_SECONDS
    program.coming.write_text(entry("and again", 4))
    assert lines_of(followed) == ["and again"]
    followed.close()


def test_whoever_closes_it_leaves_nothing_behind(program, followed):
    """Neither a process nor a zombie; with the reader gone, journalctl ends by itself."""
    program.past.write_text(entry("old"))
    assert lines_of(followed) == ["old"]
    pid = program.pid
    followed.close()
    assert not Path(f"/proc/{pid}").exists()
    assert not followed.goes_on_at(path_of_container(ID))


def test_a_container_is_looked_for_by_its_id(program):
    """Docker and Podman write it on each line."""
    program.past.write_text(entry("hello"))
    assert holds(path_of_container(ID), str(program.path))
    assert program.asked[-1][-2:] == [f"CONTAINER_ID_FULL={ID}", "--lines=1"]
    program.past.write_text("")
    assert not holds(path_of_container(ID), str(program.path))
