"""What is wrong with a table is an error that says where, never a shorter epoch."""

import os
import shutil

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

import shardwise as sw
from shardwise.base.errors import DataError, MissingShardError
from tests.support.tables import write_files, write_groups


@pytest.fixture
def path(tmp_path):
    return write_groups(tmp_path / "a.parquet", [10, 10, 10])


def opened(path, **options):
    ds = sw.parquet(path, **options)
    assert len(ds) == 30
    return ds


@pytest.mark.parametrize("data", [b"", b"PAR1", b"not a table at all \x01", bytes(1000)])
def test_a_file_that_is_no_table_is_refused(tmp_path, data):
    path = tmp_path / "a.parquet"
    path.write_bytes(data)
    with pytest.raises(DataError, match="not a Parquet file, or was cut short") as caught:
        len(sw.parquet(path))
    assert caught.value.url == str(path)


@pytest.mark.parametrize("keep", [0.3, 0.9, 0.999])
def test_a_file_that_was_cut_is_refused(path, keep):
    size = os.path.getsize(path)
    os.truncate(path, int(size * keep))
    with pytest.raises(DataError, match="cut short"):
        len(sw.parquet(path))


def test_a_footer_that_is_damaged_is_refused(path):
    with open(path, "r+b") as file:
        file.seek(-8, os.SEEK_END)
        file.write((1 << 30).to_bytes(4, "little"))
    with pytest.raises(DataError, match="longer than the file"):
        len(sw.parquet(path))
    with open(path, "r+b") as file:
        file.seek(-8, os.SEEK_END)
        file.write((40).to_bytes(4, "little"))
    with pytest.raises(DataError, match="footer is damaged"):
        len(sw.parquet(path))


def test_an_encrypted_file_is_named_as_such(path):
    with open(path, "r+b") as file:
        file.seek(-4, os.SEEK_END)
        file.write(b"PARE")
    with pytest.raises(DataError, match="encrypted"):
        len(sw.parquet(path))


def damage_group(path, group):
    """Overwrite the pages of a row group, and keep the file's times: only its rows tell."""
    before = os.stat(path)
    chunk = pq.read_metadata(path).row_group(group).column(1)
    begin = chunk.dictionary_page_offset or chunk.data_page_offset
    with open(path, "r+b") as file:
        file.seek(begin)
        file.write(b"\xff" * chunk.total_compressed_size)
    os.utime(path, ns=(before.st_atime_ns, before.st_mtime_ns))


def test_a_damaged_row_group_is_named_and_the_others_are_had(path):
    ds = opened(path)
    damage_group(path, 1)
    assert ds[5]["id"] == 5
    assert ds[25]["id"] == 25
    with pytest.raises(DataError, match="row group 1 can't be decoded") as caught:
        ds[15]
    assert caught.value.url == path
    # Other columns of it are whole.
    assert ds.select("id")[15]["id"] == 15


def test_a_file_that_went_away_is_missed(path):
    ds = opened(path)
    os.remove(path)
    with pytest.raises(MissingShardError) as caught:
        ds[15]
    assert caught.value.url == path
    with pytest.raises(MissingShardError):
        len(sw.parquet(path))


def test_an_empty_directory_and_a_pattern_without_files_are_errors(tmp_path):
    with pytest.raises(MissingShardError, match=r"no \*\.parquet"):
        sw.parquet(tmp_path)
    with pytest.raises(MissingShardError, match="no file matches"):
        sw.parquet(f"{tmp_path}/*.parquet")


def test_files_may_differ_in_what_makes_no_other_values(tmp_path):
    pq.write_table(pa.table({"a": [1], "b": ["x"]}), tmp_path / "0.parquet")
    words = pa.array(["y"], pa.large_string()).dictionary_encode()
    table = pa.table({"b": words, "a": [2]}).replace_schema_metadata({"made by": "somebody"})
    pq.write_table(table, tmp_path / "1.parquet")
    ds = sw.parquet(tmp_path)
    assert [(s["a"], s["b"]) for s in ds] == [(1, "x"), (2, "y")]
    assert ds.load(np.array([1, 0]))["b"] == ["y", "x"]


def test_a_file_named_twice_is_refused(path):
    with pytest.raises(ValueError, match="named twice"):
        sw.parquet([path, path])


def test_files_beside_the_table_are_no_part_of_it(tmp_path):
    write_files(tmp_path / "t", [5, 5])
    for name in ("_metadata", "_SUCCESS", ".hidden.parquet", "_tmp.parquet", "README.md"):
        (tmp_path / "t" / name).write_bytes(b"no table")
    shutil.copytree(tmp_path / "t", tmp_path / "t" / "_temporary")
    assert len(sw.parquet(tmp_path / "t")) == 10
