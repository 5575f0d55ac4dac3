"""The tensors in a batch of any form, changed one by one: moved to a device, or page-locked.

Dicts, lists, tuples, namedtuples and dataclasses are searched. Objects that have their own method
for the change, such as `PackedSequence` or a batch of graphs, are changed by it.
"""

from __future__ import annotations

import copy
import dataclasses
from collections.abc import Callable, Iterable, MutableMapping
from typing import Any

import numpy as np
import torch

# Lists that hold only these are not searched value by value: keys, texts, numbers.
_PLAIN = {str, bytes, int, float, bool, type(None)}


def change_tensors(
    value: Any,
    change: Callable[[torch.Tensor], torch.Tensor],
    *,
    method: str,
    change_object: Callable[[Any], Any],
) -> Any:
    """Change the tensors in a value; what has none stays the very same object.

    Args:
        value: a tensor, a container, or anything else.
        change: makes the new tensor.
        method: the name of the method by which other objects show that they can be changed.
        change_object: changes such an object.
    """

    def walk(value: Any) -> Any:
        if isinstance(value, torch.Tensor):
            return change(value)
        if isinstance(value, np.ndarray | type) or type(value) in _PLAIN:
            return value
        if callable(getattr(value, method, None)):
            return change_object(value)
        entries = _entries_of(value)
        walked = ((key, entry, walk(entry)) for key, entry in entries)
        changed = {key: new for key, entry, new in walked if new is not entry}
        return _with_entries(value, changed) if changed else value

    return walk(value)


def _entries_of(value: Any) -> Iterable[tuple[Any, Any]]:
    """The entries of a container, by key, position or name; none of anything else."""
    if isinstance(value, MutableMapping):
        return value.items()
    if type(value) is list or type(value) is tuple or _is_named(value):
        return () if set(map(type, value)) <= _PLAIN else enumerate(value)
    if dataclasses.is_dataclass(value):
        return ((field.name, getattr(value, field.name)) for field in dataclasses.fields(value))
    return ()


def _with_entries(value: Any, changed: dict[Any, Any]) -> Any:
    """A container of the same type and order, with some of its entries changed."""
    if isinstance(value, list | tuple):
        entries = [changed.get(i, entry) for i, entry in enumerate(value)]
        return type(value)(*entries) if _is_named(value) else type(value)(entries)
    copied = copy.copy(value)
    if isinstance(copied, MutableMapping):
        copied.update(changed)
    else:
        for name, new in changed.items():
            object.__setattr__(copied, name, new)  # a dataclass, which may be frozen
    return copied


def _is_named(value: Any) -> bool:
    return isinstance(value, tuple) and hasattr(value, "_fields")


def pinned(data: Any) -> Any:
    """The same data in page-locked memory, as far as it is in host memory and not there already."""

    def pin(tensor: torch.Tensor) -> torch.Tensor:
        return tensor.pin_memory() if tensor.device.type == "cpu" else tensor

    return change_tensors(
        data, pin, method="pin_memory", change_object=lambda value: value.pin_memory()
    )


def moved_object(value: Any, device: torch.device) -> Any:
    """An object with a method `to` on the device; the copy is queued where `to` can do that."""
    try:
        return value.to(device, non_blocking=True)
    except TypeError:  # it takes a device alone
        return value.to(device)
