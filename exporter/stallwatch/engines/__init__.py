"""Which inference engines are known?"""

from stallwatch.engines import sglang, vllm
from stallwatch.engines.engine import Argv, Engine, Identity

ENGINES: tuple[Engine, ...] = (sglang.ENGINE, vllm.ENGINE)


def engine_named(name: str) -> Engine:
    """Return the engine of this name."""
    return next(known for known in ENGINES if known.name == name)


def identify(argv: Argv) -> Identity | None:
    """Say what a process is in any of the engines, or None."""
    return next((found for known in ENGINES if (found := known.identify(argv))), None)


__all__ = ["ENGINES", "Engine", "Identity", "engine_named", "identify"]
