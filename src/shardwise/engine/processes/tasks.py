"""What trainer and worker say to each other: a piece to make, and the piece that was made."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from shardwise.columns import Layout
from shardwise.engine.request import Work

__all__ = ["UNABLE", "UNBEGUN", "Answer", "Task"]

# What stands for the batch in an answer of a worker that ends: it could not begin, or go on.
UNBEGUN, UNABLE = -1, -2


@dataclass(frozen=True, slots=True)
class Task:
    """A piece of a batch to make.

    Attributes:
        run: the iterator that wants it.
        batch: the number of the batch in this pool, never used again.
        start: the piece's first row in the batch.
        work: the ids of the piece alone.
        num_rows: rows of the whole batch, which say where its fields lie in the slot.
        slot: the slot's number, -1 without one.
        slot_bytes: its size.
        spare: shape and dtype of a row, for columns that are put into the slot where they fit.
        whole: make and collate the whole batch, which is this piece.
    """

    run: int
    batch: int
    start: int
    work: Work
    num_rows: int
    slot: int = -1
    slot_bytes: int = 0
    spare: Mapping[str, Layout] = field(default_factory=dict)
    whole: bool = False


@dataclass(frozen=True, slots=True)
class Answer:
    """A piece that was made, or the pickled error it raised."""

    batch: int
    start: int
    worker: int
    value: Any = None
    error: bytes | None = None
