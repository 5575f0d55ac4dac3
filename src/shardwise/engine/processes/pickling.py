"""Pickling for worker processes: a dataset for a fresh interpreter, and values with large arrays.

Functions of the main program, lambdas and closures are pickled by value (cloudpickle). So are those
of modules without a file, made by a notebook's cell or a test: no other process could import them.
Arrays and tensors of values lie apart, as buffers (protocol 5). Both ends are this library's own
processes: nothing from outside is unpickled.
"""

from __future__ import annotations

import copyreg
import inspect
import io
import pickle
import sys
import threading
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from operator import itemgetter
from types import CodeType, FunctionType, MethodType, ModuleType
from typing import Any

import numpy as np
from numpy.typing import NDArray

from shardwise.base.errors import WorkerError, message_of
from shardwise.storage.column_file import map_array, place_of

_NO_FILE = "<dynamic-code>"
_PACKAGE = "shardwise."
_MIN_APART_BYTES = 1 << 16
# cloudpickle has one registry of modules for all threads.
_REGISTRY = threading.RLock()


class _Last:
    """The last of some values, in a process that has unpickled those before it."""

    def __init__(self, *values: Any) -> None:
        self._values = values

    def __reduce__(self) -> Any:
        return itemgetter(-1), (self._values,)


def pickle_by_value(value: Any, apart: list[Any] | None = None) -> bytes:
    """Pickle an object for another process.

    With `apart`, for one of this machine: it gets large arrays, as buffers of `pickle.loads`, and
    arrays in mapped files travel as paths.

    Raises:
        TypeError: a part of it can't be pickled; the message names the function that holds it.
    """
    try:
        return _pickle_value(value, apart)
    except Exception as error:  # noqa: BLE001 - whatever the pickling of foreign objects raises
        raise TypeError(_message(value, error)) from None


def _message(value: Any, error: Exception) -> str:
    why = f"{type(error).__name__}: {message_of(error)}"
    *above, (name, part) = _path(value)
    holders = [number for number, (_, each) in enumerate(above) if _is_users(each)]
    first = holders[-1] if holders else 0
    where = ".".join([*(step for step, _ in above[first + 1 :]), name])
    holder = above[first][1] if holders else None
    what = getattr(holder, "__qualname__", None) or type(holder).__qualname__
    return (
        f"{what if holders else 'the dataset'} can't be sent to worker processes, because it holds "
        f"{where!r}, a {type(part).__module__}.{type(part).__qualname__} ({why}): make that where "
        "it is used first, in the worker, or choose threads with num_workers=0"
    )


def _is_users(value: Any) -> bool:
    """Whether it is a function of the user's, or an object that is called as one."""
    return callable(value) and not type(value).__module__.startswith(_PACKAGE)


def _path(value: Any) -> list[tuple[str, Any]]:
    """The way to an innermost part that does not pickle: its name and the part, from outside."""
    path = [("", value)]
    seen = {id(value)}
    while True:
        for name, part in _parts(path[-1][1]):
            if id(part) not in seen and not _pickles(part):
                seen.add(id(part))
                path.append((name, part))
                break
        else:
            return path


def _parts(value: Any) -> list[tuple[str, Any]]:
    """The parts that a value is pickled with, by name."""
    if isinstance(value, Mapping):
        return [(str(name), part) for name, part in value.items()]
    if isinstance(value, (list, tuple, set, frozenset)):
        return [(str(number), part) for number, part in enumerate(value)]
    if isinstance(value, MethodType):
        return [("self", value.__self__)]
    if isinstance(value, partial):
        return [("func", value.func), *_parts(value.args), *_parts(value.keywords)]
    if isinstance(value, FunctionType):
        captured = inspect.getclosurevars(value)
        return [
            *captured.nonlocals.items(), *captured.globals.items(),
            *_parts(value.__defaults__ or ()), *_parts(value.__kwdefaults__ or {}),
        ]  # fmt: skip
    slots = [name for kind in type(value).__mro__ for name in getattr(kind, "__slots__", ())]
    return [
        *getattr(value, "__dict__", {}).items(),
        *((name, getattr(value, name)) for name in slots if hasattr(value, name)),
    ]


def _pickles(value: Any) -> bool:
    try:
        _pickle_value(value)
    except Exception:  # noqa: BLE001 - as above
        return False
    return True


def _pickle_value(value: Any, apart: list[Any] | None = None) -> bytes:
    import cloudpickle

    def is_in_band(buffer: pickle.PickleBuffer) -> bool:
        if apart is None or buffer.raw().nbytes < _MIN_APART_BYTES:
            return True
        apart.append(buffer)
        return False

    class Pickler(cloudpickle.Pickler):  # type: ignore[misc]
        def reducer_override(self, obj: Any) -> Any:
            if apart is not None and isinstance(obj, np.ndarray) and (place := place_of(obj)):
                return map_array, place
            # cloudpickle 3.1.3 leaves files out, and errors would name none.
            if isinstance(obj, CodeType) and obj.co_filename != _NO_FILE:
                return _of_file, (obj.replace(co_filename=_NO_FILE), obj.co_filename)
            return super().reducer_override(obj)

    file = io.BytesIO()
    with _REGISTRY:
        # Modules that the user has registered stay registered.
        known = cloudpickle.list_registry_pickle_by_value()
        made_here = [
            module
            for name, module in list(sys.modules.items())
            if isinstance(module, ModuleType)
            and name == module.__name__ != "__main__"
            and getattr(module, "__spec__", None) is None
            and name not in known
        ]
        for module in made_here:
            cloudpickle.register_pickle_by_value(module)
        try:
            # A process finds modules as this one does.
            finders = [each for each in sys.meta_path if type(each).__module__.startswith(_PACKAGE)]
            Pickler(file, buffer_callback=is_in_band).dump(_Last(*finders, value))
        finally:
            for module in made_here:
                cloudpickle.unregister_pickle_by_value(module)
    return file.getvalue()


def _of_file(code: CodeType, name: str) -> CodeType:
    return code.replace(co_filename=name)


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
        return _pickle_apart(value, kind)
    except (pickle.PicklingError, AttributeError):
        if kind is not pickle.Pickler:
            raise
        return _pickle_apart(value, _MainPickler)


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


def _pickle_apart(value: Any, kind: Callable[..., pickle.Pickler]) -> list[memoryview | bytes]:
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
