"""Settings of a store that may be secret, in an object that never shows or pickles them.

What is pickled is a handle. Who unpickles it in the process that made it, in a fork of it, or in a
process that was given the values (`lent`, `borrow`), has the values; anybody else has an object
that says, when it is first used, that the credentials must be given again. The one exception is a
child that `multiprocessing` starts: its pipe is as private as memory. Imports the standard library
and `shardwise.errors`.
"""

from __future__ import annotations

import secrets
import sys
from collections.abc import Mapping
from typing import Any
from weakref import WeakValueDictionary

from shardwise.errors import StorageError

__all__ = ["Credentials", "borrow", "lent"]


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
        # All that are empty are the same.
        handle = secrets.token_hex(16) if values else ""
        return _known(handle, tuple(values), dict(values))

    def values(self) -> dict[str, Any]:
        """The settings, in clear.

        Raises:
            StorageError: this is a copy that came without them.
        """
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
        return _known, (self._handle, self._names, values)


def lent() -> list[tuple[Any, ...]]:
    """All credentials of this process, for a channel that only its own workers read."""
    return [(c._handle, c._names, c._values) for c in list(_LIVE.values()) if c._values]


def borrow(given: list[tuple[Any, ...]]) -> list[Credentials]:
    """Take what `lent` gave. They are known for as long as the result is kept."""
    return [_known(*each) for each in given]


def _is_spawning() -> bool:
    """Whether this pickle is for a child that multiprocessing is starting, and nobody else."""
    # Importing it takes longer than all of this package.
    context = sys.modules.get("multiprocessing.context")
    return context is not None and context.get_spawning_popen() is not None


def _known(handle: str, names: tuple[str, ...], values: dict[str, Any] | None) -> Credentials:
    """The object of a handle: the one that this process has, or a new one."""
    found = _LIVE.get(handle)
    if found is not None and (found._values is not None or values is None):
        return found
    made = object.__new__(Credentials)
    made._handle = handle
    made._names = names
    made._values = values
    # An empty-handed copy must not hide values that come later.
    if values is not None:
        _LIVE[handle] = made
    return made


# Handles of this process to what they stand for; nothing is kept alive by it.
_LIVE: WeakValueDictionary[str, Credentials] = WeakValueDictionary()
