"""A plain file is read, and nothing that stands in its place: neither waited for, nor left open."""

import os

import pytest

from stallwatch.plainfile import read_plain


@pytest.fixture
def places(tmp_path):
    """Have a file, a link to it, a directory and a pipe that nobody writes to."""
    (tmp_path / "file").write_bytes(b"0123456789")
    (tmp_path / "link").symlink_to("file")
    (tmp_path / "folder").mkdir()
    os.mkfifo(tmp_path / "pipe")
    return tmp_path


@pytest.mark.parametrize(("most", "read"), [(4, b"0123"), (10, b"0123456789"), (99, b"0123456789")])
def test_a_file_is_read_up_to_a_bound(places, most, read):
    """By its own name, and by that of a link where links are followed."""
    assert read_plain(places / "file", most) == read_plain(str(places / "link"), most) == read


@pytest.mark.parametrize(
    ("name", "links", "error"),
    [
        ("folder", True, IsADirectoryError),
        ("pipe", True, ValueError),
        ("none", True, FileNotFoundError),
        ("link", False, OSError),
        ("folder", False, IsADirectoryError),
    ],
)
def test_anything_else_is_refused_and_leaves_no_descriptor(places, name, links, error):
    """A probe that reads its CA in the place of a directory must not use up all descriptors."""
    before = len(os.listdir("/proc/self/fd"))
    for _ in range(3):
        with pytest.raises(error):
            read_plain(places / name, 10, links=links)
    assert len(os.listdir("/proc/self/fd")) == before
