"""Files of TFRecord, as TensorFlow writes them."""

from __future__ import annotations

import struct
from collections.abc import Sequence
from functools import cache

import numpy as np

from shardwise.extensions.formats.tfrecord.crc32c import masked_crc32c


def record_file(records: Sequence[bytes]) -> bytes:
    parts = []
    for record in records:
        length = struct.pack("<Q", len(record))
        parts += [length, _crc(length), record, _crc(record)]
    return b"".join(parts)


@cache
def _crc(data: bytes) -> bytes:
    buffer = np.frombuffer(data, np.uint8)
    return masked_crc32c(buffer, np.zeros(1, np.int64), np.full(1, len(data))).tobytes()
