"""Tests of the load snapshots, in the layout in which SGLang writes them."""

import asyncio
import os
from dataclasses import replace
from pathlib import Path

import pytest

from contained import as_root, contained
from engine_pages import SLOT, load, pack
from procfs_tree import CountingRead, ProcTree
from stallwatch.loads import MOST_SLOTS, SEARCH_AGAIN_AFTER, Load, LoadFiles, read_loads
from stallwatch.node.inside import held_itself
from stallwatch.node.procfs import TICKS_PER_SECOND, Procfs
from stallwatch.snapshot import Launch, Process, Server

NAME = "sglang_loads_ipc-1.sock_0123abcd.shm"
UID = os.getuid()


def read_at(path, uid, pread=os.pread):
    """Read what lies there, be it a link."""
    with held_itself(path) as held:
        return read_loads(held, uid, pread)


def written(folder, data, name=NAME):
    """Write a snapshot file."""
    path = folder / name
    path.write_bytes(data)
    return str(path)


def test_ranks_are_read_from_their_slots(tmp_path):
    """Each rank's slot is read; what has its default was left out by the writer."""
    slots = [load(rank, 1000.5 + rank, num_running_reqs=rank, num_waiting_reqs=7) for rank in range(3)]
    path = written(tmp_path, pack(*slots, load(3, 2000)))
    expected = [Load(str(rank), 1000.5 + rank, float(rank), 7.0) for rank in range(3)]
    assert read_at(path, UID) == (*expected, Load("3", 2000.0, 0.0, 0.0))


def test_a_small_slot_is_read(tmp_path):
    """The size of a slot is the one that the header names."""
    assert len(read_at(written(tmp_path, pack(load(0, 1.0), load(1, 1.0), size=256)), UID)) == 2


@pytest.mark.parametrize(
    "slot",
    [
        None,
        {"dp_rank": 1},
        load(0, 1000.0),
        load(1, 0.0),
        load(1, -5.0),
        load(1, float("nan")),
        load(1, float("inf")),
        load(1, 1000.0, num_running_reqs=-1),
        load(1, 1000.0, num_running_reqs="many"),
        {"timestamp": [1.0], "dp_rank": 1},
        b"\xc1 no msgpack",
        b"\x81",
        b"\x90",
    ],
)
def test_a_slot_that_says_nothing_is_left_out(tmp_path, slot):
    """One that is being written, was never written, is another rank's or is broken does not hide its neighbours."""
    path = written(tmp_path, pack(load(0, 1000.0), slot, load(2, 1000.0)))
    assert [found.dp_rank for found in read_at(path, UID)] == ["0", "2"]


def test_a_length_beyond_the_slot_is_not_followed(tmp_path):
    """A length that would reach into the next slot is broken."""
    data = bytearray(pack(load(0, 1000.0), load(1, 1000.0)))
    data[12:16] = (SLOT - 3).to_bytes(4, "little")
    assert [found.dp_rank for found in read_at(written(tmp_path, bytes(data)), UID)] == ["1"]


def test_a_slot_that_is_being_written_is_looked_at_again(tmp_path):
    """A writer that is done by the second look is read."""
    path = written(tmp_path, pack(None))
    looks = []

    def pread(handle, size, offset):
        looks.append(offset)
        if len(looks) == 3:
            written(tmp_path, pack(load(0, 1000.0)))
        return os.pread(handle, size, offset)

    assert [found.dp_rank for found in read_at(path, UID, pread)] == ["0"]
    assert looks == [0, 12, 12, 16, 12]


def test_a_slot_that_changes_while_it_is_read_is_read_again(tmp_path):
    """A payload whose length has changed behind our back is not trusted."""
    path = written(tmp_path, pack(load(0, 1000.0)))
    looks = []

    def pread(handle, size, offset):
        looks.append(offset)
        data = os.pread(handle, size, offset)
        if len(looks) == 3:
            written(tmp_path, pack(load(0, 2000.0, num_running_reqs=5)))
        return data

    (found,) = read_at(path, UID, pread)
    assert (found.timestamp, found.running) == (2000.0, 5.0)


@pytest.mark.parametrize(
    "data",
    [
        b"",
        b"SLNS\x02",
        pack(load(0, 1.0), magic=b"ELF!"),
        pack(load(0, 1.0), version=1),
        pack(load(0, 1.0), size=SLOT * 2),
        pack(size=4, count=1),
        pack(count=MOST_SLOTS + 1),
    ],
)
def test_a_file_of_another_layout_is_refused(tmp_path, data):
    """What has no header of the known layout is not read."""
    with pytest.raises(ValueError, match="header"):
        read_at(written(tmp_path, data), UID)


@pytest.mark.parametrize("end", [12, 14, 20, SLOT + 12, SLOT + 30])
def test_a_truncated_file_gives_what_is_whole(tmp_path, end):
    """A file that ends early has only the slots that it holds."""
    path = written(tmp_path, pack(load(0, 1000.0), load(1, 1000.0))[:end])
    assert [found.dp_rank for found in read_at(path, UID)] == (["0"] if end > SLOT else [])


