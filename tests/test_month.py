"""A month without a hang: does anybody get paged? And a hang at any moment: is it told of in time?"""

import random
from itertools import pairwise

import pytest

from quiet_days import CLIENTS
from quiet_days import Days as QuietDays
from stallwatch.replay import play
from stallwatch.simulation.scenario import scenario_of

DAY = 86400.0
STEP = 15.0
SERVERS = [(0, kind) for kind in CLIENTS]
MORE = [pytest.param(seed, kind, marks=pytest.mark.long) for seed in (1,) for kind in CLIENTS]
DAYS = {0: 1.0, 1: 30 / len(CLIENTS) - 1.0}
"""A day of each kind for `make test`, the rest of the month for `make test-all`."""


@pytest.mark.parametrize(("seed", "kind"), [*SERVERS, *MORE])
def test_no_page_in_a_month_without_a_hang(seed, kind):
    """Traffic, idleness, loads, compiles, drains, deploys and gaps in every signal: never stalled, never dead."""
    raw = QuietDays(f"{kind} {seed}", kind).scenario(DAYS[seed] * DAY)
    wrong, states = [], set()
    for look in play(scenario_of(raw), STEP):
        for name, verdict in look.verdicts.items():
            states.add(verdict.state)
            if verdict.state in {"stalled", "dead"}:
                wrong.append(f"{look.t:.0f} s {name}: {verdict.state} {verdict.signature} {verdict.reason}")
    assert wrong[:3] == []
    assert {"starting", "busy", "suspect"} <= states


HANGS = {
    "cold": {"gpu": {"utilization": 0, "power_watts": 90}, "scheduler": {"cpu": 0}},
    "spinning": {"gpu": {"utilization": 100, "power_watts": 130}, "scheduler": {"cpu": 1.0}},
    "split": {"gpu": {"utilization": [100, 0], "power_watts": [130, 90]}, "scheduler": {"cpu": [1, 0]}},
    "unseen": {"gpu": {"utilization": None, "power_watts": None}},
}
LIMIT = 240.0


def hung_at(dice):
    """Return a server that serves, and hangs in some way at some moment, and that moment."""
    engine = {"running": dice.randint(1, 40), "queued": dice.choice((0, 9)), "tokens_per_second": 0}
    how = HANGS[dice.choice(list(HANGS))]
    busy = {"gpu": {"utilization": 80, "memory_gib": 60, "power_watts": 400}, "scheduler": {"cpu": 1.0}, "health": "ok"}
    if how is HANGS["unseen"]:
        busy["gpu"] = {"utilization": None, "memory_gib": 60}
    health = dice.choice(("timeout", 503, "refused", "empty"))
    at = dice.uniform(30, 1200)
    first = {
        "for": at,
        "phase": "ready",
        "log": "progress",
        "engine": {**engine, "tokens_per_second": dice.choice((20, 900))},
    }
    last = {"for": 600, "log": dice.choice(("silent", "access", "heartbeat")), "health": health, "engine": engine}
    server = {"version": "0.5.9", "args": ["--tp-size", "2"], "segments": [{**busy, **first}, {**how, **last}]}
    return {"node": {"gpus": 2}, "servers": [server]}, at


@pytest.mark.parametrize("seed", [*range(30), *(pytest.param(seed, marks=pytest.mark.long) for seed in range(30, 100))])
def test_a_hang_at_any_moment_is_told_of_in_time(seed):
    """From the moment at which nothing moves, it is called stalled after N, and at most 30 s later."""
    dice = random.Random(f"hang {seed}")
    raw, at = hung_at(dice)
    looks = list(play(scenario_of(raw), dice.choice((1.0, 5.0))))
    stalled = next(look.t for look in looks if look.verdicts["sglang:30000"].state == "stalled")
    assert LIMIT <= stalled - at <= LIMIT + 30
    states = [look.verdicts["sglang:30000"].state for look in looks]
    assert "suspect" in states[: states.index("stalled")]
    assert not [pair for pair in pairwise(states) if pair[0] == "stalled" != pair[1]]
