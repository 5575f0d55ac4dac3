"""Other libraries' APIs on this library's parts, so that programs written for them run unchanged.

`install()` makes `import webdataset`, `import wids` and `import video2dataset` find them. Importing
this package costs nothing: theirs are imported when they are used.
"""

from __future__ import annotations

from importlib import import_module
from typing import Any

from shardwise.compat.packages import PACKAGES, install

__all__ = ["install", "video2dataset", "webdataset", "wids"]


def __getattr__(name: str) -> Any:
    if name in PACKAGES:
        return import_module(f"{__name__}.{name}")
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
