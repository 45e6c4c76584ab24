"""The keeper: what is due is gathered and written, whatever goes wrong with it, and nothing waits for that."""

import asyncio
import gzip
import json
import logging
import os
import threading

import msgspec
import pytest

from dead_mount import DeadMount
from frozen_disk import FrozenDisk
from incidents import NAME, a_view, at, bundle, hung, kept, named, written
from pasts import serving
from small_disks import small_disk
from stallwatch.evidence import store
from stallwatch.evidence.gathering import Found
from stallwatch.evidence.incidents import APART
from stallwatch.evidence.keeper import EvidenceKeeper
from stallwatch.sections import EvidenceConfig
from stallwatch.snapshot import Failure

STALLED = 240.0


class Gathering:
    """Sources that give nothing, when they are let."""

    def __init__(self, *, open_gate=True):
        self.asked = []
        self.gate = asyncio.Event()
        if open_gate:
            self.gate.set()

    async def __call__(self, server):
        """Return what was found of a server."""
        self.asked.append(server.name)
        await self.gate.wait()
        return (Found("threads", None, (Failure("threads", "timeout", "pid 101", server.name),), 5.0),)


class Settings:
    """Settings that may change, as by a reload."""

    def __init__(self, directory, **settings):
        self.config = EvidenceConfig(directory=str(directory), **settings)

    def __call__(self):
        """Return what is in force."""
        return self.config

    def change(self, **settings):
        """Have others from now on."""
        self.config = msgspec.structs.replace(self.config, **settings)


def keeper(directory, gather, **settings):
    """Return a keeper of evidence in a directory."""
    return EvidenceKeeper(Settings(directory, **settings), gather, lambda: gzip.compress(b""))


async def done(one):
    """Wait until all that was begun is kept, or could not be."""
    while one._tasks:
        await asyncio.wait(set(one._tasks))


async def test_an_incident_becomes_a_bundle(tmp_path):
    """With its verdict, the snapshot, the recording, and a manifest that says what is missing and why."""
    one = keeper(tmp_path / "evidence", Gathering())
    one.take(a_view(hung(STALLED)))
    await done(one)
    (path,) = (tmp_path / "evidence").iterdir()
    files = {file.name for file in path.iterdir()}
    assert files == {"summary.md", "verdict.json", "snapshot.json", "recording.jsonl.gz", "manifest.json"}
    assert json.loads((path / "verdict.json").read_text())["verdict"] == "stalled"
    manifest = store.read_manifest(path)
    assert (manifest.server, manifest.verdict, manifest.why) == (NAME, "stalled", "its verdict is stalled")
    assert manifest.sources[0].missing == ("timeout: pid 101",)
    assert one.kept().bundles == 1
    assert one.kept().latest[NAME].name == path.name
    assert one.kept().failures == {"threads": 1}


async def test_it_is_gathered_once(tmp_path):
    """However many looks the incident lasts, and while the first is still being gathered."""
    gathering = Gathering(open_gate=False)
    one = keeper(tmp_path, gathering)
    for later in (0.0, 1.0, 2.0):
        one.take(a_view(hung(STALLED), later=later))
        await asyncio.sleep(0)
    gathering.gate.set()
    await done(one)
    one.take(a_view(hung(STALLED), later=10 * APART))
    await done(one)
    assert gathering.asked == [NAME]
    assert len(store.bundles(tmp_path)) == 1


async def test_a_keeper_that_is_started_again_finds_what_was_kept(tmp_path):
    """So that the incident it finds is not gathered a second time."""
    first = keeper(tmp_path, Gathering())
    first.take(a_view(hung(STALLED)))
    await done(first)
    gathering = Gathering()
    second = keeper(tmp_path, gathering)
    await second.load()
    assert second.kept().latest == first.kept().latest
    second.take(a_view(hung(STALLED), later=5.0))
    second.take(a_view(hung(STALLED + 2 * APART), later=2 * APART))
    await done(second)
    assert gathering.asked == []


async def test_what_is_beyond_the_count_is_thrown_away(tmp_path):
    """The oldest goes."""
    for gathered in (1.0, 2.0):
        written(tmp_path, gathered, server="vllm:8000")
    one = keeper(tmp_path, Gathering(), keep=2)
    one.take(a_view(hung(STALLED)))
    await done(one)
    assert [kept.server for kept in store.bundles(tmp_path)] == ["vllm:8000", NAME]
    assert one.kept().bundles == 2


async def test_a_disk_that_is_full_is_said_once(tmp_path, caplog):
    """No half bundle is left, the failure is counted, and it is tried again only after a while."""
    disk = tmp_path / "disk"
    with small_disk(disk) as fill, caplog.at_level(logging.WARNING, "stallwatch.evidence"):
        disk.chmod(0o700)
        fill()
        gathering = Gathering()
        one = keeper(disk, gathering)
        for later in (0.0, 1.0, 2.0):
            one.take(a_view(hung(STALLED), later=later))
            await done(one)
        assert [path.name for path in disk.iterdir()] == ["ballast"]
    assert gathering.asked == [NAME]
    assert one.kept().failures["write"] == 1
    (record,) = caplog.records
    assert "No space left" in record.error


async def test_a_fault_of_ours_is_logged_without_its_text(tmp_path, caplog):
    """It may quote what a server said; and the watch goes on."""

    async def broken(_server):
        raise ValueError("a prompt of somebody")

    one = keeper(tmp_path, broken)
    one.take(a_view(hung(STALLED)))
    await done(one)
    assert one.kept().failures == {"write": 1}
    assert "ValueError" in caplog.records[0].error
    assert "prompt" not in caplog.text


