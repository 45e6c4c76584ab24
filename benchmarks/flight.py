"""What does the flight recorder cost? Half an hour of nodes of 1, 8 and 64 ranks, busy and stalled, as fast as it goes.

What changes on a busy node changes here: CPU time, switches and bytes each second, GPUs and token counters each five,
all of them with noise, and every reading is made of new objects. It prints a table: bytes of half an hour, the most
that was held meanwhile, the time that each snapshot took, and exits with 1 where an 8-GPU node misses its targets.

    python benchmarks/flight.py [--minutes 40]
"""

import argparse
import random
import sys
import tempfile
import time
from dataclasses import dataclass, replace
from pathlib import Path

from stallwatch.collectors.engine import EngineRank, EngineReading
from stallwatch.collectors.gpu import Gpu, GpuProcess, GpuReading
from stallwatch.collectors.health import HealthReading, Probe
from stallwatch.collectors.kernel import KernelReading
from stallwatch.collectors.log import Log, LogReading
from stallwatch.collectors.process import ProcessReading, ProcessSample, Tree
from stallwatch.collectors.socket import ServerSockets, SocketReading
from stallwatch.config import Config
from stallwatch.flight import FlightRecorder
from stallwatch.recording import read_recording
from stallwatch.snapshot import Launch, Moment, Process, Reading, Server, Snapshot
from stallwatch.watcher import Watcher

RANKS, PER_SERVER = (1, 8, 64), 8
GIB, BOOT = 1024**3, 5_000_000.0
MOST_BYTES, MOST_MILLISECONDS = 5_000_000, 1.0


