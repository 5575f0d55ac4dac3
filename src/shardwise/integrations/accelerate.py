"""Hugging Face Accelerate: a loader that tells it where an epoch ends, and is saved by it.

Accelerate accumulates gradients up to the last batch of a loader, whatever their number, and asks
the loader which one that is. It saves and loads the state of the loaders that it knows. Imports
accelerate and the loader.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import TYPE_CHECKING, Any

from accelerate.state import GradientState

if TYPE_CHECKING:
    from accelerate import Accelerator

    from shardwise.loader import DataLoader

__all__ = ["PreparedLoader", "prepare"]


def prepare(accelerator: Accelerator, loader: DataLoader) -> PreparedLoader:
    """Make Accelerate know a loader; it divides nothing, since the loader has done that.

    After it, `accelerator.accumulate` ends its sum with the epoch, and `accelerator.save_state`
    and `load_state` save and load the position of the loader, in the middle of an epoch, too.
    Call it in the same order for all loaders of a program, before `load_state`.

    Args:
        accelerator: the program's own.
        loader: made with `device=accelerator.device`, if batches are to be moved.

    Example:
        loader = prepare(accelerator, sw.DataLoader(data, batch_size=32, remainder="pad"))
    """
    prepared = PreparedLoader(loader)
    accelerator.prepare_data_loader(prepared)
    return prepared


class PreparedLoader:
    """A `shardwise.DataLoader` as Accelerate's own: made by `prepare`.

    Attributes:
        loader: the loader itself.
        end_of_dataloader: whether the batch in hand is the last one of the epoch.
        remainder: 0: `gather_for_metrics` cuts nothing off. Repeats stand in any rows of the last
            batch and carry False in "__valid__": gather it as well, and take the rows by it.
    """

    # What Accelerate reads: it takes the loader as it is, and saves its state.
    _is_accelerate_prepared = True
    use_stateful_dataloader = True
    remainder = 0

    def __init__(self, loader: DataLoader) -> None:
        self.loader = loader
        self.end_of_dataloader = False

    def __getattr__(self, name: str) -> Any:
        # Asked for before __init__, as by copy and pickle, there is no loader to ask.
        if name == "loader":
            raise AttributeError(name)
        return getattr(self.loader, name)

    def __len__(self) -> int:
        return len(self.loader)

    def __iter__(self) -> Iterator[Any]:
        """Iterate the loader, as the one that Accelerate takes for active."""
        gradients = GradientState()
        self.end_of_dataloader = False
        gradients._add_dataloader(self)
        try:
            for batch in self.loader:
                self.end_of_dataloader = self.loader.num_steps_left == 0
                yield batch
        finally:
            gradients._remove_dataloader(self)

    def state_dict(self) -> dict[str, Any]:
        """The loader's state: equal on all ranks."""
        return self.loader.state_dict()

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Let the loader go on where a state was taken."""
        self.loader.load_state_dict(state)
