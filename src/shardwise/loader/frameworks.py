"""The interface that training frameworks expect of a loader, beside its batches and state."""

from __future__ import annotations

import sys
import weakref
from collections.abc import Callable, Generator, Iterator
from inspect import GEN_RUNNING, getgeneratorstate
from typing import Any, Generic, NoReturn, cast

from shardwise.base.errors import FrameworkError
from shardwise.base.framework_guards import active_guards
from shardwise.loader.plan_options import PlanOptions
from shardwise.loader.returned_types import B
from shardwise.plan import Plan, SequentialSampler
from shardwise.plan.epoch_sampler import EpochLoader, EpochSampler

# Frameworks read these to rebuild a loader as torch's DataLoader: Ray the first, Accelerate's
# skip_first_batches the second. Lightning only asks whether the first exists.
_ASKED_TO_REBUILD = {"worker_init_fn": AttributeError, "generator": FrameworkError}
# The attributes that are options, which the plan and the executor were made by.
_FIXED = frozenset(
    ("dataset", "batch_size", "sampler", "batch_sampler", "drop_last", "collate_fn", "output")
)


class FrameworkAttributes(Generic[B]):
    """The attributes that frameworks look for in a loader, as of torch's DataLoader."""

    use_stateful_dataloader = True
    batch_sampler = None
    multiprocessing_context = None
    # Accelerate's own mark of a loader that it has prepared: any other it would shard once more.
    _is_accelerate_prepared = True

    def __getitem__(self, item: Any) -> NoReturn:
        """Refuse to be the dataset of torch's DataLoader, which requests items."""
        raise TypeError(
            f"a shardwise {type(self).__name__} has batches and no items: it is the loader "
            "already, so iterate it without torch's DataLoader around it; loader.dataset has the "
            "samples"
        )

    def __setattr__(self, name: str, value: Any) -> None:
        # `_passes` is the last one that is set where a loader is made.
        if name in _FIXED and "_passes" in vars(self):
            raise ValueError(f"{name} can't be set after the loader was made: make another loader")
        super().__setattr__(name, value)

    def __getattr__(self, name: str) -> NoReturn:
        """Refuse attributes that are read only to rebuild a loader as torch's.

        Raises:
            AttributeError: the attribute does not exist.
            FrameworkError: Accelerate reads it; it would ignore an AttributeError.
        """
        if name not in _ASKED_TO_REBUILD:
            raise AttributeError(f"{type(self).__name__!r} object has no attribute {name!r}")
        raise _ASKED_TO_REBUILD[name](
            f"a shardwise loader has no {name}, since it can't be rebuilt as torch's DataLoader: "
            "it has divided the data, and resumes in mid-epoch by its own state. Iterate it as it "
            "is: without Ray's prepare_data_loader, without Accelerate's skip_first_batches, and "
            "in Hugging Face's Trainer through LoaderMixin of shardwise.integrations.huggingface"
        )

    _plan: Plan
    _options: PlanOptions

    def _batches(self) -> Generator[Any, None, None]:
        """Yield the batches of a pass, which starts with the first `next`."""
        raise NotImplementedError

    def __iter__(self) -> Iterator[B]:
        """Iterate the epoch from where it stands; nothing happens before the first `next`."""
        # A framework that saves the state sets the mark on the instance; the class has it, too.
        is_known = "_is_accelerate_prepared" in vars(self)
        batches, loader = self._batches(), cast("EpochLoader", self)
        _close_at_exit(batches)
        return batches_for_frameworks(batches, lambda: loader._pass_plan, is_known=is_known)

    def as_torch_dataloader(self) -> Any:
        """This loader as a `torch.utils.data.DataLoader`, for code that checks the type."""
        from shardwise.tensors.torch_dataloader import TorchDataLoader

        return TorchDataLoader(cast("EpochLoader", self))

    @property
    def batch_size(self) -> int:
        """Samples per rank in each batch; of a `global_batch_size` the largest share."""
        return self._plan.batch_size

    @property
    def total_batch_size(self) -> int:
        """Samples of a step over all ranks, under the name that Accelerate's loaders have."""
        return cast("EpochLoader", self).plan.global_batch_size

    @property
    def sampler(self) -> EpochSampler:
        """Sets the epoch; without a shuffle it is an instance of torch's sampler, too.

        Raises:
            FrameworkError: a framework would turn off the shuffle of a loader.
        """
        loader = cast("EpochLoader", self)
        if "torch" not in sys.modules or not isinstance(loader.plan.sampler, SequentialSampler):
            for guard in active_guards():
                guard.check_shuffle()
            return EpochSampler(loader)
        from shardwise.tensors.torch_dataloader import StorageOrderSampler

        return StorageOrderSampler(loader)

    def _pad(self, *, only_default: bool) -> None:
        """Fill the last batch where it would be uneven, for frameworks that gather equal ones."""
        plan = cast("EpochLoader", self).plan
        if plan.has_even_steps and plan.global_batch_size % plan.world_size:
            raise ValueError(
                f"global_batch_size={plan.global_batch_size} gives {plan.world_size} ranks "
                f"{plan.batch_size} and {plan.batch_size - 1} samples, and this framework gathers "
                "equal batches: use a multiple of the number of ranks"
            )
        is_default = self._options.remainder is None
        if self._plan.remainder == "uneven" and (is_default or not only_default):
            self._plan = self._plan.padded()


def batches_for_frameworks(
    batches: Generator[Any, None, None], rest: Callable[[], Plan], *, is_known: bool
) -> Iterator[Any]:
    """Return the batches of a pass as the imported frameworks should see them.

    Raises:
        FrameworkError: a framework would lose batches, or not save the position.
    """
    guards = active_guards()
    for guard in guards:
        guard.check_pass()
    wrapped: Any = batches
    for guard in guards:
        wrapped = guard.wrap_batches(wrapped, rest, is_known=is_known)
    return wrapped  # type: ignore[no-any-return]


def _close_at_exit(batches: Generator[Any, None, None]) -> None:
    """Close a generator when the interpreter ends, unless it is gone or a thread is in it.

    One that a global holds would be closed after the modules have lost their globals, where its
    `except` and `finally` blocks raise.
    """
    weakref.finalize(batches, _close, weakref.ref(batches))


def _close(reference: weakref.ref[Generator[Any, None, None]]) -> None:
    batches = reference()
    if batches is not None and getgeneratorstate(batches) != GEN_RUNNING:
        batches.close()
