"""What the decoders of a part of a media file have in common: a clip, or a stretch of sound.

A subclass decodes into a row or into memory of its own, with a mask of what is real; the plain and
the keyed decoder call that with and without a generator.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from dataclasses import fields
from typing import Any, ClassVar

import numpy as np
from numpy.typing import NDArray

from shardwise.codecs.rows import check_row


class PartDecoder(ABC):
    """A decoder of bytes to a part of a file, which needs no generator."""

    # The function that makes it, the argument that its repr always has, and those that fix `row`.
    _maker: ClassVar[str]
    _always_shown: ClassVar[str] = ""
    _row_needs: ClassVar[str]

    def __repr__(self) -> str:
        arguments = [
            f"{each.name}={getattr(self, each.name)!r}"
            for each in fields(self)  # type: ignore[arg-type]
            if getattr(self, each.name) != each.default or each.name == self._always_shown
        ]
        return f"{self._maker}({', '.join(arguments)})"

    @property
    @abstractmethod
    def row(self) -> tuple[tuple[int, ...], np.dtype[Any]] | None:
        """Shape and dtype of every value; None if they differ."""

    @abstractmethod
    def _decode(
        self,
        data: bytes | memoryview,
        rng: np.random.Generator | None,
        out: NDArray[Any] | None,
    ) -> tuple[NDArray[Any], NDArray[np.bool_]]:
        """A part, written into `out` if there is one, and its mask."""

    def __call__(self, data: bytes | memoryview) -> NDArray[Any]:
        """Decode the part of one file."""
        return self._decode(data, None, None)[0]

    def decode_into(self, data: bytes | memoryview, out: NDArray[Any]) -> None:
        """Decode into an array of `row`'s shape and dtype, such as a row of a batch."""
        check_row(self, self.row, out, needs=self._row_needs)
        self._decode(data, None, out)

    def decode_masked(
        self, data: bytes | memoryview, out: NDArray[Any] | None = None
    ) -> tuple[NDArray[Any], NDArray[np.bool_]]:
        """A part, and its mask: bool, False for the zeros that fill it up."""
        return self._decode(data, None, out)


class KeyedPartDecoder(PartDecoder):
    """A decoder of parts that begin at random: the generator is keyed by the sample."""

    def __call__(self, data: bytes | memoryview, rng: np.random.Generator) -> NDArray[Any]:  # type: ignore[override]
        """Decode the part of one file that begins where `rng` says."""
        return self._decode(data, rng, None)[0]

    def decode_into(  # type: ignore[override]
        self, data: bytes | memoryview, out: NDArray[Any], rng: np.random.Generator
    ) -> None:
        """Decode the part into an array of `row`'s shape and dtype."""
        check_row(self, self.row, out, needs=self._row_needs)
        self._decode(data, rng, out)

    def decode_masked(  # type: ignore[override]
        self, data: bytes | memoryview, out: NDArray[Any] | None = None, *, rng: np.random.Generator
    ) -> tuple[NDArray[Any], NDArray[np.bool_]]:
        """The part that begins where `rng` says, and its mask."""
        return self._decode(data, rng, out)
