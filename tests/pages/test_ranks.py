"""Ranks: the row of each, and the words at the ones that are odd."""

from dataclasses import replace

from pasts import NOW, a_past, gpus, ranks
from readings import GIB, a_server
from stallwatch.collectors.gpu import Gpu
from stallwatch.pages.ranks import rank_rows, table
from stallwatch.past import RankPast
from stallwatch.snapshot import Place


def some_gpus(*utilization, **fields):
    """Return GPUs by UUID, with this utilization."""
    made = [
        Gpu(
            n,
            f"GPU-{n}",
            utilization=ratio,
            memory_used=40 * GIB,
            memory_total=80 * GIB,
            power_watts=90.0,
            power_limit_watts=180.0,
        )
        for n, ratio in enumerate(utilization)
    ]
    return {gpu.uuid: replace(gpu, **fields) for gpu in made}


def odd(past, of=None):
    """Return the words at the rows that are odd."""
    return {row.name: row.odd for row in rank_rows(past, of or {}) if row.odd}


def test_no_rank_is_odd_among_equals():
    """Ranks that all sleep, or all spin, are not marked."""
    assert odd(a_past(ranks=ranks(0.0, 0.0, 0.0))) == {}
    assert odd(a_past(ranks=ranks(1.0, 1.0, 1.0))) == {}


def test_the_rank_that_sleeps_while_others_spin_is_marked():
    """It lags behind, and its GPU rests where the others are busy."""
    past = a_past(server=a_server(ranks=4), ranks=ranks(1.0, 1.0, 1.0, 0.0), gpus=gpus(0.0, 1.0))
    assert odd(past, some_gpus(1.0, 1.0, 1.0, 0.0)) == {"TP3": ("lags behind", "GPU at rest")}


def test_the_rank_in_an_earlier_phase_is_marked():
    """One that still loads while the others are done."""
    some = ranks(0.0, 0.0, 0.0, phase="loaded")
    past = a_past(ranks=(*some[:2], replace(some[2], phase="loading_weights")))
    assert odd(past) == {"TP2": ("lags behind",)}


def test_processes_that_are_stopped_or_gone_are_marked():
    """Stopped, zombie and gone each have their word."""
    one, two, three = ranks(0.0, 0.0, 0.0)
    past = a_past(
        ranks=(
            replace(one, state="T", stopped_since=NOW - 60),
            replace(two, state="Z", missing_since=NOW - 60),
            replace(three, state="", missing_since=NOW - 60),
        )
    )
    assert odd(past) == {"TP0": ("stopped",), "TP1": ("zombie",), "TP2": ("gone",)}


def test_a_gpu_that_is_lost_or_needs_something_is_marked():
    """At the rank that computes on it."""
    some = some_gpus(0.0, 0.0, recovery_action="none")
    some["GPU-0"] = Gpu(0, "GPU-0", lost=True)
    some["GPU-1"] = replace(some["GPU-1"], recovery_action="node_reboot")
    past = a_past(server=a_server(ranks=2), ranks=ranks(0.0, 0.0))
    assert odd(past, some) == {"TP0": ("GPU lost",), "TP1": ("GPU needs node reboot",)}


def test_a_gpu_whose_rank_is_not_known_has_a_row_of_its_own():
    """Nothing that the server holds is left out."""
    server = a_server(ranks=1, gpus=(Place("GPU-0", 0, "TP0"), Place("GPU-1", 5)))
    past = a_past(server=server, ranks=(*ranks(0.5), RankPast("detokenizer", role="detokenizer", cpu=0.0)))
    rows = rank_rows(past, some_gpus(0.5, 0.5))
    assert [row.name for row in rows] == ["TP0", "detokenizer", "no rank known"]
    assert [[place.index for place, _ in row.gpus] for row in rows] == [[0], [], [5]]


def test_the_table_shows_every_signal_of_a_rank():
    """GPU utilization, memory, power, CPU, state and phase, with bars of the same scale."""
    past = a_past(server=a_server(ranks=1), ranks=ranks(0.25, state="S", phase="loading_weights"))
    html = table("k", past, rank_rows(past, some_gpus(0.5)))
    for text in ("GPU busy", "50 %", "40", "90 W", "0.25", "S sleeping", "loading weights"):
        assert f">{text}<" in html
    assert html.count('d="M0 0h50v4H0z"') == 3
    assert html.count('d="M0 0h25v4H0z"') == 1


def test_a_rank_of_a_server_that_is_ready_is_ready():
    """No rank logs that it is ready, so its last phase is not shown as if it still held."""
    past = a_past(phase="ready", ranks=ranks(0.5, phase="capturing_graphs"))
    assert "<td>ready</td>" in table("k", past, rank_rows(past, {}))


def test_without_gpus_the_table_says_so():
    """No column of dashes, but words."""
    past = a_past(ranks=ranks(0.5, 0.5))
    html = table("k", past, rank_rows(past, {}))
    assert "Ranks; no GPU of theirs can be read" in html
    assert "GPU busy" not in html


def test_what_is_odd_is_told_by_a_word_and_a_sign():
    """Never by colour alone."""
    past = a_past(ranks=ranks(1.0, 1.0, 0.0))
    assert '<tr class="odd"><th scope="row"><bdi>TP2</bdi> <span class="flag">◀ lags behind</span></th>' in table(
        "k", past, rank_rows(past, {})
    )
