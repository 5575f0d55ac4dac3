"""The tracks of any file by one PyAV demux: mkv, webm, ts, avi, mpg, fragmented mp4, mp3, ogg.

Nothing is decoded, but where a container does not say when a frame is shown (avi) and the codec may
change the order: then all frames are decoded once for it. A packet's place is kept where its bytes
lie in the file in one piece; of other containers the file is demuxed again when it is decoded.
"""

from __future__ import annotations

import io
import struct
from dataclasses import replace
from fractions import Fraction
from math import floor
from typing import Any

import numpy as np

from shardwise.base.errors import DataError
from shardwise.extensions.media.files.boxes import box_header
from shardwise.extensions.media.files.container_facts import parameters_of
from shardwise.extensions.media.files.limits import Limits
from shardwise.extensions.media.files.order_by_decoding import (
    REPAIR,
    check_order,
    may_reorder,
    timed_by_decoding,
    unpacked,
)
from shardwise.extensions.media.files.pyav_import import import_av
from shardwise.extensions.media.files.track import Track, TrackColumns

# Between a packet's place, as FFmpeg says it, and its bytes: the header of a block, a chunk, or a
# page of Ogg with its 255 lengths.
_MAX_HEADER_BYTES = 27 + 255
# Kinds of side data that change how a packet and those after it are decoded.
_CHANGES = ("palette", "new_extradata", "param_change")


def demux(data: bytes | memoryview, limits: Limits) -> tuple[list[Track], list[list[bytes]]]:
    """The tracks of a file in memory, and the payloads of each in decode order.

    Raises:
        DataError: it is no media file, damaged or cut, or promises too much.
        MissingExtraError: PyAV is not installed.
    """
    av = import_av("this container")
    _check_end(data)
    whole = bytes(data)
    try:
        with _opened(whole, av) as container:
            streams = [
                s
                for s in container.streams
                if s.type in ("video", "audio") and s.codec_context is not None and not _is_cover(s)
            ]
            packets: dict[int, list[Any]] = {stream.index: [] for stream in streams}
            for packet in container.demux(streams) if streams else ():
                if packet.size:
                    packets[packet.stream_index].append(packet)
                    limits.check_frames(len(packets[packet.stream_index]), "packets")
            pairs = [
                (stream, unpacked(_codec(stream), packets[stream.index]))
                for stream in streams
                if packets[stream.index]
            ]
            tracks = [_track(stream, own, whole, limits) for stream, own in pairs]
            payloads = [[bytes(packet) for packet in own] for _, own in pairs]
            for number, (stream, _) in enumerate(pairs):
                if stream.type == "video":
                    rotation, has_times = _looked_at(whole, av, stream.index)
                    track = replace(tracks[number], rotation=rotation)
                    if not has_times and may_reorder(stream.codec_context.codec, payloads[number]):
                        dts = [packet.dts for packet in packets[stream.index]]
                        track = timed_by_decoding(track, payloads[number], dts, limits)
                    elif has_times and track.codec == "mpeg4":
                        check_order(track, payloads[number])
                    tracks[number] = track
    except av.error.FFmpegError as error:
        raise DataError(f"FFmpeg can't read the file: {error.strerror or error}") from error
    return tracks, payloads


def _codec(stream: Any) -> str:
    return str(stream.codec_context.codec.canonical_name)


def _is_cover(stream: Any) -> bool:
    """Whether a stream of pictures is the cover of a song."""
    return bool(stream.disposition & stream.disposition.attached_pic)


def _track(stream: Any, packets: list[Any], data: bytes, limits: Limits) -> Track:
    context = stream.codec_context
    is_video = stream.type == "video"
    bad = next((i for i, packet in enumerate(packets) if packet.is_corrupt), None)
    if bad is not None:
        raise DataError(
            f"the container says that coded {stream.type} frame {bad} is damaged",
            offset=packets[bad].pos,
        )
    if is_video:
        limits.check_picture(context.height, context.width)
    _check_changes(packets, context)
    # Without a time of its own: that of decoding, in which frames are shown unless they are timed.
    times = [p.dts if p.pts is None else p.pts for p in packets]
    pts = np.array([number if t is None else t for number, t in enumerate(times)], np.int64)
    duration = np.array([p.duration or 0 for p in packets], np.int64)
    if is_video and len(pts) > 1 and not duration.any():  # asf
        duration[:] = np.median(np.diff(np.sort(pts)))
    columns = TrackColumns(
        pts=pts,
        duration=duration,
        size=np.array([p.size for p in packets], np.int64),
        offset=_places(packets, data),
        key=np.array([p.is_keyframe for p in packets], bool),
        shown=np.array([not p.is_discard for p in packets], bool),
    )
    origin, lead, length = (0, 0, 0) if is_video else _heard(packets, stream)
    return Track(
        kind=stream.type,
        codec=_codec(stream),
        config=bytes(context.extradata or b""),
        time_base=(stream.time_base.numerator, stream.time_base.denominator),
        columns=columns,
        parameters=parameters_of(context, packets),
        height=context.height if is_video else 0,
        width=context.width if is_video else 0,
        rate=0 if is_video else context.sample_rate,
        num_channels=0 if is_video else context.layout.nb_channels,
        origin=origin,
        lead=lead,
        length=length,
    )


def _places(packets: list[Any], data: bytes) -> Any:
    """Where the payloads lie; all -1 where one does not lie in one piece at its place.

    The packets of one page of Ogg have its place, and lie behind one another.
    """
    places = np.full(len(packets), -1, np.int64)
    end = 0
    for number, packet in enumerate(packets):
        payload, near = bytes(packet), packet.pos
        at = -1
        if near is not None and near >= 0:
            near = max(near, end)
            at = data.find(payload, near, near + _MAX_HEADER_BYTES + len(payload))
        if at < 0:
            return np.full(len(packets), -1, np.int64)
        places[number], end = at, at + len(payload)
    return places


