"""Blocks of tokens as samples: block i of a file is its tokens i * block to i * block + block.

Runs of tokens are read from mapped local files, or by range requests from remote ones. A mapped
file that is cut would end the process at the next access, and one that is written to shows other
tokens, so its length and time are compared before and after each read.
"""

from __future__ import annotations

import os
from collections.abc import Iterable, Sequence
from functools import cached_property
from typing import Any, Literal, NamedTuple

import numpy as np
from numpy.typing import NDArray

from shardwise.base.columns import Columns
from shardwise.base.errors import DataError
from shardwise.base.shown import shown
from shardwise.extensions.formats.tokens.open_files import expand_tokens, open_token_files
from shardwise.extensions.formats.tokens.token_file import TokenFile, checked_dtype
from shardwise.sources.manifest import Manifest, Shard
from shardwise.sources.per_process import PerProcess
from shardwise.sources.protocol import SourceTraits
from shardwise.storage import (
    FilePool,
    LocalFile,
    PoolRanges,
    StorageOptions,
    UrlRanges,
    is_local,
    local_path,
    max_open_files,
    read_files,
)


class TokenReader:
    """The tokens of files of one dtype; for any thread and after a fork, pickles without maps."""

    def __init__(self, files: Sequence[TokenFile], options: StorageOptions) -> None:
        self.files = tuple(files)
        self.dtype = files[0].dtype
        self.are_local = all(is_local(file.url) for file in files)
        self._pool = FilePool(options=options)
        for file in files:
            self._pool.pin(file.url, file.stat)
        self._maps: PerProcess[dict[int, _Map]] = PerProcess()

    def blocks(self, file: int, numbers: NDArray[np.int64], block: int) -> NDArray[Any]:
        """Gather blocks of a local file, `[blocks, block + 1]`, from a view of overlapping rows."""
        mapped, size = self._map(file), self.dtype.itemsize
        shape = (len(mapped.tokens) - 1) // block, block + 1
        view: NDArray[Any] = np.ndarray(
            shape, self.dtype, mapped.tokens, strides=(block * size, size)
        )
        gathered = view[numbers]
        mapped.file.check()
        return gathered

    def runs(
        self, files: NDArray[np.int64], starts: NDArray[np.int64], counts: NDArray[np.int64]
    ) -> NDArray[Any]:
        """Runs of tokens, one after the other: `[sum of counts]`."""
        out = np.empty(int(counts.sum()), self.dtype)
        ends = np.cumsum(counts)
        if not self.are_local:
            ((pool, reads),) = self.ranges(files, starts, counts)
            read_files(pool, reads, out.data.cast("B"))
            return out
        maps = {file: self._map(file) for file in np.unique(files).tolist()}
        for file, start, count, end in zip(
            files.tolist(), starts.tolist(), counts.tolist(), ends.tolist(), strict=True
        ):
            out[end - count : end] = maps[file].tokens[start : start + count]
        for mapped in maps.values():
            mapped.file.check()
        return out

    def ranges(
        self, files: NDArray[np.int64], starts: NDArray[np.int64], counts: NDArray[np.int64]
    ) -> list[PoolRanges]:
        size, ends = self.dtype.itemsize, np.cumsum(counts)
        reads: list[UrlRanges] = []
        for run in np.argsort(files, kind="stable").tolist():
            info = self.files[int(files[run])]
            begin = int(ends[run] - counts[run]) * size
            offset = info.offset + int(starts[run]) * size
            reads.append((info.url, [offset], [int(ends[run]) * size], begin))
        return [(self._pool, reads)]

    def _map(self, number: int) -> _Map:
        """A local file, mapped; it is the one that was opened, and whole, now."""
        maps = self._maps.get(dict)
        mapped = maps.get(number)
        if mapped is None:
            if len(maps) >= max_open_files() // 2:
                # A map and its file hold a descriptor each. Arrays that are in use keep theirs.
                maps.clear()
            info = self.files[number]
            file = LocalFile(local_path(info.url))
            file.pin(info.stat)
            data = file.map()
            # A map of a file that was cut has not all tokens.
            file.check()
            tokens = np.frombuffer(data, self.dtype, info.num_tokens, info.offset)
            mapped = maps[number] = _Map(file, tokens)
        mapped.file.check()
        return mapped


