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
from shardwise.errors import DataError
from shardwise.sources.tables.parquet.source import ParquetSource
from shardwise.testing import check_source
from tests.support.python_code import printed_by
from tests.support.tables import SIZES, expected_rows, numbered_table, write_files, write_groups
from tests.support.worlds import check_processes, check_torch_workers, check_worlds

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


def test_every_world_size_gives_each_row_once_in_one_order(grouped):
    check_worlds(sw.parquet(grouped))


def test_files_over_ranks_give_each_row_once(files):
    check_worlds(sw.parquet(files, columns=["id", "bin"]), world_sizes=(1, 2, 3, 8))


def test_worker_processes_give_what_threads_give(files):
    check_processes(sw.parquet(files), 2)


@pytest.mark.parametrize(
    ("num_workers", "start"),
    [
        (0, None),
        (3, "fork"),
        *(pytest.param(1, start, marks=pytest.mark.long) for start in ("forkserver", "spawn")),
    ],
)
def test_torchs_workers_give_the_global_order(files, num_workers, start):
    check_torch_workers(sw.parquet(files), num_workers, start)


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
    with pytest.raises(DataError) as caught:
        sw.parquet(path, columns=["n"]).load(np.arange(3))
    error = caught.value
    assert (error.url, error.key, error.field, error.index) == (path, "a:1", "n", 1)
    assert "select(), decode() or a table's columns= names" in str(error)
    whole = sw.parquet(path, columns=["n"]).subset([0, 2])
    assert whole.load(np.arange(2))["n"].tolist() == [1, 3]


def test_a_null_in_a_row_of_a_batch_can_be_skipped(tmp_path):
    path = write(tmp_path / "a.parquet", {"n": pa.array([*range(30), None, *range(31, 40)])})
    ds = sw.parquet(path, columns=["n"])
    loader = sw.DataLoader(ds, batch_size=40, on_error="skip", rank=0, world_size=1, num_threads=2)
    with loader:
        (batch,) = loader
        assert batch["n"].tolist() == [*range(30), *range(31, 40)]
        assert loader.stats()["skipped"] == 1


def test_a_list_with_a_null_names_row_and_column(tmp_path):
    lists = pa.array([[1, 2], [3, None]], pa.list_(pa.int64(), 2))
    path = write(tmp_path / "a.parquet", {"box": lists})
    with pytest.raises(DataError, match="null among them") as caught:
        sw.parquet(path).load(np.array([0, 1]))
    assert (caught.value.url, caught.value.key, caught.value.field) == (path, "a:1", "box")


def test_a_key_column_is_the_key(tmp_path):
    path = write(tmp_path / "a.parquet", {"__key__": ["x", "y", "z"], "n": [1, 2, 3]})
    ds = sw.parquet(path)
    assert ds.fields == ("n",)
    assert ds[1] == {"__key__": "y", "n": 2}
    assert ds.load(np.array([2, 0]))["__key__"] == ["z", "x"]
    check_source(ds.source)


def test_names_of_batches_are_no_columns(tmp_path):
    with pytest.raises(DataError, match="'__index__', which is a name of batches"):
        len(sw.parquet(write(tmp_path / "a.parquet", {"__index__": [1]})))


def test_dictionary_columns_give_their_words(tmp_path):
    paths = [
        write(tmp_path / f"{i}.parquet", {"w": pa.array(words).dictionary_encode()})
        for i, words in enumerate((["cat", "dog", "cat"], ["emu", "cat"]))
    ]
    ds = sw.parquet(paths)
    assert [s["w"] for s in ds] == ["cat", "dog", "cat", "emu", "cat"]
    assert ds.load(np.array([4, 3, 1]))["w"] == ["cat", "emu", "dog"]


def test_batches_over_several_row_groups_are_like_those_of_one(tmp_path):
    columns = {
        "a": pa.array([None if i == 7 else i for i in range(20)], pa.int32()),
        "l": [list(range(i % 3)) for i in range(20)],
        "b": [None if i == 3 else bytes([i]) for i in range(20)],
    }
    many = sw.parquet(write(tmp_path / "a.parquet", columns, row_group_size=3), fill={"a": 99})
    one = sw.parquet(write(tmp_path / "b.parquet", columns), fill={"a": 99})
    for ids in (np.arange(20)[::-1], np.array([7]), np.array([3, 4, 4, 19])):
        first, second = many.load(ids), one.load(ids)
        assert first["a"].dtype == np.int32
        assert first["a"].tolist() == second["a"].tolist() == [99 if i == 7 else i for i in ids]
        assert first["b"] == second["b"]
        assert [v.tolist() for v in first["l"]] == [v.tolist() for v in second["l"]]


def test_the_state_of_one_cluster_is_taken_up_by_another(files):
    ds = sw.parquet(files, columns=["id"])
    options = {"batch_size": 8, "shuffle": True, "seed": 3, "remainder": "uneven"}
    with sw.DataLoader(ds, rank=0, world_size=1, **options) as whole:
        wanted = [i for batch in whole for i in batch["id"].tolist()]
    with sw.DataLoader(ds, rank=0, world_size=1, **options) as first:
        batches = iter(first)
        seen = [i for _ in range(5) for i in next(batches)["id"].tolist()]
        state = first.state_dict()
    ranks = []
    for rank in range(2):
        with sw.DataLoader(ds, rank=rank, world_size=2, **options) as loader:
            loader.load_state_dict(state)
            ranks.append([batch["id"].tolist() for batch in loader])
    assert seen == wanted[:40]
    steps = [sorted(one + other) for one, other in zip(*ranks, strict=True)]
    assert steps == [sorted(wanted[at : at + 16]) for at in range(40, NUM_ROWS, 16)]


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


@pytest.mark.parametrize("kind", [pa.int64(), pa.int8(), pa.uint16(), pa.bool_(), pa.float32()])
@pytest.mark.parametrize("decoder", [int, float])
def test_int_and_float_of_numbers_are_those_of_python_and_cost_no_call_a_row(
    tmp_path, kind, decoder
):
    numbers = pa.array([0, 1, 1, 0], pa.int64()).cast(kind)
    ds = sw.parquet(write(tmp_path / "a.parquet", {"n": numbers})).decode(n=decoder)
    by_row = [ds[i]["n"] for i in range(4)]
    assert [type(n) for n in by_row] == [decoder] * 4
    with sw.DataLoader(ds, batch_size=4, rank=0, world_size=1, output="numpy") as loader:
        (batch,) = loader
    assert batch["n"].tolist() == by_row
    assert batch["n"].dtype == {int: np.int64, float: np.float64}[decoder]
    if not (kind == pa.float32() and decoder is int):
        assert ds.layout()["n"] == ((), batch["n"].dtype)


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
