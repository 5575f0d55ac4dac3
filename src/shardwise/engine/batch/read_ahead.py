"""The requests of one run, whose reads are announced to storage before executors take them."""

from __future__ import annotations

from collections import deque
from collections.abc import Iterator
from types import TracebackType
from typing import Self

from shardwise.base.abilities import having
from shardwise.base.errors import DataError, StorageError
from shardwise.engine.request import BatchRequest
from shardwise.sources.samples import Samples, TellsRanges
from shardwise.storage import Upcoming

# If rows share what is read, such as row groups, few requests announce bytes.
_MAX_WAITING = 1024


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

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, _: TracebackType | None
    ) -> None:
        self.close()

    def __next__(self) -> BatchRequest:
        while len(self._waiting) < self._most and self._reads.want_more:
            request = next(self._requests, None)
            if request is None:
                break
            self._reads.announce(request)
            self._waiting.append(request)
        self._most = min(max(1, 2 * self._most), _MAX_WAITING)
        return self._waiting.popleft() if self._waiting else next(self._requests)

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

    @property
    def want_more(self) -> bool:
        """Whether storage would fetch more."""
        return self._samples is not None and self._upcoming.has_room

    def announce(self, request: BatchRequest) -> None:
        samples, ids = self._samples, request.ids
        if samples is None or not ((ids >= 0) & (ids < self._num_samples)).all():
            return
        try:
            reads = samples.ranges(ids, epoch=request.epoch, seed=self._seed)
            if reads is None or not self._upcoming.announce(_key(request), reads):
                self._samples = None  # none of its reads is announced here
        except (DataError, StorageError):
            return

    def finish(self, request: BatchRequest) -> None:
        self._upcoming.finish(_key(request))

    def close(self) -> None:
        self._upcoming.close()


def _key(request: BatchRequest) -> tuple[int, int, int]:
    # Several chunks of a step may be announced by one worker.
    return request.epoch, request.step, id(request)
