"""Parquet tables as a source: rows, columns, types, ranks and workers."""

import pickle
import struct

import cv2
import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
import torch

import shardwise as sw
from shardwise.base.errors import DataError
from shardwise.extensions.tables.parquet.source import ParquetSource
from shardwise.testing import check_source
from tests.support.python_code import printed_by
from tests.support.tables import SIZES, expected_rows, numbered_table, write_files, write_groups

NUM_ROWS = sum(SIZES)


@pytest.fixture(scope="module")
def grouped(tmp_path_factory):
    """One file of 13 row groups, two of them empty."""
    return write_groups(tmp_path_factory.mktemp("grouped") / "all.parquet")


@pytest.fixture(scope="module")
def files(tmp_path_factory):
    """13 files, two of them empty."""
    directory = tmp_path_factory.mktemp("files")
    write_files(directory)
    return directory


def write(path, columns, **options):
    pq.write_table(pa.table(columns), path, **options)
    return str(path)


def test_row_groups_keep_what_a_source_keeps(grouped):
    check_source(
        ParquetSource(grouped), expected=expected_rows([f"all:{i}" for i in range(NUM_ROWS)])
    )


def test_files_keep_what_a_source_keeps(files):
    keys = [f"part-{number:05d}:{i}" for number, size in enumerate(SIZES) for i in range(size)]
    check_source(ParquetSource(files), expected=expected_rows(keys))


def test_a_table_without_rows_keeps_what_a_source_keeps(tmp_path):
    path = tmp_path / "empty.parquet"
    pq.write_table(numbered_table(0, 0), path)
    check_source(ParquetSource(path), expected=[])
    assert len(sw.parquet(path)) == 0


def test_a_shard_is_a_row_group(grouped):
    ds = sw.parquet(grouped)
    assert [shard.num_samples for shard in ds.manifest.shards] == list(SIZES)
    assert {shard.url for shard in ds.manifest.shards} == {grouped}
    assert ds.default_shuffle == "window"
    assert ds.fields == ("id", "bin", "text", "vec")
    assert "ParquetSource" in repr(ds)


def test_columns_become_tensors_without_a_value_looked_at(grouped):
    ds = sw.parquet(grouped, columns=["vec", "id", "bin", "text"]).decode(
        bin=sw.array("<i8", shape=(2,))
    )
    assert ds.layout() == {
        "id": ((), np.dtype(np.int64)),
        "vec": ((2,), np.dtype(np.float32)),
        "bin": ((2,), np.dtype(np.int64)),
    }
    with sw.DataLoader(ds, batch_size=64, shuffle=True, rank=0, world_size=1) as loader:
        batch = next(iter(loader))
    ids = batch["__index__"]
    assert torch.equal(batch["id"], ids)
    assert torch.equal(batch["bin"], torch.stack([ids, ids], 1))
    assert torch.equal(batch["vec"], torch.stack([ids, -ids], 1).float())
    assert batch["text"] == [f"row {i}" for i in ids.tolist()]
    assert batch["vec"].dtype == torch.float32


def test_batches_may_be_written_to_and_leave_the_table_as_it_is(grouped):
    ds = sw.parquet(grouped).select("id", "vec")
    for _ in range(2):
        batch = ds.load(np.arange(100))
        assert batch["id"].tolist() == list(range(100))
        batch["id"][:] = -1
        sample = ds[7]
        assert sample["vec"].tolist() == [7, -7]
        sample["vec"][:] = 0


def test_only_the_columns_asked_for_are_read(tmp_path):
    rng = np.random.default_rng(0)
    big = [rng.bytes(10_000) for _ in range(100)]
    path = write(tmp_path / "a.parquet", {"big": big, "small": range(100)})
    small = ParquetSource(path).read(np.arange(100), ("small",))
    assert 0 < small.num_bytes < 10_000
    both = ParquetSource(path).read(np.arange(100))
    assert both.num_bytes > 1_000_000
    none = ParquetSource(path).read(np.arange(100), ())
    assert (none.num_bytes, list(none.fields)) == (0, [])


