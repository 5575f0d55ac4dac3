"""Sound of a file by sample numbers: flac by soundfile, all else by an index of its packets.

Sample 0 is the first one that is heard: the encoder's delay is left out, for every format.
"""

from __future__ import annotations

from collections.abc import Iterator
from fractions import Fraction
from functools import cache
from importlib.util import find_spec
from math import ceil, floor
from typing import Any, TypeAlias

import numpy as np
from numpy.typing import NDArray

from shardwise.base.errors import DataError
from shardwise.extensions.media.files.byte_reader import RangeFile, RangeReader
from shardwise.extensions.media.files.coded_frames import read_segments, with_payloads
from shardwise.extensions.media.files.limits import DEFAULT_LIMITS, Limits
from shardwise.extensions.media.files.media_index import MediaIndex
from shardwise.extensions.media.files.pyav_packets import damaged, decoded_sounds
from shardwise.extensions.media.files.sound_samples import samples_of
from shardwise.extensions.media.files.track import Segment, Track

# Decoded before a part and thrown away, until overlaps and bit reservoirs are what they are when
# decoding from the file's start: Opus asks for 80 ms, MP3 for 9 frames.
_RUN_UP_S = 0.25
# Opus halves what it keeps of the packets before in 20 ms.
_RUN_UPS = {"opus": 0.5}
# Up to this rate AAC-LC may be the lower band of HE-AAC.
_AAC_LC, _MAX_LOWER_BAND = 2, 24_000
# Decoders that draw noise, or forecast from all before: they start at the first packet.
_LONG_MEMORY = frozenset((
    "ac3", "eac3", "speex", "amr_nb", "amr_wb", "gsm", "gsm_ms", "qcelp", "evrc", "wmav1", "wmav2",
    "g723_1", "g729", "ilbc", "nellymoser", "ra_144", "ra_288", "sipr", "truespeech",
))  # fmt: skip
# Kinds of ADPCM with a header per block; other kinds continue where the packet before ended.
_WITH_HEADERS = ("adpcm_ms", "adpcm_ima_wav", "adpcm_swf")
# Packets from which a decoder finds rate and channels. No part of a sound has fewer.
_TELLING = 4
# The codec's tag in mp4.
_MP4A = str(int.from_bytes(b"mp4a", "little"))


def is_plain_sound(head: bytes) -> bool:
    """Whether soundfile is to read a file of this start (26 bytes): flac of a known length."""
    # The low 36 bits of 8 bytes of STREAMINFO are the number of samples (RFC 9639, 8.2).
    known = int.from_bytes(head[18:26], "big") & ((1 << 36) - 1)
    return head[:4] == b"fLaC" and known > 0 and _has_soundfile()


@cache
def _has_soundfile() -> bool:
    """Whether it is installed, cached: a look through the path takes 0.3 ms."""
    return find_spec("soundfile") is not None


class SoundFile:
    """Sound that libsndfile reads."""

    def __init__(self, reader: RangeReader) -> None:
        import soundfile

        self._errors: Any = (soundfile.LibsndfileError, RuntimeError)
        try:
            self._file: Any = soundfile.SoundFile(RangeFile(reader))
        except self._errors as error:
            raise DataError(f"libsndfile can't read the file: {error}") from error
        self.rate = int(self._file.samplerate)
        self.num_channels = int(self._file.channels)
        self.num_samples = int(self._file.frames)

    def read(self, start: int, stop: int) -> NDArray[np.float32]:
        """Samples `[start, stop)`: float32 `[channels, stop - start]`."""
        try:
            self._file.seek(start)
            sound = self._file.read(stop - start, dtype="float32", always_2d=True)
        except self._errors as error:
            raise DataError(
                f"samples {start} to {stop} can't be decoded: {error}; was the file cut?"
            ) from error
        if len(sound) != stop - start:
            raise DataError(
                f"samples {start} to {stop} are asked for, and decoding ends after {len(sound)}: "
                "was the file cut?"
            )
        return np.ascontiguousarray(sound.T)


