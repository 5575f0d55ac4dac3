"""Media files made by FFmpeg, with the number of each frame burnt in as a pattern of 16 bits."""

from __future__ import annotations

import functools
import shutil
import subprocess
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from numpy.typing import ArrayLike

from shardwise.extensions.media.files.byte_reader import BytesReader
from shardwise.extensions.media.files.frames import decode_frames, form_of
from shardwise.extensions.media.files.media_index import index_media

WIDTH, HEIGHT, NUM_FRAMES = 160, 120, 75
_BIT = 10  # pixels

H264 = "-c:v libx264 -preset ultrafast -bf 2 -b_strategy 0 -coder 1 -pix_fmt yuv420p -crf 28 "
SOUND = "-f lavfi -i sine=f=440:r=44100:d=3 "

# name -> (extension, options of inputs besides the frames, options of the output)
VIDEOS: dict[str, tuple[str, str, str]] = {
    "b_frames": ("mp4", "", H264 + "-g 25"),
    "one_key": ("mp4", "", H264 + "-g 250"),
    "open_gop": ("mp4", "", H264 + "-g 12 -x264-params open-gop=1:b-pyramid=normal:bframes=3"),
    # Slices behind a key frame name pictures before it, which they don't use.
    "open_gop_late": ("mp4", "", "-c:v libx264 -pix_fmt yuv420p -crf 28 -g 12 -x264-params "
                      "open-gop=1:bframes=2:ref=4:scenecut=0"),
    # They name more pictures than one group has.
    "open_gop_short": ("mp4", "", "-c:v libx264 -pix_fmt yuv420p -crf 28 -x264-params open-gop=1:"
                       "keyint=4:min-keyint=1:bframes=8:ref=8:scenecut=0:b-adapt=0"),
    # No key frame but the first: pictures are refreshed column by column.
    "intra_refresh": ("mp4", "", "-c:v libx264 -pix_fmt yuv420p -crf 28 -g 12 -x264-params "
                      "intra-refresh=1:bframes=0"),
    "vfr": ("mp4", "", H264 + "-g 24 -vf settb=1/1000,setpts=N*40+gt(mod(N\\,7)\\,3)*13+N*N/9 "
            "-enc_time_base 1/1000 -vsync passthrough -video_track_timescale 1000"),
    "co64": ("mov", SOUND, H264 + "-g 25 -c:a aac -movflags faststart"),
    "offset": ("mp4", "", H264 + "-g 25 -output_ts_offset 5"),
    "negative_cts": ("mp4", "", H264 + "-g 25 -movflags negative_cts_offsets"),
    "hevc": ("mp4", "", "-c:v libx265 -preset ultrafast -pix_fmt yuv420p -x265-params "
             "keyint=12:open-gop=1:bframes=3:log-level=none -tag:v hvc1"),
    "av1": ("mp4", "", "-c:v libaom-av1 -cpu-used 8 -usage realtime -g 25 -pix_fmt yuv420p"),
    "vp9": ("webm", "", "-c:v libvpx-vp9 -deadline realtime -cpu-used 8 -g 25 -b:v 300k "
            "-auto-alt-ref 1 -lag-in-frames 12"),
    "vp9_mp4": ("mp4", "", "-c:v libvpx-vp9 -deadline realtime -cpu-used 8 -g 25 -b:v 300k"),
    "mkv": ("mkv", SOUND, H264 + "-g 25 -c:a libopus"),
    "ts": ("ts", SOUND, H264 + "-g 25 -c:a aac"),
    "avi": ("avi", "", "-c:v mpeg4 -bf 0 -g 25 -q:v 5"),
    "avi_b": ("avi", "", "-c:v mpeg4 -bf 2 -g 25 -q:v 5"),
    "wmv": ("wmv", "", "-c:v wmv2 -g 25 -q:v 5"),
    "mpg": ("mpg", "", "-c:v mpeg2video -bf 2 -g 12 -q:v 5"),
    "fragmented": ("mp4", SOUND, H264 + "-g 25 -c:a aac -movflags frag_keyframe+empty_moov"),
    "sound": ("mp4", SOUND, H264 + "-g 25 -c:a aac"),
    "mpeg4": ("mp4", "", "-c:v mpeg4 -bf 2 -g 25 -q:v 5"),
}  # fmt: skip
# Made of another file by copying its packets: name -> (source, options before -i, after it).
COPIES = {
    "edit": ("b_frames.mp4", "-ss 0.5", "-c copy"),
    "edit_mkv": ("b_frames.mp4", "-ss 0.5", "-c copy"),
    "rotated": ("b_frames.mp4", "", "-c copy -metadata:s:v rotate=90"),
}


