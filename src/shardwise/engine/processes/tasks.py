"""The messages between trainer and worker: a task, its answer, and that a worker was stopped.

What is pickled for each chunk is a named tuple: a frozen dataclass with slots takes 20 µs more.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, NamedTuple

from shardwise.base.columns import Layout
from shardwise.engine.processes.worker_status import Decoding
from shardwise.engine.request import BatchRequest

# The batch in the answer of a worker that ends: it could not start, or could not receive a task.
START_FAILED, RECEIVE_FAILED = -1, -2


class Task(NamedTuple):
    """A row chunk to load.

    Attributes:
        run: the number of the iterator that it is for.
        batch: the number of the batch in this pool, never used again.
        start: the chunk's first row in the batch.
        request: the ids of the chunk alone.
        num_rows: rows of the whole batch, which set the offsets of its fields in the slot.
        slot: the slot's number, -1 without one.
        learned: shape and dtype of a row, for columns that are written into the slot if they fit.
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
            Where `is_idle`, no worker: no chunk is known, and all that are missing are lost.
        is_idle: all workers are idle: whatever is missing was taken by one that was stopped.
    """

    tasks: Mapping[tuple[int, int], Decoding | None]
    is_idle: bool = False
