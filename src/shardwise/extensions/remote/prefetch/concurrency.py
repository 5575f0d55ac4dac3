"""Adaptive concurrency of prefetching: how many requests in flight, and how far ahead.

A store may be limited by the network, which all replies share, or by each reply, so that several
are faster than one; no measured rate tells which. So while readers wait, the concurrency is doubled
on trial, and kept if throughput rises; and halved on trial, and kept if it does not fall.
"""

from __future__ import annotations

import time
from collections import deque
from collections.abc import Callable
from typing import NamedTuple

# 8 to 64 MiB a request, shorter with more concurrency.
MIN_REQUEST_BYTES, _MAX_REQUEST_BYTES = 8 << 20, 64 << 20

# Stay two round trips (at least 32 MiB) ahead, so that the next reply starts before the last is
# used up.
_ROUND_TRIPS_AHEAD = 2
_MIN_LEAD_BYTES = 32 << 20
# Measure throughput over 4 blocks, 2 more per concurrent request, and at least 0.25 s.
_BLOCKS, _BLOCKS_PER_REQUEST = 4, 2
_MIN_SAMPLE_S = 0.25
# Keep the doubled concurrency if throughput rose by 25 %; keep the halved one if it fell by less
# than 10 %.
_MIN_RISE, _MAX_FALL = 1.25, 0.9
# After a failed trial, skip 4 measurements, then twice as many each time.
_FIRST_REST, _LONGEST_REST = 4, 256
# Rest 4 times longer after a failed halving: it gains little, and is slow while it is tried.
_HALVING_REST = 4
_HEADS = 64
# Large stores give a reply 50 to 100 MB/s: 4 have that from the first second, where finding them by
# trials from 1 on takes 4 s. Replies that share a line are as fast as fewer.
_FIRST_REQUESTS = 4


class PrefetchTarget(NamedTuple):
    """How much to prefetch before a reader.

    Attributes:
        num_requests: in flight at a time; one more may be.
        request_bytes: the length of each.
        ahead_bytes: requested and unread bytes, in all.
    """

    num_requests: int
    request_bytes: int
    ahead_bytes: int


class AdaptiveConcurrency:
    """Finds the best concurrency from the arriving blocks of files that are read in sequence.

    Args:
        max_bytes: bounds `ahead_bytes`.
        max_requests: bounds `num_requests`.
        clock: gives seconds.
    """

    def __init__(
        self,
        max_bytes: int,
        max_requests: int,
        *,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._max_bytes = max_bytes
        self._most_requests = max(1, min(max_requests, max_bytes // MIN_REQUEST_BYTES))
        self._num_requests = min(_FIRST_REQUESTS, self._most_requests)
        self._clock = clock
        # Seconds to the first byte: the least of them is the round trip.
        self._heads: deque[float] = deque(maxlen=_HEADS)
        self._rate = 0.0
        self._begin_sample()
        # Samples in a row during which a reader waited.
        self._num_starved = 0
        # The concurrency and the rate before a trial.
        self._before: tuple[int, float] | None = None
        # Bytes still due from requests started before the last change; not measured.
        self._old_bytes = 0
        self._is_doubling_next = True
        # Samples without a trial, now and after the next failed trial.
        self._rest = 0
        self._next_rest = _FIRST_REST

    @property
    def target(self) -> PrefetchTarget:
        """The best known concurrency."""
        latency_s = min(self._heads, default=0.0)
        lead = max(_MIN_LEAD_BYTES, int(_ROUND_TRIPS_AHEAD * latency_s * self._rate))
        lead = min(lead, self._max_bytes // 2)
        request_bytes = max(MIN_REQUEST_BYTES, (self._max_bytes - lead) // self._num_requests)
        request_bytes = min(request_bytes, _MAX_REQUEST_BYTES, self._max_bytes // 2)
        ahead_bytes = min(self._max_bytes, lead + self._num_requests * request_bytes)
        return PrefetchTarget(self._num_requests, request_bytes, ahead_bytes)

    def note_waiting_reader(self) -> None:
        """Note that a reader waits for a requested block although the target is met."""
        self._is_starved = True

    def add(self, num_bytes: int, head_s: float) -> None:
        """Count a block that arrived now, of a reply whose first byte took `head_s` seconds."""
        self._heads.append(head_s)
        if self._old_bytes > 0:
            self._old_bytes -= num_bytes
            self._begin_sample()
            return
        self._num_bytes += num_bytes
        self._num_blocks += 1
        seconds = self._clock() - self._since
        min_blocks = _BLOCKS + _BLOCKS_PER_REQUEST * self._num_requests
        if seconds < _MIN_SAMPLE_S or self._num_blocks < min_blocks:
            return
        self._rate = self._num_bytes / seconds
        self._num_starved = self._num_starved + 1 if self._is_starved else 0
        self._end_trial()
        self._begin_sample()

    def _begin_sample(self) -> None:
        self._since, self._num_bytes, self._num_blocks = self._clock(), 0, 0
        self._is_starved = False

    def _end_trial(self) -> None:
        if self._before is not None:
            (num_requests, rate), self._before = self._before, None
            if self._rate >= rate * (_MIN_RISE if self._num_requests > num_requests else _MAX_FALL):
                self._next_rest = _FIRST_REST
            else:
                self._change(num_requests)
                self._is_doubling_next = not self._is_doubling_next
                self._rest = self._next_rest * (1 if self._is_doubling_next else _HALVING_REST)
                self._next_rest = min(2 * self._next_rest, _LONGEST_REST)
        if self._rest:
            self._rest -= 1
        elif self._num_starved > 1:
            # The first sample may include the start.
            self._begin_trial()

    def _begin_trial(self) -> None:
        is_doubling = self._is_doubling_next or self._num_requests == 1
        num_requests = 2 * self._num_requests if is_doubling else self._num_requests // 2
        if num_requests <= self._most_requests:
            self._before = (self._num_requests, self._rate)
            self._change(num_requests)
        else:
            self._is_doubling_next = False

    def _change(self, num_requests: int) -> None:
        target = self.target
        self._old_bytes = target.num_requests * target.request_bytes
        self._num_requests = num_requests
