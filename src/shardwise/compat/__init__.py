"""Other libraries' APIs on this library's parts, so that programs written for them run unchanged.

`install()` makes `import webdataset`, `import wids` and `import video2dataset` find them. Importing
this package costs nothing: theirs are imported when they are used.
"""

from __future__ import annotations

from importlib import import_module
from typing import Any

from shardwise.base.torch_import import import_torch

__all__ = ["install", "video2dataset", "webdataset", "wids"]

_PACKAGES = ("webdataset", "wids", "video2dataset")


def install() -> None:
    """Make imports of `webdataset`, `wids` and `video2dataset`, submodules included, load these.

    Call it before the first `import webdataset`, in the program's main file, so that torch's
    workers that are spawned call it too. Imports in worker processes of `sw.DataLoader`, builds and
    batch servers find these, too.

    Raises:
        ImportError: the other package of that name was imported already, or torch is missing.
    """
    from shardwise.compat.finder import find_packages

    import_torch()
    find_packages()
    for name in _PACKAGES:
        import_module(name)


def __getattr__(name: str) -> Any:
    if name in _PACKAGES:
        return import_module(f"{__name__}.{name}")
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
