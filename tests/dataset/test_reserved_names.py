"""Names of batches are refused in every source and in what functions return."""

from __future__ import annotations

import os

import pytest

import shardwise as sw
from tests.support.tars import make_shards

NAMES = ["__index__", "__valid__", "__source__", "__media__"]


@pytest.mark.parametrize("name", NAMES)
def test_a_field_of_a_reserved_name_is_refused(tmp_path, name):
    (tmp_path / "a.csv").write_text(f"path,{name}\na.jpg,1\n")
    (tmp_path / "a.jpg").write_bytes(b"1")
    for dataset in (sw.wrap([{name: 1, "y": 2}]), sw.files(str(tmp_path / "a.csv"))):
        with pytest.raises(sw.DataError, match=f"has a field {name!r}, which is a name of batches"):
            next(iter(sw.DataLoader(dataset, batch_size=1)))
        with pytest.raises(sw.DataError, match="a name of batches"):
            dataset.select(name)[0]
    # The others may still be read.
    assert sw.wrap([{name: 1, "y": 2}]).select("y")[0] == {"__key__": "0", "y": 2}


@pytest.mark.parametrize("name", NAMES)
def test_a_function_that_makes_a_reserved_name_is_refused(name):
    dataset = sw.wrap([1, 2]).map(lambda sample: {**sample, name: 7})
    with pytest.raises(TypeError, match=rf"test_reserved_names.py:\d+\) made the field {name!r}"):
        dataset[0]


def test_a_wrapped_dataset_has_its_own_keys_and_mixtures_their_names():
    assert sw.wrap([{"__key__": "a", "y": 1}])[0]["__key__"] == "a"
    data = sw.wrap([{"y": 1}] * 4)
    mixed = sw.mix({"a": (data, 1), "b": (data, 1)}, until="all").map(lambda sample: {**sample})
    assert set(next(iter(sw.DataLoader(mixed, batch_size=8)))["__source__"]) == {"a", "b"}


@pytest.mark.parametrize("value", ["code.jsonl", b"code.jsonl", os.path, {"a": 1}, bytearray(3)])
def test_what_is_no_dataset_is_not_wrapped(value, tmp_path):
    with pytest.raises(TypeError, match=r"wrap\(\) needs a dataset"):
        sw.wrap(tmp_path if value is os.path else value)


@pytest.mark.parametrize("link", [os.symlink, os.link])
@pytest.mark.parametrize("pattern", ["", "/*.tar"])
def test_a_shard_that_lies_in_a_directory_under_two_names_is_refused(tmp_path, link, pattern):
    (url,) = make_shards(tmp_path, [3])
    link(url, tmp_path / "zlatest.tar")
    with pytest.raises(ValueError, match=r"zlatest.tar' is named twice, once as .*twice an epoch"):
        sw.tar(f"{tmp_path}{pattern}")


def test_a_wrong_argument_names_similar_ones():
    with pytest.raises(TypeError, match=r"image\(\) has no argument resize=224; .*size="):
        sw.image(resize=224)
    with pytest.raises(TypeError, match=r"as_tuple=\('jpg', 'cls'\) of the loader"):
        sw.wrap([1]).map(lambda sample: (1, 2))[0]


@pytest.mark.extension
@pytest.mark.parametrize("name", NAMES)
def test_a_column_of_a_table_of_a_reserved_name_is_refused(tmp_path, name):
    pa, pq = pytest.importorskip("pyarrow"), pytest.importorskip("pyarrow.parquet")
    pq.write_table(pa.table({name: [1, 2], "y": [1, 2]}), tmp_path / "a.parquet")
    dataset = sw.parquet(str(tmp_path / "a.parquet"))
    with pytest.raises(sw.DataError, match=f"has a field {name!r}, which is a name of batches"):
        next(iter(sw.DataLoader(dataset, batch_size=1)))
    with pytest.raises(sw.DataError, match="a name of batches"):
        dataset.select(name)[0]


@pytest.mark.extension
def test_a_wrong_argument_of_clips_names_similar_ones():
    with pytest.raises(TypeError, match=r"clips\(\) has no argument num_frames=16; .* frames="):
        sw.wrap([1]).clips("mp4", num_frames=16)
