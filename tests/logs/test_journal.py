"""The journal: what a service or a container wrote there is followed like a file; what it does not show is absent."""

import contextlib
import json
import math
import os
import time
from pathlib import Path

import pytest

from stallwatch.logs import journal
from stallwatch.logs.journal import Journal, NotYetError, holds, path_of_container, path_of_unit, recent
from stallwatch.logs.life import Follower
from stallwatch.snapshot import Moment
from stallwatch.trial import reader

UNIT = "journal:_SYSTEMD_UNIT=sglang.service,_TRANSPORT=stdout"
ID = "ab" * 32


def entry(message, number=1, written=1_700_000_000.5):
    """Return one entry as journalctl writes it."""
    cursor = f"s=c0ffee;i={number:x};b=1;m=2;t=3;x=4"
    fields = {"__CURSOR": cursor, "__REALTIME_TIMESTAMP": str(int(written * 1e6)), "MESSAGE": message}
    return json.dumps(fields, separators=(",", ":")) + "\n"


class Program:
    """A journalctl that says what stands in `past`, and to those that ask for what came since, what is in `coming`."""

    def __init__(self, folder):
        self.past, self.coming, self.orders = folder / "past", folder / "coming", folder / "orders"
        self.path = folder / "journalctl"
        self.past.write_text("")
        self.coming.write_text("")
        self.says(f'case "$*" in *--after-cursor*) cat {self.coming}; : > {self.coming};; *) cat {self.past};; esac')

    def says(self, shell):
        """Do this instead."""
        self.path.write_text(f'#!/bin/sh\necho "$*" >> {self.orders}\n{shell}\n')
        self.path.chmod(0o755)

    @property
    def asked(self):
        """Return the orders it was started with."""
        return [line.split() for line in self.orders.read_text().splitlines()] if self.orders.exists() else []


class Followed:
    """A unit that is followed by such a program, on a clock that is set by hand."""

    def __init__(self, program):
        self.program, self.now = program, 0.0
        self.journal = Journal(UNIT, lambda: self.now, str(program.path))

    def heard(self, within=20.0):
        """Return the lines of all looks until the program has ended; raise what the last of them does."""
        end, found = time.monotonic() + within, []
        while True:
            try:
                found += b"".join(self.journal.look(0.05)).decode().splitlines()
            except NotYetError:
                assert time.monotonic() < end, "it does not answer"
            if self.journal._child is None:
                return found

    def later(self):
        """Ask again, after the time that lies between two questions."""
        self.now += journal.ASK_SECONDS
        return self.heard()


@pytest.fixture
def program(tmp_path):
    """Return a program."""
    return Program(tmp_path)


@pytest.fixture
def followed(program):
    """Return what follows a unit by it."""
    made = Followed(program)
    yield made
    made.journal.close()


@pytest.mark.parametrize(
    ("cgroup", "path"),
    [
        ("0::/system.slice/sglang.service", "journal:_SYSTEMD_UNIT=sglang.service,_TRANSPORT=stdout"),
        (
            "0::/system.slice/serve.slice/sglang@kimi.service/work",
            "journal:_SYSTEMD_UNIT=sglang@kimi.service,_TRANSPORT=stdout",
        ),
        (
            "4:memory:/\n1:name=systemd:/system.slice/a\\x2db.service\n0::/",
            "journal:_SYSTEMD_UNIT=a\\x2db.service,_TRANSPORT=stdout",
        ),
        (
            "0::/user.slice/user-1000.slice/user@1000.service/app.slice/sglang.service",
            "journal:_SYSTEMD_UNIT=user@1000.service,_SYSTEMD_USER_UNIT=sglang.service,_TRANSPORT=stdout",
        ),
        ("0::/user.slice/user-1000.slice/session-3.scope", None),
        ("0::/user.slice/user-1000.slice/user@1000.service/app.slice/app-x.scope", None),
        ("0::/system.slice/docker-abc.scope", None),
        ("0::/machine.slice/systemd-nspawn@foo.service/payload/system.slice/sglang.service", None),
        ("0::/system.slice/kimi.service/system.slice/sglang.service", None),
        ("0::/system.slice/--all.service x=y.service", None),
        ("4:memory:/system.slice/sglang.service\n0::/", None),
        ("", None),
    ],
)
def test_a_service_is_told_by_its_control_group(cgroup, path):
    """The kernel says so, not the process; a name that could be an order is none, nor one of another's journal."""
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
    assert recent(UNIT, str(program.path), within=20) == (text + b"\n" if text else b"")


def test_what_is_no_entry_is_left_out(program):
    """Half a line, another language, a number."""
    program.past.write_text('{"MESSAGE":\nnull\n7\n[]\n{"MESS":"x"}\n' + entry("good"))
    assert recent(UNIT, str(program.path), within=20) == b"good\n"


