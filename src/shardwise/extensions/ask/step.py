"""The samples of one step of one rank, and where they lie; none of them is read."""

from __future__ import annotations

from dataclasses import dataclass, field
from functools import cached_property
from typing import Any

import numpy as np
from numpy.typing import NDArray

from shardwise.base.abilities import having
from shardwise.base.shown import escaped, shown
from shardwise.sources.protocol import owner_of, read_rows
from shardwise.sources.samples import MixedSamples
from shardwise.sources.tar.source import TarSource


@dataclass(frozen=True, eq=False)
class Step:
    """The samples of a step, a row each, in the order of the batch.

    `ids` and `positions` in the epoch are int64 `[rows]`; `valid` is False for rows of padding.
    `keys`, `urls`, `byte_ranges` and `sources` are looked up at first access. Only the
    items of a wrapped dataset know their keys: `keys` gets these items.
    """

    dataset: Any = field(repr=False)
    epoch: int
    step: int
    rank: int
    ids: NDArray[np.int64]
    positions: NDArray[np.int64]
    valid: NDArray[np.bool_]

    @cached_property
    def keys(self) -> list[str]:
        """The keys as stored, whatever a `map()` makes of them."""
        return [read_rows(source, np.array([i]), ()).keys[0] for source, i, _ in self._leaves]

    @cached_property
    def urls(self) -> list[str]:
        """The shards or files that hold the samples."""
        return [self.dataset.url_of(index) for index in self.ids.tolist()]

    @cached_property
    def byte_ranges(self) -> list[tuple[int, int] | None]:
        """First byte, and the one after the last, of all fields in a tar shard; None elsewhere."""
        return [_byte_range(source, i) for source, i, _ in self._leaves]

    @cached_property
    def sources(self) -> list[str] | None:
        """The names of the samples' datasets in a mixture; None without one."""
        names = [name for _, _, name in self._leaves]
        return names if any(names) else None

    def to_dict(self) -> dict[str, Any]:
        """The step as JSON."""
        arrays = {name: getattr(self, name).tolist() for name in ("ids", "positions", "valid")}
        named = {name: getattr(self, name) for name in ("keys", "urls", "byte_ranges", "sources")}
        return {"epoch": self.epoch, "step": self.step, "rank": self.rank, **arrays, **named}

    def __str__(self) -> str:
        return "\n".join([self.title, *("  ".join(map(escaped, row)) for row in self.rows())])

    @property
    def title(self) -> str:
        """The epoch, step and rank, as text."""
        return f"epoch {self.epoch}, step {self.step}, rank {self.rank}"

    def rows(self) -> list[list[str]]:
        """The id, position, key, byte range, shard and source of each sample, as texts."""
        spans = ["" if span is None else f"{span[0]}-{span[1]}" for span in self.byte_ranges]
        columns: list[Any] = [self.ids.tolist(), self.positions.tolist(), self.keys, spans]
        columns += [map(shown, self.urls), self.sources or [""] * len(spans)]
        return [list(map(str, row)) for row in zip(*columns, strict=True)]

    @cached_property
    def _leaves(self) -> list[tuple[Any, int, str]]:
        return [_leaf(self.dataset, index) for index in self.ids.tolist()]


def _leaf(dataset: Any, index: int) -> tuple[Any, int, str]:
    """The source that a sample lies in, its id there, and the names of its datasets."""
    names = []
    while (mixed := having(dataset, MixedSamples)) is not None:
        for name, part in mixed.parts.items():
            if index < len(part):
                names.append(name)
                dataset = part
                break
            index -= len(part)
    source, indices = dataset.source, dataset.transforms.indices
    index = index if indices is None else int(indices[index])
    return source, index, "/".join(names)


def _byte_range(source: Any, index: int) -> tuple[int, int] | None:
    source, index = owner_of(source, index)
    if not isinstance(source, TarSource):
        return None
    shards = source.shards
    shard, row = shards.locate(index)
    found = shards.index(shard).locate_one(shards.fields, row)
    spans = [(offset, offset + size) for offset, size in found if size >= 0]
    return (min(spans)[0], max(stop for _, stop in spans)) if spans else None
