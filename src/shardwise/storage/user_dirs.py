"""The directory of a user for files that programs can make again, and the names of such files.

Besides credential discovery, the only module of this package that reads the environment.
"""

from __future__ import annotations

import hashlib
import os
from pathlib import Path

from shardwise.base.shown import base_name

# File systems take 255 bytes per name; digest, version and suffix need some 40 of them.
_MAX_NAME_BYTES = 200


def name_beside(url: str, whole: str) -> str:
    """The name, without a suffix, of a file that is made of the file at a URL.

    Its base name, cut to 200 bytes, and 12 hex digits of `whole`, so that `train/000.tar` and
    `val/000.tar` do not meet.
    """
    digest = hashlib.sha256(whole.encode("utf-8", "surrogateescape")).hexdigest()[:12]
    name = base_name(url)
    encoded = name.encode("utf-8", "surrogateescape")
    if len(encoded) > _MAX_NAME_BYTES:
        name = encoded[:_MAX_NAME_BYTES].decode("utf-8", "ignore")
    return f"{name}-{digest}"


def user_cache_dir() -> Path:
    """`$XDG_CACHE_HOME/shardwise`, or else `~/.cache/shardwise`; it need not exist.

    Source: XDG Base Directory Specification.
    """
    base = os.environ.get("XDG_CACHE_HOME", "")
    # Relative paths are ignored, as the specification demands.
    root = Path(base) if base.startswith("/") else Path("~").expanduser() / ".cache"
    return root / "shardwise"
