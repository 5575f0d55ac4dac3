"""What training frameworks ask of a loader, beside its batches and its state.

Each reaches up into what imports the framework, once the program has imported it: inside a
function only.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Generator, Iterator
from typing import Any, NoReturn

from shardwise.epoch_sampler import EpochLoader, EpochSampler
from shardwise.errors import FrameworkError
from shardwise.plan import Plan, SequentialSampler

__all__ = [
    "announced",
    "no_such_attribute",
    "sampler_of",
]

# Who asks a loader for these is about to make torch's DataLoader of its parts: Ray for the first,
# Accelerate's skip_first_batches for the second. Lightning only asks whether there is the first.
_ASKED_TO_REBUILD = {"worker_init_fn": AttributeError, "generator": FrameworkError}


def sampler_of(loader: EpochLoader) -> EpochSampler:
    """A way to set the epoch, and where nothing is shuffled an instance of torch's too."""
    if "torch" not in sys.modules or not isinstance(loader.plan.sampler, SequentialSampler):
        return EpochSampler(loader)
    from shardwise.tensors.torch_dataloader import StorageOrderSampler

    return StorageOrderSampler(loader)


def announced(
    batches: Generator[Any, None, None], rest: Callable[[], Plan], *, is_known: bool
) -> Iterator[Any]:
    """The batches of a pass, which Accelerate is told of where the program uses it.

    Args:
        batches: the pass, not yet begun.
        rest: its plan, called after its first batch was made.
        is_known: whether its position is saved by something that was told of it.
    """
    if "accelerate.state" not in sys.modules:
        return batches
    from shardwise.integrations.accelerate import followed

    return followed(batches, rest, is_known=is_known)


def no_such_attribute(kind: type, name: str) -> NoReturn:
    """Refuse those who would rebuild a loader as torch's, by what only they ask for.

    Raises:
        AttributeError: there is no such attribute.
        FrameworkError: Accelerate asked; it would not listen to an AttributeError.
    """
    if name not in _ASKED_TO_REBUILD:
        raise AttributeError(f"{kind.__name__!r} object has no attribute {name!r}")
    raise _ASKED_TO_REBUILD[name](
        f"a shardwise loader has no {name}, since it can't be rebuilt as torch's DataLoader: it "
        "has divided the data, and goes on in mid-epoch by its own state. Iterate it as it is: "
        "without Ray's prepare_data_loader, without Accelerate's skip_first_batches, and in "
        "Hugging Face's Trainer through LoaderMixin of shardwise.integrations.huggingface"
    )
