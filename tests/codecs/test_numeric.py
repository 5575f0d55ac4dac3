"""Numbers: digits as Python reads them, raw arrays as they lie, by row and by column."""

from __future__ import annotations

import pickle
import struct

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.extra import numpy as hnp

from shardwise.base.columns import BytesColumn
from shardwise.codecs import array, floating, integer
from shardwise.testing.decoders import check_decoder
from tests.support.properties import examples

digits = st.integers(-(2**63), 2**63 - 1).map(lambda value: str(value).encode())
small = st.integers(-1000, 1000).map(lambda value: str(value).encode())
odd = st.sampled_from(
    [
        b"+7",
        b"-0",
        b"007",
        b" 12 ",
        b"5\n",
        b"-5\n",
        b"5\r\n",
        b"1_000",
        b"\t3",
        b"+0012\n",
        b"0" * 40,
    ]
)
bad = st.one_of(
    st.sampled_from([b"", b"\n", b"-", b"+\n", b"--1", b"+-1", b"1-", b"1.5", b"x", b"1 2", b"_1"]),
    st.sampled_from([b"/", b":", b"\xff", b"1\n\n2", b"\xd9\xa1", str(2**63).encode(), b"9" * 30]),
    st.binary(max_size=4),
)


@given(st.lists(st.one_of(digits, small, odd), max_size=40), st.binary(max_size=3))
@settings(deadline=None, max_examples=200)
def test_a_column_of_digits_is_int_of_each_row(payloads, before):
    column = BytesColumn.of([before, *payloads])[1:]
    values = integer().decode_column(column)
    assert values.dtype == np.int64
    assert values.tolist() == [int(payload) for payload in payloads]


@given(st.lists(st.one_of(digits, small), max_size=10), bad, st.integers(0, 10))
@settings(deadline=None, max_examples=examples(300))
def test_a_column_fails_exactly_where_int_of_64_bits_does(payloads, odd_one, place):
    payloads.insert(place, odd_one)
    try:
        expected = [int(payload) for payload in payloads]
    except ValueError:
        expected = None
    if expected is None or not all(-(2**63) <= value < 2**63 for value in expected):
        with pytest.raises(ValueError, match=r"literal|64 bits"):
            integer().decode_column(BytesColumn.of(payloads))
        with pytest.raises(ValueError, match=r"literal|64 bits"):
            [integer()(payload) for payload in payloads]
    else:
        assert integer().decode_column(BytesColumn.of(payloads)).tolist() == expected


@pytest.mark.parametrize("value", [-(2**63), 2**63 - 1, 10**18 - 1, 10**18, -(10**18), 0])
def test_the_ends_of_the_range_are_read_exactly(value):
    data = str(value).encode()
    assert integer()(data) == value
    assert integer().decode_column(BytesColumn.of([data, b"1"])).tolist() == [value, 1]


def test_a_number_beyond_64_bits_says_what_to_do():
    with pytest.raises(ValueError, match=r"9223372036854775808 does not fit .* sw.text"):
        integer()(b"9223372036854775808")


@given(st.lists(st.one_of(st.floats().map(repr), st.integers(-9, 9).map(str)), max_size=20))
@settings(deadline=None, max_examples=60)
def test_a_column_of_decimals_is_float_of_each_row(payloads):
    values = floating().decode_column(BytesColumn.of([payload.encode() for payload in payloads]))
    assert values.dtype == np.float64
    assert values.tobytes() == np.array([float(text) for text in payloads], np.float64).tobytes()


def test_a_missing_row_is_told_by_its_number():
    column = BytesColumn.of([b"1", None, b"2"])
    for decoder in (integer(), floating(), array("uint8")):
        with pytest.raises(ValueError, match="row 1 of the column is missing"):
            decoder.decode_column(column)


@pytest.mark.parametrize(
    ("decoder", "samples"),
    [
        (integer(), [b"0", b"-12", b"123456789012345678", b"7\n", b" 9 "]),
        (floating(), [b"0.5", b"-1e300", b"nan", b"inf", b"3\n"]),
        (array("uint8"), [b"", b"a", b"bc"]),
        (array("uint8"), [b"ab", b"cd"]),
        (array("uint8", 3), [b"abc", b"def"]),
        (array(">i2", (2, 1)), [b"\0\1\0\2", b"\1\0\2\0"]),
        (array("bool", (2,)), [b"\0\1", b"\2\xff"]),
        (array("float32", ()), [struct.pack("<f", 1.5), struct.pack("<f", -2)]),
        (array("complex64", (0, 3)), [b"", b""]),
    ],
)
def test_decoders_of_numbers_pass_the_kit(decoder, samples):
    check_decoder(decoder, samples)


