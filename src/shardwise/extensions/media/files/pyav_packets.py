"""Coded frames through one PyAV codec context: no container, no seek, no probing.

A packet carries its number in decode order instead of its time, and the decoder passes it on to the
picture: so a picture is known by what it was coded in, not by arithmetic with times.
"""

from __future__ import annotations

import contextlib
from collections.abc import Container, Iterable, Iterator
from typing import Any

from shardwise.base.errors import DataError
from shardwise.extensions.media.files.limits import Limits
from shardwise.extensions.media.files.pyav_import import import_av
from shardwise.extensions.media.files.references import has_hole
from shardwise.extensions.media.files.track import Track

# Their decoders take what they merely do not know, such as tags, for an error.
_LENIENT = ("tiff",)


class NotAKeyFrameError(DataError):
    """The container calls a coded frame a key frame, and its codec does not."""


def decoded_frames(
    track: Track,
    samples: Iterable[tuple[int, bytes | memoryview]],
    limits: Limits,
    *,
    may_fail: Container[int] = (),
    wanted: Container[int] | None = None,
) -> Iterator[tuple[int, Any]]:
    """Decode `samples`, (number in decode order, payload) from a key frame on, in order of showing.

    Errors of the numbers in `may_fail` do not count. With `wanted` decoders leave out pictures that
    no other needs, about a fifth of common H.264 files.
    """
    av = import_av(f"decoding {track.codec}")
    number = -1
    try:
        context = _context(av, track.codec)
        if track.config:
            context.extradata = track.config
        # Errors are errors, not pictures or sound that were guessed. The check is of the checksums
        # of a stream that has some: HEVC's picture hashes, the slices of FFV1, frames of AC-3.
        lenient = track.codec in _LENIENT
        context.options = {
            **track.parameters, "err_detect": "crccheck" if lenient else "crccheck+explode",
        }  # fmt: skip
        if track.kind == "video":
            context.width, context.height = track.width, track.height
            context.thread_count = 1
            context.options |= {"max_pixels": str(limits.max_pixels)}
        elif track.codec != "flac":
            if track.num_channels < 1 or track.rate < 1:
                raise damaged(track, 0, "the container tells no channels or no rate")
            # Decoders of some codecs have no header in their packets.
            context.sample_rate = track.rate
            context.layout = _layout(track.num_channels)
        for number, payload in samples:
            payload = bytes(payload)
            if number not in may_fail and has_hole(track, payload):
                raise damaged(track, number, "zeros lie in place of a part of it")
            packet = packet_of(av, payload)
            packet.pts = packet.dts = number
            # Decoders of PNG and others add a picture without it to the one before.
            packet.is_keyframe = bool(track.columns.key[number])
            if wanted is not None and track.codec != "av1":  # dav1d takes it once, for all frames
                context.skip_frame = "DEFAULT" if number in wanted else "NONREF"
            for frame in _decode_packet(av, context, packet, may_fail=number in may_fail):
                yield number_of(frame), frame
        for frame in context.decode(None):
            yield number_of(frame), frame
    except av.error.FFmpegError as error:
        raise damaged(track, number, error.strerror or str(error)) from error


def decoded_sounds(
    track: Track, samples: Iterable[tuple[int, bytes | memoryview]], limits: Limits
) -> Iterator[tuple[int, list[Any]]]:
    """Decode a run of packets of sound: the number of each and its frames.

    FFmpeg numbers the first frame of a packet only. What WMA's decoder gives at the end belongs to
    the packet before.
    """
    current: int = 0
    frames: list[Any] = []
    for number, frame in decoded_frames(track, samples, limits):
        if number >= 0 and number != current:
            if frames:
                yield current, frames
            current, frames = number, []
        frames.append(frame)
    if frames:
        yield current, frames


def _decode_packet(av: Any, context: Any, packet: Any, *, may_fail: bool) -> list[Any]:
    try:
        return list(context.decode(packet))
    except av.error.InvalidDataError:
        if not may_fail:
            raise
        return []


def packet_of(av: Any, payload: bytes | memoryview) -> Any:
    """A packet with a copy of a payload.

    `av.Packet(payload)` takes the bytes as they lie. FFmpeg's decoders read some bytes past the
    end, and call a sound frame damaged for what they find there; a copy is followed by zeros.
    """
    packet = av.Packet(len(payload))
    packet.update(bytes(payload))
    return packet


# FFmpeg's own decoder of AV1 needs a GPU; those with the names of MPEG's sound round to 16 bits by
# noise, which is another one for a part.
_DECODERS = {
    "av1": ("libdav1d", "libaom-av1"),
    "mp1": ("mp1float",),
    "mp2": ("mp2float",),
    "mp3": ("mp3float",),
}


def _context(av: Any, codec: str) -> Any:
    """The decoder that FFmpeg takes for a codec that it finds in a file."""
    for name in _DECODERS.get(codec, ()):
        with contextlib.suppress(ValueError):  # not in this build
            return av.CodecContext.create(name, "r")
    return av.CodecContext.create(codec, "r")


def _layout(num_channels: int) -> str:
    return {1: "mono", 2: "stereo"}.get(num_channels, f"{num_channels}c")


def number_of(frame: Any) -> int:
    """The number of the packet that a frame was coded in; -1 where the decoder does not say."""
    return -1 if frame.pts is None else int(frame.pts)


def damaged(track: Track, number: int, reason: str) -> DataError:
    """The error of one coded frame: its number, and its offset in the file if it has one."""
    columns, where = track.columns, ""
    offset = None
    if 0 <= number < len(columns.offset):
        offset = int(columns.offset[number])
        where = f" at byte {offset} of the file" if offset >= 0 else ""
    return DataError(
        f"{track.codec}: coded {track.kind} frame {number}{where} can't be decoded: {reason}",
        offset=offset if offset is not None and offset >= 0 else None,
    )
