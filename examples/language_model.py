"""A small language model on a mixture of packed texts, killed and resumed on more ranks.

The sources are Python's own manual and its docstrings, as bytes (`small_language_model.py`). Each
is packed by `sw.pack`, and `sw.mix` draws three packs of the manual for one of docstrings, from the
middle of the training on one for three. Two ranks train until one is killed; three go on from the
last checkpoint. `shardwise certify` then proves that every place of the order was trained once.

    python examples/language_model.py      # about 20 s on two cores; it starts torchrun itself
"""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import tempfile
from pathlib import Path

import torch
import torch.distributed as dist
from small_language_model import LENGTH, Model, row_losses, write_text

import shardwise as sw
from shardwise import Dataset

GLOBAL_BATCH = 24
STEPS, CHANGED_AT = 40, 20
CHECKPOINT_EVERY, KILLED_AT = 5, 13
SOURCES = ("manual", "docstrings")


def mixture(folder: Path) -> Dataset:
    """Packs of both sources; their weights change in the middle, in samples over all ranks."""
    bytes_of = {name: sw.tar(folder / name).decode(tokens=sw.array("uint8")) for name in SOURCES}
    mixed = sw.mix(
        {name: sw.pack(documents, length=LENGTH) for name, documents in bytes_of.items()},
        schedule=[
            (0, {"manual": 0.75, "docstrings": 0.25}),
            (CHANGED_AT * GLOBAL_BATCH, {"manual": 0.25, "docstrings": 0.75}),
        ],
        block=GLOBAL_BATCH,  # shares are exact in each step, and weights change between two
        until=STEPS * GLOBAL_BATCH,
    )
    return mixed.select("tokens", "position_ids", "document_ids", "loss_mask")


def train(folder: Path, *, is_killed: bool) -> None:
    """One rank: from the checkpoint, if there is one, to the last step."""
    torch.set_num_threads(1)
    dist.init_process_group("gloo")
    rank, world_size = dist.get_rank(), dist.get_world_size()
    torch.manual_seed(0)
    model = torch.nn.parallel.DistributedDataParallel(Model())
    optimizer = torch.optim.AdamW(model.parameters(), lr=3e-3)
    checkpoint = folder / "checkpoint.pt"
    # Of each step and source, over all ranks: the sum of the rows' losses, and the rows.
    sums: list[torch.Tensor] = []
    loader = sw.DataLoader(
        mixture(folder), batch_size=GLOBAL_BATCH // world_size, coverage=folder / "coverage"
    )
    with loader:
        if checkpoint.exists():
            saved = torch.load(checkpoint, weights_only=True)
            model.module.load_state_dict(saved["model"])
            optimizer.load_state_dict(saved["optimizer"])
            loader.load_state_dict(saved["loader"])
            sums = list(saved["sums"])
        for batch in loader:
            losses = row_losses(model, batch)
            optimizer.zero_grad()
            losses.mean().backward()
            optimizer.step()
            is_of = torch.tensor([[s == name for s in batch["__source__"]] for name in SOURCES])
            step_sums = torch.stack([is_of.float() @ losses.detach(), is_of.float().sum(1)])
            dist.all_reduce(step_sums)
            sums.append(step_sums)
            if is_killed and len(sums) == KILLED_AT and rank == 1:
                os.kill(os.getpid(), signal.SIGKILL)
            if len(sums) % CHECKPOINT_EVERY == 0:
                state = loader.state_dict()  # on every rank: it writes a line of coverage
                dist.barrier()
                if rank == 0:
                    saved = {
                        "model": model.module.state_dict(),
                        "optimizer": optimizer.state_dict(),
                        "loader": state,
                        "sums": torch.stack(sums),
                    }
                    torch.save(saved, checkpoint.with_suffix(".new"))
                    checkpoint.with_suffix(".new").replace(checkpoint)
    if rank == 0 and len(sums) == STEPS:
        show(torch.stack(sums))
        sys.stdout.flush()
    dist.destroy_process_group()


def show(sums: torch.Tensor) -> None:
    """Print losses and shares of both sources, at the ends of the two parts of the training."""
    print(f"\n{'steps':10}{'loss':>24}{'share of packs':>28}")
    print(" " * 10 + 2 * "".join(f"{name:>14}" for name in SOURCES))
    half = CHANGED_AT // 2
    for first in range(0, STEPS, half):
        losses, rows = sums[first : first + half].sum(0)
        values = [f"{loss:14.2f}" for loss in losses / rows]
        values += [f"{share:14.1%}" for share in rows / rows.sum()]
        note = "  <- other weights" if first == CHANGED_AT else ""
        print(f"{first + 1:>2} to {first + half:<4}" + "".join(values) + note)
    early, late = (part[:, 0].sum() / part[:, 1].sum() for part in (sums[:half], sums[-half:]))
    assert late < early - 1, f"the loss went from {early:.2f} to {late:.2f}"


def run(ranks: int, folder: Path, *options: str) -> int:
    """Start ranks with torchrun; the exit code."""
    launcher = ["-m", "torch.distributed.run", "--standalone", "--local-addr=127.0.0.1"]
    command = [*launcher, f"--nproc-per-node={ranks}", __file__, str(folder), *options]
    env = {**os.environ, "OMP_NUM_THREADS": "1"}
    stderr = subprocess.DEVNULL if options else None  # torchrun says much of a killed rank
    done = subprocess.run([sys.executable, *command], env=env, check=False, stderr=stderr)
    return done.returncode


def main() -> None:
    """Write the text, train on two ranks, kill one, go on with three, and certify."""
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        write_text(folder)
        sys.stdout.reconfigure(line_buffering=True)  # the ranks write between these lines
        for source, packs in mixture(folder).parts.items():
            used = packs.source.packs.efficiency
            print(f"{source}: {len(packs):,} packs, {used:.2%} of their places used")
        assert run(2, folder, "--kill") != 0
        num_done = len(torch.load(folder / "checkpoint.pt", weights_only=True)["sums"])
        print(f"1 of 2 ranks was killed at step {KILLED_AT}; 3 go on after step {num_done}")
        assert run(3, folder) == 0
        print()
        certify = [sys.executable, "-m", "shardwise", "certify", str(folder / "coverage")]
        subprocess.run(certify, check=True)


if __name__ == "__main__":
    if "RANK" in os.environ:
        train(Path(sys.argv[1]), is_killed="--kill" in sys.argv)
    else:
        main()
