"""What a decoder is: a callable of bytes, and three abilities that make whole batches fast.

The conformance kit `shardwise.testing.check_decoder` holds a new decoder to this.
"""

from __future__ import annotations

from typing import Any, Protocol, runtime_checkable

import numpy as np
from numpy.typing import NDArray

from shardwise.columns import BytesColumn

__all__ = ["ColumnDecoder", "Decoder", "RowDecoder"]


class Decoder(Protocol):
    """Bytes to a value.

    A decoder is pure (the same bytes give the same value), immutable, picklable, and may be called
    by several threads at once. The value owns its data: the bytes may be overwritten as soon as
    the call returns. Bytes that can't be decoded raise ValueError, never a part of a value.
    """

    def __call__(self, data: bytes | memoryview) -> Any:
        """Decode one payload."""
        ...


@runtime_checkable
class RowDecoder(Protocol):
    """A decoder whose values can be written straight into the rows of a batch."""

    @property
    def row(self) -> tuple[tuple[int, ...], np.dtype[Any]] | None:
        """Shape and dtype of every value; None if they differ, then `decode_into` is not used."""
        ...

    def decode_into(self, data: bytes | memoryview, out: NDArray[Any]) -> None:
        """Write what the call would return, bit by bit, into `out` of that shape and dtype."""
        ...


@runtime_checkable
class ColumnDecoder(Protocol):
    """A decoder that decodes the payloads of many samples at once."""

    def decode_column(self, column: BytesColumn) -> NDArray[Any] | list[Any]:
        """Decode all rows, none of which is missing: `[rows, ...]`, or a list if they differ."""
        ...
