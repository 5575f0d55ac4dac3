"""Chunks whose rows are an Arrow file at their end: the records that they would have been without.

    header, with offsets of empty records | Arrow file | its length: uint32 | magic: 8 bytes

LitData writes dicts of texts, numbers, bytes and nested values so since its version 0.2.70 or so.
"""

from __future__ import annotations

import json
import struct
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from shardwise.errors import DataError, MissingExtraError
from shardwise.sources.litdata.tree import Node
from shardwise.sources.records.source import RecordShard

__all__ = ["FOOTER_BYTES", "MAGIC", "SERIALIZERS", "open_rows"]

MAGIC = b"LDARW01\0"
FOOTER_BYTES = 12
# The serialisers of leaves that such chunks may have.
SERIALIZERS = frozenset({"str", "text", "int", "float", "bool", "bytes", "json"})


def open_rows(
    data: bytes,
    *,
    num_records: int,
    nodes: Mapping[str, Node],
    serializers: Sequence[str],
    url: str,
) -> RecordShard:
    """The records of a chunk.

    Args:
        data: all of it.
        num_records: what the index says.
        nodes: field -> where it is in the tree of a sample.
        serializers: of each leaf.
        url: for messages.

    Raises:
        DataError: the rows are damaged, others than the index says, or have a null.
        MissingExtraError: Arrow is not installed.
    """
    try:
        import pyarrow as pa
    except ImportError:
        raise MissingExtraError("chunks of Arrow rows need pyarrow", extra="parquet") from None
    length = int.from_bytes(data[-FOOTER_BYTES:-8], "little")
    begin = len(data) - FOOTER_BYTES - length
    if begin < 0:
        raise DataError(f"its Arrow rows have {length} bytes, the chunk {len(data)}", url=url)
    try:
        table = pa.ipc.open_file(pa.BufferReader(data[begin:-FOOTER_BYTES])).read_all()
        rows = table.to_pylist()
    except (pa.ArrowException, OSError) as error:
        raise DataError(f"its Arrow rows are damaged: {error}", url=url, offset=begin) from error
    if len(rows) != num_records:
        raise DataError(f"it has {len(rows)} rows, index.json {num_records} samples", url=url)
    records = []
    for number, row in enumerate(rows):
        try:
            leaves = [leaf for name, node in nodes.items() for leaf in node.flatten(row[name])]
            stored = [_stored(*each) for each in zip(serializers, leaves, strict=True)]
        except (KeyError, ValueError, TypeError, struct.error) as error:
            raise DataError(f"row {number} of the chunk: {error}", url=url) from error
        sizes = struct.pack(f"<{len(stored)}I", *map(len, stored))
        records.append(b"".join((sizes, *stored)))
    ends = np.cumsum([len(record) for record in records], dtype=np.int64)
    content = np.frombuffer(b"".join(records), np.uint8)
    return RecordShard(np.concatenate([[0], ends[:-1]]).astype(np.int64), ends, content)


def _stored(serializer: str, value: Any) -> bytes:
    """A leaf as its serialiser stores it."""
    if value is None and serializer != "json":
        raise ValueError("a null, which no other chunk can have: write it as a value")
    if serializer in ("str", "text"):
        return str(value).encode("utf-8")
    if serializer == "int":
        return struct.pack("<q", value)
    if serializer == "float":
        return struct.pack("<d", value)
    if serializer == "bool":
        return b"\1" if value else b"\0"
    if serializer == "bytes":
        return bytes(value)
    return json.dumps(value).encode("utf-8")
