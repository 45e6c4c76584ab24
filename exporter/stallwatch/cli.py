"""What can be typed? The `stallwatch` command and its subcommands."""

import argparse
import asyncio
import os
import sys
from collections.abc import Sequence
from typing import NoReturn

from stallwatch import __version__
from stallwatch.settings.sources import ConfigError, add_flags, file_of, load

DESCRIPTION = "Tells an LLM inference server that has silently hung from one that is idle, slow or still starting."


class _Parser(argparse.ArgumentParser):
    """Says what is wrong in one line; takes no shortened flags, which a later version could make ambiguous."""

    def __init__(self, **options: object) -> None:
        super().__init__(**options, allow_abbrev=False)  # type: ignore[arg-type]

    def error(self, message: str) -> NoReturn:
        self.exit(2, f"{self.prog}: {message} (see {self.prog} --help)\n")


def main(argv: Sequence[str] | None = None) -> int:
    """Run one command and return its exit code; 2 means that what was typed or configured is wrong."""
    arguments = vars(_parser().parse_args(argv))
    command = arguments.pop("command") or "serve"
    return _COMMANDS[command](arguments)


def _parser() -> argparse.ArgumentParser:
    parser = _Parser(prog="stallwatch", description=DESCRIPTION, epilog="Without a command it serves.")
    parser.add_argument("--version", action="version", version=f"stallwatch {__version__}")
    commands = parser.add_subparsers(dest="command", metavar="COMMAND", title="commands")
    serve = commands.add_parser(
        "serve",
        help="watch this node and serve its metrics",
        usage="stallwatch serve [SETTING ...]",
        description="Watch this node and serve its metrics. SIGHUP reloads the configuration, SIGTERM ends it.",
    )
    add_flags(serve)
    serve.add_argument(
        "--config.check", dest="check", action="store_true", help="read the configuration, say what is wrong"
    )
    demo = commands.add_parser("demo", help="play an incident on a simulated node and watch it")
    demo.add_argument(
        "--port", type=int, default=19847, help="port of the exporter that watches (default: %(default)s)"
    )
    demo.add_argument("--seconds", type=float, default=75.0, help="how long to play (default: %(default)s)")
    return parser


def _serve(arguments: dict[str, object]) -> int:
    check = arguments.pop("check", False)
    try:
        if check:
            load(arguments, os.environ)
            print("the configuration is good")  # noqa: T201 the answer to what was typed
            return 0
        from stallwatch.serve import serve  # noqa: PLC0415 aiohttp is loaded only to serve

        return serve(lambda: load(arguments, os.environ), file_of(arguments, os.environ))
    except ConfigError as error:
        print(f"stallwatch: {error}", file=sys.stderr)  # noqa: T201 the answer to what was typed
        return 2


def _demo(arguments: dict[str, object]) -> int:
    from stallwatch.simulation.demo import demo  # noqa: PLC0415 what it needs is an extra

    return asyncio.run(demo(**arguments))  # type: ignore[arg-type]


_COMMANDS = {"serve": _serve, "demo": _demo}
