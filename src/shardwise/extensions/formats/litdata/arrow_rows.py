"""Chunks whose rows are an Arrow file at their end: the records that they would have been without.

    header, with offsets of empty records | Arrow file | its length: uint32 | magic: 8 bytes

LitData writes dicts of texts, numbers, bytes and nested values so since its version 0.2.70 or so.
"""

from __future__ import annotations

import json
import struct
from collections.abc import Mapping, Sequence
from itertools import chain
from typing import Any

import numpy as np

from shardwise.base.errors import DataError, imports_of
from shardwise.base.foreign_bytes import as_data_error
from shardwise.extensions.formats.litdata.tree import Node
from shardwise.extensions.formats.records.source import RecordShard
from shardwise.sources.manifest import Shard

MAGIC = b"LDARW01\0"
FOOTER_BYTES = 12
# The serialisers of leaves that such chunks may have.
SERIALIZERS = frozenset({"str", "text", "int", "float", "bool", "bytes", "json"})


def open_rows(
    data: bytes, chunk: Shard, nodes: Mapping[str, Node], serializers: Sequence[str]
) -> RecordShard:
    """The records of a chunk whose bytes are all in memory."""
    url = chunk.url
    with imports_of("parquet", "chunks of Arrow rows need pyarrow"):
        import pyarrow as pa
    length = int.from_bytes(data[-FOOTER_BYTES:-8], "little")
    begin = len(data) - FOOTER_BYTES - length
    if begin < 0:
        raise DataError(f"its Arrow rows have {length} bytes, the chunk {len(data)}", url=url)
    with as_data_error("its Arrow rows are damaged", url=url, offset=begin):
        table = pa.ipc.open_file(pa.BufferReader(data[begin:-FOOTER_BYTES])).read_all()
        # Arrow's C++ takes offsets for granted: one that is damaged may end the process.
        table.validate(full=True)
    if table.num_rows != chunk.num_samples:
        raise DataError(
            f"it has {table.num_rows} rows, index.json {chunk.num_samples} samples", url=url
        )
    with as_data_error("its Arrow rows", url=url, offset=begin):
        leaves: list[Sequence[Any]] = []
        for name, node in nodes.items():
            column = table.column(name).to_pylist()
            leaves += [column] if node.is_leaf else zip(*map(node.flatten, column), strict=True)
        stored = [_serialize_values(*each) for each in zip(serializers, leaves, strict=True)]
    # A record is the sizes of its leaves, then the leaves.
    sizes = np.array([[*map(len, leaf)] for leaf in stored], "<u4").T
    width = sizes.shape[1] * sizes.itemsize
    heads = sizes.tobytes()
    parts = zip(
        (heads[at : at + width] for at in range(0, len(heads), width)), *stored, strict=True
    )
    content = np.frombuffer(b"".join(chain.from_iterable(parts)), np.uint8)
    lengths = sizes.sum(axis=1, dtype=np.int64) + width
    ends = np.cumsum(lengths)
    return RecordShard(ends - lengths, ends, content)


def _serialize_values(serializer: str, values: Sequence[Any]) -> list[bytes]:
    if serializer != "json" and None in values:
        row = values.index(None)
        raise ValueError(
            f"row {row} has a null, which no other chunk can have: write it as a value"
        )
    if serializer in ("str", "text"):
        return [str(value).encode("utf-8") for value in values]
    if serializer in ("int", "float"):
        return list(map(struct.Struct("<q" if serializer == "int" else "<d").pack, values))
    if serializer == "bool":
        return [b"\1" if value else b"\0" for value in values]
    if serializer == "bytes":
        if any(isinstance(value, int) for value in values):
            raise ValueError("a number where bytes belong")
        return list(map(bytes, values))
    return [json.dumps(value).encode("utf-8") for value in values]
