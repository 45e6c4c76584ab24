"""How bundles are written, found again and thrown away, and whose files are left alone."""

import os
import stat
import subprocess
from concurrent.futures import ThreadPoolExecutor

import pytest

from incidents import files, written
from small_disks import small_disk
from stallwatch.evidence import store
from stallwatch.evidence.store import MANIFEST


def test_a_bundle_is_found_again(tmp_path):
    """With whose it is and when it was gathered; its name says both."""
    name = written(tmp_path / "evidence", 1_800_000_000.0)
    assert name == "20270115T080000Z-sglang-30000"
    (bundle,) = store.bundles(tmp_path / "evidence")
    assert (bundle.name, bundle.server, bundle.at, bundle.incarnation) == (name, "sglang:30000", 1_800_000_000.0, "a")


def test_only_its_own_user_may_look_into_it(tmp_path):
    """Neither the directory nor a file is for others, whatever the umask."""
    mask = os.umask(0)
    try:
        name = written(tmp_path / "evidence", 1.0)
    finally:
        os.umask(mask)
    modes = {path.name: stat.S_IMODE(path.stat().st_mode) for path in (tmp_path / "evidence").rglob("*")}
    assert modes == {name: 0o700, "summary.md": 0o600, MANIFEST: 0o600}
    assert stat.S_IMODE((tmp_path / "evidence").stat().st_mode) == 0o700


def test_two_bundles_of_one_second_both_stay(tmp_path):
    """The second gets a number, which is still the name of a bundle."""
    names = [written(tmp_path, 1.0), written(tmp_path, 1.0)]
    assert names[1] == f"{names[0]}-2"
    assert [bundle.name for bundle in store.bundles(tmp_path)] == names


def test_two_exporters_write_into_one_directory(tmp_path):
    """At the same second, of the same server: neither takes the other's unfinished one for what is left of a dead."""
    with ThreadPoolExecutor(3) as exporters:
        names = list(exporters.map(lambda _number: written(tmp_path, 1.0), range(60)))
    assert len(set(names)) == 60
    assert {path.name for path in tmp_path.iterdir()} == set(names)
    assert len(store.bundles(tmp_path)) == 60


def test_two_exporters_throw_away_in_one_directory(tmp_path):
    """What the other one has removed is gone, which is no error."""
    for at in range(100):
        written(tmp_path, float(at))
    with ThreadPoolExecutor(3) as exporters:
        left = list(exporters.map(lambda _number: store.prune(tmp_path, 2, 10**9), range(3)))
    assert all([bundle.at for bundle in one] == [98.0, 99.0] for one in left)
    assert len(list(tmp_path.iterdir())) == 2


@pytest.mark.parametrize("server", ["../../etc", "a/b", "..", "\n", "x" * 500, "modèle:1", "sglang:30000@abc"])
def test_no_name_of_a_server_leads_elsewhere(tmp_path, server):
    """What a server is called is no path."""
    directory = tmp_path / "evidence"
    name = written(directory, 1.0, server=server)
    assert store.NAME.fullmatch(name)
    assert [path.name for path in tmp_path.iterdir()] == ["evidence"]
    assert [bundle.server for bundle in store.bundles(directory)] == [server]


def test_the_oldest_are_thrown_away_beyond_the_count(tmp_path):
    """And what is no bundle stays, whatever its name."""
    for at in (1.0, 2.0, 3.0):
        written(tmp_path, at)
    (tmp_path / "19700101T000000Z-mine").mkdir()
    (tmp_path / "notes.txt").write_text("mine")
    assert [bundle.at for bundle in store.prune(tmp_path, 2, 10**9)] == [2.0, 3.0]
    assert [bundle.at for bundle in store.bundles(tmp_path)] == [2.0, 3.0]
    assert {path.name for path in tmp_path.iterdir()} >= {"19700101T000000Z-mine", "notes.txt"}


def test_the_oldest_are_thrown_away_beyond_the_bytes(tmp_path):
    """The newest stays, even alone too large."""
    for at in (1.0, 2.0, 3.0):
        written(tmp_path, at, size=1000)
    assert [bundle.at for bundle in store.prune(tmp_path, 9, 2700)] == [2.0, 3.0]
    assert [bundle.at for bundle in store.prune(tmp_path, 9, 10)] == [3.0]


