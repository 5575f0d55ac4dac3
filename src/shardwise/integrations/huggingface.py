"""Hugging Face's Trainer with shardwise's loaders, and a resume that reads nothing twice.

The Trainer would divide a loader's data once more, and resume by reading all batches that it has
had. The mixin gives it loaders as they are; where the Trainer skips batches, it skips numbers. The
position is kept in the checkpoint's `trainer_state.json`.

Repeats that fill the last batch come after all samples of a gather, where the Trainer cuts them
off. Here they are kept out of the losses, too: loss and metrics are one process's.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import transformers
from transformers import TrainerCallback, TrainerState, trainer, trainer_callback

from shardwise.base.errors import StateError
from shardwise.integrations.trainer_batches import (
    IGNORED_LABEL,
    TrainerLoader,
    columns_of,
    first_rows,
    is_label,
    with_repeats,
)
from shardwise.integrations.versions import require
from shardwise.loader import DataLoader

_TESTED = "5.23.0"
_VERSION = f"transformers {transformers.__version__}"
require(trainer_callback, "ExportableState", version=_VERSION, tested=_TESTED)
require(TrainerState, "stateful_callbacks", version=_VERSION, tested=_TESTED)
# The Trainer resumes by this function: if it resumed by reading, the rest would be cut twice.
require(trainer, "skip_first_batches", version=_VERSION, tested=_TESTED)


class LoaderMixin:
    """A Trainer that takes loaders: `class MyTrainer(LoaderMixin, transformers.Trainer): ...`.

    Args:
        train_loader: what to train on; its batches are dicts of columns, or what its `collate`
            returns.
        eval_loader: what to evaluate on, or a dict of several, whose names prefix the metrics, as
            with `eval_dataset`. `evaluate` and `predict` take loaders, too.
        args: the Trainer's own, without `train_dataset` and `eval_dataset`.
        kwargs: the Trainer's own.

    The model gets the columns of a batch that its `forward` names, and `label_names`; with
    `remove_unused_columns=False`, or a `forward` with **kwargs, all fields of the samples.
    "__key__", "__index__" and "__valid__" only come where `forward` names them.

    Evaluation uses each sample once: "uneven" becomes "pad", and what fills the last batch reaches
    neither loss nor metrics, nor what `predict` returns.

    In training the model gets no repeats either: with remainder="pad" the last batch is shorter.
    The loss of that step is weighted by each rank's samples, so that loss and gradient are the
    means over them all. A rank that has repeats only gets these with labels of -100, and adds
    nothing. A `compute_loss` of your own has to call the one here for that.

    `train(resume_from_checkpoint=...)` continues in the middle of the epoch. Since the Trainer
    counts epochs in steps, batch_size times world size must be what it was.

    Raises:
        ValueError: remainder="drop" would leave samples out of an evaluation.
        StateError: on resume, if the checkpoint is of another loader or of other global batches.
        FrameworkError: when imported: this version of transformers lacks what is relied on.
    """

    _share = 1.0  # of the batch in hand: its samples over the mean of all ranks

    def __init__(
        self,
        *args: Any,
        train_loader: DataLoader | None = None,
        eval_loader: DataLoader | Mapping[str, DataLoader] | None = None,
        **kwargs: Any,
    ) -> None:
        self._train_loader = train_loader
        self._eval_loaders: dict[str, DataLoader] = {}
        if isinstance(eval_loader, Mapping):
            self._eval_loaders.update(eval_loader)
        elif eval_loader is not None:
            self._eval_loaders[""] = eval_loader
        # The Trainer looks whether there are datasets before it asks for loaders.
        if train_loader is not None:
            train_loader._pad(only_default=True)
            kwargs.setdefault("train_dataset", train_loader.dataset)
        if eval_loader is not None:
            datasets = {name: loader.dataset for name, loader in self._eval_loaders.items()}
            for loader in self._eval_loaders.values():
                _fill_for_evaluation(loader)
            kwargs.setdefault("eval_dataset", datasets.get("", datasets))
        super().__init__(*args, **kwargs)
        if train_loader is not None:
            trainer: Any = self
            trainer.add_callback(LoaderState(train_loader))

    def get_train_dataloader(self) -> Any:
        """The loader that was given, as the Trainer needs it."""
        if self._train_loader is None:
            return super().get_train_dataloader()  # type: ignore[misc]
        return self._adapt_loader(self._train_loader, is_training=True)

    def get_eval_dataloader(self, eval_dataset: Any = None) -> Any:
        """The loader that was given; for a dataset that is passed in, the Trainer's own."""
        loader = self._find_eval_loader(eval_dataset)
        if loader is None:
            return super().get_eval_dataloader(eval_dataset)  # type: ignore[misc]
        return self._adapt_loader(loader, is_training=False)

    def get_test_dataloader(self, test_dataset: Any) -> Any:
        """The loader for `predict`: a shardwise loader as it is, else the Trainer's own."""
        loader = self._find_eval_loader(test_dataset)
        if loader is None:
            return super().get_test_dataloader(test_dataset)  # type: ignore[misc]
        return self._adapt_loader(loader, is_training=False)

    def training_step(self, model: Any, inputs: Any, *args: Any, **kwargs: Any) -> Any:
        """The Trainer's own, with the batch's weight for `compute_loss`."""
        self._share = getattr(inputs, "share", 1.0)
        try:
            return super().training_step(model, inputs, *args, **kwargs)  # type: ignore[misc]
        finally:
            self._share = 1.0

    def compute_loss(
        self,
        model: Any,
        inputs: Any,
        return_outputs: bool = False,
        num_items_in_batch: Any = None,
        **kwargs: Any,
    ) -> Any:
        """The Trainer's own, weighted by the samples that this rank has of the step's."""
        trainer: Any = self
        # Given a count over all ranks, transformers has weighted the loss itself.
        is_weighted = num_items_in_batch is not None and trainer.args.average_tokens_across_devices
        share = 1.0 if is_weighted else self._share
        if share == 0:
            # Repeats only: a mean over no label is NaN, so any label does, and counts nothing.
            inputs = {
                name: value.masked_fill(value == IGNORED_LABEL, 0) if is_label(value) else value
                for name, value in inputs.items()
            }
            num_items_in_batch = None
        result = super().compute_loss(  # type: ignore[misc]
            model,
            inputs,
            return_outputs=return_outputs,
            num_items_in_batch=num_items_in_batch,
            **kwargs,
        )
        if share == 1:
            return result
        return (result[0] * share, *result[1:]) if return_outputs else result * share

    def evaluation_loop(self, dataloader: Any, *args: Any, **kwargs: Any) -> Any:
        """The Trainer's own, which counts a batch's loss as often as it has samples."""
        if not isinstance(dataloader, TrainerLoader):
            return super().evaluation_loop(dataloader, *args, **kwargs)  # type: ignore[misc]
        options: Any = self.args  # type: ignore[attr-defined]
        kept = options.per_device_eval_batch_size, options.average_tokens_across_devices
        options.per_device_eval_batch_size = dataloader.batch_size // max(1, options.n_gpu)
        # A rank's loss is the mean over its own samples, as in one process.
        options.average_tokens_across_devices = False
        try:
            return super().evaluation_loop(dataloader, *args, **kwargs)  # type: ignore[misc]
        finally:
            options.per_device_eval_batch_size, options.average_tokens_across_devices = kept

    def prediction_step(self, model: Any, inputs: Any, *args: Any, **kwargs: Any) -> Any:
        """The Trainer's own on the samples alone; repeats come back into what is gathered."""
        num_rows, num_valid = getattr(inputs, "num_rows", 0), getattr(inputs, "num_valid", 0)
        if num_valid in (0, num_rows):
            return super().prediction_step(model, inputs, *args, **kwargs)  # type: ignore[misc]
        samples = {name: first_rows(value, num_valid, num_rows) for name, value in inputs.items()}
        loss, *outputs = super().prediction_step(model, samples, *args, **kwargs)  # type: ignore[misc]
        return (loss, *(with_repeats(output, num_valid, num_rows) for output in outputs))

    def _find_eval_loader(self, dataset: Any) -> DataLoader | None:
        """The loader to evaluate: the one that is passed in, or the one of this dataset."""
        loaders = self._eval_loaders
        loader = dataset if isinstance(dataset, DataLoader) else None
        if isinstance(dataset, str):
            loader = loaders.get(dataset)
        elif loader is None:
            alike = (each for each in loaders.values() if dataset in (None, each.dataset))
            loader = next(alike, None)
        if loader is not None:
            _fill_for_evaluation(loader)
            num_processes = self.args.world_size  # type: ignore[attr-defined]
            if loader.world_size != num_processes:
                raise ValueError(
                    f"the evaluation gathers from {num_processes} processes, and the loader has "
                    f"world_size={loader.world_size}: samples would be missing, or count more than "
                    "once; make it without group=, rank= and world_size="
                )
        return loader

    def _adapt_loader(self, loader: DataLoader, *, is_training: bool) -> TrainerLoader:
        trainer: Any = self
        loader._is_accelerate_prepared = True  # the Trainer's checkpoints keep the position
        takes = columns_of(trainer.model, has_all=not trainer.args.remove_unused_columns)
        labels = frozenset(trainer.label_names or ())
        return TrainerLoader(loader, takes, labels, is_training=is_training)


