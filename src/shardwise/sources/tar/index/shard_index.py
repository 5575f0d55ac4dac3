"""The index of a shard: where each field of each sample lies.

At most 8 bytes per field besides the keys, for common shards: offsets are counted in blocks of 512
bytes, those of a sample's fields from its first payload; each column has the smallest dtype that
holds it. Columns are memory-mapped, so that only pages in use take memory.
"""

from __future__ import annotations

import hashlib
import operator
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any, TypeAlias

import numpy as np
from numpy.typing import NDArray

from shardwise.base.columns import fixed_width_texts
from shardwise.base.errors import DataError
from shardwise.base.shown import in_command
from shardwise.sources.tar.index.index_file import IndexHeader, decode
from shardwise.sources.tar.scan.headers import BLOCK
from shardwise.storage import atomic_write, is_local, local_path
from shardwise.storage.column_file import encode_columns, map_file, spread
from shardwise.storage.urls import scheme_of
from shardwise.storage.user_dirs import name_beside

# Functions for the offset and the size of a row, and the size that marks a missing field.
_Scalars: TypeAlias = tuple[Callable[[int], int], Callable[[int], int], int]
_ABSENT: _Scalars = (lambda _: 0, lambda _: -1, -1)


def index_path(url: str, index_dir: str | None = None) -> str:
    """The path or URL of a shard's index.

    Beside the shard, as `<shard>.swi`; or in `index_dir`, named after the shard and a hash of its
    whole URL, so that `train/000.tar` and `val/000.tar` do not meet. Either may be remote.
    """
    if is_local(url):
        url = local_path(url)
    # A query may be a signature, which is not a part of the name; or it may name the shard.
    path, mark, query = url, "", ""
    if scheme_of(url) in ("http", "https"):
        url = url.partition("#")[0]
        path, mark, query = url.partition("?")
    if index_dir is None:
        return f"{path}.swi{mark}{query}"
    named = path if path.endswith(".tar") else url
    whole = str(Path(url).absolute()) if is_local(url) else named
    name = f"{name_beside(url, whole)}.swi"
    if is_local(index_dir):
        return str(Path(local_path(index_dir)) / name)
    return f"{index_dir.rstrip('/')}/{name}"


def missing_mark(dtype: np.dtype[Any]) -> int:
    """The size that marks a missing field, in a column of sizes of an optional field."""
    return int(np.iinfo(dtype).max)


class ShardIndex:
    """The position of each field of each sample in one shard. Immutable; any thread may use it.

    The columns are those of docs/format.md; `path` is where they came from, for messages.
    """

    def __init__(
        self, header: IndexHeader, columns: Mapping[str, NDArray[Any]], *, path: str = ""
    ) -> None:
        self.header = header
        self.num_samples, self.num_bytes = header.num_samples, header.num_bytes
        self.fields = header.fields
        self.path = path
        self._columns = dict(columns)
        try:
            self._starts = self._spread("starts")
            self._offsets = {name: self._spread(f"offset:{name}") for name in header.fields}
            self._sizes = {name: self._spread(f"size:{name}") for name in header.fields}
            self._digests = {
                name: self._spread(f"crc32:{name}")
                for name in (header.fields if header.has_digests else ())
            }
            self._start_at = self._starts.item
            self._scalars_of: dict[tuple[str, ...], list[_Scalars]] = {}
            self.keys = Keys(
                columns["keys"], columns.get("key_ends"), header.key_length, header.num_samples
            )
        except (KeyError, ValueError) as error:
            raise DataError(
                f"the index does not fit together ({error}); make it again with "
                f"`shardwise index --force {in_command(header.name)}`",
                url=path or header.name,
            ) from error

    def _spread(self, name: str) -> NDArray[Any]:
        return spread(self._columns, name, self.header.num_samples)

    def locate(
        self, field: str, rows: NDArray[np.int64]
    ) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
        """`(offsets, sizes)` of a field in some samples, int64 in bytes; the size -1 without it."""
        sizes = self._sizes[field][rows]
        blocks = self._starts[rows].astype(np.int64)
        blocks += self._offsets[field][rows]
        blocks *= BLOCK
        lengths = sizes.astype(np.int64)
        if field in self.header.optional:
            lengths[sizes == missing_mark(sizes.dtype)] = -1
        return blocks, lengths

    def locate_all(
        self, fields: Sequence[str], rows: NDArray[np.int64]
    ) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
        """`locate` for fields, int64 `[fields, rows]`; offset 0 and size -1 for unknown ones."""
        offsets = np.zeros((len(fields), len(rows)), np.int64)
        sizes = np.full_like(offsets, -1)
        for i, field in enumerate(fields):
            if field in self._sizes:
                offsets[i], sizes[i] = self.locate(field, rows)
        return offsets, sizes

    def locate_one(self, fields: tuple[str, ...], row: int) -> list[tuple[int, int]]:
        """`(offset, size)` of fields of one sample, size -1 without: the fastest for a row."""
        scalars = self._scalars_of.get(fields)
        if scalars is None:
            scalars = self._scalars_of[fields] = list(map(self._scalars, fields))
        start = self._start_at(row)
        return [
            (0, -1) if (size := size_at(row)) == mark else ((start + offset_at(row)) * BLOCK, size)
            for offset_at, size_at, mark in scalars
        ]

    def _scalars(self, field: str) -> _Scalars:
        """Bound `item` methods, which give ints without an array."""
        if field not in self._sizes:
            return _ABSENT
        sizes = self._sizes[field]
        mark = missing_mark(sizes.dtype) if field in self.header.optional else -1
        return self._offsets[field].item, sizes.item, mark

    def without(self, rows: Iterable[int]) -> ShardIndex:
        """The same index with some more samples removed."""
        header = replace(self.header, removed=tuple(sorted({*self.header.removed, *rows})))
        return ShardIndex(header, self._columns)

    def digests(self, field: str) -> NDArray[np.uint32] | None:
        """CRC-32 per payload of a field, uint32 `[num_samples]`, 0 for none; None without any."""
        return self._digests.get(field)

    def content_digest(self) -> int:
        """64 bits of what is where in the shard, whichever version, name and CRCs the file has."""
        header, digest = self.header, hashlib.blake2b(digest_size=8)
        digest.update(ascii((header.num_samples, header.num_bytes, header.fields)).encode())
        for name in sorted(self._columns):
            if not name.startswith("crc32:"):
                column = self._columns[name]
                digest.update(ascii((name, column.dtype.str, len(column))).encode())
                digest.update(column.data)
        return int.from_bytes(digest.digest(), "little")

    def has_columns(self, columns: Mapping[str, NDArray[Any]]) -> bool:
        """Whether these columns are the index's, but for its digests."""
        own = {name for name in self._columns if not name.startswith("crc32:")}
        return own == columns.keys() and all(
            np.array_equal(self._columns[name], columns[name]) for name in own
        )

    def of_version(self, mtime_ns: int, etag: str) -> ShardIndex:
        """The same index, as one that was made from a certain version of its shard."""
        header = replace(self.header, mtime_ns=mtime_ns, etag=etag)
        return ShardIndex(header, self._columns, path=self.path)

    def with_digests(self, digests: Mapping[str, NDArray[np.uint32]]) -> ShardIndex:
        """The same index with the CRC-32 of each field's payloads, uint32 `[num_samples]`."""
        columns = {f"crc32:{name}": values for name, values in digests.items()}
        return ShardIndex(replace(self.header, has_digests=True), {**self._columns, **columns})

    def to_bytes(self) -> bytes:
        """The index file's bytes."""
        return encode_columns(self.header.to_metadata(), self._columns)

    def save(self, path: str) -> None:
        """Publish the index: the file appears whole or not at all."""
        with atomic_write(path) as file:
            file.write(self.to_bytes())

    @classmethod
    def load(cls, path: str, *, check: bool = True) -> ShardIndex:
        """Map an index file (`check` verifies it); FileNotFoundError, or DataError with advice."""
        return cls(*decode(map_file(path), path=path, check=check), path=path)


