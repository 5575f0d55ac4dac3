"""Sources over other ones: the same samples under the same ids, with other fields."""

from __future__ import annotations

import copy
import json
import re
from abc import abstractmethod
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace
from functools import cached_property
from typing import Any, Literal

import numpy as np
from numpy.typing import NDArray

from shardwise.base.abilities import having
from shardwise.base.arguments import no_such_field
from shardwise.base.columns import BytesColumn, Columns, merge_columns, values_of
from shardwise.base.errors import DataError
from shardwise.base.foreign_bytes import as_data_error
from shardwise.dataset.column import version_of
from shardwise.dataset.decoding import copied
from shardwise.dataset.transforms import Transforms, matching
from shardwise.sources.manifest import Manifest
from shardwise.sources.protocol import (
    ReadsEpochs,
    Source,
    SourceTraits,
    Undecodes,
    common_costs,
    directory_of,
    joined_ranges,
    own_names_of,
    ranges_of,
    read_rows,
    traits_of,
    url_in,
    value_fields_of,
)
from shardwise.sources.samples import removed_of
from shardwise.storage import PoolRanges

_Ids = NDArray[np.int64]
_Names = tuple[str, ...]


class SameSamples(ReadsEpochs):
    """A base of sources that have the shards and ids of the first one of `sources`."""

    def __init__(self, *sources: Source) -> None:
        self.sources = sources
        self.fields: _Names = ()
        self.own_names = {name for source in sources for name in own_names_of(source)}

    def __getattr__(self, name: str) -> Any:
        if name == "media_files":  # goes by ids alone, where the source has it
            return getattr(self.sources[0], name)
        raise AttributeError(f"{type(self).__name__!r} object has no attribute {name!r}")

    @property
    def default_shuffle(self) -> Literal["full", "window"]:
        return self.sources[0].default_shuffle

    @property
    def manifest(self) -> Manifest:
        return self.sources[0].manifest

    @property
    def removed(self) -> _Ids:
        return removed_of(self.sources[0])

    @property
    def directory(self) -> str | None:
        return directory_of(self.sources[0])

    def version(self) -> str:
        return " ".join(map(version_of, self.sources))

    def owner_of(self, sample_id: int, _field: str | None = None) -> tuple[Source, int]:
        return self.sources[0], sample_id

    def ranges(
        self, ids: _Ids, fields: _Names | None = None, **epoch: int
    ) -> Iterable[PoolRanges] | None:
        parts = self._reads(ids, self.fields if fields is None else fields)
        return joined_ranges(ranges_of(s, own, names, **epoch) for s, own, names in parts)

    @abstractmethod
    def _reads(self, ids: _Ids, fields: _Names) -> list[tuple[Source, _Ids, _Names]]:
        """The sources that some fields of samples are read from, with the ids and fields there."""


class JoinSource(SameSamples):
    """Samples of the left with the fields of their matches on the right, None without a match.

    `rows` are whole numbers `[samples of the left]`, the ids of their matches, -1 for none; `taken`
    the fields that are taken of each source; `key` distinguishes joins with other right samples.
    """

    def __init__(
        self, sources: Sequence[Source], rows: NDArray[Any], taken: Sequence[_Names], key: str
    ) -> None:
        super().__init__(*sources)
        self._rows, self._taken = rows, taken
        # Identifies the right side, which the fingerprint leaves out.
        self.content_key = (key, *taken)
        self.fields = (*taken[0], *taken[1])

    def __repr__(self) -> str:
        return f"join({self.sources[0]!r}, {self.sources[1]!r})"

    @cached_property
    def traits(self) -> SourceTraits:
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
        other = copy.copy(self)
        other.sources = tuple(
            source if (own := having(source, Undecodes)) is None
            else own.undecoded([name for name in names if name in taken])
            for source, taken in zip(self.sources, self._taken, strict=True)
        )  # fmt: skip
        other.__dict__.pop("traits", None)
        return other

    def owner_of(self, sample_id: int, field: str | None = None) -> tuple[Source, int]:
        row = int(self._rows[sample_id]) if field in self._taken[1] else -1
        return (self.sources[0], sample_id) if row < 0 else (self.sources[1], row)

    def read_epoch(
        self, ids: _Ids, fields: _Names | None = None, *, epoch: int, seed: int
    ) -> Columns:
        names = self.fields if fields is None else fields
        left, *rest = self._reads(ids, names)
        read = read_rows(*left, epoch=epoch, seed=seed)
        columns, num_bytes = self._copy_columns(0, read), read.num_bytes
        for source, matches, asked in rest:
            found = np.flatnonzero(self._rows[ids] >= 0)
            try:
                other = read_rows(source, matches, asked, epoch=epoch, seed=seed)
            except DataError as error:
                # The right source knows its own ids.
                bad = found[matches == error.index]
                error.index = int(ids[bad[0]]) if len(bad) else None
                raise
            num_bytes += other.num_bytes
            for name, column in self._copy_columns(1, other).items():
                if len(found) < len(ids):
                    values = column if isinstance(column, BytesColumn) else values_of(column)
                    column = merge_columns([(found, values)], len(ids))
                columns[name] = column
        return Columns(ids, read.keys, {name: columns[name] for name in names}, num_bytes)

    def _reads(self, ids: _Ids, fields: _Names) -> list[tuple[Source, _Ids, _Names]]:
        left, right = (tuple(n for n in fields if n in taken) for taken in self._taken)
        rows = self._rows[ids]
        other = (self.sources[1], rows[rows >= 0].astype(np.int64), right)
        return [(self.sources[0], ids, left), *([other] if right else [])]

    def _copy_columns(self, side: int, read: Columns) -> dict[str, Any]:
        """Columns that a map() may write to, though a wrapped dataset holds their values."""
        is_held = traits_of(self.sources[side]).holds_objects and not self.traits.holds_objects
        return {n: list(map(copied, c)) if is_held else c for n, c in read.fields.items()}


