"""Files of another tree are opened as its own processes would see them."""

import errno
import os
import threading
from contextlib import suppress
from pathlib import Path

import pytest

from stallwatch.node.inside import (
    held,
    list_names,
    open_regular,
    read_text,
    resolve_by_hand,
    resolve_by_kernel,
)


@pytest.fixture
def root(tmp_path):
    """Return a tree with a file outside of it."""
    (tmp_path / "outside.txt").write_text("outside")
    (tmp_path / "root" / "etc").mkdir(parents=True)
    (tmp_path / "root" / "etc" / "a.txt").write_text("inside")
    return tmp_path / "root"


@pytest.fixture(params=[resolve_by_kernel, resolve_by_hand], ids=["kernel", "hand"])
def read(request):
    """Return a reader that has paths resolved by the kernel, and by hand as where the kernel cannot."""
    return lambda root, path, limit=100: read_text(str(root), path, limit, resolve=request.param)


@pytest.mark.parametrize("path", ["/etc/a.txt", "etc/a.txt", "/etc/./../etc//a.txt", "/../../etc/a.txt"])
def test_a_file_is_read(read, root, path):
    """Dots lead nowhere but within the tree."""
    assert read(root, path) == "inside"


@pytest.mark.parametrize("target", ["a.txt", "/etc/a.txt", "../../../etc/a.txt", "../etc/a.txt"])
def test_links_are_followed_within_the_tree(read, root, target):
    """An absolute one begins at its root."""
    (root / "etc" / "link").symlink_to(target)
    assert read(root, "/etc/link") == "inside"


def test_a_link_of_a_mounted_configuration_is_followed(read, root):
    """Kubernetes mounts such files through two links."""
    (root / "etc" / "..2024").mkdir()
    (root / "etc" / "..2024" / "c.yaml").write_text("x")
    (root / "etc" / "..data").symlink_to("..2024")
    (root / "etc" / "c.yaml").symlink_to("..data/c.yaml")
    assert read(root, "/etc/c.yaml") == "x"


@pytest.mark.parametrize("target", ["/outside.txt", "../../outside.txt", "../../../../../../../../etc/passwd", "loop"])
def test_no_link_leads_out(read, root, target):
    """Nor does one that leads to itself end in anything but an error."""
    (root / "etc" / "loop").symlink_to(target)
    with pytest.raises((OSError, ValueError)):
        read(root, "/etc/loop")


def test_a_link_to_an_absolute_path_of_ours_does_not_reach_it(read, root, tmp_path):
    """The same path may be there outside."""
    (root / "etc" / "link").symlink_to(tmp_path / "outside.txt")
    with pytest.raises(FileNotFoundError):
        read(root, "/etc/link")


def test_a_folder_that_is_a_link_out_leads_nowhere(read, root, tmp_path):
    """Also in the middle of a path."""
    (root / "out").symlink_to(tmp_path)
    with pytest.raises(FileNotFoundError):
        read(root, "/out/outside.txt")


def test_only_regular_files_are_read(read, root):
    """A pipe would block, or lose what another is to read."""
    os.mkfifo(root / "pipe")
    for path in ("/pipe", "/etc"):
        with pytest.raises(ValueError, match="not a regular file"):
            read(root, path)


def test_large_files_are_refused(read, root):
    """The limit itself still passes."""
    assert read(root, "/etc/a.txt", 6) == "inside"
    with pytest.raises(ValueError, match="too large"):
        read(root, "/etc/a.txt", 5)


def test_what_is_no_text_is_refused(read, root):
    """As a value error, as everything that is wrong with a content."""
    (root / "etc" / "b").write_bytes(b"\xff\xfe")
    with pytest.raises(ValueError, match="decode"):
        read(root, "/etc/b")


def test_folders_are_listed(root):
    """A missing one is empty."""
    assert list_names(str(root), "/etc") == ["a.txt"]
    assert list_names(str(root), "/nowhere") == []
    assert list_names(str(root), "/etc/a.txt") == []


def test_no_descriptor_is_left_open(read, root):
    """Neither after success nor after failure."""
    before = len(list(Path("/proc/self/fd").iterdir()))
    read(root, "/etc/a.txt")
    list_names(str(root), "/nowhere/else")
    assert len(list(Path("/proc/self/fd").iterdir())) == before


