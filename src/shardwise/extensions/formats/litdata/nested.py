"""LitData's binary form of nested values: lists and dicts of JSON's types that are one leaf.

    tag: 1 byte | of a list or dict its count: uint32 | content

Integers and floats have 8 bytes, lengths and counts are uint32, all little-endian; texts are UTF-8
after their length. A list of one type has no tags inside, a list of dicts with the same keys
stores these once, and what fits nowhere else is JSON after its length. A leaf whose first byte is
not a tag is JSON as a whole, as LitData wrote it before.

Source: LitData 0.2.76, its serialiser "json". Nothing in it can be a pickle.
"""

from __future__ import annotations

import json
import struct
from collections.abc import Callable
from typing import Any

import numpy as np

# Dicts inside dicts. Two frames each: with JSON inside, far from Python's limit of 1,000.
_MAX_DEPTH = 200
_JSON, _TEXTS, _INTS, _FLOATS, _BOOLS, _DICT, _ROWS, _TEXT, _INT, _FLOAT, _BOOL, _NONE = range(12)
_I64, _F64 = struct.Struct("<q"), struct.Struct("<d")
_ARRAYS = {_INTS: "<i8", _FLOATS: "<f8", _BOOLS: "?"}


def loads(data: bytes) -> Any:
    """The value of a leaf."""
    if data[:1] > b" ":
        return _json(data, 0)
    leaf = _Leaf(data)
    value = leaf.value(0)
    if leaf.at < len(data):
        raise ValueError(f"a nested value that ends at byte {leaf.at} of {len(data)}")
    return value


def as_json(data: bytes) -> bytes:
    """The same leaf in JSON, which is what decoders of JSON read; raises as `loads` does."""
    return data if data[:1] > b" " else json.dumps(loads(data)).encode()


def _json(data: bytes, at: int) -> Any:
    try:
        return json.loads(data)
    except (ValueError, RecursionError) as error:
        raise ValueError(f"the JSON at byte {at} of a nested value: {error}") from error


class _Leaf:
    """A reader that allocates nothing by a count: the counted values must have bytes."""

    def __init__(self, data: bytes) -> None:
        self.data = data
        self.at = 0

    def take(self, num_bytes: int) -> bytes:
        begin, self.at = self.at, self.at + num_bytes
        if self.at > len(self.data):
            raise ValueError(
                f"a nested value is cut or damaged: {num_bytes} bytes from byte {begin} on, and it "
                f"has {len(self.data)}"
            )
        return self.data[begin : self.at]

    def count(self) -> int:
        return int.from_bytes(self.take(4), "little")

    def value(self, depth: int) -> Any:
        begin = self.at
        tag = self.take(1)[0]
        if tag in _SCALARS:
            return _SCALARS[tag](self)
        if tag in _ARRAYS:
            dtype = np.dtype(_ARRAYS[tag])
            return np.frombuffer(self.take(self.count() * dtype.itemsize), dtype).tolist()
        if tag == _TEXTS:
            return [self.text() for _ in range(self.count())]
        if tag == _DICT:
            return self.mapping(depth)
        if tag == _ROWS:
            return self.rows()
        if tag == _JSON:
            return _json(self.take(self.count()), begin)
        raise ValueError(f"a nested value has the tag {tag} at byte {begin}, which is not known")

    def text(self) -> str:
        # Without `take` and `count`, which make a list of texts take 1.4 times as long.
        begin = self.at + 4
        self.at = begin + int.from_bytes(self.data[self.at : begin], "little")
        if self.at > len(self.data):
            raise ValueError(
                f"a nested value is cut or damaged: a text from byte {begin} to {self.at}, and it "
                f"has {len(self.data)} bytes"
            )
        try:
            return self.data[begin : self.at].decode("utf-8")
        except UnicodeDecodeError as error:
            raise ValueError(f"the text at byte {begin} of a nested value: {error}") from error

    def number(self, form: struct.Struct) -> Any:
        begin, self.at = self.at, self.at + 8
        if self.at > len(self.data):
            raise ValueError(f"a nested value is cut: a number at byte {begin} of {len(self.data)}")
        return form.unpack_from(self.data, begin)[0]

    def mapping(self, depth: int) -> dict[str, Any]:
        if depth == _MAX_DEPTH:
            raise ValueError(f"a nested value is deeper than {_MAX_DEPTH} at byte {self.at}")
        return {self.text(): self.value(depth + 1) for _ in range(self.count())}

    def rows(self) -> list[dict[str, Any]]:
        num_rows, num_keys = self.count(), self.count()
        keys = [self.text() for _ in range(num_keys)]
        # A row without keys has no bytes: 2**32 of them would fill the memory.
        if num_rows * max(num_keys, 1) > len(self.data) - self.at:
            raise ValueError(
                f"a nested value is cut or damaged: {num_rows} rows of {num_keys} values from byte "
                f"{self.at} on, and it has {len(self.data)} bytes"
            )
        return [{key: self.scalar() for key in keys} for _ in range(num_rows)]

    def scalar(self) -> Any:
        tag = self.take(1)[0]
        if tag not in _ROW_SCALARS:
            raise ValueError(f"a nested row has the tag {tag} at byte {self.at - 1}, not known")
        return _ROW_SCALARS[tag](self)


_SCALARS: dict[int, Callable[[_Leaf], Any]] = {
    _TEXT: _Leaf.text,
    _INT: lambda leaf: leaf.number(_I64),
    _FLOAT: lambda leaf: leaf.number(_F64),
    _BOOL: lambda leaf: leaf.take(1) != b"\0",
    _NONE: lambda _: None,
}
# The tags of the same values in rows.
_ROW_SCALARS = {
    0x10: _SCALARS[_NONE],
    0x11: _SCALARS[_TEXT],
    0x12: _SCALARS[_INT],
    0x13: _SCALARS[_FLOAT],
    0x14: _SCALARS[_BOOL],
}
