"""Batches of torch's workers, handed over in memory that is used again.

torch gives each tensor of each batch shared memory of its own: the system clears its pages, and
takes them back a moment later. Here the arrays of a batch travel together in an anonymous file
that the worker fills again once the last of them is gone in the trainer. What is in shared memory
already, such as what torch's `default_collate` makes in a worker, goes torch's way. A batch that
can't be pickled is an error of the worker's that the trainer raises; with torch's own way it waits
for ever. Imports torch and `shardwise.engine.processes.shared_memory`.
"""

from __future__ import annotations

import io
import os
import pickle
import weakref
from collections.abc import Callable, Sequence
from multiprocessing import reduction
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch.utils.data import get_worker_info

from shardwise.engine.processes.shared_memory import Lease, Slot, aligned, anonymous_file

__all__ = ["HandOver"]

# Smaller batches go through the workers' pipe, which costs less than to pass on a file.
_LEAST_BYTES = 128 << 10
# A worker uses as many as it reads ahead (2 by default), and those that the trainer holds; for
# batches beyond these it takes new memory each time, as torch does for all.
_MOST_SLOTS = 16
# Before the arrays: whether a slot is in use, as its worker and the trainer both see it.
_HEADER_BYTES = 64


class _Pickler(reduction.ForkingPickler):
    """Pickles the arrays and tensors of a batch without their bytes.

    torch's own way moves a tensor's memory, which others may be views of: where the bytes of
    tensors are is asked at the end.

    Args:
        file: for what is pickled.
    """

    def __init__(self, file: io.BytesIO) -> None:
        self._buffers: list[pickle.PickleBuffer] = []
        self._tensors: dict[int, torch.Tensor] = {}
        super().__init__(file, pickle.HIGHEST_PROTOCOL, True, self._buffers.append)

    def reducer_override(self, obj: Any) -> Any:
        if not (type(obj) is torch.Tensor and _is_plain(obj)):
            return NotImplemented
        flat = obj.resolve_conj().resolve_neg().contiguous().reshape(-1).view(torch.uint8)
        array: Any = flat.numpy()
        buffer = pickle.PickleBuffer(array)
        self._tensors[id(buffer)] = flat
        return _tensor, (buffer, obj.dtype, obj.shape)

    def parts(self) -> list[NDArray[np.uint8]]:
        """The bytes of what was pickled, in order."""
        return [
            np.frombuffer(buffer.raw(), np.uint8)
            if id(buffer) not in self._tensors
            else self._tensors[id(buffer)].numpy()
            for buffer in self._buffers
        ]


def _is_plain(tensor: torch.Tensor) -> bool:
    """Whether a tensor is its bytes, a dtype and a shape, and nobody wants it to stay shared."""
    return (
        tensor.device.type == "cpu"
        and tensor.layout == torch.strided
        and not tensor.is_quantized
        and not tensor.requires_grad
        and not tensor.untyped_storage().is_shared()
    )


def _tensor(buffer: Any, dtype: torch.dtype, shape: torch.Size) -> torch.Tensor:
    if 0 in shape:
        return torch.empty(shape, dtype=dtype)
    return torch.frombuffer(buffer, dtype=dtype).reshape(shape)


class HandOver:
    """A collate function for torch's DataLoader, whose batches travel as this module says.

    Args:
        collate: makes the batch.
    """

    def __init__(self, collate: Callable[[Any], Any]) -> None:
        self.collate: Callable[[Any], Any] = collate
        self._outbox: _Outbox | None = None

    def __call__(self, data: Any) -> Any:
        """Make a batch; in a worker, ready to be sent."""
        batch = self.collate(data)
        if get_worker_info() is None:
            return batch
        if self._outbox is None:
            self._outbox = _Outbox()
        return self._outbox.pack(batch)


class _Outbox:
    """The memory of one worker's batches."""

    def __init__(self) -> None:
        self._slots: list[Slot] = []

    def pack(self, batch: Any) -> _Parcel:
        """Make a batch ready to be sent."""
        file = io.BytesIO()
        pickler = _Pickler(file)
        pickler.dump(batch)
        parts = pickler.parts()
        sizes = [part.nbytes for part in parts]
        num_bytes = sum(map(aligned, sizes))
        if num_bytes < _LEAST_BYTES:
            return _Parcel(file.getvalue(), [bytearray(part) for part in parts])
        slot = self._take(_HEADER_BYTES + num_bytes)
        slot.memory[0] = 1
        for place, part in zip(_places(slot.memory, sizes), parts, strict=True):
            place[:] = part
        return _Parcel(file.getvalue(), sizes, slot)

    def _take(self, num_bytes: int) -> Slot:
        """A slot that nobody uses, of so many bytes or more."""
        idle = [slot for slot in self._slots if not slot.memory[0]]
        for slot in idle:
            if slot.memory.nbytes >= num_bytes:
                return slot
        if idle:
            # Batches have grown.
            self._slots.remove(idle[0])
        slot = Slot(0, anonymous_file(num_bytes), num_bytes)
        weakref.finalize(slot, os.close, slot.descriptor)
        if len(self._slots) < _MOST_SLOTS:
            self._slots.append(slot)
        return slot


class _Parcel:
    """A batch on its way; unpickled, it is the batch.

    Args:
        payload: the batch, pickled without its arrays.
        parts: the arrays' bytes, or their lengths where a slot has them.
        slot: the slot.
    """

    def __init__(self, payload: bytes, parts: Sequence[Any], slot: Slot | None = None) -> None:
        self._payload = payload
        self._parts = parts
        self._slot = slot

    def __reduce__(self) -> Any:
        if self._slot is None:
            return _load, (self._payload, self._parts)
        file = reduction.DupFd(self._slot.descriptor)
        return _receive, (self._payload, self._parts, file, self._slot.memory.nbytes)


def _receive(payload: bytes, sizes: list[int], file: Any, num_bytes: int) -> Any:
    """The batch, with arrays over the worker's slot."""
    slot = Slot(0, file.detach(), num_bytes)
    slot.close()
    lease = Lease(slot.memory)
    weakref.finalize(lease, _give_back, slot.memory, os.getpid()).atexit = False
    return _load(payload, _places(np.asarray(lease), sizes))


def _load(payload: bytes, buffers: Sequence[Any]) -> Any:
    # It comes from a worker of this very loader, as all that torch's own queues carry.
    return pickle.loads(payload, buffers=buffers)  # noqa: S301


def _give_back(memory: NDArray[np.uint8], pid: int) -> None:
    # A process that was forked from the trainer has the arrays, too, but not the say.
    if os.getpid() == pid:
        memory[0] = 0


def _places(memory: NDArray[np.uint8], sizes: Sequence[int]) -> list[NDArray[np.uint8]]:
    """Where arrays of these lengths lie in a slot."""
    places = []
    start = _HEADER_BYTES
    for size in sizes:
        places.append(memory[start : start + size])
        start += aligned(size)
    return places
