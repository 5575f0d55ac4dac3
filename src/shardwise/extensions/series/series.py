"""Series: neighbouring rows that belong together, and the rows around one of them."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np
from numpy.typing import NDArray

# A delta may be this far from a row, as rounded seconds are; LeRobot has the same bound.
_TOLERANCE_S, _MAX_ROWS = 1e-4, 1 << 31
_NONE = np.empty(0, np.int64)


def cut_series(
    values: NDArray[Any], name: str, removed: NDArray[np.int64] = _NONE
) -> NDArray[np.int64]:
    """The bounds of series, int64 `[series + 1]`: where a column changes, 0 and the row count.

    Removed rows, whose values are unknown, are series of their own, which no other row reaches.
    """
    kept = np.delete(values, removed)
    runs = kept[np.append(True, kept[1:] != kept[:-1])[: len(kept)]]
    found, counts = np.unique(runs, return_counts=True)
    is_gone = np.isin(np.arange(len(values)), removed)
    is_first = (values[1:] != values[:-1]) | is_gone[1:] | is_gone[:-1]
    firsts = np.flatnonzero(np.append(True, is_first)[: len(values)])
    if counts.max(initial=1) > 1:
        odd = f"the rows of {found[counts.argmax()]!s:.60} are not neighbours: order them by "
        raise ValueError(
            f"windows(by={name!r}): {odd}subset(), or concat() windows of several sets"
        )
    return np.append(firsts, len(values))


def rows_around(
    bounds: NDArray[np.int64], rows: NDArray[np.int64], offsets: NDArray[np.int64]
) -> tuple[NDArray[np.int64], NDArray[np.bool_]]:
    """The rows at some offsets, `[rows, T]`, held to their series, and which needed no holding."""
    after = np.searchsorted(bounds, rows, side="right")[:, None]
    wanted = rows[:, None] + offsets
    held = np.clip(wanted, bounds[after - 1], bounds[after] - 1)
    return held, held == wanted


def find_rate(bounds: NDArray[np.int64], seconds: NDArray[Any], name: str) -> float:
    """Rows per second by the times of the rows; ValueError if their steps vary."""
    times = seconds.astype(np.float64) if seconds.dtype.kind in "iuf" else np.zeros(len(seconds))
    steps = np.delete(np.diff(times), bounds[1:-1] - 1)
    low, step, high = (steps.min(), steps.mean(), steps.max()) if len(steps) else (0.0,) * 3
    if not 0 < 0.75 * step <= low <= high <= 1.25 * step:
        found = f"rows of a series are {low:g} to {high:g} s apart, not a constant time"
        raise ValueError(f"windows(fps={name!r}): {found}: give the rows per second")
    return 1 / float(step)


def row_offsets(deltas: Any, fps: float) -> dict[str, NDArray[np.int64]]:
    """Deltas in seconds by field as offsets in rows; ValueError for one between two rows."""
    if not isinstance(deltas, Mapping):
        raise TypeError(f"deltas={deltas!r:.60}: a dict, such as {{'action': [0, 0.1]}}")
    made = {}
    for field, seconds in deltas.items():
        try:
            rows = np.asarray(seconds, np.float64) * fps
        except (TypeError, ValueError):
            rows = np.empty(0)
        if rows.ndim != 1 or not len(rows) or not (np.abs(rows) < _MAX_ROWS).all():
            raise ValueError(f"deltas[{field!r}]={seconds!r:.60}: a list of seconds, as [-0.1, 0]")
        near, off = np.rint(rows), np.abs(rows - np.rint(rows))
        if off.max() > _TOLERANCE_S * fps:
            odd = f"{rows[off.argmax()] / fps:g} s lies between two rows, {1 / fps:g} s apart"
            raise ValueError(f"deltas[{field!r}]: {odd}")
        made[field] = near.astype(np.int64)
    return made
