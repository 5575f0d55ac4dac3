"""What LanceDB's StreamingDataset costs before its first row, and which rows it leaves out.

python -m benchmarks.lancedb_streaming 10007      # rows of worlds of 1 to 5 ranks
python -m benchmarks.lancedb_streaming 1000000    # CPU time and memory of one rank
"""

from __future__ import annotations

import resource
import sys
import tempfile
import time
from typing import Any

NUM_SPLITS = 24


def first_row(table: Any) -> str:
    """Seconds and memory of one rank up to its first row."""
    from lancedb.streaming import StreamingDataset

    before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    wall, cpu = time.perf_counter(), time.process_time()
    next(iter(StreamingDataset(table, num_splits=NUM_SPLITS, rank=0, world_size=1)))
    wall, cpu = time.perf_counter() - wall, time.process_time() - cpu
    grown = (resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before) / 1024
    return f"first row after {wall:.1f} s, {cpu:.1f} s of CPU, {grown:.0f} MB more"


def rows_of_world(table: Any, world_size: int) -> str:
    """How many rows all ranks of a world get in an epoch."""
    from lancedb.streaming import StreamingDataset

    ids: list[int] = []
    try:
        for rank in range(world_size):
            rows = StreamingDataset(table, num_splits=NUM_SPLITS, rank=rank, world_size=world_size)
            ids += [row["id"] for row in rows]
    except ValueError as error:
        return f"{world_size} ranks: {error}"
    return f"{world_size} ranks: {len(ids):,} rows, {len(set(ids)):,} different ones"


def main() -> None:
    import lancedb
    import pyarrow as pa

    num_rows = int(sys.argv[1])
    with tempfile.TemporaryDirectory() as folder:
        rows = pa.table({"id": pa.array(range(num_rows), pa.int64())})
        table = lancedb.connect(folder).create_table("rows", rows)
        print(f"{num_rows:,} rows, lancedb {lancedb.__version__}: {first_row(table)}")
        if num_rows <= 20_000:
            for world_size in range(1, 6):
                print(rows_of_world(table, world_size))


if __name__ == "__main__":
    main()
