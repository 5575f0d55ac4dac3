"""Limits of the process that bound how many files are open."""

from __future__ import annotations

import resource


def max_open_files() -> int:
    """How many files a set of shards may keep open: a quarter of the process's limit, 4 to 2,048.

    A window shuffle has some 1,000 shards in use at a time: where the limit (`ulimit -n`) is below
    5,000, some of them are opened again and again.
    """
    soft, _ = resource.getrlimit(resource.RLIMIT_NOFILE)
    most = 2048
    return most if soft == resource.RLIM_INFINITY else max(4, min(most, soft // 4))
