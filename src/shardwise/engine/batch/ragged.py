"""Ragged fields, whose values can't be stacked: warned of once, refused, or padded.

Decided by the values of a batch alone, after its chunks are joined, so that every executor decides
alike (I5). Arrays are recognised by shape and dtype, so that tensors count too, without importing
torch.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Collection, Mapping, Sequence
from typing import Any, Literal, get_args

import numpy as np
from numpy.typing import NDArray

from shardwise.errors import DataError

__all__ = ["RAGGED", "Ragged", "RaggedFields", "mask_of", "odd_value", "pad"]

Ragged = Literal["list", "error", "pad"]
RAGGED: tuple[Ragged, ...] = get_args(Ragged)

_logger = logging.getLogger("shardwise")
_NUMBERS = "biufc"
# Most lists hold only these, and are not searched value by value.
_NEVER_STACKED = (str, bytes, dict, list)


def mask_of(field: str) -> str:
    """The name of the mask of a padded field."""
    return f"{field}.mask"


class RaggedFields:
    """The policy for fields whose values differ in shape.

    Args:
        ragged: "list" leaves them lists and says so once a field; "error" raises; "pad" pads every
            field of arrays whose shape nobody fixed, and adds its mask, in every batch.
        describe: says where a sample lies, by its id.
    """

    def __init__(self, ragged: Ragged, describe: Callable[[int], str]) -> None:
        if ragged not in RAGGED:
            raise ValueError(f"ragged={ragged!r}: use one of {', '.join(map(repr, RAGGED))}")
        self.ragged = ragged
        self._describe = describe
        self._warned: set[str] = set()

    def settle(
        self,
        data: Mapping[str, Any],
        *,
        fixed: Collection[str],
        keys: Sequence[str],
        ids: NDArray[np.int64],
    ) -> dict[str, Any]:
        """The collated columns of a batch, with the policy applied.

        Args:
            data: a column a field.
            fixed: the fields whose shape is known before they are read.
            keys: the samples' keys.
            ids: int64 `[rows]`, their ids.

        Raises:
            DataError: values of a field differ, and `ragged` is "error", or padding can't join
                them; it names the first odd one.
        """
        settled: dict[str, Any] = {}
        for name, column in data.items():
            settled[name] = column
            if name in fixed:
                continue
            if self.ragged == "pad":
                try:
                    pair = pad(column)
                except ValueError as error:
                    raise DataError(f"ragged='pad': {error}", field=name) from error
                if pair is not None:
                    if mask_of(name) in data:
                        raise DataError(
                            f"ragged='pad' adds {mask_of(name)!r}, and there is such a field: "
                            "leave it out with select(), or rename it in a map()",
                            field=mask_of(name),
                        )
                    settled[name], settled[mask_of(name)] = pair
            elif isinstance(column, list) and name not in self._warned:
                odd = odd_value(column)
                if odd is not None:
                    self._warn(name, *odd, keys=keys, ids=ids)
        return settled

    def _warn(
        self, name: str, row: int, why: str, *, keys: Sequence[str], ids: NDArray[np.int64]
    ) -> None:
        reason = f"the values of {name!r} can't be stacked: {why}"
        remedy = (
            "give its decoder a size= or shape, so that all are alike, or pad them with "
            "ragged='pad'"
        )
        if self.ragged == "error":
            raise DataError(f"{reason}; {remedy}", key=keys[row], field=name, index=int(ids[row]))
        self._warned.add(name)
        _logger.warning(
            "%s (%s, key %r), so it is a list in such batches and an array in others; %s; "
            "ragged='error' refuses them",
            reason,
            self._describe(int(ids[row])),
            keys[row],
            remedy,
        )


def odd_value(values: Sequence[Any]) -> tuple[int, str] | None:
    """The first value that keeps numbers or arrays from being stacked: its row, and why.

    None where there is none, and where no value is a number or an array: such a field is a list in
    every batch.
    """
    if not values or isinstance(values[0], _NEVER_STACKED):
        return None
    forms = list(map(_form, values))
    first = next((form for form in forms if form is not None), None)
    row = next((row for row, form in enumerate(forms) if form != first), None)
    if first is None or row is None:
        return None
    return row, f"{_description(values[row])} beside {_description(values[forms.index(first)])}"


def pad(values: Any) -> tuple[NDArray[Any], NDArray[np.bool_]] | None:
    """Arrays of one dtype, padded with zeros to the largest: `(array, mask)`, both `[B, ...]`.

    The mask is True where a value was. None where no value is an array of one dimension or more.

    Raises:
        ValueError: their dtypes or numbers of dimensions differ, or not all are arrays.
    """
    if isinstance(values, np.ndarray):
        is_stacked = values.ndim > 1 and values.dtype.kind in _NUMBERS
        return (values, np.ones(values.shape, np.bool_)) if is_stacked else None
    example = next((value for value in values if _is_array(value)), None)
    if example is None:
        return None
    kind = example.dtype, len(example.shape)
    for row, value in enumerate(values):
        if not _is_array(value) or (value.dtype, len(value.shape)) != kind:
            raise ValueError(
                f"row {row} of the batch is {_description(value)}, which can't be joined with "
                f"{_description(example)}: padding needs arrays of one dtype and number of "
                "dimensions"
            )
    try:
        arrays = [np.asarray(value) for value in values]
    except (TypeError, RuntimeError) as error:  # a tensor of a dtype that numpy lacks, or on a GPU
        raise ValueError(f"{_description(example)} can't be made an array: {error}") from error
    shape = (len(arrays), *np.max([array.shape for array in arrays], axis=0).tolist())
    rows, mask = np.zeros(shape, arrays[0].dtype), np.zeros(shape, np.bool_)
    for row, array in enumerate(arrays):
        place: Any = (row, *(slice(size) for size in array.shape))
        rows[place], mask[place] = array, True
    return rows, mask


def _is_array(value: Any) -> bool:
    """Whether it is an array of numbers, of one dimension or more; a tensor is one, too."""
    form = _form(value)
    return isinstance(form, tuple) and len(form[0]) > 0


def _form(value: Any) -> Any:
    """The property that stacked values share: shape and dtype, or the kind of number; else None."""
    if type(value) in (int, float):
        return float
    if type(value) is bool:
        return bool
    dtype, shape = getattr(value, "dtype", None), getattr(value, "shape", None)
    # torch's dtypes, which have no kind, are all of numbers.
    if dtype is None or shape is None or getattr(dtype, "kind", "f") not in _NUMBERS:
        return None
    return tuple(shape), dtype


def _description(value: Any) -> str:
    form = _form(value)
    if value is None:
        return "no value"
    if isinstance(form, tuple):
        return f"{form[1]} {list(form[0])}"
    return f"a {type(value).__name__}"
