"""The values of a field that buckets are made by, one a sample."""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

from shardwise.dataset import Dataset

__all__ = ["length_column"]


def length_column(dataset: object, name: str) -> NDArray[Any]:
    """The values of a field of a dataset, `[n]`, which are kept as `Dataset.column` keeps them.

    Raises:
        TypeError: there is a length or a number, and no dataset with fields.
        ValueError: the dataset has no such field.
    """
    if not isinstance(dataset, Dataset):
        raise TypeError(
            f"{name!r} names a field, and {type(dataset).__name__} has none: give an array of one "
            "value a sample"
        )
    return np.asarray(dataset.column(name))
