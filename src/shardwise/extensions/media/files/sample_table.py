"""The sample tables of an mp4 track (`stbl`): sizes, offsets, times and keys as numpy columns."""

from __future__ import annotations

import struct

import numpy as np
from numpy.typing import NDArray

from shardwise.base.errors import DataError
from shardwise.extensions.media.files.boxes import Span, find
from shardwise.extensions.media.files.limits import Limits

_Ints = NDArray[np.int64]


class SampleTable:
    """The columns of one track before edits: arrays `[num_samples]` in decode order."""

    def __init__(self, moov: bytes, stbl: Span, limits: Limits) -> None:
        self._moov = moov
        self._stbl = stbl
        self.size = self._sizes(limits)
        self.num_samples = len(self.size)
        self.duration = self._runs(b"stts", ">u4")
        dts = np.cumsum(self.duration) - self.duration
        # Signed in version 1; writers of version 0 store negative numbers all the same.
        self.pts = dts + self._runs(b"ctts", ">i4") if self._has(b"ctts") else dts
        self.offset = self._offsets()
        self.key = self._keys()

    def _has(self, name: bytes) -> bool:
        return find(self._moov, self._stbl, name) is not None

    def _table(self, name: bytes, dtype: str, skip: int, width: int) -> _Ints:
        """The rows of a box that starts with their count."""
        span = find(self._moov, self._stbl, name)
        if span is None:
            raise DataError(f"the sample table has no {name!r}")
        begin, end = span
        if begin + skip > end:
            raise DataError(f"the box {name!r} is cut", offset=begin)
        (count,) = struct.unpack_from(">I", self._moov, begin + skip - 4)
        item = np.dtype(dtype).itemsize * width
        if begin + skip + count * item > end:
            raise DataError(f"the box {name!r} says {count} entries and has fewer", offset=begin)
        rows = np.frombuffer(self._moov, dtype, count * width, begin + skip)
        return rows.astype(np.int64).reshape(count, width)

    def _sizes(self, limits: Limits) -> _Ints:
        span = find(self._moov, self._stbl, b"stsz")
        if span is None or span[1] - span[0] < 12:
            raise DataError("the sample table has no b'stsz'")
        fixed, count = struct.unpack_from(">II", self._moov, span[0] + 4)
        # Before memory is taken: with a fixed size, any count fits into 12 bytes.
        limits.check_frames(count, "samples")
        if fixed:
            return np.full(count, fixed, np.int64)
        return self._table(b"stsz", ">u4", 12, 1)[:, 0]

    def _runs(self, name: bytes, dtype: str) -> _Ints:
        """A run-length coded column: (count, value) pairs."""
        counts = self._table(name, ">u4", 8, 2)[:, 0]
        values = self._table(name, dtype, 8, 2)[:, 1]
        # Counts that go beyond the samples would take memory for nothing.
        ends = np.minimum(np.cumsum(counts), self.num_samples)
        column = np.repeat(values, np.diff(ends, prepend=0))
        if len(column) != self.num_samples:
            raise DataError(
                f"the box {name!r} has times of {len(column)} of {self.num_samples} samples"
            )
        return column

    def _offsets(self) -> _Ints:
        large = self._has(b"co64")
        chunks = self._table(*((b"co64", ">u8") if large else (b"stco", ">u4")), 8, 1)[:, 0]
        runs = self._table(b"stsc", ">u4", 8, 3)
        if not self.num_samples:
            return np.zeros(0, np.int64)
        firsts = runs[:, 0] - 1
        if not len(runs) or firsts[0] != 0 or (np.diff(firsts) <= 0).any():
            raise DataError("the box b'stsc' does not begin with the first chunk, in order")
        ends = np.minimum(np.append(firsts[1:], len(chunks)), len(chunks))
        per_chunk = np.repeat(runs[:, 1], np.maximum(0, np.diff(ends, prepend=0)))
        last = np.minimum(np.cumsum(per_chunk), self.num_samples)
        per_chunk = np.diff(last, prepend=0)
        if not len(last) or last[-1] != self.num_samples:
            raise DataError(f"the box b'stsc' places fewer than {self.num_samples} samples")
        chunk = np.repeat(np.arange(len(per_chunk)), per_chunk)
        before = np.cumsum(self.size) - self.size
        firsts_in_chunk = (last - per_chunk)[chunk]
        offsets: _Ints = chunks[chunk] + before - before[firsts_in_chunk]
        return offsets

    def _keys(self) -> NDArray[np.bool_]:
        if not self._has(b"stss"):
            return np.ones(self.num_samples, bool)
        numbers = self._table(b"stss", ">u4", 8, 1)[:, 0] - 1
        if len(numbers) and not 0 <= numbers.min() <= numbers.max() < self.num_samples:
            raise DataError(f"the box b'stss' names samples beyond {self.num_samples}")
        key = np.zeros(self.num_samples, bool)
        key[numbers] = True
        return key
