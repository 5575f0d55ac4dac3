"""The samples of each packet of sound, where a container only rounds them.

mkv counts milliseconds, avi and flv much the same, and packets of Vorbis and Opus have several
lengths: there the codec determines the samples of a packet, and the times only show whether one is
missing. All times of a track become samples.
"""

from __future__ import annotations

import re
import struct
from dataclasses import replace
from fractions import Fraction
from math import floor
from typing import Any

import numpy as np
from numpy.typing import NDArray

from shardwise.base.errors import DataError
from shardwise.extensions.media.files.limits import DEFAULT_LIMITS
from shardwise.extensions.media.files.opus_vorbis import opus_delay, opus_samples, vorbis_lengths
from shardwise.extensions.media.files.pyav_packets import decoded_sounds
from shardwise.extensions.media.files.track import Track

# The time of a packet that has none.
NO_TIME = -(1 << 62)
_OPUS_RATE = 48000
# Linear and companded PCM in packets: bits per sample.
_PCM = re.compile(r"pcm_[suf](8|16|24|32|64)(le|be)?$")
# Codecs whose packets may hold other numbers of samples than FFmpeg reckons from a container.
_MISTOLD = ("alac", "tta", "wavpack", "adpcm_ms", "adpcm_ima_wav")
# Codecs whose packets hold any number of frames or samples: all packets are decoded once.
_UNTOLD = ("wmav1", "wmav2", "truehd")


def with_sample_times(track: Track, packets: list[Any], payloads: list[bytes]) -> Track:
    """A track of sound whose ticks are samples, of PyAV's packets and their bytes."""
    columns, rate = track.columns, track.rate
    tick = Fraction(*track.time_base) * rate
    if not tick:
        raise DataError("the sound has no rate")
    # Packets outside an edit are decoded and not heard.
    heard = np.flatnonzero(columns.shown)
    if not len(heard):
        return track
    first, last = int(heard[0]), int(heard[-1])
    lead = _count_skipped(packets[first])[0]
    trim = sum(_count_skipped(packet)[1] for packet in packets[max(0, last - 3) : last + 1])
    lead = opus_delay(track.codec, track.config, lead)
    begin = 0 if columns.pts[first] == NO_TIME else int(columns.pts[first])
    # Halves up, as FFmpeg: Opus starts 6.5 ticks late in mkv.
    origin = floor((begin + floor(lead / tick + Fraction(1, 2))) * tick + Fraction(1, 2))
    said = np.rint(columns.duration * float(tick)).astype(np.int64)
    timed = np.rint((columns.pts - columns.pts[0]) * float(tick)).astype(np.int64)
    lengths = _lengths(track, payloads, said, is_exact=tick == 1)
    if tick == 1 and trim and said[-1] + trim in natural_lengths(track, lengths):
        lengths[-1], trim = said[-1], 0  # ogg: the last packet's duration has no padding in it
    starts = np.cumsum(lengths) - lengths
    # FFmpeg puts the last packet elsewhere if only a part of it is heard.
    apart = (starts - timed)[:-1][lengths[:-1] > 0]
    # Times of some codecs in avi count bytes, in ticks that count packets.
    odd = np.abs(np.diff(timed) - said[:-1])[said[:-1] > 0]
    is_told = (columns.pts != NO_TIME).all() and np.median(odd if len(odd) else 0) <= 4 * tick + 2
    if len(apart) and is_told and np.abs(np.diff(apart)).max(initial=0) > 4 * tick + 2:
        starts = timed
    lead += int(starts[first])
    return replace(
        track,
        time_base=(1, rate),
        columns=replace(columns, pts=origin - lead + starts, duration=lengths),
        origin=origin,
        lead=lead,
        length=max(0, int(starts[last] + lengths[last]) - lead - trim),
    )


def _lengths(
    track: Track, payloads: list[bytes], said: NDArray[np.int64], *, is_exact: bool
) -> NDArray[np.int64]:
    """Exact samples of each packet; `said` has the container's rounded counts."""
    pcm = _PCM.match(track.codec)
    if pcm or track.codec in ("pcm_mulaw", "pcm_alaw"):
        bits = int(pcm[1]) if pcm else 8
        sizes = np.array([len(each) for each in payloads], np.int64)
        return sizes * 8 // (bits * max(1, track.num_channels))
    if track.codec == "opus":
        counts = np.array([opus_samples(each) for each in payloads], np.int64)
        return counts * track.rate // _OPUS_RATE
    if track.codec == "vorbis":
        # The first packet only prepares (Vorbis I, 4.3.8).
        choices = vorbis_lengths(track.config)
        nearest = abs(said[:, None] - choices[None, :]).argmin(axis=1)
        lengths = said if is_exact else choices[nearest]
        lengths[0] = 0
        return lengths
    if is_exact and (said > 0).all() and track.codec not in _MISTOLD:
        return said
    return _decoded_lengths(track, payloads, said)


def _decoded_lengths(
    track: Track, payloads: list[bytes], said: NDArray[np.int64]
) -> NDArray[np.int64]:
    """Samples of each packet: the first ones' count for all, and the last one's decoded count."""
    last = len(payloads) - 1
    try:
        if track.codec in _UNTOLD:
            counts = _count_samples(track, payloads, range(last + 1))
            return np.array([counts.get(number, 0) for number in range(last + 1)], np.int64)
        head = _count_samples(track, payloads, range(min(2, last + 1)))
        tail = _count_samples(track, payloads, range(max(0, last - 1), last + 1))
    except DataError:
        return said  # decoding the sound raises the error
    # The first one may give less: the decoder leaves out its delay.
    usual = max((count for number, count in head.items() if number < last or not last), default=0)
    lengths = np.full(len(said), usual, np.int64)
    lengths[-1] = tail.get(last, usual)
    return lengths if usual else said


def _count_samples(track: Track, payloads: list[bytes], numbers: range) -> dict[int, int]:
    """Samples that some packets decode to, by their numbers."""
    run = [(number, payloads[number]) for number in numbers]
    return {
        number: sum(round(each.samples * track.rate / each.sample_rate) for each in frames)
        for number, frames in decoded_sounds(track, run, DEFAULT_LIMITS)
    }


def natural_lengths(track: Track, lengths: NDArray[np.int64]) -> list[int]:
    """The lengths that the last packet may have by its codec."""
    if track.codec == "vorbis":
        return [int(each) for each in vorbis_lengths(track.config)]
    return [int(lengths[-1]), int(lengths[:-1].max(initial=0))]


def _count_skipped(packet: Any) -> tuple[int, int]:
    """Samples to leave out at the start and the end of a packet."""
    if not packet.has_sidedata("skip_samples"):
        return 0, 0
    data = bytes(packet.get_sidedata("skip_samples"))
    if len(data) < 8:
        return 0, 0
    begin, end = struct.unpack_from("<II", data)
    return begin, end
