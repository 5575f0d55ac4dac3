"""Datasets behind one another: a dataset like any other, or an error that says what differs."""

from __future__ import annotations

import pickle

import numpy as np
import pyarrow as pa
import pyarrow.parquet
import pytest

import shardwise as sw
from shardwise.base.errors import DataError
from shardwise.dataset import Dataset
from shardwise.dataset.concatenation import ConcatSource
from shardwise.testing import check_source
from tests.support.memory_source import MemorySource, numbered_samples

SAMPLES = numbered_samples(30)


def memory(start=0, stop=30, sizes=None, name="set"):
    return Dataset(MemorySource(SAMPLES[start:stop], sizes, name=name))


def tars(folder, start, stop):
    with sw.TarWriter(str(folder / f"part-{start}.tar")) as writer:
        for sample in SAMPLES[start:stop]:
            writer.write(sample)
    return sw.tar(str(folder / f"part-{start}.tar"))


def test_the_source_of_a_concatenation_keeps_the_protocol(tmp_path):
    parts = [memory(0, 12, [5, 7]), tars(tmp_path, 12, 20), memory(20, 20), memory(20, 30)]
    fields = ("cls", "txt", "bin")
    check_source(ConcatSource([part.source for part in parts], fields), expected=SAMPLES)


def test_a_concatenation_is_its_parts_behind_one_another(tmp_path):
    joined = sw.concat([memory(0, 12, [5, 7]), tars(tmp_path, 12, 20), memory(20, 30)])
    assert list(joined) == list(memory())
    assert joined[-1] == memory()[29]
    assert joined[[25, 3, 13]] == memory()[[25, 3, 13]]
    assert joined.shard_sizes.tolist() == [5, 7, 8, 10]
    assert joined.url_of(13).endswith("part-12.tar")
    assert joined.describe(29) == "sample 29 of memory://set/000.mem"
    copy = pickle.loads(pickle.dumps(joined))
    assert copy.fingerprint == joined.fingerprint
    assert list(copy) == list(joined)


def test_subsets_are_joined_as_subsets():
    joined = sw.concat([memory(0, 10).subset([7, 2]), memory(10, 30), memory(0, 10).subset([1])])
    assert [s["__key__"] for s in joined] == [f"key-{i:05d}" for i in [7, 2, *range(10, 30), 1]]
    assert sw.concat([joined, joined])[23]["__key__"] == "key-00007"


def test_the_same_decoders_and_transforms_are_kept_and_may_be_added():
    def double(sample):
        return {**sample, "cls": 2 * sample["cls"]}

    parts = [memory(a, a + 10).select("cls").decode(cls=int).map(double) for a in (0, 10)]
    assert [s["cls"] for s in sw.concat(parts)] == list(range(0, 40, 2))
    assert sw.concat([memory(0, 3), memory(3, 6)]).decode(cls=int)[4]["cls"] == 4


def test_arrays_stay_arrays_and_value_fields_values():
    def table(values):
        return sw.wrap([{"n": value, "x": np.full(2, value)} for value in values])

    joined = sw.concat([table([1, 2]), table([3])])
    [batch] = sw.DataLoader(joined, batch_size=3, output="numpy", rank=0, world_size=1)
    assert batch["n"].tolist() == [1, 2, 3]
    assert batch["x"].tolist() == [[1, 1], [2, 2], [3, 3]]


def test_bytes_of_a_source_that_gives_lists_do_not_make_views_of_the_others():
    class Lists(MemorySource):
        def read(self, ids, fields=None):
            columns = super().read(ids, fields)
            columns.fields = {name: column.to_list() for name, column in columns.fields.items()}
            return columns

    joined = sw.concat([Dataset(Lists(SAMPLES[:10])), memory(10, 20)])
    [batch] = sw.DataLoader(joined, batch_size=20, output="numpy", rank=0, world_size=1)
    assert sorted(batch["bin"]) == sorted(sample["bin"] for sample in SAMPLES[:20])
    assert joined[[3, 13]] == memory()[[3, 13]]


def test_the_fingerprint_is_of_the_parts_and_their_order():
    a, b = memory(0, 10, name="a"), memory(10, 20, name="b")
    prints = {sw.concat(parts).fingerprint for parts in ([a], [a, b], [b, a], [a, a])}
    assert len(prints | {a.fingerprint, b.fingerprint}) == 6
    assert sw.concat([a, b]).fingerprint == sw.concat([a, b]).fingerprint


def test_an_error_names_the_sample_of_the_concatenation():
    damaged = MemorySource(SAMPLES[:5])
    damaged.fail_at(3)
    joined = sw.concat([memory(0, 10), Dataset(damaged)])
    with pytest.raises(DataError) as caught:
        joined[13]
    assert caught.value.index == 13


def parquet(folder, name, column):
    pa.parquet.write_table(pa.table({"n": column}), folder / f"{name}.parquet")
    return sw.parquet(folder / f"{name}.parquet")


@pytest.mark.extension
@pytest.mark.parametrize(
    ("parts", "message"),
    [
        (lambda _: [memory(), memory().select("cls")], r"alone has 'bin', 'txt'; select\(\)"),
        (
            lambda _: [memory().decode(cls=int), memory()],
            r"'cls' is decoded by .*call decode\(\) on the concatenation",
        ),
        (lambda _: [memory(), memory().map(dict)], r"call map\(\) on the concatenation"),
        (
            lambda _: [memory().select("cls"), sw.wrap([{"cls": 1}])],
            "'cls' is bytes in one and values in the other",
        ),
        (
            lambda folder: [
                parquet(folder, "a", pa.array([1], pa.int64())),
                parquet(folder, "b", pa.array([1], pa.int32())),
            ],
            r"'n' is int64 \[\] in one and int32 \[\] in the other",
        ),
        (lambda _: [], "one dataset or more"),
    ],
)
def test_datasets_that_do_not_go_together_are_refused_with_what_differs(parts, message, tmp_path):
    with pytest.raises(ValueError, match=message):
        sw.concat(parts(tmp_path))


def test_what_is_no_dataset_is_refused():
    with pytest.raises(TypeError, match=r"dataset 1 .* wrap it"):
        sw.concat([memory(), [1, 2]])
