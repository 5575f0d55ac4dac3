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
from shardwise.extensions.media.files.sample_table import SampleTable
from shardwise.extensions.media.files.track import Track, TrackColumns

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
