"""What the samplers share: what a dataset says of its order, and a place in it.

Imports the plan.
"""

from __future__ import annotations

import sys
from typing import Any, Literal

from shardwise.errors import RankError
from shardwise.loader.frameworks import callers
from shardwise.plan import LoaderState, Order, Sampler, Shuffle, checked_epoch

__all__ = ["Cursor", "check_count", "order_of", "refuse_second_division", "shuffle_of"]

# What Accelerate puts around a loader to divide it, all in one module.
_ACCELERATE = "accelerate.data_loader"
_DIVIDERS = ("BatchSamplerShard", "IterableDatasetShard", "DataLoaderDispatcher")


class Cursor:
    """Where a sampler is: the epoch, where the epoch began, and what was yielded since.

    One for each pass, so that an iterator that was left behind counts for nothing.

    Attributes:
        epoch: the epoch of the pass.
        start: the position that the pass begins at.
        num_given: what was yielded.
        is_whole: whether that is all; the end need not have been asked for.
    """

    def __init__(self, epoch: int = 0, start: int = 0) -> None:
        self.epoch = epoch
        self.start = start
        self.num_given = 0
        self.is_whole = False

    @classmethod
    def at(cls, state: LoaderState) -> Cursor:
        """Where a state stands."""
        return cls(state.epoch, state.position)

    def again(self) -> Cursor:
        """The next pass of the same epoch: from the same place, after a whole pass from 0."""
        return Cursor(self.epoch, 0 if self.is_whole else self.start)

    def moved_to(self, epoch: int) -> Cursor:
        """The beginning of another epoch, or of one that is over; else the same epoch goes on."""
        epoch = checked_epoch(epoch)
        return self if epoch == self.epoch and not self.is_whole else Cursor(epoch)

    def give(self, num_steps: int) -> None:
        """Count one step, of this many that the pass has."""
        self.num_given += 1
        self.is_whole = self.num_given >= num_steps


def refuse_second_division(part: object, world_size: int) -> None:
    """Refuse to be read by what Accelerate divides with, if the data are divided already.

    It asks a sampler or dataset for nothing that would tell, so the call itself is looked at.

    Raises:
        RankError: each rank would read a part of its part.
        FrameworkError: this version of Accelerate divides with something else.
    """
    if world_size == 1 or _ACCELERATE not in sys.modules:
        return
    from shardwise.integrations.accelerate import check_dividers

    check_dividers(*_DIVIDERS)
    for module, frame in callers():
        owner = type(frame.f_locals.get("self")).__name__
        if module == _ACCELERATE and owner in _DIVIDERS:
            name = type(part).__name__
            raise RankError(
                f"Accelerate's {owner} divides among its processes what {name} has divided over "
                f"world_size={world_size} ranks, so each would read a part of its part: give "
                f"accelerator.prepare a shardwise.torch.StatefulDataLoader around the {name}, or a "
                "sw.DataLoader; or pass rank=0 and the number of ranks 1, for Accelerate to divide"
            )


def order_of(dataset: object, sampler: Sampler) -> Order:
    """What a state of a sampler belongs to: the order of this dataset, fingerprinted or not."""
    fingerprint = getattr(dataset, "fingerprint", None)
    return Order(fingerprint if isinstance(fingerprint, str) else "", sampler)


def shuffle_of(
    dataset: object, shuffle: Shuffle, shard_sizes: Any
) -> tuple[Literal[False, "full", "window"], Any]:
    """What True means for this dataset, and the shards that a window shuffle needs."""
    kind: Any = shuffle
    if shuffle is True:
        kind = getattr(dataset, "default_shuffle", "full" if shard_sizes is None else "window")
    if kind == "window" and shard_sizes is None:
        shard_sizes = getattr(dataset, "shard_sizes", None)
    return kind, shard_sizes if kind == "window" else None


def check_count(name: str, given: int, left: int, cursor: Cursor) -> None:
    """Refuse a count of what was taken that the epoch does not have.

    Raises:
        ValueError: `given` is not in [0, left].
    """
    if not 0 <= given <= left:
        raise ValueError(
            f"{name}={given}: epoch {cursor.epoch} has {left} from position {cursor.start} on; "
            "count anew after each iter(loader)"
        )
