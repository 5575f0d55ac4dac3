"""The data that the engine passes on, requests and batches, and the protocols around them.

A `BatchRequest` names one batch completely; building it is a pure function (I5), so that any
executor may build it anywhere, in chunks, in any order.
"""

from __future__ import annotations

from collections.abc import Callable, Generator, Iterator
from dataclasses import dataclass, field
from typing import Any, Protocol, runtime_checkable

import numpy as np
from numpy.typing import NDArray

from shardwise.base.counters import Stages


@dataclass(frozen=True, slots=True)
class BatchRequest:
    """One batch to build, or several that are coalesced.

    Attributes:
        epoch: the epoch, which keys the randomness of transforms.
        step: the step of this epoch on this rank; for messages.
        ids: int64 `[rows]`, the sample ids in the batch's order.
        valid: bool `[rows]`, False where a row repeats a sample to pad; None without padding.
        sizes: the rows of each batch, where several of following steps are coalesced.
    """

    epoch: int
    step: int
    ids: NDArray[np.int64]
    valid: NDArray[np.bool_] | None = None
    sizes: tuple[int, ...] = ()

    def __reduce__(self) -> Any:
        """Pickle in a tenth of the time of a frozen dataclass: one goes with each chunk."""
        valid = self.valid if self.valid is None else self.valid.tobytes()
        return _request_of, (self.epoch, self.step, self.ids.tobytes(), valid, self.sizes)


def _request_of(epoch: int, step: int, ids: bytes, valid: bytes | None, sizes: Any) -> BatchRequest:
    flags = valid if valid is None else np.frombuffer(bytearray(valid), np.bool_)
    return BatchRequest(epoch, step, np.frombuffer(bytearray(ids), np.int64), flags, sizes)


_EMPTY = np.empty(0, dtype=np.int64)


def _no_ids() -> NDArray[np.int64]:
    return _EMPTY


@dataclass(frozen=True, slots=True)
class BatchRows:
    """The samples of a batch, for the account of what was returned; without padding.

    Attributes:
        ids: int64 `[k]`, the samples that were requested and are in the batch.
        skipped: int64 `[k]`, those that were requested and left out because of errors.
        replaced: int64 `[k]`, those that were requested and have a substitute in their row.
        num_padded: rows that only fill the batch.
    """

    ids: NDArray[np.int64] = field(default_factory=_no_ids)
    skipped: NDArray[np.int64] = field(default_factory=_no_ids)
    replaced: NDArray[np.int64] = field(default_factory=_no_ids)
    num_padded: int = 0


class BatchMemory(Protocol):
    """Memory that batches lie in one after another, as long as it is mapped.

    Attributes:
        memory: uint8 `[num_bytes]`.
        before_unmap: called before the memory is unmapped, in whichever thread drops it.
    """

    memory: NDArray[np.uint8]
    before_unmap: list[Callable[[], None]]


@dataclass(slots=True)
class Batch:
    """A batch, and what building it cost.

    Attributes:
        data: a dict of arrays and lists, or what the user's collate returned.
        num_rows: samples in it.
        num_skipped, num_replaced: rows, because of errors.
        num_on_device, num_on_cpu: images of fields with `decode_on`, by where they were decoded.
        rows: the samples of the batch, and the outcome of the requested ones.
        stages: seconds, rows and bytes by stage.
        chunks: the ids of each chunk, int64, and the seconds that loading it took.
        spans: for each chunk, the start and end of its loading and its thread; none from servers.
        num_ready: batches that were ready when this one was requested, itself among them; None for
            the first one.
        parts: the batches of a coalesced request; then this one is empty itself.
        memory: the reused memory that its arrays of a fixed shape lie in; None for memory of its
            own.
        is_prepared: whether the builder's `prepare` was called with it.
        is_next_ready: returns whether the next batch can be had without waiting; None where nothing
            is made ahead.
        num_bytes: about how much memory its data take, as the thread that finished it measured.
    """

    data: Any
    num_rows: int
    num_skipped: int = 0
    num_replaced: int = 0
    num_on_device: int = 0
    num_on_cpu: int = 0
    rows: BatchRows = field(default_factory=BatchRows)
    stages: Stages = field(default_factory=Stages)
    chunks: list[tuple[NDArray[np.int64], float]] = field(default_factory=list)
    spans: list[tuple[float, float, int]] = field(default_factory=list)
    num_ready: int | None = None
    parts: list[Batch] = field(default_factory=list)
    memory: BatchMemory | None = None
    is_prepared: bool = False
    is_next_ready: Callable[[], bool] | None = None
    num_bytes: int | None = None


@runtime_checkable
class Executor(Protocol):
    """Builds the batches of one loader, in the order of its requests.

    The loader makes it by calling `executor=` with a `BatchBuilder`, whose `build` turns a request
    into a batch: anywhere, at any time, in any order. `shardwise.testing.check_executor` holds an
    executor to this contract.
    """

    @property
    def concurrency(self) -> Concurrency:
        """The processes and threads that build the batches."""
        ...

    def run(self, requests: Iterator[BatchRequest]) -> Generator[Batch, None, None]:
        """Yield one batch for each request, in order.

        It is a generator: nothing starts before the first `next`, and requests are taken as they
        are needed, a bounded number ahead. Closing it gives up the batches in progress. It may be
        called again after an earlier one ended, failed or was closed.

        Raises:
            Exception: what building a batch raised, in that batch's place, after those before it.
            WorkerError: a worker process ended. The next run starts others.
        """
        ...

    def close(self) -> None:
        """End threads and processes and return memory; a later `run` starts them again."""
        ...


@dataclass(frozen=True, slots=True)
class Concurrency:
    """The processes and threads that build batches.

    Attributes:
        executor: for `loader.stats()`: "inline", "threads", "processes", "service" or "shared".
        num_workers: worker processes; 0 without any.
        num_threads: threads that load in each process; 0 where the caller's own thread does; of a
            service, its servers.
        num_prefetch: batches that are ready or in progress at most; 0 without prefetch.
        collate: whether they collate side by side; else one thread at a time does.
        next_executor: the executor that takes over from this one; "" for none.
    """

    executor: str
    num_workers: int = 0
    num_threads: int = 0
    num_prefetch: int = 0
    collate: bool = False
    next_executor: str = ""

    @property
    def count(self) -> int:
        """Threads that load side by side, over all processes; the caller's own counts as one."""
        return max(1, self.num_workers) * max(1, self.num_threads)

    def __str__(self) -> str:
        if self.executor == "service":
            return f"{self.num_threads} batch server" + "s" * (self.num_threads != 1)
        if self.executor == "shared":
            return "another rank"
        if not self.num_workers and not self.num_threads:
            return "the caller's thread"
        threads = f"{self.num_threads} thread" + "s" * (self.num_threads != 1)
        if not self.num_workers:
            return threads
        processes = f"{self.num_workers} process" + "es" * (self.num_workers != 1)
        return processes if self.num_threads <= 1 else f"{processes} of {threads}"