def test_a_column_that_is_not_there_brings_those_that_are(grouped):
    with pytest.raises(DataError, match="no column 'image': the columns are 'id', 'bin', 'text'"):
        sw.parquet(grouped, columns=["image"])
    with pytest.raises(ValueError, match="no field 'image': the fields are 'id'"):
        sw.parquet(grouped).select("image")
    with pytest.raises(TypeError, match="columns='id': give a sequence"):
        sw.parquet(grouped, columns="id")


def test_a_struct_is_fields_and_its_name_stands_for_all_of_them(tmp_path):
    rows = [{"w": i, "at": {"x": i / 2, "name": f"n{i}"}} for i in range(4)]
    path = write(tmp_path / "a.parquet", {"meta": rows, "id": range(4)})
    assert sw.parquet(path).fields == ("meta.w", "meta.at.x", "meta.at.name", "id")
    assert sw.parquet(path, columns=["meta.at", "id"]).fields == ("meta.at.x", "meta.at.name", "id")
    ds = sw.parquet(path, columns=["meta.at.x"])
    assert ds[3] == {"__key__": "a:3", "meta.at.x": 1.5}


def test_images_in_a_binary_column_are_decoded(tmp_path):
    pixels = np.full((8, 8, 3), 200, np.uint8)
    data = cv2.imencode(".png", pixels)[1].tobytes()
    rows = [{"bytes": data, "path": None}] * 3
    path = write(tmp_path / "a.parquet", {"image": rows, "label": [1, 2, 3]})
    for ds, name in (
        (sw.parquet(path).decode(image=sw.image(size=8)), "image"),
        (
            sw.parquet(path, columns=["image.bytes", "label"]).decode(
                **{"image.bytes": sw.image(size=8)}
            ),
            "image.bytes",
        ),
    ):
        with sw.DataLoader(ds, batch_size=3, rank=0, world_size=1) as loader:
            (batch,) = loader
        assert batch[name].shape == (3, 3, 8, 8)
        assert batch["label"].tolist() == [1, 2, 3]


def test_decoders_of_bytes_read_text_too_and_values_are_given_as_they_are(tmp_path):
    columns = {
        "doc": ['{"a": 1}', '{"a": 2}'],
        "digits": [b"7", b"8"],
        "label": [1, 2],
        "word": ["x", "y"],
    }
    ds = sw.parquet(write(tmp_path / "a.parquet", columns))
    ds = ds.decode(doc=sw.json(), digits=int, label=float, word=str.upper)
    assert ds[1] == {"__key__": "a:1", "doc": {"a": 2}, "digits": 8, "label": 2.0, "word": "Y"}
    assert ds.load(np.arange(2))["digits"].tolist() == [7, 8]
    assert sw.parquet(write(tmp_path / "b.parquet", columns)).decode(doc=sw.text())[0]["doc"]


def test_decode_without_names_looks_at_binary_columns_only(tmp_path):
    path = write(tmp_path / "a.parquet", {"json": [b'{"a": 1}'], "cls": [3], "txt": ["as it is"]})
    assert sw.parquet(path).decode()[0] == {
        "__key__": "a:0",
        "json": {"a": 1},
        "cls": 3,
        "txt": "as it is",
    }
    with pytest.raises(ValueError, match="these samples are values: name the fields to decode"):
        sw.parquet(path).select("cls").decode()


def test_a_null_is_a_field_that_the_sample_lacks(tmp_path):
    path = write(tmp_path / "a.parquet", {"n": pa.array([1, None, 3]), "s": ["a", "b", None]})
    ds = sw.parquet(path)
    assert [set(sample) for sample in ds] == [
        {"__key__", "n", "s"},
        {"__key__", "s"},
        {"__key__", "n"},
    ]
    assert ds.load(np.array([0, 2]))["s"] == ["a", None]
    whole = sw.parquet(path, columns=["n"]).subset([0, 2])
    assert whole.load(np.arange(2))["n"].tolist() == [1, 3]


