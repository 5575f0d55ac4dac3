"""Settings of a store that may be secret, in an object that never shows or pickles them.

A pickle holds a handle only. It becomes the values again in the process that made it, in a fork of
it, and in a process that imported them (`export_credentials`, `import_credentials`); elsewhere the
first use raises an error that asks for the credentials. A child that `multiprocessing` starts gets
the values in its pickle: its pipe is as private as memory.
"""

from __future__ import annotations

import secrets
import sys
from collections.abc import Mapping
from typing import Any
from weakref import WeakValueDictionary

from shardwise.base.errors import StorageError


class Credentials:
    """Settings of a store, secret ones among them, by the names that obstore gives them.

    Two are equal where they are the same object, or copies of it.

    >>> Credentials({"aws_secret_access_key": "hidden"})
    Credentials(aws_secret_access_key=...)
    """

    __slots__ = ("__weakref__", "_handle", "_names", "_values")

    _handle: str
    _names: tuple[str, ...]
    _values: dict[str, Any] | None

    def __new__(cls, values: Mapping[str, Any]) -> Credentials:
        """Hide some settings."""
        # All empty ones are equal.
        handle = secrets.token_hex(16) if values else ""
        return _of_handle(handle, tuple(values), dict(values))

    def values(self) -> dict[str, Any]:
        """The settings, in clear."""
        if self._values is None:
            raise StorageError(
                f"the settings {', '.join(self._names)} did not come along: credentials are never "
                "pickled; give them again (storage=...), or put them where the store's own tools "
                "look for them (environment, profile)"
            )
        return self._values

    def __bool__(self) -> bool:
        return bool(self._names)

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Credentials) and self._handle == other._handle

    def __hash__(self) -> int:
        return hash(self._handle)

    def __repr__(self) -> str:
        return f"Credentials({', '.join(f'{name}=...' for name in self._names)})"

    def __reduce__(self) -> tuple[Any, ...]:
        is_private = _is_spawning() or not self._names
        values = self._values if is_private else None
        return _of_handle, (self._handle, self._names, values)


def export_credentials() -> list[tuple[Any, ...]]:
    """The credentials of this process, for a channel that only its own workers read."""
    return [(c._handle, c._names, c._values) for c in list(_LIVE.values()) if c._values]


def import_credentials(exported: list[tuple[Any, ...]]) -> list[Credentials]:
    """Register exported credentials; they are known for as long as the result is kept."""
    return [_of_handle(*each) for each in exported]


def _is_spawning() -> bool:
    """Whether this pickle is for a child that multiprocessing is starting."""
    # Importing it takes longer than all of this package.
    context = sys.modules.get("multiprocessing.context")
    return context is not None and context.get_spawning_popen() is not None


def _of_handle(handle: str, names: tuple[str, ...], values: dict[str, Any] | None) -> Credentials:
    """The object of a handle: the one that this process has, or a new one."""
    known = _LIVE.get(handle)
    if known is not None and (known._values is not None or values is None):
        return known
    credentials = object.__new__(Credentials)
    credentials._handle = handle
    credentials._names = names
    credentials._values = values
    # A copy without values must not hide values that are imported later.
    if values is not None:
        _LIVE[handle] = credentials
    return credentials


# Credentials by handle; weak, so that it keeps none alive.
_LIVE: WeakValueDictionary[str, Credentials] = WeakValueDictionary()
