"""The source of a join: samples of one source with fields of another one."""

from __future__ import annotations

import copy
from collections.abc import Iterable, Sequence
from dataclasses import replace
from functools import cached_property
from typing import Any

import numpy as np
from numpy.typing import NDArray

from shardwise.base.abilities import having
from shardwise.base.columns import BytesColumn, Columns, merge_columns, values_of
from shardwise.base.errors import DataError
from shardwise.dataset.decoding import copied
from shardwise.extensions.fields.same_samples import SameSamples
from shardwise.sources.protocol import (
    Source,
    SourceTraits,
    Undecodes,
    common_costs,
    joined_ranges,
    ranges_of,
    read_rows,
    traits_of,
    value_fields_of,
)
from shardwise.storage import PoolRanges

_Ids = NDArray[np.int64]
_Names = tuple[str, ...]


class JoinSource(SameSamples):
    """Samples of the left with the fields of their matches on the right, None without a match.

    Args:
        sources: the left and the right.
        rows: whole numbers `[samples of the left]`, their matches' ids; -1 where there is none.
        taken: the fields that are taken of each source.
        key: tells joins with other samples of the right apart.
    """

    def __init__(
        self, sources: Sequence[Source], rows: NDArray[Any], taken: Sequence[_Names], key: str
    ) -> None:
        super().__init__(*sources)
        self._rows, self._taken = rows, taken
        # What the right is, which the fingerprint leaves out.
        self.content_key = (key, *taken)
        self.fields = (*taken[0], *taken[1])

    def __repr__(self) -> str:
        return f"join({self.sources[0]!r}, {self.sources[1]!r})"

    @cached_property
    def traits(self) -> SourceTraits:
        """What both sources say of their fields."""
        every = [traits_of(source) for source in self.sources]
        values = [value_fields_of(source) for source in self.sources]
        sides = list(zip(every, values, self._taken, strict=True))
        return replace(
            common_costs(every),
            value_fields={n for _, known, names in sides for n in names if n in known},
            layouts={n: t.layouts[n] for t, _, names in sides for n in names if n in t.layouts},
            padding={**every[1].padding, **every[0].padding},
            window_shape=every[0].window_shape,
        )

    def undecoded(self, names: Sequence[str]) -> Source:
        """The same join with these fields as bytes, where a source has them so."""
        other = copy.copy(self)
        other.sources = tuple(
            source if (own := having(source, Undecodes)) is None
            else own.undecoded([name for name in names if name in taken])
            for source, taken in zip(self.sources, self._taken, strict=True)
        )  # fmt: skip
        other.__dict__.pop("traits", None)
        return other

    def owner_of(self, sample_id: int, field: str | None = None) -> tuple[Source, int]:
        """The source of a field; the left for one that has no match."""
        row = int(self._rows[sample_id]) if field in self._taken[1] else -1
        return (self.sources[0], sample_id) if row < 0 else (self.sources[1], row)

    def ranges(
        self, ids: _Ids, fields: _Names | None = None, **epoch: int
    ) -> Iterable[PoolRanges] | None:
        """What `read_epoch` fetches of both sources."""
        parts = zip(self.sources, (ids, self._matches(ids)[1]), self._named(fields), strict=True)
        return joined_ranges(ranges_of(s, own, names, **epoch) for s, own, names in parts if names)

    def read_epoch(
        self, ids: _Ids, fields: _Names | None = None, *, epoch: int, seed: int
    ) -> Columns:
        """Read samples of the left, and their matches of the right by one call."""
        left, right = self._named(fields)
        read = read_rows(self.sources[0], ids, left, epoch=epoch, seed=seed)
        columns, num_bytes = self._owned(0, read), read.num_bytes
        if right:
            found, matches = self._matches(ids)
            try:
                other = read_rows(self.sources[1], matches, right, epoch=epoch, seed=seed)
            except DataError as error:
                # The right source knows its own ids.
                bad = found[matches == error.index]
                error.index = int(ids[bad[0]]) if len(bad) else None
                raise
            for name, column in self._owned(1, other).items():
                if len(found) < len(ids):
                    values = column if isinstance(column, BytesColumn) else values_of(column)
                    column = merge_columns([(found, values)], len(ids))
                columns[name] = column
            num_bytes += other.num_bytes
        names = self.fields if fields is None else fields
        return Columns(ids, read.keys, {name: columns[name] for name in names}, num_bytes)

    def _matches(self, ids: _Ids) -> tuple[NDArray[np.intp], _Ids]:
        """The places of samples that have a match, and its id on the right."""
        rows = self._rows[ids]
        found = np.flatnonzero(rows >= 0)
        return found, rows[found].astype(np.int64)

    def _named(self, fields: _Names | None) -> list[_Names]:
        asked = self.fields if fields is None else fields
        return [tuple(name for name in asked if name in names) for names in self._taken]

    def _owned(self, side: int, read: Columns) -> dict[str, Any]:
        """Columns that a map() may write to, though a wrapped dataset holds their values."""
        is_held = traits_of(self.sources[side]).holds_objects and not self.traits.holds_objects
        return {n: list(map(copied, c)) if is_held else c for n, c in read.fields.items()}
