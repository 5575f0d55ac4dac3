"""The order of a dataset: what a state belongs to, and how it is made and read."""

from __future__ import annotations

import operator
from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any, SupportsIndex

from shardwise.plan.plan import Plan
from shardwise.plan.protocol import Sampler
from shardwise.plan.state import LoaderState

__all__ = ["Order", "checked_epoch"]


@dataclass(frozen=True)
class Order:
    """The order of a dataset's samples.

    Attributes:
        fingerprint: the dataset's; "" for data that has none.
        sampler: the order of its samples.
    """

    fingerprint: str
    sampler: Sampler

    def state(self, epoch: int, position: int) -> LoaderState:
        """A state of this data and order."""
        num_samples = self.sampler.num_samples
        past = getattr(self.sampler, "past", None)
        return LoaderState(
            epoch=epoch,
            position=position,
            fingerprint=self.fingerprint,
            num_samples=num_samples,
            order=self.sampler.spec() if past is None else past(epoch * num_samples + position),
        )

    def state_after(self, plan: Plan, epoch: int, num_batches: int) -> LoaderState:
        """The state after some batches of a pass over `plan`, which was resumed at its start."""
        if 0 < num_batches == plan.num_steps:
            return self.state(epoch + 1, 0)
        return self.state(epoch, plan.position_after(num_batches))

    def read(self, state: Mapping[str, Any]) -> LoaderState:
        """Read a state of this data and order.

        Raises:
            StateError: it is malformed, or belongs to other data, another seed or another order.
        """
        loaded = LoaderState.from_dict(state)
        num_samples = self.sampler.num_samples
        past = getattr(self.sampler, "past", None)
        if past is None:
            loaded.check(self.fingerprint, num_samples, self.sampler.spec())
            return loaded
        since_begin = loaded.epoch * loaded.num_samples + loaded.position
        loaded.check_past(since_begin, past(since_begin))
        if loaded.num_samples == num_samples:
            return loaded
        # Epochs of another length: the same place since the beginning.
        epoch, position = divmod(since_begin, num_samples)
        return replace(loaded, epoch=epoch, position=position, num_samples=num_samples)


def checked_epoch(epoch: SupportsIndex) -> int:
    """An epoch that a user chose, as an int.

    Raises:
        ValueError: it is below 0.
    """
    number = operator.index(epoch)
    if number < 0:
        raise ValueError(f"epoch={number}: use 0 or more")
    return number
