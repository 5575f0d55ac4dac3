"""The samples whose files have parts that are samples: clips of videos, segments of sounds."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from shardwise.base.columns import BytesColumn, Column, Columns
from shardwise.dataset.decoding import copied
from shardwise.dataset.subset import subset_fingerprint, subset_shard_sizes
from shardwise.sources.manifest import Manifest
from shardwise.sources.protocol import (
    Source,
    SourceTraits,
    ranges_of,
    traits_of,
    value_fields_of,
)
from shardwise.storage import PoolRanges


@dataclass(frozen=True, eq=False)
class Owners:
    """The samples of a source that own the parts.

    Attributes:
        source: what they are read from.
        indices: int64 `[owners]`, their ids in it; None for all.
        fields: those that each part gets a copy of.
    """

    source: Source
    indices: NDArray[np.int64] | None
    fields: tuple[str, ...]

    def ids(self, numbers: NDArray[np.int64]) -> NDArray[np.int64]:
        return numbers if self.indices is None else self.indices[numbers]

    def traits(self, made: Iterable[str], layouts: Mapping[str, Any]) -> SourceTraits:
        """The traits of parts with `made` as their own fields; copied fields keep their traits."""
        inner = traits_of(self.source)
        kept = {name: inner.layouts[name] for name in self.fields if name in inner.layouts}
        return SourceTraits(
            value_fields={*set(value_fields_of(self.source)).intersection(self.fields), *made},
            layouts={**kept, **layouts},
            random_reads_are_requests=inner.random_reads_are_requests,
        )

    def manifest(
        self, kind: str, digest: str, counts: Callable[[NDArray[np.int64]], NDArray[np.int64]]
    ) -> Manifest:
        """The source's shards with the counts of their parts.

        `digest` identifies the parts; `counts` maps the ends of runs of owners to their counts.
        """
        inner, indices = self.source.manifest, self.indices
        sizes, fingerprint = inner.sizes, inner.fingerprint
        if indices is not None:
            sizes = subset_shard_sizes(sizes, indices)
            fingerprint = subset_fingerprint(fingerprint, indices)
        return Manifest.of_columns(
            f"{kind} {fingerprint} {digest[:16]}",
            inner.urls[: len(sizes)],
            counts(np.cumsum(sizes)),
            inner.shard_bytes[: len(sizes)],
        )

    def read(
        self, numbers: NDArray[np.int64], names: tuple[str, ...], also: str | None
    ) -> tuple[Columns, NDArray[np.intp], dict[str, Any]]:
        """Read each owner once: what was read, rows of `numbers` in it, columns of `names`."""
        unique, rows = np.unique(self.ids(numbers), return_inverse=True)
        read = tuple(name for name in self.fields if name in names or name == also)
        stored = self.source.read(unique, read)
        kept = [name for name in read if name in names]
        return stored, rows, {name: self.repeated(stored.fields[name], rows) for name in kept}

    def ranges(
        self, ids: NDArray[np.int64], names: tuple[str, ...], also: str | None
    ) -> Iterable[PoolRanges] | None:
        """The ranges that `read` fetches of samples by their ids in the source."""
        read = tuple(name for name in self.fields if name in names or name == also)
        return ranges_of(self.source, np.unique(ids), read)

    def repeated(self, column: Column, rows: NDArray[np.intp]) -> Column:
        """A value of each owner for each of its parts."""
        if isinstance(column, BytesColumn):
            return BytesColumn(column.buffer, column.starts[rows], column.lengths[rows])
        if isinstance(column, np.ndarray):
            return column[rows]
        values = list(column)
        picked = [values[row] for row in rows.tolist()]
        # A map() of one part must not change the value of another one.
        return list(map(copied, picked)) if traits_of(self.source).holds_objects else picked
