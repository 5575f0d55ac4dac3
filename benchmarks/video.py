"""CPU of one clip as a multiple of the floor, bytes of an index, remote bytes, and 10 s of an hour.

    python -m benchmarks.video [--clips 20] [--seconds 10] [--gop 12 48 250]
                              [--pictures | --sound | --index]

The floor is the packets from the key frame to the last wanted frame, through one PyAV codec
context, and the wanted frames to RGB. All ways alternate in one process with torch at one thread;
CPU seconds, so that other work on the machine matters little. Needs ffmpeg.
"""

from __future__ import annotations

import argparse
import io
import subprocess
import tempfile
import time
from collections import defaultdict
from pathlib import Path

import numpy as np

import shardwise as sw
from shardwise.extensions.media.files.byte_reader import BytesReader
from shardwise.extensions.media.files.coded_frames import read_segments
from shardwise.extensions.media.files.frames import decode_frames, form_of
from shardwise.extensions.media.files.index_format import index_to_bytes
from shardwise.extensions.media.files.media_index import index_media, with_checksums
from shardwise.extensions.media.files.sound_window import open_sound, read_window

NUM_FRAMES, STRIDE = 16, 4

# For the bytes of an index.
CODECS = {
    "H.264": "-c:v libx264 -preset ultrafast -bf 2 -g 48",
    "H.264, a quarter of the frames left out": "-c:v libx264 -preset ultrafast -bf 2 -g 48 "
    "-vf select=gt(mod(n*7\\,11)\\,2) -vsync passthrough",
    "H.264, no two frames equally long": "-c:v libx264 -preset ultrafast -bf 2 -g 48 "
    "-vf settb=1/90000,setpts=N*3000+random(1)*2000 -enc_time_base 1/90000 -vsync passthrough",
    "HEVC": "-c:v libx265 -preset ultrafast -x265-params keyint=48:log-level=none",
    "VP9": "-c:v libvpx-vp9 -deadline realtime -cpu-used 8 -g 48",
}


def make(folder: Path, gop: int, seconds: int) -> bytes:
    """A video of 854x480 with two B-frames."""
    path = folder / f"gop{gop}.mp4"
    source = f"testsrc2=s=854x480:r=30:d={seconds},noise=alls=12:allf=t"
    options = f"-c:v libx264 -preset veryfast -bf 2 -g {gop} -keyint_min {gop} -sc_threshold 0"
    command = ["ffmpeg", "-v", "error", "-y", "-f", "lavfi", "-i", source, *options.split()]
    subprocess.run(
        [*command, "-pix_fmt", "yuv420p", "-crf", "26", "-movflags", "faststart", path], check=True
    )
    return path.read_bytes()


def floor(data, index, frames, size=None):
    """Decode what must be decoded, and convert what is wanted, to `size` x `size` or as it is."""
    import av

    track = index.first("video")
    segments = track.segments(frames)
    parts = read_segments(index, track, segments, BytesReader(data))
    for segment, payloads in zip(segments, parts, strict=True):
        context = av.CodecContext.create("h264", "r")
        context.extradata, context.thread_count = track.config, 1
        wanted = set(segment.wanted.tolist())
        reformatter = av.video.reformatter.VideoReformatter()
        left = len(wanted)
        for number, payload in zip(segment.samples.tolist(), payloads, strict=True):
            packet = av.Packet(bytes(payload))
            packet.pts = packet.dts = number
            for frame in context.decode(packet):
                left -= keep(reformatter, frame, wanted, size)
        for frame in context.decode(None) if left else ():
            keep(reformatter, frame, wanted, size)


def keep(reformatter, frame, wanted, size):
    if frame.pts not in wanted:
        return 0
    picture = reformatter.reformat(frame, format="rgb24", width=size, height=size, threads=1)
    picture.to_ndarray()
    return 1


