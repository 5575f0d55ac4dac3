"""Damaged media files: how many are refused, unchanged or wrong, and that none ends the process.

    python -m benchmarks.media_damage [--files 3000] [--seed 0]

Twenty formats are made by FFmpeg. Each file is damaged in one of six ways (one flipped bit, eight,
a cut, a run of zeros, two parts exchanged, bytes of the header) and decoded whole, by a child
process that is killed after a minute. "refused" is an error of the library, "unchanged" the samples
of the good file, "silent" other ones. PyAV alone decodes the same videos.
"""

from __future__ import annotations

import argparse
import io
import json
import multiprocessing
import tempfile
from collections import Counter
from pathlib import Path

import av
import numpy as np

import shardwise as sw
from shardwise.base.errors import ShardwiseError
from tests.support.media import ffmpeg

_AAC = "-c:a aac -b:a 64k"
_X264 = f"-c:v libx264 -preset fast -crf 24 -sc_threshold 0 -g 25 -bf 2 {_AAC}"
VIDEOS = {
    "h264.mp4": _X264, "h264.mkv": _X264, "h264.ts": _X264, "h264.mov": _X264,
    "fragments.mp4": f"{_X264} -movflags frag_keyframe+empty_moov",
    "mpeg4.avi": "-c:v mpeg4 -b:v 600k -g 25 -c:a libmp3lame",
    "mpeg2.mpg": "-c:v mpeg2video -b:v 600k -g 12 -bf 2 -c:a mp2",
    "vp9.webm": "-c:v libvpx-vp9 -crf 35 -b:v 0 -g 30 -deadline realtime -cpu-used 8 -c:a libopus",
    "hevc.mp4": f"-c:v libx265 -preset ultrafast -crf 24 -x265-params log-level=none:keyint=25:"
    f"open-gop=0 -tag:v hvc1 {_AAC}",
    "av1.mp4": "-c:v libsvtav1 -preset 12 -crf 40 -g 30",
}  # fmt: skip
SOUNDS = {
    "stereo.ogg": "-c:a libvorbis", "mono.ogg": "-ac 1 -c:a libvorbis",
    "constant.mp3": "-c:a libmp3lame -b:a 128k", "variable.mp3": "-c:a libmp3lame -q:a 4",
    "opus.opus": "-c:a libopus -b:a 64k", "opus.webm": "-c:a libopus -b:a 64k",
    "pcm.wav": "-c:a pcm_s16le", "flac.flac": "-c:a flac", "aac.m4a": "-c:a aac -b:a 96k",
    "ac3.mka": "-c:a ac3",
}  # fmt: skip
_PICTURES = (
    "-f lavfi -i testsrc2=s=128x96:r=25:d=3.6,noise=alls=12:allf=t -f lavfi "
    "-i sine=f=440:d=3.6:r=48000 -ac 2 -pix_fmt yuv420p"
)
_NOISE = (
    "-f lavfi -i aevalsrc=0.4*sin(2*PI*(200+400*t)*t)|0.3*sin(2*PI*(900-100*t)*t)"
    "+0.05*random(0):s=48000:d=7.3"
)


def damage(data: bytes, way: int, rng: np.random.Generator) -> bytes:
    """A file with damage of one of six kinds."""
    found = bytearray(data)
    size = len(data)
    if way in (0, 1):
        for at in rng.integers(0, size, (1, 8)[way]).tolist():
            found[at] ^= 1 << int(rng.integers(8))
    elif way == 2:
        del found[int(rng.integers(size)) :]
    elif way == 3:
        at, count = int(rng.integers(size)), int(rng.integers(16, 2048))
        found[at : at + count] = bytes(len(found[at : at + count]))
    elif way == 4:
        low, middle, high = sorted(rng.integers(0, size, 3).tolist())
        found[low:high] = data[middle:high] + data[low:middle]
    else:
        for at in rng.integers(0, min(512, size), 4).tolist():
            found[at] = int(rng.integers(256))
    return bytes(found)


def decode(name: str, data: bytes) -> np.ndarray:
    """All frames, or all of the sound."""
    if name in SOUNDS:
        return sw.audio()(data)
    media = sw.media()(data)
    return media.frames(np.arange(media.info.num_frames))


