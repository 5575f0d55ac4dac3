"""Arrow data whose offsets lead out of their buffers are an error, never other bytes."""

from __future__ import annotations

import datetime
import json
import struct
from decimal import Decimal

import numpy as np
import pyarrow as pa
import pytest

import shardwise as sw
from shardwise.extensions.tables.arrow.columns import BatchColumns, gather

WORDS = ["abcd"] * 8
# The offsets of eight values of four items.
OFFSETS = struct.pack("<9i", *range(0, 36, 4))
COLUMNS = {
    "bytes": pa.array([b"abcd"] * 8),
    "text": pa.array(WORDS),
    "list of numbers": pa.array([[7] * 4] * 8, pa.list_(pa.int64())),
    "list of texts": pa.array([["abcd"]] * 8),
    "struct": pa.array([{"x": "abcd"}] * 8),
    "list of structs": pa.array([[{"x": "abcd"}]] * 8),
    "map": pa.array([[("abcd", 1)]] * 8, pa.map_(pa.string(), pa.int64())),
    "dictionary": pa.DictionaryArray.from_arrays(
        pa.array([0] * 8, pa.int8()), pa.array([f"{n:04}" for n in range(8)])
    ),
    "list of times": pa.array([[datetime.datetime(2026, 1, 1)] * 4] * 8),
}


def write(path, table, make=pa.ipc.new_file):
    with pa.OSFile(str(path), "wb") as out, make(out, table.schema) as writer:
        writer.write_table(table)
    return path


def damage(path, new, *, at=2):
    """Write another number in place of an offset."""
    data = bytearray(path.read_bytes())
    struct.pack_into("<i", data, data.index(OFFSETS) + 4 * at, new)
    path.write_bytes(data)


@pytest.mark.parametrize("new", [40, 4096, 2_000_000_000, -5])
@pytest.mark.parametrize("kind", COLUMNS)
def test_an_offset_outside_its_buffer_is_an_error_that_names_file_and_field(tmp_path, kind, new):
    path = write(tmp_path / "a.arrow", pa.table({"s": COLUMNS[kind]}))
    rows = list(sw.parquet(path))
    assert len(rows) == 8
    damage(path, new)
    with pytest.raises(sw.DataError, match="Arrow data is damaged") as caught:
        list(sw.parquet(path))
    assert caught.value.url == str(path)
    assert (caught.value.field or "").startswith("s")


def test_so_is_one_in_a_directory_of_hugging_face_and_in_a_cast_column(tmp_path):
    write(tmp_path / "d.arrow", pa.table({"s": WORDS}), pa.ipc.new_stream)
    (tmp_path / "state.json").write_text(json.dumps({"_data_files": [{"filename": "d.arrow"}]}))
    assert sw.parquet(tmp_path)[7]["s"] == "abcd"
    damage(tmp_path / "d.arrow", 4096)
    for options in ({}, {"schema": {"s": "large_string"}}):
        with pytest.raises(sw.DataError, match="Arrow data is damaged") as caught:
            sw.parquet(tmp_path, **options)[2]
        assert caught.value.url == str(tmp_path / "d.arrow")


def test_a_code_outside_its_dictionary_is_an_error():
    codes = pa.array([0, 5, 1], pa.int8())
    damaged = pa.DictionaryArray.from_arrays(codes, pa.array(["a", "b"]), safe=False)
    batch = BatchColumns(pa.record_batch({"word": damaged}))
    zeros = np.zeros(1, np.int64)
    with pytest.raises(sw.DataError, match="Arrow data is damaged") as caught:
        gather(["word"], zeros, zeros, lambda _: batch.columns(["word"]), ids=zeros,
               locate=lambda _: ("a table", "0"))  # fmt: skip
    assert (caught.value.url, caught.value.field) == ("a table", "word")


def test_a_text_that_is_no_utf8_is_an_error_of_its_row_alone(tmp_path):
    path = write(tmp_path / "a.arrow", pa.table({"s": WORDS}))
    path.write_bytes(path.read_bytes().replace(b"abcdabcd", b"abcd\xff\xff\xff\xff", 1))
    data = sw.parquet(path)
    good = [n for n in range(8) if n != 1]
    assert [data[n]["s"] for n in good] == ["abcd"] * 7
    with pytest.raises(sw.DataError, match="no UTF-8") as caught:
        data[1]
    assert caught.value.key == "a:1"


def test_values_that_only_their_type_forbids_are_read(tmp_path):
    """A date that is no whole day: other writers write it, and each is a number here."""
    dates = pa.Array.from_buffers(pa.date64(), 1, [None, pa.py_buffer(struct.pack("<q", 5))])
    path = write(tmp_path / "a.arrow", pa.table({"d": dates, "m": pa.array([Decimal("1.5")])}))
    assert sw.parquet(path)[0]["d"] == 5


def test_a_value_that_python_has_not_is_an_error_that_names_the_row(tmp_path):
    far = pa.array([[{"t": 1}], [{"t": 2**62}]], pa.list_(pa.struct({"t": pa.timestamp("s")})))
    path = write(tmp_path / "a.arrow", pa.table({"s": far}))
    assert len(sw.parquet(path)[0]["s"]) == 1
    with pytest.raises(sw.DataError, match="the column is damaged") as caught:
        sw.parquet(path)[1]
    assert (caught.value.key, caught.value.field) == ("a:1", "s")


def test_a_name_of_a_column_that_is_no_utf8_is_an_error_of_the_file(tmp_path):
    path = write(tmp_path / "a.arrow", pa.table({"name": WORDS}))
    path.write_bytes(path.read_bytes().replace(b"name", b"\xff\xfe\xff\xfe"))
    with pytest.raises(sw.DataError, match="not an Arrow file, or damaged") as caught:
        len(sw.parquet(path))
    assert caught.value.url == str(path)
