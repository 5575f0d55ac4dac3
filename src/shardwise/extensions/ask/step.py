"""The samples of one step of one rank, and where they lie; none of them is read."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any

import numpy as np
from numpy.typing import NDArray

from shardwise.base.shown import shown
from shardwise.dataset import Dataset
from shardwise.dataset.concatenation import ConcatSource
from shardwise.dataset.mix_source import MixSource
from shardwise.dataset.samples import rows_by_part
from shardwise.sources.protocol import read_rows
from shardwise.sources.tar.source import TarSource

Ids = NDArray[np.int64]


@dataclass(frozen=True, eq=False)
class Step:
    """The samples of a step, a row each.

    Attributes:
        epoch, step, rank: which step it is.
        ids: int64 `[rows]`, the sample ids, in the order of the batch.
        positions: int64 `[rows]`, their positions in the epoch.
        valid: bool `[rows]`, False for rows that repeat a sample to fill the batch.

    `keys`, `urls`, `byte_ranges` and `sources` are looked up when they are asked for. Of a wrapped
    dataset the items alone know their keys: `keys` gets these items.
    """

    epoch: int
    step: int
    rank: int
    ids: Ids
    positions: Ids
    valid: NDArray[np.bool_]
    _dataset: Any = field(repr=False)

    @cached_property
    def keys(self) -> list[str]:
        """The keys as stored, whatever a `map()` makes of them."""
        return _by_part(self._dataset, self.ids, _keys, "")

    @cached_property
    def urls(self) -> list[str]:
        """The shards or files that hold the samples."""
        return [self._dataset.url_of(index) for index in self.ids.tolist()]

    @cached_property
    def byte_ranges(self) -> list[tuple[int, int] | None]:
        """First byte, and the one after the last, of all fields in a tar shard; None elsewhere."""
        return _by_part(self._dataset, self.ids, _ranges, None)

    @cached_property
    def sources(self) -> list[str] | None:
        """The names of the samples' datasets in a mixture; None without one."""
        is_mixed = isinstance(getattr(self._dataset, "source", None), MixSource)
        return _names(self._dataset, self.ids) if is_mixed else None

    def to_dict(self) -> dict[str, Any]:
        """The step as JSON."""
        rows = {"ids": self.ids.tolist(), "positions": self.positions.tolist(), "keys": self.keys}
        rows |= {"urls": list(map(shown, self.urls)), "byte_ranges": self.byte_ranges}
        rows |= {"sources": self.sources, "valid": self.valid.tolist()}
        return {"epoch": self.epoch, "step": self.step, "rank": self.rank, **rows}

    def __str__(self) -> str:
        names = self.sources or [""] * len(self.ids)
        rows = [
            f"{i:>6}  {key}  {shown(url)}{'' if span is None else f' {span[0]}-{span[1]}'}  {name}"
            for i, key, url, span, name in zip(
                self.ids.tolist(), self.keys, self.urls, self.byte_ranges, names, strict=True
            )
        ]
        return "\n".join([f"epoch {self.epoch}, step {self.step}, rank {self.rank}", *rows])


def explained(
    dataset: Any, epoch: int, step: int, rank: int, *, ids: Ids, positions: Ids, valid: Any
) -> Step:
    """Return the step of these samples; see `DataLoader.explain`."""
    return Step(epoch, step, rank, ids.copy(), positions.copy(), valid.copy(), dataset)


def _by_part(
    dataset: Any, ids: Ids, find: Callable[[Any, Ids], list[Any]], missing: Any
) -> list[Any]:
    """What `find` tells of the source of each sample and its id there, through mixtures."""
    found: list[Any] = [missing] * len(ids)
    if not isinstance(dataset, Dataset) or not len(ids):
        return found
    source, indices = dataset.source, dataset.transforms.indices
    if not isinstance(source, MixSource):
        return find(source, ids if indices is None else indices[ids])
    for number, rows, start in rows_by_part(ids, source.ends):
        part = _by_part(source.named_parts[number][1], ids[rows] - start, find, missing)
        for row, value in zip(rows.tolist(), part, strict=True):
            found[row] = value
    return found


def _names(dataset: Dataset, ids: Ids) -> list[str]:
    names = []
    for index in ids.tolist():
        name, part, inner = dataset.source.locate(index)  # type: ignore[attr-defined]
        below = isinstance(part.source, MixSource)
        names.append(f"{name}/{_names(part, np.array([inner]))[0]}" if below else name)
    return names


def _keys(source: Any, ids: Ids) -> list[str]:
    return list(read_rows(source, ids, ()).keys)


def _ranges(source: Any, ids: Ids) -> list[tuple[int, int] | None]:
    found: list[tuple[int, int] | None] = [None] * len(ids)
    if isinstance(source, ConcatSource):
        for number, rows, start in rows_by_part(ids, source.ends):
            for row, span in zip(
                rows, _ranges(source.sources[number], ids[rows] - start), strict=True
            ):
                found[row] = span
    elif isinstance(source, TarSource):
        shards = source.shards
        for row, index in enumerate(ids.tolist()):
            shard, place = shards.locate(index)
            fields = shards.index(shard).locate_one(shards.fields, place)
            spans = [(offset, offset + size) for offset, size in fields if size >= 0]
            found[row] = (min(spans)[0], max(stop for _, stop in spans)) if spans else None
    return found
