"""Decoders around another one: of a field that some samples lack, and of lists of members."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, ClassVar

import numpy as np
from numpy.typing import NDArray

from shardwise.base.arguments import check_function, suggest_names
from shardwise.base.columns import Layout, values_of
from shardwise.base.foreign_bytes import as_data_error
from shardwise.codecs.protocol import has_mask


@dataclass(frozen=True)
class OptionalDecoder:
    """Another decoder, or None for the stored value, that also takes None for a missing field."""

    decoder: Callable[..., Any] | None
    # The row of stored values, if they have one.
    stored_row: Layout | None = None

    takes_missing: ClassVar[bool] = True
    is_wrapper: ClassVar[bool] = True

    def __repr__(self) -> str:
        return f"optional({'' if self.decoder is None else repr(self.decoder)})"

    @property
    def row(self) -> Any:
        return getattr(self.decoder, "row", self.stored_row)

    @property
    def gives_mask(self) -> bool:
        """Whether a missing field becomes zeros, marked in the mask."""
        return self.row is not None or has_mask(self.decoder)

    @property
    def mask_row(self) -> Any:
        return self.decoder.mask_row if has_mask(self.decoder) else ((), np.dtype(bool))  # type: ignore[union-attr]

    @property
    def stream(self) -> int:
        return int(getattr(self.decoder, "stream", 0))

    def __call__(self, data: Any, **rng: np.random.Generator) -> Any:
        return data if data is None or self.decoder is None else self.decoder(data, **rng)

    def decode_into(self, data: Any, out: NDArray[Any]) -> None:
        """Write the value, or zeros, into `out`."""
        self.decode_masked(data, out)

    def decode_masked(
        self, data: Any, out: NDArray[Any] | None = None, **rng: np.random.Generator
    ) -> tuple[Any, Any]:
        """The value, written into `out` if there is one, and whether the field is there."""
        decoder: Any = self.decoder
        if data is not None and has_mask(decoder):
            pair: tuple[Any, Any] = decoder.decode_masked(data, out, **rng)
            return pair
        if data is None:
            shape, dtype = self.mask_row if self.mask_row is not None else ((), bool)
            value = out
            if out is not None:
                out[...] = 0
            elif self.row is not None:
                # A number is of the type that it has in other samples.
                [value] = values_of(np.zeros((1, *self.row[0]), self.row[1]))
            return value, np.zeros(shape, dtype)[()]
        if out is None:
            out = self(data, **rng)
        elif hasattr(decoder, "decode_into"):
            decoder.decode_into(data, out, **rng)
        else:
            out[...] = self(data, **rng)
        return out, np.True_


@dataclass(frozen=True)
class EachDecoder:
    """A decoder of lists of members: of a keyed one each member draws after those before it."""

    decoder: Callable[..., Any]

    is_wrapper: ClassVar[bool] = True

    def __post_init__(self) -> None:
        if has_mask(self.decoder):
            raise ValueError(f"{self.decoder!r} makes masks, which lists of members have none of")

    @property
    def stream(self) -> int:
        return int(getattr(self.decoder, "stream", 0))

    def __call__(self, members: Sequence[Any], **rng: np.random.Generator) -> list[Any]:
        values = []
        for number, data in enumerate(members):
            with as_data_error(f"member {number} of {len(members)}", url=""):
                values.append(self.decoder(data, **rng))
        return values


@suggest_names
def optional(decoder: Callable[..., Any] | None = None) -> OptionalDecoder:
    """A decoder of a field that some samples lack.

    Where its values have one shape, such as `sw.image(size=224)`'s, a missing one is zeros in the
    batch, and "<field>.mask", bool `[batch]`, has False. Otherwise it is None, in a list.

    Args:
        decoder: of the values that are there; None for the stored ones.

    Examples:
        >>> import shardwise as sw
        >>> ds = sw.wrap([{"n": 1, "txt": "a"}, {"n": 2}]).decode(txt=sw.optional(str))
        >>> [sample["txt"] for sample in ds]
        ['a', None]
    """
    if decoder is not None:
        check_function("decoder", decoder)
    if isinstance(decoder, OptionalDecoder):
        return decoder
    return OptionalDecoder(decoder)
