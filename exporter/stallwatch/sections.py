"""What can be set? The keys of the configuration with their defaults, each with its meaning below it.

What one key allows is said by its type; rules over several keys stand in `config.py`.
"""

from typing import Annotated, Literal

import msgspec
from msgspec import Meta

from stallwatch.values import (
    Address,
    ByteCount,
    Count,
    Duration,
    FileName,
    GpuIndex,
    GroupName,
    HealthPath,
    ListenAddress,
    MostRequests,
    Port,
    ProbeInterval,
    ProbeTimeout,
    SecretFileName,
    ServerName,
    TelemetryPath,
    UserId,
)


class Section(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """A mapping of the configuration file, whose keys are its fields."""


class WebConfig(Section, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Where the exporter is to be reached."""

    listen_address: ListenAddress = ":19847"
    """Where to serve: `127.0.0.1:19847` or `[::1]:19847` for one address, port 0 for a free one."""
    telemetry_path: TelemetryPath = "/metrics"
    """Path of the metrics."""
    enable_lifecycle: bool = False
    """Allow `POST /-/reload` and `POST /-/gpu/release?for=5m`."""
    config_file: FileName | None = None
    """File with TLS, client certificates, passwords, headers and a rate limit, in the format of the Prometheus exporter
    toolkit; read again when it or a certificate changes, but another file counts only after a restart."""
    max_requests: MostRequests = 40
    """How many requests are answered at once, 503 beyond; 0 for any number."""


class DiscoveryConfig(Section, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """How often to look which servers run here."""

    interval: Duration = 5.0
    """How often to look which servers run."""


class WorkersConfig(Section, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """How long a worker may take for one read, and for its start."""

    deadline: Duration = 5.0
    """How long one read may take before its worker is replaced."""
    start_deadline: Duration = 60.0
    """How long a worker may take to start, and the GPU worker for its first read."""


class GpuConfig(Section, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """How often to read the GPUs."""

    interval: Duration = 5.0
    """How often to read the GPUs; up to 10 s no burst of work is missed."""


class HealthConfig(Section, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """What to probe, how often and how patiently; `quiet` probes only while nothing else moves."""

    interval: Duration = 15.0
    """How often to probe a server."""
    timeout: ProbeTimeout = 25.0
    """How long to wait for an answer, at least `1s`; SGLang itself takes 20 s to say that it cannot."""
    paths: tuple[HealthPath, ...] = ("/health",)
    """Paths to probe, one after another; separated by commas in a flag or variable."""
    when: Literal["always", "quiet"] = "always"
    """`always`, or `quiet`: only while nothing else moves."""


class EngineConfig(Section, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """How often to read the engine's own metrics, and how patiently."""

    interval: Duration = 5.0
    """How often to read the engine's own metrics."""
    timeout: Duration = 4.0
    """How long to wait for the engine's own metrics."""


class SocketConfig(Section, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """How often to read the queues of the servers' ports."""

    interval: Duration = 5.0
    """How often to read the queues of the servers' ports."""


class CollectorsConfig(Section, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Which signals to read."""

    gpu: bool = True
    """Read the GPUs."""
    process: bool = True
    """Read the processes of servers."""
    log: bool = True
    """Read the logs of servers."""
    socket: bool = True
    """Read the queues of the servers' ports."""
    kernel: bool = True
    """Read the kernel log for errors of GPUs (Xids)."""
    health: bool = True
    """Probe servers."""
    engine: bool = True
    """Read the engines' own metrics."""

    @property
    def disabled(self) -> frozenset[str]:
        """Name the collectors that are not to run."""
        return frozenset(name for name in self.__struct_fields__ if not getattr(self, name))


class PathConfig(Section, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Where the kernel's view of the node is mounted, and where its log is read."""

    procfs: FileName = "/proc"
    """Where the node's `/proc` is mounted."""
    kmsg: FileName = "/dev/kmsg"
    """Where the kernel log is read."""


class StateConfig(Section, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Whether and where it is kept what a restart of the exporter must not forget."""

    enabled: bool = True
    """Keep in a small file what a restart of the exporter must not forget."""
    file: FileName | None = None
    """File with what a restart must not forget; without a name `/var/lib/stallwatch/memory.json`, or in systemd's
    `$STATE_DIRECTORY`."""


class EvidenceConfig(Section, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """What is kept of an incident, and where."""

    enabled: bool = True
    """Keep evidence of each incident: what was to be seen when nothing had moved for `limits.evidence`."""
    directory: FileName | None = None
    """Where evidence is kept; without a name `/var/lib/stallwatch/evidence`, or in systemd's `$STATE_DIRECTORY`."""
    stacks: bool = False
    """Also dump the Python stack of every rank with py-spy, which must be installed beside the exporter."""
    keep: Count = 20
    """How many bundles are kept; the oldest goes first."""
    max_bytes: ByteCount = 200 * 1024 * 1024
    """How many bytes all of them may take."""


class NotifyConfig(Section, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Who is told of incidents directly, where no Alertmanager is."""

    webhook_url_file: SecretFileName | None = None
    """File with a URL, to which each incident is posted in Alertmanager's webhook format when it begins and when it has
    ended, for a node without Alertmanager; read for each POST."""


class JournalConfig(Section, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """How the exporter writes its own log."""

    format: Literal["logfmt", "json"] = "logfmt"
    """How the exporter writes its own log, to standard error: `logfmt` or `json`."""
    level: Literal["debug", "info", "warning", "error"] = "info"
    """The least that is logged: `debug`, `info`, `warning` or `error`."""


class Limits(Section, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """How long a server may stand still, or be in a phase, before the verdict changes."""

    suspect: Duration = 60.0
    """How long nothing may move before a server is suspect; under `health.when: quiet` it is probed from then on."""
    evidence: Duration = 180.0
    """How long nothing may move before evidence is kept."""
    stalled: Duration = 240.0
    """How long a server that owes work may stand still."""
    stalled_high_power: Duration = 900.0
    """The same while its GPUs draw much power, which may be work."""
    silent: Duration = 600.0
    """How long the GPUs may rest and the log be silent (`InferenceServerSilent`)."""
    start_without_movement: Duration = 300.0
    """How long a start may show no movement where every signal can be read (`InferenceServerStartupStuck`)."""
    start_without_movement_partial: Duration = 600.0
    """The same where not every signal can be read, or while ranks of several nodes wait for those that still load."""
    lost_process: Duration = 15.0
    """How long a rank may be missing."""
    split: Duration = 120.0
    """How long some GPUs of a server may be busy while others rest."""
    rendezvous: Duration = 300.0
    """How long ranks may wait for each other on one node."""
    rendezvous_multinode: Duration = 1800.0
    """The same over several nodes; there it is also what `start_without_movement` is during `distributed_init`."""
    weights: Duration = 3600.0
    """How long loading weights may take."""
    compile: Duration = 2700.0
    """How long compiling and capturing graphs may take."""
    warm_up: Duration = 1800.0
    """How long warming up may take."""
    stopping: Duration = 1800.0
    """How long draining may take."""

    def named(self) -> dict[str, float]:
        """Return every limit under its name."""
        return {name: getattr(self, name) for name in self.__struct_fields__}


class TlsConfig(Section, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """How to know a server that speaks TLS."""

    ca_file: FileName | None = None
    """CA that signed its certificate; without it, a loopback address is not verified and any other is, with the CAs
    of the system."""


class ServerHealthConfig(Section, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """What to probe at one server instead of the paths for all."""

    paths: tuple[HealthPath, ...] | None = None
    """Paths to probe at this server, instead of `health.paths`."""


class EndToEndProbeConfig(Section, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """A request for one token, now and then: the only thing that sees a server which wrongly says that it is idle."""

    interval: ProbeInterval = 300.0
    """With `end_to_end_probe: {}`, ask this server for one token as often as this (at least `1m`), once it is
    ready. Off without; see [blind spots](blind_spots.md)."""


class ServerConfig(Section, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """What is known of one server beforehand; None is left to discovery."""

    name: ServerName
    """Its name in labels and alerts."""
    engine: Literal["sglang", "vllm"] = "sglang"
    """`sglang` or `vllm`."""
    port: Port | None = None
    """Port of the server that this is about."""
    host: Address | None = None
    """Address to probe, instead of the one found: a literal IP address or `localhost`."""
    log: FileName | None = None
    """Its log file, instead of the one found."""
    expected_schedulers: Count | None = None
    """Schedulers that belong on this node, instead of what its flags call for."""
    gpus: tuple[GpuIndex, ...] | None = None
    """Indices of its GPUs, instead of those found."""
    group: GroupName | None = None
    """What all nodes of a server of several nodes share, instead of the address where they meet."""
    api_key_file: SecretFileName | None = None
    """File with the key that probes carry."""
    uid: UserId | None = None
    """Number of the user that the server runs as. The key goes only to a port on which a process of this user listens,
    of root, of the exporter's own user or of the owner of `api_key_file`."""
    tls: TlsConfig | None = None
    health: ServerHealthConfig | None = None
    end_to_end_probe: EndToEndProbeConfig | None = None
    limits: Annotated[dict[str, float], Meta(extra={"partial": Limits})] = {}
    """Any of the [limits](#limits), for this server."""
