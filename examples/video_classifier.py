"""A small video classifier: clips as samples, two ranks that are killed, three that go on, a proof.

    python examples/video_classifier.py

It writes videos of a square that moves left, right, up or down, trains for three epochs, and lets
`shardwise certify` say who had each clip. It needs `shardwise[video]`.
"""

from __future__ import annotations

import io
import os
import signal
import subprocess
import sys
import tempfile
from pathlib import Path

import av
import numpy as np
import torch
import torch.distributed as dist

import shardwise as sw

MOVES = ((0, -1), (0, 1), (-1, 0), (1, 0))
NUM_EPOCHS, GLOBAL_BATCH, LAST_STEP = 3, 24, 4


def video(label: int, seed: int, num_frames: int = 48) -> bytes:
    """An mp4 of a square that moves over noise."""
    draw = np.random.default_rng(seed)
    place = draw.integers(0, 64, 2)
    file = io.BytesIO()
    with av.open(file, "w", format="mp4") as out:
        stream = out.add_stream("mpeg4", rate=25)
        stream.width = stream.height = 64
        stream.codec_context.gop_size = 12
        for number in range(num_frames):
            pixels = draw.integers(0, 60, (64, 64, 3), dtype=np.uint8)
            rows, columns = (
                (int(at) + 2 * step * number + np.arange(16)) % 64
                for at, step in zip(place, MOVES[label], strict=True)
            )
            pixels[np.ix_(rows, columns)] = 255
            out.mux(stream.encode(av.VideoFrame.from_ndarray(pixels, "rgb24")))
        out.mux(stream.encode())
    return file.getvalue()


def train(folder: Path) -> None:
    """What one rank does."""
    dist.init_process_group("gloo")
    torch.manual_seed(0)
    data = sw.tar(folder / "videos.tar").decode(cls=int)
    data = data.clips("mp4", frames=8, step=8, jitter=4, size=32)
    loader = sw.DataLoader(
        data, batch_size=GLOBAL_BATCH // dist.get_world_size(), shuffle=True, remainder="uneven",
        coverage=folder / "coverage",
    )  # fmt: skip
    model = torch.nn.Sequential(
        torch.nn.Conv3d(3, 16, 3, padding=1), torch.nn.ReLU(), torch.nn.MaxPool3d(2),
        torch.nn.Conv3d(16, 32, 3, padding=1), torch.nn.ReLU(), torch.nn.AdaptiveMaxPool3d(2),
        torch.nn.Flatten(), torch.nn.Linear(256, 4),
    )  # fmt: skip
    optimizer = torch.optim.Adam(model.parameters(), 3e-3)
    saved = folder / "checkpoint.pt"
    if saved.exists():
        state = torch.load(saved, weights_only=True)
        model.load_state_dict(state["model"])
        optimizer.load_state_dict(state["optimizer"])
        loader.load_state_dict(state["loader"])
    step = 0
    while loader.epoch < NUM_EPOCHS:
        right = torch.zeros(2)
        for batch in loader:
            pictures = batch["mp4"].transpose(1, 2).float() / 255  # [B, C, T, H, W]
            scores = model(pictures)
            optimizer.zero_grad()
            torch.nn.functional.cross_entropy(scores, batch["cls"]).backward()
            for parameter in model.parameters():  # Adam does not mind the sum
                dist.all_reduce(parameter.grad)
            optimizer.step()
            right += torch.tensor([(scores.argmax(1) == batch["cls"]).sum(), len(scores)])
            step += 1
            # On each rank: it writes down what the rank had up to here.
            state = {"loader": loader.state_dict(), "model": model.state_dict()}
            if loader.rank == 0:
                torch.save({**state, "optimizer": optimizer.state_dict()}, saved)
            dist.barrier()
            if dist.get_world_size() == 2 and step == LAST_STEP:
                os.kill(os.getpid(), signal.SIGKILL)
        dist.all_reduce(right)
        if loader.rank == 0:
            print(f"epoch {loader.epoch - 1}: {right[0] / right[1]:.0%} of the clips right")
    dist.destroy_process_group()


def main() -> None:
    """Write the videos, train on two ranks until they are killed, and go on with three."""
    with tempfile.TemporaryDirectory() as scratch:
        folder = Path(scratch)
        with sw.TarWriter(folder / "videos.tar", media=True) as writer:
            for number in range(32):
                label = number % 4
                writer.write({"__key__": f"{number}", "mp4": video(label, number), "cls": label})
        for num_ranks in (2, 3):
            command = ["torch.distributed.run", "--standalone", "--local-addr=127.0.0.1"]
            command += [f"--nproc-per-node={num_ranks}", __file__, scratch]
            env = {**os.environ, "OMP_NUM_THREADS": "1", "GLOO_SOCKET_IFNAME": "lo"}
            done = subprocess.run(
                [sys.executable, "-m", *command], env=env, stderr=subprocess.DEVNULL, check=False
            )
            print(f"{num_ranks} ranks ended with {done.returncode}")
        certify = [sys.executable, "-m", "shardwise", "certify", str(folder / "coverage")]
        subprocess.run(certify, check=True)


if __name__ == "__main__":
    train(Path(sys.argv[1])) if len(sys.argv) > 1 else main()
