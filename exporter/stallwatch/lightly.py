"""What is loaded though nothing here uses it, and how is that left out? It would be a tenth of all memory."""

import os
import sys
from collections.abc import Iterator, MutableMapping, Sequence
from contextlib import contextmanager
from importlib.machinery import ModuleSpec, PathFinder
from types import ModuleType
from typing import Any

SWITCHES = {
    "FROZENLIST_NO_EXTENSIONS": "1",  # else libstdc++, for a few lists of callbacks: 1.1 MiB
    "SSL_CERT_FILE": os.devnull,  # aiohttp makes a context with all CAs of the system as it is imported: 2 MiB
    "SSL_CERT_DIR": os.devnull,
}
"""Variables that are read while aiohttp is imported. Whoever verifies a certificate brings a context with CAs."""

SELDOM = frozenset({"base64", "copy", "glob", "inspect", "selectors", "shutil", "socket", "subprocess", "tempfile"})
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
    """Meanwhile, finds the modules of these names so that each is loaded late: once it is used, by one thread.

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
            spec.loader = _Late(spec.loader)  # type: ignore[assignment]
        return spec


class _Late:
    """Loads a module when something is first looked for in it, and again where that failed.

    importlib's LazyLoader leaves an empty module for good behind where it failed once, for want of a descriptor or so.
    There is no importlib.abc.Loader above this one, since that imports much.
    """

    def __init__(self, loader: Any) -> None:
        self._loader = loader

    def create_module(self, spec: ModuleSpec) -> ModuleType | None:
        """Leave that to the loader of the module."""
        module: ModuleType | None = self._loader.create_module(spec)
        return module

    def exec_module(self, module: ModuleType) -> None:
        """Have the module loaded by the first that it is asked for, see PEP 562."""

        def late(name: str) -> Any:
            del module.__getattr__
            try:
                self._loader.exec_module(module)
            except BaseException:
                module.__getattr__ = late  # type: ignore[method-assign]
                raise
            return getattr(module, name)

        module.__getattr__ = late  # type: ignore[method-assign]
