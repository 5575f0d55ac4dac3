"""Decoders of numbers: ASCII digits, and raw arrays. Whole columns at a time where they can.

`decode_column` gives the values that the call gives row by row, to the bit.
"""

from __future__ import annotations

import functools
import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import DTypeLike, NDArray

from shardwise.base.arguments import near_name, suggest_names
from shardwise.base.columns import BytesColumn
from shardwise.codecs.protocol import PlainDecoder, check_row

_MIN_INT64, _MAX_INT64 = -(2**63), 2**63 - 1
_MAX_DIGITS = 18  # 18 nines fit into 64 bits
_POWERS = 10 ** np.arange(_MAX_DIGITS - 1, -1, -1, dtype=np.int64)
_ZERO = ord("0")


def _check_whole(column: BytesColumn) -> None:
    missing = np.flatnonzero(column.lengths < 0)
    if len(missing):
        raise ValueError(f"row {missing[0]} of the column is missing: decode it row by row")


class Integer(PlainDecoder):
    """A decoder of whole numbers; `integer` makes it."""

    def __call__(self, data: bytes | memoryview) -> int:
        value = int(bytes(data))
        if not _MIN_INT64 <= value <= _MAX_INT64:
            raise ValueError(f"{value} does not fit into 64 bits: decode the field as sw.text()")
        return value

    def decode_column(self, column: BytesColumn) -> NDArray[np.int64]:
        """Decode a column without missing rows to int64 `[rows]`."""
        _check_whole(column)
        if not len(column):
            return np.empty(0, np.int64)
        labels = _parse_labels(column)
        if labels is not None:
            return labels
        return np.array([self(value) for value in column if value is not None], np.int64)


def _parse_labels(column: BytesColumn) -> NDArray[np.int64] | None:
    """Parse rows of 1 to 18 digits and nothing else, the common form; None if one is not so."""
    lengths = column.lengths
    longest = int(lengths.max())
    if longest > _MAX_DIGITS or not lengths.min():
        return None
    # Rows are aligned at their last digit and filled with zeros on the left.
    backwards = np.arange(-longest, 0)
    places = (column.starts + lengths)[:, None] + backwards
    digits = column.buffer.take(places, mode="clip")
    digits -= np.uint8(_ZERO)  # others wrap round to over 9
    digits *= backwards >= -lengths[:, None]
    if digits.max() > 9:
        return None
    return digits.astype(np.int64) @ _POWERS[-longest:]


def integer() -> Integer:
    r"""Decode whole numbers in ASCII, as `int` reads them: sign, blanks and underscores allowed.

    The value is an int of 64 bits; a batch is int64 `[B]`. `int` as a decoder means this.

    Examples:
        >>> integer()(b" -42\n")
        -42
    """
    return Integer()


class Floating(PlainDecoder):
    """A decoder of decimal numbers; `floating` makes it."""

    def __call__(self, data: bytes | memoryview) -> float:
        return float(bytes(data))

    def decode_column(self, column: BytesColumn) -> NDArray[np.float64]:
        """Decode a column without missing rows to float64 `[rows]`."""
        _check_whole(column)
        return np.array([float(bytes(value or b"")) for value in column], np.float64)


def floating() -> Floating:
    """Decode decimal numbers in ASCII, as `float` reads them: "0.5", "1e-3", "nan".

    A batch is float64 `[B]`. `float` as a decoder means this.

    Examples:
        >>> floating()(b"1e-3")
        0.001
    """
    return Floating()


