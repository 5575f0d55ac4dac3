"""The conformance kit finds each way in which a decoder can break its promise."""

from __future__ import annotations

import itertools
import threading
from dataclasses import dataclass, field

import numpy as np
import pytest

from shardwise.codecs import array
from shardwise.testing.decoders import check_decoder, same_value

SAMPLES = [b"abcd", b"efgh", b"ijkl"]


class Good:
    """A decoder of four bytes with all abilities; the bad ones below change one thing."""

    row = ((4,), np.dtype("uint8"))

    def __call__(self, data):
        return np.array(array("uint8", 4)(data))

    def decode_into(self, data, out):
        out[...] = self(data)

    def decode_column(self, column):
        return np.stack([self(row) for row in column]) if len(column) else np.empty((0, 4), "u1")


class Impure(Good):
    calls = itertools.count()

    def __call__(self, data):
        return super().__call__(data) + np.uint8(next(self.calls) % 2)


class BytesOnly(Good):
    def __call__(self, data):
        return super().__call__(data) * np.uint8(isinstance(data, bytes))


class View(Good):
    def __call__(self, data):
        return np.frombuffer(data, np.uint8)


class Threadbound(Good):
    def __call__(self, data):
        main = threading.current_thread() is threading.main_thread()
        return super().__call__(data) * np.uint8(main)


class WrongRow(Good):
    row = ((4,), np.dtype("int8"))


class HalfWritten(Good):
    def decode_into(self, data, out):
        out[:3] = self(data)[:3]


class WrongColumn(Good):
    def decode_column(self, column):
        return super().decode_column(column)[::-1]


class ColumnView(Good):
    def decode_column(self, column):
        return column.rows()


class ShortColumn(Good):
    def decode_column(self, column):
        return super().decode_column(column)[:1]


class OtherError(Good):
    def __call__(self, data):
        if len(data) < 4:
            raise KeyError(len(data))
        return super().__call__(data)


class OtherKind(Good):
    def __call__(self, data):
        return None if len(data) < 4 else super().__call__(data)


@dataclass
class Unpicklable(Good):
    lock: object = field(default_factory=threading.Lock)


def test_a_good_decoder_passes():
    check_decoder(Good(), SAMPLES)


@pytest.mark.parametrize(
    ("decoder", "message"),
    [
        (Impure, "two calls differ"),
        (BytesOnly, "bytes and memoryview differ"),
        (View, "changed with the input's buffer"),
        (Threadbound, "threads differ"),
        (WrongRow, "not what `row` says"),
        (HalfWritten, "decode_into differs"),
        (WrongColumn, "decode_column differs"),
        (ColumnView, "decode_column"),
        (ShortColumn, "1 values for 3 rows"),
        (OtherError, "raises KeyError"),
        (OtherKind, "another kind of value"),
    ],
)
def test_each_broken_promise_is_found(decoder, message):
    with pytest.raises(AssertionError, match=message):
        check_decoder(decoder(), SAMPLES)


def test_a_decoder_that_does_not_pickle_is_found():
    with pytest.raises(TypeError, match="pickle"):
        check_decoder(Unpicklable(), SAMPLES)


def test_samples_are_needed():
    with pytest.raises(ValueError, match="at least one sample"):
        check_decoder(Good(), [])


def test_values_are_the_same_by_type_and_bits():
    nan = float("nan")
    assert same_value([1, {"a": nan}, np.float32(2)], [1, {"a": nan}, np.float32(2)])
    for one, other in [
        (1, True),
        (1, 1.0),
        (0.0, -0.0),
        (np.float32(1), np.float64(1)),
        (np.zeros(2), np.zeros((2, 1))),
        (np.zeros(2), -np.zeros(2)),
        ([1], (1,)),
        ([1], [1, 2]),
        ({"a": 1}, {"b": 1}),
    ]:
        assert not same_value(one, other), (one, other)
