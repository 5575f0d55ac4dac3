"""The Trainer's mixin in one process: what it hands to the model, and what it refuses."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch

import shardwise as sw
from tests.support.trainers import needs

pytestmark = needs("transformers")
NUM_SAMPLES = 22


class Model(torch.nn.Module):
    """A number for a number; notes the labels that it got."""

    def __init__(self) -> None:
        super().__init__()
        self.weight = torch.nn.Parameter(torch.ones(1))
        self.got: list[list[int]] = []

    def forward(self, x: torch.Tensor, labels: torch.Tensor) -> dict[str, torch.Tensor]:
        if self.training:
            self.got.append(labels.tolist())
        errors = (self.weight * x - labels)[labels != -100]
        return {"loss": (errors**2).mean(), "logits": self.weight * x}


def loader(batch_size: int = 4, **options: Any) -> sw.DataLoader:
    rows = [{"x": float(i), "labels": i} for i in range(NUM_SAMPLES)]
    options = {"remainder": "pad", "shuffle": "full", **options}
    return sw.DataLoader(sw.wrap(rows), batch_size=batch_size, **options)


def trainer(out: Path, train_loader: sw.DataLoader | None, **arguments: Any) -> Any:
    import transformers

    from shardwise.integrations.huggingface import LoaderMixin

    class Trainer(LoaderMixin, transformers.Trainer):
        pass

    options = transformers.TrainingArguments(
        output_dir=str(out),
        use_cpu=True,
        disable_tqdm=True,
        report_to=[],
        save_steps=2,
        **{"num_train_epochs": 1, **arguments},
    )
    return Trainer(Model(), options, train_loader=train_loader)


def test_the_model_gets_its_columns_and_no_label_twice(tmp_path: Path) -> None:
    mine = trainer(tmp_path, loader())
    mine.train()
    labels = [label for batch in mine.model.got for label in batch]
    assert len(labels) == 24
    assert sorted(label for label in labels if label != -100) == list(range(NUM_SAMPLES))


def test_a_resumed_epoch_reads_only_what_is_left(tmp_path: Path) -> None:
    mine = trainer(tmp_path, loader())
    mine.train()
    again = trainer(tmp_path, loader())
    again.train(resume_from_checkpoint=str(tmp_path / "checkpoint-4"))
    assert again.model.got == mine.model.got[4:]
    assert again.state.epoch == 1
    assert again._train_loader.stats()["samples"] == 2 * 4


def test_other_global_batches_are_refused_because_the_trainer_counts_steps(tmp_path: Path) -> None:
    trainer(tmp_path, loader(), max_steps=2).train()
    again = trainer(tmp_path, loader(batch_size=2))
    with pytest.raises(sw.StateError, match=r"keep batch_size \* world_size"):
        again.train(resume_from_checkpoint=str(tmp_path / "checkpoint-2"))


def test_a_checkpoint_of_another_order_is_refused(tmp_path: Path) -> None:
    trainer(tmp_path, loader(), max_steps=2).train()
    again = trainer(tmp_path, loader(seed=1))
    with pytest.raises(sw.StateError, match="seed: the state has 0, this loader 1"):
        again.train(resume_from_checkpoint=str(tmp_path / "checkpoint-2"))
