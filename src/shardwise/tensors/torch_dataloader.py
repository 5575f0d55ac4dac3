"""A loader that is an instance of torch's DataLoader, for code that checks the type.

Prefer `shardwise.DataLoader` itself: Accelerate, Lightning and Ray rebuild instances of torch's
class around their `.dataset` in some of their calls. This one shows Lightning by its sampler that
the data is divided already, and refuses to be rebuilt.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

import torch
import torch.utils.data
from torch.utils.data import SequentialSampler
from torch.utils.data.distributed import DistributedSampler

from shardwise.base.errors import FrameworkError
from shardwise.base.framework_guards import active_guards
from shardwise.plan.epoch_sampler import EpochLoader, EpochSampler


class StorageOrderSampler(EpochSampler, SequentialSampler):
    """The sampler of a loader that shuffles nothing; Lightning's `overfit_batches` needs it."""


class DividedSampler(EpochSampler, DistributedSampler[Any]):
    """The sampler of a `TorchDataLoader`: code that finds a DistributedSampler adds no other."""


class StorageOrderDividedSampler(StorageOrderSampler, DividedSampler):
    """A sampler in storage order, of a loader that has divided the data."""


class PositionedLoader(torch.utils.data.DataLoader[Any]):
    """A loader of torch's class that continues in mid-epoch by its own state.

    Accelerate's `skip_first_batches` and the `with_sampler` of Ray's `prepare_data_loader` ask for
    the generator, to make another loader of the parts.

    Raises:
        FrameworkError: one of them asks. After `load_state` the first would leave the same batches
            out once more; the second has torch's sampler in place of this loader's.
    """

    _generator: torch.Generator | None = None
    # Whether another loader of its parts would have other batches than those after the first ones.
    _refuses_skips = True

    @property
    def generator(self) -> torch.Generator | None:
        """Torch's argument of this name."""
        for guard in active_guards():
            guard.check_generator(refuses_skips=self._refuses_skips)
        return self._generator

    @generator.setter
    def generator(self, generator: torch.Generator | None) -> None:
        self._generator = generator


class TorchDataLoader(PositionedLoader):
    """Passes everything on to a `shardwise.DataLoader`; made by its `as_torch_dataloader()`.

    Raises:
        FrameworkError: a framework rebuilds it, which would change the order.
    """

    # Accelerate leaves alone what it takes for its own, and saves its state.
    _is_accelerate_prepared = True
    use_stateful_dataloader = True

    def __init__(self, loader: EpochLoader | None = None, **rebuilt: Any) -> None:
        if loader is None or rebuilt:
            raise FrameworkError(
                "a framework wants to put its own sampler into a shardwise loader, which has an "
                "order and has divided the data: for Lightning's overfit_batches make the loader "
                "with shuffle=False, for its predict use it without as_torch_dataloader()"
            )
        is_shuffled = not isinstance(loader.sampler, StorageOrderSampler)
        kind = DividedSampler if is_shuffled else StorageOrderDividedSampler
        super().__init__(loader.dataset, batch_size=None, sampler=kind(loader))
        self.loader = loader

    def __iter__(self) -> Iterator[Any]:  # type: ignore[override]
        if "_is_accelerate_prepared" in vars(self):
            # Accelerator.prepare marks what it saves the state of.
            self.loader._is_accelerate_prepared = True
        if any(guard.builds_model() for guard in active_guards()):
            return self._first_batch()
        return iter(self.loader)

    def _first_batch(self) -> Iterator[Any]:
        """Yield the batch that Keras's `fit` builds the model from first; the position stays."""
        state = self.loader.state_dict()
        for batch in self.loader:
            # A pass whose only batch was returned would be over.
            self.loader.load_state_dict(state)
            yield batch
            return

    def __len__(self) -> int:
        return len(self.loader)

    @property
    def total_batch_size(self) -> int:
        """The loader's samples of a step over all ranks."""
        return self.loader.plan.global_batch_size

    @property
    def epoch(self) -> int:
        return self.loader.epoch

    def set_epoch(self, epoch: int) -> None:
        self.loader.set_epoch(epoch)

    def state_dict(self) -> dict[str, Any]:
        return self.loader.state_dict()

    def load_state_dict(self, state: Mapping[str, Any], **options: Any) -> None:
        self.loader.load_state_dict(state, **options)
