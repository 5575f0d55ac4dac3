"""The samples as Arrow tables, for peers that read tables."""

from __future__ import annotations

from collections.abc import Iterator
from itertools import islice
from pathlib import Path

import pyarrow as pa

from benchmarks.task import samples

ROWS = 2000


def record_batches(directory: Path, task: str) -> Iterator[pa.RecordBatch]:
    """All samples: a binary column a field."""
    every = samples(directory, task)
    while rows := list(islice(every, ROWS)):
        columns = {name: pa.array([row[name] for row in rows], pa.binary()) for name in rows[0]}
        yield pa.RecordBatch.from_pydict(columns)
