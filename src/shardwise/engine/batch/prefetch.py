"""Prefetch depth: how many batches are ready or in progress, bounded in number and in bytes.

The bound holds for the memory of a process: these batches, the one that the program has, and what
video decoders take. As much is left to decoders as they have requested, and one batch is always in
progress, so that a batch larger than half of the bound passes, too. Decoders then share what two
batches leave; one of them is always let in.

The bytes of a batch are known from the rows that are set aside for it, and measured on the batches
that were made: the largest of the last eight counts. Until one was made, two are in progress at
most, unless every field has rows of a known size, and decoders may hold as much as they are ever
let hold.

A decoder of 4K video holds 90 to 130 MB of pictures that others are coded from: eight threads held
1.1 GB. So the decoders of one process share memory: a thread waits until its pictures fit.
"""

from __future__ import annotations

import ctypes
import math
import os
import sys
import threading
import weakref
from collections import deque
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from functools import cache, cached_property
from typing import Any

from shardwise.engine.batch.builder import BatchBuilder
from shardwise.engine.batch.chunks import PartialBatch
from shardwise.engine.request import Batch

_MAX_BYTES = 512 << 20
# 7 pictures were measured at 4K, where the levels of H.264 and HEVC allow 5 and 6 to refer to; VP9
# and AV1 have 8. Smaller pictures may be more, of fewer bytes.
_PICTURES = 12
# After a decoder of this size freed memory goes back to the system at once: each of eight threads
# would keep as much. Of smaller ones less is kept, and giving it back costs 2 ms.
_LARGE_BYTES = 64 << 20


@dataclass(slots=True)
class _Pass:
    """A pass of a loader: the most bytes that decoders requested, and the most they may hold."""

    peak: int
    limit: int = 0


class PictureMemory:
    """A bounded sum of bytes that decoders hold, with a first-come, first-served queue.

    Args:
        max_bytes: of all decoders together; a single one is admitted whatever it takes.

    Examples:
        >>> memory = PictureMemory(100)
        >>> with memory.hold(60), memory.hold(40):
        ...     pass
    """

    def __init__(self, max_bytes: int) -> None:
        self.max_bytes = max_bytes
        self._held = 0
        self._waited_for = 0
        # Passes by owner; an entry ends with its owner.
        self._passes: weakref.WeakKeyDictionary[object, _Pass] = weakref.WeakKeyDictionary()
        self._kept = 0  # freed since memory was last given back to the system
        self._waiting: deque[object] = deque()
        self._changed = threading.Condition()

    def limit(self, owner: object, num_bytes: int) -> None:
        """Hold no more than this until `owner` lifts its limit or ends; the lowest limit counts."""
        with self._changed:
            asked_for = self._held + self._waited_for
            self._passes.setdefault(owner, _Pass(asked_for)).limit = num_bytes
            self._changed.notify_all()

    def lift(self, owner: object) -> None:
        """Remove the limit of an owner, if it has one."""
        with self._changed:
            self._passes.pop(owner, None)
            self._changed.notify_all()

    def peak(self, owner: object) -> int:
        """The most bytes held or waited for at one time since an owner's first limit.

        Up to the bound; 0 without a limit. Decoders of other passes count: the memory is shared.
        """
        with self._changed:
            found = self._passes.get(owner)
            return 0 if found is None else min(found.peak, self.max_bytes)

    @contextmanager
    def hold(self, num_bytes: int) -> Iterator[None]:
        """Hold some bytes, from the moment that they fit to the end of the block.

        A block must not hold a second time inside: it could wait for itself.
        """
        turn = object()
        with self._changed:
            self._waiting.append(turn)
            self._waited_for += num_bytes
            for each in self._passes.values():
                each.peak = max(each.peak, self._held + self._waited_for)
            try:
                self._changed.wait_for(lambda: self._waiting[0] is turn and self._fits(num_bytes))
                self._held += num_bytes
            finally:
                # Also where an interrupt ends the wait. The next one may fit, too.
                self._waited_for -= num_bytes
                self._waiting.remove(turn)
                self._changed.notify_all()
        try:
            yield
        finally:
            self._release(num_bytes)

    def _release(self, num_bytes: int) -> None:
        # Freed pictures stay with the thread's part of the heap, where no other thread uses them.
        with self._changed:
            self._kept += num_bytes
            is_much = num_bytes >= _LARGE_BYTES or 2 * self._kept > self.max_bytes
            gives_back = bool(self._waiting) or is_much
            if gives_back:
                self._kept = 0
        try:
            if gives_back and (trim := _trim()) is not None:
                trim(0)
        finally:
            with self._changed:
                self._held -= num_bytes
                self._changed.notify_all()

    def _fits(self, num_bytes: int) -> bool:
        most = min([self.max_bytes, *(each.limit for each in self._passes.values())])
        return not self._held or self._held + num_bytes <= most


def decoder_bytes(height: int, width: int) -> int:
    """About what a decoder of pictures of this size holds, with 8 bits and half the colour."""
    return _PICTURES * height * width * 3 // 2


def picture_memory() -> PictureMemory:
    """The memory of this process; a forked child has its own, empty at first."""
    return _memory_of(os.getpid())


