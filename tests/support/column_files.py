"""Files of columns (indexes, manifests) with another header, or a checksum put right."""

from __future__ import annotations

import json
import zlib
from typing import Any


def header_of(data: bytes) -> Any:
    return json.loads(data[8 : _end_of_header(data)])


def with_header(data: bytes, header: Any) -> bytes:
    """A file with another header, and a checksum that holds."""
    text = json.dumps(header).encode()
    text += b" " * (-len(text) % 8)
    return signed(len(text).to_bytes(8, "little") + text + data[_end_of_header(data) :])


def signed(data: bytes) -> bytes:
    """A file with its checksum put right."""
    return data[:-4] + zlib.crc32(data[:-4]).to_bytes(4, "little")


def _end_of_header(data: bytes) -> int:
    return 8 + int.from_bytes(data[:8], "little")