def test_a_key_column_is_the_key(tmp_path):
    path = write(tmp_path / "a.parquet", {"__key__": ["x", "y", "z"], "n": [1, 2, 3]})
    ds = sw.parquet(path)
    assert ds.fields == ("n",)
    assert ds[1] == {"__key__": "y", "n": 2}
    assert ds.load(np.array([2, 0]))["__key__"] == ["z", "x"]
    check_source(ds.source)


def test_names_of_batches_are_no_columns(tmp_path):
    with pytest.raises(DataError, match="'__index__', which is a name of batches"):
        sw.parquet(write(tmp_path / "a.parquet", {"__index__": [1]}))[0]


def test_dictionary_columns_give_their_words(tmp_path):
    paths = [
        write(tmp_path / f"{i}.parquet", {"w": pa.array(words).dictionary_encode()})
        for i, words in enumerate((["cat", "dog", "cat"], ["emu", "cat"]))
    ]
    ds = sw.parquet(paths)
    assert [s["w"] for s in ds] == ["cat", "dog", "cat", "emu", "cat"]
    assert ds.load(np.array([4, 3, 1]))["w"] == ["cat", "emu", "dog"]


def test_it_pickles_small_and_without_what_is_decoded(files):
    ds = sw.parquet(files)
    ds.load(np.arange(NUM_ROWS))
    data = pickle.dumps(ds)
    assert len(data) < 20_000
    assert pickle.loads(data)[5]["bin"] == struct.pack("<qq", 5, 5)


def test_ids_and_fields_out_of_range_are_refused(grouped):
    source = ParquetSource(grouped)
    with pytest.raises(IndexError, match=r"must lie in \[0, 1003\)"):
        source.read(np.array([1003]))
    with pytest.raises(DataError, match="no column 'x'"):
        source.read(np.array([0]), ("x",))
    with pytest.raises(ValueError, match="memory_bytes=-1"):
        ParquetSource(grouped, memory_bytes=-1)


@pytest.mark.parametrize("decoder", [int, float])
def test_int_and_float_of_numbers_are_those_of_python_and_cost_no_call_a_row(tmp_path, decoder):
    numbers = pa.array([0, 1, 1, 0], pa.int64())
    kinds = [pa.int64(), pa.int8(), pa.uint16(), pa.bool_(), pa.float32()]
    path = write(tmp_path / "a.parquet", {str(kind): numbers.cast(kind) for kind in kinds})
    ds = sw.parquet(path).decode(**{str(kind): decoder for kind in kinds})
    with sw.DataLoader(ds, batch_size=4, rank=0, world_size=1, output="numpy") as loader:
        (batch,) = loader
    for kind in kinds:
        name = str(kind)
        by_row = [ds[i][name] for i in range(4)]
        assert [type(n) for n in by_row] == [decoder] * 4
        assert batch[name].tolist() == by_row
        assert batch[name].dtype == {int: np.int64, float: np.float64}[decoder]
        if not (kind == pa.float32() and decoder is int):
            assert ds.layout()[name] == ((), batch[name].dtype)


def test_whole_numbers_that_are_too_large_for_int64_stay_right(tmp_path):
    numbers = pa.array([2**64 - 1, 3], pa.uint64())
    ds = sw.parquet(write(tmp_path / "a.parquet", {"n": numbers})).decode(n=int)
    assert ds.load(np.arange(2))["n"] == [2**64 - 1, 3]


def test_without_pyarrow_the_extra_is_named_and_nothing_else_needs_it():
    code = (
        "import sys; sys.modules['pyarrow'] = None\n"
        "import shardwise as sw\n"
        "assert sw.wrap([1, 2])[1]['value'] == 2\n"
        "try:\n    sw.parquet('a.parquet')\n"
        "except sw.MissingExtraError as error:\n    print(error)"
    )
    assert "pip install 'shardwise[parquet]'" in printed_by(code)
