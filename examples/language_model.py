"""From JSON lines to a small language model: tokenise once, pack, mix, train with FSDP2, resume.

The sources are Python's own manual and its docstrings, as JSON lines (`small_language_model.py`).
`sw.build` makes tokens of them once, `sw.pack` packs of these, and `sw.mix` draws three packs of
the manual per pack of docstrings, from the middle of the training on one per three. Two ranks train
until one is killed; three resume from the last checkpoint, which DCP wrote. `shardwise certify`
then proves that every position of the order was trained once.

    python examples/language_model.py      # about 20 s on two cores; it starts torchrun itself
"""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Any

import numpy as np
import torch
import torch.distributed as dist
import torch.distributed.checkpoint as dcp
from small_language_model import LENGTH, Model, row_losses, write_text
from torch.distributed.checkpoint.state_dict import get_state_dict, set_state_dict
from torch.distributed.fsdp import fully_shard

import shardwise as sw
from shardwise import Dataset

GLOBAL_BATCH = 24
STEPS, CHANGED_AT = 40, 20
CHECKPOINT_EVERY, KILLED_AT = 5, 13
SOURCES = ("manual", "docstrings")


def tokenize(sample: dict[str, Any]) -> dict[str, Any]:
    """One token per byte, stored as uint16; a real tokenizer stands here."""
    tokens = np.frombuffer(sample["text"].encode(), np.uint8)
    return {"tokens": tokens.astype(np.uint16).tobytes()}


def mixture(folder: Path) -> Dataset:
    """Packs of both sources; their weights change in the middle, in samples over all ranks."""
    tokens = {name: sw.tar(folder / name).decode(tokens=sw.array("uint16")) for name in SOURCES}
    mixed = sw.mix(
        {name: sw.pack(documents, length=LENGTH) for name, documents in tokens.items()},
        schedule=[
            (0, {"manual": 0.75, "docstrings": 0.25}),
            (CHANGED_AT * GLOBAL_BATCH, {"manual": 0.25, "docstrings": 0.75}),
        ],
        block=GLOBAL_BATCH,  # shares are exact in each step, and weights change between two
        until=STEPS * GLOBAL_BATCH,
    )
    return mixed.select("tokens", "position_ids", "document_ids", "loss_mask")


class Training:
    """The model and optimizer for DCP, with each step's sums of losses and rows, by source."""

    def __init__(self) -> None:
        torch.manual_seed(0)
        self.model = fully_shard(Model())
        self.optimizer = torch.optim.AdamW(self.model.parameters(), lr=3e-3)
        self.sums = torch.zeros(STEPS, 2, len(SOURCES))

    def state_dict(self) -> dict[str, Any]:
        model, optimizer = get_state_dict(self.model, self.optimizer)
        return {"model": model, "optimizer": optimizer, "sums": self.sums}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        weights = {"model_state_dict": state["model"], "optim_state_dict": state["optimizer"]}
        set_state_dict(self.model, self.optimizer, **weights)
        self.sums = state["sums"]


def newest(folder: Path) -> Path | None:
    """The last whole checkpoint; DCP writes `.metadata` at its end."""
    whole = [path.parent for path in folder.glob("checkpoint-*/.metadata")]
    return max(whole, default=None)


def train(folder: Path, *, is_killed: bool) -> None:
    """One rank: from the checkpoint, if there is one, to the last step."""
    torch.set_num_threads(1)
    dist.init_process_group("gloo")
    rank, world_size = dist.get_rank(), dist.get_world_size()
    training = Training()
    loader = sw.DataLoader(
        mixture(folder), batch_size=GLOBAL_BATCH // world_size, coverage=folder / "coverage"
    )
    parts = {"training": training, "loader": loader}
    with loader:
        if (checkpoint := newest(folder)) is not None:
            dcp.load(parts, checkpoint_id=checkpoint)
        first = STEPS - loader.num_steps_left
        for step, batch in enumerate(loader, first):
            losses = row_losses(training.model, batch)
            training.optimizer.zero_grad()
            losses.mean().backward()
            training.optimizer.step()
            is_of = torch.tensor([[s == name for s in batch["__source__"]] for name in SOURCES])
            step_sums = torch.stack([is_of.float() @ losses.detach(), is_of.float().sum(1)])
            dist.all_reduce(step_sums)
            training.sums[step] = step_sums
            if is_killed and step + 1 == KILLED_AT and rank == 1:
                os.kill(os.getpid(), signal.SIGKILL)
            if (step + 1) % CHECKPOINT_EVERY == 0:
                dcp.save(parts, checkpoint_id=folder / f"checkpoint-{step + 1:03d}")
    if rank == 0:
        show(training.sums)
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
    """Write and tokenise the text, train on two ranks, kill one, resume on three, and certify."""
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        write_text(folder)
        for source in SOURCES:
            text = sw.jsonl(folder / f"{source}.jsonl", ("text",))
            sw.build(text, str(folder / source / "{shard:03d}.tar"), map=tokenize)
        sys.stdout.reconfigure(line_buffering=True)  # the ranks write between these lines
        for source, packs in mixture(folder).parts.items():
            used = packs.source.packs.efficiency
            print(f"{source}: {len(packs):,} packs, {used:.2%} of their places used")
        assert run(2, folder, "--kill") != 0
        print(f"1 of 2 ranks was killed at step {KILLED_AT}; 3 resume from {newest(folder).name}")
        assert run(3, folder) == 0
        print()
        certify = [sys.executable, "-m", "shardwise", "certify", str(folder / "coverage")]
        subprocess.run(certify, check=True)


if __name__ == "__main__":
    if "RANK" in os.environ:
        train(Path(sys.argv[1]), is_killed="--kill" in sys.argv)
    else:
        main()
