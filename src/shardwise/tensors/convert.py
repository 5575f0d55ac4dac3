"""Arrays to tensors, sharing memory where torch can; ragged columns to nested tensors.

A ragged column travels as two plain tensors, the concatenated values and the offsets of samples,
so that it is copied to a device like any other; the nested tensor is made of them at the end.
"""

from __future__ import annotations

import copy
import dataclasses
import functools
from collections.abc import Callable, Collection, Iterable, Mapping, MutableMapping
from contextlib import AbstractContextManager, nullcontext
from typing import Any, NamedTuple

import numpy as np
import torch
from numpy.typing import NDArray

from shardwise.base.errors import DataError
from shardwise.engine.batch.padding import description_of, form_of, holds_lists
from shardwise.engine.batch.ragged import remedy_for


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
            happens without an accelerator, or with Apple's.

    >>> to_tensors({"x": np.arange(3, dtype=np.float32), "__key__": ["a", "b", "c"]})
    {'x': tensor([0., 1., 2.]), '__key__': ['a', 'b', 'c']}
    """
    pin = pin_memory and can_page_lock()
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
        value = _stack(column)
    return value.pin_memory() if pin and isinstance(value, torch.Tensor) else value


def can_page_lock() -> bool:
    """Whether there is a device for which torch page-locks memory: it raises with Apple's."""
    accelerator = getattr(torch, "accelerator", None)
    if accelerator is None:  # torch before 2.6
        return torch.cuda.is_available()
    return bool(accelerator.is_available() and accelerator.current_accelerator().type != "mps")


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


# From this size on, numpy asks the kernel for huge pages.
_HUGE_BYTES = 4 << 20


def _stack(tensors: list[torch.Tensor]) -> torch.Tensor:
    """Stack tensors; many bytes into numpy's memory, which is unmapped in a tenth of the time."""
    first = tensors[0]
    is_plain = first.layout is torch.strided and first.device.type == "cpu"
    if (
        not is_plain
        or first.is_quantized
        or len(tensors) * first.nbytes < _HUGE_BYTES
        or any(tensor.requires_grad or not tensor.is_contiguous() for tensor in tensors)
    ):
        return torch.stack(tensors)
    memory = torch.from_numpy(np.empty(len(tensors) * first.nbytes, dtype=np.uint8))
    return torch.stack(tensors, out=memory.view(first.dtype).view(len(tensors), *first.shape))


def named_range(name: str) -> AbstractContextManager[object]:
    """A range of this name while a profiler records this thread, else nothing, for 0.1 µs."""
    if torch.autograd._profiler_enabled():  # type: ignore[attr-defined]
        return torch.profiler.record_function(name)
    return nullcontext()


class Jagged(NamedTuple):
    """A ragged column of B samples.

    Attributes:
        values: `[sum of lengths, ...]`.
        offsets: int64 `[B + 1]`, where each sample's values start and end.
    """

    values: torch.Tensor
    offsets: torch.Tensor


def to_jagged(batch: dict[str, Any], *, fixed: Collection[str]) -> dict[str, Any]:
    """A batch of arrays with its columns of arrays as `Jagged`, but those of a fixed shape."""
    changed = dict(batch)
    for name, column in batch.items():
        if name not in fixed and _is_ragged(column):
            values, offsets = _join_rows(name, column)
            tensors = to_tensors({"values": values, "offsets": offsets})
            if not isinstance(tensors["values"], torch.Tensor):
                raise DataError(f"torch has no dtype for {values.dtype}", field=name)
            changed[name] = Jagged(**tensors)
    return changed


def to_nested(batch: Any) -> Any:
    """A batch with its `Jagged` columns as nested tensors `[B, j, ...]`, without a copy."""
    if not isinstance(batch, dict):
        return batch
    return {
        name: torch.nested.nested_tensor_from_jagged(column.values, offsets=column.offsets)
        if isinstance(column, Jagged)
        else column
        for name, column in batch.items()
    }


def _is_ragged(column: Any) -> bool:
    """Whether the values are arrays of one dimension or more."""
    if isinstance(column, np.ndarray):
        return column.ndim > 1 and form_of(column) is not None
    forms = map(form_of, column) if isinstance(column, list) and not holds_lists(column) else ()
    return any(isinstance(form, tuple) and form[0] for form in forms)


def _join_rows(name: str, column: Any) -> tuple[np.ndarray[Any, Any], np.ndarray[Any, Any]]:
    if isinstance(column, np.ndarray) and not len(column):
        return column.reshape(0, *column.shape[2:]), np.zeros(1, dtype=np.int64)
    first = form_of(column[0])
    for row, value in enumerate(column):
        form = form_of(value)
        if not isinstance(form, tuple) or (form[0][1:], form[1]) != (first[0][1:], first[1]):
            raise DataError(
                f"row {row} of the batch is {description_of(value)} beside "
                f"{description_of(column[0])}: ragged='nested' needs arrays of one dtype that "
                f"differ in their first dimension alone; {remedy_for(column)}",
                field=name,
            )
    lengths = [len(value) for value in column]
    values = np.concatenate([np.asarray(value) for value in column])
    return values, np.cumsum([0, *lengths], dtype=np.int64)


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
