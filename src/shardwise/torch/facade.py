"""A loader that is an instance of torch's DataLoader, for code that insists on one.

Prefer `shardwise.DataLoader` itself: Accelerate, Lightning and Ray rebuild instances of torch's
class around their `.dataset` in some of their calls, and a rebuilt one has lost the order.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import TYPE_CHECKING, Any

import torch.utils.data

if TYPE_CHECKING:
    from shardwise.loader import DataLoader

__all__ = ["TorchDataLoader"]


class TorchDataLoader(torch.utils.data.DataLoader[Any]):
    """Passes everything on to a `shardwise.DataLoader`; made by its `as_torch_dataloader()`."""

    # Accelerate leaves alone what it takes for its own, and saves its state.
    _is_accelerate_prepared = True
    use_stateful_dataloader = True

    def __init__(self, loader: DataLoader) -> None:
        super().__init__(loader.dataset, batch_size=None)  # type: ignore[arg-type]
        self.loader = loader

    def __iter__(self) -> Iterator[Any]:  # type: ignore[override]
        return iter(self.loader)

    def __len__(self) -> int:
        return len(self.loader)

    def set_epoch(self, epoch: int) -> None:
        """Set the loader's epoch."""
        self.loader.set_epoch(epoch)

    def state_dict(self) -> dict[str, Any]:
        """The loader's state."""
        return self.loader.state_dict()

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Let the loader go on where a state was taken."""
        self.loader.load_state_dict(state)
