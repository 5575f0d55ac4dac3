"""The reference executor: every batch is made when it is asked for, in the caller's thread."""

from __future__ import annotations

from collections.abc import Generator, Iterator

from shardwise.engine.batch.builder import BatchMaker
from shardwise.engine.concurrency import Hands
from shardwise.engine.request import Batch, Work

__all__ = ["InlineExecutor"]


class InlineExecutor:
    """Makes batches one after the other; all other executors give the same bytes."""

    def __init__(self, maker: BatchMaker) -> None:
        self.maker = maker

    @property
    def hands(self) -> Hands:
        """The caller's own."""
        return Hands("inline")

    def run(self, works: Iterator[Work]) -> Generator[Batch, None, None]:
        """Yield one batch for each work."""
        for work in works:
            batch = self.maker.make(work)
            batch.num_ready = 0
            yield batch

    def close(self) -> None:
        """There is nothing to give back."""
