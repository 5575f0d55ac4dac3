"""What the samplers share: the order that a state belongs to, and a place in it.

Imports the plan.
"""

from __future__ import annotations

import operator
from collections.abc import Mapping
from typing import Any, Literal, TypeAlias

from shardwise.plan import LoaderState, Sampler

__all__ = ["Cursor", "Order", "Shuffle", "check_count", "shuffle_of"]

Shuffle: TypeAlias = bool | Literal["full", "window"]


class Cursor:
    """Where a sampler is: the epoch, where the epoch began, and what was yielded since.

    One for each pass, so that an iterator that was left behind counts for nothing.
    """

    def __init__(self, epoch: int = 0, start: int = 0) -> None:
        self.epoch = epoch
        self.start = start
        self.num_given = 0

    def again(self) -> Cursor:
        """The same place, with nothing yielded."""
        return Cursor(self.epoch, self.start)

    def moved_to(self, epoch: int) -> Cursor:
        """The beginning of another epoch; the same epoch goes on."""
        epoch = operator.index(epoch)
        if epoch < 0:
            raise ValueError(f"epoch={epoch}: use 0 or more")
        return self if epoch == self.epoch else Cursor(epoch)


class Order:
    """What a state of a sampler belongs to: some data in some order."""

    def __init__(self, dataset: object, num_samples: int, sampler: Sampler) -> None:
        fingerprint = getattr(dataset, "fingerprint", None)
        self.fingerprint = fingerprint if isinstance(fingerprint, str) else ""
        self.num_samples = num_samples
        self.sampler = sampler

    def state(self, epoch: int, position: int) -> LoaderState:
        """A state of this data and order."""
        return LoaderState(
            epoch=epoch,
            position=position,
            fingerprint=self.fingerprint,
            num_samples=self.num_samples,
            order=self.sampler.spec(),
        )

    def cursor(self, state: Mapping[str, Any]) -> Cursor:
        """Where a state stands.

        Raises:
            StateError: it belongs to other data, another seed or another order.
        """
        loaded = LoaderState.from_dict(state)
        loaded.check(self.fingerprint, self.num_samples, self.sampler.spec())
        return Cursor(loaded.epoch, loaded.position)


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
