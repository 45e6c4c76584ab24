"""Every query of the dashboards, asked of a real Prometheus: played servers, real exporters, the shipped rules."""

import asyncio
import re
import time
from dataclasses import dataclass, field

import pytest

from dashboards import NAMES, annotations, choices, columns, filled, panels, queries, words
from nvml_library import build
from played_fleet import PlayedFleet
from stallwatch.past import COLD

pytestmark = pytest.mark.timeout(120)  # all of the play is the setup of the first test

GIB = 1024**3
WITHIN = 40.0
EMPTY = {
    "server: Since it last moved, by signal C": "no engine that is played shows a heartbeat of its scheduler",
    "server: Alerts about its node that begin to fire ": "nothing is wrong with the node in which it is played",
    "server: Xids of its node A": "no GPU that is played has an error",
    "exporter: Bundles of evidence B": "every source gives something",
    "exporter: Alerts about it that begin to fire ": "nothing is wrong with the exporters",
}
JUDGED = {
    "busy": ("busy", "none", "ready"),
    "idle": ("idle", "none", "ready"),
    "hung in its start": ("stalled", "cold deadlock", "loading weights"),
    "hung at work": ("stalled", "spin deadlock", "ready"),
}
NOT_PLAYED = {
    "gpu",
    "group",
    "engine_version",
    "container_id",
    "pod_uid",
}  # labels: a lost GPU, a group that hangs, ...
WITHOUT = " without GPUs"
WITHOUT_GPUS = {
    "fleet": {"Parked by idle servers", "GPU memory parked by idle servers"},
    "server": {"GPU utilization", "GPU memory", "GPU power", "Clock", "Temperature"},
}


@dataclass
class Answers:
    """What Prometheus said: the series by query and by what was chosen, and the values of each choice."""

    fleet: PlayedFleet
    series: dict = field(default_factory=dict)
    offered: dict = field(default_factory=dict)

    def scopes(self, name):
        """Return what is chosen, by a word for it: a server or all of them, on the node with GPUs or the other."""
        servers = self.fleet.servers if name == "server" else {"all": f"({'|'.join(self.fleet.servers.values())})"}
        there = {word: (self.fleet.with_gpus, one) for word, one in servers.items()}
        elsewhere = {"all", "busy", "hung in its start"} & set(servers)
        return there | {f"{word}{WITHOUT}": (self.fleet.without, servers[word]) for word in sorted(elsewhere)}

    def ask_all(self, at):
        """Ask every query under every choice, as of one moment."""
        for query in every_query():
            for scope, (node, server) in self.scopes(query.dashboard).items():
                expr = filled(query.expr, job="stallwatch", instance=node, server=server)
                self.series[query, scope] = self.fleet.ask(expr, at, instant=query.instant)

    def of(self, name, title, scope, ref="A"):
        """Return the series of one query of a panel."""
        (query,) = [one for one in queries(name) if (one.title, one.ref) == (title, ref)]
        return self.series[query, scope]

    def anywhere(self, query):
        """Return all series that a query has given, whatever was chosen."""
        return [one for scope in self.scopes(query.dashboard) for one in self.series.get((query, scope), ())]


@pytest.fixture(scope="module")
def answers(tmp_path_factory):
    """Play the node until every query has had data, and ask them all once more at the end."""
    directory = tmp_path_factory.mktemp("fleet")
    return asyncio.run(played(directory, build(directory)))


async def played(directory, library):
    """Return the answers of a moment of a play at which every query has data, or of its last one."""
    async with PlayedFleet(directory, library) as fleet:
        answers, end = Answers(fleet), time.monotonic() + WITHIN
        while time.monotonic() < end and not (answers.series and complete(answers)):
            await asyncio.sleep(1)
            if at := await asyncio.to_thread(ready, fleet):
                await asyncio.to_thread(answers.ask_all, at)
        await asyncio.to_thread(offer, answers)
        return answers


def ready(fleet):
    """Return the time if every server is now judged as it is played and the last scrapes are all there, else 0."""
    now, names = time.time(), {name: word for word, name in fleet.servers.items()}
    try:
        scraped = fleet.ask("sum_over_time(up[5s]) >= 5", now)
        seen = fleet.ask("stallwatch_server_verdict == 1", now)
    except OSError:
        return 0  # it does not listen yet
    verdicts = {
        (names[one["metric"]["server"]], one["metric"]["instance"]): one["metric"]["verdict"]
        for one in seen
        if one["metric"]["server"] in names
    }
    nodes = (fleet.with_gpus, fleet.without)
    wanted = {(name, node): judged[0] for name, judged in JUDGED.items() for node in nodes}
    return now if len(scraped) == len(nodes) and verdicts == wanted else 0


def complete(answers):
    """Tell whether every query that must have data has some."""
    return not [query for kind in ("", WITHOUT) for query in empty(answers, kind)]


def empty(answers, kind):
    """Return the queries without data that must have some, on the node with GPUs or on the one without."""
    asked = [query for query in every_query() if expected(query, kind)]
    return [
        query for query in asked if not any(answers.series.get((query, scope)) for scope in on(answers, query, kind))
    ]


def offer(answers):
    """Ask every choice for its values."""
    for name in NAMES:
        for variable, selector in choices(name):
            asked = filled(selector, job="stallwatch", instance=answers.fleet.with_gpus)
            answers.offered[name, variable] = answers.fleet.values(asked, variable)


def every_query():
    """Return all queries of all dashboards."""
    return [query for name in NAMES for query in (*queries(name), *annotations(name))]


