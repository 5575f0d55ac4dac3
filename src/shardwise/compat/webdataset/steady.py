"""Which stages keep nothing back between two items that they yield."""

from __future__ import annotations

from typing import Any

from shardwise.compat.webdataset import batches, keys, mapping
from shardwise.compat.webdataset.curry import FilterFunction

_STEADY = frozenset(
    {
        batches._batched,
        keys._extract_keys,
        keys._rename,
        keys._rename_keys,
        keys._xdecode,
        mapping._associate,
        mapping._decode,
        mapping._info,
        mapping._log_keys,
        mapping._map,
        mapping._map_dict,
        mapping._map_tuple,
        mapping._select,
        mapping._to_tuple,
    }
)


def is_steady(stage: Any) -> bool:
    """Whether the items that went into a stage say where it is: one a sample, or whole batches."""
    return isinstance(stage, FilterFunction) and stage.f in _STEADY
