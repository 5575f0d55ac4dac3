"""Lightning: the plain loader. It is neither wrapped nor divided again, and its state is saved."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import lightning
import torch
from lightning.pytorch.callbacks import ModelCheckpoint
from lightning.pytorch.strategies import DDPStrategy

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


class Digits(lightning.LightningModule):
    """The network; loaders are made in the hooks, when the ranks are known."""

    def __init__(self, directory: Path) -> None:
        super().__init__()
        self.directory = directory
        self.network = network()
        self.tested: list[int] = []

    def train_dataloader(self) -> sw.DataLoader:
        return train_loader(self.directory)

    def val_dataloader(self) -> sw.DataLoader:
        return sw.DataLoader(digits(self.directory, "test"), batch_size=BATCH_SIZE)

    def on_validation_epoch_start(self) -> None:
        self.tested.clear()

    def training_step(self, batch: dict[str, Any], _: int) -> torch.Tensor:
        loss = loss_of(self.network, batch)
        ledger = Ledger(self.directory, self.global_rank)
        ledger.add_batch(self.current_epoch, batch, loss)
        return loss

    def validation_step(self, batch: dict[str, Any], _: int) -> None:
        self.tested += batch["__index__"].tolist()

    def configure_optimizers(self) -> torch.optim.Optimizer:
        return torch.optim.Adam(self.parameters())


def train(directory: Path, *, stop_after: int | None = None) -> list[int]:
    """Train on from the checkpoint, if there is one; this rank's samples of the last validation."""
    # Written in the middle of the epoch; what is written after max_steps begins with the next one.
    saves = ModelCheckpoint(directory, "checkpoint", every_n_train_steps=stop_after)
    trainer = lightning.Trainer(
        accelerator="cpu",
        devices=2,
        strategy=DDPStrategy(process_group_backend="gloo"),
        max_epochs=NUM_EPOCHS,
        max_steps=-1 if stop_after is None else stop_after,
        default_root_dir=directory,
        logger=False,
        callbacks=[saves] if stop_after is not None else [],
        enable_checkpointing=stop_after is not None,
        enable_progress_bar=False,
        enable_model_summary=False,
    )
    model = Digits(directory)
    checkpoint = directory / "checkpoint.ckpt"
    trainer.fit(model, ckpt_path=str(checkpoint) if checkpoint.exists() else None)
    return model.tested


if __name__ == "__main__":
    run(train)
