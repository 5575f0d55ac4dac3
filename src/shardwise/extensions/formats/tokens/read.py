"""Reads runs of tokens: from mapped local files, or by range requests from remote ones.

A mapped file that is cut would end the process at the next access, and one that is written to shows
other tokens, so its length and time are compared before and after each read.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from shardwise.extensions.formats.tokens.token_file import TokenFile
from shardwise.sources.per_process import PerProcess
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
        """The ranges of remote files that `runs` reads."""
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
