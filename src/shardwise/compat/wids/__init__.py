"""wids 0.1.11's API on shardwise's tar reader: programs change their import, or nothing.

    import shardwise.compat.wids as wids          # or: shardwise.compat.install()

    dataset = wids.ShardListDataset("index.json")
    sampler = wids.DistributedChunkedSampler(dataset, chunksize=1000)

Names are imported when they are first used: the command `widsindex` needs no torch.
"""

from __future__ import annotations

from importlib import import_module
from pkgutil import iter_modules
from typing import TYPE_CHECKING, Any

from shardwise.compat.finder import VERSIONS

if TYPE_CHECKING:
    from shardwise.compat.wids.wids import (
        ChunkedSampler,
        DistributedChunkedSampler,
        ShardedSampler,
        ShardListDataset,
        ShardListSampler,
    )

__all__ = [
    "ChunkedSampler",
    "DistributedChunkedSampler",
    "ShardListDataset",
    "ShardListSampler",
    "ShardedSampler",
]

# The version whose API this is.
__version__ = VERSIONS["wids"]

# wids' own modules are there under their names.
_MODULES = frozenset(module.name for module in iter_modules(__path__))


def __getattr__(name: str) -> Any:
    if name in _MODULES:
        return import_module(f"{__name__}.{name}")
    if name not in __all__:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(import_module(f"{__name__}.wids"), name)


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__, *_MODULES})