class LoaderState(TrainerCallback, trainer_callback.ExportableState):  # type: ignore[misc]
    """Keeps a loader's state in the Trainer's checkpoints; the mixin adds it."""

    def __init__(self, loader: DataLoader) -> None:
        self.loader = loader

    def state(self) -> dict[str, Any]:
        """The state for `trainer_state.json`: equal on all ranks."""
        return {"args": {}, "attributes": {"loader": self.loader.state_dict()}}

    def on_step_end(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
        """Record what this rank returned, if a checkpoint follows: see `state_dict`.

        The Trainer calls `state()` on the rank that saves, and on no other.
        """
        del args, state, kwargs
        if control.should_save:
            self.loader.state_dict()

    on_epoch_end = on_step_end

    def on_train_begin(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
        """Load the checkpoint's state, or start with epoch 0.

        Raises:
            StateError: the checkpoint is of another loader, or the Trainer would count otherwise.
        """
        del control, kwargs
        name = type(self).__name__
        if state.global_step == 0 or args.ignore_data_skip:
            # The Trainer goes to an epoch's start by itself.
            state.stateful_callbacks[name] = self.state()
            return
        kept = state.stateful_callbacks.get(name)
        if kept is None:
            raise StateError(
                f"the checkpoint of step {state.global_step} has no loader's state: it was made "
                f"without LoaderMixin; ignore_data_skip=True goes on with the epoch's first batch"
            )
        self.loader.load_state_dict(kept["attributes"]["loader"])
        self._check(state.global_step, args.gradient_accumulation_steps)

    def _check(self, global_step: int, num_accumulated: int) -> None:
        loader = self.loader
        num_updates = -(-len(loader) // num_accumulated)
        epoch, update = divmod(global_step, num_updates)
        num_left = len(loader) - update * num_accumulated
        if (loader.epoch, loader.num_steps_left) != (epoch, num_left):
            raise StateError(
                f"the checkpoint of step {global_step} has the loader in epoch {loader.epoch} with "
                f"{loader.num_steps_left} batches left, and with {loader.batch_size} samples on "
                f"each of {loader.world_size} ranks the Trainer counts epoch {epoch} and {num_left}"
                " batches: keep batch_size * world_size and gradient_accumulation_steps as they "
                "were"
            )


def _fill_for_evaluation(loader: DataLoader) -> None:
    """Let all ranks have equal batches, without leaving a sample out."""
    if loader.plan.num_dropped:
        raise ValueError(
            f"remainder='drop' leaves {loader.plan.num_dropped} of {loader.plan.num_samples} "
            "samples out of the evaluation: make the loader with remainder='pad'"
        )
    loader._pad(only_default=False)
