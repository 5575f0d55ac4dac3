"""Batches of torch's workers in shared memory that is reused.

torch gives each tensor of each batch its own shared memory: the system clears its pages, and
frees them a moment later. Here a batch is a message of the engine's transport, which travels in
torch's queues. Tensors in shared memory, as torch's `default_collate` makes them in a worker,
travel torch's way. A batch that can't be pickled is an error that the trainer raises; with torch's
own transport it waits for ever.
"""

from __future__ import annotations

from collections.abc import Callable
from multiprocessing import reduction
from typing import Any

from torch.utils.data import get_worker_info

from shardwise.engine.processes.slots import SlotPool
from shardwise.engine.processes.transport import Packed, message_slots, pack, unpack, unpack_file
from shardwise.torch.account import CountedBatch

# Batches below 128 KiB travel in the workers' pipe, which costs less than to send a file.
_MAX_INLINE_BYTES = 128 << 10
# A worker's slots: for the batches that it prefetches (2 by default) and those the trainer holds.
_MAX_IDLE = 16


class SharedMemoryCollate:
    """A collate function for torch's DataLoader, whose batches travel in reused shared memory.

    Args:
        collate: makes the batch.
    """

    def __init__(self, collate: Callable[[Any], Any]) -> None:
        self.collate: Callable[[Any], Any] = collate
        # The slots of the worker that has this copy.
        self._slots: SlotPool | None = None

    def __call__(self, data: Any) -> Any:
        """Make a batch; in a worker, ready to be sent."""
        if isinstance(data, CountedBatch):
            batch: Any = data._replace(data=self.collate(data.data))
        else:
            batch = self.collate(data)
        if get_worker_info() is None:
            return batch
        if self._slots is None:
            self._slots = message_slots(max_idle=_MAX_IDLE)
        pickler = reduction.ForkingPickler
        packed = pack(batch, self._slots, max_inline=_MAX_INLINE_BYTES, kind=pickler)
        return _SharedBatch(packed)


class _SharedBatch:
    """A batch that is sent; unpickled, it is the batch."""

    def __init__(self, packed: Packed) -> None:
        self._packed = packed

    def __reduce__(self) -> Any:
        if self._packed.descriptor is None:
            return unpack, (bytearray(self._packed.body),)
        return _receive, (reduction.DupFd(self._packed.descriptor),)


def _receive(file: Any) -> Any:
    return unpack_file(file.detach())
