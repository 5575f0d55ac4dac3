"""Files of tokens, written by their published layouts."""

from __future__ import annotations

import json
import struct
from collections.abc import Sequence
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

_CODES = {"uint8": 1, "int16": 3, "int32": 4, "int64": 5, "uint16": 8}


def documents_of(sizes: Sequence[int], dtype: str = "uint16") -> list[NDArray[np.integer]]:
    """Documents whose tokens tell the document apart: 100 * document + place."""
    return [np.arange(n).astype(dtype) + np.array(100 * i, dtype) for i, n in enumerate(sizes)]


def write_megatron(
    path: Path, documents: Sequence[NDArray[np.integer]], *, sentences: int = 1
) -> Path:
    """`path` and its `.idx`; each document is `sentences` sequences where it is long enough."""
    dtype = documents[0].dtype
    parts = [np.array_split(d, min(sentences, max(1, len(d)))) for d in documents]
    sizes = np.array([len(p) for each in parts for p in each], "<i4")
    bounds = np.cumsum([0, *map(len, parts)]).astype("<i8")
    places = (np.cumsum(sizes, dtype=np.int64) - sizes) * dtype.itemsize
    path.write_bytes(b"".join(d.tobytes() for d in documents))
    header = struct.pack("<9sQBQQ", b"MMIDIDX\0\0", 1, _CODES[dtype.name], len(sizes), len(bounds))
    body = sizes.tobytes() + places.astype("<i8").tobytes() + bounds.tobytes()
    path.with_suffix(".idx").write_bytes(header + body)
    return path


def write_litdata(
    folder: Path, chunks: Sequence[Sequence[NDArray[np.integer]]], data_format: str
) -> Path:
    folder.mkdir(parents=True, exist_ok=True)
    entries = []
    for number, items in enumerate(chunks):
        sizes = [item.nbytes for item in items]
        bounds = np.cumsum([4 * (len(items) + 2), *sizes]).astype("<u4")
        data = b"".join(item.tobytes() for item in items)
        name = f"chunk-0-{number}.bin"
        (folder / name).write_bytes(np.uint32(len(items)).tobytes() + bounds.tobytes() + data)
        dim = sum(map(len, items))
        entries.append({"chunk_bytes": len(data), "chunk_size": len(items), "dim": dim,
                        "filename": name})  # fmt: skip
    config = {"compression": None, "data_format": [data_format], "encryption": None,
              "item_loader": "TokensLoader"}  # fmt: skip
    (folder / "index.json").write_text(json.dumps({"chunks": entries, "config": config}))
    return folder
