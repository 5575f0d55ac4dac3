"""The requests that an executor gets in an epoch: the plan's ids by step, small batches coalesced.

Where reading is all that a sample costs, building a batch takes less time than handing it to a
worker. So the batches of following steps are loaded together and split again. Each holds what it
would have held alone (I5): they are collated one by one. The reads of requests are announced to
storage before executors take them.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Generator, Iterable, Iterator
from contextlib import closing, suppress
from itertools import chain, count, islice

import numpy as np

from shardwise.base.abilities import having
from shardwise.base.errors import DataError, StorageError
from shardwise.engine.batch.chunks import light_rows
from shardwise.engine.request import Batch, BatchRequest, Executor
from shardwise.plan import Plan
from shardwise.sources.samples import Samples, TellsRanges
from shardwise.storage import PoolRanges, Upcoming

# Ids of many steps are computed in one numpy call, which costs as much as some thousand ids.
_MAX_BLOCK = 65_536


def epoch_requests(
    plan: Plan, *, epoch: int, rank: int, first_step: int = 0, stride: int = 1
) -> Iterator[BatchRequest]:
    """Yield the requests of steps first_step, first_step + stride, ... of an epoch on one rank."""
    steps = range(first_step, plan.num_steps, stride)
    padded = plan.remainder == "pad"
    # Few at first, so that the first batch is not late.
    num_steps = 1
    at = 0
    while at < len(steps):
        block = steps[at : at + num_steps]
        batches = plan.batches(epoch, block, rank)
        for step, (ids, valid) in zip(block, batches, strict=True):
            yield BatchRequest(epoch, step, ids, valid if padded else None)
        at += len(block)
        num_steps = max(1, min(num_steps * 4, _MAX_BLOCK // plan.rows_dealt))


def num_coalesced(samples: Samples, batch_size: int, *, in_order: bool = True) -> int:
    """The number of batches of this size worth loading by one request; 1 for one by one.

    Out of order, each sample of a store is a request: no batch should wait for another's.
    """
    rows = light_rows(samples)
    if rows is None or (samples.cost.random_reads_are_requests and not in_order):
        return 1
    return max(1, rows // batch_size)


def coalesced_batches(
    executor: Executor, requests: Iterator[BatchRequest], size: int
) -> Generator[Batch, None, None]:
    """Yield one batch for each request, in order; the executor loads `size` of them together.

    An error is raised in place of its batch, after the batches before it. If it has a cause, its
    traceback starts here: a user wants to see the cause's.
    """
    try:
        yield from _batches(executor, requests, size)
    except DataError as error:
        if error.__cause__ is None:
            raise
        raise error.with_traceback(None)  # noqa: B904 - it is the same error


def _batches(
    executor: Executor, requests: Iterator[BatchRequest], size: int
) -> Generator[Batch, None, None]:
    if size <= 1:
        yield from executor.run(requests)
        return
    pending: deque[list[BatchRequest]] = deque()
    try:
        with closing(executor.run(_coalesce_requests(requests, size, pending))) as batches:
            for batch in batches:
                pending.popleft()
                yield from _parts(batch)
    except (DataError, StorageError):
        # Other errors belong to no sample: a worker's end, a stall, a loader that was closed.
        if not pending or len(pending[0]) == 1:
            raise
    if pending:
        # One of the requests raises again, alone, unless the cause was transient.
        yield from executor.run(iter(pending.popleft()))
        yield from _batches(executor, chain(*pending, requests), size)


def _coalesce_requests(
    requests: Iterator[BatchRequest], size: int, pending: deque[list[BatchRequest]]
) -> Generator[BatchRequest, None, None]:
    """Join requests, few at first so that the first batch is not late; list them in `pending`."""
    count = 1
    while some := list(islice(requests, count)):
        pending.append(some)
        yield _join_requests(some) if len(some) > 1 else some[0]
        count = min(size, 2 * count)


def _join_requests(requests: list[BatchRequest]) -> BatchRequest:
    valid = [request.valid for request in requests if request.valid is not None]
    return BatchRequest(
        requests[0].epoch,
        requests[0].step,
        np.concatenate([request.ids for request in requests]),
        np.concatenate(valid) if valid else None,
        sizes=tuple(len(request.ids) for request in requests),
    )


def _parts(batch: Batch) -> list[Batch]:
    """The batches of a coalesced one; only the first can have made the caller wait."""
    if not batch.parts:
        return [batch]
    for part in batch.parts[:-1]:
        part.is_next_ready = lambda: True
    batch.parts[-1].is_next_ready = batch.is_next_ready
    if batch.num_ready is not None:
        num_parts = len(batch.parts)
        for number, part in enumerate(batch.parts):
            is_waited_for = not number and not batch.num_ready
            others = max(0, batch.num_ready - 1) * num_parts
            part.num_ready = 0 if is_waited_for else others + num_parts - number
    return batch.parts


# If rows share what is read, such as row groups, few requests announce bytes.
_MAX_WAITING = 1024
# Of so many requests that are not announced, one is looked at.
_LOOKED_AT = 16


class ReadAhead(Iterator[BatchRequest]):
    """Takes requests ahead of their executor, as many as storage has room for.

    Args:
        requests: in order.
        reads: announces them.
    """

    def __init__(self, requests: Iterator[BatchRequest], reads: RequestReads) -> None:
        self._requests = requests
        self._reads = reads
        self._waiting: deque[BatchRequest] = deque()
        # The first request is read at once, and the next few are announced first, so that the first
        # batches are not late.
        self._most = 0
        self._error: Exception | None = None

    def __next__(self) -> BatchRequest:
        while len(self._waiting) < self._most and self._reads.want_more:
            request = self._next()
            if request is None:
                break
            self._reads.announce(request)
            self._waiting.append(request)
        self._most = min(max(1, 2 * self._most), _MAX_WAITING)
        request = self._waiting.popleft() if self._waiting else self._next()
        if request is None:
            raise StopIteration
        self._reads.watch(request)
        return request

    def _next(self) -> BatchRequest | None:
        try:
            return None if self._error else next(self._requests, None)
        except Exception as error:  # noqa: BLE001 - raised by `raise_error`
            self._error = error
            return None

    def raise_error(self) -> None:
        """Raise the sampler's error, which ended the requests: after the batches before it."""
        error, self._error = self._error, None
        if error is not None:
            raise error

    def finish(self, request: BatchRequest) -> None:
        self._reads.finish(request)

    def close(self) -> None:
        self._reads.close()


