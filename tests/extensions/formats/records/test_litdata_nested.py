"""LitData's binary form of nested values: each kind of value, damage, and hostile counts."""

from __future__ import annotations

import json
import shutil
import struct
import tracemalloc
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

import shardwise as sw
from shardwise.extensions.formats.litdata import arrow_rows
from shardwise.extensions.formats.litdata.nested import as_json, loads
from shardwise.extensions.formats.litdata.tree import Node
from shardwise.sources.manifest import Shard
from tests.support.foreign_samples import NESTED, NUM_SAMPLES, litdata_nested
from tests.support.litdata_nested import encode

DATA = Path(__file__).parents[1] / "foreign" / "data" / "litdata-nested"
MANY = 2**32 - 1

texts = st.text(max_size=5)
scalars = st.none() | st.booleans() | st.integers() | st.floats() | texts
lists_of_one_type = st.one_of(*(st.lists(each, max_size=5) for each in (
    texts, st.integers(-(2**63), 2**63 - 1), st.floats(), st.booleans(),
    st.dictionaries(st.sampled_from("ab"), scalars, min_size=2, max_size=2),
)))  # fmt: skip
values = st.recursive(
    scalars | lists_of_one_type,
    lambda each: st.lists(each, max_size=4) | st.dictionaries(texts, each, max_size=4),
    max_leaves=12,
)


def counted(tag: int, count: int, rest: bytes = b"") -> bytes:
    return struct.pack("<BI", tag, count) + rest


def typed(value: Any) -> str:
    """A text that differs for True, 1 and 1.0, but not by the order of keys."""
    return json.dumps(value, sort_keys=True)


@given(values)
def test_values_come_back_type_for_type(value):
    assert typed(loads(encode(value))) == typed(value)
    assert typed(json.loads(as_json(encode(value)))) == typed(value)


@given(values, st.data())
def test_a_cut_value_is_an_error(value, data):
    stored = encode(value)
    end = data.draw(st.integers(0, len(stored) - 1))
    with pytest.raises(ValueError, match="byte"):
        loads(stored[:end])
    with pytest.raises(ValueError, match="byte"):
        loads(stored + b"x")


@given(values, st.data())
def test_a_damaged_value_is_an_error_or_another_value(value, data):
    stored = bytearray(encode(value))
    stored[data.draw(st.integers(0, len(stored) - 1))] ^= data.draw(st.integers(1, 255))
    try:
        loads(bytes(stored))
    except ValueError as error:
        assert "byte" in str(error)  # noqa: PT017 - most damage is one, but not all


def test_the_writer_of_these_tests_writes_what_litdata_wrote():
    chunks = b"".join(path.read_bytes() for path in sorted(DATA.glob("*.bin")))
    for i in range(NUM_SAMPLES):
        sample = litdata_nested(i)
        assert encode(sample["value"]) + encode(sample["meta"]["boxes"]) in chunks


HOSTILE = {
    "texts": counted(1, MANY, b"\0" * 64),
    "ints": counted(2, MANY, b"\0" * 64),
    "floats": counted(3, 2**29, b"\0" * 64),
    "bools": counted(4, MANY, b"\1" * 64),
    "dict": counted(5, MANY, b"\0" * 64),
    "rows": counted(6, MANY, struct.pack("<I", 1) + b"\1\0\0\0a" + b"\x10" * 64),
    "rows without keys": counted(6, MANY, struct.pack("<I", 0)),
    "keys of no rows": counted(6, 0, struct.pack("<I", MANY)),
    "a text": b"\7" + struct.pack("<I", MANY) + b"x" * 64,
    "JSON": b"\0" + struct.pack("<I", MANY) + b"[]",
    "no text": b"\7" + struct.pack("<I", 1) + b"\xff",
    "no JSON": b"\0" + struct.pack("<I", 2) + b"{]",
    "deep JSON": b"\0" + struct.pack("<I", 200_000) + b"[" * 200_000,
    "deep JSON alone": b"[" * 200_000,
    "deep dicts": (counted(5, 1, b"\0\0\0\0")) * 100_000,
    "a row's tag": counted(6, 1, struct.pack("<I", 1) + b"\1\0\0\0a" + b"\x15"),
    "a dict's tag": counted(5, 1, b"\1\0\0\0a" + b"\x0c" + b"x" * 9),
    "an unknown tag": b"\x0c",
    "nothing": b"",
}


