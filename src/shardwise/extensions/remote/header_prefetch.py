"""Headers of a remote shard, fetched before the scan asks for them.

Each header's position follows from the last, so a scan alone would wait one round trip per sample.
Here a long stretch of the shard is cut into lanes; in each the first block that can be a header is
looked for, and the chain is followed from there, in all lanes at the same time. Lanes are guesses:
the scan follows the one true chain from the start, takes headers that were guessed, and reads
the others itself.
"""

from __future__ import annotations

from collections import deque
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from shardwise.sources.tar.scan.byte_source import FileBytes
from shardwise.sources.tar.scan.headers import (
    BLOCK,
    KIND,
    WITHOUT_PAYLOAD,
    checksums_hold,
    has_magic,
    parse_number,
    round_up,
)
from shardwise.storage import File

# Bytes read at a header's position: with it the small members that follow and their headers.
_FIRST_WINDOW = 2048
_MAX_WINDOW = 4096
# The next windows are as wide as 90 % of the last 64 should have been.
_WIDE_ENOUGH = 0.9
_NUM_WIDTHS = 64

_MAX_LANES = 64
# Entering a lane reads half a sample on average: under 1 % of 128 samples.
_LANE_SAMPLES = 128
_MIN_LANE_BYTES = 4 << 20
_ENTRY_BYTES = 32 << 10
_ENTRY_TRIES = 8
# After six steps below 8 KiB in a row a lane is among small members: they are read whole.
_SHORT_STEP = 8 << 10
_MAX_SHORT = 6

# Everything is read if samples are small: 8 requests of 1 MiB at the same time.
_REQUEST_BYTES = 1 << 20

# Headers closer than this come with one window and count as one group.
_GROUP_BYTES = 4096
# Below 20 KiB per group, reading all bytes costs less than one request per group.
_SPARSE_STRIDE = 20 << 10


@dataclass(slots=True)
class _Lane:
    """A part of the shard: where its next window starts, and where the part ends."""

    position: int
    end: int
    num_short: int = 0


