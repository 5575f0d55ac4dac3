"""Stores that a program adds, by the scheme of their URLs.

`StorageOptions` carry them: a dataset that is pickled for worker processes, Ray or a build brings
the stores along that its process has.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Any

from shardwise.storage.urls import FAMILIES

if TYPE_CHECKING:
    from shardwise.storage.client import Client

    # Called with a store's root and the user's `StorageOptions`.
    ClientFactory = Callable[[str, Any], Client]

_SCHEME = re.compile(r"[a-z][a-z0-9+.-]*")
# The one state of a process that is not an argument: a URL in a list names its store by the scheme
# alone. It only grows.
_FACTORIES: dict[str, ClientFactory] = {}


def register(scheme: str, factory: ClientFactory) -> None:
    """Let URLs of a scheme be read and written by a client of your own.

    It holds for this process, and for the worker processes, Ray tasks and builds that get datasets
    from it. Register a scheme before the first dataset whose URLs have it. A scheme that this
    library reads itself keeps its own client; another call for a scheme replaces the factory.

    Args:
        scheme: of the URLs, in lower case: "mem" for "mem://bucket/a.tar".
        factory: called with the store's root ("mem://bucket") and the user's options, at the first
            request to it in each process; returns the client. It must be picklable, or a function
            of the main program.

    Raises:
        TypeError: the factory can't be called.
        ValueError: the scheme is malformed, or one that this library reads itself.

    Examples:
        ```python
        shardwise.stores.register("mem", MemoryClient)
        data = sw.tar("mem://bucket/train-{000..099}.tar")
        ```
    """
    if not isinstance(scheme, str) or not _SCHEME.fullmatch(scheme):
        raise ValueError(f"scheme={scheme!r:.60}: lower-case letters, digits, '+', '-' and '.'")
    if scheme in FAMILIES or scheme in ("file", "pipe"):
        raise ValueError(f"scheme={scheme!r}: shardwise has a client for it; choose another one")
    if not callable(factory):
        raise TypeError(f"factory={factory!r:.80}: a function of (root, options)")
    _FACTORIES[scheme] = factory


def registered() -> Mapping[str, ClientFactory]:
    """Return the factories of this process by scheme."""
    return dict(_FACTORIES)


def register_missing(factories: Mapping[str, Any]) -> None:
    """Register the factories of another process whose schemes are not known here."""
    for scheme, factory in factories.items():
        _FACTORIES.setdefault(scheme, factory)
