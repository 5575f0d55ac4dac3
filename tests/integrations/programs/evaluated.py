"""Hugging Face's Trainer evaluates and predicts on loaders, and trains one padded epoch.

Arguments: the directory to write to, the batch size of a rank, and kinds of loss with their numbers
of samples, such as "classes:49". Run without torchrun it is the
one process that others are held against; "own" results are those of the Trainer's own loader.
"""

from __future__ import annotations

import json
import os
import sys
from pathlib import Path

import numpy as np
import torch
import transformers
from torch.nn.functional import cross_entropy, mse_loss

import shardwise as sw
from shardwise.integrations.huggingface import LoaderMixin

REMAINDERS = ("pad", "uneven", None)


class Model(torch.nn.Module):
    """Three classes of three numbers, or one number of them; `kind` says how the loss is made."""

    def __init__(self, kind):
        super().__init__()
        torch.manual_seed(0)
        self.kind = kind
        self.accepts_loss_kwargs = kind == "counted"
        self.layer = torch.nn.Linear(3, 1 if kind == "squares" else 3)

    def forward(self, x, labels, num_items_in_batch=None):
        logits = self.layer(x)
        if self.kind == "squares":
            loss = mse_loss(logits[:, 0], labels)
        elif self.kind == "counted" and num_items_in_batch is not None:
            loss = cross_entropy(logits, labels, reduction="sum") / num_items_in_batch
        else:
            loss = cross_entropy(logits, labels)
        return {"loss": loss, "logits": logits}


class Trainer(LoaderMixin, transformers.Trainer):
    pass


def rows(num_samples, kind):
    numbers = np.random.default_rng(0).normal(size=(num_samples, 3)).astype(np.float32)
    labels = numbers.sum(1) if kind == "squares" else numbers.argmin(1)
    return [{"x": x, "labels": label} for x, label in zip(numbers, labels, strict=True)]


def arguments(out, batch_size, **options):
    return transformers.TrainingArguments(
        output_dir=str(out),
        use_cpu=True,
        disable_tqdm=True,
        report_to=[],
        save_strategy="no",
        logging_steps=1,
        lr_scheduler_type="constant",
        optim="sgd",
        learning_rate=0.1,
        num_train_epochs=1,
        include_for_metrics=["inputs", "loss"],
        **options,
    )


def metrics(outputs):
    return {"num_rows": len(outputs.predictions), "inputs": np.shape(outputs.inputs)[0]}


def evaluated(trainer, data=None):
    found = trainer.evaluate(data)
    predicted = trainer.predict(trainer.eval_dataset if data is None else data)
    numbers = {name: found[f"eval_{name}"] for name in ("loss", "num_rows", "inputs")}
    return {
        **numbers,
        "predictions": predicted.predictions.tolist(),
        "labels": predicted.label_ids.tolist(),
        "test_loss": predicted.metrics["test_loss"],
    }


def main(out, batch_size, *cases):
    out, batch_size = Path(out), int(batch_size)
    is_alone = "RANK" not in os.environ
    record = {}
    for kind, number in (case.split(":") for case in cases):
        num_samples = int(number)
        Model.main_input_name = "x"
        data = sw.wrap(rows(num_samples, kind))
        name = f"{kind} {num_samples}"
        if is_alone:
            options = arguments(out, batch_size, per_device_eval_batch_size=batch_size)
            own = transformers.Trainer(
                Model(kind),
                options,
                compute_metrics=metrics,
                eval_dataset=rows(num_samples, kind),
            )
            record[name] = evaluated(own)
        for remainder in () if is_alone else REMAINDERS:
            loader = sw.DataLoader(data, batch_size=batch_size, remainder=remainder)
            trainer = Trainer(
                Model(kind),
                arguments(out, batch_size),
                compute_metrics=metrics,
                eval_loader=loader,
            )
            record[f"{name} {remainder}"] = evaluated(trainer)
            assert trainer.args.per_device_eval_batch_size == 8, "as it was"
        record[f"{name} trained"] = trained(out, data, kind, batch_size)
    rank = os.environ.get("RANK", "alone")
    (out / f"rank-{rank}.json").write_text(json.dumps(record))


def trained(out, data, kind, batch_size):
    """The losses of an epoch's steps, and the weights after it."""
    loader = sw.DataLoader(data, batch_size=batch_size, remainder="pad")
    trainer = Trainer(Model(kind), arguments(out, batch_size), train_loader=loader)
    trainer.train()
    losses = [line["loss"] for line in trainer.state.log_history if "loss" in line]
    return [*losses, *trainer.model.layer.weight.flatten().tolist()]


if __name__ == "__main__":
    main(*sys.argv[1:])
