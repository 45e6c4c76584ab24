"""What a fleet costs: is it measured with a real Prometheus over nodes that differ?"""

import asyncio
import importlib.util
import sys
from pathlib import Path

import pytest

SCRIPT = Path(__file__).parents[1] / "benchmarks" / "fleet.py"


@pytest.fixture(scope="module")
def fleet():
    """Return the script as a module."""
    spec = importlib.util.spec_from_file_location("fleet_benchmark", SCRIPT)
    module = importlib.util.module_from_spec(spec)
    sys.modules[spec.name] = module  # its dataclasses look there
    spec.loader.exec_module(module)
    return module


def test_a_small_fleet_is_measured(fleet, tmp_path):
    """Each node is scraped, its series are its own, and the table extrapolates them."""
    one = asyncio.run(fleet.measure(9, 4, 2.0, tmp_path))
    assert one.samples_a_scrape > 300
    assert one.series > 9 * one.samples_a_scrape * 0.95
    assert 0 < one.zipped_a_scrape < one.bytes_a_scrape / 3
    table = fleet.report(one, 1000)
    (series,) = (line.split() for line in table.splitlines() if line.startswith("series in the head"))
    measured, extrapolated = (float(word.replace(",", "")) for word in series[-2:])
    assert extrapolated == pytest.approx(measured * 1000 / 9, rel=0.01)


def test_the_gpus_of_two_nodes_differ(fleet):
    """Else Prometheus would hold one label for all."""
    played = fleet.Fleet([['x{uuid="GPU-0"} 1\n'], ['y{uuid="GPU-0"} 1\n']], 1.0)
    assert played.page(1) == b'x{uuid="GPU-0001-0"} 1\n'
    assert played.page(8) == b'y{uuid="GPU-0008-0"} 1\n'
