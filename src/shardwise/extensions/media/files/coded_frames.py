"""The bytes of a clip's coded frames: one range of the file, checked where that is possible."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from itertools import islice

import numpy as np
from numpy.typing import NDArray

from shardwise.base.counters import spent_in
from shardwise.base.errors import DataError, StaleIndexError
from shardwise.extensions.media.files.byte_reader import BytesReader, RangeReader, read_exactly
from shardwise.extensions.media.files.limits import Limits
from shardwise.extensions.media.files.media_index import (
    MediaIndex,
    checksum_groups,
    checksum_of,
    index_media,
)
from shardwise.extensions.media.files.track import Segment, Track

# Frames nearer than this are read by one range: a request costs about as much as 64 KiB.
_GAP_BYTES = 64 << 10


@spent_in("demux")
def with_payloads(index: MediaIndex, reader: RangeReader, limits: Limits) -> MediaIndex:
    """An index whose frames can be had: those of a scattered container by a demux."""
    if index.num_bytes != reader.num_bytes:
        raise StaleIndexError(
            f"the media index is of a file of {index.num_bytes} bytes, and this one has "
            f"{reader.num_bytes}: make it again with `shardwise index --media --force`"
        )
    if index.payloads is not None or all(track.is_ranged for track in index.tracks):
        return index
    whole = BytesReader(read_exactly(reader, 0, reader.num_bytes))
    payloads = index_media(whole, limits=limits).payloads or ()
    if [len(own) for own in payloads] != [len(t.columns.pts) for t in index.tracks]:
        raise StaleIndexError(
            "the file has other frames than its media index says: make it again with "
            "`shardwise index --media --force`"
        )
    return replace(index, payloads=tuple(payloads))


@spent_in("demux")
def read_segments(
    index: MediaIndex, track: Track, segments: Sequence[Segment], reader: RangeReader
) -> list[list[bytes] | list[memoryview]]:
    """The payloads of the samples of some segments, one list per segment.

    One range holds them all, with what lies between (sound, pictures that are left out), unless
    gaps are larger than 64 KiB.
    """
    stored = index.payloads_of(track)
    if stored is not None:
        parts: list[list[bytes] | list[memoryview]] = [
            [stored[number] for number in segment.samples.tolist()] for segment in segments
        ]
    else:
        samples = np.concatenate([segment.samples for segment in segments])
        views = iter(_read_ranges(track, samples, reader))
        parts = [list(islice(views, len(segment.samples))) for segment in segments]
    for segment, payloads in zip(segments, parts, strict=True):
        _check(track, segment, payloads)
    return parts


def _read_ranges(track: Track, samples: NDArray[np.int64], reader: RangeReader) -> list[memoryview]:
    starts = track.columns.offset[samples]
    stops = starts + track.columns.size[samples]
    bounds = list(zip(starts.tolist(), stops.tolist(), strict=True))
    if all(reader.holds(*each) for each in bounds):
        return [memoryview(read_exactly(reader, *each)) for each in bounds]
    views: list[memoryview] = [memoryview(b"")] * len(starts)
    for part in _near(starts, stops, _GAP_BYTES):
        base = int(starts[part[0]])
        data = memoryview(read_exactly(reader, base, int(stops[part].max())))
        for row in part.tolist():
            views[row] = data[bounds[row][0] - base : bounds[row][1] - base]
    return views


def _near(starts: NDArray[np.int64], stops: NDArray[np.int64], gap: int) -> list[NDArray[np.intp]]:
    """The rows whose ranges are read together, each group in the order of the file."""
    by_place = np.argsort(starts, kind="stable")
    gaps = starts[by_place][1:] - np.maximum.accumulate(stops[by_place])[:-1]
    parts = np.split(by_place, np.flatnonzero(gaps > gap) + 1)
    return parts if len(starts) else []


def joined_ranges(ranges: Sequence[tuple[int, int]]) -> list[tuple[int, int]]:
    """Ranges in order; those that meet become one.

    >>> joined_ranges([(500, 600), (0, 100), (50, 300)])
    [(0, 300), (500, 600)]
    """
    starts, stops = np.array(ranges, np.int64).reshape(-1, 2).T
    return [(int(starts[part[0]]), int(stops[part].max())) for part in _near(starts, stops, 0)]


def ranges_to_read(coded: Sequence[tuple[Track, NDArray[np.int64]]]) -> list[tuple[int, int]]:
    """The ranges of a file from which coded frames of its tracks are read.

    Two at most, and a quarter more bytes than the frames have at most. If both can't be, ranges are
    apart where that saves more than 64 KiB.
    """
    if not any(len(rows) for _, rows in coded):
        return []
    starts = np.concatenate([track.columns.offset[rows] for track, rows in coded])
    sizes = np.concatenate([track.columns.size[rows] for track, rows in coded])
    by_place = np.argsort(starts, kind="stable")
    starts = starts[by_place]
    stops = np.maximum.accumulate(starts + sizes[by_place])
    gaps = np.maximum(0, starts[1:] - stops[:-1])
    smallest = np.argsort(gaps, kind="stable")
    needed = stops[-1] - starts[0] - gaps.sum()
    is_cheap = 4 * np.cumsum(gaps[smallest]) <= needed
    is_near = gaps[smallest] <= _GAP_BYTES
    is_many = np.arange(len(gaps), 0, -1) > 1
    is_read = (is_cheap & (is_near | is_many)) | (is_near & is_many)
    apart = np.sort(smallest[np.append(is_read, False).argmin() :])
    firsts, lasts = np.append(0, apart + 1), np.append(apart, len(gaps))
    return list(zip(starts[firsts].tolist(), stops[lasts].tolist(), strict=True))


def _check(track: Track, segment: Segment, payloads: list[bytes] | list[memoryview]) -> None:
    """Compare the groups that were read whole with their checksums."""
    if track.checksums is None:
        return
    bounds = checksum_groups(track)
    if len(track.checksums) != len(bounds) - 1:
        raise DataError(f"{len(track.checksums)} checksums for {len(bounds) - 1} groups")
    rows = {number: row for row, number in enumerate(segment.samples.tolist())}
    first, last = int(segment.samples[0]), int(segment.samples[-1])
    low = int(np.searchsorted(bounds, first, side="left"))
    high = int(np.searchsorted(bounds, last + 1, side="right")) - 1
    for group in range(low, high):
        members = range(int(bounds[group]), int(bounds[group + 1]))
        if any(number not in rows for number in members):
            continue
        if checksum_of(payloads[rows[number]] for number in members) != track.checksums[group]:
            offset = int(track.columns.offset[members[0]])
            raise DataError(
                f"coded {track.kind} frames {members[0]} to {members[-1]} are not the ones that "
                "were indexed: their CRC-32 differs",
                offset=offset if offset >= 0 else None,
            )