def test_only_a_regular_file_of_the_owner_is_read(tmp_path):
    """A link, a pipe, a folder and a file of another user are refused, without waiting for anybody."""
    path = written(tmp_path, pack(load(0, 1000.0)))
    with pytest.raises(ValueError, match="not a regular file of its scheduler"):
        read_at(path, UID + 1)
    os.symlink(path, tmp_path / "link")
    os.mkfifo(tmp_path / "pipe")
    for name in ("link", "pipe", ""):
        with pytest.raises(ValueError, match="not a regular file"):
            read_at(str(tmp_path / name), UID)


class Node:
    """A server with two schedulers, of which the second holds a snapshot file open."""

    def __init__(self, folder):
        self.shm = folder / "shm"
        self.shm.mkdir()
        self.path = written(self.shm, pack(load(0, 1000.0)))
        self.tree = ProcTree(folder)
        self.tree._link("self/ns/mnt", "mnt:[1]")
        for pid in (70, 71):
            self.tree.add(pid, "python", start=50.0, fds={0: "/dev/null", 9: "socket:[5]"})
            self.tree._link(f"{pid}/ns/mnt", "mnt:[1]")
        self.tree.open(71, 33, self.path)
        self.reads = CountingRead()
        self.files = LoadFiles(Procfs(str(self.tree.root), read=self.reads), str(self.shm))

    def server(self, *, role="scheduler", start=50.0, incarnation="1"):
        """Describe the server."""
        ticks = round(start * TICKS_PER_SECOND)
        processes = tuple(Process(pid, ticks, start, role, f"scheduler_TP{pid - 70}") for pid in (70, 71))
        return Server("s", "sglang", Launch(), processes, incarnation=incarnation)

    def ranks(self, now=0.0, **server):
        """Return the ranks whose loads are found."""
        return [found.dp_rank for found in asyncio.run(self.files.read(self.server(**server), now))]


@pytest.fixture
def node(tmp_path):
    """Give such a server."""
    return Node(tmp_path)


def test_the_file_that_a_scheduler_holds_open_is_read(node):
    """The descriptor ties the file to the server, and is known from then on."""
    written(node.shm, pack(load(0, 1.0), load(1, 1.0)), "sglang_loads_other_00000000.shm")
    assert node.ranks() == ["0"]
    node.reads.take()
    assert node.ranks() == ["0"]
    assert node.reads.take() == {"stat": 1}


@pytest.mark.parametrize(
    "name",
    [
        "sglang_loads_ipc_0123abcd.shm (deleted)",
        "sglang_loads_../x_0123abcd.shm",
        "sglang_loads_0123abcd.shm",
        "psm_0123abcd",
        "../shm2/sglang_loads_ipc_0123abcd.shm",
    ],
)
def test_only_a_snapshot_file_in_its_place_is_taken(node, name):
    """A descriptor of anything else, or of a file that is gone, ties nothing."""
    node.tree.open(71, 33, f"{node.shm}/{name}")
    assert node.ranks() == []


def test_a_file_that_no_scheduler_holds_is_not_used(node):
    """The web process and other roles hold the file too where it is fed in another way."""
    assert node.ranks(role="launcher") == []


@pytest.mark.parametrize("kind", ["tmpfs", "fuse", "overlay", ""])
def test_in_another_mount_namespace_only_an_open_file_of_a_tmpfs_is_read(node, kind):
    """The same path in a container is another file, and its file system may block whoever asks it."""
    node.tree._link("71/ns/mnt", "mnt:[2]")
    assert node.ranks() == []
    with open(node.path) as file:
        lines = Path(f"/proc/self/fdinfo/{file.fileno()}").read_text().splitlines()
    mount = next(line.split()[1] for line in lines if line.startswith("mnt_id"))
    line = f"{mount} 1 0:5 / /dev/shm rw,nosuid shared:7 - {kind} shm rw,size=65536k\n"
    others = f"1{mount} 1 0:6 / / rw - tmpfs x rw\n"
    (node.tree.root / "71" / "mountinfo").write_text(others + line if kind else others)
    node.files.forget([])
    assert node.ranks() == (["0"] if kind == "tmpfs" else [])


@as_root
async def test_a_real_container_with_shared_memory_of_its_own(tmp_path):
    """Nothing of it is in ours, and a file of another user is not its own there either."""
    name = f"/dev/shm/sglang_loads_stallwatch-{os.getpid()}_0123abcd.shm"
    data = pack(load(0, 1000.0, num_running_reqs=3), size=256).hex()
    write = f"f = open('{name}', 'wb'); f.write(bytes.fromhex('{data}')); f.flush()"
    with contained(tmp_path / "a", SHM="1", RANK=write) as inside:
        assert not os.path.exists(name)
        server = inside.found()
        assert await LoadFiles().read(server, 0.0) == (Load("0", 1000.0, 3.0, 0.0),)
    with contained(tmp_path / "b", SHM="1", RANK=f"{write}; import os; os.fchown(f.fileno(), 65534, 65534)") as inside:
        assert await LoadFiles().read(inside.found(), 0.0) == ()


