"""The environment variables of WebDataset and wids; no other part of shardwise reads them."""

from __future__ import annotations

import os

from shardwise.storage.user_dirs import user_cache_dir


def variable(name: str, default: str | None = None) -> str | None:
    return os.environ.get(name, default)


def is_on(name: str) -> bool:
    text = variable(name) or "0"
    try:
        return bool(int(text))
    except ValueError:
        raise ValueError(f"the environment variable {name}={text!r}: set it to 0 or 1") from None


def wids_cache_dir() -> str:
    return variable("WIDS_CACHE") or str(user_cache_dir() / "wids")