@cache
def _trim() -> Any:
    """The function that gives freed memory back to the system, if the C library has it (glibc)."""
    return getattr(ctypes.CDLL(None), "malloc_trim", None) if sys.platform == "linux" else None


@cache
def _memory_of(pid: int) -> PictureMemory:  # noqa: ARG001 - the key of the cache
    return PictureMemory(_MAX_BYTES)


DEFAULT_PREFETCH_BYTES = 1 << 30
# Batches whose size is not known yet.
_UNMEASURED_DEPTH = 2
_NUM_RECENT = 8
# 32 batches per worker: at lognormal times they bring 96 % of the ideal rate.
_MAX_GROWTH = 16
# A longer list is sampled: this many values, at equal distances.
_MAX_VALUES = 64


class DepthGrowth:
    """Grows the prefetch depth where the time of a batch varies.

    A batch that is late, although a worker was idle at full depth since the last growth, would have
    been started earlier at a larger depth. A loader that is too slow on average grows nothing.
    """

    def __init__(self) -> None:
        self.factor = 1  # by which the depth is multiplied
        self._was_idle = False

    def asked(self, *, is_late: bool, is_idle: bool) -> None:
        """Note, where the depth is reached, whether the next batch is late and a worker idle."""
        self._was_idle |= is_idle
        if is_late and self._was_idle and self.factor < _MAX_GROWTH:
            self.factor, self._was_idle = 4 * self.factor, False


class PrefetchBound:
    """The bound on the batches of a rank that are ready or in progress.

    These, the program's batch and video decoders hold `max_bytes` together; `unmeasured_depth`
    batches are in progress at most while their size is not known.
    """

    def __init__(
        self,
        builder: BatchBuilder,
        max_bytes: int = DEFAULT_PREFETCH_BYTES,
        *,
        unmeasured_depth: int = _UNMEASURED_DEPTH,
    ) -> None:
        self.growth = DepthGrowth()
        self._builder = builder
        self._unmeasured_depth = unmeasured_depth
        self._max_bytes = max_bytes
        self._recent: deque[int] = deque(maxlen=_NUM_RECENT)
        self._set_aside = 0
        # Bytes of a row, as measured.
        self._row_bytes = 0
        # Bytes that decoders requested at one time in the pass before this one.
        self._last_peak = 0

    def depth(self, num_batches: int, *, leave: int = 0) -> int:
        """`num_batches`, grown, less `leave`, and within the bound; at least 1."""
        num_batches = num_batches * self.growth.factor - leave
        if not self._recent and not self._is_known:
            num_batches = min(num_batches, self._unmeasured_depth)
        memory = picture_memory()
        decoders = max(self._last_peak, memory.peak(self))
        if not self._recent:
            decoders = min(memory.max_bytes, self._max_bytes // 2)
        # One batch of them is the program's.
        return max(1, min(num_batches, (self._max_bytes - decoders) // self._largest - 1))

    @property
    def row_bytes(self) -> int:
        """Bytes of a row of a batch, as far as they are known; else 0."""
        return max(self._row_bytes, self._layout_bytes)

    def begun(self, partial: PartialBatch) -> None:
        self._set_aside = partial.num_bytes
        self._limit_decoders()

    def made(self, batch: Batch) -> None:
        self._recent.append(batch_bytes(batch) if batch.num_bytes is None else batch.num_bytes)
        num_rows = sum(part.num_rows for part in batch.parts or [batch])
        self._row_bytes = self._recent[-1] // max(1, num_rows)
        self._limit_decoders()

    def ended(self) -> None:
        """A pass is over: it bounds decoders of other loaders no longer."""
        memory = picture_memory()
        self._last_peak = memory.peak(self)
        memory.lift(self)

    def _limit_decoders(self) -> None:
        # More batches are made only where decoders have enough.
        picture_memory().limit(self, self._max_bytes - 2 * self._largest)

    @property
    def _largest(self) -> int:
        return max(self._set_aside, max(self._recent, default=0), 1)

    @cached_property
    def _layout_bytes(self) -> int:
        layout = self._builder.layout.values()
        return sum(math.prod(shape) * dtype.itemsize for shape, dtype in layout)

    @property
    def _is_known(self) -> bool:
        dataset = self._builder.dataset
        return not dataset.is_mapped and self._builder.layout.keys() >= set(dataset.fields)


def batch_bytes(batch: Batch) -> int:
    """About how much memory a batch takes, with its parts."""
    return sum(num_bytes(part.data) for part in batch.parts or [batch])


def num_bytes(value: Any) -> int:
    """About how much memory a batch or a part of it takes: exact for arrays, bytes and text."""
    if isinstance(value, str | bytes | bytearray):  # first: a batch's keys are most of its values
        return sys.getsizeof(value)
    try:
        size = getattr(value, "nbytes", None)
    except RuntimeError:
        size = None  # torch's sparse tensors refuse
    if isinstance(size, int):
        return size
    if isinstance(value, Mapping):
        return sum(map(num_bytes, value.values()))
    if isinstance(value, Sequence):
        step = max(1, len(value) // _MAX_VALUES)
        looked_at = value[::step]
        seen = sum(map(num_bytes, looked_at))
        return seen * len(value) // max(1, len(looked_at))
    return sys.getsizeof(value)