def test_what_was_just_written_stays_where_the_clock_was_set_back(tmp_path):
    """What seems to be of a later time was written before that, so it goes first."""
    for at in (5000.0, 1300.0):
        written(tmp_path, at)
    name = written(tmp_path, 1400.0)
    assert [bundle.at for bundle in store.prune(tmp_path, 2, 10**9, name)] == [1300.0, 1400.0]
    assert [bundle.at for bundle in store.prune(tmp_path, 1, 10**9, name)] == [1400.0]


def test_what_cannot_be_removed_stays_and_the_next_goes_in_its_place(tmp_path, caplog):
    """It is said, and costs no evidence: a bundle that was written is kept all the same."""
    if os.geteuid() != 0:
        pytest.skip("only root may mount")
    stuck = tmp_path / written(tmp_path, 1.0)
    for at in (2.0, 3.0, 4.0):
        written(tmp_path, at)
    subprocess.run(["mount", "--bind", str(stuck), str(stuck)], check=True)
    try:
        assert [bundle.at for bundle in store.prune(tmp_path, 2, 10**9)] == [1.0, 4.0]
    finally:
        subprocess.run(["umount", "--lazy", str(stuck)], check=True)
    (record,) = caplog.records
    assert (record.getMessage(), record.bundle) == ("evidence cannot be thrown away", stuck.name)


def test_one_who_is_killed_while_removing_leaves_nothing_for_good(tmp_path):
    """A bundle that is being removed is none any more, and is cleared away later on."""
    name = written(tmp_path, 1.0)
    part = (tmp_path / name).rename(tmp_path / f".{name}.removed.part")
    (part / MANIFEST).unlink()
    os.utime(part, (1.0, 1.0))
    store.clear(tmp_path)
    assert list(tmp_path.iterdir()) == []
    store.clear(tmp_path / "none")


def test_a_manifest_that_is_a_pipe_or_a_link_keeps_nobody_waiting(tmp_path):
    """It is no manifest."""
    for at, make in ((1.0, os.mkfifo), (2.0, lambda path: path.symlink_to("/dev/zero")), (3.0, os.mkdir)):
        manifest = tmp_path / written(tmp_path, at) / MANIFEST
        manifest.unlink()
        make(manifest)
    assert store.bundles(tmp_path) == []


def test_a_link_is_neither_a_bundle_nor_followed(tmp_path):
    """Whoever could put one there must not have files elsewhere removed."""
    elsewhere = tmp_path / "elsewhere"
    name = written(elsewhere, 1.0)
    directory = tmp_path / "evidence"
    written(directory, 5.0)
    (directory / name).symlink_to(elsewhere / name)
    assert [bundle.at for bundle in store.prune(directory, 1, 10**9)] == [5.0]
    assert [bundle.at for bundle in store.bundles(elsewhere)] == [1.0]


def test_what_a_killed_writer_left_is_no_bundle_and_goes(tmp_path):
    """A part is never listed, and the next bundle clears it away."""
    part = tmp_path / ".20270115T080000Z-x.part"
    part.mkdir()
    (part / MANIFEST).write_bytes(files()[MANIFEST])
    assert store.bundles(tmp_path) == []
    store.prune(tmp_path, 5, 10**9)
    assert part.exists()  # somebody may still be at it
    os.utime(part, (1.0, 1.0))
    store.prune(tmp_path, 5, 10**9)
    assert not part.exists()


@pytest.mark.parametrize("text", [b"", b"{", b"[1]", b'{"server": 1}', b"[" * 100_000, b"\xff"])
def test_a_broken_manifest_is_no_bundle(tmp_path, text):
    """It is neither listed nor removed."""
    name = written(tmp_path, 1.0)
    (tmp_path / name / MANIFEST).write_bytes(text)
    assert store.bundles(tmp_path) == []
    store.prune(tmp_path, 1, 10**9)
    assert (tmp_path / name).is_dir()


def test_a_full_disk_leaves_no_half_bundle(tmp_path):
    """It is an error for the one who writes, and what was kept before is still there."""
    disk = tmp_path / "disk"
    with small_disk(disk):
        disk.chmod(0o700)
        name = written(disk, 1.0)
        with pytest.raises(OSError, match="No space left"):
            written(disk, 2.0, size=1 << 20)
        assert [path.name for path in disk.iterdir()] == [name]


def test_a_directory_into_which_anybody_may_write_is_refused(tmp_path):
    """Else somebody could put a link in the place of a file."""
    tmp_path.chmod(0o777)
    with pytest.raises(PermissionError, match="others may write"):
        written(tmp_path, 1.0)


def test_a_directory_that_is_not_there_holds_nothing(tmp_path):
    """The first start lists it before it is made."""
    assert store.bundles(tmp_path / "none") == []
