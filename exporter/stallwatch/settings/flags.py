"""Which flags are settings?"""

import argparse
from dataclasses import dataclass
from typing import Any

from stallwatch.config import Config
from stallwatch.keeping import USUAL_DIRECTORY
from stallwatch.values import format_duration

FILE_FLAG = "config.file"


@dataclass(frozen=True, slots=True)
class Flag:
    """One flag of the command line, which sets one key path."""

    name: str
    path: str
    help: str
    metavar: str = "DURATION"
    value: bool | None = None  # what a flag without an argument sets


FLAGS = (
    Flag("--config.file", FILE_FLAG, "configuration file (YAML), watched for changes", "FILE"),
    Flag("--web.listen-address", "web.listen_address", "address to listen on; port 0 takes a free one", "ADDRESS"),
    Flag("--web.telemetry-path", "web.telemetry_path", "path of the metrics", "PATH"),
    Flag("--web.enable-lifecycle", "web.enable_lifecycle", "allow POST /-/reload", value=True),
    Flag("--web.config.file", "web.config_file", "TLS, passwords and headers, as other exporters have them", "FILE"),
    Flag("--web.max-requests", "web.max_requests", "how many requests are answered at once; 0 for any number", "N"),
    Flag("--interval", "interval", "how often to look at processes and logs, and to judge"),
    Flag("--discovery.interval", "discovery.interval", "how often to look for servers"),
    Flag("--workers.deadline", "workers.deadline", "how long one read may take before its worker is replaced"),
    Flag("--workers.start-deadline", "workers.start_deadline", "how long a worker may take to start"),
    Flag("--gpu.interval", "gpu.interval", "how often to read the GPUs"),
    Flag("--engine.interval", "engine.interval", "how often to read the engines' own metrics"),
    Flag("--engine.timeout", "engine.timeout", "how long to wait for them"),
    Flag("--health.interval", "health.interval", "how often to probe a server"),
    Flag("--health.timeout", "health.timeout", "how long to wait for the answer of a probe"),
    Flag("--health.paths", "health.paths", "paths to probe, separated by commas", "PATHS"),
    Flag("--health.when", "health.when", "always, or quiet: only while nothing else moves", "WHEN"),
    Flag("--no-collector.gpu", "collectors.gpu", "do not read the GPUs", value=False),
    Flag("--no-collector.process", "collectors.process", "do not read the processes of servers", value=False),
    Flag("--no-collector.log", "collectors.log", "do not read the logs of servers", value=False),
    Flag("--no-collector.socket", "collectors.socket", "do not read the queues of servers' ports", value=False),
    Flag("--no-collector.health", "collectors.health", "do not probe servers", value=False),
    Flag("--no-collector.engine", "collectors.engine", "do not read the engines' own metrics", value=False),
    Flag("--path.procfs", "path.procfs", "where the node's /proc is mounted", "DIR"),
    Flag("--state.file", "state.file", "what a restart must not forget is kept here", "FILE"),
    Flag("--log.format", "log.format", "how the exporter writes its own log: logfmt or json", "FORMAT"),
    Flag("--log.level", "log.level", "the least that is logged: debug, info, warning or error", "LEVEL"),
)


def add_flags(parser: argparse.ArgumentParser) -> None:
    """Give the parser the flags that are settings; what is not given leaves no attribute behind."""
    group = parser.add_argument_group(
        "settings", "each is also a key of the file and a variable such as STALLWATCH_INTERVAL"
    )
    for flag in FLAGS:
        if flag.value is None:
            text = flag.help + _default_of(flag.path)
            group.add_argument(flag.name, dest=flag.path, default=argparse.SUPPRESS, metavar=flag.metavar, help=text)
        else:
            group.add_argument(
                flag.name,
                dest=flag.path,
                default=argparse.SUPPRESS,
                action="store_const",
                const=flag.value,
                help=flag.help,
            )


def given(namespace: argparse.Namespace) -> dict[str, Any]:
    """Return the settings among the parsed arguments, as `load` takes them."""
    paths = {flag.path for flag in FLAGS}
    return {path: value for path, value in vars(namespace).items() if path in paths}


def _default_of(path: str) -> str:
    if path in (FILE_FLAG, "web.config_file"):
        return ""
    if path == "state.file":
        return f" (default {USUAL_DIRECTORY}/memory.json, or in $STATE_DIRECTORY)"
    found: Any = Config()
    for key in path.split("."):
        found = getattr(found, key)
    default = format_duration(found) if isinstance(found, float) else found
    return f" (default {','.join(found) if isinstance(found, tuple) else default})"
