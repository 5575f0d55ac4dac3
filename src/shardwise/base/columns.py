"""Columns: what a source reads for a set of samples, before anything is decoded.

A column of bytes is one buffer with an offset and a length for each row, so that a thousand small
payloads cost a few numpy calls and no Python object each.
"""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
from numpy.typing import NDArray

# Shape and dtype of a row of an array `[rows, *shape]`.
Layout = tuple[tuple[int, ...], np.dtype[Any]]


class ChannelsLast(tuple[int, ...]):
    """The shape `[channels, height, width]` of rows that lie in memory with their channels last."""

    __slots__ = ()


def make_rows(
    num_rows: int, layout: Layout, memory: NDArray[np.uint8] | None = None
) -> NDArray[Any]:
    """Make the rows of a field, in the order of memory that their shape has.

    They lie in `memory`, uint8 of their size in bytes, or in new memory.
    """
    shape, dtype = layout
    is_last = isinstance(shape, ChannelsLast)
    stored = (num_rows, *shape[1:], shape[0]) if is_last else (num_rows, *shape)
    rows = np.empty(stored, dtype) if memory is None else memory.view(dtype).reshape(stored)
    return np.moveaxis(rows, -1, 1) if is_last else rows


Column = Sequence[Any] | NDArray[Any]

_PYTHON_TYPES = (np.int64, np.float64, np.bool_)

_GATHER_BYTES = 64 << 10


def key_text(key: Any) -> str:
    """The text of a sample's key; ValueError for a null, and for bytes that are not UTF-8."""
    if type(key) is str:
        return key
    if key is None:
        raise ValueError("a __key__ is null")
    return str(key, "utf-8") if isinstance(key, bytes | bytearray | memoryview) else str(key)


def mask_of(field: str) -> str:
    """The name of the field that marks the real values of another field."""
    return f"{field}.mask"


