"""A family of sounds, codecs x containers x channels x rates x delays, and their plain decoding."""

from __future__ import annotations

import io
from dataclasses import dataclass
from functools import cache
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from tests.support.media import ffmpeg, made_whole

SECONDS = 1.3
_DTYPES = {"u8": "u1", "s16": "i2", "s32": "i4", "flt": "f4", "dbl": "f8"}
_SCALES = {"u8": 1 << 7, "s16": 1 << 15, "s32": 1 << 31}


@dataclass(frozen=True)
class Kind:
    """One file of the family.

    Attributes:
        codec: options of FFmpeg's encoder.
        extension: the container's.
        channels, rate: of the sound.
        delay: options of a second pass that copies the packets: another start, or a part.
    """

    codec: str
    extension: str
    channels: int = 2
    rate: int = 48000
    delay: str = ""

    @property
    def name(self) -> str:
        words = [self.codec.split()[0], *self.codec.split()[1:], f"{self.channels}c{self.rate}"]
        words += self.delay.split()
        stem = "_".join(word.strip("-").replace("/", "").replace(":", "") for word in words)
        return f"{stem}.{self.extension}"


# Codec -> (containers, numbers of channels, rates).
_CODECS: dict[str, tuple[str, str, str]] = {
    "pcm_u8": ("wav", "1", "11025"),
    "pcm_s16le": ("wav mka mov avi w64 rf64.wav pipe.wav caf nut", "1 2 6 8", "16000 48000"),
    "pcm_s16be": ("aiff mov au", "2", "44100"),
    "pcm_s24le": ("wav mka", "2", "48000"),
    "pcm_s32le": ("wav", "2", "48000"),
    "pcm_f32le": ("wav mka", "1", "48000"),
    "pcm_f64le": ("wav", "1", "48000"),
    "pcm_mulaw": ("wav au", "1", "8000"),
    "pcm_alaw": ("wav", "1", "8000"),
    "flac": ("flac oga mka mp4 pipe.flac", "1 2 6 8", "16000 48000"),
    "alac": ("m4a mka caf", "1 2 6 8", "44100"),
    "libmp3lame": ("mp3 mka mp4 avi", "1 2", "8000 22050 44100 48000"),
    "libmp3lame -q:a 4": ("mp3", "2", "44100"),
    "libmp3lame -write_xing 0": ("mp3", "1 2", "44100"),
    "libmp3lame -reservoir 0": ("mp3 wav", "2", "48000"),
    "aac -aac_pns 0": ("m4a mov mka aac ts flv", "1 2 6 7 8", "16000 44100"),
    "libopus": ("opus ogg webm mka mp4 ts", "1 2 6 8", "48000"),
    "libopus -frame_duration 2.5": ("opus webm", "2", "48000"),
    "libopus -frame_duration 60": ("opus webm", "1", "16000"),
    "libopus -application voip -b:a 12k": ("opus webm", "1", "16000"),
    "libvorbis": ("ogg webm mka mp4", "1 2 6 8", "8000 44100 48000"),
    "ac3": ("ac3 mka mp4", "1 2 6", "44100 48000"),
    "eac3": ("eac3 mka", "2 6", "48000"),
    "mp2": ("mp2 mka ts mpg", "1 2", "44100"),
    "wavpack": ("wv mka", "2 8", "44100"),
    "tta": ("tta", "2", "44100"),
    "adpcm_ms": ("wav w64 mov", "2", "22050"),
    "adpcm_ima_wav": ("wav avi mka", "1 2", "22050"),
    "adpcm_ima_qt": ("mov aiff", "2", "44100"),
    "adpcm_g722": ("wav avi", "1", "16000"),
    "adpcm_g726": ("wav mka avi", "1", "8000"),
    "adpcm_swf": ("wav flv", "2", "44100"),
    "adpcm_yamaha": ("wav", "2", "22050"),
    "libspeex": ("ogg", "1", "16000"),
    "nellymoser": ("flv", "1", "22050"),
    "g723_1 -b:a 6300": ("wav", "1", "8000"),
    "real_144": ("rm", "1", "8000"),
    "wmav2": ("wma avi", "1 2", "22050 44100"),
    "truehd": ("mka", "2", "44100"),
    "wmav2 -b:a 24k": ("wma", "1", "22050"),
}
# A copy of the packets of some of them, begun late, or with another start.
_DELAYED = {
    "libmp3lame": "mp3 mka mp4",
    "aac -aac_pns 0": "m4a mka ts",
    "libopus": "opus webm mp4",
    "libvorbis": "ogg webm",
    "flac": "flac mka",
    "pcm_s16le": "wav mka mov",
}
_DELAYS = ("-ss 0.53", "-output_ts_offset 0.37", "-t 0.71")