@given(
    hnp.arrays(
        hnp.scalar_dtypes().filter(lambda dtype: dtype.kind in "biufc" and dtype.itemsize <= 16),
        hnp.array_shapes(min_dims=0, max_dims=3, min_side=0, max_side=4),
    )
)
@settings(deadline=None, max_examples=100)
def test_arrays_come_back_as_they_went(values):
    stored = np.asarray(values, values.dtype.newbyteorder("<"))
    decoder = array(values.dtype.newbyteorder("="), values.shape)
    decoded = decoder(stored.tobytes())
    assert decoded.dtype == values.dtype.newbyteorder("=")
    assert decoded.shape == values.shape
    assert decoded.tobytes() == np.asarray(values, decoded.dtype).tobytes()
    assert decoded.flags.owndata
    assert decoded.flags.writeable
    column = decoder.decode_column(BytesColumn.of([stored.tobytes()] * 3))
    assert column.shape == (3, *values.shape)
    assert column.tobytes() == 3 * decoded.tobytes()


def test_rows_at_equal_distances_are_copied_out_of_the_buffer():
    buffer = np.arange(4 * 512, dtype=np.int64).astype(np.uint8)
    column = BytesColumn(buffer, np.arange(4) * 512 + 3, np.full(4, 8))
    values = array("uint16").decode_column(column)
    before = values.copy()
    buffer[:] = 0
    assert values.shape == (4, 4)
    assert np.array_equal(values, before)
    assert before.any()


def test_payloads_of_different_lengths_stay_a_list():
    values = array("int16").decode_column(BytesColumn.of([b"\1\0", b"", b"\2\0\3\0"]))
    assert isinstance(values, list)
    assert [value.tolist() for value in values] == [[1], [], [2, 3]]


def test_bytes_other_than_0_and_1_are_true_bools():
    decoded = array("bool", 3)(b"\0\1\7")
    assert decoded.tobytes() == b"\0\1\1"


@pytest.mark.parametrize("num_bytes", [0, 1, 11, 13, 24])
def test_a_wrong_length_is_told_with_both(num_bytes):
    decoder = array("float32", (3,))
    message = f"needs 12 bytes, the payload has {num_bytes}"
    data = bytes(num_bytes)
    with pytest.raises(ValueError, match=message):
        decoder(data)
    with pytest.raises(ValueError, match=message):
        decoder.decode_into(data, np.empty(3, np.float32))
    with pytest.raises(ValueError, match=message):
        decoder.decode_column(BytesColumn.of([data, data]))
    with pytest.raises(ValueError, match="needs 12 bytes"):
        decoder.decode_column(BytesColumn.of([bytes(12), data]))


def test_a_part_of_a_value_is_no_value():
    with pytest.raises(ValueError, match="7 bytes are no whole number of int32 values"):
        array("int32")(bytes(7))


def test_decode_into_refuses_an_array_that_does_not_fit():
    with pytest.raises(ValueError, match=r"writes uint8 of shape \(3,\)"):
        array("uint8", 3).decode_into(b"abc", np.empty(3, np.int8))


@pytest.mark.parametrize("dtype", ["O", "S4", "U2", "datetime64[s]", [("a", "u1")]])
def test_only_numbers_lie_as_raw_bytes(dtype):
    with pytest.raises(ValueError, match="raw bytes can hold numbers and bools"):
        array(dtype)


def test_negative_sides_are_refused():
    with pytest.raises(ValueError, match="no side may be negative"):
        array("uint8", (2, -1))


def test_decoders_of_numbers_are_values():
    assert repr(integer()) == "integer()"
    assert repr(floating()) == "floating()"
    assert repr(array(np.float32, [3, 4])) == "array('float32', (3, 4))"
    assert repr(array(">f4")) == "array('>f4')"
    assert array("<f4", 3) == array(np.float32, (3,))
    assert array("f4") != array(">f4")
    assert hash(array("f4", (2,))) == hash(array("f4", (2,)))
    assert pickle.loads(pickle.dumps(array("f4", (2,)))) == array("f4", (2,))
    assert array("int64", (2, 3)).row == ((2, 3), np.dtype("int64"))
    assert array("int64").row is None
