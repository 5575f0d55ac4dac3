"""Where programs keep what they can make again, for one user of one machine.

The one place in this package, besides credentials, that looks into the environment. Imports the
standard library only.
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
