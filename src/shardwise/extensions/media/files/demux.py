"""The tracks of any file by one PyAV demux: mkv, webm, ts, avi, mpg, fragmented mp4, mp3, ogg.

Nothing is decoded, but where a container does not say when a frame is shown (avi) and the codec may
change the order: then all frames are decoded once for it. A packet's place is kept where its bytes
lie in the file in one piece; of other containers the file is demuxed again when it is decoded.
"""

from __future__ import annotations

import io
from dataclasses import replace
from typing import Any

import numpy as np

from shardwise.base.errors import DataError
from shardwise.extensions.media.files.container_ends import check_end
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
from shardwise.extensions.media.files.sound_times import NO_TIME, with_sample_times
from shardwise.extensions.media.files.track import Track, TrackColumns

# Bytes between a packet's position in FFmpeg and its payload: the header of a block, a chunk, or a
# page of Ogg with its 255 lengths.
_MAX_HEADER_BYTES = 27 + 255
# Codecs whose pictures FFmpeg decodes otherwise if those before were not, key frames or none.
_FROM_THE_FIRST = ("dirac",)
# Kinds of side data that change how a packet and those after it are decoded.
_CHANGES = ("palette", "new_extradata", "param_change")


def demux(data: bytes | memoryview, limits: Limits) -> tuple[list[Track], list[list[bytes]]]:
    """The tracks of a file in memory, and the payloads of each in decode order."""
    av = import_av("this container")
    check_end(data)
    whole = bytes(data)
    try:
        with _open_container(whole, av) as container:
            streams = [
                s
                for s in container.streams
                if s.type in ("video", "audio") and s.codec_context is not None and not _is_cover(s)
            ]
            packets: dict[int, list[Any]] = {stream.index: [] for stream in streams}
            try:
                for packet in container.demux(streams) if streams else ():
                    if packet.size:
                        packets[packet.stream_index].append(packet)
                        limits.check_frames(len(packets[packet.stream_index]), "packets")
            except IndexError as error:  # of PyAV: its list of streams is that of the header
                raise DataError("a stream begins in the middle of the file: damaged") from error
            pairs = [
                (stream, unpacked(_codec(stream), packets[stream.index]))
                for stream in streams
                if packets[stream.index]
            ]
            tracks = [_track(stream, own, whole, limits) for stream, own in pairs]
            payloads = [[bytes(packet) for packet in own] for _, own in pairs]
            for number, (stream, own) in enumerate(pairs):
                if stream.type == "video":
                    rotation, has_times = _looked_at(whole, av, stream.index)
                    track = replace(tracks[number], rotation=rotation)
                    if not has_times and may_reorder(stream.codec_context.codec, payloads[number]):
                        dts = [packet.dts for packet in packets[stream.index]]
                        track = timed_by_decoding(track, payloads[number], dts, limits)
                    elif has_times and track.codec == "mpeg4":
                        check_order(track, payloads[number])
                else:
                    track = with_sample_times(tracks[number], own, payloads[number])
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
    # Pictures without a time of showing: that of decoding, in which they are shown unless they are
    # timed. Sound without one has the samples of the packets before it.
    times = [p.dts if is_video and p.pts is None else p.pts for p in packets]
    untimed = range(len(packets)) if is_video else [NO_TIME] * len(packets)
    pts = np.array([u if t is None else t for u, t in zip(untimed, times, strict=True)], np.int64)
    duration = np.array([p.duration or 0 for p in packets], np.int64)
    if is_video and len(pts) > 1 and not duration.any():  # asf
        duration[:] = np.median(np.diff(np.sort(pts)))
    own = _codec(stream) not in _FROM_THE_FIRST
    columns = TrackColumns(
        pts=pts,
        duration=duration,
        size=np.array([p.size for p in packets], np.int64),
        offset=_places(packets, data),
        key=np.array([p.is_keyframe and (own or not i) for i, p in enumerate(packets)], bool),
        shown=np.array([not p.is_discard for p in packets], bool),
    )
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
        # Not its layout: PyAV frees the map of one with its own order twice.
        num_channels=0 if is_video else context.channels,
    )


def _places(packets: list[Any], data: bytes) -> Any:
    """The offsets of the payloads; all -1 if one does not lie in one piece at its position.

    The packets of one page of Ogg have its position, and lie one after the other.
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


def _check_changes(packets: list[Any], context: Any) -> None:
    """Refuse a stream whose packets change what the decoder was opened with: it is not kept."""
    for number, packet in enumerate(packets):
        for kind in _CHANGES:
            if packet.has_sidedata(kind) and bytes(packet.get_sidedata(kind)) != context.extradata:
                raise DataError(
                    f"packet {number} has a {kind.replace('_', ' ')} of its own, which is not "
                    f"kept: {REPAIR}"
                )


def _open_container(data: bytes, av: Any, **options: str) -> Any:
    """A container, also one whose tags are not UTF-8: before PyAV 19 that has to be requested."""
    asked = {"metadata_errors": "replace"} if int(av.__version__.partition(".")[0]) < 19 else {}
    return av.open(io.BytesIO(data), "r", options=options, **asked)


def _looked_at(data: bytes, av: Any, stream: int) -> tuple[int, bool]:
    """Degrees counterclockwise, and whether the container has the times of pictures.

    FFmpeg reports the degrees with the first picture only, and fills in times unless it must not.
    """
    degrees, has_times = 0, None
    with _open_container(data, av, fflags="nofillin") as container:
        try:
            for packet in container.demux(container.streams[stream]):
                has_times = packet.pts is not None if has_times is None else has_times
                if frames := packet.decode():
                    degrees = int(frames[0].rotation) % 360
                    break
        except av.error.FFmpegError:
            pass  # decoding the clip raises the error
    if degrees % 90:
        raise DataError(f"the picture is to be turned by {degrees} degrees: only 90, 180, 270 are")
    return degrees, bool(has_times)
