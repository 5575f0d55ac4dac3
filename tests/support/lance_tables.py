"""Lance tables for tests: 1,003 rows in 11 fragments of 100, the last one of 3."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import lance
import numpy as np
import pyarrow as pa

NUM_ROWS = 1003


def row_values(i: int) -> dict[str, Any]:
    """What row i of `make_table` holds, as a sample has it; the row's number is `id`."""
    return {
        "id": i,
        "mod7": np.int8(i % 7),
        "text": f"row {i} ü",
        "bin": i.to_bytes(8, "little"),
        "vector": np.arange(i, i + 4, dtype=np.float32),
        "meta.width": i + 1,
        "meta.name": f"n{i}",
    }


def make_table(path: str | Path, num_rows: int = NUM_ROWS, **options: Any) -> str:
    """Write a table whose rows are `row_values(0)`, `row_values(1)`, ...; returns the path."""
    ids = np.arange(num_rows)
    vectors = (ids[:, None] + np.arange(4)).astype(np.float32)
    table = pa.table(
        {
            "id": ids,
            "mod7": (ids % 7).astype(np.int8),
            "text": [f"row {i} ü" for i in ids],
            "bin": pa.array([int(i).to_bytes(8, "little") for i in ids], pa.binary()),
            "vector": pa.FixedSizeListArray.from_arrays(pa.array(vectors.reshape(-1)), 4),
            "meta": [{"width": int(i) + 1, "name": f"n{i}"} for i in ids],
        }
    )
    given = {"max_rows_per_file": 100, **options}
    lance.write_dataset(table, str(path), **given)
    return str(path)


def plenty(path: str | Path, *, num_fragments: int, rows: int = 1_000_000) -> str:
    """A table of many rows that weighs next to nothing: all its fragments are one file."""
    first = lance.write_dataset(pa.table({"id": pa.array(range(rows))}), str(path))
    one = first.get_fragments()[0].metadata.to_json()
    fragments = [
        lance.FragmentMetadata.from_json(json.dumps({**one, "id": number}))
        for number in range(num_fragments)
    ]
    operation = lance.LanceOperation.Overwrite(first.schema, fragments)
    return str(lance.LanceDataset.commit(str(path), operation).uri)
