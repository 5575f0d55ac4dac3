"""Arrays to tensors, without a copy where torch can share the memory."""

from __future__ import annotations

import functools
from collections.abc import Mapping
from contextlib import AbstractContextManager, nullcontext
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray


def to_tensors(batch: Mapping[str, Any], *, pin_memory: bool = False) -> dict[str, Any]:
    """Turn a batch of arrays into a batch of tensors.

    An array becomes a tensor of the same shape and dtype on the same memory. It is copied only
    where torch can't share it: read-only arrays, negative strides, foreign byte order. Arrays of
    dtypes that torch lacks (strings, dates, objects, records, long doubles) stay as they are. A
    list of tensors of one shape and dtype is stacked to `[len(list), ...]`; other lists, and
    all other values, stay as they are. So is what stands in dicts, and in tuples, which become
    lists as in torch's own loader.

    Args:
        batch: a dict of arrays and lists.
        pin_memory: put the tensors into page-locked memory; as in torch's DataLoader, nothing
            happens without an accelerator.

    >>> to_tensors({"x": np.arange(3, dtype=np.float32), "__key__": ["a", "b", "c"]})
    {'x': tensor([0., 1., 2.]), '__key__': ['a', 'b', 'c']}
    """
    pin = pin_memory and has_accelerator()
    return {name: _convert_column(column, pin=pin) for name, column in batch.items()}


def _convert_column(column: Any, *, pin: bool) -> Any:
    value = column
    if type(column) is dict:
        return {name: _convert_column(each, pin=pin) for name, each in column.items()}
    if isinstance(column, tuple) and (type(column) is tuple or hasattr(column, "_fields")):
        entries = [_convert_column(each, pin=pin) for each in column]
        return entries if type(column) is tuple else type(column)(*entries)
    if isinstance(column, np.ndarray):
        value = _from_array(column)
    elif isinstance(column, list) and _alike(column):
        value = torch.stack(column)
    return value.pin_memory() if pin and isinstance(value, torch.Tensor) else value


def has_accelerator() -> bool:
    """Whether there is a device for which page-locking memory is of use."""
    # torch.accelerator came with torch 2.6.
    return bool(getattr(torch, "accelerator", torch.cuda).is_available())


def _from_array(array: NDArray[Any]) -> torch.Tensor | NDArray[Any]:
    native = array.dtype.newbyteorder("=")
    if not _is_known(native):
        return array
    if not array.flags.writeable or array.dtype != native or min(array.strides, default=0) < 0:
        # order="C": astype would else keep the negative strides.
        array = array.astype(native, order="C")
    return torch.from_numpy(array)


@functools.cache
def _is_known(dtype: np.dtype[Any]) -> bool:
    """Whether torch has a dtype for this one."""
    try:
        torch.from_numpy(np.empty(0, dtype=dtype))
    except TypeError:
        return False
    return True


def _alike(column: list[Any]) -> bool:
    """Whether it is a list of tensors that `torch.stack` takes and that loses nothing by it."""
    if not column or not all(isinstance(value, torch.Tensor) for value in column):
        return False
    first = column[0]
    return all(
        value.shape == first.shape and value.dtype == first.dtype and value.device == first.device
        for value in column
    )


def named_range(name: str) -> AbstractContextManager[object]:
    """A range of this name while a profiler records this thread, else nothing, for 0.1 µs."""
    if torch.autograd._profiler_enabled():  # type: ignore[attr-defined]
        return torch.profiler.record_function(name)
    return nullcontext()
