"""The check of the array that a decoder is to write into."""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray


def check_row(
    decoder: Any,
    row: tuple[tuple[int, ...], np.dtype[Any]] | None,
    out: NDArray[Any],
    *,
    needs: str,
) -> None:
    """Refuse an array that is not of a decoder's `row`; its argument `needs` fixes the shape."""
    if row is None:
        raise ValueError(f"{decoder!r}.decode_into needs {needs}")
    shape, dtype = row
    if (out.shape, out.dtype) != row:
        raise ValueError(
            f"{decoder!r} writes {dtype} of shape {shape}, "
            f"the array to write into has {out.dtype} of shape {out.shape}"
        )
