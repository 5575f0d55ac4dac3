"""A batch that is being filled: the chunks that were loaded, and the memory that they lie in."""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
from numpy.typing import NDArray

from shardwise.engine.processes.shared_columns import InSharedMemory
from shardwise.engine.request import BatchRequest
from shardwise.engine.stats.stages import Stages

__all__ = ["PartialBatch", "RowChunk", "columns_to_join", "split_requests"]


@dataclass(slots=True)
class RowChunk:
    """Rows of a batch, loaded.

    Attributes:
        ids: int64 `[rows]`, the samples; a substitute's where one was replaced.
        columns: the fields, of all rows at once or row by row.
        kept: bool `[rows]`, False where a bad sample is skipped.
        num_replaced: rows with a substitute.
        stages: what loading them cost.
    """

    ids: NDArray[np.int64]
    columns: Sequence[Mapping[str, Sequence[Any]]]
    kept: NDArray[np.bool_]
    num_replaced: int
    stages: Stages

    def without(self, names: Collection[str]) -> RowChunk:
        """This chunk without the columns of some fields: those that lie in the batch already."""
        columns = [
            {name: column for name, column in columns.items() if name not in names}
            for columns in self.columns
        ]
        return RowChunk(self.ids, columns, self.kept, self.num_replaced, self.stages)

    def is_in_shared_memory(self, name: str) -> bool:
        """Whether the rows of a column lie in the batch's memory."""
        return isinstance(self.columns[0].get(name), InSharedMemory)

    def between(self, start: int, stop: int) -> RowChunk:
        """Some rows of a chunk that was loaded at once, as a chunk of their own."""
        [columns] = self.columns
        return RowChunk(
            self.ids[start:stop],
            [{name: _between(column, start, stop) for name, column in columns.items()}],
            self.kept[start:stop],
            0,
            self.stages.share(start, stop, len(self.ids)),
        )


@dataclass(slots=True)
class PartialBatch:
    """A batch that is being filled.

    Attributes:
        request: the batch.
        rows: `[rows, ...]`, fields of a fixed shape, which decoders write into.
        chunks: the chunks that are loaded, by their first row.
        learned: `[rows, ...]`, columns that were arrays of one shape in the first batch; they hold
            the rows of the chunks that say `InSharedMemory`.
    """

    request: BatchRequest
    rows: dict[str, NDArray[Any]]
    chunks: dict[int, RowChunk] = field(default_factory=dict)
    learned: dict[str, NDArray[Any]] = field(default_factory=dict)

    @property
    def num_bytes(self) -> int:
        """Bytes of the memory that is set aside."""
        return sum(array.nbytes for rows in (self.rows, self.learned) for array in rows.values())


def _between(column: Any, start: int, stop: int) -> Any:
    return (
        InSharedMemory(stop - start) if isinstance(column, InSharedMemory) else column[start:stop]
    )


def columns_to_join(partial: PartialBatch) -> list[Mapping[str, Any]]:
    """The columns of all chunks, without the fields that decoders wrote into the batch.

    A column that lies in shared memory in every chunk is given whole by the first chunk and without
    rows by the others, so that joining copies nothing.
    """
    chunks = sorted(partial.chunks.items())
    joined: list[Mapping[str, Any]] = []
    for start, chunk in chunks:
        for columns in chunk.without(partial.rows).columns:
            own: dict[str, Any] = dict(columns)
            for name, column in columns.items():
                if isinstance(column, InSharedMemory):
                    rows, stop = partial.learned[name], start + len(chunk.ids)
                    if all(other.is_in_shared_memory(name) for _, other in chunks):
                        own[name] = rows[:0] if joined else rows
                    else:
                        own[name] = rows[start:stop]
            joined.append(own)
    return joined


def split_requests(partial: PartialBatch) -> Iterator[PartialBatch]:
    """The batches of a request that coalesces several."""
    request, begin = partial.request, 0
    for number, size in enumerate(request.sizes):
        end = begin + size
        own = BatchRequest(
            request.epoch,
            request.step + number,
            request.ids[begin:end],
            None if request.valid is None else request.valid[begin:end],
        )
        chunks = {}
        if not size:
            chunks[0] = RowChunk(own.ids, [], np.ones(0, dtype=np.bool_), 0, Stages())
        for start, chunk in partial.chunks.items():
            first, last = max(begin, start), min(end, start + len(chunk.ids))
            if first < last:
                chunks[first - begin] = chunk.between(first - start, last - start)
        rows = {name: array[begin:end] for name, array in partial.rows.items()}
        learned = {name: array[begin:end] for name, array in partial.learned.items()}
        yield PartialBatch(own, rows, chunks, learned)
        begin = end
