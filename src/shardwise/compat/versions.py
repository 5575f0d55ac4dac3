"""The versions of the packages that `install` put in place, for `importlib.metadata.version`."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from importlib import metadata
from pathlib import Path
from typing import Any

_PACKAGES = ("video2dataset", "webdataset", "wids")
_ANY = metadata.DistributionFinder.Context()


def answer_versions() -> None:
    """Make `importlib.metadata` report the versions of the packages' APIs that are there."""
    if not any(isinstance(finder, _Versions) for finder in sys.meta_path):
        # First in the list: an original that is installed too has another version.
        sys.meta_path.insert(0, _Versions())


class _Versions(metadata.DistributionFinder):
    """A finder of distributions only: the modules are there already."""

    def find_spec(self, *_: Any) -> None: ...

    def find_distributions(
        self, context: metadata.DistributionFinder.Context = _ANY
    ) -> Iterator[metadata.Distribution]:
        return (_Installed(name) for name in _PACKAGES if context.name in (None, name))


class _Installed(metadata.Distribution):
    """A package of this one as a distribution that has a name and a version."""

    def __init__(self, name: str) -> None:
        self._name = name

    def read_text(self, filename: str) -> str | None:
        version = sys.modules[self._name].__version__
        text = f"Metadata-Version: 2.1\nName: {self._name}\nVersion: {version}\n"
        return text if filename == "METADATA" else None

    def locate_file(self, path: Any) -> Any:
        return Path(__file__).parent / path
