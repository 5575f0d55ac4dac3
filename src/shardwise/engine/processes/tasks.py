"""The messages between trainer and worker, and the batches in progress that they are about.

What is pickled for each chunk is a named tuple: a frozen dataclass with slots takes 20 µs more.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, NamedTuple

from shardwise.base.columns import Layout
from shardwise.engine.batch.chunks import PartialBatch
from shardwise.engine.processes.pickling import Unread
from shardwise.engine.processes.shared_memory import PackedFiles
from shardwise.engine.processes.slots import Slot
from shardwise.engine.processes.worker_errors import unpack_error
from shardwise.engine.processes.worker_status import Decoding
from shardwise.engine.request import Batch, BatchRequest

# The batch in the answer of a worker that ends: it could not start, or could not receive a task.
START_FAILED, RECEIVE_FAILED = -1, -2


class Task(NamedTuple):
    """A row chunk to load: its own ids, and the number, rows and slot of its batch.

    Attributes:
        slot: the slot's number, -1 without one.
        learned: the layout of columns that are written into the slot if they fit.
        whole: load and collate the whole batch, which is this chunk.
        one_by_one: load row by row, so that the watch sees which row a decoder has.
        stuck: (sample, part) that were stopped before: such samples are bad.
    """

    run: int
    batch: int
    start: int
    request: BatchRequest
    num_rows: int
    slot: int
    learned: Mapping[str, Layout]
    whole: bool = False
    one_by_one: bool = False
    stuck: frozenset[tuple[int, int]] = frozenset()


class Answer(NamedTuple):
    """A row chunk that is loaded, or the pickled error that it raised."""

    batch: int
    start: int
    worker: int
    value: Any = None
    error: bytes | None = None


@dataclass(frozen=True, slots=True)
class Stopped:
    """A worker process that was stopped, because one of its decoders did not return.

    Attributes:
        tasks: (batch, start row) of the chunks that it had, each with what was stuck in it or None.
        is_idle: all workers are idle: whatever is missing was taken by one that was stopped.
    """

    tasks: Mapping[tuple[int, int], Decoding | None]
    is_idle: bool = False


@dataclass(slots=True)
class PendingBatch:
    """A batch in progress.

    Attributes:
        slot: the memory of its rows; None where nothing has a fixed shape, and of a whole batch.
        chunks: the chunks, first row to the row after the last one.
        missing: the first rows of the chunks that are not loaded yet.
        unread: the answers of workers that were not read yet, by first row.
        whole: the batch, where a worker has collated it, which `is_whole` requests.
        error: the error of its first chunk that failed.
    """

    number: int
    partial: PartialBatch
    slot: Slot | None
    chunks: Mapping[int, int]
    missing: set[int] = field(default_factory=set)
    unread: dict[int, Unread] = field(default_factory=dict)
    whole: Batch | None = None
    error: Exception | None = None
    is_whole: bool = False
    learned: Mapping[str, Layout] = field(default_factory=dict)
    stuck: frozenset[tuple[int, int]] = frozenset()

    def __post_init__(self) -> None:
        self.missing = set(self.chunks)

    @property
    def has_rows(self) -> bool:
        """Whether a row is left: of a batch that is loaded, and not as a whole."""
        self.read()
        return any(chunk.kept.any() for chunk in self.partial.chunks.values())

    def read(self) -> Batch | None:
        """Unpickle the answers, once all are there; the batch, where a worker has collated it."""
        for start in list(self.unread):
            value = self.unread.pop(start).read()
            if self.is_whole:
                self.whole = value
            else:
                self.partial.chunks[start] = value
                for name, column in value.columns[0].items() if value.columns else ():
                    if isinstance(column, PackedFiles) and column.buffer is None:
                        rows = self.partial.learned[name][start : self.chunks[start]]
                        column.buffer = rows.reshape(-1)
        return self.whole

    def task(self, run: int, start: int, *, is_again: bool = False) -> Task:
        """The task that loads the chunk from row `start` on, the first time or again."""
        request = self.partial.request
        if not self.is_whole:
            ids = request.ids[start : self.chunks[start]]
            request = BatchRequest(request.epoch, request.step, ids)
        return Task(
            run,
            self.number,
            start,
            request,
            len(self.partial.request.ids),
            -1 if self.slot is None else self.slot.number,
            {} if self.slot is None else self.learned,
            whole=self.is_whole,
            one_by_one=is_again,
            stuck=self.stuck,
        )

    def fail(self, start: int, error: Exception) -> None:
        """Keep the error of a chunk: raised when the batch is the oldest one, as their order is."""
        self.error = error
        # The error of the first chunk is raised: chunks after this one are not needed.
        self.missing = {other for other in self.missing if other < start}


def take_answer(answer: Answer, pending: Mapping[int, PendingBatch]) -> None:
    """Add an answer to the batch that it belongs to."""
    batch = pending.get(answer.batch)
    if batch is None or answer.start not in batch.missing:
        return  # of an iterator that was given up, or after an error
    batch.missing.discard(answer.start)
    if answer.error is not None:
        batch.fail(answer.start, unpack_error(answer.error))
    else:
        batch.unread[answer.start] = answer.value
