"""Members to samples: members that stand together and share a key are the fields of one sample.

A sample is never made of a part of its members: two members for one field, or members of one key
that stand apart, are errors. A scan keeps about 10 bytes per member, besides the keys.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable
from typing import Any

import numpy as np
from numpy.typing import NDArray

from shardwise.base.errors import DataError
from shardwise.sources.manifest import narrow
from shardwise.sources.tar.index.shard_index import Keys, missing_mark
from shardwise.sources.tar.scan.elsewhere import Members
from shardwise.sources.tar.scan.headers import BLOCK
from shardwise.sources.tar.scan.names import Fields, split_names
from shardwise.storage.column_file import shrink

# Above 50 million empty cells of samples x fields, the names are a mistake, and no data set's.
_MAX_EMPTY_CELLS = 50_000_000


class SampleTable:
    """Collects a shard's members into samples and fields; counts others in `ignored`, by why."""

    def __init__(self, url: str, ignored: Counter[str]) -> None:
        self.url = url
        self.ignored = ignored
        self.num_samples = 0
        self.num_members = 0
        self._fields = Fields()
        self._last_key: bytes | None = None
        # One array per chunk: of members, then of samples.
        self._blocks: list[NDArray[Any]] = []
        self._sizes: list[NDArray[Any]] = []
        self._numbers: list[NDArray[Any]] = []
        self._is_first: list[NDArray[np.bool_]] = []
        self._keys: list[NDArray[np.uint8]] = []
        self._key_lengths: list[NDArray[Any]] = []
        self._hashes: list[NDArray[np.uint64]] = []

    @property
    def fields(self) -> tuple[str, ...]:
        return tuple(self._fields.names)

    def add(self, members: Members) -> None:
        """Add the next members; DataError if there are too many different fields."""
        rows, dots = split_names(members.names, members.lengths, self.ignored)
        if not len(rows):
            return
        if len(rows) < len(members):
            members = members.take(rows)
        try:
            numbers = self._fields.number(members.names, members.lengths, dots)
        except ValueError as error:
            raise DataError(str(error), url=self.url) from error
        keys = _keys_of(members.names, dots)
        is_first = np.zeros(len(keys), np.bool_)
        for word in keys.view("<u8").T:
            is_first[1:] |= word[1:] != word[:-1]
        is_first[0] = keys[0, : dots[0]].tobytes() != self._last_key
        self._last_key = keys[-1, : dots[-1]].tobytes()
        self._blocks.append(narrow(members.offsets // BLOCK))
        self._sizes.append(narrow(members.sizes))
        self._numbers.append(narrow(numbers))
        self._is_first.append(is_first)
        self.num_members += len(keys)
        firsts = np.flatnonzero(is_first)
        if len(firsts):
            key_lengths = dots[firsts]
            keys = keys.take(firsts, axis=0)
            self._hashes.append(_hash(keys, key_lengths))
            longest = int(key_lengths.max())
            is_key = np.arange(longest) < key_lengths[:, None]
            keys = keys[:, :longest]
            self._keys.append(keys.ravel() if is_key.all() else keys[is_key])
            self._key_lengths.append(narrow(key_lengths))
            self.num_samples += len(firsts)

    def finish(self, *, has_end: bool) -> tuple[dict[str, NDArray[Any]], frozenset[str]]:
        """The columns of the index, and the fields that some sample lacks."""
        num_fields = len(self.fields)
        num_empty = num_fields * self.num_samples - self.num_members
        if num_empty > max(_MAX_EMPTY_CELLS, 8 * self.num_members):
            raise DataError(
                f"{num_fields} fields for {self.num_samples} samples, most of them missing: a key "
                "ends at the first dot of the base name, so keys can't hold dots; rename the "
                "members when packing",
                url=self.url,
            )
        columns: dict[str, NDArray[Any]] = {"keys": _concatenate(self._keys, np.uint8)}
        if self.key_length is None:
            ends = np.cumsum(_concatenate(self._key_lengths, np.uint8), dtype=np.int64)
            columns["key_ends"] = narrow(ends)
        keys = Keys(columns["keys"], columns.get("key_ends"), self.key_length, self.num_samples)
        is_first = _concatenate(self._is_first, np.bool_)
        samples = np.cumsum(is_first, dtype=np.int64) - 1
        blocks = _concatenate(self._blocks, np.uint64)
        sizes = _concatenate(self._sizes, np.uint64)
        numbers = _concatenate(self._numbers, np.uint8)
        # The payload of a hard link may lie before those of the sample's other members.
        starts = np.minimum.reduceat(blocks, np.flatnonzero(is_first)) if len(blocks) else blocks
        self._refuse_repeats(keys, starts, numbers[is_first])
        optional = set()
        for number, field in enumerate(self.fields):
            rows = np.flatnonzero(numbers == number)
            owners = samples[rows]
            if (owners[1:] == owners[:-1]).any():
                twice = int(owners[1:][owners[1:] == owners[:-1]][0])
                raise self._error(
                    "a sample has two members for one field: two samples of one key, or names that "
                    "differ in the case of the extension only; rename one when packing",
                    keys.one(twice), field, int(blocks[rows[owners == twice][1]]),
                )  # fmt: skip
            offset = np.zeros(self.num_samples, starts.dtype)
            offset[owners] = blocks[rows] - starts[owners]
            size = narrow(sizes[rows])
            if len(rows) < self.num_samples:
                optional.add(field)
                if not has_end and len(rows) == self.num_samples - 1 != int(owners[-1]):
                    raise self._error(
                        "the shard has no end (two blocks of zeros), and its last sample alone "
                        "lacks a field: it was cut between two members",
                        keys.one(self.num_samples - 1), field,
                    )  # fmt: skip
                size = _with_gaps(size, owners, self.num_samples)
            columns[f"offset:{field}"] = shrink(narrow(offset))
            columns[f"size:{field}"] = shrink(size)
        columns["starts"] = narrow(starts)
        return columns, frozenset(optional)

    @property
    def key_length(self) -> int | None:
        """The length of all keys, None if they differ."""
        lengths = {int(n) for part in self._key_lengths for n in (part.min(), part.max())}
        return lengths.pop() if len(lengths) == 1 else 0 if not lengths else None

    def _refuse_repeats(self, keys: Keys, starts: NDArray[Any], numbers: NDArray[Any]) -> None:
        """Raise if two samples have one key; `starts` and `numbers` are of their first members."""
        hashes = _concatenate(self._hashes, np.uint64)
        ordered = np.sort(hashes)
        suspects = ordered[1:][ordered[1:] == ordered[:-1]]
        first_rows: dict[str, int] = {}
        for row in np.flatnonzero(np.isin(hashes, suspects)).tolist() if len(suspects) else ():
            key = keys.one(row)
            if key in first_rows:
                earlier = int(starts[first_rows[key]]) * BLOCK
                raise self._error(
                    "members of one key stand apart in the shard (an earlier one has its payload "
                    f"at byte {earlier}): each part would be half a sample; pack the shard again "
                    "with its members sorted by name (`tar --sort=name`)",
                    key, self.fields[int(numbers[row])], int(starts[row]),
                )  # fmt: skip
            first_rows[key] = row

    def _error(self, message: str, key: str, field: str, block: int | None = None) -> DataError:
        offset = None if block is None else block * BLOCK
        return DataError(message, url=self.url, key=key, field=field, offset=offset)


def _with_gaps(sizes: NDArray[Any], owners: NDArray[np.int64], num_samples: int) -> NDArray[Any]:
    """Sizes by sample, with the mark of a missing field where a sample has none."""
    # The largest value marks a gap, so no size may have it.
    dtype = np.min_scalar_type(int(sizes.max()) + 1)
    column = np.full(num_samples, missing_mark(dtype), dtype)
    column[owners] = sizes
    return column


def _keys_of(names: NDArray[np.uint8], dots: NDArray[np.int64]) -> NDArray[np.uint8]:
    """The keys as uint8 `[n, width]` padded with zeros; width is a multiple of 8."""
    longest = int(dots.max())
    keys = names[:, : -(-longest // 8) * 8].copy()
    if (dots == longest).all():
        keys[:, longest:] = 0
    else:
        keys[np.arange(keys.shape[1]) >= dots[:, None]] = 0
    return keys


def _concatenate(parts: Iterable[NDArray[Any]], dtype: Any) -> NDArray[Any]:
    parts = list(parts)
    return np.concatenate(parts) if parts else np.empty(0, dtype)


def _hash(keys: NDArray[np.uint8], lengths: NDArray[np.int64]) -> NDArray[np.uint64]:
    words = keys.view("<u8")
    hashes = lengths.astype(np.uint64) * np.uint64(0x9E3779B97F4A7C15)
    for column in range(words.shape[1]):
        mixed = hashes ^ words[:, column]
        mixed *= np.uint64(0xBF58476D1CE4E5B9)
        mixed ^= mixed >> np.uint64(29)
        mixed *= np.uint64(0x94D049BB133111EB)
        mixed ^= mixed >> np.uint64(32)
        # Zeros after a key must not count: they depend on the longest name of the chunk.
        hashes = np.where(lengths > 8 * column, mixed, hashes)
    return hashes
