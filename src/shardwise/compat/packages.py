"""The packages that `install` puts in place: their versions, and their imports elsewhere.

`importlib.metadata.version` finds their versions. A process that gets a dataset from one with the
packages in place has them from its first import of one: most datasets need neither them nor torch.
"""

from __future__ import annotations

import sys
from collections.abc import Iterator
from importlib import import_module, metadata
from importlib.abc import Loader
from importlib.machinery import ModuleSpec
from pathlib import Path
from pkgutil import iter_modules
from types import ModuleType
from typing import Any

from shardwise.base.torch_import import import_torch
from shardwise.engine.processes.pickling import prepare_by

PACKAGES = ("webdataset", "wids", "video2dataset")
_HERE = __name__.rpartition(".")[0]
_ANY = metadata.DistributionFinder.Context()


def install() -> None:
    """Make imports of `webdataset`, `wids` and `video2dataset`, submodules included, load these.

    Call it before the first `import webdataset`, in the program's main file, so that torch's
    workers that are spawned call it too. Worker processes of `sw.DataLoader`, builds and batch
    servers call it where a dataset of this process imports one of them.

    Raises:
        ImportError: the other package of that name was imported already, or torch is missing.
    """
    import_torch()
    found = {}
    for name in PACKAGES:
        package = import_module(f"{_HERE}.{name}")
        present = sys.modules.get(name, package)
        if present is not package:
            raise ImportError(
                f"{name!r} was imported from {getattr(present, '__file__', None)} already: call "
                "shardwise.compat.install() before the first import of it"
            )
        found[name] = package
        for module in iter_modules(package.__path__):
            import_module(f"{package.__name__}.{module.name}")
        prefix = f"{package.__name__}."
        inner = [each for each in sys.modules if each.startswith(prefix)]
        found |= {f"{name}.{each.removeprefix(prefix)}": sys.modules[each] for each in inner}
    sys.modules.update(found)
    answer_versions()
    prepare_by(answer_versions)


def answer_versions() -> None:
    """Make `importlib.metadata` report the versions of the packages' APIs that are there."""
    if not any(isinstance(finder, _Versions) for finder in sys.meta_path):
        # First in the list: an original that is installed too has another version.
        sys.meta_path.insert(0, _Versions())


class _Versions(metadata.DistributionFinder):
    """A finder of the packages' distributions, and of their modules before `install`."""

    def find_spec(self, name: str, *_: Any) -> ModuleSpec | None:
        """Find a package by installing all of them; after `install`, imports ask no finder."""
        if name not in PACKAGES:
            return None
        install()
        # The import would find the own spec of a module that is there, and load it once more.
        return ModuleSpec(name, _Loader(sys.modules.pop(name)))

    def find_distributions(
        self, context: metadata.DistributionFinder.Context = _ANY
    ) -> Iterator[metadata.Distribution]:
        return (_Installed(name) for name in PACKAGES if context.name in (None, name))


class _Loader(Loader):
    """Loads a module of this package under its other name, as it is."""

    def __init__(self, module: ModuleType) -> None:
        self._module = module
        self._spec = module.__spec__

    def create_module(self, _spec: ModuleSpec) -> ModuleType:
        return self._module

    def exec_module(self, module: ModuleType) -> None:
        module.__spec__ = self._spec


class _Installed(metadata.Distribution):
    """A package of this one as a distribution that has a name and a version."""

    def __init__(self, name: str) -> None:
        self._name = name

    def read_text(self, filename: str) -> str | None:
        version = import_module(self._name).__version__
        text = f"Metadata-Version: 2.1\nName: {self._name}\nVersion: {version}\n"
        return text if filename == "METADATA" else None

    def locate_file(self, path: Any) -> Any:
        return Path(__file__).parent / path
