"""The fate of a bad sample: its error is raised, its row is skipped, or it is replaced.

Decided sample by sample, so that every executor decides alike however a batch is cut into chunks
(I5), and nothing is lost without a count (I6). Only a `DataError` is a bad sample.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from typing import Any, Literal, get_args

import numpy as np
from numpy.typing import NDArray

from shardwise.engine.batch.partial_batch import RowChunk
from shardwise.engine.stats.stages import Stages
from shardwise.errors import DataError
from shardwise.plan.permute import mix
from shardwise.samples import DecodeWatch, Samples

__all__ = ["ON_ERROR", "OnError", "SampleLoader", "Watching"]

OnError = Literal["raise", "skip", "replace"]
ON_ERROR: tuple[OnError, ...] = get_args(OnError)
# Substitutes that are tried for one bad sample before its error is raised all the same.
_MAX_SUBSTITUTES = 32

_Rows = Mapping[str, NDArray[Any]]
_Columns = Mapping[str, Sequence[Any]]


@dataclass(frozen=True, slots=True)
class Watching:
    """How loading is watched.

    Attributes:
        watch: learns of each decoder that begins, or None.
        one_by_one: load rows one by one, where a decoder was stopped: the watch then sees which
            row it has.
    """

    watch: DecodeWatch | None = None
    one_by_one: bool = False


_UNWATCHED = Watching()


@dataclass(frozen=True, slots=True)
class _Chunk:
    """What the rows of a chunk have in common: their epoch, the counter, the watch."""

    epoch: int
    stages: Stages
    watch: DecodeWatch | None


class SampleLoader:
    """Loads rows of a batch, of which some may be bad.

    Args:
        dataset: loads samples.
        seed: keys the randomness of transforms, and which samples replace bad ones.
        on_error: "raise"; "skip" leaves a bad sample's row out; "replace" puts another sample
            there, the same one in every run.
    """

    def __init__(self, dataset: Samples, *, seed: int, on_error: OnError) -> None:
        if on_error not in ON_ERROR:
            raise ValueError(f"on_error={on_error!r}: use one of {', '.join(map(repr, ON_ERROR))}")
        self.dataset = dataset
        self.seed = seed
        self.on_error = on_error

    def load(
        self,
        ids: NDArray[np.int64],
        epoch: int,
        out: _Rows,
        stages: Stages,
        watching: Watching = _UNWATCHED,
    ) -> RowChunk:
        """Load samples, fields of a fixed shape into the rows of `out`.

        Raises:
            DataError: a sample is bad, and on_error is "raise", or its substitutes are bad, too.
        """
        chunk = _Chunk(epoch, stages, watching.watch)
        if watching.one_by_one:
            return self._load_singly(ids, out, chunk)
        try:
            columns = self._load(ids, out, chunk)
            return RowChunk(ids, [columns], np.ones(len(ids), dtype=np.bool_), 0, stages)
        except DataError as error:
            chunk_error = error
        # Not in the `except` clause: the error of one row is not a consequence of the chunk's.
        if self.on_error != "raise":
            return self._load_singly(ids, out, chunk)
        if "read" not in stages.seconds:
            # Raise the error of the first bad row: the same one however the batch was cut. Once
            # all rows were read, the first error was raised, and functions of the user's have run.
            uncounted = replace(chunk, stages=Stages())
            for row in range(len(ids)):
                self._load(ids[row : row + 1], _row(out, row), uncounted)
        raise chunk_error

    def _load(self, ids: NDArray[np.int64], out: _Rows, chunk: _Chunk) -> _Columns:
        load = partial(
            self.dataset.load, ids, epoch=chunk.epoch, seed=self.seed, out=out, stats=chunk.stages
        )
        if chunk.watch is None:
            return load()
        try:
            return load(watch=chunk.watch)
        finally:
            chunk.watch.end()

    def _load_singly(self, ids: NDArray[np.int64], out: _Rows, chunk: _Chunk) -> RowChunk:
        """Load rows one by one, to keep the good ones of a chunk in which one is bad."""
        ids = ids.copy()
        kept = np.ones(len(ids), dtype=np.bool_)
        columns = []
        num_replaced = 0
        for row in range(len(ids)):
            out_row = _row(out, row)
            try:
                columns.append(self._load(ids[row : row + 1], out_row, chunk))
            except DataError as error:
                if self.on_error == "raise":
                    raise
                if self.on_error == "skip":
                    kept[row] = False
                    continue
                ids[row], substitute = self._substitute(int(ids[row]), out_row, chunk, error)
                columns.append(substitute)
                num_replaced += 1
        return RowChunk(ids, columns, kept, num_replaced, chunk.stages)

    def _substitute(
        self, index: int, out: _Rows, chunk: _Chunk, error: DataError
    ) -> tuple[int, _Columns]:
        """Load another sample for a bad one: the same one in every run of this epoch."""
        for attempt in range(_MAX_SUBSTITUTES):
            other = mix(self.seed, chunk.epoch, index, attempt) % len(self.dataset)
            try:
                ids = np.array([other], dtype=np.int64)
                return other, self._load(ids, out, chunk)
            except DataError as again:
                last = again
        raise DataError(
            f"sample {index} is damaged, and so are {_MAX_SUBSTITUTES} substitutes for it",
            url=last.url,
            key=last.key,
            field=last.field,
            offset=last.offset,
            index=index,
        ) from error


def _row(rows: _Rows, row: int) -> dict[str, NDArray[Any]]:
    return {name: array[row : row + 1] for name, array in rows.items()}
