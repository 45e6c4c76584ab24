"""Tests of the process collector, against real children and against a /proc made of files."""

import contextlib
import dataclasses
import json
import os
import signal
import subprocess
import sys
from pathlib import Path

import msgspec
import psutil
import pytest

from stallwatch.collectors.process import (
    MISSING_RIGHT,
    STATES,
    ProcessReading,
    families,
    reader,
    target,
)
from stallwatch.snapshot import Failure, Launch, Moment, Process, Server

TICKS = os.sysconf("SC_CLK_TCK")
PAGE = os.sysconf("SC_PAGE_SIZE")
MIB = 1 << 20
NOTHING = frozenset()


@pytest.fixture(autouse=True)
def _keep_psutil(monkeypatch):
    """Let psutil look at the real /proc again after each test."""
    monkeypatch.setattr(psutil, "PROCFS_PATH", "/proc")


class Clock:
    """Stands still until it is told to go on."""

    def __init__(self):
        self.now = 100.0

    def __call__(self):
        """Return the time."""
        return self.now


def entry(pid, start_ticks=7, *, name="scheduler_TP0", rank="TP0", tree=(), compilers=()):
    """Describe a process as the exporter asks for it."""
    return {
        "pid": pid,
        "start_ticks": start_ticks,
        "name": name,
        "role": name.partition("_")[0],
        "rank": rank,
        "started": start_ticks / TICKS,
        "tree": list(tree),
        "compilers": list(compilers),
    }


def asked(*entries, server="s"):
    """Ask for these processes of one server."""
    return [{"server": server, "processes": list(entries)}]


class FakeProc:
    """A /proc made of files, in which whatever must not be opened blocks for ever."""

    def __init__(self, root):
        self.root = root
        self.clock = Clock()
        self.notes = []
        self.read = reader({"procfs": str(root)}, self.notes.append, self.clock)

    def put(self, pid, parent=1, *, start=7, state="S", cpu=0, reaped=0, faults=(0, 0, 0, 0), **other):
        """Write one process; `faults` are minor, minor of the reaped, major and major of the reaped."""
        here = self.root / str(pid)
        (here / "fd").mkdir(parents=True, exist_ok=True)
        numbers = [parent, 1, 1, 0, -1, 0, *faults, cpu, 0, reaped, 0, 20, 0, 1, 0, start, *[0] * 30]
        (here / "stat").write_text(f"{pid} (sglang::) R sc) {state} {' '.join(map(str, numbers))}\n")
        rss, file_kib, threads = other.get("rss", 0), other.get("file_kib"), other.get("threads", 1)
        status = f"Name:\tx\n{'' if file_kib is None else f'RssFile:{file_kib:>9} kB'}\nThreads:\t{threads}\n"
        (here / "status").write_text(status + "voluntary_ctxt_switches:\t11\nnonvoluntary_ctxt_switches:\t3\n")
        (here / "statm").write_text(f"{rss // PAGE} {rss // PAGE} 0 0 0 0 0\n")
        (here / "wchan").write_text(other.get("wchan", "0"))
        rchar, read, write = other.get("io", (0, 0, 0))
        pairs = f"rchar: {rchar}\nwchar: 0\nsyscr: 0\nsyscw: 0\nread_bytes: {read}\nwrite_bytes: {write}\n"
        (here / "io").write_text(pairs)
        for name in ("cmdline", "environ", "maps", "smaps", "smaps_rollup"):
            with contextlib.suppress(FileExistsError):
                os.mkfifo(here / name)

    def end(self, pid):
        """Take a process away."""
        for file in sorted((self.root / str(pid)).glob("*")):
            if not file.is_dir():
                file.unlink()

    def look(self, *entries, skip=NOTHING):
        """Read these processes of one server: samples by name, its tree, failures."""
        reading, failures = self.read(asked(*entries), skip)
        assert {sample.server for sample in reading.processes} <= {"s"}
        tree = reading.trees[0] if reading.trees else None
        return {sample.process: sample for sample in reading.processes}, tree, failures


