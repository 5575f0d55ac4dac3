"""One of two ranks: Lightning trains and validates on loaders, as users first type it.

Argument: the directory to write to.
"""

from __future__ import annotations

import json
import os
import sys
from pathlib import Path

import lightning
import torch
from lightning.pytorch.strategies import DDPStrategy
from torchmetrics import MeanMetric

import shardwise as sw

BATCH_SIZE = 12


class Module(lightning.LightningModule):
    """Notes what it trains on; the metric is the mean of the validation samples' squares."""

    def __init__(self, make_train=None, make_val=None):
        super().__init__()
        self.layer = torch.nn.Linear(1, 1)
        self.metric = MeanMetric()
        self.trained = []
        if make_train is not None:
            self.train_dataloader = make_train
        if make_val is not None:
            self.val_dataloader = make_val

    def training_step(self, batch, _):
        self.trained.append((self.current_epoch, batch["__index__"].tolist()))
        return self.layer(batch["value"][:, None].float()).mean()

    def validation_step(self, batch, _):
        squares = batch["value"].double() ** 2
        self.metric.update(squares[batch["__valid__"]] if "__valid__" in batch else squares)
        self.log("metric", self.metric)

    def configure_optimizers(self):
        return torch.optim.SGD(self.parameters(), lr=0.01)


def trainer(**options):
    return lightning.Trainer(
        accelerator="cpu",
        devices=2,
        strategy=DDPStrategy(process_group_backend="gloo"),
        max_epochs=2,
        logger=False,
        enable_checkpointing=False,
        enable_progress_bar=False,
        enable_model_summary=False,
        **options,
    )


def loader(num_samples=100, *, as_torch=False, **options):
    made = sw.DataLoader(sw.wrap(range(num_samples)), batch_size=BATCH_SIZE, **options)
    return made.as_torch_dataloader() if as_torch else made


def validated(num_samples, remainder):
    options = {} if remainder is None else {"remainder": remainder}
    module = Module(make_val=lambda: loader(num_samples, **options))
    [metrics] = trainer().validate(module, verbose=False)
    return metrics["metric"]


def trained(*, as_torch, shuffle, **options):
    def make():
        return loader(as_torch=as_torch, shuffle=shuffle, remainder="uneven")

    module = Module(make_train=make)
    try:
        trainer(**options).fit(module)
    except (sw.FrameworkError, ValueError) as error:
        return f"{type(error).__name__}: {error}"
    return module.trained


def main(out):
    record = {
        "validated": {f"{n} {r}": validated(n, r) for n in (49, 101) for r in (None, "pad")},
        "as_torch": trained(as_torch=True, shuffle=True),
        "overfit": trained(as_torch=False, shuffle=False, overfit_batches=3),
        "overfit as_torch": trained(as_torch=True, shuffle=False, overfit_batches=3),
        "overfit shuffled": trained(as_torch=False, shuffle=True, overfit_batches=3),
        "overfit as_torch shuffled": trained(as_torch=True, shuffle=True, overfit_batches=3),
    }
    (Path(out) / f"rank-{os.environ['RANK']}.json").write_text(json.dumps(record))


if __name__ == "__main__":
    main(*sys.argv[1:])
