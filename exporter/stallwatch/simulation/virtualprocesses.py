"""What do the processes of a played server show?"""

from collections.abc import Iterator

from stallwatch.collectors.process import ProcessSample, Tree
from stallwatch.simulation.player import Player
from stallwatch.snapshot import Process

MIB = 1024**2
STATES = {"zombie": "Z", "stopped": "T"}
RESTING = (0.0, None, "S")
"""What a process shows of which the scenario does not tell."""


def samples(player: Player, t: float, step: float) -> Iterator[ProcessSample]:
    """Yield a sample of each process, nothing where processes cannot be read."""
    if not player.state.has("scheduler") and not player.state.has("processes"):
        return
    words = player.processes()
    index = 0
    for process in player.alive.processes:
        scheduler = process.role == "scheduler"
        word = words.get(process.name, "running")
        if word != "gone":
            shown = _rank(player, index, t) if scheduler else RESTING
            yield _sample(player, process, shown, word, step)
        index += scheduler


def _rank(player: Player, index: int, t: float) -> tuple[float | None, float | None, str]:
    """Return cores, context switches per second and state of one rank."""
    state = player.state
    states = state.word("scheduler.state") or "S"
    cores, switches = state.level("scheduler.cpu", index, t), state.level("scheduler.heartbeat_switches", index, t)
    return cores, switches, states[min(index, len(states) - 1)]


def _sample(
    player: Player, process: Process, shown: tuple[float | None, float | None, str], word: str, step: float
) -> ProcessSample:
    cpu, switches, known = shown
    runs = float(word == "running")
    turned = None if switches is None else int(player.add("switches", process.pid, switches * runs, step))
    return ProcessSample(
        server=player.server.name,
        process=process.name,
        role=process.role,
        rank=process.rank,
        pid=process.pid,
        started=process.started,
        state=STATES.get(word, known),
        cpu_seconds=None if cpu is None else player.add("cpu", process.pid, cpu * runs, step),
        cpu_ratio=cpu,
        tree_cpu_seconds=0.0,
        threads=1,
        open_fds=None,
        resident_bytes=0,
        resident_file_bytes=None,
        rchar=None,
        read_bytes=None,
        write_bytes=None,
        minor_faults=0,
        major_faults=0,
        voluntary_switches=turned,
        involuntary_switches=None if turned is None else 0,
        wchan=None,
    )


def tree(player: Player, t: float, step: float) -> Tree | None:
    """Return what the process tree has read, faulted and compiled; what was never given is None."""
    if not player.state.has("scheduler"):
        return None
    reads = _sum(player, "scheduler.read_mib_per_second", t)
    faults = _sum(player, "scheduler.faults_per_second", t)
    compiler = player.state.word("scheduler.compiler")
    if reads is None and faults is None and compiler is None:
        return None
    cores = player.state.level("scheduler.tree_cpu", 0, t)
    cores = (1.0 if cores is None else cores) if compiler and any(compiler) else 0.0
    return Tree(
        server=player.server.name,
        rchar=None if reads is None else int(player.add("rchar", 0, reads * MIB, step)),
        read_bytes=None,
        write_bytes=None,
        faults=None if faults is None else int(player.add("faults", 0, faults, step)),
        resident_file_bytes=None,
        compiler_cpu_seconds=None if compiler is None else player.add("compiler", 0, cores, step),
        compilers=int(cores > 0),
    )


def _sum(player: Player, key: str, t: float) -> float | None:
    """Add up the ranks: one number is that of each."""
    values = [player.state.level(key, index, t) for index in range(len(player.ranks))]
    known = [value for value in values if value is not None]
    return sum(known) if known else None