def list_members(
    source: Source,
    transforms: Transforms,
    fields: _Names,
    patterns: Sequence[str],
    order: str | None,
) -> tuple[Source, Transforms]:
    """The source of lists, and what is done to its samples: patterns in place of their members."""
    members = {}
    for pattern in patterns:
        found = matching(pattern, fields)
        if not found:
            raise ValueError(no_such_field(pattern, fields))
        members[pattern] = tuple(sorted(found, key=_split_numbers))
    if order is not None and (not patterns or str(order).partition(".")[0] not in fields):
        raise ValueError(
            f"select(order={order!r:.60}) is for patterns such as '*.jpg', and names a list in a "
            f"field of JSON, such as 'json.images'; the fields are {', '.join(fields)}"
        )
    listed = {name for names in members.values() for name in names}
    return MembersSource(source, members, order), replace(
        transforms,
        selected=(*(name for name in fields if name not in listed), *patterns),
        required=transforms.required - listed,
        decoders={name: fn for name, fn in transforms.decoders.items() if name not in listed},
    )


def _split_numbers(name: str) -> list[Any]:
    return [int(part) if part.isdecimal() else part for part in re.split(r"(\d+)", name)]


class MembersSource(SameSamples):
    """The samples of a source with lists of the values of some of their fields.

    `members` has those of each list, in the order of their names; `order` a list in a field of JSON
    that names members (or files) in another order, in which what it leaves out comes last.
    """

    def __init__(self, source: Source, members: Mapping[str, _Names], order: str | None) -> None:
        super().__init__(source)
        self._members, self._order = members, order
        self.fields = (*source.fields, *members)
        self.content_key = () if order is None else (order,)

    def __repr__(self) -> str:
        return repr(self.sources[0])

    @cached_property
    def traits(self) -> SourceTraits:
        values = {*value_fields_of(self.sources[0]), *self._members}
        return replace(traits_of(self.sources[0]), value_fields=values)

    def read_epoch(
        self, ids: _Ids, fields: _Names | None = None, *, epoch: int, seed: int
    ) -> Columns:
        names = self.fields if fields is None else fields
        read = read_rows(*self._reads(ids, names)[0], epoch=epoch, seed=seed)
        lists = {n: self._lists(self._members[n], read) for n in names if n in self._members}
        both: dict[str, Any] = {**read.fields, **lists}
        return Columns(ids, read.keys, {name: both[name] for name in names}, read.num_bytes)

    def _reads(self, ids: _Ids, fields: _Names) -> list[tuple[Source, _Ids, _Names]]:
        stored = [each for name in fields for each in self._members.get(name, (name,))]
        if self._order is not None and not self._members.keys().isdisjoint(fields):
            stored.append(self._order.partition(".")[0])
        return [(self.sources[0], ids, tuple(dict.fromkeys(stored)))]

    def _lists(self, members: _Names, read: Columns) -> list[list[Any]]:
        rows = zip(*(values_of(read.fields[name]) for name in members), strict=True)
        samples = [
            {name: value for name, value in zip(members, row, strict=True) if value is not None}
            for row in rows
        ]
        return [
            [found[name] for name in self._order_names(found, read, row)]
            for row, found in enumerate(samples)
        ]

    def _order_names(self, found: Mapping[str, Any], read: Columns, row: int) -> Iterable[str]:
        if self._order is None:
            return found
        field, *path = self._order.split(".")
        key = read.keys[row].rpartition("/")[2].lower()
        where: dict[str, Any] = {"key": read.keys[row], "field": field, "index": int(read.ids[row])}
        url = url_in(self.sources[0], int(read.ids[row]), field)
        with as_data_error(f"order={self._order!r} is no list of names", url=url, **where):
            value: Any = read.fields[field][row]
            if value is not None and not isinstance(value, Mapping | list):
                value = json.loads(bytes(value))
            for name in path:
                value = (value or {}).get(name)
            files = [name.lower().rpartition("/")[2] for name in value or () if name is not None]
        names = [file.removeprefix(f"{key}.") for file in files]
        odd = next((name for name in names if name not in found), None)
        if odd is not None:
            there = ", ".join(found) or "none"
            raise DataError(
                f"order={self._order!r} names {odd!r}: there is {there}", url=url, **where
            )
        return (*names, *(name for name in found if name not in names))