def _family() -> list[Kind]:
    kinds = []
    for codec, (containers, channels, rates) in _CODECS.items():
        for extension in containers.split():
            for number in map(int, channels.split()):
                if number > 2 and extension in ("flv", "avi"):
                    continue
                every = [int(each) for each in rates.split()]
                kinds += [
                    Kind(codec, extension, number, rate)
                    for rate in (every if number == 1 else every[-1:])
                    if not (extension == "flv" and rate not in (11025, 22050, 44100))
                ]
    for codec, containers in _DELAYED.items():
        rate = int(_CODECS[codec][2].split()[-1])
        kinds += [
            Kind(codec, extension, 2, rate, delay)
            for extension in containers.split()
            for delay in _DELAYS
        ]
    return kinds


FAMILY: dict[str, Kind] = {kind.name: kind for kind in _family()}


@cache
def samples_of(channels: int, rate: int) -> NDArray[np.float32]:
    """The samples before encoding: tones and noise, other ones in each channel."""
    rng = np.random.default_rng(channels * 1_000_000 + rate)
    time = np.arange(int(SECONDS * rate) + 13) / rate
    tones = np.sin(2 * np.pi * (150 + 70 * np.arange(channels)[:, None]) * time * (1 + time))
    noise = rng.standard_normal((channels, len(time)))
    return (0.3 * tones + 0.05 * noise).astype(np.float32)


def make_sound(folder: Path, name: str) -> bytes:
    """The file of a name of the family."""
    kind, target = FAMILY[name], folder / name
    if not target.exists():
        data = samples_of(kind.channels, kind.rate).T.tobytes()
        raw = f"-f f32le -ar {kind.rate} -ac {kind.channels} -i -"
        plain = target.with_name("plain_" + name) if kind.delay else target
        first, _, second = kind.extension.rpartition(".")
        form = {"rf64": "-rf64 always", "pipe": f"-f {second}"}.get(first, "")
        options = f"{raw} -c:a {kind.codec} -strict -2 {form}"
        with made_whole(plain) as part:
            out = "pipe:1" if first == "pipe" else str(part)
            written = ffmpeg(*options.split(), out, data=data)
            if first == "pipe":
                part.write_bytes(written)
        if kind.delay:
            before, after = (kind.delay, "") if kind.delay.startswith("-ss") else ("", kind.delay)
            with made_whole(target) as part:
                options = f"{before} -i {plain} -c copy {after} -strict -2"
                ffmpeg(*options.split(), str(part))
    return target.read_bytes()


def plain_decode(data: bytes) -> tuple[NDArray[np.float32], int]:
    """All samples of the first sound, decoded in order by PyAV, and their rate."""
    import av

    parts, rate = [], 0
    with av.open(io.BytesIO(data), metadata_errors="replace") as container:
        for frame in container.decode(container.streams.audio[0]):
            channels, name = frame.layout.nb_channels, frame.format.name
            dtype = _DTYPES[name.removesuffix("p")]
            count = channels if frame.format.is_planar else 1
            rows = [np.frombuffer(frame.planes[row], dtype) for row in range(count)]
            if count == channels:
                part = np.stack([row[: frame.samples] for row in rows])
            else:
                part = rows[0][: frame.samples * channels].reshape(-1, channels).T
            scale = _SCALES.get(name.removesuffix("p"), 1)
            wide = part.astype(np.float64) - (scale if dtype == "u1" else 0)
            parts.append((wide / scale).astype(np.float32))
            rate = frame.sample_rate
    return np.concatenate(parts, axis=1), rate