class PacketSound:
    """Sound of a track, decoded from some packets before the part that is requested.

    `near` is the second, from the first sample that is heard, at which packets are looked at for
    what the header does not tell.
    """

    def __init__(
        self,
        reader: RangeReader,
        index: MediaIndex,
        limits: Limits = DEFAULT_LIMITS,
        *,
        near: Fraction | float = 0,
    ) -> None:
        self._reader, self._limits = reader, limits
        self._index = with_payloads(index, reader, limits)
        self._track = track = self._index.first("audio")
        self.rate, self.num_channels = track.rate, track.num_channels
        is_mp4 = track.parameters.get("codec_tag") == _MP4A and track.codec in ("aac", "mp3")
        if is_mp4 and not _is_plain_aac(track):
            # The header of an mp4 with HE-AAC may have half the rate, and one channel of two.
            begin, *_ = packets_of(track, floor(near * track.rate), 0)
            head = begin, min(begin + _TELLING, len(track.columns.pts))
            # That of MP3 puts the header's rate into the first one.
            told = [frame for _, frames in self._sounds(*head) for frame in frames]
            if not told:
                raise damaged(track, begin, "the decoder gives no sound")
            self.rate = int(told[-1].sample_rate)
            self.num_channels = int(told[-1].layout.nb_channels)
        self._scale = Fraction(self.rate, track.rate or self.rate)
        self.num_samples = round(track.length * self._scale)

    def _sounds(self, first: int, last: int) -> Iterator[tuple[int, list[Any]]]:
        track = self._track
        samples = np.arange(first, last)
        segment = Segment(samples, samples)
        (payloads,) = read_segments(self._index, track, [segment], self._reader)
        return decoded_sounds(track, zip(samples.tolist(), payloads, strict=True), self._limits)

    def read(self, start: int, stop: int) -> NDArray[np.float32]:
        """Samples `[start, stop)`: float32 `[channels, stop - start]`."""
        frames: list[Any] = []
        low = high = start
        for at, frame in self._heard(start, stop) if start < stop else ():
            if not frames:
                low = high = at
            elif at != high or frame.format.name != frames[0].format.name:
                break
            frames.append(frame)
            high += frame.samples
        if low > start or high < stop:
            raise DataError(
                f"{self._track.codec}: {max(0, min(high, stop) - max(low, start))} of "
                f"{stop - start} samples from {start} on could be decoded: the file is damaged, or "
                "its times leave a gap in the sound"
            )
        if not frames:
            return np.zeros((self.num_channels, 0), np.float32)
        return samples_of(frames, start - low, stop - start)

    def _heard(self, start: int, stop: int) -> Iterator[tuple[int, Any]]:
        """The frames that have samples `[start, stop)`, and the first sample of each."""
        track, scale = self._track, self._scale
        begin, first, last = packets_of(track, floor(start / scale), ceil(stop / scale))
        ends = [(bounds[first:last] * int(scale)).tolist() for bounds in track.sample_bounds]
        for number, frames in self._sounds(begin, last):
            if not first <= number < last:
                continue
            at, end = ends[0][number - first], ends[1][number - first]
            if number < len(track.columns.pts) - 1:
                # Decoders leave out the delay by themselves: then the end is in place.
                at += max(0, end - at - sum(frame.samples for frame in frames))
            for frame in frames:
                channels = frame.layout.nb_channels
                if frame.is_corrupt:
                    raise damaged(track, number, "the decoder calls the sound damaged")
                if channels != self.num_channels:
                    reason = f"it has {channels} channels, not {self.num_channels}"
                    raise damaged(track, number, reason)
                if max(at, start) < min(at + frame.samples, stop):
                    yield at, frame
                at += frame.samples


def _is_plain_aac(track: Track) -> bool:
    """Whether it is AAC-LC of a numbered layout, and not the lower band of HE-AAC."""
    if track.codec != "aac" or len(track.config) < 2 or track.rate <= _MAX_LOWER_BAND:
        return False
    return track.config[0] >> 3 == _AAC_LC and track.config[1] >> 3 & 15 > 0


def packets_of(track: Track, start: int, stop: int) -> tuple[int, int, int]:
    """The packet to decode from; the first and the one after the last of `[start, stop)`."""
    starts, _ = track.sample_bounds
    first = max(0, int(np.searchsorted(starts, start, side="right")) - 1)
    last = max(first + 1, int(np.searchsorted(starts, stop, side="left")), _TELLING)
    last = min(last, len(starts))
    goes_on = track.codec.startswith("adpcm_") and track.codec not in _WITH_HEADERS
    # ADTS has no number for 7 channels: the first packet names them.
    goes_on |= track.codec == "aac" and not track.config and track.num_channels == 7
    if goes_on or track.codec in _LONG_MEMORY:
        return 0, first, last
    if _is_plain_aac(track):  # a packet overlaps the one before
        return max(0, first - _TELLING + 1), first, last
    before = starts[first] - int(_RUN_UPS.get(track.codec, _RUN_UP_S) * track.rate)
    begin = min(first - 2, int(np.searchsorted(starts, before, side="right")) - 1)
    return max(0, begin), first, last


Sound: TypeAlias = SoundFile | PacketSound
