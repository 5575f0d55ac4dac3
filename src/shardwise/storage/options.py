"""The user's settings of storage, in one frozen object."""

from __future__ import annotations

import os
from collections.abc import Mapping
from dataclasses import dataclass, field, fields, replace
from typing import Any, Literal, get_args

from shardwise.base.arguments import check_number, suggest_names
from shardwise.storage.cache_settings import CacheSettings
from shardwise.storage.client import register_missing, registered
from shardwise.storage.credentials import Credentials

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
        hedge: whether a request that is later than the 95th percentile is sent a second time.
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
