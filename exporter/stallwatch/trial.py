"""Does a pid or path that once never came back from a read answer again? Tried in a child of its own."""

import os
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

from stallwatch.logs.place import JOURNAL
from stallwatch.node import inside
from stallwatch.snapshot import Failure, Reading

NAME = "trial"


@dataclass(frozen=True, slots=True)
class TrialReading(Reading):
    """That the read came back at all, whatever it said."""


def reader(
    options: Mapping[str, str], note: Callable[[str], None]
) -> Callable[[list[dict[str, Any]], frozenset[str]], tuple[TrialReading, tuple[Failure, ...]]]:
    """Return a function that reads what a note names: `pid N` or `log PATH`."""
    procfs = options.get("procfs", "/proc")

    def read(targets: list[dict[str, Any]], _skip: frozenset[str]) -> tuple[TrialReading, tuple[Failure, ...]]:
        failures = tuple(failure for target in targets for failure in _try(target["note"], procfs, note))
        return TrialReading(time.monotonic()), failures

    return read


def _try(text: str, procfs: str, note: Callable[[str], None]) -> tuple[Failure, ...]:
    kind, _, name = text.partition(" ")
    note(text)
    if name.startswith(JOURNAL):
        from stallwatch.logs.journal import holds  # noqa: PLC0415 most trials are of files

        holds(name)
        return ()  # it came back
    path = f"{procfs}/{name}/cmdline" if kind == "pid" else name
    try:
        with inside.held("", path) as handle:
            if kind == "log" and os.fstat(handle).st_size == 0:
                return ()  # it answers; what the kernel makes up has no size, and may be meant for another
            descriptor = inside.open_regular(handle)
        try:
            os.read(descriptor, 1)
        finally:
            os.close(descriptor)
    except (inside.NotRegularFileError, IsADirectoryError):
        return ()  # it answers; to read from a pipe would take what is in it from its reader
    except OSError as error:
        return (Failure(NAME, "error", f"{text}: {error.strerror}"),)
    return ()
