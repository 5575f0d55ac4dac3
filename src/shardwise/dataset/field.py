"""A field of a dataset's samples: its decoder, and how its values lie in a batch."""

from __future__ import annotations

from collections.abc import Callable, Collection
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
from numpy.typing import NDArray

from shardwise.base.columns import ChannelsLast, Layout, mask_of
from shardwise.base.errors import DataError
from shardwise.codecs.optional import OptionalDecoder
from shardwise.codecs.protocol import has_mask, takes_rng, unwrapped
from shardwise.dataset.keyed_random import SampleKeys
from shardwise.sources.protocol import own_names_of

# Names that batches, mixtures and clips give a meaning.
RESERVED = frozenset({"__key__", "__index__", "__valid__", "__source__", "__media__"})


def refuse_reserved(names: Collection[str], source: Any) -> None:
    """Refuse fields with names that a batch reserves, but for a source's `own_names`."""
    for name in filter(RESERVED.__contains__, names):
        if name not in own_names_of(source):
            raise DataError(
                f"{source!r} has a field {name!r}, which is a name of batches: rename it, or "
                "select() the others",
                field=name,
            )


@dataclass(frozen=True, slots=True)
class Field:
    """One field of a dataset's samples.

    Attributes:
        name: what it is called in a sample.
        decoder: bytes -> value, or None for the bytes themselves.
        required: it was asked for by name, so a sample without it is an error.
        layout: shape and dtype of a row, where the source has arrays of values; else None.
        number: its place among the fields that are read.
        takes_rng: the decoder has a parameter called `rng`.
        has_mask: the decoder gives a mask beside each value, which is a field of its own.
        has_no_null: no row of a batch may lack it: it is required, or an array in all others.
        takes_missing: the decoder is called with None where a sample lacks the field.
    """

    name: str
    decoder: Callable[..., Any] | None
    required: bool
    layout: Layout | None = None
    number: int = 0
    takes_rng: bool = False
    has_mask: bool = False
    has_no_null: bool = False
    takes_missing: bool = False

    @classmethod
    def of(
        cls, name: str, decoder: Any, *, required: bool, layout: Layout | None, number: int
    ) -> Field:
        """Look at the decoder's signature once."""
        if isinstance(decoder, OptionalDecoder) and decoder.decoder is None:
            decoder = replace(decoder, stored_row=layout)
        rng, mask = takes_rng(decoder), has_mask(decoder)
        takes_missing = bool(getattr(decoder, "takes_missing", False))
        has_no_null = (required or layout is not None) and not takes_missing
        more = rng, mask, has_no_null, takes_missing
        return cls(name, decoder, required, layout, number, *more)

    @property
    def mask_name(self) -> str:
        """What the field of its masks is called."""
        return mask_of(self.name)

    @property
    def stream(self) -> int:
        """Which of a sample's generators the decoder gets; decoders of one stream draw alike."""
        return int(getattr(self.decoder, "stream", 0))

    def decode(self, value: Any, random: SampleKeys, source_id: int) -> Any:
        """Call the decoder, with the sample's generator if it takes one; a mask with `has_mask`."""
        assert self.decoder is not None
        if self.has_mask:
            return self.decode_masked(value, lambda: random.generator(source_id, self.stream))
        if self.takes_rng:
            return self.decoder(value, rng=random.generator(source_id, self.stream))
        return self.decoder(value)

    def decode_masked(
        self, value: Any, rng: Callable[[], np.random.Generator], out: NDArray[Any] | None = None
    ) -> tuple[Any, NDArray[np.bool_]]:
        """The value, written into `out` if there is one, and its mask."""
        decoder: Any = self.decoder
        pair: tuple[Any, NDArray[np.bool_]]
        pair = decoder.decode_masked(value, out, **({"rng": rng()} if self.takes_rng else {}))
        return pair

    @property
    def cast(self) -> np.dtype[Any] | None:
        """The dtype that `int` or `float` as the decoder gives a column of numbers at once."""
        if self.layout is None or self.layout[0] != () or self.decoder not in (int, float):
            return None
        dtype = self.layout[1]
        if self.decoder is float:
            return np.dtype(np.float64)
        # Of floats int() may fail, and uint64 has numbers that int64 has not.
        fits = dtype.kind in "bi" or (dtype.kind == "u" and dtype.itemsize < 8)
        return np.dtype(np.int64) if fits else None


def is_plain_function(decoder: Callable[..., Any]) -> bool:
    """Whether a decoder is any callable: none of this library's, and without their abilities."""
    decoder = unwrapped(decoder)
    return decoder is not None and not (
        type(decoder).__module__.startswith("shardwise.")
        or hasattr(decoder, "decode_into")
        or hasattr(decoder, "decode_column")
    )


def in_place(field: Field) -> Layout | None:
    """Shape and dtype of a row that is written straight into arrays; not of optional fields."""
    if field.decoder is None:
        return field.layout if field.required else None
    if field.cast is not None:
        return ((), field.cast) if field.required else None
    row: Layout | None = getattr(field.decoder, "row", None)
    if row is None or not field.required or not hasattr(field.decoder, "decode_into"):
        return None
    shape, dtype = row
    return (shape if isinstance(shape, ChannelsLast) else tuple(shape)), np.dtype(dtype)


def mask_in_place(field: Field) -> Layout | None:
    """Shape and dtype of a row of the field's masks, if they can be written into an array."""
    row: Layout | None = getattr(field.decoder, "mask_row", None) if field.has_mask else None
    return row if field.required else None


def put(sample: dict[str, Any], field: Field, value: Any) -> None:
    """Put what `Field.decode` returned into a sample."""
    if field.has_mask:
        sample[field.name], sample[field.mask_name] = value
    else:
        sample[field.name] = value
