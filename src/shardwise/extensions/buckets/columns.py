"""The columns that buckets are made by: the length and the group of each sample, checked."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property
from typing import Any

import numpy as np
from numpy.typing import NDArray

from shardwise.plan.arguments import digest_of_array


@dataclass(frozen=True, eq=False)
class BucketColumns:
    """One length and one group a sample.

    Attributes:
        lengths: numbers `[n]`, finite, 0 or more; used as float64.
        groups: uint `[n]`, the number of each sample's group; None where there is one.
        names: `[groups]` or `[groups, k]`, what the groups are called; None where there is one.
    """

    lengths: NDArray[Any]
    groups: NDArray[np.unsignedinteger[Any]] | None
    names: NDArray[Any] | None

    @property
    def num_groups(self) -> int:
        return 1 if self.names is None else len(self.names)

    @cached_property
    def group_counts(self) -> NDArray[np.int64]:
        if self.groups is None:
            return np.array([len(self.lengths)])
        return np.bincount(self.groups, minlength=self.num_groups)

    def group_name(self, group: int) -> str:
        return "" if self.names is None else repr(self.names[group].tolist())

    @cached_property
    def spec(self) -> dict[str, Any]:
        """Everything that an order by these columns depends on, as JSON: digests."""
        spec = {"lengths": digest_of_array(self.lengths, "<f8")}
        if self.groups is not None:
            spec["shape"] = digest_of_array(self.groups, "<u8")
        return spec


def as_groups(value: Any) -> tuple[NDArray[np.unsignedinteger[Any]] | None, NDArray[Any] | None]:
    """`(groups, names)` of one value, or one row of values, a sample; None for one group.

    Raises:
        TypeError: the values can't be sorted.
        ValueError: they have no or more than two dimensions, or are not finite.
    """
    array = np.asarray(value)
    if array.ndim not in (1, 2):
        raise ValueError(
            f"shape must be one value or one row of values a sample, such as (height, width), not "
            f"an array of the shape {array.shape}"
        )
    if array.dtype.kind == "f" and not np.isfinite(array).all():
        raise ValueError("shape has values that are not finite: give each sample a group")
    try:
        names, groups = np.unique(array, return_inverse=True, axis=0 if array.ndim == 2 else None)
    except TypeError as error:
        raise TypeError(
            f"shape must be values of one kind, to tell groups apart: {error}"
        ) from None
    if len(names) < 2:
        return None, None
    return groups.ravel().astype(np.min_scalar_type(len(names) - 1)), names