@pytest.mark.parametrize("name", HOSTILE)
def test_hostile_bytes_are_an_error_that_costs_no_memory(name):
    tracemalloc.start()
    try:
        with pytest.raises(ValueError, match=r"byte"):
            loads(HOSTILE[name])
        assert tracemalloc.get_traced_memory()[1] < 4 << 20
    finally:
        tracemalloc.stop()


def test_dicts_are_read_to_a_depth():
    value: Any = 1
    for _ in range(200):
        value = {"k": value}
    assert typed(loads(encode(value))) == typed(value)
    with pytest.raises(ValueError, match="deeper than 200 at byte"):
        loads(encode({"k": value}))


@pytest.mark.parametrize("field", ["value", "meta"])
def test_damage_in_a_chunk_names_shard_sample_field_and_byte(tmp_path, field):
    shutil.copytree(DATA, tmp_path, dirs_exist_ok=True)
    path = tmp_path / "chunk-0-1.bin"
    data = bytearray(path.read_bytes())
    at = data.index(encode(NESTED[5] if field == "value" else litdata_nested(5)["meta"]["boxes"]))
    data[at] = 0x1F
    path.write_bytes(data)
    ds = sw.litdata(tmp_path).select(field)
    for each in (ds, ds.decode(value=sw.json())) if field == "value" else (ds,):
        assert [typed(each[i][field]) for i in (4, 6)] == [
            typed(litdata_nested(i)[field]) for i in (4, 6)
        ]
        with pytest.raises(sw.DataError, match="tag 31 at byte 0") as caught:
            each[5]
        assert (caught.value.url, caught.value.field) == (str(path), field)
        assert (caught.value.key, caught.value.index) == ("chunk-0-1.bin:1", 5)
        assert 0 < caught.value.offset <= at


def test_decoders_of_nested_values_get_json_whatever_is_stored():
    ds = sw.litdata(DATA).decode(value=sw.json())
    for i in range(NUM_SAMPLES):
        assert typed(ds[i]["value"]) == typed(NESTED[i])
    stored = sw.litdata(DATA).source.undecoded(["value"]).read(np.array([4, 8]), ("value",))
    assert stored.fields["value"].to_list() == [b"[]", rb'"text \u00e9"']


def with_a_plain_key(sample: dict[str, Any]) -> dict[str, Any]:
    return {"__key__": str(sample["id"]), "id": sample["id"], "meta.json": sample["meta"]}


@pytest.mark.parametrize(("target", "opened"), [("tar", sw.tar), ("parquet", sw.parquet)])
def test_nested_values_are_built_into_shards(tmp_path, target, opened):
    pattern = f"{tmp_path}/{{shard}}.{target}"
    sw.build(sw.litdata(DATA), pattern, map=with_a_plain_key, num_workers=0)
    built = opened(f"{tmp_path}/*.{target}").decode(**{"meta.json": sw.json(), "id": int})
    assert len(built) == NUM_SAMPLES
    for sample in built:
        assert typed(sample["meta.json"]) == typed(litdata_nested(sample["id"])["meta"])


def chunk_of(table: Any) -> bytes:
    """A chunk of Arrow rows alone."""
    pa = pytest.importorskip("pyarrow")
    sink = pa.BufferOutputStream()
    with pa.ipc.new_file(sink, table.schema) as writer:
        writer.write_table(table)
    rows: bytes = sink.getvalue().to_pybytes()
    return rows + struct.pack("<I", len(rows)) + arrow_rows.MAGIC


def test_numbers_in_arrow_rows_are_no_length_of_bytes():
    pa = pytest.importorskip("pyarrow")
    data = chunk_of(pa.table({"x": [2, 1 << 24]}))
    with pytest.raises(sw.DataError, match="a number where bytes belong"):
        arrow_rows.open_rows(data, Shard("x", 2, 0), {"x": Node(range(1))}, ["bytes"])


@pytest.mark.parametrize(("serializer", "is_read"), [("json", True), ("int", False)])
def test_a_null_in_arrow_rows_is_read_where_nested_values_are(serializer, is_read):
    pa = pytest.importorskip("pyarrow")
    data = chunk_of(pa.table({"x": [[1], None] if is_read else [1, None]}))
    arguments = Shard("x", 2, 0), {"x": Node(range(1))}, [serializer]
    if not is_read:
        with pytest.raises(sw.DataError, match="row 1 has a null"):
            arrow_rows.open_rows(data, *arguments)
        return
    found = arrow_rows.open_rows(data, *arguments)
    assert found.content is not None
    assert found.content.tobytes().endswith(struct.pack("<I", 4) + b"null")
