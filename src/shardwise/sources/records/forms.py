"""How the bytes of a field become its value: as they are, by columns, or one by one."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from shardwise.columns import BytesColumn, Column, Layout

__all__ = ["STORED", "BadRowError", "Form", "column_of", "little_endian"]


@dataclass(frozen=True)
class Form:
    """What a field holds.

    Attributes:
        layout: shape and dtype of a value whose bytes are those of an array; None for others.
        decode: bytes -> value for the others; None for fields that stay bytes. It raises ValueError
            for bytes that are none of its kind.
    """

    layout: Layout | None = None
    decode: Callable[[bytes], Any] | None = None

    @property
    def is_value(self) -> bool:
        """Whether the field is a value, and not bytes."""
        return self.layout is not None or self.decode is not None


STORED = Form()


def column_of(form: Form, stored: BytesColumn) -> Column:
    """The values of stored bytes.

    Raises:
        BadRowError: one can't be decoded.
    """
    if form.layout is not None:
        return _array_of(form.layout, stored)
    if form.decode is None:
        return stored
    values = []
    for row, data in enumerate(stored.to_list()):
        assert data is not None
        try:
            values.append(form.decode(data))
        except (ValueError, IndexError, OverflowError) as error:
            raise BadRowError(row, str(error)) from error
        except RecursionError as error:
            raise BadRowError(row, f"{len(data)} bytes are nested too deeply") from error
    return values


class BadRowError(ValueError):
    """A row whose bytes are no value of their field.

    Attributes:
        row: its number in the column.
        reason: what is wrong.
        field: of the sample, where it is known.
    """

    def __init__(self, row: int, reason: str, *, field: str | None = None) -> None:
        self.row = row
        self.reason = reason
        self.field = field
        super().__init__(reason)


def _array_of(layout: Layout, stored: BytesColumn) -> NDArray[Any]:
    shape, dtype = layout
    length = dtype.itemsize * int(np.prod(shape, dtype=np.int64))
    wrong = np.flatnonzero(stored.lengths != length)
    if len(wrong):
        row = int(wrong[0])
        raise BadRowError(
            row, f"{stored.lengths[row]} bytes, and {dtype} of shape {shape} has {length}"
        )
    out = np.empty((len(stored), length), np.uint8)
    stored.copy_rows(out)
    return out.view(dtype).reshape(len(stored), *shape)


def little_endian(name: str) -> np.dtype[Any]:
    """The dtype of a number's name, as formats store it."""
    return np.dtype(name).newbyteorder("<")