@pytest.fixture
def proc(tmp_path):
    """Give an empty /proc."""
    return FakeProc(tmp_path)


def test_big_numbers_are_kept(proc):
    """A scheduler with 425 GiB of shared weights, 155 CPU minutes and 205 threads reads as that."""
    proc.put(10, cpu=155 * 60 * TICKS, rss=425 << 30, file_kib=400 << 20, threads=205, wchan="futex_do_wait")
    samples, tree, failures = proc.look(entry(10))
    sample = samples["scheduler_TP0"]
    assert failures == ()
    assert (sample.cpu_seconds, sample.resident_bytes, sample.threads) == (9300.0, 425 << 30, 205)
    assert sample.resident_file_bytes == tree.resident_file_bytes == 400 << 30
    assert (sample.state, sample.wchan) == ("S", "futex_do_wait")
    assert (sample.voluntary_switches, sample.involuntary_switches) == (11, 3)


def test_files_that_can_block_are_never_opened_and_each_read_is_noted(proc):
    """A look ends although cmdline, environ, maps and smaps would block, and says before what it reads."""
    proc.put(10)
    proc.put(11, parent=10)
    proc.look(entry(10, tree=[11]))
    assert set(proc.notes) == {"pid 10", "pid 11"}


def test_cpu_ratio_is_that_of_the_last_interval(proc):
    """The ratio is unknown at first sight and then tells of the last interval alone."""
    proc.put(10, cpu=1000 * TICKS)
    ratios = [proc.look(entry(10))[0]["scheduler_TP0"].cpu_ratio]
    for seconds, cores in ((2, 0.5), (4, 2.0), (1, 0.0)):
        before = float(proc.look(entry(10))[0]["scheduler_TP0"].cpu_seconds)
        proc.clock.now += seconds
        proc.put(10, cpu=round((before + seconds * cores) * TICKS))
        ratios.append(proc.look(entry(10))[0]["scheduler_TP0"].cpu_ratio)
    assert ratios == [None, 0.5, 2.0, 0.0]


def test_another_process_with_the_same_pid_is_another(proc):
    """A pid that was used again is absent under the old identity and begins anew under its own."""
    proc.put(10, start=7, cpu=500)
    proc.look(entry(10, 7))
    proc.clock.now += 1
    proc.put(10, start=99, cpu=600)
    sample = proc.look(entry(10, 99))[0]["scheduler_TP0"]
    assert (sample.cpu_ratio, sample.cpu_seconds, sample.tree_cpu_seconds) == (None, 600 / TICKS, 600 / TICKS)
    assert proc.look(entry(10, 7)) == ({}, None, ())


def test_gone_process_is_absent(proc):
    """A process that is gone is no failure, and those of the same server are still read."""
    proc.put(10)
    samples, tree, failures = proc.look(entry(10), entry(11, name="scheduler_TP1"))
    assert (set(samples), failures) == ({"scheduler_TP0"}, ())
    assert tree.server == "s"


def tree_cpu(proc, *tree):
    """Return the CPU seconds of the tree of process 10."""
    return proc.look(entry(10, tree=tree))[0]["scheduler_TP0"].tree_cpu_seconds


def test_tree_cpu_counts_what_children_burn_once(proc):
    """CPU of a child counts while it lives and is not counted again when its parent inherits it."""
    proc.put(10, cpu=100)
    proc.put(11, parent=10, cpu=50, reaped=10)
    assert tree_cpu(proc, 11) == 160 / TICKS
    proc.put(11, parent=10, cpu=70, reaped=10)
    assert tree_cpu(proc, 11) == 180 / TICKS
    proc.end(11)
    proc.put(10, cpu=100, reaped=85)
    assert tree_cpu(proc, 11) == 185 / TICKS
    proc.put(10, cpu=110, reaped=85)
    assert tree_cpu(proc) == 195 / TICKS