def _heard(packets: list[Any], stream: Any) -> tuple[int, int, int]:
    """Tick of the first sample that is heard, samples before it, and samples that are heard."""
    first, last = packets[0], packets[-1]
    lead, trim = _skipped(first)[0], _skipped(last)[1]
    if last.duration and first.duration and last.duration < first.duration:
        trim = 0  # ogg: the last packet's duration has no padding in it
    rate = stream.codec_context.sample_rate
    samples = stream.time_base * rate  # a tick
    if not samples:
        raise DataError("the sound has no rate")
    begin, end = first.pts or 0, (last.pts or 0) + (last.duration or 0)
    length = round((end - begin) * samples) - lead - trim
    # Halves up, as FFmpeg: Opus begins 6.5 ticks late in mkv.
    return begin + floor(lead / samples + Fraction(1, 2)), lead, max(0, length)


def _skipped(packet: Any) -> tuple[int, int]:
    """Samples to leave out at the begin and the end of a packet."""
    if not packet.has_sidedata("skip_samples"):
        return 0, 0
    data = bytes(packet.get_sidedata("skip_samples"))
    if len(data) < 8:
        return 0, 0
    begin, end = struct.unpack_from("<II", data)
    return begin, end


def _check_changes(packets: list[Any], context: Any) -> None:
    """Refuse a stream whose packets change what the decoder was opened with: it is not kept."""
    for number, packet in enumerate(packets):
        for kind in _CHANGES:
            if packet.has_sidedata(kind) and bytes(packet.get_sidedata(kind)) != context.extradata:
                raise DataError(
                    f"packet {number} has a {kind.replace('_', ' ')} of its own, which is not "
                    f"kept: {REPAIR}"
                )


def _opened(data: bytes, av: Any, **options: str) -> Any:
    """A container, also one whose tags are not UTF-8: before PyAV 19 that has to be asked for."""
    asked = {"metadata_errors": "replace"} if int(av.__version__.partition(".")[0]) < 19 else {}
    return av.open(io.BytesIO(data), "r", options=options, **asked)


def _looked_at(data: bytes, av: Any, stream: int) -> tuple[int, bool]:
    """Degrees counterclockwise, and whether the container says when pictures are shown.

    FFmpeg tells the degrees with the first picture only, and fills in times unless it must not.
    """
    degrees, has_times = 0, None
    with _opened(data, av, fflags="nofillin") as container:
        try:
            for packet in container.demux(container.streams[stream]):
                has_times = packet.pts is not None if has_times is None else has_times
                if frames := packet.decode():
                    degrees = int(frames[0].rotation) % 360
                    break
        except av.error.FFmpegError:
            pass  # decoding the clip says what is wrong
    if degrees % 90:
        raise DataError(f"the picture is to be turned by {degrees} degrees: only 90, 180, 270 are")
    return degrees, bool(has_times)


_TS_PACKET = 188
_EBML = b"\x1a\x45\xdf\xa3"
_SEGMENT = b"\x18\x53\x80\x67"


def _check_end(data: bytes | memoryview) -> None:
    """Refuse a file that is shorter than its header says.

    Known for avi, wav, mkv, webm, mp4 and ts. Other containers do not say their length.
    """
    view = memoryview(data)
    head = bytes(view[:64])
    if head[:4] == b"RIFF":
        expected = _riff_end(view)
    elif head[:4] == _EBML:
        expected = _matroska_end(view)
    elif head[4:8] in (b"ftyp", b"moov", b"styp"):
        expected = _mp4_end(view)
    elif head[0] == 0x47 and len(view) > _TS_PACKET and view[_TS_PACKET] == 0x47:
        expected = -(-len(view) // _TS_PACKET) * _TS_PACKET
    else:
        return
    if expected > len(view):
        raise DataError(
            f"the container says {expected} bytes, and the file has {len(view)}: it was cut",
            offset=len(view),
        )


def _riff_end(view: memoryview) -> int:
    """The end of all RIFF parts: large avi files have several."""
    at = 0
    while at + 8 <= len(view) and bytes(view[at : at + 4]) == b"RIFF":
        (size,) = struct.unpack_from("<I", view, at + 4)
        if size in (0, 0xFFFFFFFF):
            return len(view)  # written to a pipe: the length was never put in
        at += 8 + size + size % 2
    # Writers may leave out the last byte of padding.
    return at - 1 if at == len(view) + 1 else at


def _matroska_end(view: memoryview) -> int:
    at = 4
    size, at = _vint(view, at)
    if size is None:
        return len(view)
    at += size
    if bytes(view[at : at + 4]) != _SEGMENT:
        return len(view)
    size, at = _vint(view, at + 4)
    return len(view) if size is None else at + size


def _vint(view: memoryview, at: int) -> tuple[int | None, int]:
    """A number of variable length (RFC 8794, 4); None where it says that it is not known."""
    if at >= len(view) or not view[at]:
        return None, at
    length = 9 - int(view[at]).bit_length()
    value = int.from_bytes(view[at : at + length], "big") & ((1 << 7 * length) - 1)
    return (None if value == (1 << 7 * length) - 1 else value), at + length


def _mp4_end(view: memoryview) -> int:
    at = 0
    while at + 8 <= len(view):
        size, _, header = box_header(view, at, len(view))
        if size < header:
            return len(view)
        at += size
    return at if at >= len(view) else at + 8
