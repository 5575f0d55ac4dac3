"""The output of a loader: arrays or tensors, on which device, as a dict or a tuple.

Reaches `shardwise.tensors` when the first tensors are made, so that arrays need no torch.
"""

from __future__ import annotations

import sys
from collections.abc import Generator
from contextlib import AbstractContextManager, nullcontext
from typing import Any

from shardwise.collate import named
from shardwise.engine.request import Batch

__all__ = ["Output"]


class Output:
    """Turns batches of arrays into the user's batches.

    Args:
        kind: "torch" or "numpy".
        device: the device of tensors, or None for host memory.
        pin_memory: tensors in page-locked memory.
        as_tuple: the columns of a batch that is a tuple, in their order; None for dicts, and where
            a collate of the user's made the batch.
    """

    def __init__(
        self, kind: str, *, device: Any, pin_memory: bool, as_tuple: tuple[str, ...] | None
    ) -> None:
        self.kind = kind
        self.device: Any = None if device is None else _checked_device(device)
        self.pin_memory = pin_memory
        self.as_tuple = as_tuple
        self._copier: Any = None

    def __getstate__(self) -> dict[str, Any]:
        """The copier does not travel: it has a stream of this process."""
        return {**self.__dict__, "_copier": None}

    def ahead(self, batches: Generator[Batch, None, None]) -> Generator[Batch, None, None]:
        """The batches, with the copy of the next one to the device in progress, if there is one."""
        if not self._copies:
            return batches
        from shardwise.tensors.device import copier_for, look_ahead

        # Not made earlier: a program may choose its device after making the loader.
        self._copier = self._copier or copier_for(self.device)
        return look_ahead(batches, self._copier)

    def of(self, batch: Batch) -> Any:
        """The user's batch."""
        data = batch.data
        if isinstance(data, dict) and self.kind == "torch" and not self._copies:
            from shardwise.tensors.convert import to_tensors

            data = to_tensors(data, pin_memory=self.pin_memory)
        if self.as_tuple is None:
            return data
        return tuple(data[name] for name in named(data, self.as_tuple))

    def range(self, name: str) -> AbstractContextManager[object]:
        """A range of torch's profiler, where there is one that could be recording."""
        if self.kind != "torch" or "torch" not in sys.modules:
            return nullcontext()
        from shardwise.tensors.profiling import named_range

        return named_range(name)

    @property
    def _copies(self) -> bool:
        """Whether batches are copied to a device; they are built in host memory."""
        return self.device is not None and self.device.type != "cpu"


def _checked_device(device: Any) -> Any:
    from shardwise.tensors.device import checked_device

    return checked_device(device)
