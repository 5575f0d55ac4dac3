"""Lengths, costs and weights: one number per sample, checked."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
from numpy.typing import NDArray

Test = Callable[[NDArray[np.float64]], NDArray[np.bool_]]
# Lengths that are looked at together: 8 MB of memory.
_BLOCK = 1 << 20


def as_lengths(value: Any, *, name: str = "lengths") -> NDArray[Any]:
    """Lengths `[n]` as float64, read-only ones as they are; `name` is what messages call them.

    Raises:
        TypeError: they are not numbers.
        ValueError: they have not one dimension, or one of them is negative or not finite.
    """
    array = np.asarray(value)
    if array.ndim != 1:
        raise ValueError(
            f"{name} must be one number a sample, not the shape {array.shape}: give a field's "
            "name, ds.column(...) or an array"
        )
    if array.size and array.dtype.kind not in "iuf":
        raise TypeError(
            f"{name} must be numbers, not {array.dtype}: of values that have a length, make a "
            "column by a function, such as ds.column(name, fn=len)"
        )
    lengths = array.astype(np.float64) if array.flags.writeable else array
    _refuse(lambda block: ~np.isfinite(block), lengths, "are not finite", name)
    _refuse(lambda block: block < 0, lengths, "are negative", name)
    return lengths


def rows_where(test: Test, lengths: NDArray[Any]) -> NDArray[np.int64]:
    """Return the samples whose lengths, as float64, pass a test."""
    rows = [
        begin + np.flatnonzero(test(lengths[begin : begin + _BLOCK].astype(np.float64)))
        for begin in range(0, len(lengths), _BLOCK)
    ]
    return np.concatenate([*rows, np.empty(0, np.int64)])


def _refuse(test: Test, lengths: NDArray[Any], what: str, name: str) -> None:
    if len(rows := rows_where(test, lengths)):
        raise ValueError(
            f"{len(rows)} of {len(lengths)} {name} {what}, the first is {lengths[rows[0]]:g} of "
            f"sample {rows[0]}: correct the column, or leave such samples out with ds.subset(...)"
        )
