"""Counters: seconds by stage of a batch, and what the storage layer did in this process.

What decoders of media spend in "demux" and "convert" is counted by a context variable, so that each
thread counts its own, and decoders need no argument for it.
"""

from __future__ import annotations

import os
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from contextvars import ContextVar, Token
from dataclasses import dataclass, field


@dataclass(slots=True)
class Stages:
    """Sums by stage ("read", "decode", "transform", "collate"); not shared between threads.

    Decoders of media count "demux" and "convert" apart from "decode": the three have no second
    in common.

    Attributes:
        seconds: busy seconds by stage, summed over threads.
        num_bytes: bytes read from storage.
        cpu_s: busy seconds in which loading had a core; less where it waited for storage, for
            the GIL or for a core.
        storage: counts of a worker process's remote storage, by name.
        missing: by field, samples that lack it.
    """

    seconds: dict[str, float] = field(default_factory=dict)
    num_bytes: int = 0
    cpu_s: float = 0.0
    storage: dict[str, int] = field(default_factory=dict)
    missing: dict[str, int] = field(default_factory=dict)

    def add(self, stage: str, seconds: float, num_bytes: int = 0) -> None:
        self.seconds[stage] = self.seconds.get(stage, 0.0) + seconds
        self.num_bytes += num_bytes

    def merge(self, other: Stages) -> None:
        for stage, seconds in other.seconds.items():
            self.add(stage, seconds)
        self.num_bytes += other.num_bytes
        self.cpu_s += other.cpu_s
        for own, counts in ((self.storage, other.storage), (self.missing, other.missing)):
            for name, count in counts.items():
                own[name] = own.get(name, 0) + count

    def share(self, start: int, stop: int, num_rows: int) -> Stages:
        """The part of rows [start, stop), if all rows took as long; counts add up."""

        def whole(count: int) -> int:
            return count * stop // num_rows - count * start // num_rows

        part = (stop - start) / num_rows
        return Stages(
            {stage: seconds * part for stage, seconds in self.seconds.items()},
            whole(self.num_bytes),
            self.cpu_s * part,
            {name: whole(count) for name, count in self.storage.items()},
            {name: whole(count) for name, count in self.missing.items()},
        )

    def total(self) -> float:
        """Busy seconds of all stages."""
        return sum(self.seconds.values())


@dataclass(slots=True, eq=False)
class StageSeconds:
    """Counts, while it is entered, what this thread spends in stages of decoding.

    One that is entered inside another has its seconds to itself; a paused one counts nothing.
    """

    seconds: dict[str, float] = field(default_factory=dict)
    is_paused: bool = False
    _outer: Token[StageSeconds | None] = field(init=False)

    def __enter__(self) -> StageSeconds:
        self._outer = _COUNTED.set(self)
        return self

    def __exit__(self, *exc_info: object) -> None:
        _COUNTED.reset(self._outer)


_COUNTED: ContextVar[StageSeconds | None] = ContextVar("shardwise_stage_seconds", default=None)


@contextmanager
def spent_in(stage: str) -> Iterator[None]:
    """Count the seconds of a block, or of a function that it decorates; blocks are not nested."""
    counted = _COUNTED.get()
    if counted is None or counted.is_paused:
        yield
        return
    started = time.perf_counter()
    try:
        yield
    finally:
        passed = time.perf_counter() - started
        counted.seconds[stage] = counted.seconds.get(stage, 0.0) + passed


# One line for each store that this process waits for. For messages only: no result depends on it.
OUTAGES: dict[int, str] = {}
# Functions of a thread's identifier: each cancels the request that the thread waits for.
CANCELLERS: list[Callable[[int], None]] = []


def outages() -> list[str]:
    """One line for each store that this process waits for; for messages about a long wait."""
    return list(OUTAGES.values())


def give_up_reads(thread: int) -> None:
    """Cancel the request that a thread (its identifier) waits for: StorageError there."""
    for cancel in CANCELLERS:
        cancel(thread)


_NAMES = (
    "requests", "bytes", "disk_bytes", "peer_bytes", "retries", "hedges", "hits", "misses",
    "evictions", "damaged", "degraded", "waits", "outage_ms",
)  # fmt: skip


class IoCounts:
    """Counters that only grow; any thread may add to them. A forked child starts with zeros.

    - requests: attempts at a range, a stat or a page of a listing; bytes: of their payloads, with
      an estimate for those that lost against a hedge;
    - disk_bytes, peer_bytes: what readers got from a cache on disk, and from those of other nodes;
    - retries: attempts after a failed one; hedges: duplicates of late requests;
    - hits, misses, evictions: blocks of a cache; damaged: blocks removed because a digest differed;
    - degraded: fall-backs, such as reads past a cache on a full disk;
    - waits: reads that had to wait: not in the page cache, or of a store and not prefetched;
    - outage_ms: milliseconds in which some request to a store was being retried.
    """

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._pid = os.getpid()
        self._sums = dict.fromkeys(_NAMES, 0)

    def add(self, **amounts: int) -> None:
        """Add to some of the counters: `add(requests=1, bytes=4096)`."""
        if self._pid != os.getpid():
            self.__init__()  # type: ignore[misc]
        with self._lock:
            for name, amount in amounts.items():
                self._sums[name] += amount

    @property
    def waits(self) -> int:
        """The counter of that name."""
        return self._sums["waits"]

    def snapshot(self) -> dict[str, int]:
        """All counters as they are now."""
        if self._pid != os.getpid():
            self.__init__()  # type: ignore[misc]
        with self._lock:
            return dict(self._sums)


# No result depends on it.
IO_COUNTS = IoCounts()
