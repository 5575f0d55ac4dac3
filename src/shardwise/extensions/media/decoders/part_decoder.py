"""Code that decoders of a part of a media file share: of a clip, or a stretch of sound.

A subclass decodes into a row or into its own memory, with a mask of what is real. A part may start
at random, drawn from the sample's generator.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from dataclasses import fields
from typing import Any, ClassVar

import numpy as np
from numpy.typing import NDArray

from shardwise.codecs.protocol import check_row


class PartDecoder(ABC):
    """A keyed decoder of bytes to a part of a file."""

    # The argument that its repr always has, and those that fix `row`.
    _always_shown: ClassVar[str] = ""
    _row_needs: ClassVar[str]

    def __repr__(self) -> str:
        arguments = [
            f"{each.name}={getattr(self, each.name)!r}"
            for each in fields(self)  # type: ignore[arg-type]
            if getattr(self, each.name) != each.default or each.name == self._always_shown
        ]
        return f"{type(self).__name__.lower()}({', '.join(arguments)})"

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

    def _draw(self, rng: np.random.Generator | None, num_starts: int) -> int:
        """Draw one of the positions at which a random part may start."""
        if rng is None:
            raise TypeError(f"{self!r} begins at random: call it with rng=, a numpy Generator")
        return int(rng.integers(num_starts))

    def __call__(
        self, data: bytes | memoryview, rng: np.random.Generator | None = None
    ) -> NDArray[Any]:
        return self._decode(data, rng, None)[0]

    def decode_into(
        self,
        data: bytes | memoryview,
        out: NDArray[Any],
        rng: np.random.Generator | None = None,
    ) -> None:
        check_row(self, self.row, out, needs=self._row_needs)
        self._decode(data, rng, out)

    def decode_masked(
        self,
        data: bytes | memoryview,
        out: NDArray[Any] | None = None,
        rng: np.random.Generator | None = None,
    ) -> tuple[NDArray[Any], NDArray[np.bool_]]:
        """A part, and its mask: bool, False for the zeros that fill it up."""
        return self._decode(data, rng, out)
