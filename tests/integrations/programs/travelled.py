"""Loaders as users of trainers write them: made first, then handed to what starts the ranks.

Arguments: "ddp" or "ddp_fork" (Lightning) or "notebook" (Accelerate), and the directory to write
to. Each rank writes `<rank>.json`: the ids that it trained and validated on, pass by pass.
"""

from __future__ import annotations

import json
import sys
import warnings
from pathlib import Path
from typing import Any

import torch

import shardwise as sw

NUM_SAMPLES, BATCH_SIZE = 53, 5
LAUNCHER, OUT = sys.argv[1], Path(sys.argv[2])


def made(**options: Any) -> sw.DataLoader:
    return sw.DataLoader(sw.wrap(range(NUM_SAMPLES)), batch_size=BATCH_SIZE, **options)


def write(rank: int, record: dict[str, list[Any]]) -> None:
    (OUT / f"{rank}.json").write_text(json.dumps(record))


def lightning() -> None:
    import lightning

    class Model(lightning.LightningModule):
        def __init__(self) -> None:
            super().__init__()
            self.layer = torch.nn.Linear(1, 1)
            self.record: dict[str, list[Any]] = {"train": [], "validate": []}

        def on_train_epoch_start(self) -> None:
            self.record["train"].append([])

        def on_validation_epoch_start(self) -> None:
            self.record["validate"].append([])

        def training_step(self, batch: Any, number: int) -> Any:
            self.record["train"][-1].append(batch["value"].tolist())
            return self.layer(batch["value"][:, None].float()).sum() * 0

        def validation_step(self, batch: Any, number: int) -> None:
            self.record["validate"][-1].append(batch["value"].tolist())

        def on_train_end(self) -> None:
            steps = int(self.trainer.num_training_batches)
            write(self.global_rank, {**self.record, "num_training_batches": [steps]})

        def configure_optimizers(self) -> Any:
            return torch.optim.SGD(self.parameters(), 0.1)

    trainer = lightning.Trainer(
        accelerator="cpu",
        devices=2,
        strategy=LAUNCHER,
        max_epochs=2,
        num_sanity_val_steps=0,
        logger=False,
        enable_checkpointing=False,
        enable_progress_bar=False,
        enable_model_summary=False,
    )
    trainer.fit(Model(), made(shuffle=True, remainder="pad"), made())


def train(loader: sw.DataLoader) -> None:
    from accelerate import Accelerator

    rank = Accelerator(cpu=True).process_index
    write(rank, {"train": [[batch["value"].tolist() for batch in loader] for _ in range(2)]})


if __name__ == "__main__":
    warnings.simplefilter("ignore")
    if LAUNCHER == "notebook":
        from accelerate import notebook_launcher

        notebook_launcher(train, (made(shuffle=True, remainder="pad"),), num_processes=2)
    else:
        lightning()
