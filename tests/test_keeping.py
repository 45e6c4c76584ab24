"""Keeping: what survives a restart of the exporter, and what a bad disk may not do to it."""

import asyncio
import json
from pathlib import Path

from stallwatch.keeping import USUAL_DIRECTORY, Keeper, usual_file


async def written(keeper, now=100.0, what=None):
    """Have something kept and wait for the file."""
    keeper.keep(now, lambda at: what or {"at": at})
    await keeper._writing


async def test_what_is_kept_is_read_again(tmp_path):
    """The file is made with its folder, and holds what was remembered."""
    path = tmp_path / "state" / "memory.json"
    await written(Keeper(path), what={"at": 1.0, "lives": []})
    assert Keeper(path).load() == {"at": 1.0, "lives": []}
    assert [entry.name for entry in path.parent.iterdir()] == ["memory.json"]


async def test_it_is_written_now_and_then(tmp_path):
    """Not at each look, and not while the write before is still out."""
    keeper, asked = Keeper(tmp_path / "memory.json", every=15.0), []
    for now in (0.0, 1.0, 14.0, 15.0):
        keeper.keep(now, asked.append)
        await keeper._writing
    assert asked == [0.0, 15.0]
    keeper._writing = asyncio.get_running_loop().create_future()
    keeper.keep(60.0, asked.append)
    assert asked == [0.0, 15.0]


def test_without_a_file_nothing_is_kept_or_read(tmp_path):
    """Keeping can be switched off, and the first start has nothing to read."""
    Keeper(None).keep(0.0, lambda _now: 1 / 0)
    assert Keeper(None).load() is None
    assert Keeper(tmp_path / "none.json").load() is None


def test_a_broken_file_is_no_memory(tmp_path, caplog):
    """Half a file, or none of ours, is said and left."""
    path = tmp_path / "memory.json"
    path.write_text('{"at": 1')
    assert Keeper(path).load() is None
    assert "what was kept cannot be used" in caplog.text


async def test_a_disk_that_refuses_is_said_once(tmp_path, caplog):
    """Where the folder cannot be made the exporter goes on and says so, once."""
    (tmp_path / "file").write_text("")
    keeper = Keeper(tmp_path / "file" / "memory.json", every=1.0)
    await written(keeper, now=10.0)
    await written(keeper, now=20.0)
    assert caplog.text.count("a restart will forget") == 1


def test_where_it_lies():
    """The state directory of systemd, where there is one, else the usual place."""
    assert usual_file({"STATE_DIRECTORY": "/run/a:/run/b"}) == Path("/run/a/memory.json")
    assert usual_file({}) == USUAL_DIRECTORY / "memory.json"


async def test_the_file_is_plain_json(tmp_path):
    """What is kept can be looked at."""
    path = tmp_path / "memory.json"
    await written(Keeper(path))
    assert json.loads(path.read_text()) == {"at": 100.0}


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
