"""What travels through the engine: work, batches, and the protocols of those who handle them.

A `Work` names one batch completely; making it is a pure function (I5), so that any executor may
make it anywhere, in pieces, in any order. Imports numpy only.
"""

from __future__ import annotations

from collections.abc import Generator, Iterator
from dataclasses import dataclass, field
from typing import Any, Protocol

import numpy as np
from numpy.typing import NDArray

from shardwise.engine.concurrency import Hands
from shardwise.engine.stats.stages import Stages

__all__ = ["Batch", "Executor", "Work"]


@dataclass(frozen=True, slots=True)
class Work:
    """One batch to make, or several that are made at a time.

    Attributes:
        epoch: the epoch, which keys the randomness of transforms.
        step: the step of this epoch on this rank; for messages.
        ids: int64 `[rows]`, the sample ids in the batch's order.
        valid: bool `[rows]`, False where a row repeats a sample to pad; None without padding.
        sizes: the rows of each batch, where there are several, of following steps.
    """

    epoch: int
    step: int
    ids: NDArray[np.int64]
    valid: NDArray[np.bool_] | None = None
    sizes: tuple[int, ...] = ()


@dataclass(slots=True)
class Batch:
    """A batch that is made, and what making it cost.

    Attributes:
        data: what the user gets: a dict of arrays and lists, or what the user's collate returned.
        num_rows: samples in it.
        num_skipped: rows left out because of errors.
        num_replaced: rows whose sample was replaced because of errors.
        stages: seconds, rows and bytes by stage.
        pieces: the ids of each piece, int64, and the seconds that loading it took.
        num_ready: batches that could be had without waiting when this one was asked for, itself
            among them; None where it was the first one.
        parts: the batches, where the work was several; then this one is empty itself.
    """

    data: Any
    num_rows: int
    num_skipped: int = 0
    num_replaced: int = 0
    stages: Stages = field(default_factory=Stages)
    pieces: list[tuple[NDArray[np.int64], float]] = field(default_factory=list)
    num_ready: int | None = None
    parts: list[Batch] = field(default_factory=list)


class Executor(Protocol):
    """Makes batches out of work, in the order of the work.

    `run` may be called again after an earlier iterator ended, was closed, or was dropped. Closing
    the iterator gives up what is under way. `close` ends threads and processes; a later `run`
    starts them again.
    """

    @property
    def hands(self) -> Hands:
        """Who makes the batches, and how many of them."""
        ...

    def run(self, works: Iterator[Work]) -> Generator[Batch, None, None]:
        """Yield one batch for each work, in order; an error is raised in its batch's place."""
        ...

    def close(self) -> None:
        """Give back threads, processes and memory."""
        ...
