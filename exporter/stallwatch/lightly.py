"""What is loaded though nothing here uses it, and how is that left out? It would be a tenth of all memory."""

import importlib.util
import os
import sys
from collections.abc import Iterator, MutableMapping, Sequence
from contextlib import contextmanager
from importlib.machinery import ModuleSpec, PathFinder
from types import ModuleType

SWITCHES = {
    "FROZENLIST_NO_EXTENSIONS": "1",  # else libstdc++, for a few lists of callbacks: 1.1 MiB
    "SSL_CERT_FILE": os.devnull,  # aiohttp makes a context with all CAs of the system as it is imported: 2 MiB
    "SSL_CERT_DIR": os.devnull,
}
"""Variables that are read while aiohttp is imported. Whoever verifies a certificate brings a context with CAs."""

SELDOM = frozenset(
    {"base64", "copy", "glob", "heapq", "inspect", "selectors", "shutil", "socket", "subprocess", "tempfile"}
)
"""What a worker imports by way of others and seldom uses: 2.3 MiB, and 3.0 MiB in that of the GPUs."""

UNUSED = frozenset({"attr.validators", "bz2", "idna", "lzma"})
"""What a command imports by way of others and does not use, but for `idna` where a host has such a name: 0.9 MiB."""


@contextmanager
def lightly(environ: MutableMapping[str, str] = os.environ) -> Iterator[None]:
    """Have aiohttp, if it is imported meanwhile, load no more than is needed; the environment is as before then."""
    before = {name: environ.get(name) for name in SWITCHES}
    environ.update(SWITCHES)
    try:
        yield
    finally:
        for name, value in before.items():
            if value is None:
                del environ[name]
            else:
                environ[name] = value


class Lazily:
    """Meanwhile, finds the modules of these names so that each is loaded once it is used, by one thread.

    What was found so is loaded late also after that.
    """

    def __init__(self, names: frozenset[str]) -> None:
        self._names = names

    def __enter__(self) -> None:
        """Leave what is loaded already."""
        sys.meta_path.insert(0, self)

    def __exit__(self, *_fault: object) -> None:
        """Find no more."""
        sys.meta_path.remove(self)

    def find_spec(
        self, name: str, path: Sequence[str] | None = None, target: ModuleType | None = None
    ) -> ModuleSpec | None:
        """Return how a module is loaded late, None where that is not for us to say."""
        spec = PathFinder.find_spec(name, path, target) if name in self._names else None
        if spec and spec.loader:
            spec.loader = importlib.util.LazyLoader(spec.loader)
        return spec