class RequestReads:
    """The reads of requests, announced from when they are known until they are finished.

    Args:
        samples: what is read.
        seed: keys the randomness of samples, which may decide what is read.
        cached: see `Upcoming`.
    """

    def __init__(self, samples: Samples, seed: int, *, cached: bool | None = None) -> None:
        self._num_samples = len(samples)
        self._samples = having(samples, TellsRanges)
        self._seed = seed
        self._upcoming = Upcoming(cached=cached)
        self._numbers = count()

    @property
    def want_more(self) -> bool:
        """Whether storage would fetch more."""
        upcoming = self._upcoming
        return self._samples is not None and upcoming.has_room and not upcoming.is_needless

    def announce(self, request: BatchRequest) -> None:
        if self._upcoming.is_needless:
            self.watch(request)
            return
        with suppress(DataError, StorageError):  # its reader meets it
            reads = self._ranges(request)
            if reads is not None and not self._upcoming.announce(_key(request), reads):
                self._samples = None  # none of its reads is announced here

    def watch(self, request: BatchRequest) -> None:
        """Look at the first request, and then at some of those that are not announced.

        Caches may lack blocks of the first, which is read at once, and parts of a dataset may be
        read through other caches than its first requests, or through none.
        """
        number = next(self._numbers)
        if not number or (number % _LOOKED_AT == 0 and self._upcoming.is_needless):
            with suppress(DataError, StorageError):
                self._upcoming.watch(self._ranges(request) or ())

    def _ranges(self, request: BatchRequest) -> Iterable[PoolRanges] | None:
        samples, ids = self._samples, request.ids
        if samples is None or not ((ids >= 0) & (ids < self._num_samples)).all():
            return None
        reads = samples.ranges(ids, epoch=request.epoch, seed=self._seed)
        if reads is None:
            self._samples = None  # none of its reads can be announced
        return reads

    def finish(self, request: BatchRequest) -> None:
        self._upcoming.finish(_key(request))

    def close(self) -> None:
        self._upcoming.close()


def _key(request: BatchRequest) -> tuple[int, int, int]:
    # Several chunks of a step may be announced by one worker.
    return request.epoch, request.step, id(request)