def test_tree_cpu_does_not_fall_when_a_child_is_lost(proc):
    """A child whose CPU nobody inherits leaves the total where it was."""
    proc.put(10, cpu=100)
    proc.put(11, parent=10, cpu=50)
    assert tree_cpu(proc, 11) == 150 / TICKS
    proc.end(11)
    assert tree_cpu(proc, 11) == 150 / TICKS
    proc.put(10, cpu=120)
    assert tree_cpu(proc, 11) == 170 / TICKS


def test_a_stranger_with_the_pid_of_a_child_does_not_count(proc):
    """A pid of the tree that now has a parent outside it is another process."""
    proc.put(10, cpu=100)
    proc.put(11, parent=10, cpu=5)
    proc.put(12, parent=11, cpu=5)
    assert tree_cpu(proc, 11, 12) == 110 / TICKS
    proc.put(12, parent=1, start=99, cpu=7777)
    assert tree_cpu(proc, 11, 12) == 110 / TICKS


def test_tree_sums_over_all_processes_of_the_server(proc):
    """Bytes, faults and resident file pages of launcher, scheduler and their children add up, each process once."""
    proc.put(10, io=(1, 10, 100), faults=(1, 2, 4, 8), file_kib=1)
    proc.put(11, parent=10, io=(2, 20, 200), faults=(16, 0, 0, 0), file_kib=2)
    proc.put(12, parent=11, io=(4, 40, 400), faults=(0, 0, 32, 0), file_kib=4)
    launcher = entry(10, name="launcher", rank="", tree=[11, 12])
    samples, tree, _ = proc.look(launcher, entry(11, tree=[12]))
    assert (tree.rchar, tree.read_bytes, tree.write_bytes, tree.faults) == (7.0, 70.0, 700.0, 63.0)
    assert tree.resident_file_bytes == 3 * 1024
    assert (samples["launcher"].rchar, samples["scheduler_TP0"].read_bytes) == (1, 20)
    proc.end(12)
    proc.put(11, parent=10, io=(6, 60, 600), faults=(16, 0, 0, 32))
    _, tree, _ = proc.look(launcher, entry(11, tree=[12]))
    assert (tree.rchar, tree.read_bytes, tree.write_bytes, tree.faults) == (7.0, 70.0, 700.0, 63.0)


def test_compilers_are_counted_with_what_they_have_burned(proc):
    """The CPU of compilers goes on growing while they come and go, whoever inherits it."""
    proc.put(10, cpu=1000)
    proc.put(20, parent=10, cpu=1)
    proc.put(21, parent=20, cpu=30)
    proc.put(22, parent=10, cpu=60)
    _, tree, _ = proc.look(entry(10, tree=[20, 21, 22], compilers=[20, 21, 22]))
    assert (tree.compilers, tree.compiler_cpu_seconds) == (3, 91 / TICKS)
    proc.end(21)
    proc.end(22)
    proc.put(20, parent=10, cpu=2, reaped=35)
    proc.put(10, cpu=1000, reaped=60)
    _, tree, _ = proc.look(entry(10, tree=[20, 21, 22], compilers=[20, 21, 22]))
    assert (tree.compilers, tree.compiler_cpu_seconds) == (1, 97 / TICKS)
    _, tree, _ = proc.look(entry(10))
    assert (tree.compilers, tree.compiler_cpu_seconds) == (0, 97 / TICKS)


