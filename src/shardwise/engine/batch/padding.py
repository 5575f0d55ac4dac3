"""Padding: arrays of different shapes to one shape, and masks of what was there.

Arrays are recognised by shape and dtype, so that tensors count too, without importing torch.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, SupportsIndex

import numpy as np
from numpy.typing import NDArray

from shardwise.base.arguments import suggest_names
from shardwise.base.collate import collate, dtype_of_numbers
from shardwise.base.columns import mask_of
from shardwise.base.errors import DataError
from shardwise.plan.arguments import whole

_NUMBERS = "biufc"


@dataclass(frozen=True)
class Padding:
    """The options for padding fields; `sw.pad` makes and documents them."""

    fields: tuple[str, ...] | None = None
    multiple: int = 1
    length: int | None = None
    dims: tuple[int, ...] = (0,)
    value: complex = 0
    mask: bool = True

    def __call__(self, samples: Sequence[Mapping[str, Any]]) -> dict[str, Any]:
        """A batch of arrays and lists, of samples as dicts: a collate function."""
        if not samples:
            return {}
        names = samples[0].keys()
        for row, sample in enumerate(samples):
            if sample.keys() != names:
                raise ValueError(
                    f"sample {row} has the fields {sorted(sample)}, sample 0 has {sorted(names)}"
                )
        return self.columns(collate({name: [each[name] for each in samples] for name in names}))

    def columns(self, data: Mapping[str, Any], *, fixed: Collection[str] = ()) -> dict[str, Any]:
        """The collated columns of a batch, padded, and their masks; a DataError where they can't.

        Fields of a `fixed` shape are padded only where they are named.
        """
        padded = dict(data)
        for name in self.fields or (name for name in data if name not in fixed):
            if name not in data:
                known = ", ".join(map(repr, data))
                raise DataError(f"there is no such field to pad; a batch has {known}", field=name)
            try:
                pair = self._pad_values(data[name])
            except ValueError as error:
                raise DataError(f"this field can't be padded: {error}", field=name) from error
            if pair is None:
                continue
            padded[name] = pair[0]
            if self.mask:
                if mask_of(name) in data:
                    raise DataError(
                        f"padding adds {mask_of(name)!r}, and there is such a field: leave it out "
                        "with select(), or rename it in a map(); if a decoder makes it, give that "
                        "one a fixed shape: video(size=), audio(rate=, channels=)",
                        field=mask_of(name),
                    )
                padded[mask_of(name)] = pair[1]
        return padded

    def _pad_values(self, values: Any) -> tuple[NDArray[Any], NDArray[np.bool_]] | None:
        """Arrays of one dtype, padded: `(array, mask)`, both `[B, ...]`.

        The mask is True where a value was. None where no value is an array of one dimension or
        more.

        Raises:
            ValueError: their dtypes or numbers of dimensions differ, or not all are arrays.
        """
        if isinstance(values, np.ndarray):
            if values.ndim < 2 or values.dtype.kind not in _NUMBERS:
                return None
            shape = self._shape(list(values.shape[1:]))
            if shape == values.shape[1:]:
                return values, np.ones(values.shape, np.bool_)
            arrays: Sequence[NDArray[Any]] = list(values)
            dtype = values.dtype
        else:
            found = _arrays(values)
            if found is None:
                return None
            arrays, dtype = found, next((a for a in found if a.size), found[0]).dtype
            shape = self._shape(np.max([array.shape for array in arrays], axis=0).tolist())
        try:
            rows = np.full((len(arrays), *shape), self.value, dtype)
        except (OverflowError, TypeError) as error:
            raise ValueError(f"value={self.value} does not fit into {dtype}: {error}") from None
        except MemoryError:
            raise ValueError(
                f"{len(arrays)} rows padded to {list(shape)} of {dtype} are more than memory has: "
                f"pad to less than multiple={self.multiple}, length={self.length}"
            ) from None
        mask = np.zeros(rows.shape, np.bool_)
        for row, array in enumerate(arrays):
            place: Any = (row, *(slice(size) for size in array.shape))
            rows[place], mask[place] = array, True
        return rows, mask

    @classmethod
    def by_rule(cls, rule: Any, values: Any) -> Any:
        """Arrays that differ in length, padded with a number or, by "edge", the last value of each.

        Values that can't be joined stay as they are.
        """
        try:
            pair = cls(value=0 if rule == "edge" else rule)._pad_values(values)
        except ValueError:
            return values
        if pair is None:
            return values
        rows, mask = pair
        if rule == "edge" and rows.ndim == 2:
            rows = np.take_along_axis(
                rows,
                np.maximum.accumulate(np.where(mask, np.arange(rows.shape[1]), 0), axis=1),
                axis=1,
            )
        return rows

    def _shape(self, largest: list[int]) -> tuple[int, ...]:
        """The shape of a padded sample, where this is the largest size in each dimension."""
        for dim in self.dims:
            if dim >= len(largest):
                continue
            if self.length is None:
                largest[dim] = -(-largest[dim] // self.multiple) * self.multiple
            elif largest[dim] > self.length:
                raise ValueError(
                    f"a value has {largest[dim]} entries in dimension {dim}, more than length="
                    f"{self.length}: cut it in a map(), or pad to a larger length"
                )
            else:
                largest[dim] = self.length
        return tuple(largest)


@suggest_names
def pad(
    fields: str | Sequence[str] | None = None,
    *,
    multiple: SupportsIndex = 1,
    length: SupportsIndex | None = None,
    dims: Sequence[SupportsIndex] = (0,),
    value: complex = 0,
    mask: bool = True,
) -> Padding:
    """A collate that pads ragged fields to one length, with a mask "<field>.mask" for each.

    Args:
        fields: which ones. None for all fields of arrays of one dimension or more whose shape no
            decoder fixes; as a `collate_fn` of torch's own DataLoader, which knows no decoders,
            for all arrays of one dimension or more.
        multiple: sizes are rounded up to a multiple of this, so that fewer shapes occur.
        length: one size for all batches, in place of the largest of each; longer values are an
            error.
        dims: the dimensions of a sample that `multiple` and `length` are for; others are padded to
            the largest of the batch.
        value: what is filled in.
        mask: whether to add "<field>.mask", bool of the padded field's shape, True where a value
            was.

    Raises:
        ValueError: an option is out of range, or `multiple` and `length` contradict each other.

    Called with samples as dicts it gives a dict of arrays; `sw.DataLoader` makes tensors of them,
    and applies it to whole columns.

    Examples:
        >>> import shardwise as sw
        >>> data = sw.wrap([{"x": np.arange(n)} for n in (3, 5)])
        >>> [batch] = sw.DataLoader(data, collate=sw.pad(multiple=4), output="numpy")
        >>> batch["x"].tolist(), batch["x.mask"].sum(axis=1).tolist()
        ([[0, 1, 2, 0, 0, 0, 0, 0], [0, 1, 2, 3, 4, 0, 0, 0]], [3, 5])
    """
    if isinstance(fields, str):
        fields = (fields,)
    if fields is not None and not all(isinstance(name, str) for name in fields):
        raise TypeError(f"fields={fields!r:.80}: give the names of fields")
    multiple = whole("multiple", multiple, least=1)
    if length is not None:
        length = whole("length", length, least=0)
        if length % multiple:
            raise ValueError(
                f"length={length} is no multiple of multiple={multiple}: leave one of them out"
            )
    if isinstance(value, bool) or not isinstance(value, int | float | complex | np.number):
        raise TypeError(f"value must be a number, not a {type(value).__name__}")
    return Padding(
        fields=None if fields is None else tuple(fields),
        multiple=multiple,
        length=length,
        dims=tuple(whole("dims", dim, least=0) for dim in dims),
        value=value,
        mask=bool(mask),
    )


def _arrays(values: Sequence[Any]) -> list[NDArray[Any]] | None:
    """Values that are arrays of one dtype and number of dimensions; None where none is an array."""
    arrays = (value for value in values if _is_array(value))
    example = next((value for value in arrays if type(value) is not list or value), None)
    if example is None:
        return None
    kind = _kind_of(example)
    for row, value in enumerate(values):
        if not _is_array(value) or (
            _kind_of(value) != kind and not (type(value) is list and not value)
        ):
            raise ValueError(
                f"row {row} of the batch is {description_of(value)}, which can't be joined with "
                f"{description_of(example)}: padding needs arrays of one dtype and number of "
                "dimensions"
            )
    try:
        return [np.asarray(value) for value in values]
    except (TypeError, RuntimeError) as error:  # a tensor of a dtype that numpy lacks, or on a GPU
        raise ValueError(f"{description_of(example)} can't be made an array: {error}") from error


def _is_array(value: Any) -> bool:
    """Whether it is an array of numbers, of one dimension or more; a tensor is one, too."""
    form = form_of(value)
    return isinstance(form, tuple) and len(form[0]) > 0


def _kind_of(value: Any) -> tuple[Any, int]:
    shape, dtype = form_of(value)
    return dtype, len(shape)


def form_of(value: Any) -> Any:
    """The property that stacked values share: shape and dtype, or the kind of number; else None."""
    if type(value) in (int, float):
        return float
    if type(value) is bool:
        return bool
    if type(value) is list:
        kind = dtype_of_numbers(value) if value else np.float64
        return kind and ((len(value),), np.dtype(kind))
    dtype, shape = getattr(value, "dtype", None), getattr(value, "shape", None)
    # torch's dtypes, which have no kind, are all of numbers.
    if dtype is None or shape is None or getattr(dtype, "kind", "f") not in _NUMBERS:
        return None
    return tuple(shape), dtype


def holds_lists(values: Iterable[Any]) -> bool:
    """Whether one is a list of anything but numbers: then they are lists in every batch."""
    return any(type(each) is list and each and form_of(each) is None for each in values)


def description_of(value: Any) -> str:
    """Describe a value's form, for messages."""
    form = form_of(value)
    if value is None:
        return "no value"
    if isinstance(form, tuple):
        return f"{form[1]} {list(form[0])}"
    return f"a {type(value).__name__}"
