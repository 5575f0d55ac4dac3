"""Hugging Face's Trainer: the mixin puts the loader in, and resumes without reading again."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import torch
import transformers
from torch import nn
from torch.nn.functional import cross_entropy

import shardwise as sw
from examples.trainers.parts import (
    BATCH_SIZE,
    NUM_EPOCHS,
    Ledger,
    digits,
    network,
    run,
    train_loader,
)
from shardwise.integrations.huggingface import LoaderMixin


class Model(nn.Module):
    """The network, with the loss in its forward as transformers has it."""

    def __init__(self) -> None:
        super().__init__()
        self.network = network()

    def forward(
        self, png: torch.Tensor, cls: torch.Tensor, __index__: Any = None, __valid__: Any = None
    ) -> dict[str, torch.Tensor]:
        """The columns that it names come along; the last two are for the ledger."""
        del __index__, __valid__
        logits = self.network(png)
        return {"loss": cross_entropy(logits, cls), "logits": logits}


class Trainer(LoaderMixin, transformers.Trainer):
    """A Trainer on a loader, which keeps a ledger."""

    def compute_loss(
        self, model: nn.Module, inputs: dict[str, Any], *args: Any, **kwargs: Any
    ) -> Any:
        loss = super().compute_loss(model, inputs, *args, **kwargs)
        if model.training:
            ledger = Ledger(Path(self.args.output_dir), self.args.process_index)
            ledger.add_batch(int(self.state.epoch), inputs, loss)
        return loss


def train(directory: Path, *, stop_after: int | None = None) -> float:
    """Train on from the newest checkpoint, if there is one; the loss of the test digits."""
    arguments = transformers.TrainingArguments(
        output_dir=str(directory),
        num_train_epochs=NUM_EPOCHS,
        max_steps=-1 if stop_after is None else stop_after,
        save_steps=1 if stop_after is None else stop_after,
        gradient_accumulation_steps=4,
        label_names=["cls"],
        lr_scheduler_type="constant",
        use_cpu=True,
        disable_tqdm=True,
        report_to=[],
    )
    tests = sw.DataLoader(digits(directory, "test"), batch_size=BATCH_SIZE)
    trainer = Trainer(Model(), arguments, train_loader=train_loader(directory), eval_loader=tests)
    trainer.train(resume_from_checkpoint=transformers.trainer_utils.get_last_checkpoint(directory))
    return trainer.evaluate()["eval_loss"]


if __name__ == "__main__":
    run(train)