class Keys(Sequence[str]):
    """The keys of a shard's samples, decoded at access: UTF-8, other bytes as lone surrogates."""

    __slots__ = ("_ends", "_length", "_num_keys", "_text")

    def __init__(
        self,
        text: NDArray[np.uint8],
        ends: NDArray[Any] | None,
        length: int | None,
        num_keys: int,
    ) -> None:
        if (ends is None) == (length is None):
            raise ValueError("keys need either ends or one length")
        fits = len(text) == length * num_keys if length is not None else True
        if ends is not None:
            last = int(ends[-1]) if len(ends) else 0
            fits = len(ends) == num_keys and last == len(text)
        if not fits:
            raise ValueError(f"{num_keys} keys do not take {len(text)} bytes")
        self._text = text.data
        self._ends = ends
        self._length = length
        self._num_keys = num_keys

    def __len__(self) -> int:
        return self._num_keys

    def __getitem__(self, row: Any) -> Any:
        if isinstance(row, slice):
            return self.take(np.arange(self._num_keys, dtype=np.int64)[row])
        row = operator.index(row)
        if not -self._num_keys <= row < self._num_keys:
            raise IndexError(f"key {row} of {self._num_keys}")
        return self.one(row % self._num_keys)

    def one(self, row: int) -> str:
        """The key of one row in [0, num_keys): faster than `[row]`."""
        if self._ends is None:
            length: Any = self._length
            start, end = row * length, row * length + length
        else:
            start, end = self._ends.item(row - 1) if row else 0, self._ends.item(row)
        return str(self._text[start:end], "utf-8", "surrogateescape")

    def __iter__(self) -> Iterator[str]:
        for start in range(0, self._num_keys, 4096):
            yield from self[start : start + 4096]

    def as_rows(self) -> NDArray[np.uint8]:
        """The bytes of all keys, uint8 `[num_keys, length]`; only of keys of one length."""
        return np.frombuffer(self._text, np.uint8).reshape(self._num_keys, self._length or 0)

    def take(self, rows: NDArray[np.int64]) -> list[str]:
        """The keys of some rows, each in [0, num_keys)."""
        if self._ends is None:
            return fixed_width_texts(self.as_rows()[rows])
        ends = self._ends[rows].astype(np.int64)
        starts = np.where(rows > 0, self._ends[rows - 1], 0).astype(np.int64)
        text = self._text
        return [
            str(text[start:end], "utf-8", "surrogateescape")
            for start, end in zip(starts.tolist(), ends.tolist(), strict=True)
        ]
