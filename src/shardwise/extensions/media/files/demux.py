"""The tracks of any file by one PyAV demux: mkv, webm, ts, avi, mpg, fragmented mp4, mp3, ogg.

Nothing is decoded, but where a container does not say when a frame is shown (avi): then all frames
are decoded once for their order. A packet's place is kept where its bytes lie in the file in one
piece; of other containers the file is demuxed again when it is decoded.
"""

from __future__ import annotations

import io
from dataclasses import replace
from typing import Any

import numpy as np

from shardwise.base.errors import DataError
from shardwise.extensions.media.files.container_ends import check_end
from shardwise.extensions.media.files.limits import Limits
from shardwise.extensions.media.files.pyav_import import import_av
from shardwise.extensions.media.files.pyav_packets import decoded_frames
from shardwise.extensions.media.files.sound_times import with_sample_times
from shardwise.extensions.media.files.track import Track, TrackColumns

# Between a packet's place, as FFmpeg says it, and its bytes: the header of a block, a chunk, or a
# page of Ogg with its 255 lengths.
_MAX_HEADER_BYTES = 27 + 255


def demux(data: bytes | memoryview, limits: Limits) -> tuple[list[Track], list[list[bytes]]]:
    """The tracks of a file in memory, and the payloads of each in decode order.

    Raises:
        DataError: it is no media file, damaged or cut, or promises too much.
        MissingExtraError: PyAV is not installed.
    """
    av = import_av("this container")
    check_end(data)
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
            pairs = [(stream, packets[stream.index]) for stream in streams if packets[stream.index]]
            tracks = [_track(stream, own, whole, limits) for stream, own in pairs]
    except av.error.FFmpegError as error:
        raise DataError(f"FFmpeg can't read the file: {error.strerror or error}") from error
    payloads = [[bytes(packet) for packet in own] for _, own in pairs]
    rotation = _rotation_of(whole, av) if any(t.kind == "video" for t in tracks) else 0
    timed = []
    for track, own, (_, coded) in zip(tracks, payloads, pairs, strict=True):
        if track.kind == "video":
            track = replace(track, rotation=rotation)
            if (track.columns.pts == _NO_PTS).any():
                track = _timed_by_decoding(track, own, limits)
        else:
            track = with_sample_times(track, coded, own)
        timed.append(track)
    return timed, payloads


_NO_PTS = -(1 << 62)


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
    pts = np.array([_NO_PTS if p.pts is None else p.pts for p in packets], np.int64)
    duration = np.array([p.duration or 0 for p in packets], np.int64)
    columns = TrackColumns(
        pts=pts,
        duration=duration,
        size=np.array([p.size for p in packets], np.int64),
        offset=_places(packets, data),
        key=np.array([p.is_keyframe for p in packets], bool),
        shown=np.array([not p.is_discard for p in packets], bool),
    )
    return Track(
        kind=stream.type,
        codec=context.codec.canonical_name,
        config=bytes(context.extradata or b""),
        time_base=(stream.time_base.numerator, stream.time_base.denominator),
        columns=columns,
        height=context.height if is_video else 0,
        width=context.width if is_video else 0,
        rate=0 if is_video else context.sample_rate,
        # Not its layout: PyAV frees the map of one with an order of its own twice.
        num_channels=0 if is_video else context.channels,
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


def _opened(data: bytes, av: Any) -> Any:
    """A container, also one whose tags are not UTF-8: before PyAV 19 that has to be asked for."""
    options = {"metadata_errors": "replace"} if int(av.__version__.partition(".")[0]) < 19 else {}
    return av.open(io.BytesIO(data), "r", **options)


def _rotation_of(data: bytes, av: Any) -> int:
    """Degrees counterclockwise: FFmpeg tells them with the first picture only."""
    with _opened(data, av) as container:
        try:
            frame = next(container.decode(video=0), None)
        except av.error.FFmpegError:
            return 0  # decoding the clip says what is wrong
    degrees = 0 if frame is None else int(frame.rotation) % 360
    if degrees % 90:
        raise DataError(f"the picture is to be turned by {degrees} degrees: only 90, 180, 270 are")
    return degrees


def _timed_by_decoding(track: Track, payloads: list[bytes], limits: Limits) -> Track:
    """A track whose container has no times: frames in the order in which they are decoded."""
    numbers = [n for n, _ in decoded_frames(track, list(enumerate(payloads)), limits)]
    if len(set(numbers)) != len(numbers) or not numbers:
        raise DataError("the container has no times, and decoding does not tell them either")
    known = np.median(track.columns.duration) if len(track.columns.duration) else 1
    step = max(1, int(known))
    pts = np.zeros(len(payloads), np.int64)
    shown = np.zeros(len(payloads), bool)
    pts[numbers] = np.arange(len(numbers)) * step
    shown[numbers] = True
    return replace(track, columns=replace(track.columns, pts=pts, shown=shown))
