"""Coalescing: which byte ranges to read for a set of payloads."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

__all__ = ["GAP_BYTES", "ReadPlan", "plan_reads"]

# Reading 16 KiB that are not needed costs about as much as another read call.
GAP_BYTES = 16 << 10

# One int64 holds file and offset: 44 bits for 16 TiB a file, 19 bits for 524,288 files a call.
_FILE_BITS = 44


@dataclass(frozen=True, slots=True)
class ReadPlan:
    """Reads that fill one buffer.

    Attributes:
        files: int64 `[reads]`, which file each read is from.
        offsets: int64 `[reads]`, where it begins in the file.
        ends: int64 `[reads]`, where it ends in the buffer; it begins where the one before ends.
        starts: int64 `[payloads]`, where each payload begins in the buffer.
    """

    files: NDArray[np.int64]
    offsets: NDArray[np.int64]
    ends: NDArray[np.int64]
    starts: NDArray[np.int64]

    def runs(self) -> Iterator[tuple[int, int]]:
        """Yield `(file, stop)` for each file: its reads are those from the last stop to this."""
        if len(self.files):
            last = np.append(np.flatnonzero(np.diff(self.files)), len(self.files) - 1)
            yield from zip(self.files[last].tolist(), (last + 1).tolist(), strict=True)

    @property
    def num_bytes(self) -> int:
        """The size of the buffer."""
        return int(self.ends[-1]) if len(self.ends) else 0


def plan_reads(
    files: NDArray[np.int64], offsets: NDArray[np.int64], sizes: NDArray[np.int64]
) -> ReadPlan:
    """Order payloads by file and offset, and join those that lie close together.

    Args:
        files: int64 `[payloads]`, the number of the file of each.
        offsets: int64 `[payloads]`, where it begins in that file.
        sizes: int64 `[payloads]`, bytes; 0 or less for nothing to read.
    """
    payload_starts = np.zeros(len(sizes), np.int64)
    rows = np.flatnonzero(sizes > 0)
    if not len(rows):
        empty = np.empty(0, np.int64)
        return ReadPlan(empty, empty, empty, payload_starts)
    begins = (files[rows] << _FILE_BITS) + offsets[rows]
    if (begins[1:] < begins[:-1]).any():
        order = np.argsort(begins, kind="stable")
        rows, begins = rows[order], begins[order]
    # Payloads may overlap: the same sample may be asked for twice.
    reach = np.maximum.accumulate(begins + sizes[rows])
    is_first = np.ones(len(begins), np.bool_)
    is_first[1:] = begins[1:] > reach[:-1] + GAP_BYTES
    firsts = np.flatnonzero(is_first)
    starts = begins[firsts]
    lengths = reach[np.append(firsts[1:], len(begins)) - 1] - starts
    ends = np.cumsum(lengths)
    shift = ends - lengths - starts
    payload_starts[rows] = begins + shift[np.cumsum(is_first) - 1]
    return ReadPlan(starts >> _FILE_BITS, starts & ((1 << _FILE_BITS) - 1), ends, payload_starts)