def test_the_past_is_read_to_its_end_and_then_what_came_after_it(followed):
    """The next question begins after the last entry, so that nothing is missed or seen twice."""
    program, log = followed.program, followed.journal
    program.past.write_text(entry("old", 1) + entry("older", 2, written=1_700_000_009.25))
    assert followed.heard() == ["old", "older"]
    assert (log.behind, log.modified, log.size) == (False, 1_700_000_009.25, 10)
    program.coming.write_text(entry("new", 3) + entry([27, 91, 49, 109, 33], 4, written=1_700_000_011.0))
    assert (b"".join(log.look()), log.grew) == (b"", False)  # it is not asked at each look
    assert followed.later() == ["new", "!"]
    assert (log.modified, log.unfinished, log.rotations) == (1_700_000_011.0, b"", 0)
    assert followed.later() == []
    first, then, last = program.asked
    assert first[-3:] == ["_SYSTEMD_UNIT=sglang.service", "_TRANSPORT=stdout", f"--lines={journal.HISTORY_LINES}"]
    assert then[-1] == "--after-cursor=s=c0ffee;i=2;b=1;m=2;t=3;x=4"
    assert last[-1] == "--after-cursor=s=c0ffee;i=4;b=1;m=2;t=3;x=4"


def test_nothing_is_told_before_all_of_the_past_is_read(followed):
    """What was written last may be the next entry."""
    program, go_on = followed.program, followed.program.past.with_name("go")
    program.past.write_text(entry("old"))
    program.says(f"cat {program.past}; while [ ! -e {go_on} ]; do sleep 0.05; done; echo '{entry('last', 2).strip()}'")
    lines, end = [], time.monotonic() + 20
    while not lines and time.monotonic() < end:
        with pytest.raises(NotYetError):
            lines.extend(followed.journal.look(0.05))
    assert lines == [b"old\n"]
    go_on.touch()
    assert followed.heard() == ["last"]


def test_an_entry_that_comes_in_parts_is_taken_once_it_is_whole(followed):
    """A pipe gives what is there."""
    program, go_on = followed.program, followed.program.past.with_name("go")
    whole = entry("in two parts")
    program.says(f"printf %s '{whole[:40]}'; while [ ! -e {go_on} ]; do sleep 0.05; done; echo '{whole[40:].strip()}'")
    end = time.monotonic() + 20
    while not followed.journal._rest and time.monotonic() < end:
        with pytest.raises(NotYetError):
            assert not b"".join(followed.journal.look(0.05))
    assert followed.journal._rest == whole[:40].encode()
    go_on.touch()
    assert followed.heard() == ["in two parts"]


def test_half_an_entry_at_the_end_spoils_none_of_the_next(followed):
    """Whoever was killed while it wrote is asked again from the last whole entry on."""
    followed.program.past.write_text(entry("old") + entry("half", 2)[:50])
    assert followed.heard() == ["old"]
    followed.program.coming.write_text(entry("half", 2))
    assert followed.later() == ["half"]


def test_an_entry_without_end_takes_no_memory(followed, monkeypatch):
    """It is dropped up to its end, and what was left out is told."""
    monkeypatch.setattr(journal, "LONGEST_ENTRY", 1000)
    followed.program.past.write_text(entry("old") + entry("x" * 2_000_000, 2) + entry("after", 3))
    assert followed.heard() == ["old", "after"]
    assert followed.journal.skipped_bytes > 1_000_000
    assert len(followed.journal._rest) <= 1000


def test_a_journal_that_shows_nothing_is_not_silent_but_absent(followed):
    """Who may not read it sees no line; the past is asked for again."""
    for _ in range(2):
        with pytest.raises(FileNotFoundError):
            followed.later()
    followed.program.past.write_text(entry("now we may"))
    assert followed.later() == ["now we may"]
    assert [order[-1] for order in followed.program.asked] == [f"--lines={journal.HISTORY_LINES}"] * 3


@pytest.mark.parametrize(
    ("shell", "error"),
    [
        ("echo 'No journal files were opened due to insufficient permissions.' >&2; exit 1", PermissionError),
        ("exit 3", OSError),
    ],
)
def test_why_there_is_nothing_to_read_is_told(followed, shell, error):
    """As for a file; once it was read, too."""
    program = followed.program
    program.past.write_text(entry("old"))
    assert followed.heard() == ["old"]
    program.says(shell)
    with pytest.raises(error):
        followed.later()
    with pytest.raises(error):
        b"".join(followed.journal.look())  # until it was asked anew
    with pytest.raises(error):
        recent(UNIT, str(program.path), within=20)


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
            recent(path, str(program.path))
    assert not program.asked


