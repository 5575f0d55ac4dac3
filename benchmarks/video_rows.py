"""The rows of benchmarks/video_loading.py: a process each, which loads an epoch a line it reads.

    python -m benchmarks.video_rows NAME FOLDER CLIPS

All rows but "shardwise-video" load the same clips of the same files: clip i is of file i // 8 and
begins at frame 30 x (i % 8). A loader has 2 workers, shuffles, and gives batches of 8. Prints a
line of JSON when it has loaded its first epoch, and one after each further epoch.
"""

from __future__ import annotations

import io
import json
import os
import random
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np

NUM_FRAMES, STRIDE, SIZE, FPS = 16, 4, 224, 30
BATCH, WORKERS = 8, 2
CLIPS_A_FILE, STEP = 8, 30

Epoch = Callable[[], None]


def wanted(clip: int) -> np.ndarray:
    """The frames of a clip."""
    return STEP * (clip % CLIPS_A_FILE) + STRIDE * np.arange(NUM_FRAMES)


def path_of(folder: Path, clip: int) -> Path:
    return folder / f"{clip // CLIPS_A_FILE:03d}.mp4"


def pyav_seek(path: Path, frames: np.ndarray) -> np.ndarray:
    import av

    left, made = set(frames.tolist()), []
    with av.open(io.BytesIO(path.read_bytes())) as container:
        stream = container.streams.video[0]
        stream.codec_context.thread_count = 1
        begin, tick = stream.start_time or 0, float(stream.time_base)
        container.seek(begin + int(frames[0] / FPS / tick), stream=stream)
        for frame in container.decode(stream):
            number = round((frame.pts - begin) * tick * FPS)
            if number in left:
                left.remove(number)
                made.append(frame.to_ndarray(format="rgb24", width=SIZE, height=SIZE))
                if not left:
                    break
    return np.stack(made)


def torchcodec(path: Path, frames: np.ndarray) -> Any:
    from torchcodec.decoders import VideoDecoder
    from torchcodec.transforms import Resize

    decoder = VideoDecoder(
        path.read_bytes(), num_ffmpeg_threads=1, transforms=[Resize((SIZE, SIZE))]
    )
    return decoder.get_frames_at(frames.tolist()).data


def decord(path: Path, frames: np.ndarray) -> np.ndarray:
    import decord

    data = io.BytesIO(path.read_bytes())
    reader = decord.VideoReader(data, width=SIZE, height=SIZE, num_threads=1)
    return reader.get_batch(frames.tolist()).asnumpy()


def energon(path: Path, frames: np.ndarray) -> Any:
    from megatron.energon.av import AVDecoder

    # It has no stride: a clip is all frames of a range.
    decoder = AVDecoder(io.BytesIO(path.read_bytes()))
    span = (int(frames[0]), int(frames[-1]))
    clips, _ = decoder.get_video_clips([span], "frames", (SIZE, SIZE))
    return clips[0][::STRIDE]


def spdl(path: Path, frames: np.ndarray) -> np.ndarray:
    import spdl.io

    window = (frames[0] / FPS - 0.001, frames[-1] / FPS + 0.001)
    packets = spdl.io.demux_video(path.read_bytes(), timestamp=window)
    filters = spdl.io.get_video_filter_desc(
        scale_width=SIZE, scale_height=SIZE, pix_fmt="rgb24", timestamp=window
    )
    config = spdl.io.decode_config(decoder_options={"threads": "1"})
    pictures = spdl.io.decode_packets(packets, filter_desc=filters, decode_config=config)
    return spdl.io.to_numpy(spdl.io.convert_frames(pictures))[::STRIDE]


class Clips:
    """A map-style dataset of clips for torch's DataLoader."""

    def __init__(self, decode: Callable[[Path, np.ndarray], Any], folder: Path, count: int) -> None:
        self.decode, self.folder, self.count = decode, folder, count

    def __len__(self) -> int:
        return self.count

    def __getitem__(self, clip: int) -> Any:
        made = self.decode(path_of(self.folder, clip), wanted(clip))
        assert len(made) == NUM_FRAMES, made.shape
        return made


def floor(folder: Path, count: int) -> Epoch:
    """One thread: packets from the key frame on through one PyAV context, 16 pictures to RGB."""
    from benchmarks.video import floor as decode
    from shardwise.extensions.media.files.byte_reader import BytesReader
    from shardwise.extensions.media.files.media_index import index_media

    files = [path_of(folder, clip).read_bytes() for clip in range(0, count, CLIPS_A_FILE)]
    indexes = [index_media(BytesReader(data)) for data in files]

    def epoch() -> None:
        for clip in range(count):
            file = clip // CLIPS_A_FILE
            decode(files[file], indexes[file], wanted(clip), size=SIZE)

    return epoch


