"""Decoders: callables of bytes, with abilities: randomness, and three for whole batches.

The conformance kit `shardwise.testing.check_decoder` holds a new decoder to this.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Protocol, runtime_checkable

import numpy as np
from numpy.typing import NDArray

from shardwise.base.columns import BytesColumn


def check_row(
    decoder: Any,
    row: tuple[tuple[int, ...], np.dtype[Any]] | None,
    out: NDArray[Any],
    *,
    needs: str,
) -> None:
    """Refuse an array that is not of a decoder's `row`; its argument `needs` fixes the shape."""
    if row is None:
        raise ValueError(f"{decoder!r}.decode_into needs {needs}")
    shape, dtype = row
    if (out.shape, out.dtype) != row:
        raise ValueError(
            f"{decoder!r} writes {dtype} of shape {shape}, "
            f"the array to write into has {out.dtype} of shape {out.shape}"
        )


class Decoder(Protocol):
    """Bytes to a value.

    A decoder is pure (the same bytes give the same value), immutable, picklable, and may be called
    by several threads at once. The value owns its data: the bytes may be overwritten as soon as
    the call returns. Bytes that can't be decoded raise ValueError, never a part of a value.
    """

    def __call__(self, data: bytes | memoryview) -> Any:
        """Decode one payload."""


@dataclass(frozen=True, repr=False)
class PlainDecoder:
    """A decoder without options: its repr is the call that makes it, equal are those of a class."""

    def __repr__(self) -> str:
        return f"{type(self).__name__.lower()}()"


@runtime_checkable
class RowDecoder(Protocol):
    """A decoder whose values can be written straight into the rows of a batch."""

    @property
    def row(self) -> tuple[tuple[int, ...], np.dtype[Any]] | None:
        """Shape and dtype of every value; None if they differ, then `decode_into` is not used."""

    def decode_into(self, data: bytes | memoryview, out: NDArray[Any]) -> None:
        """Write what the call would return, bit by bit, into `out` of that shape and dtype."""


@runtime_checkable
class ColumnDecoder(Protocol):
    """A decoder that decodes the payloads of many samples at once."""

    def decode_column(self, column: BytesColumn) -> NDArray[Any] | list[Any]:
        """Decode all rows (none is missing): `[rows, ...]`, or a list if they differ."""


class KeyedDecoder(Protocol):
    """A decoder that draws random numbers: its call has a parameter `rng`.

    It gets a numpy Generator keyed by (seed, epoch, sample), a new one at each call, so that a
    sample's value is the same on every executor and cluster, and another one in the next epoch
    (I5). `ds[i]` and iteration use seed 0, epoch 0. It is pure in the bytes and the generator: it
    draws from `rng` alone. A `decode_column` is not used: keyed decoders are called row by row.

    The decoders of one sample's fields get equal generators, so that those that draw alike, such
    as the crops of an image and of its mask, choose alike. A decoder with an attribute `stream`, a
    whole number, gets the numbers of that stream; without one it is in stream 0.
    """

    def __call__(self, data: bytes | memoryview, rng: np.random.Generator) -> Any:
        """Decode one payload."""


@runtime_checkable
class KeyedRowDecoder(Protocol):
    """A keyed decoder whose values can be written straight into the rows of a batch."""

    @property
    def row(self) -> tuple[tuple[int, ...], np.dtype[Any]] | None:
        """Shape and dtype of every value; None if they differ, then `decode_into` is not used."""

    def decode_into(
        self, data: bytes | memoryview, out: NDArray[Any], rng: np.random.Generator
    ) -> None:
        """Write what the call would return with an equal generator, bit by bit, into `out`."""


def unwrapped(decoder: Any) -> Any:
    """The decoder in this library's ones around another one; None in `sw.optional()`."""
    while getattr(decoder, "is_wrapper", False):
        decoder = decoder.decoder
    return decoder


def takes_rng(fn: Callable[..., Any] | None) -> bool:
    """Whether a function or decoder has a parameter called `rng`."""
    fn = unwrapped(fn)
    if fn is None:
        return False
    try:
        return "rng" in inspect.signature(fn).parameters
    except (TypeError, ValueError):
        # Some built-ins tell no signature.
        return False


def has_mask(decoder: Any) -> bool:
    """Whether a decoder gives masks beside its values: by `decode_masked`, of `mask_row`'s form."""
    return bool(getattr(decoder, "gives_mask", False)) and hasattr(decoder, "decode_masked")