class BytesColumn(Sequence[memoryview | None]):
    """Byte strings of different samples in one buffer; `column[i]` is a view, or None.

    `starts` and `lengths` are int64 `[rows]`; a length is -1 where the sample has no such field.
    """

    __slots__ = ("_view", "buffer", "lengths", "starts")

    def __init__(
        self, buffer: NDArray[np.uint8], starts: NDArray[np.int64], lengths: NDArray[np.int64]
    ) -> None:
        self.buffer = buffer
        self.starts = starts
        self.lengths = lengths
        self._view = buffer.data

    @classmethod
    def of(cls, payloads: Sequence[bytes | None]) -> BytesColumn:
        """Pack byte strings into one column."""
        lengths = np.array([-1 if p is None else len(p) for p in payloads], dtype=np.int64)
        sizes = np.maximum(lengths, 0)
        ends = np.cumsum(sizes)
        joined = b"".join(p for p in payloads if p is not None)
        return cls(np.frombuffer(joined, dtype=np.uint8), ends - sizes, lengths)

    def __len__(self) -> int:
        return len(self.starts)

    def __getitem__(self, row: Any) -> Any:
        if isinstance(row, slice):
            return BytesColumn(self.buffer, self.starts[row], self.lengths[row])
        length = int(self.lengths[row])
        if length < 0:
            return None
        start = int(self.starts[row])
        return self._view[start : start + length]

    def __iter__(self) -> Iterator[memoryview | None]:
        view = self._view
        for start, length in zip(self.starts.tolist(), self.lengths.tolist(), strict=True):
            yield None if length < 0 else view[start : start + length]

    def to_list(self) -> list[bytes | None]:
        """All payloads as separate bytes objects, None where one is missing."""
        ends = (self.starts + self.lengths).tolist()
        data: Any = self.buffer.base
        # A missing one ends before it starts.
        if type(data) is bytes and len(data) == len(self.buffer):
            # Cut from bytes, a payload takes half the time of one cut from a view.
            return [
                None if end < start else data[start:end]
                for start, end in zip(self.starts.tolist(), ends, strict=True)
            ]
        view = self._view
        return [
            None if end < start else view[start:end].tobytes()
            for start, end in zip(self.starts.tolist(), ends, strict=True)
        ]

    def rows(self) -> NDArray[np.uint8] | None:
        """All payloads as uint8 `[rows, length]` if they are of one length, else None.

        A view where the payloads lie at equal distances, else one gathered copy.
        """
        if not len(self.starts):
            return np.empty((0, 0), dtype=np.uint8)
        length = int(self.lengths[0])
        if length < 0 or bool((self.lengths != length).any()):
            return None
        if len(self.starts) == 1:
            start = int(self.starts[0])
            return self.buffer[start : start + length][None]
        steps = np.diff(self.starts)
        step = int(steps[0])
        start = int(self.starts[0])
        if step >= length and bool((steps == step).all()):
            return np.lib.stride_tricks.as_strided(
                self.buffer[start:], (len(self.starts), length), (step, 1), writeable=False
            )
        rows = np.empty((len(self.starts), length), dtype=np.uint8)
        self._gather(rows)
        return rows

    def copy_rows(self, out: NDArray[np.uint8]) -> bool:
        """Copy all payloads into `out`, uint8 `[rows, length]`; False if one is not that long."""
        if (self.lengths != out.shape[1]).any():
            return False
        self._gather(out)
        return True

    def _gather(self, out: NDArray[np.uint8]) -> None:
        num_rows, length = out.shape
        if not out.size:
            return
        windows = np.ndarray(
            (len(self.buffer) - length + 1, length), np.uint8, self.buffer, strides=(1, 1)
        )
        # Gather in parts that stay in the processor's cache until they are copied.
        step = max(1, _GATHER_BYTES // length)
        for at in range(0, num_rows, step):
            out[at : at + step] = windows[self.starts[at : at + step]]


class LazyBytesColumn(BytesColumn):
    """A column that is packed into one buffer at the first access."""

    __slots__ = ()

    def __getattr__(self, name: str) -> Any:
        # Only what is not set yet comes here.
        if name not in ("buffer", "starts", "_view"):
            raise AttributeError(name)
        self._pack()
        return getattr(self, name)

    @abstractmethod
    def _pack(self) -> None:
        """Set `buffer`, `starts` and `_view`."""


class PayloadColumn(LazyBytesColumn):
    """Byte strings that are separate objects, packed into one buffer at the first access."""

    __slots__ = ("_values",)

    def __init__(self, values: list[bytes | None]) -> None:
        self._values = values
        self.lengths = np.array([-1 if v is None else len(v) for v in values], dtype=np.int64)

    def __len__(self) -> int:
        return len(self._values)

    def __getitem__(self, row: Any) -> Any:
        if isinstance(row, slice):
            return PayloadColumn(self._values[row])
        value = self._values[row]
        return None if value is None else memoryview(value)

    def __iter__(self) -> Iterator[memoryview | None]:
        return (None if value is None else memoryview(value) for value in self._values)

    def to_list(self) -> list[bytes | None]:
        return list(self._values)

    def copy_rows(self, out: NDArray[np.uint8]) -> bool:
        if (self.lengths != out.shape[1]).any():
            return False
        for row, value in zip(out, self._values, strict=True):
            row[:] = np.frombuffer(value or b"", np.uint8)
        return True

    def _pack(self) -> None:
        packed = BytesColumn.of(self._values)
        self.buffer, self.starts, self._view = packed.buffer, packed.starts, packed._view


def values_of(column: Column) -> list[Any]:
    """The values of a column: bytes; int, float, bool and str of common numbers and texts."""
    if isinstance(column, BytesColumn):
        return column.to_list()
    if (
        isinstance(column, np.ndarray)
        and column.ndim == 1
        and (column.dtype in _PYTHON_TYPES or column.dtype.kind in "US")
    ):
        values: list[Any] = column.tolist()
        return values
    return list(column)


def num_missing(column: Column) -> int:
    """How many samples lack the field."""
    if isinstance(column, BytesColumn):
        return int(np.count_nonzero(column.lengths < 0))
    if isinstance(column, np.ndarray) and column.dtype.kind != "O":
        return 0
    return sum(value is None for value in column)


def merge_columns(
    parts: Sequence[tuple[NDArray[np.integer[Any]], Column]], num_rows: int
) -> Column:
    """Put columns of one field together, each with the positions of its rows in the result."""
    first = parts[0][1]
    if isinstance(first, np.ndarray) and all(
        isinstance(column, np.ndarray)
        and (column.shape[1:], column.dtype) == (first.shape[1:], first.dtype)
        for _, column in parts
    ):
        out = np.empty((num_rows, *first.shape[1:]), first.dtype)
        for places, column in parts:
            out[places] = column
        return out
    is_bytes = isinstance(first, BytesColumn)
    values: list[Any] = [None] * num_rows
    for places, column in parts:
        # Views of stored bytes: they are copied once, into the new buffer.
        rows = column if is_bytes and isinstance(column, BytesColumn) else values_of(column)
        for place, value in zip(places.tolist(), rows, strict=True):
            values[place] = value
    return BytesColumn.of(values) if is_bytes else values


def fixed_width_texts(rows: NDArray[np.uint8]) -> list[str]:
    """Texts of one length from their bytes, uint8 `[rows, length]`: UTF-8, or any other bytes."""
    length, raw = rows.shape[1], rows.tobytes()
    if raw.isascii():
        text = raw.decode("ascii")
        return [text[at : at + length] for at in range(0, len(text), length or 1)]
    return [
        raw[at : at + length].decode("utf-8", "surrogateescape")
        for at in range(0, len(raw), length)
    ]


@dataclass
class Columns:
    """Samples by column, as a source reads them.

    Attributes:
        ids: int64 `[rows]`, the requested sample ids, in that order.
        keys: the samples' keys, one per row.
        fields: a column per field: `BytesColumn` for stored bytes; for values an array
            `[rows, ...]`, or any sequence with None where a sample lacks the field.
        num_bytes: bytes that were read from storage for this.
    """

    ids: NDArray[np.int64]
    keys: Sequence[str]
    fields: Mapping[str, Column] = field(default_factory=dict)
    num_bytes: int = 0
