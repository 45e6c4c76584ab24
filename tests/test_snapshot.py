"""The nouns: times on three clocks, and readings found by their kind."""

from dataclasses import FrozenInstanceError, dataclass

import pytest

from stallwatch.snapshot import Launch, Moment, Process, Reading, Server, Snapshot

MOMENT = Moment(unix=1_000_000.0, monotonic=500.0, boottime=800.0)


@dataclass(frozen=True, slots=True)
class One(Reading):
    """A reading."""


@dataclass(frozen=True, slots=True)
class Two(Reading):
    """Another."""


def test_times_become_unix_times_by_their_age():
    """An event 40 s ago on either clock is 40 s before the snapshot's Unix time."""
    assert MOMENT.unix_of(460.0) == 999_960.0
    assert MOMENT.unix_of_boottime(760.0) == 999_960.0


def test_readings_are_found_by_kind():
    """A snapshot gives the readings of one kind, and None where there is none."""
    snapshot = Snapshot(MOMENT, readings=(One(1.0), Two(2.0), One(3.0)))
    assert snapshot.all(One) == (One(1.0), One(3.0))
    assert snapshot.get(Two) == Two(2.0)
    assert Snapshot(MOMENT).get(One) is None


def test_a_snapshot_is_never_modified():
    """What was published stays as it was."""
    with pytest.raises(FrozenInstanceError):
        Snapshot(MOMENT).servers = ()


def test_the_ranks_of_a_server_are_those_of_its_schedulers():
    """A launcher is no rank."""
    processes = (Process(7, 1, 1.0, "launcher", "launcher"), Process(9, 5, 1.0, "scheduler", "scheduler_TP0", "TP0"))
    assert Server("sglang:30000", "sglang", Launch(), processes).ranks == ("TP0",)
