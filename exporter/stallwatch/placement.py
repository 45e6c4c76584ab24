"""Which GPUs does each server hold, and how do they fare together?

The driver's process list is the truth; the flags' formula with CUDA_VISIBLE_DEVICES stands in where that list has none
of the server's processes. What was seen once in a server's life stays, so that a GPU that is lost is still its GPU.
"""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import takewhile
from typing import Any

import msgspec

from stallwatch.collectors.gpu import Gpu, GpuReading
from stallwatch.engines import engine_named
from stallwatch.snapshot import Place, Server

LOADED_BYTES = 3 * 1024**3
LOADED_RATIO = 0.05


@dataclass(frozen=True, slots=True)
class Holding:
    """What the GPUs of one server show together; None where no GPU of it says."""

    utilization_min: float | None = None
    utilization_max: float | None = None
    memory_min: int | None = None
    memory_max: int | None = None
    loaded: bool | None = None
    lost: tuple[int, ...] = ()


class Placement:
    """The GPUs of each server, remembered for as long as this life of it lasts."""

    def __init__(self) -> None:
        self._known: dict[tuple[str, str], dict[str, Place]] = {}

    def place(self, servers: Sequence[Server], reading: GpuReading | None) -> tuple[Server, ...]:
        """Return the servers with their GPUs filled in."""
        gpus = reading.gpus if reading else ()
        lives = {(server.name, server.incarnation) for server in servers}
        self._known = {life: places for life, places in self._known.items() if life in lives}
        return tuple(self._placed(server, gpus) for server in servers)

    def remember(self) -> Any:
        """Return what an exporter that is started again can go on with, as plain values for a file."""
        return [
            [*life, [msgspec.to_builtins(place) for place in places.values()]] for life, places in self._known.items()
        ]

    def recall(self, remembered: Any) -> None:
        """Go on with what was remembered; what is no such thing changes nothing."""
        try:
            known = msgspec.convert(remembered, list[tuple[str, str, list[Place]]])
        except msgspec.ValidationError:
            return
        self._known = {(name, life): {place.uuid: place for place in places} for name, life, places in known}

    def _placed(self, server: Server, gpus: Sequence[Gpu]) -> Server:
        known = self._known.setdefault((server.name, server.incarnation), {})
        seen = _configured(server, gpus) or _by_process(server, gpus)
        known.update({place.uuid: place for place in seen})
        places = tuple(known.values()) or _by_formula(server, gpus)
        return replace(server, gpus=tuple(sorted(places, key=lambda place: place.index)))


def holding(server: Server, reading: GpuReading | None) -> Holding:
    """Return what the GPUs of a server show together."""
    uuids = {place.uuid for place in server.gpus}
    gpus = [gpu for gpu in (reading.gpus if reading else ()) if gpu.uuid in uuids]
    utilization = [gpu.utilization for gpu in gpus if gpu.utilization is not None]
    memory = [gpu.memory_used for gpu in gpus if gpu.memory_used is not None]
    return Holding(
        min(utilization, default=None),
        max(utilization, default=None),
        min(memory, default=None),
        max(memory, default=None),
        any(map(_is_loaded, gpus)) if memory else None,
        tuple(gpu.index for gpu in gpus if gpu.lost),
    )


def _is_loaded(gpu: Gpu) -> bool:
    if gpu.memory_used is None:
        return False
    return gpu.memory_used >= LOADED_BYTES or bool(
        gpu.memory_total and gpu.memory_used >= LOADED_RATIO * gpu.memory_total
    )


def _configured(server: Server, gpus: Sequence[Gpu]) -> tuple[Place, ...]:
    wanted = {place.index for place in server.gpus}
    return tuple(Place(gpu.uuid, gpu.index) for gpu in gpus if gpu.index in wanted)


def _by_process(server: Server, gpus: Iterable[Gpu]) -> tuple[Place, ...]:
    ranks = _ranks_by_pid(server)
    places = []
    for gpu in gpus:
        holders = [ranks[process.pid] for process in gpu.processes if process.pid in ranks]
        if holders:
            places.append(Place(gpu.uuid, gpu.index, next(filter(None, sorted(holders)), "")))
    return tuple(places)


def _ranks_by_pid(server: Server) -> Mapping[int, str]:
    ranks: dict[int, str] = {}
    for process in server.processes:
        ranks.update(dict.fromkeys(process.tree, process.rank) if process.role == "scheduler" else {})
    ranks.update({process.pid: process.rank for process in server.processes})
    return ranks


def _by_formula(server: Server, gpus: Sequence[Gpu]) -> tuple[Place, ...]:
    if any(not process.hidden for gpu in gpus for process in gpu.processes):
        return ()  # the driver does list processes, and none is this server's: it holds no GPU yet
    visible = _visible(server.cuda_visible_devices, _given(server.container_devices, gpus))
    ids = engine_named(server.engine).gpu_ids(server.launch, server.ranks)
    return tuple(
        Place(visible[number].uuid, visible[number].index, rank)
        for rank, number in ids.items()
        if number < len(visible)
    )


def _given(setting: str | None, gpus: Sequence[Gpu]) -> Mapping[int, Gpu]:
    """Return the GPUs by the numbers that a server knows them by: a container counts those that it was given anew."""
    if setting is None:
        return {gpu.index: gpu for gpu in gpus}
    names = set(setting.split(","))
    return dict(enumerate(gpu for gpu in gpus if names & {str(gpu.index), gpu.uuid}))


def _visible(setting: str | None, gpus: Mapping[int, Gpu]) -> Sequence[Gpu]:
    """Return the GPUs that CUDA shows: the list ends at what names none of them, and a UUID may be shortened."""
    if setting is None:
        return list(gpus.values())
    names = map(str.strip, setting.split(","))
    found = ([gpu for number, gpu in gpus.items() if _names(name, number, gpu)] for name in names)
    return [alike[0] for alike in takewhile(lambda alike: len(alike) == 1, found)]


def _names(name: str, number: int, gpu: Gpu) -> bool:
    return name == str(number) or (name.startswith("GPU-") and gpu.uuid.startswith(name))