def dataset(folder: Path) -> Any:
    import shardwise as sw

    return sw.tar(str(folder / "clips.tar")).clips(
        "mp4", frames=NUM_FRAMES, stride=STRIDE, step=STEP, size=SIZE
    )


def shardwise_thread(folder: Path, count: int) -> Epoch:
    """One thread: the clips' samples, one after the other, without a loader."""
    clips = dataset(folder)
    assert len(clips) == count, len(clips)

    def epoch() -> None:
        for clip in range(count):
            assert len(clips[clip]["mp4"]) == NUM_FRAMES

    return epoch


def shardwise_clips(folder: Path, count: int) -> Epoch:
    return shardwise_loader(dataset(folder), count)


def shardwise_video(folder: Path, count: int) -> Epoch:
    """A clip a sample, which begins at random: the file is read whole, and its index made."""
    import shardwise as sw

    decoder = sw.video(NUM_FRAMES, stride=STRIDE, start="random", size=SIZE)
    files = sw.tar(str(folder / "clips.tar"))
    repeated = files.subset(np.arange(count) // CLIPS_A_FILE)
    return shardwise_loader(repeated.decode(mp4=decoder), count)


def shardwise_loader(data: Any, count: int) -> Epoch:
    import shardwise as sw

    loader = sw.DataLoader(
        data, batch_size=BATCH, shuffle=True, num_workers=WORKERS, rank=0, world_size=1
    )

    def epoch() -> None:
        assert sum(len(batch["mp4"]) for batch in loader) == count

    return epoch


def torch_loader(decode: Callable[[Path, np.ndarray], Any]) -> Callable[[Path, int], Epoch]:
    def make(folder: Path, count: int) -> Epoch:
        from torch.utils.data import DataLoader

        loader = DataLoader(
            Clips(decode, folder, count),
            batch_size=BATCH,
            shuffle=True,
            num_workers=WORKERS,
            persistent_workers=True,
        )

        def epoch() -> None:
            assert sum(map(len, loader)) == count

        return epoch

    return make


def spdl_pipeline(folder: Path, count: int) -> Epoch:
    from spdl.pipeline import PipelineBuilder

    clips = Clips(spdl, folder, count)

    def epoch() -> None:
        builder = PipelineBuilder().add_source(random.sample(range(count), count))
        builder.pipe(clips.__getitem__, concurrency=WORKERS).aggregate(BATCH).pipe(np.stack)
        pipeline = builder.add_sink(4).build(num_threads=WORKERS)
        with pipeline.auto_stop():
            assert sum(map(len, pipeline)) == count

    return epoch


ROWS: dict[str, Callable[[Path, int], Epoch]] = {
    "floor": floor,
    "shardwise-thread": shardwise_thread,
    "shardwise-clips": shardwise_clips,
    "shardwise-video": shardwise_video,
    "torchcodec": torch_loader(torchcodec),
    "pyav": torch_loader(pyav_seek),
    "decord": torch_loader(decord),
    "energon": torch_loader(energon),
    "spdl": spdl_pipeline,
}


def processes() -> list[int]:
    """This process and those that it started, directly or not."""
    parents: dict[int, int] = {}
    for folder in Path("/proc").glob("[0-9]*"):
        try:
            stat = (folder / "stat").read_text()
        except OSError:
            continue  # it ended
        parents[int(folder.name)] = int(stat.rpartition(")")[2].split()[1])
    found = [os.getpid()]
    for pid in found:
        found += [child for child, parent in parents.items() if parent == pid]
    return found


def cpu_seconds(pids: list[int]) -> float:
    ticks = 0
    for pid in pids:
        ticks += sum(
            map(int, Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[11:13])
        )
    return ticks / os.sysconf("SC_CLK_TCK")


def runnable_seconds(pids: list[int]) -> float:
    """Seconds in which threads ran or waited for a core: what is left of the time, they slept."""
    files = [file for pid in pids for file in Path(f"/proc/{pid}/task").glob("*/schedstat")]
    return sum(sum(map(int, file.read_text().split()[:2])) for file in files) / 1e9


def main() -> None:
    name, folder, count = sys.argv[1], Path(sys.argv[2]), int(sys.argv[3])
    try:
        import torch

        torch.set_num_threads(1)
    except ImportError:
        pass
    epoch = ROWS[name](folder, count)
    epoch()
    print(json.dumps({}), flush=True)
    pids = processes()
    workers = pids[1:]
    for _ in sys.stdin:
        cpu, runnable, began = cpu_seconds(pids), runnable_seconds(workers), time.perf_counter()
        epoch()
        wall = time.perf_counter() - began
        cpu = cpu_seconds(pids) - cpu
        busy = (runnable_seconds(workers) - runnable) / wall / max(1, len(workers))
        print(json.dumps({"cpu": cpu, "wall": wall, "busy": busy}), flush=True)
    os._exit(0)  # pools of the peers' threads would keep it


if __name__ == "__main__":
    main()
