"""Everything that a user may set about storage, in one frozen object.

Imports `shardwise.arguments` and this package's credentials.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, fields, replace
from typing import Any, Literal, get_args

from shardwise.arguments import check_number
from shardwise.storage.cache_settings import CacheSettings
from shardwise.storage.stores.credentials import Credentials

__all__ = ["Redirects", "StorageOptions"]

Redirects = Literal["any", "same-host", "none"]


@dataclass(frozen=True, kw_only=True)
class StorageOptions:
    """How remote files are reached, read and kept.

    Args:
        config: the store's own settings, by the names that obstore gives them:
            `{"aws_access_key_id": ..., "aws_secret_access_key": ..., "endpoint": ...}`; `headers`
            for http(s), `token` and `endpoint` for hf and ais; for all other schemes what fsspec's
            file system takes. Credentials that are not given are looked for where the store's own
            tools look: environment, profiles, instance metadata. They are never shown, logged or
            pickled.
        cache: the settings of a cache on disk; None for none.
        attempt_timeout_s: seconds that an attempt may wait for its next byte.
        request_timeout_s: seconds that a request may take in all, with its attempts and pauses; a
            host that has never answered gets 30 s at most.
        max_attempts: attempts at a request, the first included; None bounds them by time alone.
        max_requests: requests in flight at a time in a process, hedges apart.
        prefetch_bytes: memory of a process for what is read ahead; 0 reads nothing ahead.
        hedge: whether a request that is later than 95 of 100 is sent a second time.
        redirects: which redirects of http(s), hf and ais servers are followed: "any", "same-host"
            (scheme, host and port stay the same) or "none". One that is not followed is an error.
            With "any" too, the headers and the token that were given here stay with the first
            host, and https never leads to http.

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
        """Hide what was given in clear, and refuse what can't be meant."""
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

    def settings(self) -> dict[str, Any]:
        """A copy of the store's own settings, in clear.

        Raises:
            StorageError: the options were unpickled where the settings are not known.
        """
        config = self.config
        return dict(config.values() if isinstance(config, Credentials) else config)

    @classmethod
    def of(
        cls, given: StorageOptions | Mapping[str, Any] | None, *, cache: CacheSettings | None = None
    ) -> StorageOptions:
        """What a user gave as `storage=`: options, a mapping of these or of settings, nothing.

        Names that are not options are the store's own settings:
        `{"endpoint": "http://localhost:9000", "max_attempts": 3}`.
        """
        if isinstance(given, StorageOptions):
            return given if cache is None else replace(given, cache=cache)
        if given is None:
            return cls(cache=cache)
        if not isinstance(given, Mapping):
            raise TypeError(
                f"storage= is a {type(given).__name__}: give a StorageOptions, a mapping of "
                "settings, or None"
            )
        known = {each.name for each in fields(cls)}
        own = {name: value for name, value in given.items() if name in known}
        config = {name: value for name, value in given.items() if name not in known}
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
