"""How does a verdict look? A word, a shape and a colour of its own, so that none of the three is needed to tell it."""

from collections.abc import Iterable, Mapping

from stallwatch.pages.markup import Html, joined, tag
from stallwatch.verdict import WORST_FIRST, Verdict

TROUBLED = frozenset({"dead", "stalled", "suspect", "slow", "unknown"})
NONE = "none"
"""The look of a node without servers."""

OCTAGON = "M7 1h10l6 6v10l-6 6H7l-6-6V7z"
TRIANGLE = "M12 1.5 23.5 22.5H.5z"
DIAMOND = "M12 .5 23.5 12 12 23.5 .5 12z"
SQUARE = "M2 2h20v20H2z"
CIRCLE = "M12 1a11 11 0 1 1 0 22 11 11 0 0 1 0-22z"
SHAPES: Mapping[str, tuple[str, str]] = {  # the body, and the sign drawn on it
    "dead": (SQUARE, "M7.5 7.5l9 9m0-9l-9 9"),
    "stalled": (OCTAGON, "M9 7.5v9m6-9v9"),
    "suspect": (TRIANGLE, "M12 9v6m0 3.4v.2"),
    "slow": (DIAMOND, "M12 7v5.5l3.5 2.5"),
    "unknown": (CIRCLE, "M9 9.2a3 3 0 1 1 4.4 2.7c-.9.5-1.4 1-1.4 2.1m0 3.4v.2"),
    "starting": (CIRCLE, "M12 17V7m-4 4 4-4 4 4"),
    "stopping": (CIRCLE, "M12 7v10m-4-4 4 4 4-4"),
    "busy": (CIRCLE, "M7 12.5l3.5 3.5 6.5-8"),
    "idle": (CIRCLE, "M8 12h8"),
    NONE: (CIRCLE, ""),
}
ICON_COLOURS = {  # of the icon of the tab, which stands on light and on dark alike
    "dead": "#8c1d40",
    "stalled": "#c8102e",
    "suspect": "#b45309",
    "slow": "#8a6100",
    "unknown": "#5b6470",
    "starting": "#1d5fd1",
    "stopping": "#6146c9",
    "busy": "#0f7a3d",
    "idle": "#2f6f80",
    NONE: "#5b6470",
}


def worst(states: Iterable[str]) -> str:
    """Return the verdict that comes first of these, `none` where there are none."""
    return min(states, key=WORST_FIRST.index, default=NONE)


def by_urgency(verdicts: Mapping[str, Verdict]) -> list[str]:
    """Return the names of servers, the worst first."""
    return sorted(verdicts, key=lambda name: (WORST_FIRST.index(verdicts[name].state), name))


def counts(verdicts: Mapping[str, Verdict]) -> dict[str, int]:
    """Return how many servers there are of each verdict that occurs, the worst first."""
    states = [verdict.state for verdict in verdicts.values()]
    return {state: states.count(state) for state in WORST_FIRST if state in states}


def shape(state: str) -> Html:
    """Return the sign of a verdict, for beside its word."""
    body, sign = SHAPES[state]
    paths = joined(tag("path", class_="body", d=body), tag("path", class_="sign", d=sign))
    return tag("svg", paths, class_="shape", viewBox="0 0 24 24", aria_hidden="true", focusable="false")


def icon(state: str) -> str:
    """Return the picture of the browser tab as a document of its own."""
    body, sign = SHAPES[state]
    stroke = {"stroke": "#fff", "stroke_width": 2.6, "stroke_linecap": "round", "stroke_linejoin": "round"}
    paths = joined(tag("path", d=body, fill=ICON_COLOURS[state]), tag("path", d=sign, fill="none", **stroke))
    return str(tag("svg", paths, xmlns="http://www.w3.org/2000/svg", viewBox="0 0 24 24"))
