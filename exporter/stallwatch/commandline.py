"""What can be typed? The commands and what each of them takes."""

import argparse
from pathlib import Path
from typing import Any, NoReturn

from stallwatch import __version__
from stallwatch.settings.flags import Flag, add_flags, explain
from stallwatch.values import USUAL_URL, parse_duration

DESCRIPTION = "Tells an LLM inference server that has silently hung from one that is idle, slow or still starting."


class _Parser(argparse.ArgumentParser):
    """Says what is wrong in one line; takes no shortened flags, which a later version could make ambiguous."""

    def __init__(self, **options: object) -> None:
        super().__init__(**options, allow_abbrev=False)  # type: ignore[arg-type]
        self.settings: dict[argparse.Action, Flag] = {}

    def format_help(self) -> str:
        explain(self.settings)
        return super().format_help()

    def error(self, message: str) -> NoReturn:
        self.exit(2, f"{self.prog}: {message} (see {self.prog} --help)\n")


def parser() -> argparse.ArgumentParser:
    """Return what reads a command line."""
    whole = _Parser(prog="stallwatch", description=DESCRIPTION)
    whole.add_argument("--version", action="version", version=f"stallwatch {__version__}")
    commands = whole.add_subparsers(dest="command", metavar="COMMAND", title="commands")
    for add in (_add_serve, _add_check, _add_replay, _add_evidence, _add_gpu, _add_demo, _add_bundle):
        add(commands)
    return whole


def _add_serve(commands: Any) -> None:
    serve = commands.add_parser(
        "serve",
        help="watch this node and serve its metrics",
        usage="stallwatch serve [SETTING ...]",
        description="Watch this node and serve its metrics. SIGHUP reloads the configuration, SIGTERM ends it.",
    )
    serve.settings = add_flags(serve)
    serve.add_argument(
        "--config.check", dest="check", action="store_true", help="read the configuration, say what is wrong"
    )


def _add_check(commands: Any) -> None:
    check = commands.add_parser(
        "check",
        help="say how the servers of this node are",
        usage="stallwatch check [OPTION ...] [SETTING ...]",
        description="Asks the running exporter, else looks itself. Exit code: 0 idle, busy, starting or stopping; "
        "1 slow or suspect; 2 stalled or dead; 3 unknown, or no server.",
    )
    check.add_argument("--server", default="", metavar="NAME", help="only this server")
    check.add_argument("--json", dest="as_json", action="store_true", help="print JSON")
    check.add_argument(
        "--for", dest="seconds", type=_seconds, default=10.0, metavar="DURATION", help="how long to look (10s)"
    )
    check.add_argument("--record", type=Path, metavar="FILE", help="look itself, and append what is seen (for replay)")
    check.add_argument("--url", help=f"the exporter to ask (default: {USUAL_URL}, and a look where none answers)")
    _add_client(check)
    check.add_argument("--look", action="store_true", help="look itself, and ask no exporter")
    check.settings = add_flags(check)


def _add_replay(commands: Any) -> None:
    replay = commands.add_parser(
        "replay",
        help="say what would have been said of a scenario, and when",
        description="Plays a scenario or a recording through the judgement. Exit code: 0 when every expectation holds, "
        "1 when one does not, 2 when there is nothing to play.",
    )
    replay.add_argument(
        "file",
        type=Path,
        nargs="?",
        metavar="FILE",
        help="a scenario (YAML, or a shipped one by name), a recording (.jsonl, .jsonl.gz) or the bundle of a hang",
    )
    replay.add_argument("--list", action="store_true", help="print the shipped scenarios by name, and do nothing else")
    replay.add_argument("--json", dest="as_json", action="store_true", help="print one JSON object per line")
    replay.add_argument("--server", default="", metavar="NAME", help="only this server (of a bundle its own, else all)")
    replay.add_argument("--rules", type=Path, metavar="DIR", help="also play these alert rules, with promtool")
    replay.add_argument(
        "--limit",
        dest="limits",
        action="append",
        default=[],
        metavar="NAME=DURATION",
        help="a limit to try instead, such as stalled=3m; may be given again",
    )


def _add_gpu(commands: Any) -> None:
    gpu = commands.add_parser(
        "gpu",
        help="have the running exporter let go of the GPUs",
        description="Ends its use of the GPU driver for a time, so that the driver can be unloaded or MIG be changed. "
        "The exporter has to run with --web.enable-lifecycle; SIGUSR1 to it does the same for 5m. A release replaces "
        "the one before: --for 1s ends it. Exit code: 0 once nothing of it uses the driver, else 1.",
    )
    gpu.add_argument("order", choices=["release"], help="what to do")
    gpu.add_argument("--for", dest="duration", default="5m", metavar="DURATION", help="how long (default: %(default)s)")
    gpu.add_argument("--url", default=USUAL_URL, help="the exporter to tell (default: %(default)s)")
    _add_client(gpu)


def _add_demo(commands: Any) -> None:
    demo = commands.add_parser("demo", help="play an incident on a simulated node and watch it")
    demo.add_argument(
        "--port", type=int, default=19847, help="port of the exporter that watches (default: %(default)s)"
    )
    demo.add_argument(
        "scenario", nargs="?", metavar="SCENARIO", help="a scenario to play: a file, or the name of a shipped one"
    )
    demo.add_argument(
        "--seconds", type=float, default=75.0, help="about how long a round may take (default: %(default)s)"
    )
    demo.add_argument("--keep", type=Path, metavar="DIR", help="keep the evidence of what is played there")
    demo.add_argument("--forever", action="store_true", help="play again and again until told to end")


def _add_bundle(commands: Any) -> None:
    bundle = commands.add_parser(
        "bundle",
        help="write out the rules, runbooks, dashboards and provisioning of this version",
        description="Writes what Prometheus, Alertmanager and Grafana need; nothing at all where a file there differs.",
    )
    bundle.add_argument("directory", type=Path, metavar="DIR", help="where to; it is made where it is missing")
    bundle.add_argument("--force", action="store_true", help="overwrite files that differ")


def _add_evidence(commands: Any) -> None:
    parser = commands.add_parser(
        "evidence",
        help="read what was kept of incidents",
        description="The exporter keeps a bundle of each incident: what was to be seen when nothing moved any more.",
    )
    orders = parser.add_subparsers(dest="order", metavar="list|show|pack", title="orders", required=True)
    listing = orders.add_parser("list", help="list the bundles", description="Lists the bundles, oldest first.")
    listing.add_argument("--json", dest="as_json", action="store_true", help="print JSON")
    show = orders.add_parser("show", help="say what a bundle tells", description="Says what a bundle tells.")
    pack = orders.add_parser(
        "pack",
        help="make one file of a bundle, for a bug report",
        description="Writes a bundle to one .tar.gz, redacted once more, with the sums of its files.",
    )
    pack.add_argument("--output", type=Path, metavar="FILE", help="the file to write (default: BUNDLE.tar.gz, here)")
    for order in (show, pack):
        order.add_argument(
            "bundle",
            nargs="?",
            default="",
            metavar="BUNDLE",
            help="its name, its path, or a server: its latest (of all)",
        )
    for order in (listing, show, pack):
        order.settings = add_flags(order, only=("config.file", "evidence.directory"))


def _add_client(command: argparse.ArgumentParser) -> None:
    command.add_argument(
        "--http.config.file",
        dest="http_config",
        type=Path,
        metavar="FILE",
        help="password, CA and client certificate for the exporter (basic_auth, authorization and tls_config, as "
        "promtool and amtool take them)",
    )


def _seconds(text: str) -> float:
    return float(parse_duration(text))
