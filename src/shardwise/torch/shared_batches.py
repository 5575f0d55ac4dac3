"""Batches of torch's workers in shared memory that is reused.

torch gives each tensor of each batch shared memory of its own: the system clears its pages, and
frees them a moment later. Here the arrays of a batch share one anonymous file, which the worker
fills again once the last of them is gone in the trainer. Tensors in shared memory, as torch's
`default_collate` makes them in a worker, travel torch's way. A batch that can't be pickled is an
error that the trainer raises; with torch's own transport it waits for ever.
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
from shardwise.torch.account import CountedBatch

# Batches below 128 KiB travel in the workers' pipe, which costs less than to send a file.
_MIN_BYTES = 128 << 10
# Slots that a worker reuses: for the batches that it prefetches (2 by default) and those that the
# trainer holds. Batches beyond these get new memory each, as torch's do.
_MAX_SLOTS = 16
# Before the arrays: whether a slot is in use, for its worker and the trainer.
_HEADER_BYTES = 64


class _Pickler(reduction.ForkingPickler):
    """Pickles the arrays and tensors of a batch without their bytes.

    torch's own pickling moves a tensor's memory, which other tensors may be views of: the addresses
    of their bytes are taken at the end.

    Args:
        file: the pickle's.
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
        """The bytes of the arrays and tensors, in order."""
        return [
            np.frombuffer(buffer.raw(), np.uint8)
            if id(buffer) not in self._tensors
            else self._tensors[id(buffer)].numpy()
            for buffer in self._buffers
        ]


def _is_plain(tensor: torch.Tensor) -> bool:
    """Whether a tensor is its bytes, a dtype and a shape, and not in shared memory."""
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


class SharedMemoryCollate:
    """A collate function for torch's DataLoader, whose batches travel in reused shared memory.

    Args:
        collate: makes the batch.
    """

    def __init__(self, collate: Callable[[Any], Any]) -> None:
        self.collate: Callable[[Any], Any] = collate
        # Of the worker that this is a copy in.
        self._slots: list[Slot] = []

    def __call__(self, data: Any) -> Any:
        """Make a batch; in a worker, ready to be sent."""
        if isinstance(data, CountedBatch):
            batch: Any = data._replace(data=self.collate(data.data))
        else:
            batch = self.collate(data)
        return batch if get_worker_info() is None else self._packed(batch)

    def _packed(self, batch: Any) -> _SharedBatch:
        file = io.BytesIO()
        pickler = _Pickler(file)
        pickler.dump(batch)
        parts = pickler.parts()
        sizes = [part.nbytes for part in parts]
        num_bytes = sum(map(aligned, sizes))
        if num_bytes < _MIN_BYTES:
            return _SharedBatch(file.getvalue(), [bytearray(part) for part in parts])
        slot = self._take(_HEADER_BYTES + num_bytes)
        slot.memory[0] = 1
        for view, part in zip(_views(slot.memory, sizes), parts, strict=True):
            view[:] = part
        return _SharedBatch(file.getvalue(), sizes, slot)

    def _take(self, num_bytes: int) -> Slot:
        """A slot that is not in use, of `num_bytes` or more."""
        idle = [slot for slot in self._slots if not slot.memory[0]]
        for slot in idle:
            if slot.memory.nbytes >= num_bytes:
                return slot
        if idle:
            # Batches have grown.
            self._slots.remove(idle[0])
        slot = Slot(0, anonymous_file(num_bytes))
        if len(self._slots) < _MAX_SLOTS:
            self._slots.append(slot)
        return slot


class _SharedBatch:
    """A batch that is sent; unpickled, it is the batch.

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
        return _receive, (self._payload, self._parts, file)


def _receive(payload: bytes, sizes: list[int], file: Any) -> Any:
    """The batch, with arrays over the worker's slot."""
    slot = Slot(0, file.detach())
    slot.close()
    lease = Lease(slot.memory)
    weakref.finalize(lease, _give_back, slot.memory, os.getpid()).atexit = False
    return _load(payload, _views(np.asarray(lease), sizes))


def _load(payload: bytes, buffers: Sequence[Any]) -> Any:
    # A worker of this loader has sent it, as everything in torch's own queues.
    return pickle.loads(payload, buffers=buffers)  # noqa: S301


def _give_back(memory: NDArray[np.uint8], pid: int) -> None:
    # A fork of the trainer has copies of the arrays: its own end frees no slot.
    if os.getpid() == pid:
        memory[0] = 0


def _views(memory: NDArray[np.uint8], sizes: Sequence[int]) -> list[NDArray[np.uint8]]:
    """The memory of arrays of these lengths in a slot."""
    views = []
    start = _HEADER_BYTES
    for size in sizes:
        views.append(memory[start : start + size])
        start += aligned(size)
    return views
