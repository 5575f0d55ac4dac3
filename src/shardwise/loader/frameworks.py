"""What training frameworks ask of a loader, beside its batches and its state."""

from __future__ import annotations

import sys
from collections.abc import Callable, Generator, Iterator
from typing import Any, NoReturn

from shardwise.base.errors import FrameworkError
from shardwise.base.framework_guards import active_guards
from shardwise.plan import Plan, SequentialSampler
from shardwise.plan.epoch_sampler import EpochLoader, EpochSampler

# Frameworks read these to rebuild a loader as torch's DataLoader: Ray the first, Accelerate's
# skip_first_batches the second. Lightning only asks whether the first exists.
_ASKED_TO_REBUILD = {"worker_init_fn": AttributeError, "generator": FrameworkError}


def sampler_of(loader: EpochLoader) -> EpochSampler:
    """Return what sets the loader's epoch; without a shuffle an instance of torch's sampler, too.

    Raises:
        FrameworkError: a framework would turn off the shuffle of a loader.
    """
    if "torch" not in sys.modules or not isinstance(loader.plan.sampler, SequentialSampler):
        for guard in active_guards():
            guard.check_shuffle()
        return EpochSampler(loader)
    from shardwise.tensors.torch_dataloader import StorageOrderSampler

    return StorageOrderSampler(loader)


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


def no_such_attribute(kind: type, name: str) -> NoReturn:
    """Refuse attributes that only those ask for who rebuild a loader as torch's.

    Raises:
        AttributeError: there is no such attribute.
        FrameworkError: Accelerate asked; it would ignore an AttributeError.
    """
    if name not in _ASKED_TO_REBUILD:
        raise AttributeError(f"{kind.__name__!r} object has no attribute {name!r}")
    raise _ASKED_TO_REBUILD[name](
        f"a shardwise loader has no {name}, since it can't be rebuilt as torch's DataLoader: it "
        "has divided the data, and resumes in mid-epoch by its own state. Iterate it as it is: "
        "without Ray's prepare_data_loader, without Accelerate's skip_first_batches, and in "
        "Hugging Face's Trainer through LoaderMixin of shardwise.integrations.huggingface"
    )
