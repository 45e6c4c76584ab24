"""How is the exporter to run? All that is configured, the rules over several keys, and what holds for one server."""

from collections import Counter
from dataclasses import dataclass
from itertools import pairwise
from pathlib import Path
from typing import Any

import msgspec

from stallwatch.sections import (
    CollectorsConfig,
    DiscoveryConfig,
    EngineConfig,
    EvidenceConfig,
    GpuConfig,
    HealthConfig,
    JournalConfig,
    Limits,
    NotifyConfig,
    PathConfig,
    Section,
    ServerConfig,
    SocketConfig,
    StateConfig,
    WebConfig,
    WorkersConfig,
)
from stallwatch.values import LookInterval, format_duration


class ConfigError(Exception):
    """A setting is wrong; its text is one line: where it was set, its key, what is wrong and what is allowed."""

    def __init__(self, text: str) -> None:
        super().__init__("".join(char if char.isprintable() else "?" for char in text))


class RuleError(ValueError):
    """A rule over several keys does not hold: `key` breaks it, `other` is what it was compared with."""

    def __init__(self, key: str, rule: str, other: str = "") -> None:
        super().__init__(f"{key}: {rule}")
        self.key = key
        self.other = other


@dataclass(frozen=True, slots=True)
class EngineSettings:
    """How one server's own metrics are read."""

    timeout: float = 4.0
    api_key_file: str | None = None
    ca_file: str | None = None
    uid: int | None = None

    @property
    def longest(self) -> float:
        """Return how long one round may take, in seconds."""
        return self.timeout


@dataclass(frozen=True, slots=True)
class ProbeSettings:
    """How one server is probed."""

    paths: tuple[str, ...] = ("/health",)
    timeout: float = 25.0
    api_key_file: str | None = None
    ca_file: str | None = None
    end_to_end: float | None = None  # how often a token is asked for, in seconds
    uid: int | None = None  # whose process may see the key, besides those who can read it anyway

    @property
    def longest(self) -> float:
        """Return how long one round may take, in seconds: its paths are probed one after another."""
        return self.timeout * (len(self.paths) + bool(self.end_to_end))


class Config(Section, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """All settings of the exporter; every one has a default. `file` is where they were read from, and no key."""

    web: WebConfig = WebConfig()
    interval: LookInterval = 1.0
    """How often to look at processes and logs, and to make a snapshot; `50ms` to `20s`."""
    discovery: DiscoveryConfig = DiscoveryConfig()
    workers: WorkersConfig = WorkersConfig()
    gpu: GpuConfig = GpuConfig()
    health: HealthConfig = HealthConfig()
    engine: EngineConfig = EngineConfig()
    socket: SocketConfig = SocketConfig()
    collectors: CollectorsConfig = CollectorsConfig()
    limits: Limits = Limits()
    """How long a server may stand still; see [limits](#limits)."""
    servers: tuple[ServerConfig, ...] = ()
    """What discovery cannot know; see [servers](#servers). Only in the file."""
    path: PathConfig = PathConfig()
    state: StateConfig = StateConfig()
    evidence: EvidenceConfig = EvidenceConfig()
    notify: NotifyConfig = NotifyConfig()
    log: JournalConfig = JournalConfig()
    file: Path | None = None

    def __post_init__(self) -> None:
        """Refuse values that are possible alone and impossible together."""
        if refused := broken_rule(self):
            raise refused

    def server(self, name: str) -> ServerConfig | None:
        """Return what is configured for this server, or None."""
        return next((server for server in self.servers if server.name == name), None)

    def limits_of(self, name: str) -> Limits:
        """Return the limits of this server: its own where given, else those for all."""
        server = self.server(name)
        return limits_with(self.limits, server) if server else self.limits

    def health_of(self, name: str) -> ProbeSettings:
        """Return how to probe this server."""
        server = self.server(name)
        if server is None:
            return ProbeSettings(self.health.paths, self.health.timeout)
        own = server.health.paths if server.health else None
        ca_file = server.tls.ca_file if server.tls else None
        token = server.end_to_end_probe.interval if server.end_to_end_probe else None
        paths = own or self.health.paths
        return ProbeSettings(paths, self.health.timeout, server.api_key_file, ca_file, token, server.uid)

    def engine_of(self, name: str) -> EngineSettings:
        """Return how to read this server's own metrics."""
        keys = self.health_of(name)
        return EngineSettings(self.engine.timeout, keys.api_key_file, keys.ca_file, keys.uid)


ORDERED = (
    ("suspect", "evidence", "stalled", "stalled_high_power"),
    ("start_without_movement", "start_without_movement_partial"),
    ("rendezvous", "rendezvous_multinode"),
)


def limits_with(limits: Limits, server: ServerConfig) -> Limits:
    """Return these limits with what this server overrides."""
    return msgspec.structs.replace(limits, **server.limits)


def broken_rule(config: Config) -> RuleError | None:
    """Find the first rule over several keys that does not hold."""
    names: set[str] = set()
    if broken := _unordered("limits", config.limits) or _no_set("health.paths", config.health.paths):
        return broken
    for number, server in enumerate(config.servers):
        at = f"servers[{number}]"
        if server.name in names:
            return RuleError(f"{at}.name", f"expected a name that no server above has, got {server.name!r}")
        names.add(server.name)
        broken = (
            _unordered(f"{at}.limits", limits_with(config.limits, server))
            or _no_set(f"{at}.gpus", server.gpus)
            or _no_set(f"{at}.health.paths", server.health.paths if server.health else None)
        )
        if broken:
            return broken
    return None


def _unordered(at: str, limits: Limits) -> RuleError | None:
    for names in ORDERED:
        for lower, upper in pairwise(names):
            low, high = getattr(limits, lower), getattr(limits, upper)
            strict = lower == "suspect"
            if low > high or (strict and low == high):
                relation = "more than" if strict else "at least"
                rule = f"expected {relation} {lower} ({format_duration(low)}), got {format_duration(high)}"
                return RuleError(f"{at}.{upper}", rule, other=f"{at}.{lower}")
    return None


def _no_set(at: str, values: tuple[Any, ...] | None) -> RuleError | None:
    if values is None:
        return None
    if not values:
        return RuleError(at, "expected at least one")
    value, count = Counter(values).most_common(1)[0]
    return RuleError(at, f"expected each once, found {value!r} {count} times") if count > 1 else None