def test_skipped_processes_are_not_read_and_their_totals_stand_still(proc):
    """A process in quarantine is a failure; its tree neither shrinks nor, when it comes back, jumps."""
    proc.put(10, cpu=100, io=(1, 1, 1))
    proc.put(11, parent=10, cpu=50, io=(100, 100, 100))
    proc.put(12, parent=11, cpu=7)
    entries = (entry(10, name="launcher", rank="", tree=[11, 12]), entry(11, tree=[12]))
    proc.look(*entries)
    proc.notes.clear()
    proc.end(12)
    samples, tree, failures = proc.look(*entries, skip=frozenset({"pid 11"}))
    assert set(samples) == {"launcher"}
    assert "pid 11" not in proc.notes
    assert failures == (Failure("process", "quarantined", "pid 11", "s"),)
    assert (samples["launcher"].tree_cpu_seconds, tree.rchar) == (157 / TICKS, 101.0)
    samples, tree, failures = proc.look(*entries)
    assert (samples["launcher"].tree_cpu_seconds, tree.rchar, failures) == (157 / TICKS, 101.0, ())
    assert samples["scheduler_TP0"].tree_cpu_seconds == 57 / TICKS


def test_a_server_with_nothing_but_skipped_processes_has_no_tree(proc):
    """Where no process could be read there are no totals that would look as if nothing moved."""
    proc.put(10)
    samples, tree, failures = proc.look(entry(10), skip=frozenset({"pid 10"}))
    assert (samples, tree) == ({}, None)
    assert [failure.reason for failure in failures] == ["quarantined"]


def test_kernel_without_io_accounting_leaves_those_fields_out(proc):
    """Without io files, bytes are unknown rather than zero, and that is no failure."""
    proc.put(10)
    (proc.root / "10" / "io").unlink()
    samples, tree, failures = proc.look(entry(10))
    sample = samples["scheduler_TP0"]
    assert (sample.rchar, sample.read_bytes, sample.write_bytes, failures) == (None, None, None, ())
    assert (tree.rchar, tree.read_bytes, tree.write_bytes, tree.faults) == (None, None, None, 0.0)


def test_a_file_that_cannot_be_read_is_a_failure_of_its_process_alone(proc):
    """An error of the file system names the process and the file, and the rest is still read."""
    proc.put(10)
    proc.put(11)
    (proc.root / "11" / "stat").unlink()
    (proc.root / "11" / "stat").mkdir()
    samples, _, failures = proc.look(entry(10), entry(11, name="scheduler_TP1"))
    assert set(samples) == {"scheduler_TP0"}
    assert failures == (Failure("process", "unreadable", "pid 11 stat: Is a directory", "s"),)


def test_servers_are_kept_apart(proc):
    """Each server has its own samples and totals."""
    proc.put(10, faults=(3, 0, 0, 0))
    proc.put(20, faults=(4, 0, 0, 0))
    reading, _ = proc.read(asked(entry(10)) + asked(entry(20), server="t"), NOTHING)
    assert [(sample.server, sample.pid) for sample in reading.processes] == [("s", 10), ("t", 20)]
    assert [(tree.server, tree.faults) for tree in reading.trees] == [("s", 3.0), ("t", 4.0)]


def test_reading_crosses_as_json(proc):
    """What the worker sends as JSON is the same reading again in the exporter."""
    proc.put(10, cpu=5, rss=PAGE, file_kib=1, wchan="do_poll")
    reading, _ = proc.read(asked(entry(10)), NOTHING)
    assert msgspec.json.decode(json.dumps(dataclasses.asdict(reading)), type=ProcessReading) == reading


def test_a_worker_stays_small():
    """The module brings in nothing that a worker must not carry."""
    code = "import sys, stallwatch.collectors.process as it; it.reader({}, print); print(it.__file__, *sys.modules)"
    paths = os.pathsep.join(path for path in sys.path if path.endswith("exporter"))
    env = {**os.environ, "PYTHONPATH": paths}
    modules = subprocess.run([sys.executable, "-c", code], check=True, env=env, capture_output=True).stdout.decode()
    assert "psutil" in modules.split()
    assert not {"asyncio", "aiohttp", "prometheus_client", "msgspec", "yaml"} & set(modules.split())


READY = "print('ready', flush=True); sys.stdin.read()"


