"""How does each rank fare, and what do the endpoints answer? Two tables, the odd ones marked by a sign and a word."""

from collections.abc import Iterable

from stallwatch.answer import Entry, Gpu, Probe, Rank
from stallwatch.pages.probes import ALIVE, ANSWERS, PROVES
from stallwatch.terminal.layout import ODD, Line, Row, table, wrapped
from stallwatch.wording import duration

GIB = 1024**3
RANK_COLUMNS = ("rank", "pid", "GPU", "GPU %", "GiB", "W", "CPU %", "st", "wchan", "phase", "thr", "fds")
HEALTH_COLUMNS = ("endpoint", "answer", "a good one proves", "took", "asked", "last good", "failed")


def rank_table(entry: Entry, width: int) -> list[Line]:
    """Return a row for each process and for each GPU whose rank is not known, then what is odd about which."""
    rows = [Row(_rank_cells(rank), bool(rank.odd)) for rank in entry.ranks]
    rows += [Row(("no rank", "", *_gpu_cells([gpu]), *[""] * 6), bool(gpu.odd)) for gpu in entry.gpus.unplaced]
    if not rows:
        return []
    told: dict[str, list[str]] = {}
    for name, words in _odd(entry):
        told.setdefault(", ".join(dict.fromkeys(words)), []).append(name)
    notes = [wrapped(f"{', '.join(names)}: {words}", width, first=ODD, style="odd") for words, names in told.items()]
    return [*table(RANK_COLUMNS, rows, width), *(line for note in notes for line in note)]


def health_table(entry: Entry, now: float, width: int) -> list[Line]:
    """Return a row for each endpoint with what it truly answered."""
    rows = [_health_row(probe, now, starts=entry.verdict == "starting") for probe in entry.health]
    return table(HEALTH_COLUMNS, rows, width) if rows else []


def _odd(entry: Entry) -> Iterable[tuple[str, list[str]]]:
    for rank in entry.ranks:
        if rank.odd:
            yield rank.rank or rank.process, rank.odd
    for gpu in entry.gpus.unplaced:
        if gpu.odd:
            yield f"GPU {gpu.index:.0f}", gpu.odd


def _rank_cells(rank: Rank) -> tuple[str, ...]:
    return (
        rank.rank or rank.process,
        _whole(rank.pid),
        *_gpu_cells(rank.gpus),
        "" if rank.cpu_cores is None else f"{100 * rank.cpu_cores:.0f}",
        rank.state,
        rank.wchan or "",
        rank.phase or "",
        _whole(rank.threads),
        _whole(rank.open_fds),
    )


def _gpu_cells(gpus: list[Gpu]) -> tuple[str, ...]:
    """Return index, utilization, memory and power; of several GPUs of one rank each."""
    return (
        ",".join(f"{gpu.index:.0f}" for gpu in gpus),
        _each("lost" if gpu.lost else _whole(gpu.utilization, 0.01) for gpu in gpus),
        _each(_whole(gpu.memory_used, GIB) for gpu in gpus),
        _each(_whole(gpu.power_watts) for gpu in gpus),
    )


def _each(cells: Iterable[str]) -> str:
    known = list(cells)
    return "/".join(known) if any(known) else ""


def _whole(value: float | None, unit: float = 1) -> str:
    return "" if value is None else f"{value / unit:.0f}"


def _health_row(probe: Probe, now: float, *, starts: bool) -> Row:
    alive = probe.result in ALIVE
    status = "" if probe.status is None else f" ({probe.status:.0f})"
    cells = (
        probe.path,
        f"{ANSWERS.get(probe.result, probe.result)}{status}",
        PROVES.get(probe.scope, probe.scope),
        f"{probe.latency:.1f} s",
        f"{duration(now - probe.at)} ago",
        "never" if probe.last_success is None else f"{duration(now - probe.last_success)} ago",
        f"{probe.consecutive_failures:.0f}",
    )
    # While a server starts, a port that is closed yet is nothing odd.
    return Row(cells, odd=not alive and not starts)
