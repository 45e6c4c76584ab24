"""Which limits are to be tried? What `--limit NAME=DURATION` says, and whether they go together."""

from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

import msgspec

from stallwatch.config import Config, ConfigError, RuleError
from stallwatch.sections import Limits
from stallwatch.settings.sources import Source

FLAG = "--limit"


def limits_to_try(given: Iterable[str], beside: Iterable[Mapping[str, float]] = ({},)) -> dict[str, float]:
    """Return the limits that are given as `stalled=3m`, in seconds; of one that is given twice the last counts.

    `beside` are the limits that each server has of its own. Raises ConfigError where one does not fit, or where they
    are out of order together.
    """
    raw: dict[str, Any] = {}
    for text in given:
        name, equals, value = text.partition("=")
        if not equals:
            raise ConfigError(f"{FLAG}: expected NAME=DURATION such as stalled=3m, got {text!r}")
        raw[name.strip()] = value.strip()
    changed = Source(raw, lambda _path: FLAG, Path(), text=True).section(Limits, raw, "")
    for own in beside if changed else ():
        _check_order({**own, **changed})
    return changed


def _check_order(limits: Mapping[str, float]) -> None:
    try:
        Config(limits=msgspec.structs.replace(Limits(), **limits))
    except RuleError as error:
        raise ConfigError(f"{FLAG}: {error}") from None
