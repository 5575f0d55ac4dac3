"""DeepSpeed: the plain loader beside the engine, its state in the engine's checkpoint.

`initialize` gets no `training_data`: DeepSpeed would make a loader of its own of it.
"""

from __future__ import annotations

from pathlib import Path

import deepspeed
import torch

from examples.trainers.parts import (
    BATCH_SIZE,
    NUM_EPOCHS,
    Ledger,
    loss_of,
    network,
    run,
    train_loader,
)


def train(directory: Path, *, stop_after: int | None = None) -> None:
    """Train on from the checkpoint, if there is one; stop after so many steps in all."""
    model = network()
    engine, *_ = deepspeed.initialize(
        model=model,
        optimizer=torch.optim.Adam(model.parameters()),
        config={
            "train_micro_batch_size_per_gpu": BATCH_SIZE,
            "zero_optimization": {"stage": 1},
            "zero_allow_untested_optimizer": True,
        },
    )
    loader = train_loader(directory)
    checkpoint = directory / "checkpoint"
    if checkpoint.exists():
        _, state = engine.load_checkpoint(str(checkpoint))
        loader.load_state_dict(state["loader"])
    ledger = Ledger(directory, loader.rank)

    while loader.epoch < NUM_EPOCHS:
        for batch in loader:
            loss = loss_of(engine, batch)
            engine.backward(loss)
            engine.step()
            ledger.add_batch(loader.epoch, batch, loss)
            if engine.global_steps == stop_after:
                state = {"loader": loader.state_dict()}
                engine.save_checkpoint(str(checkpoint), client_state=state)
                return


if __name__ == "__main__":
    deepspeed.init_distributed()
    run(train)
