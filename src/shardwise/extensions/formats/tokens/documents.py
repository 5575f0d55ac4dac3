"""Blocks of the documents joined in an epoch's order: another order, other blocks, each epoch.

The documents are permuted by (seed, epoch) and stand one after the other; block i is the tokens
i * block to i * block + block of that. Where a block lies follows from the epoch alone, so a
resume costs nothing.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from functools import cached_property

import numpy as np
from numpy.typing import NDArray

from shardwise.base.columns import Columns
from shardwise.extensions.formats.tokens.open_files import read_documents
from shardwise.extensions.formats.tokens.source import TokenSource
from shardwise.plan import Permutation, mix
from shardwise.plan.permute import LastValues
from shardwise.sources.manifest import Manifest, Shard
from shardwise.sources.protocol import ReadsEpochs
from shardwise.storage import PoolRanges
from shardwise.storage.found_once import made_once


@dataclass(frozen=True, eq=False)
class _Joined:
    """The documents of an epoch: their order, and where each one ends in all tokens."""

    order: NDArray[np.int64]
    ends: NDArray[np.int64]


class JoinedDocuments(ReadsEpochs, TokenSource):
    """Blocks of the joined documents: 8 bytes per document, and 16 for each of two epochs."""

    @cached_property
    def _ends(self) -> NDArray[np.int64]:
        """int64 `[documents]`, where each ends in all files one after the other; none is empty."""

        def read() -> bytes:
            ends = [
                read_documents(file, self._options) + end - file.num_tokens
                for file, end in zip(self.files, self._file_ends.tolist(), strict=True)
            ]
            # Documents without a token have the end of the one before.
            every = np.unique(np.concatenate(ends))
            return every[every > 0].tobytes()

        if self.reader.are_local:
            return np.frombuffer(read(), np.int64)
        # One rank of a process group reads them for all.
        made = made_once(f"documents {self._dtype}", self.urls, self._options, read)
        return np.frombuffer(made, np.int64)

    @cached_property
    def _file_ends(self) -> NDArray[np.int64]:
        return np.cumsum([file.num_tokens for file in self.files])

    @cached_property
    def _epochs(self) -> LastValues[int, _Joined]:
        return LastValues()

    @property
    def _num_tokens(self) -> int:
        return int(self._ends[-1]) if len(self._ends) else 0

    @cached_property
    def manifest(self) -> Manifest:
        num_blocks = (self._num_tokens - 1) // self.block
        self._refuse_none(num_blocks)
        sizes = "".join(f"{file.num_tokens} " for file in self.files)
        kind = f"token documents {self.block} {self.reader.dtype.str} {len(self._ends)} {sizes}"
        num_bytes = sum(file.stat.num_bytes for file in self.files)
        return Manifest(kind, [Shard(self.files[0].url, num_blocks, num_bytes)])

    @property
    def num_dropped(self) -> int:
        """Tokens at an epoch's end that are in no block."""
        return self._num_tokens - self.manifest.num_samples * self.block - 1

    def read_epoch(
        self,
        ids: NDArray[np.int64],
        fields: tuple[str, ...] | None = None,
        *,
        epoch: int,
        seed: int,
    ) -> Columns:
        ids = np.asarray(ids, dtype=np.int64)
        keys = list(map(str, ids.tolist()))
        if fields == ():
            return Columns(ids, keys, {})
        out = self.reader.runs(*self._runs(ids, epoch=epoch, seed=seed))
        out = out.reshape(len(ids), self.block + 1)
        return Columns(ids, keys, {"tokens": out}, out.nbytes)

    def ranges(
        self,
        ids: NDArray[np.int64],
        fields: tuple[str, ...] | None = None,
        *,
        epoch: int,
        seed: int,
    ) -> Iterable[PoolRanges] | None:
        if self.reader.are_local:
            return None
        return () if fields == () else self.reader.ranges(*self._runs(ids, epoch=epoch, seed=seed))

    def _runs(
        self, ids: NDArray[np.int64], *, epoch: int, seed: int
    ) -> tuple[NDArray[np.int64], NDArray[np.int64], NDArray[np.int64]]:
        """The runs of tokens of blocks: their files, first tokens and counts."""
        joined = self._epochs.get(mix(seed, epoch), self._join_documents)
        starts = ids * self.block
        firsts = np.searchsorted(joined.ends, starts, side="right")
        lasts = np.searchsorted(joined.ends, starts + self.block, side="right")
        counts = lasts - firsts + 1
        blocks = np.repeat(np.arange(len(ids)), counts)
        places = np.arange(len(blocks)) + np.repeat(firsts - (np.cumsum(counts) - counts), counts)
        documents = joined.order[places]
        stops = self._ends[documents]
        lengths = stops - np.where(documents > 0, self._ends[documents - 1], 0)
        begins = joined.ends[places] - lengths
        skipped = np.maximum(0, starts[blocks] - begins)
        taken = np.minimum(lengths, starts[blocks] + self.block + 1 - begins) - skipped
        tokens = stops - lengths + skipped
        files = np.searchsorted(self._file_ends, tokens, side="right")
        bases = self._file_ends[files] - np.array([f.num_tokens for f in self.files])[files]
        return files, tokens - bases, taken

    def _join_documents(self, key: int) -> _Joined:
        num_documents = len(self._ends)
        order = Permutation(num_documents, key)(np.arange(num_documents))
        lengths = np.diff(self._ends, prepend=0)
        return _Joined(order, np.cumsum(lengths[order]))
