"""The layout of an epoch of buckets: its windows, and where the batches of each lie."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

Ints = NDArray[np.int64]


@dataclass(frozen=True, slots=True)
class Window:
    """A window of an epoch.

    Attributes:
        begin, stop: its range in `Layout.places`.
        sizes: int64 `[k]`, rows of its batches, longest samples first.
        order: int64 `[k]`, in which order these come.
        is_alone: whether it has all samples of its group, and so the same ones in every epoch.
    """

    begin: int
    stop: int
    sizes: Ints
    order: Ints
    is_alone: bool


@dataclass(frozen=True, slots=True)
class Layout:
    """The layout of an epoch's batches.

    Attributes:
        windows: the windows; the number of one keys the order of its batches.
        places: int64 `[N]`, positions of the inner order, group after group; None where there is
            one group, for the positions themselves.
        ends: int64 `[batches]`, the position after each batch.
        window_of: int64 `[batches]`, the number of its window.
        shifts: int64 `[batches]`, what to add to a position of it to get a row of its window.
    """

    windows: list[Window]
    places: Ints | None
    ends: Ints
    window_of: Ints
    shifts: Ints
