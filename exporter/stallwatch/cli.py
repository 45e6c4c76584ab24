"""What does a command do? Each loads only what it needs."""

import asyncio
import os
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from stallwatch.commandline import parser
from stallwatch.config import Config
from stallwatch.lightly import UNUSED, Lazily, lightly
from stallwatch.settings.sources import ConfigError, file_of, load

if TYPE_CHECKING:
    from stallwatch.asking import Client


def main(argv: Sequence[str] | None = None) -> int:
    """Run one command and return its exit code; 2 means that what was typed or configured is wrong."""
    with Lazily(UNUSED):
        return _carried_out(argv)


def _carried_out(argv: Sequence[str] | None) -> int:
    arguments = vars(parser().parse_args(argv))
    if (command := arguments.pop("command")) is None:
        parser().print_help()
        return 2
    try:
        code = _COMMANDS[command](arguments)
        sys.stdout.flush()
    except BrokenPipeError:  # whoever reads the output has seen enough, as `head` has
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return 0
    return code


def _evidence(arguments: dict[str, Any]) -> int:
    from stallwatch.evidence import commands, store  # noqa: PLC0415 each command loads what it needs

    order, as_json, bundle, output = (arguments.pop(key, None) for key in ("order", "as_json", "bundle", "output"))
    try:
        directory = store.directory_of(load(arguments, os.environ).evidence, os.environ)
        if order == "list":
            return commands.list_bundles(directory, as_json=bool(as_json))
        if order == "show":
            return commands.show(directory, bundle or "")
        return commands.pack_bundle(directory, bundle or "", output)
    except ConfigError as error:
        print(f"stallwatch: {error}", file=sys.stderr)  # noqa: T201 the answer to what was typed
        return 2


def _client(file: Path | None) -> "Client | None":
    from stallwatch.settings.http_client import read_client  # noqa: PLC0415 each command loads what it needs

    return read_client(file) if file else None


def _serve(arguments: dict[str, object]) -> int:
    check = arguments.pop("check", False)
    try:
        if check:
            _check_files(load(arguments, os.environ))
            print("the configuration is good")  # noqa: T201 the answer to what was typed
            return 0
        with lightly():
            from stallwatch.serve import serve  # noqa: PLC0415 aiohttp is loaded only to serve

        return serve(lambda: load(arguments, os.environ), file_of(arguments, os.environ))
    except ConfigError as error:
        print(f"stallwatch: {error}", file=sys.stderr)  # noqa: T201 the answer to what was typed
        return 2


def _check_files(config: Config) -> None:
    if config.web.config_file:
        from stallwatch.gate.admission import PolicyLoader  # noqa: PLC0415 aiohttp is loaded only where it is needed

        PolicyLoader(Path(config.web.config_file)).load()
    if config.notify.webhook_url_file:
        from stallwatch.notify.address import AddressError, read_url  # noqa: PLC0415 the same

        try:
            read_url(Path(config.notify.webhook_url_file))
        except AddressError as error:  # which would not keep the exporter from serving either
            _warn(f"nobody can be notified: {config.notify.webhook_url_file}: {error}")
    if config.evidence.enabled and config.evidence.stacks:
        from stallwatch.sources.pyspy import MISSING, installed  # noqa: PLC0415 the same

        if installed() is None:
            _warn(f"evidence.stacks: {MISSING}")


def _warn(text: str) -> None:
    """Say what does not keep the exporter from serving."""
    print(f"stallwatch: warning: {text}", file=sys.stderr)  # noqa: T201 the answer to what was typed


def _check(arguments: dict[str, Any]) -> int:
    from stallwatch.check import check  # noqa: PLC0415 each command loads what it needs

    own = {key: arguments.pop(key) for key in ("server", "as_json", "seconds", "url", "look", "record")}
    file = arguments.pop("http_config")
    try:
        return check(load(arguments, os.environ), client=_client(file), **own)
    except ConfigError as error:
        print(f"stallwatch: {error}", file=sys.stderr)  # noqa: T201 the answer to what was typed
        return 3  # 2 would say that a server is hung


def _replay(arguments: dict[str, Any]) -> int:
    from stallwatch.simulation.replay import replay, shipped_scenarios  # noqa: PLC0415 each command loads what it needs

    if arguments.pop("list"):
        print(*shipped_scenarios(), sep="\n")  # noqa: T201 the answer to what was typed
        return 0
    if arguments["file"] is None:
        text = "stallwatch: replay: name a scenario, a recording or a bundle; --list prints the shipped scenarios"
        print(text, file=sys.stderr)  # noqa: T201 the answer to what was typed
        return 2
    try:
        return replay(**arguments)
    except ConfigError as error:
        print(f"stallwatch: {error}", file=sys.stderr)  # noqa: T201 the answer to what was typed
        return 2


def _gpu(arguments: dict[str, Any]) -> int:
    from stallwatch.asking import ANYBODY  # noqa: PLC0415 each command loads what it needs
    from stallwatch.orders import release_gpu  # noqa: PLC0415 each command loads what it needs

    try:
        client = _client(arguments["http_config"]) or ANYBODY
    except ConfigError as error:
        print(f"stallwatch: {error}", file=sys.stderr)  # noqa: T201 the answer to what was typed
        return 2
    return release_gpu(arguments["url"], arguments["duration"], client)


def _demo(arguments: dict[str, object]) -> int:
    from stallwatch.simulation.demo import demo  # noqa: PLC0415 what it needs is an extra

    try:
        return asyncio.run(demo(**arguments))  # type: ignore[arg-type]
    except ConfigError as error:
        print(f"stallwatch: {error}", file=sys.stderr)  # noqa: T201 the answer to what was typed
        return 2


def _bundle(arguments: dict[str, Any]) -> int:
    from stallwatch.shipped import bundle  # noqa: PLC0415 each command loads what it needs

    return bundle(**arguments)


_COMMANDS = {
    "serve": _serve,
    "check": _check,
    "replay": _replay,
    "evidence": _evidence,
    "gpu": _gpu,
    "demo": _demo,
    "bundle": _bundle,
}