@contextlib.contextmanager
def running(code, *, go_on=READY):
    """Run code in a child of its own, which has said that it is ready and then waits until it is let go."""
    command = [sys.executable, "-c", f"import os, sys, mmap, threading\n{code}\n{go_on}"]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE) as child:
        try:
            assert child.stdout.readline() == b"ready\n"
            yield child.pid
        finally:
            child.kill()


def start_ticks(pid):
    """Read when a real process was started."""
    return int(Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[19])


def real(**given):
    """Give a look at one real process, by its pid."""
    read = reader({"procfs": "/proc"}, lambda _text: None)

    def look(pid):
        reading, failures = read(asked(entry(pid, start_ticks(pid), **given)), NOTHING)
        assert failures == ()
        (sample,) = reading.processes
        return sample, reading.trees[0]

    return look


def test_sleeping_process():
    """A process that waits sleeps, burns nothing and switches no more."""
    with running("") as pid:
        look = real()
        while (first := look(pid)[0]).state != "S":
            pass
        second = look(pid)[0]
    assert (second.state, second.cpu_seconds, second.cpu_ratio) == ("S", first.cpu_seconds, 0.0)
    assert second.voluntary_switches == first.voluntary_switches


def test_spinning_process():
    """A process that spins runs, and its ratio tells how much of a core it had."""
    with running("", go_on="print('ready', flush=True)\nwhile True: pass") as pid:
        look = real()
        first = second = look(pid)[0]
        while second.cpu_seconds == first.cpu_seconds:
            second = look(pid)[0]
    assert second.state == "R"
    assert second.cpu_ratio > 0


def test_stopped_process():
    """A stopped process is in state T."""
    with running("") as pid:
        os.kill(pid, signal.SIGSTOP)
        os.waitpid(pid, os.WUNTRACED)
        assert real()(pid)[0].state == "T"


def test_zombie_still_tells_what_it_burned():
    """A process that has ended and was not waited for is a zombie, with what the kernel still knows of it."""
    with running("import time\nwhile time.process_time() < 0.1: pass") as pid:
        os.kill(pid, signal.SIGKILL)
        os.waitid(os.P_PID, pid, os.WEXITED | os.WNOWAIT)
        sample, tree = real()(pid)
    assert (sample.state, sample.open_fds, sample.resident_bytes, sample.resident_file_bytes) == ("Z", None, 0, None)
    assert sample.cpu_seconds > 0
    assert tree.faults > 0


def test_threads_and_fds_are_counted():
    """205 threads and 207 open files are 205 and 207."""
    code = (
        "threading.stack_size(65536)\n"
        "for _ in range(204): threading.Thread(target=threading.Event().wait, daemon=True).start()\n"
        "while len(os.listdir('/proc/self/fd')) - 1 < 207: os.dup(0)"
    )
    with running(code, go_on="print('ready', flush=True); sys.stdin.read(); os._exit(0)") as pid:
        sample, _ = real()(pid)
    assert (sample.threads, sample.open_fds) == (205, 207)


def test_mapped_file_is_resident_file_memory():
    """Pages of a mapped file show as file pages although nothing was read."""
    mapped = {Path(line.split()[-1]) for line in Path("/proc/self/maps").read_text().splitlines() if "/lib" in line}
    file = max((path for path in mapped if path.is_file()), key=lambda path: path.stat().st_size)
    code = f"m = mmap.mmap(os.open({str(file)!r}, os.O_RDONLY), 0, prot=mmap.PROT_READ)"
    touch = "sum(m[at] for at in range(0, len(m), 4096))"
    with running(code) as pid:
        before, _ = real()(pid)
    with running(f"{code}\n{touch}") as pid:
        after, tree = real()(pid)
    assert after.resident_file_bytes - before.resident_file_bytes > file.stat().st_size * 0.8
    assert after.rchar - before.rchar < file.stat().st_size / 2
    assert tree.resident_file_bytes == after.resident_file_bytes


