"""Sound of a file by sample numbers: soundfile where it seeks exactly, else packets by an index.

Sample 0 is the first one that is heard: the encoder's delay is left out, for every format.
"""

from __future__ import annotations

from collections.abc import Iterator
from functools import cache
from importlib.util import find_spec
from typing import Any, TypeAlias

import numpy as np
from numpy.typing import NDArray

from shardwise.base.errors import DataError, MissingExtraError
from shardwise.extensions.media.files.byte_reader import RangeFile, RangeReader, read_exactly
from shardwise.extensions.media.files.coded_frames import read_segments, with_payloads
from shardwise.extensions.media.files.limits import DEFAULT_LIMITS, Limits
from shardwise.extensions.media.files.media_index import MediaIndex
from shardwise.extensions.media.files.pyav_packets import damaged, decoded_frames
from shardwise.extensions.media.files.track import Segment

# Decoded before a part and thrown away, until overlaps and bit reservoirs are what they are when
# decoding from the file's begin: Opus asks for 80 ms, MP3 for 9 frames.
_RUN_UP_S = 0.25
_SKIPPED_AT_ONCE = 1 << 18
_SCALES = {"s16": 1 << 15, "s32": 1 << 31, "u8": 1 << 7}


def is_plain_sound(head: bytes) -> bool:
    """Whether soundfile is to read a file of this beginning (40 bytes): wav, flac, ogg vorbis.

    Raises:
        MissingExtraError: it would, and neither it nor PyAV is installed.
    """
    is_wave = head[:4] in (b"RIFF", b"RF64") and head[8:12] == b"WAVE"
    is_vorbis = head[:4] == b"OggS" and head[29:35] == b"vorbis"
    if not (is_wave or is_vorbis or head[:4] == b"fLaC"):
        return False
    if not _has("soundfile") and not _has("av"):
        raise MissingExtraError(
            "wav, flac and ogg need soundfile, which is not installed", extra="audio"
        )
    return _has("soundfile")


@cache
def _has(module: str) -> bool:
    """Looked up once: a look through the path takes 0.3 ms."""
    return find_spec(module) is not None


class SoundFile:
    """Sound that libsndfile reads.

    Raises:
        DataError: the file is damaged.
    """

    def __init__(self, reader: RangeReader) -> None:
        import soundfile

        _check_riff(reader)
        self._errors: Any = (soundfile.LibsndfileError, RuntimeError)
        try:
            self._file: Any = soundfile.SoundFile(RangeFile(reader))
        except self._errors as error:
            raise DataError(f"libsndfile can't read the file: {error}") from error
        self.rate = int(self._file.samplerate)
        self.num_channels = int(self._file.channels)
        self.num_samples = int(self._file.frames)

    def _move_to(self, start: int) -> None:
        """Make `start` the next sample.

        libsndfile's seek in Vorbis is off by up to a block (52 samples were measured): there what
        lies before is decoded.
        """
        if self._file.format != "OGG":
            self._file.seek(start)
            return
        self._file.seek(0)
        for at in range(0, start, _SKIPPED_AT_ONCE):
            self._file.read(min(_SKIPPED_AT_ONCE, start - at), dtype="float32")

    def read(self, start: int, stop: int) -> NDArray[np.float32]:
        """Samples `[start, stop)`: float32 `[channels, stop - start]`."""
        try:
            self._move_to(start)
            sound = self._file.read(stop - start, dtype="float32", always_2d=True)
        except self._errors as error:
            raise DataError(f"samples {start} to {stop} can't be decoded: {error}") from error
        if len(sound) != stop - start:
            raise DataError(
                f"samples {start} to {stop} are asked for, and decoding ends after {len(sound)}: "
                "was the file cut?"
            )
        return np.ascontiguousarray(sound.T)


def _check_riff(reader: RangeReader) -> None:
    """Refuse a wav file that is shorter than it says: libsndfile makes a shorter one of it."""
    head = bytes(read_exactly(reader, 0, min(8, reader.num_bytes)))
    size = int.from_bytes(head[4:8], "little")
    # Written to a pipe, the length was never put in; the last byte of padding may be left out.
    if head[:4] == b"RIFF" and size < 0xFFFFFFFF and 8 + size > reader.num_bytes + 1:
        raise DataError(
            f"the header says {8 + size} bytes, and the file has {reader.num_bytes}: it was cut",
            offset=reader.num_bytes,
        )


