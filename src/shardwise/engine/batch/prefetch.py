"""Prefetch depth: how many batches are ready or in progress, bounded in number and in bytes.

The bound holds for the memory of a process: these batches, the one that the program has, and what
video decoders take. As much is left to decoders as they have requested, and one batch is always in
progress, so that a batch larger than half of the bound passes, too. Decoders then share what two
batches leave; one of them is always let in.

The bytes of a batch are known from the rows that are set aside for it, and measured on the batches
that were made: the largest of the last eight counts. Until one was made, two are in progress at
most, unless every field has rows of a known size, and decoders may hold as much as they are ever
let hold.
"""

from __future__ import annotations

import math
import sys
from collections import deque
from collections.abc import Mapping, Sequence
from functools import cached_property
from typing import Any

from shardwise.engine.batch.builder import BatchBuilder
from shardwise.engine.batch.chunks import PartialBatch
from shardwise.engine.batch.decoder_memory import picture_memory
from shardwise.engine.request import Batch

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

    Args:
        builder: knows the fields whose rows have a known size.
        max_bytes: what these batches, the program's and video decoders may hold together.
        unmeasured_depth: how many are in progress at most while their size is not known.
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
    size = getattr(value, "nbytes", None)
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
