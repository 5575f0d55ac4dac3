"""The directory of a user for files that programs can make again.

Besides credential discovery, the only module of this package that reads the environment.
"""

from __future__ import annotations

import os
from pathlib import Path

__all__ = ["user_cache_dir"]


def user_cache_dir() -> Path:
    """`$XDG_CACHE_HOME/shardwise`, or else `~/.cache/shardwise`; it need not exist.

    Source: XDG Base Directory Specification.
    """
    base = os.environ.get("XDG_CACHE_HOME", "")
    # The specification says to ignore relative paths.
    root = Path(base) if base.startswith("/") else Path("~").expanduser() / ".cache"
    return root / "shardwise"
