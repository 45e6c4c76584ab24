"""A bundle becomes one file: everything is in it, redacted once more, and the sums tell whether it is whole."""

import gzip
import hashlib
import json
import os
import tarfile

import pytest

from incidents import written
from small_disks import small_disk
from stallwatch.config import ConfigError
from stallwatch.evidence.packing import SUMS, pack
from stallwatch.recordingfile import LONGEST_LINE

SECRET = "sk-canary00000000000000"


@pytest.fixture
def bundle(tmp_path):
    """Have a bundle in which secrets stand that its writer did not know."""
    path = tmp_path / "evidence" / written(tmp_path / "evidence", 1_800_000_000.0)
    (path / "summary.md").write_text(f"it was started with --api-key {SECRET}\n")
    (path / "lines.json").write_text(json.dumps({"lines": [{"text": f"api_key='{SECRET}'", "tokens": 5}]}))
    (path / "environment.json").write_text(json.dumps({"HF_TOKEN": "plain-words", "NCCL_DEBUG": "INFO"}))
    with gzip.open(path / "recording.jsonl.gz", "wt") as lines:
        lines.write(json.dumps({"moment": 1, "detail": f"Bearer {SECRET}"}) + "\n" + '{"moment": ')
    return path


def unpacked(target):
    """Return the files of a pack by their names."""
    with tarfile.open(target) as archive:
        return {entry.name: archive.extractfile(entry).read() for entry in archive.getmembers()}


def test_all_files_are_in_it_with_their_sums(bundle, tmp_path):
    """In a folder of the bundle's name; the sums are those of what is in the pack."""
    names = pack(bundle, tmp_path / "out.tar.gz")
    files = unpacked(tmp_path / "out.tar.gz")
    assert set(files) == {f"{bundle.name}/{name}" for name in names}
    assert set(names) == {path.name for path in bundle.iterdir()} | {SUMS}
    sums = dict(reversed(line.split("  ")) for line in files[f"{bundle.name}/{SUMS}"].decode().splitlines())
    assert sums == {name: hashlib.sha256(files[f"{bundle.name}/{name}"]).hexdigest() for name in names if name != SUMS}


def test_what_looks_like_a_secret_is_hidden_once_more(bundle, tmp_path):
    """In text, in JSON, by the name of its key, and in the recording; numbers and the rest stay."""
    pack(bundle, tmp_path / "out.tar.gz")
    files = {name.rpartition("/")[2]: data for name, data in unpacked(tmp_path / "out.tar.gz").items()}
    recording = gzip.decompress(files["recording.jsonl.gz"])
    assert SECRET.encode() not in b"".join([*files.values(), recording])
    assert b"plain-words" not in files["environment.json"]
    assert json.loads(files["lines.json"])["lines"][0]["tokens"] == 5
    assert json.loads(files["environment.json"])["NCCL_DEBUG"] == "INFO"
    assert [json.loads(line)["moment"] for line in recording.splitlines()] == [1]


def test_no_file_is_overwritten(bundle, tmp_path):
    """The pack of another incident may have been called the same."""
    (tmp_path / "out.tar.gz").write_text("mine")
    with pytest.raises(ConfigError, match="is there already"):
        pack(bundle, tmp_path / "out.tar.gz")
    assert (tmp_path / "out.tar.gz").read_text() == "mine"


BROKEN = gzip.compress(b'{"moment": 1}\n' * 999, mtime=0)[:-20] + b"\xff" * 30


@pytest.mark.parametrize(("name", "data"), [("a.json", b"{"), ("a.jsonl.gz", b"no gzip"), ("a.jsonl.gz", BROKEN)])
def test_a_file_that_is_not_what_it_says_is_named(bundle, tmp_path, name, data):
    """It cannot be redacted, so it is not passed on, and neither is the rest."""
    (bundle / name).write_bytes(data)
    with pytest.raises(ConfigError, match=f"{name}.*: cannot be (un)?packed"):
        pack(bundle, tmp_path / "out.tar.gz")
    assert not (tmp_path / "out.tar.gz").exists()


def test_a_recording_that_unpacks_to_far_too_much_is_refused(bundle, tmp_path):
    """Before it is held in memory."""
    with gzip.open(bundle / "recording.jsonl.gz", "wb") as lines:
        lines.write(b" " * (LONGEST_LINE + 1))
    with pytest.raises(ConfigError, match="longer than"):
        pack(bundle, tmp_path / "out.tar.gz")


def test_a_full_disk_leaves_no_half_pack(bundle, tmp_path):
    """Else the next try would find a file that is there already."""
    (bundle / "summary.md").write_bytes(os.urandom(200_000))
    disk = tmp_path / "disk"
    with small_disk(disk):
        with pytest.raises(ConfigError, match="No space left"):
            pack(bundle, disk / "out.tar.gz")
        assert list(disk.iterdir()) == []


def test_a_bundle_that_is_thrown_away_meanwhile_is_named(bundle, tmp_path):
    """The exporter goes on while a person packs."""
    bundle.rename(bundle.with_name("gone"))
    with pytest.raises(ConfigError, match=f"{bundle.name}: cannot be packed"):
        pack(bundle, tmp_path / "out.tar.gz")


def test_links_are_left_out(bundle, tmp_path):
    """A link would bring in a file of the node."""
    (bundle / "link.txt").symlink_to("/etc/passwd")
    assert "link.txt" not in pack(bundle, tmp_path / "out.tar.gz")