def ways(data, index, size):
    form = form_of(index, layout="THWC")
    small = form_of(index, layout="THWC", size=(size, size))
    reader = BytesReader(data)
    return {
        "floor": lambda frames: floor(data, index, frames),
        "ours, PyAV": lambda frames: decode_frames(reader, index, frames, form=form),
        "ours, PyAV, 224": lambda frames: decode_frames(reader, index, frames, form=small),
        "ours, no index stored": lambda frames: decode_frames(
            reader, index_media(reader), frames, form=form
        ),
        "torchcodec exact": lambda frames: torchcodec_exact(data, frames),
        "PyAV seek": lambda frames: pyav_seek(data, index, frames),
    }


def torchcodec_exact(data, frames):
    from torchcodec.decoders import VideoDecoder

    VideoDecoder(data, num_ffmpeg_threads=1).get_frames_at(frames.tolist())


def pyav_seek(data, index, frames):
    import av

    track = index.first("video")
    wanted = set(track.pts[frames].tolist())
    with av.open(io.BytesIO(data)) as container:
        stream = container.streams.video[0]
        stream.codec_context.thread_count = 1
        container.seek(min(wanted), stream=stream)
        for frame in container.decode(stream):
            if frame.pts in wanted:
                frame.to_ndarray(format="rgb24")
                wanted.remove(frame.pts)
                if not wanted:
                    return


def cpu(call, *arguments):
    begin = time.process_time()
    call(*arguments)
    return time.process_time() - begin


def clips(folder, num_clips, seconds, gops):
    import torch

    torch.set_num_threads(1)
    for gop in gops:
        data = make(folder, gop, seconds)
        index = index_media(BytesReader(data))
        track = index.first("video")
        rng = np.random.default_rng(0)
        calls = ways(data, index, 224)
        spent: dict[str, float] = defaultdict(float)
        for number in range(num_clips + 1):
            start = int(rng.integers(track.num_frames - (NUM_FRAMES - 1) * STRIDE))
            frames = start + STRIDE * np.arange(NUM_FRAMES)
            names = list(calls)
            for name in names[number % len(names) :] + names[: number % len(names)]:
                seconds_spent = cpu(calls[name], frames)
                if number:  # the first clip imports
                    spent[name] += seconds_spent
        line = ", ".join(f"{name} {spent[name] / spent['floor']:.2f}" for name in calls)
        stored = len(index_to_bytes(index)) / track.num_frames
        print(f"GOP {gop}: floor {1000 * spent['floor'] / num_clips:.0f} ms a clip; {line}")
        print(f"GOP {gop}: index {stored:.2f} B a frame; {remote(data, index)}")


def remote(data, index):
    """Bytes and requests of clips, against what lies between key frame and last frame."""

    class Far(BytesReader):
        total = requests = 0

        def read(self, start, stop):
            self.total += stop - start
            self.requests += 1
            return super().read(start, stop)

    far, track, needed = Far(data), index.first("video"), 0
    for start in range(0, track.num_frames - 70, 37):
        frames = start + STRIDE * np.arange(NUM_FRAMES)
        segments, columns = track.segments(frames), track.columns
        read_segments(index, track, segments, far)
        begin, end = int(segments[0].samples[0]), int(segments[-1].samples[-1])
        needed += int(columns.offset[end] + columns.size[end] - columns.offset[begin])
    count = len(range(0, track.num_frames - 70, 37))
    opening = Far(data)
    index_media(opening)
    return (
        f"{far.requests / count:.2f} requests a clip of {far.total / needed:.2f} x the bytes "
        f"between; {opening.requests} reads to index"
    )


