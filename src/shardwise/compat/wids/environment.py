"""The environment variable that wids programs set: where what is read of remote shards is kept."""

from __future__ import annotations

import os

from shardwise.storage.user_dirs import user_cache_dir


def default_cache_dir() -> str:
    """`WIDS_CACHE`, else a directory of the user's own."""
    return os.environ.get("WIDS_CACHE") or str(user_cache_dir() / "wids")
