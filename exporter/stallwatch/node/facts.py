"""What is read once in the life of a server: its flags, version, environment and container?"""

import re
from collections.abc import Callable, Collection
from dataclasses import dataclass, field, replace

from stallwatch.engines import Engine
from stallwatch.engines.engine import Argv
from stallwatch.node.grouping import Group, Key
from stallwatch.node.procfs import Procfs
from stallwatch.node.surroundings import VARIABLES, QuarantinedError, config_text, version
from stallwatch.snapshot import Failure, Launch

COLLECTOR = "discovery"

_MOST_DEVICES = 64
_DEVICE = re.compile(r"|[0-9]{1,4}|(?:GPU|MIG)-[0-9A-Fa-f/-]{1,80}")


@dataclass(frozen=True, slots=True)
class Facts:
    """What is known of a server from around its launcher; `expected` is None where its flags do not tell."""

    launch: Launch = field(default_factory=Launch)
    expected: int | None = None
    version: str = ""
    visible_devices: str | None = None
    container_id: str = ""
    pod_uid: str = ""
    container_devices: str | None = None
    journal_stream: str = ""  # device and inode of the socket to the journal, where the launcher was given one


class FactsKeeper:
    """Reads the facts of each server once; what could not be read is tried again at the next look."""

    def __init__(self, port_of: Callable[[Procfs, int], int | None]) -> None:
        self._port_of = port_of
        self._facts: dict[Key, Facts] = {}
        self._launches: dict[Key, tuple[Launch, int | None]] = {}

    def remember(self, key: Key, launch: Launch, expected: int | None) -> None:
        """Learn the flags of a server whose launcher may be gone, or cannot be read any more."""
        self._launches[key] = (launch, expected)

    def forget_others(self, keys: Collection[Key]) -> None:
        """Drop what is known of all other servers."""
        self._facts = {key: facts for key, facts in self._facts.items() if key in keys}
        self._launches = {key: known for key, known in self._launches.items() if key in keys}

    def of(self, procfs: Procfs, engine: Engine, group: Group) -> tuple[Facts, list[Failure]]:
        """Return the facts of one server, and what could not be read of them."""
        known = self._facts.get(group.key)
        failures: list[Failure] = []
        if known is None:
            known = self._read(procfs, engine, group, failures)
            if not failures and not procfs.is_skipped(_source(group)):
                self._facts[group.key] = known
        if group.launcher and not group.launcher.kind.argv and known.launch.port is None:
            port = self._port_of(procfs, group.launcher.stat.pid)
            known = replace(known, launch=replace(known.launch, port=port))
            if port:
                self._facts[group.key] = known
        return known, failures

    def _read(self, procfs: Procfs, engine: Engine, group: Group, failures: list[Failure]) -> Facts:
        pid = _source(group)
        argv = group.flags.kind.argv if group.flags else ()
        launch, expected = self._launch(procfs, engine, group, failures)
        variables = procfs.environ(pid, VARIABLES) if argv else {}
        found = ""
        try:
            found = version(procfs, pid, engine.name, argv, variables)
        except QuarantinedError as error:
            failures.append(Failure(COLLECTOR, "quarantined", f"version of pid {pid}: {error}"))
        visible = variables.get("CUDA_VISIBLE_DEVICES")
        container_id, pod_uid = procfs.container(pid)
        return Facts(
            launch,
            expected,
            found,
            None if visible is None else _devices(visible),
            container_id,
            pod_uid,
            _given(variables.get("NVIDIA_VISIBLE_DEVICES", "")) if container_id else None,
            variables.get("JOURNAL_STREAM", ""),
        )

    def _launch(
        self, procfs: Procfs, engine: Engine, group: Group, failures: list[Failure]
    ) -> tuple[Launch, int | None]:
        if group.flags is None:
            return self._launches.get(group.key, (Launch(), None))
        argv, pid = group.flags.kind.argv, group.flags.stat.pid
        try:
            launch = engine.launch(argv, lambda path: config_text(procfs, pid, path))
        except QuarantinedError as error:
            failures.append(Failure(COLLECTOR, "quarantined", f"configuration of pid {pid}: {error}"))
            launch = _without_config(engine, argv)
        except ValueError as error:
            failures.append(Failure(COLLECTOR, "config_unreadable", f"configuration of pid {pid}: {_words(error)}"))
            launch = _without_config(engine, argv)
        if group.flags is not group.launcher:
            launch = replace(
                launch, port=None, dp_size=1
            )  # the router counts the replicas, and gives each its own port
        return launch, engine.expected(launch, argv)


def _source(group: Group) -> int:
    """Return the process around which the facts are found."""
    source = group.flags or group.launcher
    return source.stat.pid if source else min(group.members)


def _without_config(engine: Engine, argv: Argv) -> Launch:
    return engine.launch(argv, lambda _path: "{}")


def _devices(setting: str) -> str:
    """Return a list of visible devices, in which what names none keeps its place only: it ends the list for CUDA."""
    names = (name.strip() for name in setting.split(",")[:_MOST_DEVICES])
    return ",".join(name if _DEVICE.fullmatch(name) else "?" for name in names)


def _given(setting: str) -> str | None:
    """Return the GPUs that a container was given, None for all and for what names none, as a path to a list does."""
    devices = _devices(setting)
    return devices if setting and not {"", "?"} & set(devices.split(",")) else None


def _words(error: ValueError) -> str:
    # Only our own words: an error of the decoder or of YAML quotes the file.
    return str(error) if type(error) is ValueError else type(error).__name__
