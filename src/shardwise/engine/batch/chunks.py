"""Row chunks: how a batch is cut into the parts that threads and processes load, and is filled.

A `PartialBatch` has the chunks that were loaded, and the memory of the fields of a fixed shape. The
fate of a bad sample is decided sample by sample: its error is raised, its row is skipped, or it is
replaced. So every executor decides alike however a batch is cut (I5), and nothing is lost without a
count (I6). Only a `DataError` is a bad sample, except for a `StaleIndexError`: data that was
replaced is not damaged, and all that is left of an epoch may be.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, Literal, get_args

import numpy as np
from numpy.typing import NDArray

from shardwise.base.arguments import check_choice
from shardwise.base.counters import Stages
from shardwise.base.errors import DataError, StaleIndexError
from shardwise.engine.processes.shared_memory import InSharedMemory
from shardwise.engine.request import BatchRequest
from shardwise.plan.permute import mix
from shardwise.sources.samples import DecodeWatch, LoadRequest, Samples

# Rows of a chunk: several threads share the first batch, and a task costs little beside its rows,
# 0.1 ms of the program's thread where it goes to a process.
_MIN_ROWS, _MAX_ROWS = 16, 128
# Rows, if the samples of a batch are one request to the store: the ranges of one request.
_MAX_REQUEST_ROWS = 256
# Rows that cost only their reading are loaded together up to 4 MiB or 4,096 rows: more
# would gain little, and delay the first batch.
_LIGHT_BYTES, _MAX_LIGHT_ROWS = 4 << 20, 4096
# A chunk of rows of known or measured size has 64 MiB at most: few such batches fit into memory, so
# that the threads have to share one.
_HEAVY_BYTES = 64 << 20


def light_rows(samples: Samples) -> int | None:
    """The number of rows worth loading together; None if a row costs more than reading."""
    row_bytes = samples.cost.row_bytes
    if row_bytes is None:
        return None
    return min(_MAX_LIGHT_ROWS, int(_LIGHT_BYTES / max(row_bytes, 1.0)))


def chunk_ranges(
    num_rows: int, num_threads: int, *, samples: Samples, row_bytes: int = 0
) -> list[tuple[int, int]]:
    """Cut a batch into chunks `(start, stop)` for this many threads.

    16 to 128 rows each, fewer where they would be above 64 MiB of `row_bytes`; up to 4 MiB where
    reading is all that a row costs, and up to 256 rows where the samples of a batch are one
    request. An empty batch has one empty chunk.
    """
    if samples.cost.batch_is_one_request:
        num_threads = 1
    least, most = _MIN_ROWS, _MAX_ROWS
    if (light := light_rows(samples)) is not None:
        least = max(_MIN_ROWS, light)
        most = max(_MAX_ROWS, least)
    if samples.cost.batch_is_one_request:
        most = max(most, _MAX_REQUEST_ROWS)
    elif row_bytes:
        most = min(most, max(1, _HEAVY_BYTES // row_bytes))
    size = min(most, max(least, -(-num_rows // num_threads)))
    return [(start, min(start + size, num_rows)) for start in range(0, max(1, num_rows), size)]


@dataclass(slots=True)
class RowChunk:
    """Rows of a batch, loaded: the fields of all rows at once or row by row, and their cost.

    The ids have a substitute's where a sample was replaced; `kept` is False where a bad one is
    skipped; `is_warm_up`: whether they are the first that their thread loaded.
    """

    ids: NDArray[np.int64]
    columns: Sequence[Mapping[str, Sequence[Any]]]
    kept: NDArray[np.bool_]
    num_replaced: int
    stages: Stages
    is_warm_up: bool = False
    span: tuple[float, float, int] = (0.0, 0.0, 0)

    def without(self, names: Collection[str]) -> RowChunk:
        """This chunk without the columns of some fields: those that lie in the batch already."""
        columns = [
            {name: column for name, column in columns.items() if name not in names}
            for columns in self.columns
        ]
        return replace(self, columns=columns)

    def is_in_shared_memory(self, name: str) -> bool:
        """Whether the rows of a column lie in the batch's memory."""
        return isinstance(self.columns[0].get(name), InSharedMemory)

    def between(self, start: int, stop: int) -> RowChunk:
        """Some rows of a chunk that was loaded at once, as a separate chunk."""
        [columns] = self.columns
        return RowChunk(
            self.ids[start:stop],
            [{name: _between(column, start, stop) for name, column in columns.items()}],
            self.kept[start:stop],
            0,
            self.stages.share(start, stop, len(self.ids)),
            self.is_warm_up,
            self.span,
        )