class PacketSound:
    """Sound of a track, decoded from some packets before the part that is asked for."""

    def __init__(
        self, reader: RangeReader, index: MediaIndex, limits: Limits = DEFAULT_LIMITS
    ) -> None:
        self._reader, self._limits = reader, limits
        self._index = with_payloads(index, reader, limits)
        self._track = self._index.first("audio")
        # What a packet holds, and the rate that the decoder knows better than the container
        # (HE-AAC has twice the rate that is written). The first packet may only prepare.
        frames = self._frames(0, min(4, self._count))
        number, frame = next(frames, (0, None))
        if frame is None:
            raise damaged(self._track, number, "the decoder gives no sound")
        others = (each for later, each in frames if later > 0)
        second = frame if number > 0 else next(others, frame)
        self.rate = int(frame.sample_rate)
        self.num_channels = int(frame.layout.nb_channels)
        self._per_packet = int(max(frame.samples, second.samples))
        scale = self.rate / (self._track.rate or self.rate)
        self._lead = round(self._track.lead * scale)
        self.num_samples = round(self._track.length * scale)
        self._starts = self._positions()

    @property
    def _count(self) -> int:
        return len(self._track.columns.pts)

    def _positions(self) -> NDArray[np.int64]:
        """The sample at which each packet begins, int64 `[packets]`.

        Containers round times (mkv: to milliseconds). Packets of one length are counted instead,
        as long as that agrees with the times within two ticks.
        """
        track = self._track
        numerator, denominator = track.time_base
        tick = self.rate * numerator / denominator
        timed = np.rint((track.columns.pts - track.columns.pts[0]) * tick).astype(np.int64)
        counted = np.arange(self._count, dtype=np.int64) * self._per_packet
        starts = counted if (abs(counted - timed) <= 2 * tick + 1).all() else timed
        return starts - self._lead

    def _frames(self, first: int, last: int) -> Iterator[tuple[int, Any]]:
        track = self._track
        samples = np.arange(first, last)
        segment = Segment(samples, samples)
        (payloads,) = read_segments(self._index, track, [segment], self._reader)
        return decoded_frames(track, zip(samples.tolist(), payloads, strict=True), self._limits)

    def read(self, start: int, stop: int) -> NDArray[np.float32]:
        """Samples `[start, stop)`: float32 `[channels, stop - start]`."""
        out = np.zeros((self.num_channels, stop - start), np.float32)
        if stop <= start:
            return out
        first = max(0, int(np.searchsorted(self._starts, start, side="right")) - 1)
        last = int(np.searchsorted(self._starts, stop, side="left"))
        run_up = -(-int(_RUN_UP_S * self.rate) // self._per_packet)
        filled = 0
        for number, frame in self._frames(max(0, first - run_up), last):
            if not first <= number < last:
                continue
            if frame.is_corrupt:
                raise damaged(self._track, number, "the decoder calls the sound damaged")
            sound = _as_float(frame)
            at = int(self._starts[number])
            if sound.shape[1] < self._per_packet and number < self._count - 1:
                # The decoder leaves out the delay by itself: the end is in place.
                at += self._per_packet - sound.shape[1]
            low, high = max(at, start), min(at + sound.shape[1], stop)
            if low < high:
                out[:, low - start : high - start] = sound[:, low - at : high - at]
                filled += high - low
        if filled != stop - start:
            raise DataError(
                f"{self._track.codec}: {filled} of {stop - start} samples from {start} on could be "
                "decoded: is the file damaged?"
            )
        return out


Sound: TypeAlias = SoundFile | PacketSound


def _as_float(frame: Any) -> NDArray[np.float32]:
    """A frame of PyAV as float32 `[channels, samples]`."""
    sound = frame.to_ndarray()
    if not frame.format.is_planar:
        sound = sound.reshape(-1, frame.layout.nb_channels).T
    scale = _SCALES.get(frame.format.name.removesuffix("p"))
    if scale is None:
        return np.asarray(sound, np.float32)
    if scale == 1 << 7:
        sound = sound.astype(np.int16) - scale
    # float32 holds 24 bits: int32 goes by float64, and is rounded once.
    scaled: NDArray[np.float32] = (sound / np.float64(scale)).astype(np.float32)
    return scaled