def test_shared_memory_counts_each_time_it_is_mapped():
    """Resident memory exceeds what is held where the same pages are mapped again and again."""
    code = (
        f"fd = os.memfd_create('shared'); os.ftruncate(fd, {4 * MIB})\n"
        f"maps = [mmap.mmap(fd, {4 * MIB}) for _ in range(16)]\n"
        "sum(m[at] for m in maps for at in range(0, len(m), 4096))"
    )
    with running(code) as pid:
        sample, _ = real()(pid)
    assert sample.resident_bytes > 64 * MIB
    assert sample.resident_file_bytes < 64 * MIB


def test_bytes_read_are_counted():
    """What a process reads shows as rchar, wherever it came from."""
    with running("") as pid:
        before = real()(pid)[0].rchar
    with running(f"os.read(os.open('/dev/zero', os.O_RDONLY), {16 * MIB})") as pid:
        sample, tree = real()(pid)
    assert sample.rchar - before >= 15 * MIB
    assert tree.rchar == sample.rchar


def test_children_that_were_reaped_count_once():
    """CPU and faults of a child that has ended are in its parent's tree, and not in its own CPU."""
    burn = "import time\nwhile time.process_time() < 0.5: pass"
    code = f"import subprocess; subprocess.run([sys.executable, '-c', {burn!r}], check=True)"
    with running(code) as pid:
        sample, tree = real()(pid)
    assert sample.tree_cpu_seconds >= sample.cpu_seconds + 0.45
    assert tree.faults > sample.minor_faults + sample.major_faults


def test_child_seen_alive_is_not_counted_again_when_it_is_reaped():
    """The tree of a real process grows by no more than what was burned when its child ends."""
    code = (
        "import subprocess\n"
        "burn = 'import time, sys\\nwhile time.process_time() < 0.5: pass\\nprint(flush=True); sys.stdin.read()'\n"
        "child = subprocess.Popen([sys.executable, '-c', burn], stdin=subprocess.PIPE, stdout=subprocess.PIPE)\n"
        "child.stdout.readline()\n"
        "print(child.pid, flush=True)\n"
        "sys.stdin.readline()\n"
        "child.communicate()\n"
        "print('reaped', flush=True)\n"
        "sys.stdin.readline()"
    )
    with subprocess.Popen(
        [sys.executable, "-c", f"import sys\n{code}"], stdin=subprocess.PIPE, stdout=subprocess.PIPE
    ) as parent:
        look = real(tree=[int(parent.stdout.readline())])
        alive, _ = look(parent.pid)
        parent.stdin.write(b"\n")
        parent.stdin.flush()
        assert parent.stdout.readline() == b"reaped\n"
        reaped, _ = look(parent.pid)
        parent.kill()
    assert alive.tree_cpu_seconds >= alive.cpu_seconds + 0.45
    assert alive.tree_cpu_seconds <= reaped.tree_cpu_seconds < alive.tree_cpu_seconds + 0.3


def test_wrong_start_is_another_process():
    """A live pid with another start time than was asked for is not read."""
    read = reader({"procfs": "/proc"}, lambda _text: None)
    with running("") as pid:
        reading, failures = read(asked(entry(pid, start_ticks(pid) - 1)), NOTHING)
    assert (reading.processes, reading.trees, failures) == ((), (), ())


@contextlib.contextmanager
def without_rights():
    """Give a process that we may look into and one that we may not, as another user where we are root."""
    if os.geteuid() != 0:
        if Path("/proc/1").stat().st_uid == os.geteuid():
            pytest.skip("no process of another user to look at")
        yield os.getpid(), 1
        return
    nobody = 65534
    with running("") as theirs, subprocess.Popen(["/bin/sleep", "60"], user=nobody) as ours:
        os.seteuid(nobody)
        try:
            yield ours.pid, theirs
        finally:
            os.seteuid(0)
            ours.kill()


