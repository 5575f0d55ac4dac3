"""The source of a join: samples of one source with fields of another one."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from functools import cached_property
from typing import Any

import numpy as np
from numpy.typing import NDArray

from shardwise.base.abilities import having
from shardwise.base.columns import BytesColumn, Column, Columns, merge_columns, values_of
from shardwise.base.errors import DataError
from shardwise.dataset.decoding import copied
from shardwise.extensions.fields.matches import Matches
from shardwise.extensions.fields.same_samples import SameSamples
from shardwise.sources.protocol import (
    Source,
    SourceTraits,
    Undecodes,
    content_key_of,
    joined_ranges,
    ranges_of,
    read_rows,
    traits_of,
    value_fields_of,
)
from shardwise.storage import PoolRanges


class JoinSource(SameSamples):
    """Samples of `left` with the fields of their matches in `right`, None where there is none.

    Args:
        left: whose ids, order and keys they have.
        right: whose samples they are joined with.
        matches: which of these each one has.
        fields: the fields of the left and those of the right.
        key: tells joins of other samples of the right apart.
    """

    def __init__(
        self,
        left: Source,
        right: Source,
        matches: Matches,
        fields: tuple[tuple[str, ...], tuple[str, ...]],
        key: tuple[Any, ...],
    ) -> None:
        super().__init__(left, right)
        self._right, self._matches, self._fields, self._key = right, matches, fields, key
        self.fields = (*fields[0], *fields[1])

    def __repr__(self) -> str:
        return f"join({self.inner!r}, {self._right!r})"

    def content_key(self) -> tuple[Any, ...]:
        """The fingerprint of the right, which that of the join leaves out."""
        return (*self._key, self._fields, *map(content_key_of, self.sources))

    @cached_property
    def traits(self) -> SourceTraits:
        """What both sources say of their fields; what reading costs is the dearer one's."""
        left, right = map(traits_of, self.sources)
        both = list(zip(self.sources, self._fields, strict=True))
        return SourceTraits(
            value_fields={n for s, names in both for n in names if n in value_fields_of(s)},
            layouts={
                name: traits_of(source).layouts[name]
                for source, names in both
                for name in names
                if name in traits_of(source).layouts
            },
            padding={**right.padding, **left.padding},
            holds_objects=left.holds_objects and right.holds_objects,
            random_reads_are_requests=left.random_reads_are_requests
            or right.random_reads_are_requests,
            counts_waits=left.counts_waits and right.counts_waits,
            reads_pieces=left.reads_pieces or right.reads_pieces,
            window_shape=left.window_shape,
        )

    def undecoded(self, names: Sequence[str]) -> Source:
        """The same join with these fields as bytes, where a source has them so."""
        sides = []
        for source, known in zip(self.sources, self._fields, strict=True):
            own = having(source, Undecodes)
            here = [name for name in names if name in known]
            sides.append(source if own is None else own.undecoded(here))
        return JoinSource(sides[0], sides[1], self._matches, self._fields, self._key)

    def field_owner_of(self, sample_id: int, field: str) -> tuple[Source, int]:
        """The source of a field; the left for one that has no match."""
        row = int(self._matches.rows[sample_id])
        is_right = field in self._fields[1] and row >= 0
        return (self._right, row) if is_right else (self.inner, sample_id)

    def ranges(
        self, ids: NDArray[np.int64], fields: tuple[str, ...] | None = None, **epoch: int
    ) -> Iterable[PoolRanges] | None:
        """What `read_epoch` fetches of both sources."""
        left, right = self._named(fields)
        rows = self._matches.rows[ids]
        matched = rows[rows >= 0].astype(np.int64)
        return joined_ranges([
            ranges_of(self.inner, ids, left, **epoch),
            ranges_of(self._right, matched, right, **epoch) if right else None,
        ])  # fmt: skip

    def read_epoch(
        self,
        ids: NDArray[np.int64],
        fields: tuple[str, ...] | None = None,
        *,
        epoch: int,
        seed: int,
    ) -> Columns:
        """Read samples of the left, and their matches of the right by one call."""
        left, right = self._named(fields)
        read = read_rows(self.inner, ids, left, epoch=epoch, seed=seed)
        columns = {name: self._own(self.inner, column) for name, column in read.fields.items()}
        num_bytes = read.num_bytes
        if right:
            rows = self._matches.rows[ids]
            found = np.flatnonzero(rows >= 0)
            matched = rows[found].astype(np.int64)
            try:
                other = read_rows(self._right, matched, right, epoch=epoch, seed=seed)
            except DataError as error:
                # The right source knows its own ids.
                bad = found[matched == error.index]
                error.index = int(ids[bad[0]]) if len(bad) else None
                raise
            for name, column in other.fields.items():
                columns[name] = _spread(self._own(self._right, column), found, len(ids))
            num_bytes += other.num_bytes
        names = self.fields if fields is None else fields
        return Columns(ids, read.keys, {name: columns[name] for name in names}, num_bytes)

    def _named(self, fields: tuple[str, ...] | None) -> list[tuple[str, ...]]:
        return [
            names if fields is None else tuple(name for name in fields if name in names)
            for names in self._fields
        ]

    def _own(self, source: Source, column: Column) -> Column:
        """A column that functions may write to, though the source holds its values."""
        is_held = traits_of(source).holds_objects and not self.traits.holds_objects
        return list(map(copied, column)) if is_held else column


def _spread(column: Column, rows: NDArray[np.intp], num_rows: int) -> Column:
    """The column of all rows, of which some have a value."""
    if len(rows) == num_rows:
        return column
    values = column if isinstance(column, BytesColumn) else values_of(column)
    return merge_columns([(rows, values)], num_rows)
