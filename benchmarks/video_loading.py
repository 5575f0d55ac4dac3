"""Clips a CPU second of loaders of video, and a loader's two workers against one thread's decoding.

    python -m benchmarks.video_loading [--clips 48]

Each way gives clips of 16 frames at stride 4, 224x224, out of the same videos (10 s of 854x480,
H.264, key frames 48 apart), in a process of its own: imports and a first clip are not counted.
Peers that are not installed are left out: decord, spdl, torchcodec, av. Needs ffmpeg.
"""

from __future__ import annotations

import argparse
import io
import json
import os
import subprocess
import sys
import tempfile
import time
from pathlib import Path

import numpy as np

import shardwise as sw
from benchmarks.video import NUM_FRAMES, STRIDE, make

SIZE = 224


def starts(count):
    return np.random.default_rng(0).integers(0, 300 - (NUM_FRAMES - 1) * STRIDE, count).tolist()


def shardwise_thread(data, start):
    return sw.video(NUM_FRAMES, stride=STRIDE, start=start, size=SIZE)(data)


def pyav_loop(data, start):
    import av

    wanted = set((start + STRIDE * np.arange(NUM_FRAMES)).tolist())
    frames = []
    with av.open(io.BytesIO(data)) as container:
        stream = container.streams.video[0]
        stream.codec_context.thread_count = 1
        for number, frame in enumerate(container.decode(stream)):
            if number in wanted:
                frames.append(frame.to_ndarray(format="rgb24", width=SIZE, height=SIZE))
                if len(frames) == NUM_FRAMES:
                    break
    return np.stack(frames)


def torchcodec(data, start):
    from torchcodec.decoders import VideoDecoder
    from torchcodec.transforms import Resize

    decoder = VideoDecoder(data, num_ffmpeg_threads=1, transforms=[Resize((SIZE, SIZE))])
    return decoder.get_frames_at((start + STRIDE * np.arange(NUM_FRAMES)).tolist()).data.numpy()


def decord(data, start):
    import decord

    reader = decord.VideoReader(io.BytesIO(data), width=SIZE, height=SIZE, num_threads=1)
    return reader.get_batch((start + STRIDE * np.arange(NUM_FRAMES)).tolist()).asnumpy()


def spdl(data, start):
    import spdl.io

    window = (start / 30 - 0.001, (start + (NUM_FRAMES - 1) * STRIDE) / 30 + 0.001)
    packets = spdl.io.demux_video(data, timestamp=window)
    filters = spdl.io.get_video_filter_desc(
        scale_width=SIZE, scale_height=SIZE, pix_fmt="rgb24", timestamp=window
    )
    config = spdl.io.decode_config(decoder_options={"threads": "1"})
    frames = spdl.io.decode_packets(packets, filter_desc=filters, decode_config=config)
    return spdl.io.to_numpy(spdl.io.convert_frames(frames))[::STRIDE]


WAYS = {each.__name__: each for each in (shardwise_thread, pyav_loop, torchcodec, decord, spdl)}


class Clips:
    """The map-style dataset of torchcodec + DataLoader."""

    def __init__(self, folder, count):
        self.folder, self.starts = folder, starts(count)

    def __len__(self):
        return len(self.starts)

    def __getitem__(self, number):
        import torch

        torch.set_num_threads(1)
        return torchcodec((self.folder / "gop48.mp4").read_bytes(), self.starts[number])


def cpu():
    """CPU seconds of this process and of its children that ended."""
    times = os.times()
    return times.user + times.system + times.children_user + times.children_system


def single(way, folder, count):
    import torch

    torch.set_num_threads(1)
    data = (folder / "gop48.mp4").read_bytes()
    made = way(data, 0)
    assert made.shape[0] == NUM_FRAMES, made.shape
    begin, wall = cpu(), time.perf_counter()
    for start in starts(count):
        way(data, start)
    return count / (cpu() - begin), count / (time.perf_counter() - wall)


def loader(folder, _):
    decoder = sw.video(NUM_FRAMES, stride=STRIDE, start="random", size=SIZE)
    data = sw.tar(str(folder / "v.tar")).decode(mp4=decoder)
    return sw.DataLoader(
        data, batch_size=8, rank=0, world_size=1, num_workers=2, executor="processes"
    )


def peer_loader(folder, count):
    from torch.utils.data import DataLoader

    return DataLoader(Clips(folder, count), batch_size=8, num_workers=2, persistent_workers=True)


def multi(make_loader, folder, count):
    """Clips a second of wall time in a second epoch: the first one starts the workers."""
    batches = make_loader(folder, count)
    for _ in batches:
        pass
    wall = time.perf_counter()
    for _ in batches:
        pass
    return count / (time.perf_counter() - wall)


def measure(name, folder, count):
    if name == "shardwise_loader":
        return [0, multi(loader, folder, count)]
    if name == "torchcodec_loader":
        return [0, multi(peer_loader, folder, count)]
    if name == "two_threads_apart":  # the machine's own bound: two processes that share nothing
        code = [sys.executable, "-m", "benchmarks.video_loading", "--one"]
        arguments = ["shardwise_thread", "--folder", str(folder), "--clips", str(count)]
        both = [subprocess.Popen([*code, *arguments], stdout=subprocess.PIPE) for _ in range(2)]
        return [0, sum(json.loads(each.communicate()[0])[1] for each in both)]
    return single(WAYS[name], folder, count)


def main():
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--clips", type=int, default=48)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--one")
    parser.add_argument("--folder", type=Path)
    options = parser.parse_args()
    if options.one:
        print(json.dumps(measure(options.one, options.folder, options.clips)))
        return
    names = [*WAYS, "shardwise_loader", "torchcodec_loader", "two_threads_apart"]
    with tempfile.TemporaryDirectory() as folder:
        data = make(Path(folder), 48, 10)
        with sw.TarWriter(Path(folder) / "v.tar") as writer:
            for number in range(options.clips):
                writer.write({"__key__": str(number), "mp4": data})
        found = {name: [] for name in names}
        for _ in range(options.rounds):
            for name in names:
                command = [sys.executable, "-m", "benchmarks.video_loading", "--one", name]
                arguments = ["--folder", folder, "--clips", str(options.clips)]
                done = subprocess.run(
                    [*command, *arguments], capture_output=True, text=True, check=False
                )
                if done.returncode:
                    print(f"{name}: {(done.stderr.strip().splitlines() or ['failed'])[-1]:.160}")
                    continue
                found[name].append(json.loads(done.stdout.splitlines()[-1]))
        for name, rounds in found.items():
            if rounds:
                a_cpu, a_wall = np.median(rounds, axis=0)
                print(f"{name}: {a_cpu:.1f} clips a CPU second, {a_wall:.1f} a second of wall time")


if __name__ == "__main__":
    main()