def decode_with_pyav(data: bytes) -> np.ndarray:
    """All frames of a video, as PyAV decodes them by itself."""
    with av.open(io.BytesIO(data)) as container:
        stream = container.streams.video[0]
        stream.thread_type = "NONE"
        size = {"height": stream.codec_context.height, "width": stream.codec_context.width}
        return np.stack([
            frame.reformat(**size, format="rgb24", interpolation="BILINEAR").to_ndarray()
            for frame in container.decode(stream)
        ])  # fmt: skip


def plain_outcome(data: bytes, good: np.ndarray) -> str:
    """What PyAV gives; each of its errors is a refusal."""
    try:
        found = decode_with_pyav(data)
    except Exception:  # noqa: BLE001 - raw errors are told of the library alone
        return "PyAV refused"
    return "PyAV unchanged" if np.array_equal(found, good) else "PyAV silent"


def outcome(name: str, data: bytes, good: np.ndarray) -> str:
    """What decoding gives: "refused", "unchanged", "silent", or the name of a raw error."""
    try:
        found = decode(name, data)
    except (ShardwiseError, IndexError) as error:
        return "refused" if isinstance(error, ShardwiseError) else "raw IndexError"
    except Exception as error:  # noqa: BLE001 - that there is none is what is measured
        return f"raw {type(error).__name__}: {error}"[:200]
    return "unchanged" if np.array_equal(found, good) else "silent"


def run(name: str, path: Path, seeds: list[int], pipe: object) -> None:
    """Decode damaged copies; each result goes through the pipe at once."""
    data = path.read_bytes()
    good = decode(name, data)
    for number in seeds:
        rng = np.random.default_rng([number, len(data)])
        pipe.send(["started"])  # type: ignore[attr-defined]
        damaged = damage(data, number % 6, rng)
        plain = [plain_outcome(damaged, good)] if name in VIDEOS else []
        pipe.send([outcome(name, damaged, good), *plain])  # type: ignore[attr-defined]


def check(name: str, path: Path, seeds: list[int]) -> Counter[str]:
    """Count outcomes of one format; a child that dies or hangs is started again."""
    context = multiprocessing.get_context("fork")
    counts: Counter[str] = Counter()
    while seeds:
        mine, other = context.Pipe()
        child = context.Process(target=run, args=(name, path, seeds, other))
        child.start()
        other.close()
        at, is_started = 0, False
        while at < len(seeds):
            try:
                answer, *plain = mine.recv() if mine.poll(60) else ["hang"]
            except EOFError:
                answer, plain = "crash", []
            if answer == "started":
                is_started = True
                continue
            counts.update([answer, *plain])
            if answer not in ("refused", "unchanged", "silent"):
                print(f"{name}: damage {seeds[at]}: {answer}", flush=True)
            at += 1
            if answer in ("hang", "crash"):
                assert is_started, "the good file can't be decoded"
                break
        child.kill()
        child.join()
        seeds = seeds[at:]
    return counts


def main() -> None:
    """Make the files, damage them, print a line per format and the shares."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--files", type=int, default=3000)
    parser.add_argument("--seed", type=int, default=0)
    arguments = parser.parse_args()
    each = arguments.files // (len(VIDEOS) + len(SOUNDS))
    seeds = [arguments.seed + number for number in range(each)]
    totals: dict[str, Counter[str]] = {"video": Counter(), "sound": Counter()}
    with tempfile.TemporaryDirectory() as folder:
        for kind, files, source in (("video", VIDEOS, _PICTURES), ("sound", SOUNDS, _NOISE)):
            for name, options in files.items():
                path = Path(folder) / name
                ffmpeg(*source.split(), *options.split(), str(path))
                counts = check(name, path, seeds)
                totals[kind] += counts
                print(name, json.dumps(counts), flush=True)
    for kind, counts in totals.items():
        num_files = sum(n for name, n in counts.items() if not name.startswith("PyAV"))
        silent, plain = (counts[name] / num_files for name in ("silent", "PyAV silent"))
        print(f"{kind}: {json.dumps(counts)}, silent {silent:.1%}, PyAV alone {plain:.1%}")


if __name__ == "__main__":
    main()