def sound(folder):
    import soundfile

    minutes = 60
    noise = f"anoisesrc=d={minutes * 60}:c=pink:r=44100:seed=7:a=0.5"
    for name, options in (("hour.flac", "-sample_fmt s16"), ("hour.wav", "")):
        path = folder / name
        command = ["ffmpeg", "-v", "error", "-y", "-f", "lavfi", "-i", noise, *options.split()]
        subprocess.run([*command, path], check=True)
        data = path.read_bytes()
        spent = defaultdict(float)
        for start in (400, 1800, 3300) * 4:
            decoder = sw.audio(seconds=10, start=float(start))

            def plain(start=start, data=data):
                with soundfile.SoundFile(io.BytesIO(data)) as file:
                    file.seek(start * 44100)
                    file.read(441_000, dtype="float32")

            spent["ours"] += cpu(decoder, data)
            spent["soundfile"] += cpu(plain)
        ratio = spent["ours"] / spent["soundfile"]
        print(f"{name}: 10 s of an hour, {ratio:.2f} x soundfile ({spent['soundfile'] / 12:.4f} s)")
        path.unlink()
    noise = "anoisesrc=d=120:c=pink:r=44100:a=0.3"
    sweep = "aevalsrc=0.4*sin(2*PI*(200+4*t)*t)|0.3*sin(2*PI*(900-t)*t):s=44100:d=120"
    for name, (source, options) in {
        "noise.mp3": (noise, "-ac 2 -b:a 128k"), "sweep.mp3": (sweep, "-b:a 128k"),
        "variable.mp3": (sweep, "-q:a 4"), "mono.ogg": (noise, "-c:a libvorbis"),
        "sweep.ogg": (sweep, "-c:a libvorbis"), "sweep.opus": (sweep, "-b:a 96k"),
    }.items():  # fmt: skip
        path = folder / name
        command = ["ffmpeg", "-v", "error", "-y", "-f", "lavfi", "-i", source, *options.split()]
        subprocess.run([*command, path], check=True)
        data = path.read_bytes()
        index = index_media(BytesReader(data))
        spent = defaultdict(list)
        for start in (20, 60, 100) * 5:

            def plain(start=start, data=data, rate=index.tracks[0].rate):
                with soundfile.SoundFile(io.BytesIO(data)) as file:
                    file.seek(start * rate)
                    file.read(10 * rate, dtype="float32", always_2d=True)

            spent["soundfile"].append(cpu(plain))
            spent["file"].append(cpu(sw.audio(seconds=10, start=float(start)), data))
            spent["index"].append(cpu(sound_of_index, data, index, start))
        ms = {way: 1000 * np.median(values) for way, values in spent.items()}
        print(
            f"{name}: 10 s of 120 s, soundfile {ms['soundfile']:.1f} ms, with a stored index x "
            f"{ms['index'] / ms['soundfile']:.2f}, of the file alone x "
            f"{ms['file'] / ms['soundfile']:.2f}"
        )


def sound_of_index(data, index, start):
    opened = open_sound(BytesReader(data), index=index)
    read_window(opened, start * opened.rate, 10 * opened.rate, rate=opened.rate, channels=None)


def stored_index(folder, seconds):
    """Bytes a frame of what a sidecar has of a video."""
    for name, options in CODECS.items():
        path = folder / "codec.mp4"
        source = f"testsrc2=s=854x480:r=30:d={seconds},noise=alls=12:allf=t"
        command = ["ffmpeg", "-v", "error", "-y", "-f", "lavfi", "-i", source, *options.split()]
        subprocess.run([*command, "-pix_fmt", "yuv420p", path], check=True)
        data = path.read_bytes()
        index = with_checksums(index_media(BytesReader(data)), BytesReader(data))
        track = index.first("video")
        stored = len(index_to_bytes(index))
        print(
            f"{name}: {track.num_frames} frames, {stored / track.num_frames:.2f} B a frame; the "
            f"configuration of its codec is {len(track.description)} B before compression"
        )


def main():
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--clips", type=int, default=20)
    parser.add_argument("--seconds", type=int, default=10)
    parser.add_argument("--gop", type=int, nargs="+", default=[12, 48, 250])
    parser.add_argument("--sound", action="store_true", help="sound alone")
    parser.add_argument("--pictures", action="store_true", help="pictures alone")
    parser.add_argument("--index", action="store_true", help="bytes of an index alone")
    options = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        if options.index:
            stored_index(Path(folder), options.seconds)
            return
        if not options.sound:
            clips(Path(folder), options.clips, options.seconds, options.gop)
        if options.sound or not options.pictures:
            sound(Path(folder))


if __name__ == "__main__":
    main()