@dataclass(slots=True)
class PartialBatch:
    """A batch that is being filled, with the chunks that are loaded, by their first row.

    Attributes:
        rows: `[rows, ...]`, fields of a fixed shape, which decoders write into.
        learned: `[rows, ...]`, columns that were arrays of one shape in the first batch; they hold
            the rows of the chunks that are `InSharedMemory`.
    """

    request: BatchRequest
    rows: dict[str, NDArray[Any]]
    chunks: dict[int, RowChunk] = field(default_factory=dict)
    learned: dict[str, NDArray[Any]] = field(default_factory=dict)

    @property
    def num_bytes(self) -> int:
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
        for columns in chunk.columns:
            own: dict[str, Any] = {
                name: column for name, column in columns.items() if name not in partial.rows
            }
            for name, column in own.items():
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


OnError = Literal["raise", "skip", "replace"]
ON_ERROR: tuple[OnError, ...] = get_args(OnError)
# Substitutes that are tried for one bad sample before its error is raised all the same.
_MAX_SUBSTITUTES = 32

_Columns = Mapping[str, Sequence[Any]]


@dataclass(frozen=True, slots=True)
class Watching:
    """The watch over decoders, which learns of each that starts.

    Rows are loaded one by one where a decoder was stopped: the watch then sees which row it has.
    """

    watch: DecodeWatch | None = None
    one_by_one: bool = False


_UNWATCHED = Watching()


@dataclass(frozen=True)
class SampleLoader:
    """Loads rows of a batch, even if some are bad.

    With `on_error`, "skip" leaves a bad sample's row out; "replace" puts another sample there, the
    same one in every run with this seed.
    """

    dataset: Samples
    seed: int
    on_error: OnError

    def __post_init__(self) -> None:
        check_choice("on_error", self.on_error, ON_ERROR)

    def load(
        self,
        ids: NDArray[np.int64],
        epoch: int,
        out: Mapping[str, NDArray[Any]],
        watching: Watching = _UNWATCHED,
    ) -> RowChunk:
        """Load samples, fields of a fixed shape into the rows of `out`.

        Raises:
            DataError: a sample is bad, and on_error is "raise", or its substitutes are bad, too.
            StaleIndexError: a file is not the one that was opened, whatever on_error is.
        """
        stages = Stages()
        request = LoadRequest(ids, epoch, self.seed, out, stages, watching.watch)
        if watching.one_by_one:
            return self._load_singly(request, stages)
        try:
            columns = self._load(request)
            return RowChunk(ids, [columns], np.ones(len(ids), dtype=np.bool_), 0, stages)
        except DataError as error:
            chunk_error = error
        # Not in the `except` clause: the error of one row is not a consequence of the chunk's.
        if self.on_error != "raise":
            return self._load_singly(request, stages)
        if "read" not in stages.seconds:
            # Raise the error of the first bad row: the same one however the batch was cut. Once
            # all rows were read, the first error was raised, and functions of the user's have run.
            uncounted = replace(request, stats=None)
            for row in range(len(ids)):
                self._load(uncounted.row(row))
        raise chunk_error

    def _load(self, request: LoadRequest) -> _Columns:
        options: dict[str, Any] = {
            "epoch": request.epoch, "seed": request.seed, "out": request.out, "stats": request.stats
        }  # fmt: skip
        if request.watch is None:
            return self.dataset.load(request.ids, **options)
        try:
            return self.dataset.load(request.ids, **options, watch=request.watch)
        finally:
            request.watch.end()

    def _load_singly(self, request: LoadRequest, stages: Stages) -> RowChunk:
        """Load rows one by one, to keep the good ones of a chunk in which one is bad."""
        ids = request.ids.copy()
        kept = np.ones(len(ids), dtype=np.bool_)
        columns = []
        num_replaced = 0
        for row in range(len(ids)):
            single = request.row(row)
            try:
                columns.append(self._load(single))
            except StaleIndexError:
                raise
            except DataError as error:
                if self.on_error == "raise":
                    raise
                if self.on_error == "skip":
                    kept[row] = False
                    continue
                ids[row], substitute = self._substitute(single, error)
                columns.append(substitute)
                num_replaced += 1
        return RowChunk(ids, columns, kept, num_replaced, stages)

    def _substitute(self, request: LoadRequest, error: DataError) -> tuple[int, _Columns]:
        """Load another sample for a bad one: the same one in every run of this epoch."""
        index = int(request.ids[0])
        for attempt in range(_MAX_SUBSTITUTES):
            other = mix(self.seed, request.epoch, index, attempt) % len(self.dataset)
            try:
                return other, self._load(replace(request, ids=np.array([other], dtype=np.int64)))
            except StaleIndexError:
                raise
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
