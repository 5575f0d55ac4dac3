"""A writer of LitData's binary form of nested values, for tests: the rules of its serialiser."""

from __future__ import annotations

import json
import struct
from typing import Any

_I64 = range(-(2**63), 2**63)


def encode(value: Any) -> bytes:
    if isinstance(value, dict) and all(isinstance(key, str) for key in value):
        parts = [part for key, each in value.items() for part in (_text(key), encode(each))]
        return _counted(5, value, *parts)
    if isinstance(value, list):
        return _list(value)
    scalar = _scalar(value)
    return _json(value) if scalar is None else bytes([scalar[0] + 7]) + scalar[1]


def _list(value: list[Any]) -> bytes:
    scalars = [_scalar(each) for each in value]
    kinds = {None if scalar is None else scalar[0] for scalar in scalars}
    content = [scalar[1] for scalar in scalars if scalar is not None]
    if kinds <= {0}:
        return _counted(1, value, *content)
    for kind, tag in ((1, 2), (2, 3), (3, 4)):
        if kinds == {kind}:
            return _counted(tag, value, *content)
    return _rows(value) or _json(value)


def _rows(value: list[Any]) -> bytes | None:
    if not all(isinstance(row, dict) and row and row.keys() == value[0].keys() for row in value):
        return None
    keys = list(value[0])
    scalars = [_scalar(row[key]) for row in value for key in keys]
    if None in scalars:
        return None
    # The tags of rows have an order of their own: none, text, int, float, bool.
    cells = [bytes([0x10 + (kind + 1) % 5]) + data for kind, data in filter(None, scalars)]
    head = struct.pack("<I", len(keys)) + b"".join(map(_text, keys))
    return _counted(6, value, head, *cells)


def _scalar(value: Any) -> tuple[int, bytes] | None:
    """Text, int, float, bool and None as 0 to 4, and their bytes; None for all else."""
    if value is None:
        return 4, b""
    if isinstance(value, bool):
        return 3, bytes([value])
    if isinstance(value, str):
        return 0, _text(value)
    if isinstance(value, int) and value in _I64:
        return 1, struct.pack("<q", value)
    return (2, struct.pack("<d", value)) if isinstance(value, float) else None


def _counted(tag: int, items: Any, *parts: bytes) -> bytes:
    return struct.pack("<BI", tag, len(items)) + b"".join(parts)


def _text(text: str) -> bytes:
    data = text.encode()
    return struct.pack("<I", len(data)) + data


def _json(value: Any) -> bytes:
    return b"\0" + _text(json.dumps(value, separators=(",", ":"), ensure_ascii=False))
