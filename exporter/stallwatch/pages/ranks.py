"""How does each rank fare? One row for each process that the server cannot do without, with the GPU it computes on."""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass

from stallwatch.collectors.gpu import Gpu
from stallwatch.pages import words
from stallwatch.pages.markup import Html, joined, named, tag
from stallwatch.past import Past, RankPast
from stallwatch.snapshot import Place
from stallwatch.wording import elsewhere, odd_ranks

STATES = {
    "R": "R running",
    "S": "S sleeping",
    "D": "D waits in kernel",
    "Z": "Z zombie",
    "T": "T stopped",
    "t": "t traced",
    "X": "X dead",
    "I": "I idle",
}
AT_REST = 0.10
COLUMNS = ("GPU", "GPU busy", "Memory GiB", "Power", "CPU cores", "State", "Phase")


@dataclass(frozen=True, slots=True)
class RankRow:
    """One row: a process, a GPU, or both, and the words that say what is odd about it."""

    name: str
    rank: RankPast | None
    gpus: tuple[tuple[Place, Gpu | None], ...]
    odd: tuple[str, ...]


def rank_rows(past: Past, gpus: Mapping[str, Gpu], *, still: bool = False) -> list[RankRow]:
    """Return a row for each needed process, and one for each GPU whose rank is not known.

    `gpus` are by UUID; `still` says that nothing moves, so that it means something where a rank sleeps.
    """
    behind = set(odd_ranks(past))
    away = elsewhere(past) if still else {}
    resting = _resting(past, gpus)
    rows, placed = [], set[str]()
    for rank in past.ranks:
        own = tuple(
            (place, gpus.get(place.uuid)) for place in past.server.gpus if rank.rank and place.rank == rank.rank
        )
        placed.update(place.uuid for place, _ in own)
        waits = (f"sleeps in {away[rank.rank]}",) if rank.rank in away else ()
        odd = (*_of_process(rank, behind), *waits, *_of_gpus(own, resting))
        rows.append(RankRow(rank.rank or rank.process, rank, own, odd))
    for place in past.server.gpus:
        if place.uuid not in placed:
            own = ((place, gpus.get(place.uuid)),)
            rows.append(RankRow(place.rank or "no rank known", None, own, tuple(_of_gpus(own, resting))))
    return rows


def _of_process(rank: RankPast, behind: set[str]) -> Iterable[str]:
    if rank.missing_since is not None:
        yield "zombie" if rank.state == "Z" else "gone"
    elif rank.stopped_since is not None:
        yield "stopped"
    if rank.rank and rank.rank in behind and rank.missing_since is None:
        yield "lags behind"


def _of_gpus(own: Iterable[tuple[Place, Gpu | None]], resting: set[str]) -> Iterable[str]:
    for place, gpu in own:
        if gpu and gpu.lost:
            yield "GPU lost"
        elif gpu and gpu.recovery_action not in {None, "", "none"}:
            yield f"GPU needs {words.plain(gpu.recovery_action or '')}"
        elif place.uuid in resting:
            yield "GPU at rest"


def _resting(past: Past, gpus: Mapping[str, Gpu]) -> set[str]:
    """Return the GPUs that rest while most of the same server are busy."""
    if past.gpus.split_since is None:
        return set()
    busy = {p.uuid: gpus[p.uuid].utilization for p in past.server.gpus if p.uuid in gpus}
    resting = {uuid for uuid, ratio in busy.items() if ratio is not None and ratio < AT_REST}
    return resting if len(resting) <= len(busy) / 2 else set()


def table(key: str, past: Past, rows: Sequence[RankRow]) -> Html:
    """Return the rows as a table in a region that scrolls by itself where the screen is narrow."""
    with_gpus = any(gpu for row in rows for _, gpu in row.gpus)
    columns = COLUMNS if with_gpus else COLUMNS[4:]
    head = tag("tr", tag("th", "Rank", scope="col"), (tag("th", column, scope="col") for column in columns))
    top = max([1.0, *(row.rank.cpu for row in rows if row.rank and row.rank.cpu is not None)])
    body = [_row(past, row, top, with_gpus=with_gpus) for row in rows]
    caption = tag("caption", "Ranks and their GPUs" if with_gpus else "Ranks; no GPU of theirs can be read")
    inner = tag("table", caption, tag("thead", head), tag("tbody", body))
    label = f"Ranks of {past.server.name}"
    return tag("div", inner, class_="scroll", id=f"{key}-ranks", role="region", tabindex=0, aria_label=label)


def _row(past: Past, row: RankRow, top: float, *, with_gpus: bool) -> Html:
    flags = [(" ", tag("span", f"◀ {word}", class_="flag")) for word in dict.fromkeys(row.odd)]
    head = tag("th", named(row.name), flags, scope="row")
    cells = [*(_gpu_cells(row.gpus) if with_gpus else ()), *_process_cells(past, row.rank, top)]
    return tag("tr", head, cells, class_="odd" if flags else None)


def _gpu_cells(own: Sequence[tuple[Place, Gpu | None]]) -> Iterable[Html]:
    yield tag("td", ", ".join(str(place.index) for place, _ in own) or words.NOT_READ, class_="number")
    gpus = [gpu for _, gpu in own if gpu and not gpu.lost]
    yield _cell([(gpu.utilization, 1.0) for gpu in gpus], words.percent)
    yield _cell([(gpu.memory_used, gpu.memory_total) for gpu in gpus], words.gib)
    yield _cell([(gpu.power_watts, gpu.power_limit_watts) for gpu in gpus], words.watts)


def _process_cells(past: Past, rank: RankPast | None, top: float) -> Iterable[Html]:
    if rank is None:
        yield from [tag("td", words.NOT_READ, class_="unread")] * 3
        return
    yield _cell([(rank.cpu, top)], words.cores)
    yield tag("td", STATES.get(rank.state, rank.state) or words.NOT_READ)
    phase = "ready" if past.phase == "ready" and rank.phase else rank.phase  # no rank logs that it is ready
    yield tag("td", words.plain(phase) if phase else words.NOT_READ)


def _cell(values: Sequence[tuple[float | None, float | None]], written: words.Written) -> Html:
    """Return a number over a bar of the whole; of several GPUs of one rank each."""
    known = [(value, whole) for value, whole in values if value is not None]
    if not known:
        return tag("td", words.NOT_READ, class_="number unread")
    text = " / ".join(written(value) for value, _ in known)
    bars = [_bar(value / whole) for value, whole in known if whole]
    return tag("td", joined(text, bars), class_="number")


def _bar(ratio: float) -> Html:
    filled = tag("path", d=f"M0 0h{100 * min(1.0, max(0.0, ratio)):.0f}v4H0z")
    return tag("svg", filled, class_="bar", viewBox="0 0 100 4", preserveAspectRatio="none", aria_hidden="true")