def frame(number: int) -> np.ndarray:
    """A picture that says its number: bits in two rows of blocks, over a moving pattern."""
    y, x = np.mgrid[0:HEIGHT, 0:WIDTH]
    pixels = np.stack([(x + 3 * number) % 256, (y * 2) % 256, (x + y + number) % 256], -1)
    pixels = (pixels // 2 + 40).astype(np.uint8)
    for bit in range(16):
        pixels[:_BIT, bit * _BIT : (bit + 1) * _BIT] = 255 * (number >> bit & 1)
    return pixels


def number_in(pixels: np.ndarray) -> int:
    """The number that is burnt into a picture `[height, width, 3]` of any size."""
    height, width = pixels.shape[:2]
    bit, rows = width / 16, max(1, height * _BIT // HEIGHT)
    values = [
        pixels[rows // 4 : max(rows // 4 + 1, rows * 3 // 4),
               int((i + 0.25) * bit) : max(int((i + 0.75) * bit), int((i + 0.25) * bit) + 1)].mean()
        for i in range(16)
    ]  # fmt: skip
    return sum((value > 128) << i for i, value in enumerate(values))


def decode(
    data: bytes, frames: ArrayLike, backend: str = "pyav", layout: str = "THWC", **form: Any
) -> np.ndarray:
    """Frames of a file by their numbers, as `decode_frames` gives them."""
    reader = BytesReader(data)
    index = index_media(reader)
    made = form_of(index, layout=layout, **form)
    return decode_frames(reader, index, np.asarray(frames), form=made, backend=backend)


def zeroed(data: bytes, number: int, *, keep: int = 8) -> bytes:
    """A file with a coded frame of its video damaged: zeros behind its first bytes."""
    columns = index_media(BytesReader(data)).first("video").columns
    at, size = int(columns.offset[number]), int(columns.size[number])
    return data[: at + keep] + bytes(size - keep) + data[at + size :]


class CountingReader(BytesReader):
    """A far file: the ranges that were read of it."""

    def __init__(self, data: bytes) -> None:
        super().__init__(data)
        self.ranges: list[tuple[int, int]] = []

    def holds(self, start: int, stop: int) -> bool:
        return start == stop

    def read(self, start: int, stop: int) -> memoryview:
        self.ranges.append((start, stop))
        return super().read(start, stop)

    @property
    def total(self) -> int:
        return sum(stop - start for start, stop in self.ranges)


def numbers_in(clip: np.ndarray, layout: str = "THWC") -> list[int]:
    if layout == "TCHW":
        clip = clip.transpose(0, 2, 3, 1)
    return [number_in(pixels) for pixels in clip]


@functools.cache
def frames_of(count: int = NUM_FRAMES) -> bytes:
    return b"".join(frame(number).tobytes() for number in range(count))


def ffmpeg(*arguments: str, data: bytes | None = None) -> bytes:
    """Run FFmpeg with some bytes as its input; returns what it writes to its output."""
    command = ["ffmpeg", "-v", "error", "-y", "-nostdin" if data is None else "-hide_banner"]
    done = subprocess.run([*command, *arguments], input=data, capture_output=True, check=False)
    assert done.returncode == 0, done.stderr.decode()[-2000:]
    return done.stdout


class MediaFolder:
    """Makes each file once, when it is first asked for."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder

    def path(self, name: str) -> Path:
        extension = "mkv" if name == "edit_mkv" else VIDEOS.get(name, ("mp4",))[0]
        target = self.folder / f"{name}.{extension}"
        if not target.exists():
            self._make(name, target)
        return target

    def read(self, name: str) -> bytes:
        return self.path(name).read_bytes()

    def make(self, name: str, options: str, *, inputs: str = "", count: int = NUM_FRAMES) -> Path:
        """A file of other options; its name says the container."""
        target = self.folder / name
        if not target.exists():
            raw = f"-f rawvideo -pix_fmt rgb24 -s {WIDTH}x{HEIGHT} -r 25 -i - {inputs}"
            maps = "-map 0:v" + (" -map 1:a" if inputs else "")
            with made_whole(target) as part:
                ffmpeg(*raw.split(), *maps.split(), *_words(options), str(part),
                       data=frames_of(count))  # fmt: skip
        return target

    def sound(self, name: str, options: str = "", *, seconds: float = 3, rate: int = 44100) -> Path:
        """A file of sound: noise, so that a shift by one sample is seen."""
        target = self.folder / name
        if not target.exists():
            noise = f"anoisesrc=d={seconds}:c=pink:r={rate}:seed=7:a=0.5"
            with made_whole(target) as part:
                ffmpeg("-f", "lavfi", "-i", noise, *_words(options), str(part))
        return target

    def _make(self, name: str, target: Path) -> None:
        if name in COPIES:
            source, before, after = COPIES[name]
            given = self.path(source.partition(".")[0])
            with made_whole(target) as part:
                ffmpeg(*before.split(), "-i", str(given), *after.split(), str(part))
        else:
            _, inputs, options = VIDEOS[name]
            self.make(target.name, options, inputs=inputs)


@contextmanager
def made_whole(target: Path) -> Iterator[Path]:
    """A path whose file gets its name when it is whole: two test processes may make the same."""
    with tempfile.TemporaryDirectory(dir=target.parent) as scratch:
        part = Path(scratch) / target.name
        yield part
        part.replace(target)


def _words(options: str) -> list[str]:
    return options.replace("'", "").split()


def needs_ffmpeg() -> None:
    pytest.importorskip("av")
    if shutil.which("ffmpeg") is None:
        pytest.skip("ffmpeg is not installed")
