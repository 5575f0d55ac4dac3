"""The tracks of an mp4 or mov file from its `moov` box alone: no FFmpeg, no scan of the file.

What the tables say becomes the same packets that FFmpeg's demuxer gives: edits shift times, and
what lies outside an edit is decoded and not shown. Forms that are rare (several edits of a track,
descriptions that change, codecs not known here) give None: then the file is demuxed once.
"""

from __future__ import annotations

import struct

import numpy as np
from numpy.typing import NDArray

from shardwise.base.errors import DataError
from shardwise.extensions.media.files.boxes import Span, find, walk
from shardwise.extensions.media.files.limits import Limits
from shardwise.extensions.media.files.opus_vorbis import opus_delay
from shardwise.extensions.media.files.sample_description import read_description
from shardwise.extensions.media.files.track import Track, TrackColumns

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


_KINDS = {b"vide": "video", b"soun": "audio"}
_ONE = 1 << 16  # fixed point of the display matrix
_ROTATIONS = {(1, 0, 0, 1): 0, (0, 1, -1, 0): 270, (-1, 0, 0, -1): 180, (0, -1, 1, 0): 90}


def read_tracks(moov: bytes, *, num_bytes: int, limits: Limits) -> list[Track] | None:
    """The tracks of pictures and sound.

    Samples beyond `num_bytes`, the file's size, mean that it was cut.

    Returns:
        None where only FFmpeg can say: fragmented files, and the forms named above.
    """
    try:
        span = next(walk(moov, 0, len(moov)))[1:]
        if find(moov, span, b"mvex") is not None:
            return None
        movie_scale = _scale(moov, find(moov, span, b"mvhd"))
        tracks = []
        for kind, *trak in walk(moov, *span):
            if kind != b"trak":
                continue
            place = (trak[0], trak[1])
            handler = find(moov, place, b"mdia", b"hdlr")
            if handler is None or moov[handler[0] + 8 : handler[0] + 12] not in _KINDS:
                continue
            track = _read_track(
                moov, place, handler, movie_scale, num_bytes=num_bytes, limits=limits
            )
            if track is None:
                return None
            tracks.append(track)
    except (struct.error, StopIteration, IndexError, OverflowError) as error:
        raise DataError(f"the box b'moov' is damaged ({error or 'cut'})") from error
    return tracks


def _scale(moov: bytes, header: Span | None) -> int:
    """Ticks per second, of `mvhd` or `mdhd`."""
    if header is None:
        raise DataError("the box b'moov' has no header of the movie or of a track")
    (scale,) = struct.unpack_from(">I", moov, header[0] + (20 if moov[header[0]] else 12))
    if not scale:
        raise DataError("a time scale is 0", offset=header[0])
    return int(scale)


def _read_track(
    moov: bytes, trak: Span, handler: Span, movie_scale: int, *, num_bytes: int, limits: Limits
) -> Track | None:
    is_video = moov[handler[0] + 8 : handler[0] + 12] == b"vide"
    scale = _scale(moov, find(moov, trak, b"mdia", b"mdhd"))
    stbl = find(moov, trak, b"mdia", b"minf", b"stbl")
    stsd = None if stbl is None else find(moov, stbl, b"stsd")
    if stbl is None or stsd is None:
        raise DataError("a track has no sample table")
    description = read_description(bytes(moov[slice(*stsd)]), is_video=is_video)
    edit = _read_edits(moov, find(moov, trak, b"edts", b"elst"), movie_scale, scale)
    rotation = _rotation(moov, find(moov, trak, b"tkhd")) if is_video else 0
    if description is None or edit is None or rotation is None:
        return None
    if is_video:
        limits.check_picture(description.height, description.width)
    table = SampleTable(moov, stbl, limits)
    _check_places(table, num_bytes, "video" if is_video else "audio")
    shift, start, stop = edit
    inside = (table.pts >= start) & (table.pts < stop)
    if is_video and start > 0 and inside.any():
        # An edit that starts inside a frame: FFmpeg puts the next frame at the edit's start.
        shift -= int(table.pts[inside].min()) - start
    columns = TrackColumns(
        table.pts + shift, table.duration, table.size, table.offset, table.key, inside
    )
    first = int(table.pts[0]) if table.num_samples else 0
    last = int((table.pts + table.duration).max(initial=0))
    begin = max(first, start)
    if 0 < last - stop <= scale // movie_scale:
        stop = last  # the edit's end is rounded to the movie's ticks
    rate = description.rate
    delay = opus_delay(description.codec, description.config, 0) * scale // (rate or 1)
    begin = max(begin, first + delay)
    return Track(
        kind="video" if is_video else "audio",
        codec=description.codec,
        config=description.config,
        parameters=description.parameters,
        time_base=(1, scale),
        columns=columns,
        height=description.height,
        width=description.width,
        rotation=rotation,
        rate=rate,
        num_channels=description.num_channels,
        origin=begin + shift,
        lead=round((begin - first) * rate / scale),
        length=max(0, round((min(last, stop) - begin) * rate / scale)),
    )


def _check_places(table: SampleTable, num_bytes: int, kind: str) -> None:
    ends = table.offset + table.size
    wrong: NDArray[np.int64] = np.flatnonzero((table.offset < 0) | (ends > num_bytes))
    if len(wrong):
        first = int(wrong[0])
        raise DataError(
            f"the file has {num_bytes} bytes, and coded {kind} frame {first} of "
            f"{table.num_samples} lies at bytes {int(table.offset[first])} to {int(ends[first])}, "
            f"{len(wrong)} frames in all beyond the end: the file was cut",
            offset=num_bytes,
        )


def _read_edits(
    moov: bytes, elst: Span | None, movie_scale: int, scale: int
) -> tuple[int, int, int] | None:
    """The effect of an edit list on a track: (shift of times, first and last media time shown).

    None where there are several edits, or one changes the speed.
    """
    forever = 1 << 62
    if elst is None:
        return 0, -forever, forever
    long = moov[elst[0]]
    (count,) = struct.unpack_from(">I", moov, elst[0] + 4)
    step, form = (20, ">Qqi") if long else (12, ">Iii")
    if elst[0] + 8 + count * step > elst[1]:
        raise DataError("the box b'elst' is cut", offset=elst[0])
    entries = [struct.unpack_from(form, moov, elst[0] + 8 + step * i) for i in range(min(count, 9))]
    delay = 0
    while entries and entries[0][1] == -1:
        delay += entries.pop(0)[0]
    if not entries:
        return (0, -forever, forever) if count <= 9 else None
    if len(entries) != 1 or entries[0][2] != _ONE:
        return None
    duration, media_time, _ = entries[0]
    # Round to the nearest tick, as FFmpeg does.
    ticks = (duration * scale * 2 + movie_scale) // (movie_scale * 2)
    delay_ticks = (delay * scale * 2 + movie_scale) // (movie_scale * 2)
    return delay_ticks - media_time, media_time, media_time + ticks if duration else forever


def _rotation(moov: bytes, tkhd: Span | None) -> int | None:
    """Degrees counterclockwise; None for a mirrored or skewed picture."""
    if tkhd is None:
        return 0
    at = tkhd[0] + (52 if moov[tkhd[0]] else 40)
    a, b, _, c, d = struct.unpack_from(">5i", moov, at)
    if not any((a, b, c, d)):
        return 0
    if any(value % _ONE for value in (a, b, c, d)):
        return None
    return _ROTATIONS.get((a // _ONE, b // _ONE, c // _ONE, d // _ONE))
