"""Accelerate: gradients summed over 4 batches, `save_state`, `load_state`, metrics over all ranks.

`prepare` of the integration makes Accelerate save the loader, and divides nothing twice.
"""

from __future__ import annotations

from pathlib import Path

import torch
from accelerate import Accelerator

import shardwise as sw
from examples.trainers.parts import (
    BATCH_SIZE,
    NUM_EPOCHS,
    Ledger,
    digits,
    loss_of,
    network,
    run,
    train_loader,
)
from shardwise.integrations.accelerate import prepare


def train(directory: Path, *, stop_after: int | None = None) -> float | None:
    """Train on from the checkpoint, if there is one; the accuracy, if it came to the end."""
    accelerator = Accelerator(cpu=True, gradient_accumulation_steps=4)
    model = network()
    model, optimizer = accelerator.prepare(model, torch.optim.Adam(model.parameters()))
    loader = prepare(accelerator, train_loader(directory))
    tests = sw.DataLoader(digits(directory, "test"), batch_size=BATCH_SIZE)
    tests = prepare(accelerator, tests)
    checkpoint = directory / "checkpoint"
    if checkpoint.exists():
        accelerator.load_state(str(checkpoint))
    ledger = Ledger(directory, accelerator.process_index)

    step = 0
    while loader.epoch < NUM_EPOCHS:
        for batch in loader:
            with accelerator.accumulate(model):
                loss = loss_of(model, batch)
                accelerator.backward(loss)
                optimizer.step()
                optimizer.zero_grad()
            step += 1
            ledger.add_batch(loader.epoch, batch, loss)
            if step == stop_after:
                accelerator.save_state(str(checkpoint))
                return None

    right = []
    model.eval()
    for batch in tests:
        guesses = model(batch["png"]).argmax(1)
        right += accelerator.gather_for_metrics(guesses == batch["cls"]).tolist()
    assert len(right) == len(tests.dataset), "each test sample once, and no repeats"
    return sum(right) / len(right)


if __name__ == "__main__":
    run(train)
