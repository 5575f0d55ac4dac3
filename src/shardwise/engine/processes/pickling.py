"""Pickling for worker processes: a dataset as bytes that a fresh interpreter can read.

Functions of the main program, lambdas and closures are pickled by value (cloudpickle). So are those
of modules without a file, made by a notebook's cell or a test: no other process could import them.
"""

from __future__ import annotations

import inspect
import io
import pickle
import sys
import threading
from collections.abc import Mapping
from functools import partial
from types import CodeType, FunctionType, MethodType, ModuleType
from typing import Any

import numpy as np

from shardwise.base.errors import message_of
from shardwise.storage.column_file import map_array, place_of

_NO_FILE = "<dynamic-code>"
_MIN_APART_BYTES = 1 << 16
# cloudpickle has one registry of modules for all threads.
_REGISTRY = threading.RLock()


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
    return callable(value) and not type(value).__module__.startswith("shardwise.")


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
            Pickler(file, buffer_callback=is_in_band).dump(value)
        finally:
            for module in made_here:
                cloudpickle.unregister_pickle_by_value(module)
    return file.getvalue()


def _of_file(code: CodeType, name: str) -> CodeType:
    return code.replace(co_filename=name)
