"""The samples in `tests/extensions/formats/foreign/data`, as the packages themselves wrote them."""

from __future__ import annotations

from decimal import Decimal
from typing import Any

import numpy as np

NUM_SAMPLES = 11


def mds_sample(i: int) -> dict[str, Any]:
    """Sample i, a value for each encoding but those of pictures."""
    return {
        "any": np.arange(2 * (i + 1), dtype=np.float32).reshape(2, -1),
        "dynamic": np.full((i % 3 + 1, 2), i, np.int16),
        "fixed": np.full((2, 3), i, np.uint8),
        "data": bytes([i]) * (i % 4),
        "decimal": Decimal(i) / 8,
        "half": np.float16(i / 2),
        "id": i,
        "meta": {"i": i, "tags": ["a"] * (i % 3)},
        "pickled": {"i": i},
        "small": np.int8(-i),
        "text": f"sample {i} é",
    }


MDS_COLUMNS = {
    "any": "ndarray", "dynamic": "ndarray:int16", "fixed": "ndarray:uint8:2,3", "data": "bytes",
    "decimal": "str_decimal", "half": "float16", "id": "int", "meta": "json", "pickled": "pkl",
    "small": "int8", "text": "str",
}  # fmt: skip


def litdata_sample(i: int) -> dict[str, Any]:
    """Sample i; "floats" and "plane" are stored as torch's tensors."""
    return {
        "id": i,
        "text": f"sample {i} é",
        "x": i / 2,
        "even": i % 2 == 0,
        "raw": bytes([i]) * (i + 1),
        "matrix": np.full((2, 3), i, np.int16),
        "row": np.arange(i, dtype=np.float64),
        "floats": np.arange(i + 1, dtype=np.float32),
        "plane": np.full((1, 2), i, np.int64),
        "nested": [i, (f"n{i}", 2 * i)],
    }


# One value for each of the forms that LitData stores a nested value in.
NESTED: list[Any] = [
    [1, -2, 2**62],
    ["a", "é", ""],
    [0.5, float("inf"), float("-inf")],
    [True, False],
    [],
    [{"a": 1, "b": None, "c": "x", "d": True, "e": 0.5}, {**dict.fromkeys("abcd", 1.0), "e": ""}],
    [1, "a", None, 2**64, [2.0, [True]]],
    {"k": {"z": [1], "e": {}}, "n": None, "b": True, "f": -0.0, "i": -1, "s": "é",
     "r": [{"a": 1}], "m": [[1], [2.5]]},
    "text é",
    None,
    7,
]  # fmt: skip


def litdata_nested(i: int) -> dict[str, Any]:
    """Sample i of nested values beside an array, for which LitData writes no Arrow rows."""
    tags = [f"t{n}" for n in range(i)]
    return {
        "id": i,
        "row": np.full(i % 3 + 1, i, np.int16),
        "value": NESTED[i],
        "meta": {"boxes": [{"x": n, "y": n / 2} for n in range(i)], "tags": tags},
    }


def litdata_row(i: int) -> dict[str, Any]:
    """Sample i of those that LitData writes as Arrow rows."""
    return {
        "id": i,
        "text": f"row {i} é",
        "x": i / 2,
        "even": i % 2 == 0,
        "raw": bytes([i]) * (i + 1),
        "meta": {"tags": ["a"] * (i + 1), "n": i},
    }


def tfrecord_sample(i: int) -> dict[str, Any]:
    """Sample i: one value, lists, a negative number; "rare" is in some only."""
    sample: dict[str, Any] = {
        "image": bytes([i]) * (100 * i + 1),
        "label": i - 5,
        "score": float(np.float32(i / 3)),
        "boxes": np.arange(4 * (i % 3 + 2), dtype=np.float32),
        "ids": np.array([-i, 2**62 + i, 7]),
    }
    return sample | ({"rare": b"r"} if i % 4 == 0 else {})