def test_a_program_that_does_not_answer_holds_nobody_up(followed):
    """Nothing is told of a log meanwhile, neither that it is silent; who has hung is ended, and asked anew."""
    program, log = followed.program, followed.journal
    program.past.write_text(entry("old"))
    assert followed.heard() == ["old"]
    program.says("exec sleep 600")
    followed.now += journal.ASK_SECONDS
    assert b"".join(log.look()) == b""
    hung, orders = log._child, len(program.asked)
    followed.now += journal.ANSWER_SECONDS + 0.1
    with pytest.raises(TimeoutError, match="has not answered in 15 s"):
        b"".join(log.look())
    assert hung.wait(20) == -9
    assert len(program.asked) <= orders + 1
    program.says(f"cat {program.coming}")
    program.coming.write_text(entry("again", 2))
    found, end = [], time.monotonic() + 20
    while not found and time.monotonic() < end:
        with contextlib.suppress(OSError):  # that it was ended is told once more
            found = followed.later()
    assert found == ["again"]


def test_who_is_asked_once_waits_no_longer_than_told(program):
    """Discovery and evidence have other things to do."""
    program.says("exec sleep 600")
    with pytest.raises(NotYetError):
        recent(UNIT, str(program.path), within=0.1)


def test_whoever_closes_it_leaves_nothing_behind(followed):
    """Neither a process nor a zombie."""
    followed.program.says("exec sleep 600")
    with pytest.raises(NotYetError):
        b"".join(followed.journal.look())
    pid = followed.journal._child.pid
    assert Path(f"/proc/{pid}").exists()
    followed.journal.close()
    assert not Path(f"/proc/{pid}").exists()
    assert not followed.journal.goes_on_at(path_of_container(ID))


def test_a_container_is_looked_for_by_its_id(program):
    """Docker and Podman write it on each line, as root; whoever else writes it does not count."""
    program.past.write_text(entry("hello"))
    assert holds(path_of_container(ID), str(program.path), within=20)
    assert program.asked[-1][-3:] == [f"CONTAINER_ID_FULL={ID}", "_UID=0", "--lines=1"]
    program.past.write_text("")
    assert not holds(path_of_container(ID), str(program.path), within=20)


def test_a_journal_that_a_read_got_stuck_with_is_tried_by_asking_it(program, monkeypatch):
    """What comes back is no longer left out, whatever the journal said."""
    monkeypatch.setenv("PATH", f"{program.path.parent}:{os.environ['PATH']}")
    _, failures = reader({}, str)([{"note": f"log {UNIT}"}], frozenset())
    assert failures == ()
    assert program.asked[-1][-1] == "--lines=1"


def test_the_end_of_a_long_log_is_kept(program, monkeypatch):
    """Evidence is taken where memory is short."""
    monkeypatch.setattr(journal, "HISTORY", 10_000)
    program.past.write_text("".join(entry("x" * 100, number) for number in range(5000)) + entry("last", 9999))
    kept = recent(UNIT, str(program.path), within=20)
    assert kept.endswith(b"last\n")
    assert 10_000 <= len(kept) < 400_000


class Life:
    """A server of which the journal tells, on a node whose clocks are set by hand."""

    def __init__(self, program, monkeypatch):
        monkeypatch.setattr(journal, "FIRST_SECONDS", 20.0)
        monkeypatch.setenv("PATH", f"{program.path.parent}:{os.environ['PATH']}")
        self.follower, self.now = Follower("sglang"), Moment.now()

    def look(self, started):
        """Look once, at a server that was started so many seconds ago."""
        return self.follower.look(UNIT, "1", self.now.monotonic - started, self.now)

    def close(self):
        """Let go of it."""
        self.follower.close()


@pytest.fixture
def life(program, monkeypatch):
    """Return a life."""
    made = Life(program, monkeypatch)
    yield made
    made.close()


LOADED = "[2026-11-30 07:01:05 TP0] Load weight end. type=X, avail mem=98.9 GB, mem usage=76.1 GB."
BEGUN = "[2026-11-30 07:00:05 TP0] Load weight begin. avail mem=178.00 GB"


def test_what_was_there_before_is_dated_by_the_journal(program, life):
    """The last entry has its time, and those before it lie as far apart as their lines say."""
    unix = life.now.unix - 600
    program.past.write_text(entry(BEGUN, 1, written=unix - 60) + entry(LOADED, 2, written=unix))
    found = life.look(started=700)
    assert (found.phase, found.last_marker_rank) == ("loaded", "TP0")
    assert life.now.monotonic - found.last_progress == pytest.approx(600, abs=2)
    assert life.now.monotonic - life.follower.last_write == pytest.approx(600, abs=2)


def test_a_journal_that_has_nothing_of_this_life_is_absent(program, life):
    """Who logged there once may log elsewhere now: that is no silence. What comes then has its own time."""
    program.past.write_text(entry(BEGUN, 1, written=life.now.unix - 900))
    with pytest.raises(FileNotFoundError):
        life.look(started=700)
    life.follower._tail._asked = -math.inf  # the time between two questions has passed
    program.coming.write_text(entry(LOADED, 2, written=life.now.unix - 30))
    found = life.look(started=700)
    assert found.phase == "loaded"
    assert life.now.monotonic - found.last_progress == pytest.approx(30, abs=2)
