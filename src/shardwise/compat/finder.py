"""Finds `webdataset`, `wids` and `video2dataset`, for imports and for `importlib.metadata`."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from importlib import import_module, metadata
from importlib.machinery import ModuleSpec
from pathlib import Path
from pkgutil import iter_modules
from types import ModuleType
from typing import Any

from shardwise.base.torch_import import import_torch

# Of the packages whose APIs these are.
VERSIONS = {"video2dataset": "1.3.0", "webdataset": "1.0.2", "wids": "0.1.11"}
_ANY = metadata.DistributionFinder.Context()


def find_packages() -> None:
    """Let imports find the packages here: a process that imports none of them needs no torch.

    Raises:
        ImportError: another package of such a name was imported already.
    """
    for name in VERSIONS:
        present = sys.modules.get(name)
        if present is not None and present.__name__ != f"{__package__}.{name}":
            raise ImportError(
                f"{name!r} was imported from {getattr(present, '__file__', None)} already: call "
                "shardwise.compat.install() before the first import of it"
            )
    if not any(isinstance(finder, _Finder) for finder in sys.meta_path):
        # First in the list: an original may be installed, too.
        sys.meta_path.insert(0, _Finder())


class _Finder(metadata.DistributionFinder):
    """Finds and loads the packages, and their distributions, here and where it is unpickled."""

    def __reduce__(self) -> Any:
        return find_packages, ()

    def find_spec(self, name: str, *_: Any) -> ModuleSpec | None:
        return ModuleSpec(name, self) if name in VERSIONS else None  # type: ignore[arg-type]

    def create_module(self, spec: ModuleSpec) -> None: ...

    def exec_module(self, module: ModuleType) -> None:
        """Put a package and its modules in place of a module of its name."""
        import_torch()
        name = module.__name__
        package = import_module(f"{__package__}.{name}")
        for each in iter_modules(package.__path__):
            import_module(f"{package.__name__}.{each.name}")
        prefix = f"{package.__name__}."
        inner = [each for each in sys.modules if each.startswith(prefix)]
        found = {f"{name}.{each.removeprefix(prefix)}": sys.modules[each] for each in inner}
        sys.modules.update({name: package, **found})

    def find_distributions(
        self, context: metadata.DistributionFinder.Context = _ANY
    ) -> Iterator[metadata.Distribution]:
        return (_Installed(name) for name in VERSIONS if context.name in (None, name))


class _Installed(metadata.Distribution):
    """A package of this one as a distribution that has a name and a version."""

    def __init__(self, name: str) -> None:
        self._name = name

    def read_text(self, filename: str) -> str | None:
        text = f"Metadata-Version: 2.1\nName: {self._name}\nVersion: {VERSIONS[self._name]}\n"
        return text if filename == "METADATA" else None

    def locate_file(self, path: Any) -> Any:
        return Path(__file__).parent / path
