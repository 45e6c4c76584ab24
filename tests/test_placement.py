"""Placement: which GPUs a server holds, and what they show together."""

import json
from dataclasses import replace

import pytest

from readings import GIB, a_server, gpus
from stallwatch.collectors.gpu import GpuProcess, GpuReading
from stallwatch.placement import Holding, Placement, holding
from stallwatch.snapshot import Place


def bare(**fields):
    """Return a server of eight ranks that has no GPUs yet."""
    return a_server(gpus=(), **fields)


def placed(server, reading, placement=None):
    """Return the GPUs of a server as (index, rank)."""
    (result,) = (placement or Placement()).place((server,), reading)
    return [(place.index, place.rank) for place in result.gpus]


def without_processes(reading):
    """Return the reading as in a container, where the driver lists no process."""
    return replace(reading, gpus=tuple(replace(gpu, processes=()) for gpu in reading.gpus))


def test_the_drivers_process_list_decides():
    """A GPU is that of the rank whose process holds memory there."""
    reading = gpus(0.0)
    swapped = (
        replace(reading.gpus[0], processes=(GpuProcess(102, GIB),)),
        replace(reading.gpus[1], processes=(GpuProcess(101, GIB),)),
    )
    assert placed(bare(ranks=2), replace(reading, gpus=swapped)) == [(0, "TP1"), (1, "TP0")]


def test_a_child_of_a_rank_holds_for_its_rank():
    """Memory that belongs to a descendant of a scheduler counts as the scheduler's."""
    server = bare(ranks=1)
    scheduler = replace(server.processes[1], tree=(777,))
    reading = gpus(0.0, count=1, processes=(GpuProcess(777, GIB),))
    assert placed(replace(server, processes=(server.processes[0], scheduler)), reading) == [(0, "TP0")]


def test_gpus_of_others_are_not_ours():
    """With a process list that names none of its processes, a server holds nothing yet."""
    assert placed(bare(), gpus(0.0, processes=(GpuProcess(9999, GIB),))) == []


def test_the_formula_stands_in_without_a_process_list():
    """Where the driver lists no process at all, the flags tell which GPU a rank uses."""
    reading = without_processes(gpus(0.0))
    assert placed(bare(), reading) == [(i, f"TP{i}") for i in range(8)]


def test_processes_that_are_kept_from_us_say_nothing_of_whose_a_gpu_is():
    """In a container the driver may name processes by the node's numbers, which may be this server's."""
    reading = gpus(0.0)
    hidden = tuple(replace(gpu, processes=(GpuProcess(90000 + gpu.index, GIB, hidden=True),)) for gpu in reading.gpus)
    assert placed(bare(), replace(reading, gpus=hidden)) == [(i, f"TP{i}") for i in range(8)]
    one_seen = (replace(hidden[0], processes=(GpuProcess(9999, GIB),)), *hidden[1:])
    assert placed(bare(), replace(reading, gpus=one_seen)) == []


def test_a_container_counts_the_gpus_that_it_was_given_anew():
    """In the node's order, however they were named; its CUDA_VISIBLE_DEVICES counts among those."""
    reading = without_processes(gpus(0.0))
    assert placed(bare(ranks=2, container_devices="5,4"), reading) == [(4, "TP0"), (5, "TP1")]
    assert placed(bare(ranks=2, container_devices="GPU-7,GPU-2"), reading) == [(2, "TP0"), (7, "TP1")]
    both = bare(ranks=2, container_devices="4,5,6,7", cuda_visible_devices="3,1")
    assert placed(both, reading) == [(5, "TP1"), (7, "TP0")]


def test_cuda_shows_nothing_beyond_what_names_no_gpu():
    """The list ends there, for an unknown number as for a UUID that is that of several when shortened."""
    reading = without_processes(gpus(0.0))
    assert placed(bare(ranks=2, cuda_visible_devices="6,?,7"), reading) == [(6, "TP0")]
    assert placed(bare(ranks=2, cuda_visible_devices="8,7"), reading) == []
    assert placed(bare(ranks=2, cuda_visible_devices="7,GPU-"), reading) == [(7, "TP0")]


def test_cuda_visible_devices_shifts_the_formula():
    """Ranks count through the GPUs that the server can see, by index or by UUID."""
    reading = without_processes(gpus(0.0))
    assert placed(bare(ranks=2, cuda_visible_devices="6,7"), reading) == [(6, "TP0"), (7, "TP1")]
    assert placed(bare(ranks=2, cuda_visible_devices="GPU-3, GPU-1"), reading) == [(1, "TP1"), (3, "TP0")]


def test_a_lost_gpu_stays_the_servers():
    """What a server held once is its own for as long as this life of it lasts."""
    placement = Placement()
    server = bare(ranks=2)
    assert placed(server, gpus(0.0, count=2), placement) == [(0, "TP0"), (1, "TP1")]
    lost = gpus(5.0, count=2, lost=True, memory=None, processes=())
    assert placed(server, lost, placement) == [(0, "TP0"), (1, "TP1")]
    assert placed(server, None, placement) == [(0, "TP0"), (1, "TP1")]


@pytest.mark.parametrize("garbage", [None, 7, [["a"]], [["a", "b", [{"uuid": 5}]]]])
def test_a_lost_gpu_stays_the_servers_over_a_restart(garbage):
    """As plain values for a file; what is no such thing changes nothing."""
    before, after, server = Placement(), Placement(), bare(ranks=2)
    placed(server, gpus(0.0, count=2), before)
    after.recall(json.loads(json.dumps(before.remember())))
    after.recall(garbage)
    lost = gpus(5.0, count=2, lost=True, memory=None, processes=())
    assert placed(server, lost, after) == [(0, "TP0"), (1, "TP1")]


def test_configured_gpus_win():
    """GPUs that the configuration names are the server's whatever the driver lists."""
    assert placed(replace(bare(ranks=2), gpus=(Place("", 5),)), gpus(0.0)) == [(5, "")]


def test_what_the_gpus_show_together():
    """The minima and maxima are over the GPUs of the server, and what is missing is left out."""
    reading = gpus(0.0, count=4, utilization=0.5)
    mixed = (
        replace(reading.gpus[0], utilization=1.0, memory_used=GIB),
        replace(reading.gpus[1], utilization=None),
        *reading.gpus[2:],
    )
    seen = holding(a_server(ranks=3), replace(reading, gpus=mixed))
    assert seen == Holding(0.5, 1.0, GIB, 76 * GIB, loaded=True)


def test_nothing_is_claimed_without_gpus():
    """Without a reading, or without GPUs of its own, everything is unknown."""
    assert holding(a_server(), None) == Holding()
    assert holding(bare(), gpus(0.0)) == Holding()


def test_when_weights_are_loaded():
    """3 GiB or 5 % of a GPU are weights; a CUDA context is not."""

    def loaded(memory, total):
        return holding(a_server(ranks=1), gpus(0.0, count=1, memory=memory, memory_total=total)).loaded

    assert loaded(3 * GIB, 96 * GIB)
    assert loaded(2 * GIB, 24 * GIB)
    assert not loaded(2 * GIB, 96 * GIB)
    assert loaded(4 * GIB, None)


def test_lost_gpus_are_told():
    """A lost GPU of the server is named by its index."""
    assert holding(a_server(ranks=2), GpuReading(0.0, "", gpus(0.0, count=2, lost=True, memory=None).gpus)).lost == (
        0,
        1,
    )
