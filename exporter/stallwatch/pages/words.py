"""How are numbers and times written on the page?"""

from collections.abc import Callable
from datetime import datetime, timezone

from stallwatch.pages.markup import Html, joined, tag
from stallwatch.wording import duration

Written = Callable[[float], str]

GIB = 1024**3
DASH = "\N{EN DASH}"
"""Between the ends of a range, and where there is no value."""
NOT_READ = DASH
FEW_CORES = 10


def percent(value: float) -> str:
    """Return a ratio."""
    return f"{100 * value:.0f} %"


def watts(value: float) -> str:
    """Return a power."""
    return f"{value:.0f} W"


def cores(value: float) -> str:
    """Return CPU time per time, as cores."""
    return f"{value:.2f}" if value < FEW_CORES else f"{value:.0f}"


def rate(value: float) -> str:
    """Return tokens per second."""
    return f"{value:.0f}/s" if value == 0 or value >= FEW_CORES else f"{value:.1f}/s"


def gib(value: float) -> str:
    """Return an amount of memory."""
    return f"{value / GIB:.0f}"


def plain(word: str) -> str:
    """Return a word of a metric as a person writes it."""
    return word.replace("_", " ")


def clock(unix: float, now: float) -> Html:
    """Return a time of day in UTC, with the date where it is not within the last hours; a script can localize it.

    A time that no calendar has stays a number.
    """
    try:
        at = datetime.fromtimestamp(unix, tz=timezone.utc)
    except (ValueError, OverflowError, OSError):
        return joined(f"{unix:g}")
    shown = at.strftime("%H:%M:%S" if now - unix < 12 * 3600 else "%Y-%m-%d %H:%M")
    return tag("time", f"{shown} UTC", datetime=at.isoformat(timespec="seconds"))


def ago(unix: float, now: float) -> Html:
    """Return how long ago something was, and when."""
    return joined(f"{duration(now - unix)} ago (", clock(unix, now), ")")
