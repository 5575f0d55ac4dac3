"""Tables for tests, written with pyarrow alone.

Row g (0, 1, ... over all files) has `id`, g; `bin`, g twice as little-endian int64; `text`,
"row g"; `vec`, float32 `[2]`, (g, -g).
"""

from __future__ import annotations

import struct
from collections.abc import Sequence
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

# 1,003 rows in 11 groups, the last of 3 rows, and two empty ones.
SIZES = (100, 100, 0, 100, 100, 100, 100, 100, 100, 100, 100, 0, 3)


def numbered_table(start: int, stop: int) -> pa.Table:
    ids = range(start, stop)
    vectors = np.stack([np.arange(start, stop), -np.arange(start, stop)], 1).astype(np.float32)
    return pa.table(
        {
            "id": pa.array(ids, pa.int64()),
            "bin": pa.array([struct.pack("<qq", g, g) for g in ids], pa.binary()),
            "text": pa.array([f"row {g}" for g in ids], pa.string()),
            "vec": pa.FixedSizeListArray.from_arrays(pa.array(vectors.reshape(-1)), 2),
        }
    )


def write_groups(path: str | Path, sizes: Sequence[int] = SIZES) -> str:
    """One file with row groups of these sizes; returns the path."""
    schema = numbered_table(0, 0).schema
    start = 0
    with pq.ParquetWriter(path, schema) as writer:
        for size in sizes:
            writer.write_table(numbered_table(start, start + size))
            start += size
    return str(path)


def write_files(directory: str | Path, sizes: Sequence[int] = SIZES) -> list[str]:
    """A file `part-00000.parquet`, ... for each size; returns the paths."""
    directory = Path(directory)
    directory.mkdir(parents=True, exist_ok=True)
    paths, start = [], 0
    for number, size in enumerate(sizes):
        path = directory / f"part-{number:05d}.parquet"
        pq.write_table(numbered_table(start, start + size), path)
        paths.append(str(path))
        start += size
    return paths


def expected_rows(keys: Sequence[str]) -> list[dict[str, object]]:
    """What the rows 0, 1, ... are as samples with these keys."""
    return [
        {
            "__key__": key,
            "id": g,
            "bin": struct.pack("<qq", g, g),
            "text": f"row {g}",
            "vec": np.array([g, -g], np.float32),
        }
        for g, key in enumerate(keys)
    ]