class HeaderPrefetch(FileBytes):
    """A remote shard's bytes, as a scan reads them: headers only, or everything. For one thread."""

    first_read_bytes = 16 << 10
    block_bytes = 8 * _REQUEST_BYTES
    sparse_headers = 64

    def __init__(self, file: File, num_bytes: int) -> None:
        super().__init__(file, num_bytes)
        self._file: File = file
        # The bytes that the scan is in: where they start, and the bytes.
        self._window: tuple[int, bytes] | None = None
        # Prefetched windows by offset; all guesses lie before `_guessed_until`.
        self._windows: dict[int, bytes] = {}
        self._guessed_until = 0
        self._lane_bytes = _MIN_LANE_BYTES
        self._width = _FIRST_WINDOW
        self._widths: deque[int] = deque(maxlen=_NUM_WIDTHS)

    def is_dense(self, positions: NDArray[np.int64], end: int) -> bool:
        """See `FileBytes`; lanes become as long as 128 of the groups of headers seen last."""
        num_groups = int(np.count_nonzero(np.diff(positions, append=end) > _GROUP_BYTES))
        if not num_groups:
            return True
        stride = (end - int(positions[0])) // num_groups
        self._lane_bytes = max(_MIN_LANE_BYTES, _LANE_SAMPLES * stride)
        return stride < _SPARSE_STRIDE

    def read(self, offset: int, length: int) -> bytes:
        """Read exactly `length` bytes at `offset`; raises as `File.read` does."""
        if self._window is None:
            self._window = (0, self._file.read(0, self.available(0, self.first_read_bytes)))
        data = self._in_window(offset, length)
        if data is not None:
            return data
        window = self._windows.pop(offset, None)
        if window is None:
            window = self._fetch(offset)
        if len(window) < length:
            return self._file.read(offset, length)
        self._window = (offset, window)
        return window[:length]

    def read_block(self, offset: int, length: int) -> bytes:
        """See `FileBytes`; by concurrent requests."""
        data = self._in_window(offset, length)
        if data is None:
            buffer = bytearray(length)
            ends = [*range(_REQUEST_BYTES, length, _REQUEST_BYTES), length]
            starts = range(offset, offset + length, _REQUEST_BYTES)
            self._file.read_spans(starts, ends, memoryview(buffer), 0)
            data = bytes(buffer)
        return data

    def _in_window(self, offset: int, length: int) -> bytes | None:
        """Bytes out of the window that the scan is in."""
        start, data = self._window or (0, b"")
        if start <= offset and offset + length <= start + len(data):
            return data[offset - start : offset - start + length]
        return None

    def _fetch(self, offset: int) -> bytes:
        """The window at an offset that was not guessed: guess from there on, or read it alone."""
        if offset < self._guessed_until:
            return self._file.read(offset, min(self._width, self._num_bytes - offset))
        self._guess(offset)
        return self._windows.pop(offset)

    def _guess(self, begin: int) -> None:
        """Follow the chain from `begin`, and from where it can be entered in later lanes."""
        size = self._lane_bytes
        stop = min(self._num_bytes, begin + size * _MAX_LANES)
        # A rest below half a lane belongs to the lane before.
        starts = [at for at in range(begin, stop, size) if at == begin or stop - at > size // 2]
        ends = [*starts[1:], stop]
        lanes = [_Lane(at, end) for at, end in zip(starts, ends, strict=True)]
        self._windows = {}
        self._guessed_until = stop
        self._enter(lanes[1:])
        # At most twice the rounds that a lane of 128 samples takes: beyond, samples are smaller.
        for _ in range(2 * _LANE_SAMPLES + size // _MIN_LANE_BYTES):
            active = [lane for lane in lanes if lane.position < lane.end]
            if not active:
                return
            self._step(active)
        # The rest of the lanes is guessed when the scan reaches it.
        self._guessed_until = min(lane.position for lane in active)

    def _step(self, lanes: list[_Lane]) -> None:
        """Read a window in each lane, and move on to where the next header would be."""
        for lane, data in zip(lanes, self._read_at(lanes, self._width), strict=True):
            self._windows[lane.position] = data
            follow, width = _follow(data)
            if follow is None:
                lane.position = lane.end
                continue
            self._widths.append(width)
            lane.num_short = lane.num_short + 1 if follow < _SHORT_STEP else 0
            lane.position = lane.end if lane.num_short == _MAX_SHORT else lane.position + follow
        if self._widths:
            sizes = sorted(self._widths)
            self._width = sizes[min(len(sizes) - 1, int(_WIDE_ENOUGH * len(sizes)))]

    def _enter(self, lanes: list[_Lane]) -> None:
        """Move each lane to a header near its start; lanes without one end."""
        for _ in range(_ENTRY_TRIES):
            if not lanes:
                return
            remaining = []
            for lane, data in zip(lanes, self._read_at(lanes, _ENTRY_BYTES), strict=True):
                entry = _first_header(data)
                if entry is None:
                    lane.position += _ENTRY_BYTES
                    remaining.append(lane)
                else:
                    lane.position += entry
            lanes = [lane for lane in remaining if lane.position < lane.end]
        for lane in lanes:
            lane.position = lane.end

    def _read_at(self, lanes: list[_Lane], length: int) -> list[bytes]:
        """The bytes at the lanes' positions, by concurrent requests."""
        offsets = [lane.position for lane in lanes]
        sizes = [min(length, self._num_bytes - offset) for offset in offsets]
        ends = np.cumsum(sizes).tolist()
        buffer = bytearray(ends[-1])
        self._file.read_spans(offsets, ends, memoryview(buffer), 0)
        return [bytes(buffer[end - size : end]) for size, end in zip(sizes, ends, strict=True)]


def _first_header(data: bytes) -> int | None:
    """The offset of the first block that can be a header."""
    blocks: NDArray[np.uint8] = np.frombuffer(data, np.uint8, len(data) // BLOCK * BLOCK)
    blocks = blocks.reshape(-1, BLOCK)
    rows = np.flatnonzero(has_magic(blocks))
    if not len(rows):
        return None
    sound = rows[checksums_hold(blocks[rows])]
    return int(sound[0]) * BLOCK if len(sound) else None


def _follow(data: bytes) -> tuple[int | None, int]:
    """The first header after a window (None: the chain ends), and how wide it should have been."""
    offset = width = 0
    while offset + BLOCK <= len(data):
        block = data[offset : offset + BLOCK]
        size = parse_number(block[124:136])
        if block[257:262] != b"ustar" or size is None:
            return None, width
        width = offset + BLOCK
        offset += BLOCK + (0 if block[KIND] in WITHOUT_PAYLOAD else round_up(size))
    if offset <= _MAX_WINDOW - BLOCK:
        width = offset + BLOCK
    return offset, width
