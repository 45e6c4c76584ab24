"""A soak in short: what the exporter holds does not grow over churn and faults, and no exception goes unhandled."""

import asyncio
import importlib.util
import subprocess
import sys
from pathlib import Path

import pytest

SCRIPT = Path(__file__).parents[1] / "benchmarks" / "soak.py"


@pytest.fixture(scope="module")
def soak():
    """Return the script as a module."""
    spec = importlib.util.spec_from_file_location("soak", SCRIPT)
    module = importlib.util.module_from_spec(spec)
    sys.modules["soak"] = module  # its dataclasses look there
    spec.loader.exec_module(module)
    return module


def test_played_hours_leave_nothing_behind(soak, capsys):
    """Servers that come, hang, crash and go, and reads that fail, in virtual time."""
    table, faults, told = asyncio.run(soak.soak_virtual(4800.0))
    assert soak.report("virtual", told, table, faults), capsys.readouterr().out
    assert "dead" in told


def test_what_grows_is_told(soak, capsys):
    """A number that is larger at the end than it may be fails the soak."""
    samples = [{"threads": float(number)} for number in range(100)]
    table = soak.rows(samples, {"threads": 2})
    assert (table[0].early, table[0].late, table[0].grew) == (34.0, 99.0, True)
    assert not soak.report("virtual", "", table, [])
    assert "GREW" in capsys.readouterr().out
    assert not soak.report("virtual", "", [], ["a fault"])


@pytest.mark.parametrize("arguments", [["--days", "0", "--minutes", "0.15"]])
def test_some_seconds_of_real_processes_leave_nothing_behind(arguments):
    """The script as it is run, with servers and workers that are killed."""
    done = subprocess.run(
        [sys.executable, str(SCRIPT), *arguments], capture_output=True, text=True, check=False, timeout=55
    )
    assert done.returncode == 0, done.stdout + done.stderr
    assert "exceptions that nobody handled: 0" in done.stdout


@pytest.mark.long
@pytest.mark.timeout(3000)
def test_a_played_week_and_minutes_of_real_processes():
    """The whole soak."""
    done = subprocess.run([sys.executable, str(SCRIPT)], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout + done.stderr
