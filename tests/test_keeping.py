"""Keeping: what survives a restart of the exporter, and what a bad disk may not do to it."""

import asyncio
import json
import os
import subprocess
import sys
import threading
import time
from pathlib import Path
from random import Random

import pytest
from hypothesis import given
from hypothesis import strategies as some

from small_disks import small_disk
from stallwatch.keeping import USUAL_DIRECTORY, Keeper, origin, usual_file


async def written(keeper, now=100.0, what=None):
    """Have something kept and wait for the file."""
    await keeper.close(now, lambda at: what or {"at": at}, within=30.0)


async def test_what_is_kept_is_read_again(tmp_path):
    """The file is made with its folder, and holds what was remembered."""
    path = tmp_path / "state" / "memory.json"
    await written(Keeper(path), what={"at": 1.0, "lives": []})
    assert Keeper(path).load() == {"at": 1.0, "lives": []}
    assert [entry.name for entry in path.parent.iterdir()] == ["memory.json"]


async def test_it_is_written_now_and_then(tmp_path):
    """Not at each look, not before all has been read once, and not while the write before is still out."""
    keeper, asked = Keeper(tmp_path / "memory.json", every=15.0, first=5.0), []

    def remember(now):
        asked.append(now)
        return {}

    for now in (0.0, 4.9, 5.0, 6.0, 19.0, 20.0):
        keeper.keep(now, remember)
        if keeper._writing:
            await keeper._writing
    assert asked == [5.0, 20.0]
    keeper._writing = asyncio.get_running_loop().create_future()
    keeper.keep(60.0, remember)
    assert asked == [5.0, 20.0]


def test_without_a_file_nothing_is_kept_or_read(tmp_path):
    """Keeping can be switched off, and the first start has nothing to read."""
    Keeper(None).keep(0.0, lambda _now: 1 / 0)
    assert Keeper(None).load() is None
    assert Keeper(tmp_path / "none.json").load() is None


@pytest.mark.parametrize("text", ["", '{"at": 1', "\0" * 4096, "\xff\xfe", "[" * 100_000, '{"at": NaN}', "9" * 5000])
def test_a_broken_file_is_no_memory(tmp_path, caplog, text):
    """Half a file, an empty one as after a power cut, or none of ours, is said and left."""
    path = tmp_path / "memory.json"
    path.write_text(text, "latin-1")
    assert Keeper(path).load() is None
    assert "what was kept cannot be used" in caplog.text


@given(data=some.binary(max_size=200) | some.text('[]{}":,0e-. \\u').map(str.encode))
def test_no_bytes_are_too_strange(tmp_path_factory, data):
    """Whatever the file holds, the exporter starts."""
    path = tmp_path_factory.getbasetemp() / "memory.json"
    path.write_bytes(data)
    assert Keeper(path).load() is None


def test_what_others_can_have_written_is_no_memory(tmp_path, caplog):
    """A link, a pipe, a directory, a file of another user or one that everybody may write is said, and not read."""
    good = json.dumps({"at": 1.0, "origin": origin()})
    target, path = tmp_path / "target.json", tmp_path / "memory.json"

    def ways():
        target.write_text(good)
        path.symlink_to(target)
        yield "symbolic link"
        os.mkfifo(path)
        yield "no regular file"
        path.mkdir()
        yield "no regular file"
        path.write_text(good)
        path.chmod(0o666)
        yield "others may have written it"
        if os.geteuid() == 0:
            path.write_text(good)
            os.chown(path, 65534, 65534)
            yield "others may have written it"

    for reason in ways():
        assert Keeper(path).load() is None
        assert reason in caplog.records[-1].error
        path.rmdir() if path.is_dir() else path.unlink()
    path.write_text(good)
    assert Keeper(path).load() == {"at": 1.0}


def test_a_file_of_another_boot_is_no_memory(tmp_path):
    """Its times and pids mean nothing now; that is no error either."""
    path = tmp_path / "memory.json"
    path.write_text(json.dumps({"at": 1.0, "origin": "another boot"}))
    assert Keeper(path).load() is None


async def test_a_link_is_replaced_and_its_target_left_alone(tmp_path):
    """Neither the file nor the part of it that is written first follows a link."""
    precious, path = tmp_path / "precious", tmp_path / "state" / "memory.json"
    precious.write_text("mine")
    path.parent.mkdir()
    path.symlink_to(precious)
    path.with_name(".memory.json.part").symlink_to(precious)
    await written(Keeper(path))
    assert precious.read_text() == "mine"
    assert (path.is_symlink(), path.stat().st_mode & 0o777) == (False, 0o600)
    assert [entry.name for entry in path.parent.iterdir()] == ["memory.json"]
    assert Keeper(path).load() == {"at": 100.0}


async def test_a_disk_that_refuses_is_said_once(tmp_path, caplog):
    """Where the folder cannot be made the exporter goes on and says so, once."""
    (tmp_path / "file").write_text("")
    keeper = Keeper(tmp_path / "file" / "memory.json", every=1.0)
    await written(keeper, now=10.0)
    await written(keeper, now=20.0)
    assert caplog.text.count("a restart will forget") == 1


