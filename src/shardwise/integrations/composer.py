"""MosaicML Composer: its checkpoints keep a loader's position, and a resume reads nothing twice.

Composer sets no epoch of a loader that is not torch's, keeps no state of it, and resumes by
skipping batches. A loader that is trained on without this is refused by `shardwise.loader`.
"""

from __future__ import annotations

from typing import Any

from composer import Callback

from shardwise.base.errors import StateError
from shardwise.loader import DataLoader


class LoaderState(Callback):  # type: ignore[misc]
    """Keeps the train loader's state in Composer's checkpoints: `callbacks=[LoaderState(loader)]`.

    Args:
        loader: the `train_dataloader` of the Trainer.

    Raises:
        StateError: on resume, if the checkpoint has no state of the loader, or of another one.
    """

    def __init__(self, loader: DataLoader) -> None:
        self.loader = loader
        self._num_batches: int | None = None

    def state_dict(self) -> dict[str, Any]:
        """The state for a checkpoint: equal on all ranks."""
        return {"loader": self.loader.state_dict()}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Load the checkpoint's state."""
        self.loader.load_state_dict(state["loader"])

    def fit_start(self, state: Any, logger: Any) -> None:
        """Continue where the loader stands; Composer then skips nothing."""
        del logger
        loader, timestamp = self.loader, state.timestamp
        # Also where an earlier fit was ended within the epoch.
        loader.load_state_dict(loader.state_dict())
        state.dataset_resumption["train"] = True
        epoch, num_had = int(timestamp.epoch), int(timestamp.batch_in_epoch)
        if num_had == 0:
            return
        is_within = loader.num_steps_left < len(loader)
        if loader.epoch != epoch + (not is_within):
            raise StateError(
                f"Composer goes on after batch {num_had} of epoch {epoch}, and the loader stands "
                f"in epoch {loader.epoch} with {loader.num_steps_left} of {len(loader)} batches "
                "left: the run that wrote the checkpoint had no LoaderState of this loader"
            )
        num_batches = int(state.dataloader_len)
        if not is_within:
            self._shorten(state, 0)
        elif num_batches < len(loader):
            self._shorten(state, num_batches - num_had)

    def before_dataloader(self, state: Any, logger: Any) -> None:
        """Give Composer the epoch's length again, once it has taken that of the rest."""
        del logger
        if self._num_batches is not None:
            state.dataloader_len, self._num_batches = self._num_batches, None

    def epoch_start(self, state: Any, logger: Any) -> None:
        """Set the epoch, also after an epoch that was to be read only in part."""
        del logger
        self.loader.set_epoch(int(state.timestamp.epoch))

    def _shorten(self, state: Any, num_left: int) -> None:
        self._num_batches = int(state.dataloader_len)
        state.dataloader_len = num_left
