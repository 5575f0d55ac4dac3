"""Row groups with more than 2 GB in a nested column, which pyarrow decodes in parts only."""

from __future__ import annotations

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

import shardwise as sw

ROWS = 20
IMAGE = pa.struct({"bytes": pa.binary(), "path": pa.string()})
COLUMNS = {
    "n": pa.array(range(ROWS)),
    "image": pa.array([{"bytes": bytes([n]) * n, "path": f"{n}"} for n in range(ROWS)], IMAGE),
    "words": pa.array([[f"{n}", "x" * n] for n in range(ROWS)]),
    "map": pa.array([[("k", f"{n}")] for n in range(ROWS)], pa.map_(pa.string(), pa.string())),
    "maybe": pa.array([None if n % 3 else [f"{n}"] for n in range(ROWS)]),
}


@pytest.fixture
def largest(monkeypatch):
    """As if this many rows took more than 2 GB: pyarrow's own error, at a smaller size."""
    message = "Nested data conversions not implemented for chunked array outputs"
    sizes = []
    limit = [3]

    def read_row_group(self, *args, **options):
        raise pa.ArrowNotImplementedError(message)

    def iter_batches(self, batch_size, **options):
        sizes.append(batch_size)
        if batch_size >= limit[0]:
            raise pa.ArrowNotImplementedError(message)
        yield from original(self, batch_size, **options)

    original = pq.ParquetFile.iter_batches
    monkeypatch.setattr(pq.ParquetFile, "read_row_group", read_row_group)
    monkeypatch.setattr(pq.ParquetFile, "iter_batches", iter_batches)
    limit.append(sizes)
    return limit


@pytest.fixture
def path(tmp_path):
    pq.write_table(pa.table(COLUMNS), tmp_path / "a.parquet", row_group_size=ROWS)
    return tmp_path / "a.parquet"


def rows_of(data):
    return [str({k: bytes(v) if k == "image" else v for k, v in row.items()}) for row in data]


def test_such_a_group_is_read_in_parts_and_has_the_same_rows(path, request):
    wanted = rows_of(sw.parquet(path))
    limit, sizes = request.getfixturevalue("largest")
    data = sw.parquet(path)
    assert rows_of(data) == wanted
    assert sizes == [3, 1]
    assert limit == 3
    with sw.DataLoader(data, batch_size=7, shuffle="full", output="numpy", num_workers=0) as loader:
        batches = list(loader)
    ids = np.concatenate([batch["__index__"] for batch in batches])
    values = [bytes(each) for batch in batches for each in batch["image"]]
    assert values == [bytes([n]) * n for n in ids.tolist()]
    assert np.concatenate([batch["n"] for batch in batches]).tolist() == ids.tolist()


def test_a_row_that_is_too_large_says_what_to_write(path, largest):
    largest[0] = 1
    with pytest.raises(sw.DataError, match=r"2 GB in a nested .*smaller row groups") as caught:
        sw.parquet(path)[0]
    assert caught.value.url == str(path)


@pytest.mark.long
@pytest.mark.parametrize("kind", ["words", "image"])
def test_two_gigabytes_of_a_nested_column_are_read(tmp_path, kind):
    """One value, stored once: the file is small, and what pyarrow makes of it is not."""
    value = "x" * (1 << 20)
    many = pa.array([value] * 64).cast(pa.large_string() if kind == "words" else pa.large_binary())
    if kind == "words":
        column = pa.LargeListArray.from_arrays(pa.array(range(65), pa.int64()), many)
    else:
        path = pa.array(["p"] * 64)
        column = pa.StructArray.from_arrays([many, path], ["bytes", "path"])
    narrow = pa.list_(pa.string()) if kind == "words" else IMAGE
    table = pa.concat_tables([pa.table({"s": column.cast(narrow)})] * 34)
    table = table.append_column("n", pa.array(range(len(table))))
    path = tmp_path / "a.parquet"
    pq.write_table(table, path, row_group_size=len(table), store_schema=False)
    del table
    with pytest.raises(pa.ArrowNotImplementedError, match="chunked array"):
        pq.ParquetFile(path).read_row_group(0, columns=["s"])
    data = sw.parquet(path)
    sample = data[2_111]
    found = sample["s"][0].encode() if kind == "words" else bytes(sample["s"])
    assert (len(found), set(found), sample["n"]) == (1 << 20, {ord("x")}, 2_111)