def test_a_magic_link_is_not_followed(read, root):
    """Those of /proc lead anywhere, whatever they are called."""
    (root / "etc" / "link").symlink_to(f"/proc/{os.getpid()}/root/etc/passwd")
    with pytest.raises(OSError, match="No such file"):
        read(root, "/etc/link")
    with pytest.raises(OSError, match="Too many levels"):
        read_text("/", "/proc/self/root/etc/passwd", 1 << 20, resolve=resolve_by_kernel)


def test_a_path_that_never_ends_is_refused(read, root):
    """It is longer than the kernel allows, or grows with every link."""
    with pytest.raises(OSError, match=r"too long|Too many"):
        read(root, "/etc/" * 2000 + "a.txt")
    for number in range(60):
        (root / f"l{number}").symlink_to(f"l{number + 1}/" * 30)
    with pytest.raises(OSError, match=r"Too many|too long"):
        read(root, "/l0")


def test_what_the_kernel_makes_up_is_not_read():
    """Such files state no size, and reading one may take from another what it holds."""
    assert read_text("/", f"/proc/{os.getpid()}/status", 100) == ""


def test_a_file_that_the_process_may_not_read_is_not_shown(root):
    """Its status is asked for, before anything is opened."""
    with pytest.raises(ValueError, match="not readable for its process"):
        read_text(str(root), "/etc/a.txt", 100, lambda status: status.st_uid != os.getuid())


@pytest.mark.parametrize("resolve", [resolve_by_kernel, resolve_by_hand])
def test_a_path_over_a_link_can_be_refused(root, resolve):
    """Wherever in the path it stands."""
    (root / "etc" / "link").symlink_to("a.txt")
    (root / "conf").symlink_to("etc")
    for path in ("/etc/link", "/conf/a.txt"):
        with (
            pytest.raises(OSError, match="Too many levels") as refused,
            held(str(root), path, links=False, resolve=resolve),
        ):
            pass
        assert refused.value.errno == errno.ELOOP
    with held(str(root), "/etc/a.txt", links=False, resolve=resolve) as handle:
        descriptor = open_regular(handle)
        assert os.read(descriptor, 100) == b"inside"
        os.close(descriptor)


def test_a_kernel_without_openat2_is_done_without(root, monkeypatch):
    """So are sandboxes that forbid it."""
    from stallwatch.node import inside  # noqa: PLC0415  (the module whose step is replaced)

    def refuse(_root, _path, _links):
        raise OSError(errno.ENOSYS, os.strerror(errno.ENOSYS))

    monkeypatch.setattr(inside, "resolve_by_kernel", refuse)
    assert read_text(str(root), "/etc/a.txt", 100) == "inside"


def test_nothing_can_be_swapped_between_the_look_and_the_opening(read, root, tmp_path):
    """While the path is a file, a link out, and a pipe in turn, only the file is read and the pipe never opened."""
    pipe, path, done = tmp_path / "pipe", root / "etc" / "swapped", threading.Event()
    os.mkfifo(pipe)
    opened = []

    def swap():
        part, turns = root / "etc" / "part", 0
        makers = (
            lambda: part.write_text("inside"),
            lambda: part.symlink_to("../../outside.txt"),
            lambda: part.symlink_to(tmp_path / "outside.txt"),
            lambda: os.link(pipe, part),
        )
        while not done.is_set():
            makers[turns % len(makers)]()
            part.replace(path)
            part.unlink(missing_ok=True)  # a rename of one hard link over another does nothing
            with suppress(OSError):
                opened.append(os.open(pipe, os.O_WRONLY | os.O_NONBLOCK))  # succeeds while somebody reads it
            turns += 1

    thread = threading.Thread(target=swap)
    thread.start()
    found, reads = set(), 0
    try:
        while reads < 3000 or not {"inside", "ValueError"} <= found:
            reads += 1
            try:
                found.add(read(root, "/etc/swapped"))
            except (OSError, ValueError) as error:
                found.add(type(error).__name__)
    finally:
        done.set()
        thread.join()
    assert found <= {"inside", "", "ValueError", "FileNotFoundError"}
    assert opened == []