def test_missing_rights_are_said_once_and_only_those_fields_are_missing():
    """Without the right to io and fd, those are None and one failure per server names the right."""
    read = reader({"procfs": "/proc"}, lambda _text: None)
    with without_rights() as (_, pid):
        ticks = start_ticks(pid)
        reading, failures = read(asked(entry(pid, ticks), entry(pid, ticks, name="scheduler_TP1")), NOTHING)
    assert failures == (Failure("process", "permission_denied", MISSING_RIGHT, "s"),)
    for sample in reading.processes:
        assert (sample.open_fds, sample.rchar, sample.read_bytes, sample.write_bytes) == (None, None, None, None)
        assert sample.minor_faults > 0
        assert sample.resident_bytes > 0
    (tree,) = reading.trees
    assert (tree.rchar, tree.read_bytes, tree.write_bytes) == (None, None, None)
    assert tree.faults > 0


def test_totals_that_would_lack_a_process_are_unknown():
    """Where the bytes of one process may not be read, those of the whole server are unknown."""
    read = reader({"procfs": "/proc"}, lambda _text: None)
    with without_rights() as pids:
        reading, failures = read(asked(*(entry(pid, start_ticks(pid)) for pid in pids)), NOTHING)
    assert [failure.reason for failure in failures] == ["permission_denied"]
    assert [sample.rchar is None for sample in reading.processes] == [False, True]
    assert reading.trees[0].rchar is None


def test_target_is_what_discovery_found():
    """The worker is told who the processes are and which pids hang below them; without processes it is not asked."""
    process = Process(10, 7, 0.07, "scheduler", "scheduler_TP0", "TP0", tree=(11, 12), compilers=(12,))
    found = target(Server("s", "sglang", Launch(), (process,)))
    assert json.loads(json.dumps(found)) == {
        "server": "s",
        "processes": [{**entry(10, 7, tree=[11, 12], compilers=[12]), "started": 0.07}],
    }
    assert target(Server("s", "sglang", Launch())) is None


def families_of(*samples):
    """Return the families of these samples by the end of their names."""
    reading = ProcessReading(at=50.0, processes=samples, trees=())
    found = families([reading], Moment(unix=1000.0, monotonic=60.0, boottime=70.0))
    return {family.name.removeprefix("stallwatch_process_"): family for family in found}


def test_families_state_each_process(proc):
    """Every number that was read is there, one sample per process."""
    proc.put(10, cpu=300 * TICKS, rss=4 * PAGE, file_kib=4, io=(1, 2, 3), faults=(5, 0, 6, 0), threads=8, state="D")
    proc.look(entry(10))
    proc.clock.now += 1
    found = families_of(*proc.look(entry(10))[0].values())
    key = ("s", "scheduler_TP0")
    values = {name: dict(family.samples)[key] for name, family in found.items() if len(family.labels) == 2}
    assert values == {
        "cpu_seconds_total": 300.0,
        "cpu_ratio": 0.0,
        "tree_cpu_seconds_total": 300.0,
        "threads": 8.0,
        "open_fds": 0.0,
        "resident_memory_bytes": 4.0 * PAGE,
        "resident_file_bytes": 4096.0,
        "read_bytes_total": 2.0,
        "page_faults_total": 11.0,
        "start_time_seconds": pytest.approx(930.0 + 7 / TICKS),
    }
    switches = {(*key, "voluntary"): 11.0, (*key, "involuntary"): 3.0}
    assert dict(found["context_switches_total"].samples) == switches
    assert dict(found["state"].samples) == {(*key, state): float(state == "D") for state in STATES}
    assert {name for name, family in found.items() if family.kind == "counter"} == {n for n in found if "_total" in n}
    assert "once per process" in found["resident_memory_bytes"].help


def test_families_leave_out_what_is_not_known(proc):
    """What could not be read has no sample, whatever else of the process is known."""
    proc.put(10)
    (proc.root / "10" / "io").unlink()
    found = families_of(*proc.look(entry(10))[0].values())
    empty = {name for name, family in found.items() if not family.samples}
    assert empty == {"cpu_ratio", "read_bytes_total", "resident_file_bytes"}
