"""A loader as Hugging Face's Trainer sees it, and its batches as a model takes them.

Rows that only fill a batch come after its samples.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

import torch
import torch.utils.data
from accelerate.utils import recursively_apply

from shardwise.integrations.repeats import refuse_repeats
from shardwise.loader import DataLoader

IGNORED_LABEL = -100  # what transformers' losses leave out


class Batch(dict[str, Any]):
    """The columns of a batch that the model takes.

    Attributes:
        num_rows: rows, which are as many on all ranks.
        num_valid: samples; the rows after them are repeats.
        share: `num_valid` over the mean of all ranks.
    """

    num_rows = 0
    num_valid = 0
    share = 1.0


class TrainerLoader:
    """A loader as the Trainer sees it; the attributes are those of a torch DataLoader.

    To skip batches, accelerate's `skip_first_batches` makes a DataLoader of `dataset` and of
    `batch_sampler` without its first entries. Here these are the numbers of steps, and the dataset
    gives the next batch for any of them: the loader has the position.
    """

    num_workers = 0
    prefetch_factor = None
    multiprocessing_context = None

    def __init__(
        self,
        loader: DataLoader,
        takes: Callable[[str], bool],
        labels: frozenset[str],
        *,
        is_training: bool,
    ) -> None:
        self._loader = loader
        self._takes = takes
        self._labels = labels
        self._is_training = is_training
        self.batch_size = loader.batch_size
        self.drop_last = loader.drop_last
        self.sampler = loader.sampler
        self.batch_sampler = _Steps(loader)
        self.dataset = _Batches(self)

    def __len__(self) -> int:
        return len(self._loader)

    def __iter__(self) -> Iterator[Any]:
        for batch in self._loader:
            yield self._for_model(batch) if isinstance(batch, Mapping) else batch

    def set_epoch(self, epoch: int) -> None:
        self._loader.set_epoch(epoch)

    @staticmethod
    def collate_fn(batch: Any) -> Any:
        """Leave a batch as it is."""
        return batch

    def _for_model(self, columns: Mapping[str, Any]) -> Batch:
        loader, plan = self._loader, self._loader._pass_plan
        batch = Batch(
            (name, value)
            for name, value in columns.items()
            if name in self._labels or self._takes(name)
        )
        batch.num_rows = batch.num_valid = loader.batch_size
        refuse_repeats(plan)
        if plan.num_padded and loader.num_steps_left == 0:
            last = plan.num_steps - 1
            _, valid = plan.positions(plan.epoch, range(last, last + 1), loader.rank)
            batch.num_valid = int(valid.sum())
            num_samples = plan.global_batch_size - plan.num_padded
            batch.share = batch.num_valid * plan.world_size / num_samples
            if self._is_training:
                _without_repeats(batch, self._labels)
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

    def __init__(self, batches: TrainerLoader) -> None:
        self._batches = batches
        self._iterator: Iterator[Any] | None = None

    def __len__(self) -> int:
        return len(self._batches._loader.dataset)

    def __getitems__(self, steps: Sequence[int]) -> Any:
        """The next batch; its number is only what the Trainer counts."""
        del steps
        if self._iterator is None:
            self._iterator = iter(self._batches)
        return next(self._iterator)


def _without_repeats(batch: Batch, labels: frozenset[str]) -> None:
    """Leave a batch's samples; of repeats alone the rows stay, with labels that don't count."""
    for name, value in batch.items():
        if batch.num_valid:
            batch[name] = first_rows(value, batch.num_valid, batch.num_rows)
        elif name in labels and is_label(value):
            batch[name] = torch.full_like(value, IGNORED_LABEL)


def is_label(value: Any) -> bool:
    """Whether a column may hold labels that losses leave out: numbers, but no real ones."""
    return isinstance(value, torch.Tensor) and not value.is_floating_point()


def first_rows(columns: Any, num: int, num_rows: int) -> Any:
    """The first `num` of a batch's rows, in tensors and lists that have `num_rows`."""
    if isinstance(columns, list) and len(columns) == num_rows:
        return columns[:num]
    return recursively_apply(
        lambda tensor: tensor[:num] if tensor.ndim and len(tensor) == num_rows else tensor, columns
    )


def with_repeats(outputs: Any, num: int, num_rows: int) -> Any:
    """Rows again up to `num_rows`, in tensors that have `num`."""

    def filled(tensor: torch.Tensor) -> torch.Tensor:
        if not tensor.ndim or len(tensor) != num:
            return tensor
        return torch.cat([tensor, tensor[-1:].expand(num_rows - num, *tensor.shape[1:])])

    return recursively_apply(filled, outputs)


def columns_of(model: torch.nn.Module, *, has_all: bool) -> Callable[[str], bool]:
    """Whether a model's forward takes a column, by its signature."""
    parameters = inspect.signature(model.forward).parameters.values()
    names = frozenset(parameter.name for parameter in parameters)
    if has_all or any(parameter.kind is parameter.VAR_KEYWORD for parameter in parameters):
        return lambda name: name in names or not (name.startswith("__") and name.endswith("__"))
    return names.__contains__
