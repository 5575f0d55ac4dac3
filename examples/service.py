"""Pictures decoded by two servers feed two DDP ranks; servers and a rank are killed in turn.

The servers and the ranks open the same dataset, from this file. Each rank asks for its batches by
number, so whoever answers gives the same ones. A killed server's work goes to the other one until
it is back; after a killed rank both are started again, and go on from the checkpoint. The proof at
the end is that of an undisturbed run.

    python examples/service.py
"""

from __future__ import annotations

import contextlib
import io
import os
import signal
import subprocess
import sys
import tempfile
import threading
from pathlib import Path
from typing import Any

import numpy as np
from PIL import Image

import shardwise as sw

NUM_SAMPLES, BATCH_SIZE, NUM_RANKS = 400, 8, 2
CHECKPOINT_EVERY = 4
# For each start of the ranks: who is killed after which step.
KILLS: list[dict[int, tuple[str, int]]] = [
    {5: ("server", 0), 10: ("rank", 1)},
    {13: ("server", 1)},
]


def brighter(sample: dict[str, Any], rng: np.random.Generator) -> dict[str, Any]:
    """An augmentation, keyed by seed, epoch and sample: on every machine the same."""
    return {**sample, "jpg": sample["jpg"] * np.float32(rng.uniform(0.8, 1.2))}


def dataset() -> sw.Dataset:
    """What the servers and the ranks open, in the working directory."""
    decoded = sw.tar("pictures-*.tar").decode(jpg=sw.image(size=64), cls=int)
    return decoded.map(brighter)


def write_pictures() -> None:
    """Shards of noise."""
    rng = np.random.default_rng(0)
    with sw.TarWriter("pictures-{shard:03d}.tar", max_samples=100) as writer:
        for number in range(NUM_SAMPLES):
            picture = io.BytesIO()
            Image.fromarray(rng.integers(0, 256, (80, 80, 3), dtype=np.uint8)).save(picture, "jpeg")
            writer.write({"__key__": f"{number:05d}", "jpg": picture.getvalue(), "cls": number})


class Server(threading.Thread):
    """A batch server that is started again, on its port, when it dies: as a cluster does it."""

    def __init__(self, number: int) -> None:
        super().__init__()
        self.number = number
        self.is_over = False
        self.process, self.address = self._start(0)

    def _start(self, port: int) -> tuple[subprocess.Popen[str], str]:
        target = f"{Path(__file__).resolve()}:dataset"
        # If this program is killed, it ends 5 minutes after the last rank.
        options = ["--port", str(port), "--num-threads", "1", "--job", "300"]
        process = subprocess.Popen(
            [sys.executable, "-m", "shardwise", "serve", target, *options],
            stdout=subprocess.PIPE,
            text=True,
        )
        assert process.stdout is not None
        Path(f"server-{self.number}.pid").write_text(str(process.pid))
        return process, process.stdout.readline().strip().removeprefix("ready: ")

    def run(self) -> None:
        """Start it again until it is over."""
        while self.process.wait() == -signal.SIGKILL and not self.is_over:
            self.process, _ = self._start(int(self.address.rpartition(":")[2]))

    def end(self) -> None:
        """End it, and wait for that."""
        self.is_over = True
        while self.is_alive():  # it may be starting another process just now
            self.process.terminate()
            self.join(1)


def train(addresses: str, kills: dict[int, tuple[str, int]]) -> None:
    """One rank: from the checkpoint, if there is one, to the end of the epoch."""
    import torch
    import torch.distributed as dist

    torch.set_num_threads(1)
    dist.init_process_group("gloo")
    torch.manual_seed(0)
    network = torch.nn.Sequential(torch.nn.Flatten(), torch.nn.Linear(3 * 64 * 64, 1))
    model = torch.nn.parallel.DistributedDataParallel(network)
    optimizer = torch.optim.SGD(model.parameters(), lr=1e-4)
    checkpoint, step = Path("checkpoint.pt"), 0
    with sw.DataLoader(
        dataset(),
        batch_size=BATCH_SIZE,
        shuffle=True,
        remainder="uneven",
        executor=sw.service(addresses),
        coverage="coverage",
    ) as loader:
        if checkpoint.exists():
            saved = torch.load(checkpoint, weights_only=True)
            network.load_state_dict(saved["model"])
            loader.load_state_dict(saved["loader"])
            step = saved["step"]
        for batch in loader:
            loss = (model(batch["jpg"])[:, 0] - batch["cls"] / NUM_SAMPLES).square().mean()
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
            step += 1
            if step % CHECKPOINT_EVERY == 0:
                state = loader.state_dict()  # on every rank: it writes a line of coverage
                dist.barrier()
                if loader.rank == 0:
                    saved = {"model": network.state_dict(), "loader": state, "step": step}
                    torch.save(saved, "checkpoint.new")
                    Path("checkpoint.new").replace(checkpoint)
            if step in kills:
                kill(*kills[step], rank=loader.rank)
        counts = loader.stats()["service"]
        made = sum(server["answers"] for server in counts["servers"].values())
        print(f"rank {loader.rank}: {made} batches by servers, {counts['made_here']} made here")
    # Before its group: a group that DDP is the last to hold may hang as it ends.
    del model
    dist.destroy_process_group()


def kill(what: str, number: int, *, rank: int) -> None:
    """SIGKILL a server, which rank 0 does, or the rank of this number."""
    if what == "server" and rank == 0:
        os.kill(int(Path(f"server-{number}.pid").read_text()), signal.SIGKILL)
    if what == "rank" and rank == number:
        os.kill(os.getpid(), signal.SIGKILL)


def run_ranks(leg: int, addresses: str) -> int:
    """Start ranks with torchrun; the exit code."""
    launcher = ["-m", "torch.distributed.run", "--standalone", "--local-addr=127.0.0.1"]
    command = [*launcher, f"--nproc-per-node={NUM_RANKS}", __file__, addresses, str(leg)]
    env = {**os.environ, "OMP_NUM_THREADS": "1"}
    # torchrun says much of a killed rank.
    stderr = subprocess.DEVNULL if "rank" in dict(KILLS[leg].values()) else None
    done = subprocess.run([sys.executable, *command], env=env, check=False, stderr=stderr)
    return done.returncode


def main() -> None:
    """One epoch on two ranks, with servers and ranks killed on the way, and its proof."""
    write_pictures()
    dataset().fingerprint  # noqa: B018 - makes the indexes once, before the servers look for them
    servers = [Server(number) for number in range(2)]
    for server in servers:
        server.start()
    try:
        for leg, kills in enumerate(KILLS):
            code = run_ranks(leg, ",".join(server.address for server in servers))
            assert (code == 0) == ("rank" not in dict(kills.values()))
            for step, (what, number) in kills.items():
                print(f"killed {what} {number} after step {step}")
    finally:
        for server in servers:
            server.end()
    certified = subprocess.run(
        [sys.executable, "-m", "shardwise", "certify", "coverage"],
        stdout=subprocess.PIPE,
        text=True,
        check=True,
    )
    print(certified.stdout)
    assert f"every one of {NUM_SAMPLES} samples exactly once" in certified.stdout


if __name__ == "__main__":
    if "RANK" in os.environ:
        train(sys.argv[1], KILLS[int(sys.argv[2])])
    else:
        with tempfile.TemporaryDirectory() as folder, contextlib.chdir(folder):
            main()
