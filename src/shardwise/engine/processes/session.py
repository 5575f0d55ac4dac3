"""A session: the worker processes and the shared memory of an executor that runs."""

from __future__ import annotations

import itertools
import os
import weakref
from typing import Any

from numpy.typing import NDArray

from shardwise.base.columns import Layout
from shardwise.base.errors import WorkerError
from shardwise.engine.batch.builder import BatchBuilder
from shardwise.engine.batch.chunks import PartialBatch
from shardwise.engine.processes.shared_memory import RowLayout, learned_layout
from shardwise.engine.processes.slots import Slot, SlotPool
from shardwise.engine.processes.worker_pool import WorkerPool
from shardwise.engine.request import Batch
from shardwise.engine.thread_pool import ThreadPool

# For what the helper thread does now: putting one batch together.
END_TIMEOUT_S = 5.0


class Session:
    """The processes and the memory of an executor, their owner, with which they end.

    `max_idle` slots are kept for later batches.
    """

    def __init__(
        self, owner: object, builder: BatchBuilder, pool: WorkerPool, max_idle: int
    ) -> None:
        self.pid = os.getpid()
        self.pool = pool
        self.has_begun = False
        # The newest run, and the numbers of batches; none is used again.
        self.run_number = 0
        self.batch_numbers = itertools.count()
        # Makes the batches of one run after the other, beside the caller's thread.
        self.helper = ThreadPool(1, name="shardwise_finish")
        # A loader that is dropped, and the interpreter's end, end the thread and the processes.
        self._end = weakref.finalize(owner, _end, self.pid, self.pool, self.helper)
        self.layout = builder.layout
        self.learned: dict[str, Layout] = {}
        # A collate of the user's, and padding, make new columns: nothing to learn.
        self._is_learned = builder.collate is not None or builder.ragged.ragged == "pad"
        self.slots = SlotPool(max_idle=max_idle)

    @property
    def is_open(self) -> bool:
        """Whether the processes have not been ended, by anyone."""
        return self._end.alive

    def require_usable(self) -> None:
        """Refuse a forked process, and the end of the processes."""
        if self.pid != os.getpid():
            raise WorkerError(
                f"process {os.getpid()} was forked from process {self.pid}, whose worker processes "
                "build the batches of this iterator: begin a new one here, for which this process "
                "starts workers of its own"
            )
        if not self.is_open:
            raise RuntimeError(
                "the loader was closed while it was iterated, or the program has ended"
            ) from None

    def learn(self, batch: Batch) -> None:
        """Let such columns of the first batch lie in the memory of the next ones."""
        if not self._is_learned and batch.num_rows:
            self._is_learned = True
            self.learned = learned_layout(batch.data, self.layout)

    def views(self, num_rows: int) -> tuple[Slot | None, dict[str, NDArray[Any]]]:
        """Memory for a batch, and its rows in it; no slot where nothing has a fixed shape."""
        layout = RowLayout({**self.layout, **self.learned})
        if not layout.fields or num_rows == 0:
            return None, layout.empty()
        slot = self.slots.take(layout.num_bytes(num_rows))
        return slot, layout.views(self.slots.lend(slot), num_rows)

    def make_lasting(self, partial: PartialBatch) -> bool:
        """Copy a batch that the user may keep where slots are scarce; returns whether it did."""
        is_scarce = self.slots.is_scarce
        if is_scarce:
            partial.rows = {name: rows.copy("K") for name, rows in partial.rows.items()}
            partial.learned = {name: rows.copy() for name, rows in partial.learned.items()}
        return is_scarce

    def close(self) -> None:
        """End the processes and give the idle memory back."""
        if self.pid != os.getpid():
            return  # a thread of the parent's may have held the lock of the slots
        self._end()
        self.slots.close()


def _end(pid: int, pool: WorkerPool, helper: ThreadPool) -> None:
    # A forked child does not own the processes.
    if pid == os.getpid():
        # First the thread, which uses the descriptors: their numbers may be another's afterwards.
        pool.wake()
        helper.close(timeout_s=END_TIMEOUT_S)
        pool.close()
