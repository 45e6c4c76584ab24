"""Which flags are settings?"""

import argparse
from collections.abc import Collection, Mapping
from dataclasses import dataclass
from typing import Any

from stallwatch.config import Config
from stallwatch.settings.meanings import meaning_of
from stallwatch.values import format_duration

FILE_FLAG = "config.file"


@dataclass(frozen=True, slots=True)
class Flag:
    """One flag of the command line, which sets one key path."""

    name: str
    path: str
    metavar: str = "DURATION"
    value: bool | None = None  # what a flag without an argument sets

    @property
    def help(self) -> str:
        """Return what it does, as a phrase."""
        if self.path == FILE_FLAG:
            return "configuration file (YAML), watched for changes"
        meaning = meaning_of(self.path).replace("`", "").removesuffix(".")
        phrase = meaning[:1].lower() + meaning[1:]
        return f"do not {phrase}" if self.value is False else phrase


FLAGS = (
    Flag("--config.file", FILE_FLAG, "FILE"),
    Flag("--web.listen-address", "web.listen_address", "ADDRESS"),
    Flag("--web.telemetry-path", "web.telemetry_path", "PATH"),
    Flag("--web.enable-lifecycle", "web.enable_lifecycle", value=True),
    Flag("--web.config.file", "web.config_file", "FILE"),
    Flag("--web.max-requests", "web.max_requests", "N"),
    Flag("--interval", "interval"),
    Flag("--discovery.interval", "discovery.interval"),
    Flag("--workers.deadline", "workers.deadline"),
    Flag("--workers.start-deadline", "workers.start_deadline"),
    Flag("--gpu.interval", "gpu.interval"),
    Flag("--engine.interval", "engine.interval"),
    Flag("--engine.timeout", "engine.timeout"),
    Flag("--health.interval", "health.interval"),
    Flag("--health.timeout", "health.timeout"),
    Flag("--health.paths", "health.paths", "PATHS"),
    Flag("--health.when", "health.when", "WHEN"),
    Flag("--no-collector.gpu", "collectors.gpu", value=False),
    Flag("--no-collector.process", "collectors.process", value=False),
    Flag("--no-collector.log", "collectors.log", value=False),
    Flag("--no-collector.socket", "collectors.socket", value=False),
    Flag("--no-collector.kernel", "collectors.kernel", value=False),
    Flag("--no-collector.health", "collectors.health", value=False),
    Flag("--no-collector.engine", "collectors.engine", value=False),
    Flag("--path.procfs", "path.procfs", "DIR"),
    Flag("--path.kmsg", "path.kmsg", "FILE"),
    Flag("--state.file", "state.file", "FILE"),
    Flag("--evidence.directory", "evidence.directory", "DIR"),
    Flag("--evidence.stacks", "evidence.stacks", value=True),
    Flag("--log.format", "log.format", "FORMAT"),
    Flag("--log.level", "log.level", "LEVEL"),
)


def add_flags(parser: argparse.ArgumentParser, only: Collection[str] = ()) -> dict[argparse.Action, Flag]:
    """Give the parser the flags that are settings, or `only` some; what is not given leaves no attribute behind.

    Returns what `explain` is given once somebody asks for help.
    """
    group = parser.add_argument_group(
        "settings", "each is also a key of the file and a variable such as STALLWATCH_INTERVAL"
    )
    added = {}
    for flag in (flag for flag in FLAGS if not only or flag.path in only):
        options: dict[str, Any] = {"dest": flag.path, "default": argparse.SUPPRESS}
        if flag.value is None:
            action = group.add_argument(flag.name, metavar=flag.metavar, **options)
        else:
            action = group.add_argument(flag.name, action="store_const", const=flag.value, **options)
        added[action] = flag
    return added


def explain(added: Mapping[argparse.Action, Flag]) -> None:
    """Say of each flag what it does; that is looked up in the source, which takes longer than all the rest."""
    for action, flag in added.items():
        default = _default_of(flag.path) if flag.value is None else ""
        action.help = f"{flag.help}{default}".replace("%", "%%")


def given(namespace: argparse.Namespace) -> dict[str, Any]:
    """Return the settings among the parsed arguments, as `load` takes them."""
    paths = {flag.path for flag in FLAGS}
    return {path: value for path, value in vars(namespace).items() if path in paths}


def _default_of(path: str) -> str:
    if path in (FILE_FLAG, "web.config_file"):
        return ""
    found: Any = Config()
    for key in path.split("."):
        found = getattr(found, key)
    if found is None:
        return ""
    default = format_duration(found) if isinstance(found, float) else found
    return f" (default {','.join(found) if isinstance(found, tuple) else default})"
