"""Hugging Face's Trainer: loaders in place of its own, and a resume that reads nothing twice.

The Trainer would divide a loader's data once more, and resume by reading all batches that it has
had. The mixin gives it loaders as they are; where the Trainer skips batches, it skips numbers. The
position is kept in the checkpoint's `trainer_state.json`. Imports transformers, torch and the
loader.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable, Iterator, Sequence
from typing import TYPE_CHECKING, Any

import torch
import torch.utils.data
from transformers import TrainerCallback
from transformers.trainer_callback import ExportableState

from shardwise.errors import StateError

if TYPE_CHECKING:
    from shardwise.loader import DataLoader

__all__ = ["LoaderMixin", "LoaderState"]

_IGNORED_LABEL = -100  # what transformers' losses leave out


class LoaderMixin:
    """A Trainer that takes loaders: `class MyTrainer(LoaderMixin, transformers.Trainer): ...`.

    Args:
        train_loader: what to train on; its batches are dicts of columns, or what its `collate`
            returns.
        eval_loader: what to evaluate on.
        args: the Trainer's own, without `train_dataset` and `eval_dataset`.
        kwargs: the Trainer's own.

    The model gets the columns of a batch that its `forward` names, or all with
    `remove_unused_columns=False`. With remainder="pad" the labels of repeats become -100, which
    losses leave out, in integer columns that `label_names` has ("labels" if it is not set).

    `train(resume_from_checkpoint=...)` goes on in the middle of the epoch. Since the Trainer counts
    epochs in steps, batch_size times world size must be what it was.

    Raises:
        StateError: on resume, if the checkpoint is of another loader or of other global batches.
    """

    def __init__(
        self,
        *args: Any,
        train_loader: DataLoader | None = None,
        eval_loader: DataLoader | None = None,
        **kwargs: Any,
    ) -> None:
        self._train_loader, self._eval_loader = train_loader, eval_loader
        # The Trainer looks whether there are datasets before it asks for loaders.
        if train_loader is not None:
            kwargs.setdefault("train_dataset", train_loader.dataset)
        if eval_loader is not None:
            kwargs.setdefault("eval_dataset", eval_loader.dataset)
        super().__init__(*args, **kwargs)
        if train_loader is not None:
            trainer: Any = self
            trainer.add_callback(LoaderState(train_loader))

    def get_train_dataloader(self) -> Any:
        """The loader that was given, as the Trainer needs it."""
        if self._train_loader is None:
            return super().get_train_dataloader()  # type: ignore[misc]
        return self._adapted(self._train_loader)

    def get_eval_dataloader(self, eval_dataset: Any = None) -> Any:
        """The loader that was given; for a dataset that is passed in, the Trainer's own."""
        if self._eval_loader is None or eval_dataset not in (None, self._eval_loader.dataset):
            return super().get_eval_dataloader(eval_dataset)  # type: ignore[misc]
        return self._adapted(self._eval_loader)

    def _adapted(self, loader: DataLoader) -> _TrainerLoader:
        trainer: Any = self
        takes = _takes(trainer.model) if trainer.args.remove_unused_columns else _everything
        return _TrainerLoader(loader, _ForModel(takes, frozenset(trainer.label_names or ())))


class LoaderState(TrainerCallback, ExportableState):  # type: ignore[misc]
    """Keeps a loader's state in the Trainer's checkpoints; the mixin adds it."""

    def __init__(self, loader: DataLoader) -> None:
        self.loader = loader

    def state(self) -> dict[str, Any]:
        """What goes into `trainer_state.json`: equal on all ranks."""
        return {"args": {}, "attributes": {"loader": self.loader.state_dict()}}

    def on_train_begin(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
        """Take up the checkpoint's state, or begin with epoch 0.

        Raises:
            StateError: the checkpoint is of another loader, or the Trainer would count otherwise.
        """
        del control, kwargs
        name = type(self).__name__
        if state.global_step == 0 or args.ignore_data_skip:
            # The Trainer goes to an epoch's beginning by itself.
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


class _TrainerLoader:
    """A loader as the Trainer sees it; the attributes are those of a torch DataLoader.

    To skip batches, accelerate's `skip_first_batches` makes a DataLoader of `dataset` and of
    `batch_sampler` without its first entries. Here these are the numbers of steps, and the dataset
    gives the next batch for any of them: the loader knows by itself where it goes on.
    """

    num_workers = 0
    prefetch_factor = None
    multiprocessing_context = None

    def __init__(self, loader: DataLoader, for_model: _ForModel) -> None:
        self._loader = loader
        self._for_model = for_model
        self.batch_size = loader.batch_size
        self.drop_last = loader.drop_last
        self.sampler = loader.sampler
        self.batch_sampler = _Steps(loader)
        self.dataset = _Batches(self)

    def __len__(self) -> int:
        return len(self._loader)

    def __iter__(self) -> Iterator[Any]:
        return map(self._for_model, self._loader)

    def set_epoch(self, epoch: int) -> None:
        self._loader.set_epoch(epoch)

    @staticmethod
    def collate_fn(batch: Any) -> Any:
        """Leave a batch as it is."""
        return batch


class _Steps(torch.utils.data.Sampler[list[int]]):
    """The numbers of an epoch's steps, each as the indices of a batch."""

    def __init__(self, loader: DataLoader) -> None:
        self._loader = loader

    def __len__(self) -> int:
        return len(self._loader)

    def __iter__(self) -> Iterator[list[int]]:
        return ([step] for step in range(len(self)))

    def set_epoch(self, epoch: int) -> None:
        self._loader.set_epoch(epoch)


class _Batches(torch.utils.data.Dataset[Any]):
    """The batches that are left of an epoch, one after the other, by whatever number."""

    def __init__(self, batches: _TrainerLoader) -> None:
        self._batches = batches
        self._iterator: Iterator[Any] | None = None

    def __len__(self) -> int:
        """Samples, which the Trainer logs."""
        return len(self._batches._loader.dataset)

    def __getitems__(self, steps: Sequence[int]) -> Any:
        """The next batch; its number is only what the Trainer counts."""
        del steps
        if self._iterator is None:
            self._iterator = iter(self._batches)
        return next(self._iterator)


class _ForModel:
    """Makes of a batch what the model takes: its columns, the labels of repeats marked."""

    def __init__(self, takes: Callable[[str], bool], labels: frozenset[str]) -> None:
        self._takes = takes
        self._labels = labels

    def __call__(self, batch: Any) -> Any:
        if not isinstance(batch, dict):
            return batch
        valid = batch.get("__valid__")
        return {
            name: _marked(value, valid) if name in self._labels and valid is not None else value
            for name, value in batch.items()
            if self._takes(name)
        }


def _marked(labels: Any, valid: torch.Tensor) -> Any:
    if not isinstance(labels, torch.Tensor) or labels.is_floating_point():
        return labels
    return labels.masked_fill(~valid.view(-1, *[1] * (labels.ndim - 1)), _IGNORED_LABEL)


def _takes(model: torch.nn.Module) -> Callable[[str], bool]:
    """Whether a model's forward takes a column, by its signature."""
    parameters = inspect.signature(model.forward).parameters.values()
    if any(parameter.kind is parameter.VAR_KEYWORD for parameter in parameters):
        return lambda name: not (name.startswith("__") and name.endswith("__"))
    return frozenset(parameter.name for parameter in parameters).__contains__


def _everything(name: str) -> bool:
    del name
    return True
