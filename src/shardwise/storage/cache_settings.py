"""What a user sets about the cache on disk."""

from __future__ import annotations

import os
from dataclasses import KW_ONLY, dataclass, field
from typing import Any

from shardwise.arguments import check_number, path_text

__all__ = ["CacheSettings"]

_LEAST_BLOCK = 16 << 10


@dataclass(frozen=True)
class CacheSettings:
    """A cache of remote files on a disk of this machine, for all processes that name it.

    Ranks, workers and jobs that share the directory share what is in it; they should be run by
    people who trust each other. Everything lies in one folder of it, `shardwise-cache-v1`; other
    files in the directory are never touched.

    Args:
        directory: where the cache lies; made when it is first used. `~` is expanded.
        max_bytes: the most disk space that the cache takes, with what is being downloaded. What
            was not used for longest goes first. Each process keeps to its own setting.
        block_bytes: files are kept in blocks of this size, each of them fetched by one request. It
            is halved until 32 of them fit in `max_bytes`, but not below 16 KiB. Small random reads
            fetch whole blocks, too: a smaller one suits them better.
        wait_s: how long to wait for a block that another process is fetching, before reading past
            the cache.

    Raises:
        ValueError: a number is not above 0.

    Examples:
        >>> import shardwise as sw
        >>> sw.CacheSettings("/scratch/cache", max_bytes=200 * 10**9).block_bytes
        4194304
    """

    directory: str | os.PathLike[str]
    _: KW_ONLY
    max_bytes: int = 100 * 10**9
    block_bytes: int = 4 << 20
    wait_s: float = 60.0
    # The cache itself, once a file was opened with these settings in this process.
    opened: Any = field(default=None, init=False, repr=False, compare=False)

    def __post_init__(self) -> None:
        """Make the directory an absolute path, and the blocks small enough."""
        directory = path_text("directory", self.directory)
        if not directory:
            raise ValueError(f"directory={self.directory!r}: it must be a path")
        for name in ("max_bytes", "block_bytes", "wait_s"):
            check_number(name, getattr(self, name))
        path = os.path.abspath(os.path.expanduser(directory))  # noqa: PTH100, PTH111
        object.__setattr__(self, "directory", path)
        block_bytes = self.block_bytes
        while block_bytes * 32 > self.max_bytes and block_bytes >= 2 * _LEAST_BLOCK:
            block_bytes //= 2
        object.__setattr__(self, "block_bytes", block_bytes)

    def __getstate__(self) -> dict[str, Any]:
        return {**self.__dict__, "opened": None}

    @classmethod
    def of(cls, given: CacheSettings | str | os.PathLike[str] | None) -> CacheSettings | None:
        """What a user gave as `cache=`: settings, a directory, or nothing."""
        if given is None or isinstance(given, cls):
            return given
        if not isinstance(given, str | os.PathLike):
            raise TypeError(f"cache={given!r}: a directory, a CacheSettings, or None")
        return cls(given)