@dataclass(frozen=True, repr=False)
class Array:
    """A decoder of raw arrays; `array` makes it."""

    dtype: str
    shape: tuple[int, ...] | None = None

    def __repr__(self) -> str:
        name = self.dtype if self.dtype.startswith(">") else np.dtype(self.dtype).name
        return f"array({name!r})" if self.shape is None else f"array({name!r}, {self.shape})"

    @property
    def row(self) -> tuple[tuple[int, ...], np.dtype[Any]] | None:
        return None if self.shape is None else (self.shape, self._native)

    @functools.cached_property
    def _native(self) -> np.dtype[Any]:
        return np.dtype(self.dtype).newbyteorder("=")

    @functools.cached_property
    def _raw_dtype(self) -> np.dtype[Any]:
        # Bytes other than 0 and 1 are not valid bools: they are read as numbers and compared to 0.
        return np.dtype("uint8" if self._native == np.bool_ else self.dtype)

    def _shape_of(self, num_bytes: int) -> tuple[int, ...]:
        itemsize = self._raw_dtype.itemsize
        if self.shape is None:
            if num_bytes % itemsize:
                raise ValueError(
                    f"{num_bytes} bytes are no whole number of {self._native} values, "
                    f"which take {itemsize} bytes each"
                )
            return (num_bytes // itemsize,)
        expected = math.prod(self.shape) * itemsize
        if num_bytes != expected:
            raise ValueError(f"{self!r} needs {expected} bytes, the payload has {num_bytes}")
        return self.shape

    def __call__(self, data: bytes | memoryview) -> NDArray[Any]:
        """Decode one payload to an array that owns its data."""
        out: NDArray[Any] = np.empty(self._shape_of(memoryview(data).nbytes), self._native)
        self._copy(data, out)
        return out

    def decode_into(self, data: bytes | memoryview, out: NDArray[Any]) -> None:
        shape = self._shape_of(memoryview(data).nbytes)
        check_row(self, (shape, self._native), out, needs="a shape")
        self._copy(data, out)

    def _copy(self, data: bytes | memoryview, out: NDArray[Any]) -> None:
        stored = np.frombuffer(data, self._raw_dtype) if out.size else np.empty(0, self._raw_dtype)
        np.copyto(out, stored.reshape(out.shape), casting="unsafe")

    def decode_column(self, column: BytesColumn) -> NDArray[Any] | list[NDArray[Any]]:
        """Decode to `[rows, *shape]`; without a shape to `[rows, length]` or a list of arrays."""
        _check_whole(column)
        if not len(column):
            return np.empty((0, *(self.shape or ())), self._native)
        length = int(column.lengths[0])
        if (column.lengths != length).any():
            return [self(value) for value in column if value is not None]
        out = np.empty((len(column), *self._shape_of(length)), self._native)
        self.decode_column_into(column, out)
        return out

    def decode_column_into(self, column: BytesColumn, out: NDArray[Any]) -> None:
        length = math.prod(out.shape[1:]) * self._raw_dtype.itemsize
        if self._shape_of(length) != out.shape[1:] or out.dtype != self._native:
            raise ValueError(f"{self!r} does not write {out.dtype} of shape {out.shape[1:]}")
        is_plain = self._raw_dtype == self._native and out.flags.c_contiguous
        stored = out if is_plain else np.empty(out.shape, self._raw_dtype)
        if stored.size and not column.copy_rows(stored.view(np.uint8).reshape(len(out), length)):
            row = int((column.lengths != length).argmax())
            raise ValueError(f"row {row} has {column.lengths[row]} bytes, not {length}")
        if stored is not out:
            np.copyto(out, stored, casting="unsafe")


@suggest_names
def array(dtype: DTypeLike, shape: int | Sequence[int] | None = None) -> Array:
    r"""Decode the raw bytes of an array, row after row (C order), as they lie.

    Args:
        dtype: bool, integers, floats or complex numbers. Stored little-endian, on every machine,
            unless the name has another order (">f4"). Values have the machine's own byte order.
        shape: the shape; None for one dimension of any length.

    Raises:
        ValueError: (when called) the payload has another length. The message has both.

    Examples:
        >>> array("uint16", (1, 2))(b"\x01\x00\x02\x00")
        array([[1, 2]], dtype=uint16)
    """
    try:
        stored = np.dtype(dtype)
    except TypeError as error:
        known = [np.dtype(code).name for code in "?bhilBHILefdFD"]
        hint = near_name(dtype, known)
        raise TypeError(f"array(dtype={dtype!r:.80}): numpy has no such dtype{hint}") from error
    if stored.kind not in "biufc":
        raise ValueError(
            f"array(dtype={dtype!r}): raw bytes can hold numbers and bools, not {stored}"
        )
    named_big = isinstance(dtype, str | np.dtype) and stored.byteorder == ">"
    stored = stored if named_big else stored.newbyteorder("<")
    if shape is not None:
        shape = (int(shape),) if isinstance(shape, int | np.integer) else tuple(map(int, shape))
        if min(shape, default=0) < 0:
            raise ValueError(f"array(shape={shape}): no side may be negative")
    return Array(stored.str, shape)
