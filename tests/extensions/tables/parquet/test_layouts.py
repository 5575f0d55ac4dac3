"""Directories of tables: partitions, and what Hugging Face datasets write."""

import gzip
import json
import os

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

import shardwise as sw
from shardwise.base.errors import DataError
from shardwise.extensions.tables.parquet.source import ParquetSource
from shardwise.extensions.tables.parquet.urls import partitions_of
from shardwise.testing import check_source

datasets = pytest.importorskip("datasets")


def test_partitions_are_columns(tmp_path):
    table = pa.table(
        {"n": range(6), "year": [2023, 2023, 2024, 2024, 2024, 2024], "lang": list("ddeeef")}
    )
    pq.write_to_dataset(table, tmp_path, partition_cols=["year", "lang"])
    ds = sw.parquet(tmp_path)
    assert ds.fields == ("n", "year", "lang")
    found = sorted((s["n"], s["year"], s["lang"]) for s in ds)
    assert found == [(i, 2023 + (i > 1), "ddeeef"[i]) for i in range(6)]
    batch = ds.load(np.arange(6)[::-1])
    assert batch["year"].dtype == np.int64
    assert sorted(batch["lang"]) == list("ddeeef")
    check_source(ds.source)
    only = sw.parquet(tmp_path, columns=["year"])
    assert only.layout() == {"year": ((), np.dtype(np.int64))}
    assert sorted(s["year"] for s in only) == [2023] * 2 + [2024] * 4
    named = sw.parquet(f"{tmp_path}/year=2024/**/*.parquet")
    assert {s["lang"] for s in named} == {"e", "f"}


def test_values_of_partitions_are_ints_only_if_all_are():
    urls = ["s3://b/t/m=01/x.parquet", "s3://b/t/m=12/x.parquet"]
    assert partitions_of(urls)[0].values == ("01", "12")
    urls = ["t/m=1/x.parquet", "t/m=__HIVE_DEFAULT_PARTITION__/x.parquet"]
    assert partitions_of(urls)[0].values == (1, None)
    assert partitions_of(["t/a%20b=x%2Fy/1.parquet"])[0].values == ("x/y",)
    assert partitions_of(["t/x=1.parquet"]) == []


def test_files_under_different_partitions_are_refused(tmp_path):
    for name in ("m=3", "n=4"):
        (tmp_path / name).mkdir()
        pq.write_table(pa.table({"x": [1]}), tmp_path / name / "x.parquet")
    with pytest.raises(DataError, match=r"columns \['n'\], those of .* have \['m'\]"):
        len(sw.parquet(tmp_path))


def test_a_column_of_the_file_goes_before_one_of_its_directory(tmp_path):
    (tmp_path / "m=3").mkdir()
    pq.write_table(pa.table({"m": [5]}), tmp_path / "m=3" / "x.parquet")
    assert sw.parquet(tmp_path)[0]["m"] == 5


@pytest.fixture(scope="module")
def hf():
    return datasets.Dataset.from_dict(
        {
            "id": list(range(1003)),
            "text": [f"row {i}" for i in range(1003)],
            "vec": [[i, -i] for i in range(1003)],
        },
        features=datasets.Features(
            {
                "id": datasets.Value("int64"),
                "text": datasets.Value("string"),
                "vec": datasets.Sequence(datasets.Value("float32"), length=2),
            }
        ),
    )


def test_a_dataset_saved_to_disk_opens_as_it_was(hf, tmp_path):
    hf.save_to_disk(str(tmp_path / "saved"), num_shards=3)
    ds = sw.parquet(tmp_path / "saved")
    assert len(ds) == 1003
    assert ds.default_shuffle == "full"
    assert ds[1002]["vec"].tolist() == [1002, -1002]
    assert ds.load(np.array([700, 3]))["text"] == ["row 700", "row 3"]
    check_source(ds.source)


