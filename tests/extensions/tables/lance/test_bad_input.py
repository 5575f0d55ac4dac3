"""What may be wrong with a table or what is asked of it: an error that says so."""

import pickle
import shutil
from pathlib import Path

import lance
import numpy as np
import pyarrow as pa
import pytest

import shardwise as sw
from shardwise.base.errors import DataError, MissingShardError, StorageError
from tests.support.lance_tables import make_table


@pytest.fixture(scope="module")
def table(tmp_path_factory):
    return make_table(tmp_path_factory.mktemp("tables") / "rows.lance", num_rows=300)


def test_no_table_is_a_missing_shard(tmp_path):
    with pytest.raises(MissingShardError, match=r"no Lance table.*nothing\.lance"):
        len(sw.lance(tmp_path / "nothing.lance"))


def test_a_version_that_is_not_there_names_those_that_are(tmp_path):
    path = make_table(tmp_path / "t.lance", num_rows=5)
    make_table(path, num_rows=5, mode="append")
    with pytest.raises(MissingShardError, match="no version 99 of the table: there are 1, 2"):
        len(sw.lance(path, version=99))
    with pytest.raises(MissingShardError, match="no version lost of the table: there are 1, 2"):
        len(sw.lance(path, version="lost"))


def test_of_many_versions_the_last_ones_are_named(tmp_path):
    path = make_table(tmp_path / "t.lance", num_rows=2)
    for _ in range(24):
        lance.dataset(path).update_config({"a": "b"})
    with pytest.raises(MissingShardError, match=r"there are 5 older ones and 6, 7,.*, 25"):
        len(sw.lance(path, version=77))


def test_a_column_that_is_not_there_names_those_that_are(table):
    with pytest.raises(DataError, match="no column 'ids': the columns are 'id', 'mod7'"):
        sw.lance(table, columns=("ids",))
    with pytest.raises(ValueError, match="no field 'ids'"):
        sw.lance(table).select("ids")
    with pytest.raises(ValueError, match="no column 'ids'"):
        sw.lance(table).source.read(np.arange(3), ("ids",))
    with pytest.raises(TypeError, match="sequence of names"):
        sw.lance(table, columns="id")


@pytest.mark.parametrize("condition", ["id = = 3", "ids > 3", "id + 1", "id > 'a' AND", ""])
def test_a_filter_that_can_not_be_understood_is_shown_with_the_columns(table, condition):
    with pytest.raises(DataError) as caught:
        len(sw.lance(table, filter=condition))
    assert f"filter={condition!r}" in str(caught.value)
    assert "'id', 'mod7', 'text'" in str(caught.value)


def test_what_is_no_place_of_a_table_is_refused(table):
    with pytest.raises(TypeError, match="path, a URL or an open table"):
        sw.lance(3)
    with pytest.raises(ValueError, match="memory_bytes=-1"):
        sw.lance(table, memory_bytes=-1)
    with pytest.raises(IndexError, match=r"must lie in \[0, 300\)"):
        sw.lance(table).source.read(np.array([3, 300]))


def test_a_column_named_like_a_part_of_a_batch_is_refused(tmp_path):
    lance.write_dataset(pa.table({"__index__": [1]}), str(tmp_path / "t.lance"))
    with pytest.raises(DataError, match=r"'__index__'.*rename it"):
        sw.lance(tmp_path / "t.lance")[0]


def damaged(path, file, damage):
    """The table in which one of the data files is damaged: by `damage`, from bytes to bytes."""
    fragment = lance.dataset(path).get_fragments()[file]
    place = Path(path) / "data" / fragment.metadata.files[0].path
    place.write_bytes(damage(place.read_bytes()))
    return path


def cut(data):
    return data[: len(data) // 2]


def zeroed_footer(data):
    return data[:-400] + bytes(400)


@pytest.mark.parametrize("damage", [cut, zeroed_footer])
def test_rows_that_do_not_decode_name_the_fragment_and_the_row(tmp_path, damage):
    path = damaged(make_table(tmp_path / "t.lance", num_rows=300), 1, damage)
    ds = sw.lance(path)
    assert ds[99]["id"] == 99
    with pytest.raises(DataError, match=r"t.lance#fragment=1.*key '1:23'.*index 123"):
        ds[123]
    loader = sw.DataLoader(
        ds, batch_size=30, executor="inline", output="numpy", rank=0, world_size=1, on_error="skip"
    )
    read = [i for batch in loader for i in batch["id"].tolist()]
    assert read == [*range(100), *range(200, 300)]
    assert loader.stats()["skipped"] == 100


def test_text_that_is_no_utf8_is_a_damaged_row(tmp_path):
    path = make_table(tmp_path / "t.lance", num_rows=300)
    damaged(path, 2, lambda data: data.replace("row 207 ü".encode(), b"row 207 \xff\xff"))
    ds = sw.lance(path, columns=("text",))
    assert ds[206]["text"] == "row 206 ü"
    with pytest.raises(DataError, match=r"fragment=2"):
        ds[207]


def test_a_data_file_that_is_gone_is_missing_not_a_version_that_was_cleaned_up(tmp_path):
    path = make_table(tmp_path / "t.lance", num_rows=300)
    ds = sw.lance(path, columns=("id",))
    fragment = lance.dataset(path).get_fragments()[2]
    (Path(path) / "data" / fragment.metadata.files[0].path).unlink()
    assert ds[150]["id"] == 150
    with pytest.raises(MissingShardError, match="fragment=2"):
        ds[250]


def test_a_table_that_was_deleted_under_the_loader_is_an_error_of_storage(tmp_path):
    path = make_table(tmp_path / "t.lance", num_rows=300)
    ds = sw.lance(path, columns=("id",))
    copy = pickle.dumps(ds)
    shutil.rmtree(path)
    # Not skipped, were damaged rows to be: there is nothing wrong with the rows.
    with pytest.raises(StorageError, match="not there any more"):
        pickle.loads(copy)[3]
    with pytest.raises(StorageError, match="version 1 of the table is gone"):
        ds[250]


def test_lists_with_nulls_among_numbers_name_the_row(tmp_path):
    vectors = pa.array([[1.0, 2.0], [None, 1.0]], pa.list_(pa.float32(), 2))
    lance.write_dataset(pa.table({"v": vectors}), str(tmp_path / "t.lance"))
    ds = sw.lance(tmp_path / "t.lance")
    assert ds[0]["v"].tolist() == [1.0, 2.0]
    with pytest.raises(DataError, match=r"null among them.*fragment=0.*key '0:1'.*'v'.*index 1"):
        ds[1]
