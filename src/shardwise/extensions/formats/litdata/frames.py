"""Chunks whose samples are compressed in frames of some 256: their bytes without the frames.

    magic: 8 bytes | version, flags: uint16 | count, rows a frame, frames: uint32
    | offsets: uint32 [count + 1], in the content | frames: first, count: uint32, offset: uint64,
    compressed bytes, bytes: uint32 | compressed frames

Source: LitData 0.2.76, its `compression_level="batch"`.
"""

from __future__ import annotations

import struct

import numpy as np

from shardwise.base.errors import DataError
from shardwise.extensions.formats.records.source import RecordShard
from shardwise.extensions.formats.records.unzip import unzip
from shardwise.sources.manifest import Shard

MAGIC = b"LDFZ01\0\0"
_PREFIX = struct.Struct("<8sHHIII")
_FRAME = np.dtype(
    [("first", "<u4"), ("count", "<u4"), ("offset", "<u8"), ("stored", "<u4"), ("bytes", "<u4")]
)


def open_frames(data: bytes, chunk: Shard, compression: str) -> RecordShard:
    """The records of a chunk whose bytes are all in memory."""
    url = chunk.url
    if len(data) < _PREFIX.size or data[:8] != MAGIC:
        raise DataError(f"it does not begin with {MAGIC!r}: is it a LitData chunk?", url=url)
    _, version, _, count, _, num_frames = _PREFIX.unpack_from(data)
    if version != 1:
        raise DataError(f"frames of version {version}, and 1 is read", url=url, offset=8)
    if count != chunk.num_samples:
        raise DataError(
            f"its header says {count} samples, index.json {chunk.num_samples}: is it another "
            "chunk?",
            url=url,
            offset=12,
        )
    table_at = _PREFIX.size + 4 * (count + 1)
    end = table_at + _FRAME.itemsize * num_frames
    if end > len(data):
        raise DataError(f"the chunk ends at byte {len(data)}, its header at {end}", url=url)
    offsets = np.frombuffer(data, "<u4", count + 1, _PREFIX.size).astype(np.int64)
    frames = np.frombuffer(data, _FRAME, num_frames, table_at)
    is_wrong = offsets[0] != 0 or (np.diff(offsets) < 0).any()
    # Frames may lie over one another: their lengths are compared before one is decompressed.
    if is_wrong or offsets[-1] != frames["bytes"].sum(dtype=np.uint64):
        raise DataError("the offsets of its samples are damaged", url=url, offset=_PREFIX.size)
    content = []
    for frame in frames:
        at, stored = int(frame["offset"]), int(frame["stored"])
        if at < end or at + stored > len(data):
            raise DataError(
                f"a frame lies at bytes {at} to {at + stored} of {len(data)}: was the chunk cut?",
                url=url,
                offset=min(at, len(data)),
            )
        content.append(unzip(data[at : at + stored], compression, int(frame["bytes"]), url=url))
    whole = np.concatenate(content) if content else np.empty(0, np.uint8)
    return RecordShard(offsets[:-1], offsets[1:], whole)
