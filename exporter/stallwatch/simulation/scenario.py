"""What does a scenario file say, and what is wrong with a bad one? The YAML format, read into the nouns of `plot`.

A segment gives signals for a while; what it leaves out stays as it was, key by key, except rates (`*_per_second`),
which are 0 unless said again. What nobody ever gave is absent, as if it could not be read; so is what is given as null.
"""

import difflib
from pathlib import Path
from typing import Any

from stallwatch.config import ConfigError
from stallwatch.sections import Limits
from stallwatch.settings.checks import Checks
from stallwatch.settings.yaml_file import read_yaml
from stallwatch.simulation import cast
from stallwatch.simulation.plot import Expectation, Node, PlayedServer, Scenario, Segment, WatcherEvent
from stallwatch.simulation.segments import segment_of
from stallwatch.verdict import SIGNATURES, VERDICTS

__all__ = [
    "Expectation",
    "Node",
    "PlayedServer",
    "Scenario",
    "Segment",
    "WatcherEvent",
    "load_scenario",
    "scenario_file",
    "scenario_of",
]

WATCHER_WORDS = ("down", "restart", "scrape_gap", "frozen", "clock_step")
MOST_GPUS, MOST_SCHEDULERS = 64, 64
SHIPPED = Path(__file__).parents[1] / "scenarios"


def scenario_file(name: str | Path) -> Path:
    """Return the file of a scenario: as it is named, or among those that come with Stallwatch."""
    path = Path(name)
    if path.suffix in {".yml", ".yaml"} or path.exists():
        return path
    if not (SHIPPED / f"{name}.yml").is_file():
        known = sorted(shipped.stem for shipped in SHIPPED.glob("*.yml"))
        alike = difflib.get_close_matches(str(name), known, n=3, cutoff=0.4)
        meant = f"; did you mean {' or '.join(alike)}?" if alike else ""
        raise ConfigError(f"{name}: no such scenario{meant} (stallwatch replay --list)")
    return SHIPPED / f"{name}.yml"


def load_scenario(path: Path) -> Scenario:
    """Read a scenario file; raises ConfigError with one line that names the file, the key and what is allowed."""
    return scenario_of(read_yaml(path), str(path))


def scenario_of(raw: Any, origin: str = "scenario") -> Scenario:
    """Return the scenario that a parsed YAML document describes."""
    check = Checks(origin)
    keys = check.mapping(raw, "", ("name", "description", "node", "servers", "watcher", "expect"))
    servers = check.list(keys.get("servers"), "servers")
    if not servers:
        check.fail("servers", "a scenario needs at least one server")
    node = _node(check, keys.get("node"))
    played = tuple(_server(check, server, f"servers[{n}]") for n, server in enumerate(servers))
    names = _names(check, played, node)
    events, expected = check.list(keys.get("watcher"), "watcher"), check.list(keys.get("expect"), "expect")
    return Scenario(
        name=check.text(keys.get("name", Path(origin).stem), "name"),
        node=node,
        servers=played,
        watcher=tuple(_event(check, event, f"watcher[{n}]") for n, event in enumerate(events)),
        expect=tuple(_expect(check, one, f"expect[{n}]", names) for n, one in enumerate(expected)),
    )


def _node(check: Checks, raw: Any) -> Node:
    keys = check.mapping(raw, "node", ("gpus", "gpu_memory_gib", "power_limit_watts"))
    default = Node()
    return Node(
        check.whole(keys.get("gpus", default.gpus), "node.gpus", most=MOST_GPUS),
        check.number(keys.get("gpu_memory_gib", default.gpu_memory_gib), "node.gpu_memory_gib"),
        check.number(keys.get("power_limit_watts", default.power_limit_watts), "node.power_limit_watts"),
    )


def _server(check: Checks, raw: Any, at: str) -> PlayedServer:
    keys = check.mapping(raw, at, ("engine", "version", "args", "segments", "start", "name", "limits"))
    segments = check.list(keys.get("segments"), f"{at}.segments")
    if not segments:
        check.fail(f"{at}.segments", "a server needs at least one segment")
    limits = check.mapping(keys.get("limits"), f"{at}.limits", Limits.__struct_fields__)
    args = check.list(keys.get("args"), f"{at}.args")
    return PlayedServer(
        engine=check.word(keys.get("engine", "sglang"), f"{at}.engine", tuple(cast.COMMANDS)),
        version=check.text(keys.get("version", ""), f"{at}.version"),
        args=tuple(check.text(arg, f"{at}.args[{n}]") for n, arg in enumerate(args)),
        segments=tuple(segment_of(check, segment, f"{at}.segments[{n}]") for n, segment in enumerate(segments)),
        start=check.duration(keys.get("start", 0), f"{at}.start"),
        name=check.text(keys.get("name", ""), f"{at}.name"),
        limits={name: check.duration(value, f"{at}.limits.{name}") for name, value in limits.items()},
    )


def _names(check: Checks, servers: tuple[PlayedServer, ...], node: Node) -> tuple[str, ...]:
    """Return the names of the servers, each checked to have the processes that its segments speak of."""
    names: list[str] = []
    for n, played in enumerate(servers):
        at = f"servers[{n}]"
        server = cast.server_of(played, n, node)
        if (server.expected_schedulers or 1) > MOST_SCHEDULERS:
            check.fail(f"{at}.args", f"at most {MOST_SCHEDULERS} schedulers can be played")
        if server.name in names:
            check.fail(f"{at}.name", f"expected a name that no server above has, got {check.shown(server.name)}")
        names.append(server.name)
        for m, segment in enumerate(played.segments):
            for name in segment.given.get("processes") or ():
                if cast.role_named(server, name) is None:
                    known = ", ".join(role.name for role in cast.roles(server))
                    check.fail(f"{at}.segments[{m}].processes", f"expected one of {known}; got {check.shown(name)}")
    return tuple(names)


def _event(check: Checks, raw: Any, at: str) -> WatcherEvent:
    keys = check.mapping(raw, at, ("at", "for", "what", "clock_step"))
    begin = check.duration(keys.get("at"), f"{at}.at")
    what, step = keys.get("what"), keys.get("clock_step")
    if isinstance(what, str) and what.startswith("clock_step:"):
        what, step = "clock_step", what.partition(":")[2].strip()
    elif isinstance(what, dict):
        what, step = "clock_step", check.mapping(what, f"{at}.what", ("clock_step",)).get("clock_step")
    elif what is None and step is not None:
        what = "clock_step"
    word = check.word(what, f"{at}.what", WATCHER_WORDS)
    if word == "clock_step":
        return WatcherEvent(begin, word, check.duration(step, f"{at}.clock_step", negative=True))
    return WatcherEvent(begin, word, check.duration(keys.get("for", 0), f"{at}.for"))


def _expect(check: Checks, raw: Any, at: str, names: tuple[str, ...]) -> Expectation:
    keys = check.mapping(raw, at, ("at", "server", "verdict", "signature", "alerts"))
    alerts, server, signature = keys.get("alerts"), keys.get("server", ""), keys.get("signature")
    return Expectation(
        check.duration(keys.get("at"), f"{at}.at"),
        check.word(server, f"{at}.server", names) if server else names[0],
        check.word(keys["verdict"], f"{at}.verdict", VERDICTS) if "verdict" in keys else None,
        None if signature is None else check.word(signature, f"{at}.signature", ("", *SIGNATURES)),
        None if alerts is None else tuple(check.text(a, f"{at}.alerts") for a in check.list(alerts, f"{at}.alerts")),
    )