class PlayedNode:
    """A node whose servers serve, or stand still."""

    def __init__(self, ranks: int, *, busy: bool, seed: int = 1) -> None:
        self._dice = random.Random(seed)  # noqa: S311 dice
        self._busy = busy
        self._ranks = ranks
        self._counts: dict[str, float] = {}
        self._slow: tuple[float, tuple[Reading, ...]] = (-9.0, ())
        names = [f"sglang:{30000 + number}" for number in range(0, ranks, PER_SERVER)]
        self.servers = tuple(self._server(name, number) for number, name in enumerate(names))

    def look(self, t: float) -> Snapshot:
        """Return what is seen at a time; what is read each five seconds are the same objects in between."""
        now = 4_000_000.0 + t + self._dice.random() / 300
        if now - self._slow[0] >= 5.0:
            self._slow = now, (self._gpus(now), KernelReading(now), *self._asked(now))
        readings = (self._processes(now), self._logs(now), *self._slow[1])
        servers = tuple(replace(server) for server in self.servers)
        return Snapshot(Moment(1_800_000_000.0 + now, now, BOOT + now), servers, readings)

    def _server(self, name: str, number: int) -> Server:
        count, pid = min(self._ranks, PER_SERVER), 100_000 + 1000 * number
        ranks = tuple(
            Process(pid + r, 7000 + r, 4_900_000.25, "scheduler", f"scheduler_TP{r}", f"TP{r}", (pid + 500 + r,))
            for r in range(1, count + 1)
        )
        launcher = Process(pid, 7000, 4_900_000.0, "launcher", "launcher", "", tuple(range(pid + 1, pid + count)))
        launch = Launch("/models/large", "0.0.0.0", 30_000 + number, tp_size=count)  # noqa: S104 as many are started
        log = f"/data/logs/server{number}.log"
        known = {"log_path": log, "address": "127.0.0.1", "listening": True, "incarnation": f"{pid}-7000"}
        return Server(name, "sglang", launch, (launcher, *ranks), "0.5.9", count, **known)  # type: ignore[arg-type]

    def _rise(self, name: str, most: float) -> float:
        """Return a counter that rises by about so much a second while the node is busy."""
        rise = most * self._dice.uniform(0.5, 1.0) if self._busy else 0.0
        self._counts[name] = self._counts.get(name, 1000.0 * most) + rise
        return self._counts[name]

    def _of(self, least: float, most: float) -> float:
        return self._dice.uniform(least, most) if self._busy else least

    def _processes(self, now: float) -> ProcessReading:
        each = [(server.name, process) for server in self.servers for process in server.processes]
        samples = tuple(self._sample(name, process) for name, process in each)
        return ProcessReading(now, samples, tuple(self._tree(server.name) for server in self.servers))

    def _sample(self, server: str, process: Process) -> ProcessSample:
        key = f"{server} {process.name}"
        counts = {name: int(self._rise(key + name, most)) for name, most in COUNTS.items()}
        cpu = round(self._rise(key, 1.0), 2)
        who = (server, process.name, process.role, process.rank, process.pid, process.started)
        return ProcessSample(
            *who,
            state="R" if self._busy else "S",
            cpu_seconds=cpu,
            cpu_ratio=self._of(0.0, 1.0),
            tree_cpu_seconds=cpu + 12.5,
            threads=212,
            open_fds=348,
            resident_bytes=int(9 * GIB + 4096 * self._of(0, 300)),
            resident_file_bytes=3 * GIB,
            wchan="0" if self._busy else "futex_wait_queue",
            **counts,  # type: ignore[arg-type]
        )

    def _tree(self, server: str) -> Tree:
        rchar, read, write, faults = (int(self._rise(f"{server} {name}", 1e6)) for name in "abcd")
        return Tree(server, rchar, read, write, faults, 27 * GIB, 812.25, 0)

    def _logs(self, now: float) -> LogReading:
        return LogReading(now, tuple(self._log(server, now) for server in self.servers))

    def _log(self, server: Server, now: float) -> Log:
        size = int(self._rise(f"{server.name} log", 400.0))
        lines = {"progress": size // 200, "access": size // 90, "heartbeat": 12, "other": size // 1000}
        last = now if self._busy else 3_990_000.5
        return Log(
            server=server.name,
            path=str(server.log_path),
            size_bytes=size,
            last_write=last,
            last_progress=last,
            last_heartbeat=None,
            phase="ready",
            phase_since=3_980_000.5,
            progress=None,
            ranks=(),
            last_marker="decode_batch",
            last_marker_rank="TP0",
            waiting="",
            stopping=False,
            engine_version="0.5.9",
            lines=lines,
            errors={},
            rotations=0,
            skipped_bytes=0,
        )

    def _gpus(self, now: float) -> GpuReading:
        return GpuReading(now, "580.95.05", tuple(self._gpu(index) for index in range(self._ranks)))

    def _gpu(self, index: int) -> Gpu:
        server, rank = self.servers[index // PER_SERVER], index % PER_SERVER
        used = int(76 * GIB + self._of(0, 30) * 1024**2)
        return Gpu(
            index=index,
            uuid=f"GPU-{index:08x}-1c2d-4e5f-8a9b-0123456789ab",
            name="NVIDIA H200",
            pci_bus_id=f"00000000:{index:02X}:00.0",
            utilization=self._of(0.0, 1.0),
            busy_seconds=self._rise(f"gpu {index} busy", 5.0),
            memory_used=used,
            memory_total=141 * GIB,
            power_watts=self._of(80.0, 650.0),
            power_limit_watts=700.0,
            energy_joules=self._rise(f"gpu {index} energy", 3000.0),
            sm_clock_hertz=1e6 * int(self._of(345, 1980)),
            temperature_celsius=float(int(self._of(38, 64))),
            throttle_reasons=("idle",),
            recovery_action="none",
            processes=(GpuProcess(server.processes[1 + rank].pid, used),),
        )

    def _asked(self, now: float) -> list[Reading]:
        sockets = tuple(ServerSockets(server.name, True, 0, int(self._of(0, 2000))) for server in self.servers)
        asked: list[Reading] = [SocketReading(now, sockets)]
        for server in self.servers:
            tokens = {kind: float(int(self._rise(f"{server.name} {kind}", 5e4))) for kind in ("prompt", "generation")}
            rank = EngineRank("0", float(int(self._of(9, 64))), float(int(self._of(0, 9))), tokens, True, now)
            phases = {"connect": self._of(0.001, 0.002), "first_byte": self._of(1.0, 1.1), "transfer": 0.0001}
            probe = Probe("/health", "ok", "scheduler", self._of(1.0, 1.2), 200, phases, now, now, 0)
            asked += [EngineReading(now, server.name, (rank,), "metrics"), HealthReading(now, server.name, (probe,))]
        return asked


COUNTS = {
    "rchar": 5e5,
    "read_bytes": 1e3,
    "write_bytes": 4e4,
    "minor_faults": 900.0,
    "major_faults": 0.01,
    "voluntary_switches": 3000.0,
    "involuntary_switches": 40.0,
}


@dataclass(frozen=True, slots=True)
class Row:
    """What one node cost."""

    ranks: int
    busy: bool
    dumped: int  # bytes
    held: int  # bytes, the most, with the compressor's own
    minutes: float  # that the recording covers
    milliseconds: float  # CPU of a snapshot, mean
    longest: float  # of one
    dumping: float

    @property
    def good(self) -> bool:
        """Tell whether a node of eight GPUs is within its targets; larger ones only lose older chunks."""
        return max(self.dumped, self.held) < MOST_BYTES and (self.ranks > 8 or self.milliseconds < MOST_MILLISECONDS)

    def __str__(self) -> str:
        """Return a line of the table."""
        name = f"{self.ranks} ranks, {'busy' if self.busy else 'stalled'}"
        numbers = f"{self.dumped:>14,}{self.held:>14,}{self.minutes:>9.1f}"
        numbers += f"{self.milliseconds:>10.3f}{self.longest:>10.2f}{self.dumping:>10.1f}"
        return f"{name:<22}{numbers}  {'ok' if self.good else 'TOO MUCH'}"


def measured(ranks: int, *, busy: bool, seconds: int) -> Row:
    """Return what so many seconds of a node cost, one snapshot a second."""
    node, recorder = PlayedNode(ranks, busy=busy), FlightRecorder()
    watcher = Watcher(Config().limits_of)
    spent: list[float] = []
    held = 0
    for t in range(seconds):
        seen = node.look(float(t))
        watcher.look(seen.moment, seen.servers, seen.readings)
        begin = time.process_time()
        recorder.take(seen, watcher.remember)
        spent.append((time.process_time() - begin) * 1000)
        held = max(held, recorder.held_bytes)
    begin = time.process_time()
    dumped = recorder.dump()
    dumping = (time.process_time() - begin) * 1000
    return Row(ranks, busy, len(dumped), held, _minutes(dumped), sum(spent) / len(spent), max(spent), dumping)


def _minutes(dumped: bytes) -> float:
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "r.jsonl.gz"
        path.write_bytes(dumped)
        times = [snapshot.moment.monotonic for snapshot in read_recording(path)]
    return (times[-1] - times[0]) / 60


def main() -> int:
    """Measure, and return the exit code."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--minutes", type=float, default=40.0, help="virtual time of each node (default: %(default)g)")
    seconds = int(parser.parse_args().minutes * 60)
    head = f"{'bytes':>14}{'held':>14}{'minutes':>9}{'ms':>10}{'ms max':>10}{'dump ms':>10}"
    print(f"{'':<22}{head}")
    rows = []
    for ranks in RANKS:
        for busy in (True, False):
            rows.append(measured(ranks, busy=busy, seconds=seconds))
            print(rows[-1], flush=True)
    return 0 if all(row.good for row in rows) else 1


if __name__ == "__main__":
    sys.exit(main())