def expected(query, kind):
    """Tell whether a query must have data, on the node with GPUs or on the one without."""
    return str(query) not in EMPTY and not (kind == WITHOUT and "_gpu_" in query.expr)


def on(answers, query, kind):
    """Return what can be chosen on one of the nodes."""
    return [scope for scope in answers.scopes(query.dashboard) if scope.endswith(WITHOUT) == bool(kind)]


@pytest.mark.parametrize("kind", ["", WITHOUT], ids=["with GPUs", "without GPUs"])
def test_every_query_has_data(answers, kind):
    """No panel stays empty while servers work, rest and hang; on a node without GPUs, none but those about GPUs."""
    assert list(map(str, empty(answers, kind))) == []


def test_every_choice_offers_what_there_is(answers):
    """Jobs, nodes and servers can be chosen."""
    fleet = answers.fleet
    for name in NAMES:
        assert "stallwatch" in answers.offered[name, "job"]
        assert {fleet.with_gpus, fleet.without} <= set(answers.offered[name, "instance"])
        assert name == "exporter" or set(fleet.servers.values()) <= set(answers.offered[name, "server"])


def test_legends_and_columns_have_their_labels(answers):
    """A label that a legend or a column shows is one that its series have."""
    for name in NAMES:
        for query in queries(name):
            series = answers.anywhere(query)
            assert not series or query.legend <= set().union(*(one["metric"] for one in series)), query
        for title, panel in panels(name).items():
            if panel["type"] == "table":
                asked = [query for query in queries(name) if query.title == title]
                labels = {label for query in asked for one in answers.anywhere(query) for label in one["metric"]}
                assert columns(panel) - labels <= NOT_PLAYED, title


def verdict_of(query):
    """Return the verdict that a query is about."""
    return re.search(r'verdict="(\w+)"', query.expr)[1]


def last(series):
    """Return the last value of one series."""
    return float((series["values"][-1] if "values" in series else series["value"])[1])


def word(answers, title, scope, ref="A"):
    """Return the word that a panel of the Server dashboard shows last, None where it shows none."""
    series = answers.of("server", title, scope, ref)
    return words(panels("server")[title], ref)[last(series[0])] if series else None


@pytest.mark.parametrize("server", JUDGED)
def test_the_bands_say_what_is_judged(answers, server):
    """Numbers in the queries and words in the panels fit each other, in bands and in single values."""
    band = "Verdict, signature, phase"
    assert tuple(word(answers, band, server, ref) for ref in "ABC") == JUDGED[server]
    assert tuple(word(answers, title, server) for title in ("Verdict", "Signature", "Phase")) == JUDGED[server]


def test_a_stall_is_everything_going_flat(answers):
    """Of a server that hangs the GPUs rest below their line, its ranks sleep, and the ages are past their limits."""
    server = "hung in its start"
    utilization = answers.of("server", "GPU utilization", server)
    assert {(one["metric"]["gpu"], one["metric"]["rank"]) for one in utilization} == {("3", "TP0"), ("4", "TP1")}
    assert max(map(last, utilization)) < COLD < min(map(last, answers.of("server", "GPU utilization", "busy")))
    since, (limit,) = (answers.of("server", "Since the last progress line of its log", server, ref) for ref in "AB")
    assert min(map(last, since)) > last(limit)
    assert word(answers, "Health, by endpoint", server) == "refused"
    assert [one["metric"]["reason"] for one in answers.of("server", "Owed for", server)] == ["not_ready"]
    (stuck,), (fast,) = (answers.of("server", "Tokens", one) for one in ("hung at work", "busy"))
    assert last(stuck) == 0 < max(float(value) for _, value in fast["values"])


def test_fleet_names_those_that_are_not_well(answers):
    """Every column is about the servers that hang and about no other; what idle ones hold is added up."""
    servers = answers.fleet.servers
    hung = {servers["hung in its start"], servers["hung at work"]}
    asked = [query for query in queries("fleet") if query.title == "Servers that are not well"]
    named = [{one["metric"]["server"] for one in answers.series[query, "all"]} for query in asked]
    assert named[0] == hung
    assert set().union(*named) == hung
    counted = [query for query in queries("fleet") if query.title == "Servers by verdict"]
    counts = {verdict_of(query): last(one) for query in counted for one in answers.series[query, "all"]}
    assert (counts["stalled"], counts["busy"], counts["idle"], sum(counts.values())) == (2, 1, 1, 4)
    assert [last(one) for one in answers.of("fleet", "Parked by idle servers", "all")] == [60 * GIB]
    firing = {one["metric"]["alertname"] for one in answers.of("fleet", "Alerts that fire", "all")}
    assert "InferenceServerStalled" in firing
    assert [last(one) for one in answers.of("fleet", "Nodes not watched", "all")] == [0]


@pytest.mark.parametrize("name", WITHOUT_GPUS)
def test_a_node_without_gpus_says_so(answers, name):
    """There, just the panels about GPUs are empty, and what they say names the GPUs and not a number."""
    scope = "all" if name == "fleet" else "busy"
    empty = filled_panels(answers, name, scope) - filled_panels(answers, name, f"{scope}{WITHOUT}")
    assert empty == WITHOUT_GPUS[name]
    for title in WITHOUT_GPUS[name]:
        assert "no GPU" in panels(name)[title]["fieldConfig"]["defaults"]["noValue"], title


def filled_panels(answers, name, scope):
    """Return the panels that show something."""
    return {query.title for query in queries(name) if answers.series.get((query, scope))}
