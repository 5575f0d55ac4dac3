"""Row chunks: how a batch is cut into the parts that threads and processes load."""

from __future__ import annotations

from shardwise.samples import Samples

__all__ = ["chunk_ranges", "light_rows"]

# Rows of a chunk: several threads share the first batch, and a task costs little beside its rows.
_MIN_ROWS, _MAX_ROWS = 16, 64
# Where the samples of a batch are one request to the store: the ranges of one request.
_MAX_REQUEST_ROWS = 256
# Where reading is all that a row costs, rows are loaded together up to 4 MiB or 4,096 rows: more
# would gain little, and delay the first batch.
_LIGHT_BYTES, _MAX_LIGHT_ROWS = 4 << 20, 4096
# Of rows of known or measured size a chunk has 64 MiB at most: few such batches fit into memory, so
# that the threads have to share one.
_HEAVY_BYTES = 64 << 20


def light_rows(samples: Samples) -> int | None:
    """How many rows are worth loading together; None where a row costs more than reading."""
    row_bytes = samples.cost.row_bytes
    if row_bytes is None:
        return None
    return min(_MAX_LIGHT_ROWS, int(_LIGHT_BYTES / max(row_bytes, 1.0)))


def chunk_ranges(
    num_rows: int, num_threads: int, *, samples: Samples, row_bytes: int = 0
) -> list[tuple[int, int]]:
    """Cut a batch into chunks `(start, stop)` for this many threads.

    16 to 64 rows each, fewer where they would be more than 64 MiB of `row_bytes`; up to 4 MiB where
    reading is all that a row costs, and up to 256 rows where the samples of a batch are one
    request. An empty batch has one empty chunk.
    """
    if samples.cost.batch_is_one_request:
        num_threads = 1
    least, most = _MIN_ROWS, _MAX_ROWS
    if (light := light_rows(samples)) is not None:
        least = max(_MIN_ROWS, light)
        most = max(_MAX_ROWS, least)
    if samples.cost.batch_is_one_request:
        most = max(most, _MAX_REQUEST_ROWS)
    elif row_bytes:
        most = min(most, max(1, _HEAVY_BYTES // row_bytes))
    size = min(most, max(least, -(-num_rows // num_threads)))
    return [(start, min(start + size, num_rows)) for start in range(0, max(1, num_rows), size)]
