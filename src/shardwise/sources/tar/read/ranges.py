"""Coalescing: which byte ranges to read for a set of payloads."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from shardwise.storage import UrlRanges

# Reading 16 KiB that are not needed costs about as much as another read call.
GAP_BYTES = 16 << 10


@dataclass(frozen=True, slots=True)
class ReadPlan:
    """Reads that fill one buffer.

    Attributes:
        files: int64 `[reads]`, which file each read is from.
        offsets: int64 `[reads]`, where it starts in the file.
        ends: int64 `[reads]`, where it ends in the buffer; it starts where the one before ends.
        starts: int64 `[payloads]`, where each payload starts in the buffer.
    """

    files: NDArray[np.int64]
    offsets: NDArray[np.int64]
    ends: NDArray[np.int64]
    starts: NDArray[np.int64]

    def by_url(self, urls: Sequence[str]) -> list[UrlRanges]:
        """The reads as `read_files` takes them; `urls` are those of the files, by number."""
        offsets, ends = self.offsets.tolist(), self.ends.tolist()
        last = (np.flatnonzero(np.diff(self.files, append=-1)) + 1).tolist()
        reads: list[UrlRanges] = []
        first = begin = 0
        for stop in last:
            url = urls[int(self.files[first])]
            reads.append((url, offsets[first:stop], ends[first:stop], begin))
            first, begin = stop, ends[stop - 1]
        return reads

    @property
    def num_bytes(self) -> int:
        """The size of the buffer."""
        return int(self.ends[-1]) if len(self.ends) else 0


def plan_reads(
    files: NDArray[np.int64], offsets: NDArray[np.int64], sizes: NDArray[np.int64]
) -> ReadPlan:
    """Order payloads by file and offset, and join those that lie close together.

    Args:
        files: int64 `[payloads]`, the number of the file of each. The largest number and the
            largest offset take 62 bits together: 2**20 files of 4 TiB, or 2**32 of 1 GiB.
        offsets: int64 `[payloads]`, where it starts in that file.
        sizes: int64 `[payloads]`, bytes; 0 or less for nothing to read.
    """
    payload_starts = np.zeros(len(sizes), np.int64)
    rows = np.flatnonzero(sizes > 0)
    if not len(rows):
        empty = np.empty(0, np.int64)
        return ReadPlan(empty, empty, empty, payload_starts)
    offsets, sizes = offsets[rows], sizes[rows]
    # One int64 holds file and offset, with more than a gap between the ends of one file and the
    # start of the next.
    bits = (int((offsets + sizes).max()) + GAP_BYTES).bit_length()
    begins = (files[rows] << bits) + offsets
    if (begins[1:] < begins[:-1]).any():
        order = np.argsort(begins, kind="stable")
        rows, begins, sizes = rows[order], begins[order], sizes[order]
    # Payloads may overlap: the same sample may be requested twice.
    reach = np.maximum.accumulate(begins + sizes)
    is_first = np.ones(len(begins), np.bool_)
    is_first[1:] = begins[1:] > reach[:-1] + GAP_BYTES
    firsts = np.flatnonzero(is_first)
    starts = begins[firsts]
    lengths = reach[np.append(firsts[1:], len(begins)) - 1] - starts
    ends = np.cumsum(lengths)
    shift = ends - lengths - starts
    payload_starts[rows] = begins + shift[np.cumsum(is_first) - 1]
    return ReadPlan(starts >> bits, starts & ((1 << bits) - 1), ends, payload_starts)
