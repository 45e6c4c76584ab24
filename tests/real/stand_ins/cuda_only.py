"""What stands in for a package that needs CUDA? All its names are there and none of them can be used.

SGLang imports such packages wherever it runs. On a CPU it calls nothing of them, as long as it is not told otherwise:
no torch operator is registered here, so it takes its paths in plain torch.
"""

import importlib.abc
import importlib.machinery
import sys
import types


class StandIn(types.ModuleType):
    """A module, and each name in it: it has every attribute, may be a base class, and cannot be called."""

    __path__ = ()

    def __getattr__(self, name):
        if name.startswith("__"):
            raise AttributeError(name)
        return StandIn(f"{self.__name__}.{name}")

    def __call__(self, *_args, **_keywords):
        """Refuse."""
        raise NotImplementedError(f"{self.__name__} needs CUDA")

    def __mro_entries__(self, _bases):
        return (object,)


class Inner(importlib.abc.MetaPathFinder, importlib.abc.Loader):
    """Finds whatever is imported from inside a package that has a stand-in."""

    def __init__(self, package):
        self._prefix = f"{package}."

    def find_spec(self, fullname, path=None, target=None):
        """Return a spec for all that lies in the package."""
        return importlib.machinery.ModuleSpec(fullname, self) if fullname.startswith(self._prefix) else None

    def create_module(self, spec):
        """Return the stand-in."""
        return StandIn(spec.name)

    def exec_module(self, module):
        """Leave it as it is."""


def stand_in(package):
    """Put a stand-in where the calling module is, and behind all that it may contain."""
    own = sys.modules[package]
    sys.modules[package] = StandIn(package)
    sys.modules[package].__spec__ = own.__spec__
    sys.meta_path.append(Inner(package))
