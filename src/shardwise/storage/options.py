"""The user's settings of storage, in one frozen object."""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from dataclasses import KW_ONLY, dataclass, field, fields, replace
from typing import Any, Literal, get_args

from shardwise.base.arguments import check_flag, check_number, path_text, suggest_names
from shardwise.base.plugins import find
from shardwise.base.shown import shown
from shardwise.storage.client import register_missing, registered
from shardwise.storage.credentials import Credentials
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
        max_bytes: disk space of the cache, including blocks in flight; each process applies its own
            setting. Blocks that no loader expects, or that are used last, are evicted first.
        block_bytes: files are cached in blocks of this size. It is halved until 32 blocks fit in
            `max_bytes`, but not below 16 KiB. Small random reads fetch whole blocks too: for them,
            a smaller one is better.
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


Redirects = Literal["any", "same-host", "none"]


@suggest_names
@dataclass(frozen=True, kw_only=True)
class StorageOptions:
    """Options for remote files: how they are reached, read and kept.

    Args:
        config: the store's own settings, by the names that obstore gives them:
            `{"aws_access_key_id": ..., "aws_secret_access_key": ..., "endpoint": ...}`; `headers`
            for http(s), `token` and `endpoint` for hf and ais; for all other schemes what fsspec's
            file system takes. Without credentials here, those that the store's own tools use are
            used: environment, profiles, instance metadata. They are never shown, logged or pickled.
        cache: the settings of a cache on disk; None for none.
        attempt_timeout_s: seconds that an attempt may wait for its next byte.
        request_timeout_s: seconds that a request may take in all, with its attempts and pauses; a
            host that has never answered gets 30 s at most.
        max_attempts: attempts at a request, the first included; None bounds them by time alone.
        max_requests: requests in flight at a time in a process, hedges apart.
        prefetch_bytes: memory of a process for prefetched blocks; 0 prefetches nothing.
        hedge: whether a request later than 1.25 times the 95th percentile is sent a second time.
        redirects: which redirects of http(s), hf and ais servers are followed: "any", "same-host"
            (scheme, host and port stay the same) or "none". Another redirect is an error. Even with
            "any", headers and token of `config` go to the first host only, and https never leads to
            http.

    Raises:
        TypeError: an option is of another type.
        ValueError: a number is not above 0 (`prefetch_bytes`: below 0), or `redirects` is not one
            of the three.

    Examples:
        >>> import shardwise as sw
        >>> sw.StorageOptions(config={"aws_secret_access_key": "s3cr3t"}).config
        Credentials(aws_secret_access_key=...)
    """

    config: Credentials | Mapping[str, Any] = field(default_factory=lambda: Credentials({}))
    cache: CacheSettings | None = None
    attempt_timeout_s: float = 10.0
    request_timeout_s: float = 300.0
    max_attempts: int | None = None
    max_requests: int = 64
    prefetch_bytes: int = 256 << 20
    hedge: bool = True
    redirects: Redirects = "any"

    def __post_init__(self) -> None:
        """Hide the settings, and refuse values that can't be meant."""
        config: Any = self.config
        if not isinstance(config, Credentials):
            if not isinstance(config, Mapping):
                raise TypeError(f"config must be a mapping, not {type(config).__name__}")
            object.__setattr__(self, "config", Credentials(config))
        for name in ("attempt_timeout_s", "request_timeout_s", "max_attempts", "max_requests"):
            if name != "max_attempts" or self.max_attempts is not None:
                check_number(name, getattr(self, name))
        if not isinstance(self.redirects, str) or self.redirects not in get_args(Redirects):
            raise ValueError(f"redirects={self.redirects!r}: one of {get_args(Redirects)}")
        check_number("prefetch_bytes", self.prefetch_bytes, least=0)

    def __getstate__(self) -> dict[str, Any]:
        """Bring the program's own stores along to other processes."""
        stores = registered()
        return {**self.__dict__, **({"_stores": stores} if stores else {})}

    def __setstate__(self, state: Mapping[str, Any]) -> None:
        register_missing(state.get("_stores", {}))
        self.__dict__.update({name: each for name, each in state.items() if name != "_stores"})

    def settings(self) -> dict[str, Any]:
        """A copy of the store's own settings, in clear.

        Raises:
            StorageError: the options were unpickled where the settings are not known.
        """
        config = self.config
        return dict(config.values() if isinstance(config, Credentials) else config)

    @classmethod
    def of(
        cls,
        storage: StorageOptions | Mapping[str, Any] | None,
        *,
        cache: CacheSettings | str | os.PathLike[str] | None = None,
    ) -> StorageOptions:
        """The options of a user's `storage=`: options, a mapping of them or of settings, None.

        Names that are not options are the store's own settings:
        `{"endpoint": "http://localhost:9000", "max_attempts": 3}`. `cache` is a user's `cache=`.
        """
        cache = CacheSettings.of(cache)
        if isinstance(storage, StorageOptions):
            return storage if cache is None else replace(storage, cache=cache)
        if storage is None:
            return cls(cache=cache)
        if not isinstance(storage, Mapping):
            raise TypeError(
                f"storage= is a {type(storage).__name__}: give a StorageOptions, a mapping of "
                "settings, or None"
            )
        known = {each.name for each in fields(cls)}
        own = {name: value for name, value in storage.items() if name in known}
        config = {name: value for name, value in storage.items() if name not in known}
        if config and "config" in own:
            raise ValueError(
                f"storage has config and also {', '.join(config)}: put all settings of the store "
                "into config"
            )
        if config:
            own["config"] = config
        if cache is not None:
            own["cache"] = cache
        return cls(**own)
