"""Columns of bytes: packed into one buffer, or objects of their own, they answer alike."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from shardwise.base.columns import BytesColumn, PayloadColumn, values_of

payloads = st.lists(st.none() | st.binary(max_size=5), max_size=8)


def same(one, other):
    return [None if v is None else bytes(v) for v in one] == [
        None if v is None else bytes(v) for v in other
    ]


@given(payloads)
def test_payloads_of_their_own_answer_as_packed_ones_do(values):
    packed, own = BytesColumn.of(values), PayloadColumn(values)
    assert len(own) == len(packed) == len(values)
    assert own.to_list() == packed.to_list() == values_of(own) == values
    assert same(own, packed)
    assert same([own[i] for i in range(len(values))], values)
    assert same(own[1:-1], packed[1:-1])
    assert own.lengths.tolist() == packed.lengths.tolist()
    rows, packed_rows = own.rows(), packed.rows()
    assert (rows is None) == (packed_rows is None)
    if rows is not None:
        assert np.array_equal(rows, packed_rows)
    for length in range(4):
        out = np.zeros((len(values), length), np.uint8)
        other = out.copy()
        assert own.copy_rows(out) == packed.copy_rows(other)
        assert np.array_equal(out, other)
    # What works on the buffer of a column finds one.
    for start, length, value in zip(own.starts, own.lengths, values, strict=True):
        assert value is None or own.buffer[start : start + length].tobytes() == value


def test_only_what_a_column_has_is_made():
    with pytest.raises(AttributeError, match="other"):
        PayloadColumn([b"a"]).other