async def test_a_hang_of_the_whole_node_is_gathered_two_by_two(tmp_path):
    """So that many servers do not ask for everything at once."""
    gathering = Gathering(open_gate=False)
    one = keeper(tmp_path, gathering)
    one.take(a_view(*(named(hung(STALLED), f"sglang:{port}") for port in range(5))))
    for _ in range(3):
        await asyncio.sleep(0)
    assert len(gathering.asked) == 2
    gathering.gate.set()
    await done(one)
    assert len(store.bundles(tmp_path)) == 5


async def test_the_end_waits_for_nothing(tmp_path):
    """What is being gathered then is given up."""
    one = keeper(tmp_path, Gathering(open_gate=False))
    one.take(a_view(hung(STALLED)))
    await asyncio.sleep(0)
    await asyncio.wait_for(one.close(), 1.0)
    assert store.bundles(tmp_path) == []


async def test_a_directory_that_cannot_be_listed_is_said(tmp_path, caplog):
    """The exporter starts all the same."""
    (tmp_path / "evidence").write_text("no directory")
    one = keeper(tmp_path / "evidence", Gathering())
    await one.load()
    assert "cannot be kept or listed" in caplog.text
    assert one.kept().bundles == 0


async def test_a_dead_disk_holds_up_one_thread_and_nobody_else(tmp_path, caplog):
    """Each try ends and is counted, none waits behind the one before, and what comes of that at last is known."""
    with FrozenDisk(tmp_path) as disk:
        disk.freeze()
        one = EvidenceKeeper(Settings(disk.path), Gathering(), lambda: gzip.compress(b""), 0.2)
        one.take(a_view(*(named(hung(STALLED), f"sglang:{port}") for port in range(5))))
        await asyncio.wait_for(done(one), 5.0)
        assert one.kept().failures["write"] == 5
        errors = [record.error for record in caplog.records]
        assert errors[0] == "the disk has not answered in 0.2 s"
        assert set(errors[1:]) == {"the disk has not answered since the bundle before"}
        assert sum(thread.name == "evidence" for thread in threading.enumerate()) == 1
        disk.thaw()
        name = await one._writing
        assert [bundle.name for bundle in store.bundles(disk.path)] == [name]
        assert [bundle.name for bundle in one.kept().latest.values()] == [name]


async def test_a_listing_that_comes_late_counts_all_the_same(tmp_path):
    """The start does not wait for a disk, and the incident that it finds is not gathered a second time."""
    name = written(tmp_path, at(0).unix, server=NAME)
    one = keeper(tmp_path, Gathering())
    await one.load(within=0.0)
    while not one.kept().bundles:
        await asyncio.sleep(0.01)
    assert one.kept().latest[NAME].name == name


async def test_a_disk_that_does_not_answer_keeps_no_start_waiting(tmp_path, caplog):
    """It is said once, with how long it was waited for."""
    with DeadMount(tmp_path) as mount:
        mount.die()
        one = keeper(mount.path.parent, Gathering())
        await asyncio.wait_for(one.load(within=0.1), 2.0)
        (record,) = caplog.records
        assert (record.getMessage(), record.error) == ("evidence cannot be kept or listed", "no answer in 0.1 s")
    assert one.kept().bundles == 0


async def test_a_start_clears_away_what_was_left_unfinished(tmp_path):
    """An exporter that is killed each time it writes must not fill the disk."""
    part = tmp_path / ".20270115T080000Z-x.part"
    part.mkdir()
    os.utime(part, (1.0, 1.0))
    await keeper(tmp_path, Gathering()).load()
    assert list(tmp_path.iterdir()) == []


async def test_another_directory_counts_at_once(tmp_path):
    """What lies in the one before is told of no more, since no command would find it."""
    written(tmp_path / "before", 1.0)
    written(tmp_path / "after", 2.0, server="vllm:8000")
    one = keeper(tmp_path / "before", Gathering())
    await one.load()
    assert list(one.kept().latest) == ["sglang:30000"]
    one._settings.change(directory=str(tmp_path / "after"))
    one.take(a_view())
    assert one.kept().bundles == 0
    while not one.kept().bundles:
        await asyncio.sleep(0.01)
    assert list(one.kept().latest) == ["vllm:8000"]


async def test_what_is_switched_off_while_it_is_gathered_is_not_written(tmp_path):
    """Whoever switches it off wants no file any more."""
    gathering = Gathering(open_gate=False)
    one = keeper(tmp_path, gathering)
    one.take(a_view(hung(STALLED)))
    await asyncio.sleep(0)
    one._settings.change(enabled=False)
    gathering.gate.set()
    await done(one)
    assert list(tmp_path.iterdir()) == []


async def test_switched_off_it_neither_gathers_nor_tells(tmp_path):
    """No metric of it then."""
    gathering = Gathering()
    one = keeper(tmp_path, gathering, enabled=False)
    one.take(a_view(hung(STALLED)))
    assert one.kept() is None
    assert gathering.asked == []


@pytest.mark.parametrize(
    ("state", "age", "told"),
    [("stalled", 60.0, True), ("stalled", STALLED + 3600.0, False), ("busy", 60.0, False)],
)
def test_the_view_tells_of_the_bundle_of_this_incident_only(state, age, told):
    """Neither of one from last week, nor of one whose server is well again."""
    past = hung(STALLED) if state == "stalled" else serving()
    view = a_view(past, kept=kept(bundle(at(0).unix - age)))
    assert (view.evidence_of(NAME) is not None) == told
