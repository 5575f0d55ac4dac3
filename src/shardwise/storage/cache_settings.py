"""The user's settings of the cache on disk."""

from __future__ import annotations

import os
from collections.abc import Sequence
from dataclasses import KW_ONLY, dataclass, field
from typing import Any

from shardwise.base.arguments import check_flag, check_number, path_text, suggest_names
from shardwise.base.plugins import find
from shardwise.base.shown import shown
from shardwise.storage.urls import scheme_of, strip_file_scheme

_MIN_BLOCK_BYTES = 16 << 10


@suggest_names
@dataclass(frozen=True)
class CacheSettings:
    """A cache of remote files on a disk of this machine, for all processes that name it.

    Ranks, workers and jobs that name the same directory share its blocks; their users should trust
    each other. The cache is one folder in it, `shardwise-cache-v1`; other files in the directory
    are never touched.

    Args:
        directory: of the cache; created at the first use. `~` is expanded.
        max_bytes: disk space of the cache, including blocks in flight. The least recently used
            blocks are evicted first. Each process applies its own setting.
        block_bytes: files are cached in blocks of this size, each fetched by one request. It is
            halved until 32 blocks fit in `max_bytes`, but not below 16 KiB. Small random reads
            fetch whole blocks too: for them, a smaller one is better.
        wait_s: seconds to wait for a block that another process is fetching, before reading past
            the cache.
        share: read what other nodes of the job hold from them, in place of the store.
        peers: "tcp://host:port" of each node in the order of their ranks, as many on each; by
            default the ranks of a process group find each other.
        token_file: with the token of the job; `peers` needs it, and a process group has one.
        tls_cert: a PEM file with this node's certificate and key, for TLS between nodes.
        tls_ca: a PEM file with the authorities that sign all nodes' certificates.

    Raises:
        ValueError: a number is not above 0, or arguments do not go together.

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
    share: bool = False
    peers: str | Sequence[str] | None = None
    token_file: str | os.PathLike[str] | None = None
    tls_cert: str | os.PathLike[str] | None = None
    tls_ca: str | os.PathLike[str] | None = None
    # This process's Cache with the settings, from the first file on.
    opened: Any = field(default=None, init=False, repr=False, compare=False)

    def __post_init__(self) -> None:
        """Make the directory an absolute path, and the blocks small enough."""
        directory = path_text("directory", self.directory)
        if not directory:
            raise ValueError(f"directory={self.directory!r}: it must be a path")
        if scheme_of(directory) not in ("", "file"):
            raise ValueError(
                f"directory={shown(directory)!r}: a cache is a directory of this machine"
            )
        for name in ("max_bytes", "block_bytes", "wait_s"):
            check_number(name, getattr(self, name))
        directory = path_text("directory", strip_file_scheme(directory))
        path = os.path.abspath(os.path.expanduser(directory))  # noqa: PTH100, PTH111
        object.__setattr__(self, "directory", path)
        block_bytes = self.block_bytes
        while block_bytes * 32 > self.max_bytes and block_bytes >= 2 * _MIN_BLOCK_BYTES:
            block_bytes //= 2
        object.__setattr__(self, "block_bytes", block_bytes)
        check_flag("share", self.share)
        if self.share:
            object.__setattr__(self, "peers", find("caches", "share").checked_peers(self))
        elif self.peers or self.token_file or self.tls_cert or self.tls_ca:
            raise ValueError("peers=, token_file=, tls_cert= and tls_ca= need share=True")

    def __getstate__(self) -> dict[str, Any]:
        return {**self.__dict__, "opened": None}

    @classmethod
    def of(cls, cache: CacheSettings | str | os.PathLike[str] | None) -> CacheSettings | None:
        """The settings of a user's `cache=`: settings, a directory, or None."""
        if cache is None or isinstance(cache, cls):
            return cache
        if not isinstance(cache, str | os.PathLike):
            raise TypeError(f"cache={cache!r}: a directory, a CacheSettings, or None")
        return cls(cache)