class _Map(NamedTuple):
    """The tokens of a mapped file, and the open file, which detects writes to it."""

    file: LocalFile
    tokens: NDArray[Any]


class TokenSource:
    """The files, fields and traits that both ways to cut tokens share; see `shardwise.tokens`."""

    fields = ("tokens",)

    def __init__(
        self,
        urls: str | os.PathLike[str] | Sequence[str | os.PathLike[str]],
        *,
        block: int,
        dtype: Any = None,
        storage: StorageOptions | None = None,
    ) -> None:
        self.block = block
        self._dtype = checked_dtype(dtype)
        self._options = StorageOptions() if storage is None else storage
        self.urls = expand_tokens(urls, self._options)

    def __repr__(self) -> str:
        more = f", ... {len(self.urls)} files" if len(self.urls) > 1 else ""
        return f"{type(self).__name__}({shown(self.urls[0])!r}{more}, block={self.block})"

    @cached_property
    def reader(self) -> TokenReader:
        """The opened files."""
        return TokenReader(open_token_files(self.urls, self._dtype, self._options), self._options)

    @property
    def files(self) -> tuple[TokenFile, ...]:
        """The files of tokens, in order."""
        return self.reader.files

    @property
    def default_shuffle(self) -> Literal["full", "window"]:
        """Full for mapped files, where a block costs the same wherever it lies; else by windows."""
        return "full" if self.reader.are_local else "window"

    @cached_property
    def traits(self) -> SourceTraits:
        return SourceTraits(
            value_fields=self.fields,
            layouts={"tokens": ((self.block + 1,), self.reader.dtype)},
            random_reads_are_requests=not self.reader.are_local,
        )

    def _refuse_none(self, count: int) -> None:
        if count < 1:
            most = max(file.num_tokens for file in self.files)
            raise DataError(
                f"no block of {self.block} + 1 tokens: the longest file has {most}; use a smaller "
                "block",
                url=self.files[0].url,
            )


class TokenBlocks(TokenSource):
    """Blocks of each file; satisfies `shardwise.sources.protocol.Source`.

    Neighbouring blocks share a token: the last target of one is the first input of the next. Up to
    `block` tokens at the end of a file are in none; `num_dropped` counts these.
    """

    @cached_property
    def manifest(self) -> Manifest:
        counts = [max(0, (file.num_tokens - 1) // self.block) for file in self.files]
        self._refuse_none(sum(counts))
        kind = f"tokens {self.block} {self.reader.dtype.str}"
        files = zip(self.files, counts, strict=True)
        return Manifest(kind, [Shard(f.url, count, f.stat.num_bytes) for f, count in files])

    @property
    def num_dropped(self) -> int:
        """Tokens that are in no block."""
        used = self.manifest.sizes * self.block + (self.manifest.sizes > 0)
        return sum(file.num_tokens for file in self.files) - int(used.sum())

    def read(self, ids: NDArray[np.int64], fields: tuple[str, ...] | None = None) -> Columns:
        ids = np.asarray(ids, dtype=np.int64)
        shards, rows = self.manifest.locate(ids)
        keys = self.manifest.row_keys(shards, rows)
        if fields == ():
            return Columns(ids, keys, {})
        tokens = self._read(shards, rows)
        return Columns(ids, keys, {"tokens": tokens}, tokens.nbytes)

    def ranges(
        self, ids: NDArray[np.int64], fields: tuple[str, ...] | None = None, **_: int
    ) -> Iterable[PoolRanges] | None:
        if self.reader.are_local:
            return None
        shards, rows = self.manifest.locate(ids)
        counts = np.full(len(rows), 0 if fields == () else self.block + 1)
        return self.reader.ranges(shards, rows * self.block, counts)

    def _read(self, shards: NDArray[np.int64], rows: NDArray[np.int64]) -> NDArray[Any]:
        reader, width = self.reader, self.block + 1
        if not reader.are_local:
            counts = np.full(len(rows), width)
            return reader.runs(shards, rows * self.block, counts).reshape(len(rows), width)
        files = np.unique(shards).tolist()
        if len(files) == 1:
            return reader.blocks(files[0], rows, self.block)
        out = np.empty((len(rows), width), reader.dtype)
        for file in files:
            places = np.flatnonzero(shards == file)
            out[places] = reader.blocks(file, rows[places], self.block)
        return out
