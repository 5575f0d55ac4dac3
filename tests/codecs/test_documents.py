"""Text, JSON, MessagePack, .npy, torch files, pickles: what they give, what they refuse."""

from __future__ import annotations

import contextlib
import io
import pickle
import sys

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.extra import numpy as hnp

from shardwise.base.errors import MissingExtraError
from shardwise.codecs import json, msgpack, npy, raw, text, torch_tensor, unpickle
from shardwise.testing.decoders import check_decoder


def _npy(values, **options):
    stream = io.BytesIO()
    np.save(stream, values, **options)
    return stream.getvalue()


def _torch(value):
    stream = io.BytesIO()
    torch.save(value, stream)
    return stream.getvalue()


def _packed(value):
    return pytest.importorskip("msgpack").packb(value)


@pytest.mark.parametrize(
    ("decoder", "samples"),
    [
        (raw(), [b"", b"\0\xff"]),
        (text(), [b"", "naïve 文".encode()]),
        (json(), [b'{"a": [1, 2.5, null, "x"]}', b"NaN", "[1]".encode("utf-16")]),
        (msgpack(), [_packed({"a": [1, 2.5, None, b"x"]}), _packed(7)]),
        (npy(), [_npy(np.arange(6.0).reshape(2, 3)), _npy(np.array(True)), _npy(np.empty((0, 2)))]),
        (torch_tensor(), [_torch(torch.arange(4)), _torch({"a": torch.ones(2), "b": 3})]),
        (unpickle(), [pickle.dumps({"a": (1, 2)})]),
    ],
)
def test_decoders_of_documents_pass_the_kit(decoder, samples):
    check_decoder(decoder, samples)
    assert decoder == type(decoder)()
    assert repr(decoder).endswith("()")


def test_text_is_strict_and_changes_nothing():
    assert text()(b"a\r\nb\xef\xbb\xbf") == "a\r\nb\ufeff"
    for data in (b"\xff", "é".encode()[:1], "é".encode("latin-1")):
        with pytest.raises(ValueError, match="utf-8"):
            text()(data)


@pytest.mark.parametrize("data", [b"", b"{", b"[1,]", b"\xff", b"1 2", b"[" * 200_000, b"9" * 5000])
def test_what_is_no_json_is_a_value_error(data):
    with pytest.raises(ValueError, match=r"\S"):
        json()(data)


@pytest.mark.parametrize(
    "data", [b"", b"\x92\x01", b"\x01\x02", b"\xc1", b"\xdb\xff\xff\xff\xff", b"\x91" * 5000]
)
def test_what_is_no_msgpack_is_a_value_error(data):
    with pytest.raises(ValueError, match=f"{len(data)} bytes are no MessagePack document: ."):
        msgpack()(data)


def test_msgpack_that_is_not_installed_names_its_extra(monkeypatch):
    monkeypatch.setitem(sys.modules, "msgpack", None)
    with pytest.raises(MissingExtraError, match=r"shardwise\[msgpack\]"):
        msgpack()(b"\x01")


@given(
    hnp.arrays(
        hnp.scalar_dtypes().filter(lambda dtype: dtype.kind in "biufc"),
        hnp.array_shapes(min_dims=0, max_dims=3, min_side=0, max_side=4),
    ),
    st.booleans(),
)
@settings(deadline=None, max_examples=80)
def test_npy_gives_what_numpy_loads(values, fortran):
    if fortran:
        values = np.asfortranarray(values)
    decoded = npy()(_npy(values))
    assert np.array_equal(decoded, values, equal_nan=values.dtype.kind in "fc")
    assert decoded.dtype == values.dtype.newbyteorder("=")
    assert decoded.flags.c_contiguous
    assert decoded.flags.owndata
    assert decoded.flags.writeable


def test_npy_of_version_2_is_read():
    stream = io.BytesIO()
    np.lib.format.write_array(stream, np.arange(3), version=(2, 0))
    assert npy()(stream.getvalue()).tolist() == [0, 1, 2]


@pytest.mark.parametrize("values", [np.array([{}], object), np.array(["a"]), np.zeros(2, "u1,u2")])
def test_npy_refuses_all_but_numbers(values):
    with pytest.raises(ValueError, match="only numbers and bools"):
        npy()(_npy(values, allow_pickle=True))


def test_a_cut_or_swollen_npy_is_an_error():
    data = _npy(np.arange(10, dtype=np.int32))
    for length in range(len(data)):
        with pytest.raises(ValueError, match=r"npy|\d bytes"):
            npy()(data[:length])
    with pytest.raises(ValueError, match="40 bytes; 41 follow"):
        npy()(data + b"x")


def _npy_with_header(header):
    raw_header = header.encode("latin-1").ljust(117) + b"\n"
    return b"\x93NUMPY\x01\x00" + len(raw_header).to_bytes(2, "little") + raw_header


@pytest.mark.parametrize(
    "header",
    [
        "{'descr': '<f4', 'fortran_order': False, 'shape': (1000000000000,), }",
        "{'descr': '<f4', 'fortran_order': False, 'shape': (-1,), }",
        "{'descr': '<f4', 'fortran_order': False, 'shape': (True,), }",
        "{'descr': '<f4', 'fortran_order': False, 'shape': (2**70, 0), }",
        "{'descr': '<f4', 'fortran_order': False, 'shape': (None,), }",
        "{'descr': '|O', 'fortran_order': False, 'shape': (1,), }",
        "{'descr': 'zz', 'fortran_order': False, 'shape': (1,), }",
        "{'descr': '<f4'}",
        "{'descr': '<f4', 'fortran_order': 3, 'shape': 'abc', }",
        "('",
        "((((((",
        "" + "(" * 110,
        "__import__('os')",
        "",
    ],
)
def test_a_hostile_npy_header_is_a_value_error(header):
    with pytest.raises(ValueError, match=r"\S"):
        npy()(_npy_with_header(header) + b"\0\0\0\0")


@given(st.integers(0, 127), st.integers(0, 255))
@settings(deadline=None, max_examples=300)
def test_a_flipped_byte_in_a_npy_header_raises_value_errors_only(place, byte):
    data = bytearray(_npy(np.arange(4, dtype=np.int32)))
    data[place] = byte
    with contextlib.suppress(ValueError):
        npy()(bytes(data))


class _Bomb:
    def __reduce__(self):
        return print, ("this must not run",)


def test_torch_files_that_run_code_are_refused(capsys):
    with pytest.raises(ValueError, match=r"torch\.load could not decode"):
        torch_tensor()(_torch({"a": _Bomb()}))
    assert capsys.readouterr().out == ""


def test_a_cut_torch_file_is_an_error():
    data = _torch(torch.arange(100))
    for length in range(0, len(data), 97):
        with pytest.raises(ValueError, match=r"torch\.load could not decode"):
            torch_tensor()(data[:length])


def test_pickles_that_fail_are_value_errors():
    for data in (b"", b"garbage", pickle.dumps([1, 2, 3])[:-2], b"cno_such_module\nname\n."):
        with pytest.raises(ValueError, match="a pickle of"):
            unpickle()(data)
