"""The loader's interface for frameworks, and the sampler that they set its epoch through."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any, Protocol

from shardwise.plan import Plan


class EpochLoader(Protocol):
    """A loader with a position, as frameworks iterate, save and restore it."""

    # Accelerate's own mark of a loader whose state it saves.
    _is_accelerate_prepared: bool

    @property
    def dataset(self) -> Any:
        """The dataset that the samples come from."""

    @property
    def batch_size(self) -> int:
        """Samples of a batch on one rank."""

    @property
    def plan(self) -> Plan:
        """The plan: each rank's samples at each step."""

    @property
    def _pass_plan(self) -> Plan:
        """The plan of the pass under way, or else the next one, from its first batch on."""

    @property
    def sampler(self) -> EpochSampler:
        """Sets the epoch."""

    @property
    def epoch(self) -> int:
        """The epoch that the next batch belongs to."""

    def set_epoch(self, epoch: int) -> None:
        """Start this epoch with the next pass."""

    def state_dict(self) -> dict[str, Any]:
        """The position, as JSON."""

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Continue where a state was taken."""

    def _pad(self, *, only_default: bool) -> None:
        """Fill the last batch where it would be uneven, for frameworks that gather equal ones."""

    def __len__(self) -> int: ...

    def __iter__(self) -> Iterator[Any]: ...


class EpochSampler:
    """The object that frameworks expect at `loader.sampler`: a way to set the epoch."""

    def __init__(self, loader: EpochLoader) -> None:
        self._loader = loader

    def set_epoch(self, epoch: int) -> None:
        self._loader.set_epoch(epoch)

    def __len__(self) -> int:
        return len(self._loader) * self._loader.batch_size
