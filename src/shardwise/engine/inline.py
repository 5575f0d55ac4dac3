"""The reference executor: every batch is built on demand, in the caller's thread."""

from __future__ import annotations

from collections.abc import Generator, Iterator
from dataclasses import dataclass

from shardwise.engine.batch.builder import BatchBuilder
from shardwise.engine.request import Batch, BatchRequest, Concurrency


@dataclass(eq=False)
class InlineExecutor:
    """Builds batches one after the other; all other executors give the same bytes."""

    builder: BatchBuilder

    @property
    def concurrency(self) -> Concurrency:
        return Concurrency("inline")

    def run(self, requests: Iterator[BatchRequest]) -> Generator[Batch, None, None]:
        with self.builder.read_ahead(requests) as ahead:
            for request in ahead:
                batch = self.builder.build(request)
                ahead.finish(request)
                batch.num_ready = 0
                yield batch

    def close(self) -> None:
        """There is nothing to give back."""