def test_another_process_with_the_same_pid_ties_nothing(node):
    """A pid that was used again is not the server's."""
    assert node.ranks(start=51.0) == []


def test_a_file_of_another_user_is_not_used(node):
    """A scheduler that holds a file that is not its own proves nothing by it."""
    real = os.stat_result((0o100600, 0, 0, 1, UID + 1, 0, 0, 0, 0, 0))
    files = LoadFiles(node.files.procfs, str(node.shm), stat=lambda _path: real)
    assert asyncio.run(files.read(node.server(), 0.0)) == ()
    assert node.ranks() == ["0"]


def test_a_process_that_must_not_be_seen_ties_nothing(node):
    """Without the right to read links there is no snapshot, and no error."""

    class Forbidden(Procfs):
        def fds(self, pid):
            raise PermissionError

    assert asyncio.run(LoadFiles(Forbidden(str(node.tree.root)), str(node.shm)).read(node.server(), 0.0)) == ()


def test_a_search_without_success_is_repeated_after_a_while(node):
    """The file is made late in a start, and looking at all descriptors each time would cost too much."""
    node.tree.open(71, 33, "/dev/null")
    assert node.ranks(now=100.0) == []
    node.tree.open(71, 33, node.path)
    assert node.ranks(now=100.0 + SEARCH_AGAIN_AFTER - 1) == []
    assert node.ranks(now=100.0 + SEARCH_AGAIN_AFTER) == ["0"]


def test_a_search_looks_at_so_many_descriptors_of_all_schedulers_together(node):
    """Schedulers with very many files do not keep the searches for others waiting for long."""

    class Full(Procfs):
        looked = 0

        def fds(self, pid):
            return [*range(100, 5000), 33]

        def link(self, pid, name):
            Full.looked += name.startswith("fd/")
            return super().link(pid, name)

    assert asyncio.run(LoadFiles(Full(str(node.tree.root)), str(node.shm)).read(node.server(), 0.0)) == ()
    assert 0 < Full.looked < 5000


async def test_the_searches_of_many_servers_hold_nothing_up(node):
    """They come one after another and in steps, between which the event loop goes on with what else is due."""
    looked, most = 0, 0

    class Full(Procfs):
        def fds(self, pid):
            return range(100, 1100)

        def link(self, pid, name):
            nonlocal looked
            looked += 1
            return "/dev/null"

    async def count():
        nonlocal looked, most
        while True:
            looked, most = 0, max(most, looked)
            await asyncio.sleep(0)

    counting = asyncio.create_task(count())
    files = LoadFiles(Full(str(node.tree.root)), str(node.shm))
    servers = [replace(node.server(), name=f"s{number}") for number in range(64)]
    assert await asyncio.gather(*(files.read(server, 0.0) for server in servers)) == [()] * 64
    counting.cancel()
    assert 0 < most < 1000


def test_a_new_life_or_a_forgotten_name_is_searched_at_once(node):
    """Patience is for one life of a server only."""
    node.tree.open(71, 33, "/dev/null")
    assert node.ranks(now=100.0) == []
    node.tree.open(71, 33, node.path)
    assert node.ranks(now=101.0, incarnation="2") == ["0"]
    node.files.forget(["s"])
    node.tree.open(71, 33, "/dev/null")
    assert node.ranks(now=102.0, incarnation="2") == []
    node.tree.open(71, 33, node.path)
    node.files.forget([])
    assert node.ranks(now=102.0, incarnation="2") == ["0"]


def test_a_descriptor_that_is_closed_unties(node):
    """A file whose scheduler is gone is not read on."""
    assert node.ranks(now=100.0) == ["0"]
    node.tree.remove(71)
    assert node.ranks(now=101.0) == []


def test_a_real_process_and_a_real_folder():
    """A process such as this one, as scheduler, is found to hold a file in shared memory."""
    path = f"/dev/shm/sglang_loads_stallwatch-test-{os.getpid()}_0123abcd.shm"
    stat = Procfs().stat(os.getpid())
    process = Process(stat.pid, stat.start_ticks, stat.started, "scheduler", "scheduler_TP0", "TP0")
    with open(path, "wb") as file:
        try:
            file.write(pack(load(0, 1000.0)))
            file.flush()
            loads = asyncio.run(LoadFiles().read(Server("s", "sglang", Launch(), (process,)), 0.0))
        finally:
            os.unlink(path)
    assert loads == (Load("0", 1000.0, 0.0, 0.0),)
