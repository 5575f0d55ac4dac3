"""Arrays in tenbin format: what is written is read back, and damage is an error."""

from __future__ import annotations

import io

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra import numpy as hnp

from shardwise.compat.webdataset import tenbin

DTYPES = st.sampled_from([np.dtype(name) for name in tenbin.long_to_short])
ARRAYS = hnp.arrays(DTYPES, hnp.array_shapes(min_dims=0, max_dims=4, min_side=0, max_side=4))


def equal(one, two):
    return one.dtype == two.dtype and one.shape == two.shape and one.tobytes() == two.tobytes()


@given(st.lists(ARRAYS, max_size=3))
def test_arrays_of_every_dtype_and_shape_come_back(arrays):
    encoded = tenbin.encode_buffer(arrays)
    decoded = tenbin.decode_buffer(bytes(encoded))
    assert all(map(equal, arrays, decoded))
    assert len(decoded) == len(arrays)
    stream = io.BytesIO()
    tenbin.write(stream, arrays)
    assert stream.getvalue() == encoded
    stream.seek(0)
    assert all(map(equal, arrays, tenbin.read(stream)))


@given(ARRAYS, st.data())
def test_a_cut_buffer_is_an_error_and_never_a_shorter_array(array, data):
    encoded = bytes(tenbin.encode_buffer([array]))
    payload = array.nbytes
    # Padding at the end may be missing: it holds nothing.
    used = len(encoded) - (tenbin.roundup(payload) - payload)
    cut = data.draw(st.integers(1, max(1, used - 1)))
    with pytest.raises(ValueError):
        tenbin.decode_buffer(encoded[:cut])


def test_a_length_beyond_the_end_is_named():
    with pytest.raises(ValueError, match=r"24 bytes, and 4 are left"):
        tenbin.decode_buffer(bytes(tenbin.encode_buffer([np.zeros(())]))[:20])


@given(st.binary(max_size=200))
def test_other_bytes_are_an_error(data):
    if data:
        with pytest.raises(ValueError):
            tenbin.decode_buffer(data)


@pytest.mark.parametrize("word", range(6))
def test_a_header_with_impossible_numbers_is_an_error(word):
    encoded = tenbin.encode_buffer([np.arange(6, dtype=np.int64).reshape(2, 3)])
    # The length of the header chunk, or one of its words: dtype, name, rank and sides.
    place = 8 if word == 0 else 16 + 8 * (word - 1)
    encoded[place : place + 8] = (-(2**62)).to_bytes(8, "little", signed=True)
    with pytest.raises(ValueError):
        tenbin.decode_buffer(encoded)


def test_arrays_that_do_not_lie_in_a_row_are_written_in_order():
    array = np.arange(12).reshape(3, 4).T
    (decoded,) = tenbin.decode_buffer(tenbin.encode_buffer([array]))
    assert (decoded == array).all()


def test_big_endian_arrays_keep_their_values():
    array = np.arange(3, dtype=">i4")
    (decoded,) = tenbin.decode_buffer(tenbin.encode_buffer([array]))
    assert (decoded == array).all()


def test_names_come_back_and_can_be_required():
    encoded = tenbin.encode_buffer([np.zeros(1), np.ones(1)], infos=["x", "labels"])
    assert tenbin.decode_buffer(encoded, infos=True)[1] == ["x", "labels"]
    assert len(tenbin.decode_buffer(encoded, infos=["x", "labels"])) == 2
    with pytest.raises(ValueError, match="labels"):
        tenbin.decode_buffer(encoded, infos=["x", "y"])


def test_what_can_not_be_stored_is_named():
    with pytest.raises(ValueError, match="complex128"):
        tenbin.encode_buffer([np.zeros(1, complex)])
    with pytest.raises(ValueError, match="10 dimensions"):
        tenbin.encode_buffer([np.zeros((1,) * 10)])
    with pytest.raises(ValueError, match="list"):
        tenbin.encode_buffer(np.zeros(1))


def test_files_end_in_ten_unless_told_otherwise(tmp_path):
    path = str(tmp_path / "a.ten")
    tenbin.save(path, np.arange(3), np.ones(2))
    assert [array.tolist() for array in tenbin.load(path)] == [[0, 1, 2], [1, 1]]
    with pytest.raises(ValueError, match="nocheck"):
        tenbin.save(str(tmp_path / "a.bin"), np.arange(3))
