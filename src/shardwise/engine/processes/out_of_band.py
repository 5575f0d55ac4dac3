"""Pickles of values whose arrays and tensors lie apart, as buffers (protocol 5).

Both ends are this library's own processes: nothing from outside is unpickled.
"""

from __future__ import annotations

import copyreg
import io
import pickle
import sys
from collections.abc import Callable, Sequence
from functools import partial
from types import FunctionType
from typing import Any

import numpy as np
from numpy.typing import NDArray

from shardwise.base.errors import WorkerError

# Smaller arrays are part of the pickle: a few ids that a program keeps must not keep a batch.
_MIN_BUFFER_BYTES = 16 << 10


class _MainPickler(pickle.Pickler):
    """Pickles classes and functions of the program itself by name: a worker has copies of them.

    Pickle alone looks for them in the worker's own `__main__`. By value, the trainer would get
    objects of another class than its own.
    """

    def persistent_id(self, value: Any) -> str | None:
        """Its name; None for others, and for what is local to a function: those do not pickle."""
        is_main = isinstance(value, (type, FunctionType)) and value.__module__ == "__main__"
        return value.__qualname__ if is_main and value.__qualname__.isidentifier() else None


class _MainUnpickler(pickle.Unpickler):
    """Reads what `_MainPickler` wrote."""

    def persistent_load(self, name: str) -> Any:
        """The program's own class or function.

        Raises:
            WorkerError: it lacks the name, since a function made the class before workers started.
        """
        try:
            return getattr(sys.modules["__main__"], name)
        except AttributeError:
            # The batch that it belongs to is not known: this error ends the workers.
            raise WorkerError(
                f"a batch from a worker process holds an object of {name!r}: define that at the "
                "top of the program or in a module, or choose threads with num_workers=0"
            ) from None


def take_apart(
    value: Any, kind: Callable[..., pickle.Pickler] = pickle.Pickler
) -> list[memoryview | bytes]:
    """Pickle a value; returns the pickle and, after it, the bytes of its large arrays and tensors.

    Tensors that are not plain numbers in memory are left to the pickler of `kind`.
    """
    try:
        return _pickle_value(value, kind)
    except (pickle.PicklingError, AttributeError):
        if kind is not pickle.Pickler:
            raise
        return _pickle_value(value, _MainPickler)


def put_together(parts: Sequence[Any]) -> Any:
    """Unpickle what `take_apart` made; arrays and tensors are views of the parts."""
    # See the module's docstring for S301.
    try:
        return pickle.loads(parts[0], buffers=parts[1:])  # noqa: S301
    except pickle.UnpicklingError:
        return _MainUnpickler(io.BytesIO(parts[0]), buffers=parts[1:]).load()


class Unread:
    """A value in a message, which is unpickled where it is read: in another thread."""

    def __init__(self, parts: Sequence[Any]) -> None:
        self._parts = parts

    def __reduce__(self) -> Any:
        """Its parts, apart where they are large."""
        return Unread, ([pickle.PickleBuffer(part) for part in self._parts],)

    @classmethod
    def of(cls, value: Any) -> Unread:
        return cls(take_apart(value))

    def read(self) -> Any:
        return put_together(self._parts)


def _pickle_value(value: Any, kind: Callable[..., pickle.Pickler]) -> list[memoryview | bytes]:
    file = io.BytesIO()
    buffers: list[pickle.PickleBuffer] = []
    tensors: dict[int, Any] = {}

    def is_in_band(buffer: pickle.PickleBuffer) -> bool:
        is_small = buffer.raw().nbytes < _MIN_BUFFER_BYTES
        if not is_small:
            buffers.append(buffer)
        return is_small

    pickler = kind(file, 5, True, is_in_band)
    table = dict(getattr(pickler, "dispatch_table", copyreg.dispatch_table))
    table[np.ndarray] = _reduce_array
    if "torch" in sys.modules:
        import torch

        # Left alone, torch copies a tensor's storage into the pickle, and out of it again.
        table[torch.Tensor] = partial(_reduce_tensor, tensors, table.get(torch.Tensor))
    pickler.dispatch_table = table
    pickler.dump(value)
    # torch's pickling moves the memory of tensors that it shares, which others may be views of:
    # the addresses are taken at the end.
    apart = [
        tensors[id(buffer)].numpy().data if id(buffer) in tensors else buffer.raw()
        for buffer in buffers
    ]
    return [file.getvalue(), *apart]


def _reduce_array(array: NDArray[Any]) -> Any:
    """An array as a buffer apart, which numpy makes of contiguous ones only."""
    is_contiguous = array.flags.c_contiguous or array.flags.f_contiguous
    return (array if is_contiguous else np.ascontiguousarray(array)).__reduce_ex__(5)


def _reduce_tensor(
    tensors: dict[int, Any], otherwise: Callable[[Any], Any] | None, tensor: Any
) -> Any:
    """A tensor as a buffer apart, where it is plain numbers in memory and nothing else."""
    import torch

    is_plain = tensor.layout is torch.strided and tensor.device.type == "cpu"
    is_lazy = is_plain and (tensor.is_conj() or tensor.is_neg() or tensor.is_quantized)
    # `otherwise` keeps memory that is shared already shared.
    is_shared = otherwise is not None and is_plain and tensor.is_shared()
    if is_plain and not (is_lazy or is_shared or tensor.requires_grad or vars(tensor)):
        storage, offset = tensor.untyped_storage(), tensor.storage_offset()
        if storage.nbytes() == tensor.numel() * tensor.element_size():
            data = torch.empty(0, dtype=torch.uint8).set_(storage)
        elif tensor.is_contiguous():
            data, offset = tensor.reshape(-1).view(torch.uint8), 0
        else:
            data = None
        if data is not None:
            array: Any = data.numpy()
            buffer = pickle.PickleBuffer(array)
            tensors[id(buffer)] = data
            return _view_tensor, (buffer, tensor.dtype, tensor.shape, tensor.stride(), offset)
    return tensor.__reduce_ex__(5) if otherwise is None else otherwise(tensor)


def _view_tensor(buffer: Any, dtype: Any, shape: Any, stride: tuple[int, ...], offset: int) -> Any:
    import torch

    data = torch.from_numpy(np.frombuffer(buffer, dtype=np.uint8))
    return data.view(dtype).as_strided(shape, stride, offset)