def test_the_files_of_a_saved_dataset_are_those_that_it_lists(hf, tmp_path):
    saved = tmp_path / "saved"
    hf.select(range(10)).save_to_disk(str(saved))
    (saved / "cache-0123.arrow").write_bytes(b"of a map()")
    assert len(sw.parquet(saved)) == 10
    state = json.loads((saved / "state.json").read_text())
    for name, message in (
        ("../elsewhere.arrow", "no name of a file beside it"),
        ("\ud800.arrow", "lone surrogate"),
        ("a\0b", "the file name"),
    ):
        state["_data_files"] = [{"filename": name}]
        (saved / "state.json").write_text(json.dumps(state))
        with pytest.raises(DataError, match=message) as caught:
            sw.parquet(saved)
        assert caught.value.url == str(saved / "state.json")
    (saved / "state.json").write_text("[" * 5000)
    with pytest.raises(DataError, match="no JSON"):
        sw.parquet(saved)


def test_a_saved_dict_of_splits_asks_for_one(hf, tmp_path):
    both = datasets.DatasetDict({"train": hf.select(range(5)), "test": hf.select(range(3))})
    both.save_to_disk(str(tmp_path))
    with pytest.raises(DataError, match="splits train, test: name one of them"):
        sw.parquet(tmp_path)
    assert len(sw.parquet(tmp_path / "test")) == 3


def test_the_hubs_parquet_layout_opens_split_by_split(hf, tmp_path):
    data = tmp_path / "data"
    data.mkdir()
    for split, rows in (("train", range(10)), ("test", range(4))):
        for part in range(2):
            hf.select(rows).shard(2, part).to_parquet(
                str(data / f"{split}-{part:05d}-of-00002.parquet")
            )
    with pytest.raises(DataError, match="splits test, train: name the files of one of them"):
        sw.parquet(tmp_path)
    ds = sw.parquet(f"{tmp_path}/data/train-*.parquet")
    assert sorted(s["id"] for s in ds) == list(range(10))


def test_an_arrow_file_in_the_file_layout_opens_too(tmp_path):
    table = pa.table({"id": range(7), "b": [bytes([i]) for i in range(7)]})
    with pa.ipc.new_file(str(tmp_path / "a.arrow"), table.schema) as writer:
        writer.write_table(table, max_chunksize=3)
    source = ParquetSource(tmp_path / "a.arrow")
    assert [shard.num_samples for shard in source.manifest.shards] == [3, 3, 1]
    check_source(
        source, expected=[{"__key__": f"a:{i}", "id": i, "b": bytes([i])} for i in range(7)]
    )


@pytest.mark.parametrize("link", [os.symlink, os.link])
def test_a_file_that_lies_in_a_directory_under_two_names_is_refused(tmp_path, link):
    pq.write_table(pa.table({"id": [1]}), tmp_path / "a.parquet")
    link(tmp_path / "a.parquet", tmp_path / "latest.parquet")
    with pytest.raises(ValueError, match=r"latest\.parquet' is named twice, once as .*a\.parquet"):
        sw.parquet(tmp_path)


def test_a_file_of_another_format_is_called_by_its_name(tmp_path):
    (tmp_path / "a.parquet").write_bytes(gzip.compress(bytes(99)))
    with pytest.raises(DataError, match="no Parquet file, but gzip"):
        len(sw.parquet(tmp_path / "a.parquet"))


def test_what_is_no_arrow_file_is_refused(tmp_path):
    (tmp_path / "a.arrow").write_bytes(b"something else altogether")
    with pytest.raises(DataError, match="not an Arrow file"):
        len(sw.parquet(tmp_path / "a.arrow"))
    (tmp_path / "a.arrow").write_bytes(b"")
    with pytest.raises(DataError, match="not an Arrow file"):
        len(sw.parquet(tmp_path / "a.arrow"))


def test_arrow_and_parquet_files_are_not_one_table(tmp_path):
    table = pa.table({"id": [1]})
    pq.write_table(table, tmp_path / "a.parquet")
    with pa.ipc.new_file(str(tmp_path / "b.arrow"), table.schema) as writer:
        writer.write_table(table)
    with pytest.raises(DataError, match="not one table"):
        len(sw.parquet(tmp_path))
