"""Files of another tree are opened as its own processes would see them."""

import os
from pathlib import Path

import pytest

from stallwatch.node.inside import list_names, read_text


@pytest.fixture
def root(tmp_path):
    """Return a tree with a file outside of it."""
    (tmp_path / "outside.txt").write_text("outside")
    (tmp_path / "root" / "etc").mkdir(parents=True)
    (tmp_path / "root" / "etc" / "a.txt").write_text("inside")
    return tmp_path / "root"


@pytest.mark.parametrize("path", ["/etc/a.txt", "etc/a.txt", "/etc/./../etc//a.txt", "/../../etc/a.txt"])
def test_a_file_is_read(root, path):
    """Dots lead nowhere but within the tree."""
    assert read_text(str(root), path, 100) == "inside"


@pytest.mark.parametrize("target", ["a.txt", "/etc/a.txt", "../../../etc/a.txt", "../etc/a.txt"])
def test_links_are_followed_within_the_tree(root, target):
    """An absolute one begins at its root."""
    (root / "etc" / "link").symlink_to(target)
    assert read_text(str(root), "/etc/link", 100) == "inside"


def test_a_link_of_a_mounted_configuration_is_followed(root):
    """Kubernetes mounts such files through two links."""
    (root / "etc" / "..2024").mkdir()
    (root / "etc" / "..2024" / "c.yaml").write_text("x")
    (root / "etc" / "..data").symlink_to("..2024")
    (root / "etc" / "c.yaml").symlink_to("..data/c.yaml")
    assert read_text(str(root), "/etc/c.yaml", 100) == "x"


@pytest.mark.parametrize("target", ["/outside.txt", "../../outside.txt", "../../../../../../../../etc/passwd", "loop"])
def test_no_link_leads_out(root, target):
    """Nor does one that leads to itself end in anything but an error."""
    (root / "etc" / "loop").symlink_to(target)
    with pytest.raises((OSError, ValueError)):
        read_text(str(root), "/etc/loop", 100)


def test_a_link_to_an_absolute_path_of_ours_does_not_reach_it(root, tmp_path):
    """The same path may be there outside."""
    (root / "etc" / "link").symlink_to(tmp_path / "outside.txt")
    with pytest.raises(FileNotFoundError):
        read_text(str(root), "/etc/link", 100)


def test_a_folder_that_is_a_link_out_leads_nowhere(root, tmp_path):
    """Also in the middle of a path."""
    (root / "out").symlink_to(tmp_path)
    with pytest.raises(FileNotFoundError):
        read_text(str(root), "/out/outside.txt", 100)


def test_only_regular_files_are_read(root):
    """A pipe would block, or lose what another is to read."""
    os.mkfifo(root / "pipe")
    for path in ("/pipe", "/etc"):
        with pytest.raises(ValueError, match="not a regular file"):
            read_text(str(root), path, 100)


def test_large_files_are_refused(root):
    """The limit itself still passes."""
    assert read_text(str(root), "/etc/a.txt", 6) == "inside"
    with pytest.raises(ValueError, match="too large"):
        read_text(str(root), "/etc/a.txt", 5)


def test_what_is_no_text_is_refused(root):
    """As a value error, as everything that is wrong with a content."""
    (root / "etc" / "b").write_bytes(b"\xff\xfe")
    with pytest.raises(ValueError, match="decode"):
        read_text(str(root), "/etc/b", 100)


def test_folders_are_listed(root):
    """A missing one is empty."""
    assert list_names(str(root), "/etc") == ["a.txt"]
    assert list_names(str(root), "/nowhere") == []
    assert list_names(str(root), "/etc/a.txt") == []


def test_no_descriptor_is_left_open(root):
    """Neither after success nor after failure."""
    before = len(list(Path("/proc/self/fd").iterdir()))
    read_text(str(root), "/etc/a.txt", 100)
    list_names(str(root), "/nowhere/else")
    assert len(list(Path("/proc/self/fd").iterdir())) == before