async def test_a_full_disk_loses_nothing_that_was_kept(tmp_path, caplog):
    """The file of before stays whole, no part of a new one is left, both the fault and its end are said once."""
    caplog.set_level("INFO")
    with small_disk(tmp_path / "disk") as fill:
        path = tmp_path / "disk" / "memory.json"
        keeper, large = Keeper(path), {"padding": "x" * 30_000}
        await written(keeper, what={"at": 1.0, **large})
        ballast = fill()
        for _ in range(3):
            await written(keeper, what={"at": 2.0, **large})
        assert sorted(entry.name for entry in path.parent.iterdir()) == ["ballast", "memory.json"]
        assert Keeper(path).load() == {"at": 1.0, **large}
        ballast.unlink()
        await written(keeper, what={"at": 3.0, **large})
        assert Keeper(path).load()["at"] == 3.0
    messages = [record.getMessage() for record in caplog.records]
    assert messages == ["a restart will forget", "a restart will not forget any more"]
    assert caplog.records[0].error == "No space left on device"


WRITER = """
import sys, time
from pathlib import Path
from stallwatch.keeping import Keeper
keeper, path, number = Keeper(Path(sys.argv[1])), Path(sys.argv[1]), int(sys.argv[2])
import msgspec
from stallwatch.keeping import origin
while True:
    number += 1
    keeper._write(path, msgspec.json.encode({"origin": origin(), "number": number, "padding": "x" * 2_000_000}))
"""


def test_a_kill_at_any_moment_leaves_a_whole_file(tmp_path):
    """SIGKILL hits the writer again and again, mostly within a write: what is there is whole and never older."""
    path, dice, last, torn = tmp_path / "memory.json", Random(5), 0, 0
    for _ in range(25):
        environ = {**os.environ, "PYTHONPATH": os.pathsep.join(sys.path)}
        with subprocess.Popen([sys.executable, "-c", WRITER, str(path), str(last)], env=environ) as writer:
            while not path.exists() or Keeper(path).load()["number"] <= last:
                assert writer.poll() is None
                time.sleep(0.01)
            time.sleep(dice.uniform(0, 0.02))
            writer.kill()
        torn += path.with_name(".memory.json.part").exists()
        kept = Keeper(path).load()
        assert (kept["number"] > last, len(kept["padding"])) == (True, 2_000_000)
        last = kept["number"]
    assert torn > 0  # else no kill fell into a write
    assert len(list(tmp_path.iterdir())) <= 2


def test_where_it_lies():
    """The state directory of systemd, where there is one, else the usual place."""
    assert usual_file({"STATE_DIRECTORY": "/run/a:/run/b"}) == Path("/run/a/memory.json")
    assert usual_file({}) == USUAL_DIRECTORY / "memory.json"


async def test_the_file_is_plain_json(tmp_path):
    """What is kept can be looked at."""
    path = tmp_path / "memory.json"
    await written(Keeper(path))
    assert json.loads(path.read_text()) == {"at": 100.0, "origin": origin()}


async def test_at_the_end_it_is_written_once_more(tmp_path):
    """What was seen since the last time is not lost when the exporter is told to end."""
    path = tmp_path / "memory.json"
    keeper = Keeper(path, every=1000.0)
    await written(keeper, now=100.0)
    await keeper.close(101.0, lambda at: {"at": at})
    assert Keeper(path).load() == {"at": 101.0}


async def test_a_stuck_disk_does_not_hold_up_the_end(tmp_path):
    """A write that does not come back is left behind."""
    keeper = Keeper(tmp_path / "memory.json")
    keeper._writing = asyncio.get_running_loop().create_future()
    await keeper.close(101.0, lambda at: {"at": at}, within=0.01)
    assert not keeper._writing.done()


class StuckDisk(Keeper):
    """A keeper whose file cannot be read or written until it is thawed."""

    def __init__(self, path):
        super().__init__(path)
        self.thawed = threading.Event()

    def load(self):
        """Read the file once that is possible."""
        self.thawed.wait(20.0)
        return super().load()

    def _write(self, path, text):
        self.thawed.wait(20.0)
        super()._write(path, text)


def test_no_thread_of_a_stuck_disk_is_waited_for_when_the_loop_ends(tmp_path):
    """Neither the write at the end nor the thread that hangs in it keeps the process from ending."""
    keeper, begun = StuckDisk(tmp_path / "memory.json"), time.monotonic()
    asyncio.run(keeper.close(101.0, lambda at: {"at": at}, within=0.01))
    took = time.monotonic() - begun
    keeper.thawed.set()
    assert took < 10.0


async def test_a_stuck_disk_does_not_hold_up_the_start(tmp_path, caplog):
    """A read that does not come back is left behind and said; the loop turns meanwhile."""
    path = tmp_path / "memory.json"
    await written(Keeper(path), what={"at": 1.0})
    keeper = StuckDisk(path)
    assert await keeper.loaded(within=0.05) is None
    assert "what was kept cannot be read" in caplog.text
    keeper.thawed.set()
    assert await keeper.loaded() == {"at": 1.0}
