"""The window: how a batch is cut into pieces, how many batches are under way, what is late."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from numpy.typing import NDArray

from shardwise.engine.request import Work
from shardwise.errors import StallError
from shardwise.samples import Samples
from shardwise.storage import outages

__all__ = ["piece_ranges", "stall_error", "window_size"]

_MIN_PIECE, _MAX_PIECE = 16, 64
# Ranges of one request.
_MAX_REQUEST = 256
# Of samples that cost next to nothing, so many bytes are a piece: fewer calls for the same rows.
_LIGHT_PIECE_BYTES, _MAX_LIGHT_PIECE = 4 << 20, 4096
# Batches that are ready or under way may hold this much; two are always allowed.
_MAX_WINDOW_BYTES = 2 << 30


def piece_ranges(
    num_rows: int,
    num_hands: int,
    *,
    light_row_bytes: float | None = None,
    reads_at_once: bool = False,
) -> list[tuple[int, int]]:
    """Cut a batch into pieces `(start, stop)` for so many threads.

    16 to 64 rows each: small enough that several hands fill the first batch, large enough that a
    task costs little beside its rows. Rows that are only read, of `light_row_bytes` on the mean,
    make larger pieces, and rows that are one request if they are read together one of 256. An empty
    batch has one empty piece.
    """
    if reads_at_once:
        num_hands = 1
    least, most = _MIN_PIECE, _MAX_PIECE
    if light_row_bytes is not None:
        rows = int(_LIGHT_PIECE_BYTES / max(light_row_bytes, 1.0))
        least = max(_MIN_PIECE, min(rows, _MAX_LIGHT_PIECE))
        most = max(_MAX_PIECE, least)
    if reads_at_once:
        most = max(most, _MAX_REQUEST)
    size = min(most, max(least, -(-num_rows // num_hands)))
    return [(start, min(start + size, num_rows)) for start in range(0, max(1, num_rows), size)]


def window_size(num_prefetch: int, rows: Mapping[str, NDArray[Any]]) -> int:
    """Batches under way: `num_prefetch`, fewer where batches of such rows would hold too much."""
    num_bytes = sum(array.nbytes for array in rows.values())
    return max(2, min(num_prefetch, _MAX_WINDOW_BYTES // max(1, num_bytes)))


def stall_error(samples: Samples, work: Work, start: int, timeout: float, who: str) -> StallError:
    """Say which sample a late batch waits for, and who has it."""
    what = f"no batch for {timeout:g} s: step {work.step} of epoch {work.epoch} waits for {who}"
    if start < len(work.ids):
        what += f", whose first row is {samples.describe(int(work.ids[start]))}"
    for outage in outages():
        what += f"; {outage}"
    return StallError(f"{what}; raise timeout= if reading or decoding may take this long")
