"""Reads runs of tokens: from mapped local files, or by range requests from remote ones.

A mapped file that is cut would end the process at the next access, so its size is compared before
each read.
"""

from __future__ import annotations

import mmap
from collections.abc import Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from shardwise.errors import DataError, StorageError
from shardwise.sources.per_process import PerProcess
from shardwise.sources.tokens.token_file import TokenFile
from shardwise.storage import (
    FilePool,
    StorageOptions,
    is_local,
    local_path,
    max_open_files,
    open_file,
    read_files,
)

__all__ = ["TokenReader"]


class TokenReader:
    """The tokens of some files; used by any thread and after a fork, pickles without maps.

    Args:
        files: of one dtype.
        options: how remote ones are reached.
    """

    def __init__(self, files: Sequence[TokenFile], options: StorageOptions) -> None:
        self.files = tuple(files)
        self.dtype = files[0].dtype
        self.are_local = all(is_local(file.url) for file in files)
        self._pool = FilePool(options=options)
        for file in files:
            self._pool.pin(file.url, file.stat)
        self._maps: PerProcess[dict[int, mmap.mmap]] = PerProcess()

    def blocks(self, file: int, numbers: NDArray[np.int64], block: int) -> NDArray[Any]:
        """Blocks of a local file: `[blocks, block + 1]`, block i from token i * block on.

        One gather from a view of overlapping rows.
        """
        info = self.files[file]
        size = self.dtype.itemsize
        rows = (info.num_tokens - 1) // block
        view: NDArray[Any] = np.ndarray(
            (rows, block + 1), self.dtype, self._map(file), info.offset, (block * size, size)
        )
        return view[numbers]

    def runs(
        self, files: NDArray[np.int64], starts: NDArray[np.int64], counts: NDArray[np.int64]
    ) -> NDArray[Any]:
        """Runs of tokens, one behind the other: `[sum of counts]`.

        Args:
            files: int64 `[runs]`, the file of each.
            starts: int64 `[runs]`, its first token in that file.
            counts: int64 `[runs]`, its tokens.

        Raises:
            DataError: a file has changed, or is cut.
            StorageError: it could not be read.
        """
        out = np.empty(int(counts.sum()), self.dtype)
        size, ends = self.dtype.itemsize, np.cumsum(counts)
        if not self.are_local:
            reads = []
            for file in np.unique(files).tolist():
                held = self.files[file]
                for run in np.flatnonzero(files == file).tolist():
                    begin = int(ends[run] - counts[run]) * size
                    offset = held.offset + int(starts[run]) * size
                    reads.append((held.url, [offset], [int(ends[run]) * size], begin))
            read_files(self._pool, reads, out.data.cast("B"))
            return out
        tokens: dict[int, NDArray[Any]] = {}
        for file, start, count, end in zip(
            files.tolist(), starts.tolist(), counts.tolist(), ends.tolist(), strict=True
        ):
            if file not in tokens:
                held = self.files[file]
                tokens[file] = np.frombuffer(
                    self._map(file), self.dtype, held.num_tokens, held.offset
                )
            out[end - count : end] = tokens[file][start : start + count]
        return out

    def _map(self, number: int) -> mmap.mmap:
        """A local file, mapped; it is whole now."""
        maps = self._maps.get(dict)
        opened, held = maps.get(number), self.files[number]
        if opened is None:
            if len(maps) >= max_open_files():
                # A map holds a descriptor. Arrays that are in use keep theirs.
                maps.clear()
            file = open_file(held.url)
            now = file.stat()
            file.close()
            if (now.num_bytes, now.mtime_ns) != held.stat[:2]:
                raise DataError(
                    f"the file has changed since it was opened: it had {held.stat.num_bytes} bytes "
                    f"and has {now.num_bytes}; open the dataset anew",
                    url=held.url,
                )
            try:
                with open(local_path(held.url), "rb") as stream:
                    opened = mmap.mmap(stream.fileno(), 0, access=mmap.ACCESS_READ)
            except OSError as error:
                raise StorageError(f"can't map {held.url!r}: {error.strerror}") from None
            maps[number] = opened
        now_bytes = opened.size()
        if now_bytes < held.stat.num_bytes:
            raise DataError(
                f"the file had {held.stat.num_bytes} bytes when it was opened, and has {now_bytes}",
                url=held.url,
                offset=now_bytes,
            )
        return opened
