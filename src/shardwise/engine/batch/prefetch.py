"""Prefetch depth: how many batches are ready or in progress, bounded in number and in bytes.

The bytes of a batch are known from the rows that are set aside for it, and measured on the batches
that were made: the largest of the last eight counts. Until one was made, two are in progress at
most, unless every field has rows of a known size.
"""

from __future__ import annotations

import sys
from collections import deque
from collections.abc import Mapping, Sequence
from typing import Any

from shardwise.engine.batch.builder import BatchBuilder
from shardwise.engine.batch.partial_batch import PartialBatch
from shardwise.engine.request import Batch

__all__ = ["DEFAULT_PREFETCH_BYTES", "PrefetchBound", "num_bytes"]

DEFAULT_PREFETCH_BYTES = 1 << 30
# Batches whose size is not known yet.
_UNMEASURED_DEPTH = 2
_NUM_RECENT = 8
# Of a longer list as many values are looked at, at equal distances.
_MAX_VALUES = 64


class PrefetchBound:
    """How many batches of a rank may be ready or in progress.

    Args:
        builder: knows the fields whose rows have a known size.
        max_bytes: what these batches may hold together; one is always allowed.
    """

    def __init__(self, builder: BatchBuilder, max_bytes: int = DEFAULT_PREFETCH_BYTES) -> None:
        self._builder = builder
        self._max_bytes = max_bytes
        self._recent: deque[int] = deque(maxlen=_NUM_RECENT)
        self._set_aside = 0

    def depth(self, num_batches: int) -> int:
        """`num_batches`, reduced so that they stay under the bound; at least 1."""
        if not self._recent and not self._is_known:
            num_batches = min(num_batches, _UNMEASURED_DEPTH)
        largest = max(self._set_aside, max(self._recent, default=0), 1)
        return max(1, min(num_batches, self._max_bytes // largest))

    def begun(self, partial: PartialBatch) -> None:
        """A batch is in progress, with its memory set aside."""
        self._set_aside = partial.num_bytes

    def made(self, batch: Batch) -> None:
        """A batch was made."""
        parts = [batch, *batch.parts]
        self._recent.append(sum(num_bytes(part.data) for part in parts))

    @property
    def _is_known(self) -> bool:
        dataset = self._builder.dataset
        return not dataset.is_mapped and self._builder.layout.keys() >= set(dataset.fields)


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
