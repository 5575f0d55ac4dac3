"""Decoders for tests, each with some of the optional abilities; they count how they were used."""

from __future__ import annotations

from typing import Any

import numpy as np

from shardwise.base.columns import BytesColumn


class Doubled:
    """The bytes twice; no ability."""

    def __call__(self, data: bytes) -> bytes:
        assert type(data) is bytes, "a plain decoder gets bytes"
        return data * 2


class InPlace:
    """8 bytes -> int64, straight into the rows of a batch; `bad` payloads raise."""

    row = ((), np.dtype(np.int64))

    def __init__(self, *, bad: bytes | None = None) -> None:
        self.bad = bad
        self.num_calls = 0
        self.num_into = 0

    def __repr__(self) -> str:
        return "InPlace()"

    def __call__(self, data: Any) -> np.int64:
        self.num_calls += 1
        return self._value(data)

    def decode_into(self, data: Any, out: np.ndarray) -> None:
        self.num_into += 1
        out[...] = self._value(data)

    def _value(self, data: Any) -> np.int64:
        if self.bad is not None and bytes(data) == self.bad:
            raise OverflowError("this one is bad")
        return np.frombuffer(data, dtype=np.int64)[0]


class WholeColumn(InPlace):
    """As above, and whole columns at once."""

    num_columns = 0

    def decode_column(self, column: BytesColumn) -> np.ndarray:
        self.num_columns += 1
        return np.array([self._value(view) for view in column], dtype=np.int64)
