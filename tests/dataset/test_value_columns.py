"""Columns that a source has as values: arrays go into batches as they are, with no work a row."""

import numpy as np
import pytest
import torch

import shardwise as sw
from shardwise.base.columns import BytesColumn, Columns, values_of
from shardwise.base.errors import DataError
from shardwise.sources import Manifest, Shard, SourceTraits
from shardwise.testing import check_source


class Table:
    """Ten rows of int64 `n`, float32 `v` [2], bytes `b`, int32 `maybe`, missing in row `hole`."""

    default_shuffle = "full"
    fields = ("n", "v", "b", "maybe")

    def __init__(self, *, hole=None, layouts=None):
        self.manifest = Manifest("table", [Shard("memory://table", 10, 80)])
        self.hole = hole
        layouts = layouts or {
            "n": ((), np.dtype(np.int64)),
            "v": ((2,), np.dtype(np.float32)),
            "maybe": ((), np.dtype(np.int32)),
        }
        self.traits = SourceTraits(value_fields=("n", "v", "maybe"), layouts=layouts)

    def read(self, ids, fields=None):
        v = np.stack([ids, -ids], 1).astype(np.float32)
        v.flags.writeable = False  # a view of what the source holds
        maybe = ids.astype(np.int32)
        if self.hole in ids:
            maybe = [None if i == self.hole else value for i, value in zip(ids, maybe, strict=True)]
        columns = {
            "n": ids.copy(),
            "v": v,
            "b": BytesColumn.of([b"%d" % i for i in ids]),
            "maybe": maybe,
        }
        names = self.fields if fields is None else fields
        return Columns(ids, [f"k{i}" for i in ids], {name: columns[name] for name in names})


def test_the_table_keeps_what_a_source_keeps():
    check_source(Table())
    check_source(Table(hole=3))


def test_a_layout_that_the_columns_do_not_have_breaks_the_contract():
    wrong = {"n": ((), np.dtype(np.int32))}
    with pytest.raises(AssertionError, match=r"'n' is .*int64.*, not .*int32"):
        check_source(Table(layouts=wrong))
    with pytest.raises(AssertionError, match="'b' has a layout and is no array"):
        check_source(Table(layouts={"b": ((), np.dtype(np.int64))}))


def test_samples_have_pythons_numbers_and_arrays_of_their_own():
    ds = sw.Dataset(Table())
    for sample in (ds[7], ds[[7]][0], list(ds)[7]):
        assert sample["n"] == 7
        assert type(sample["n"]) is int
        assert type(sample["maybe"]) is np.int32
        assert (sample["b"], sample["v"].tolist()) == (b"7", [7, -7])
        sample["v"][0] = 0


def test_batches_are_arrays_that_may_be_written_to():
    ds = sw.Dataset(Table())
    columns = ds.load(np.array([3, 1]))
    assert columns["n"].tolist() == [3, 1]
    columns["v"][:] = 0
    out = {"n": np.zeros(2, np.int64), "v": np.zeros((2, 2), np.float32)}
    columns = ds.select("n", "v").load(np.array([3, 1]), out=out)
    assert columns["v"] is out["v"]
    assert out["v"].tolist() == [[3, -3], [1, -1]]


@pytest.mark.parametrize(
    "options", [{"num_threads": 2}, pytest.param({"num_workers": 1}, marks=pytest.mark.long)]
)
def test_every_executor_makes_tensors_of_them(options):
    ds = sw.Dataset(Table()).select("n", "v", "maybe").decode(maybe=float)
    assert set(ds.layout()) == {"n", "v", "maybe"}
    with sw.DataLoader(ds, batch_size=4, rank=0, world_size=1, **options) as loader:
        batches = list(loader)
    assert torch.equal(batches[1]["v"], torch.tensor([[i, -i] for i in range(4, 8)]).float())
    assert batches[1]["n"].tolist() == batches[1]["maybe"].tolist() == [4, 5, 6, 7]
    assert batches[1]["maybe"].dtype == torch.float64


def test_a_missing_value_is_no_field_of_a_sample_and_an_error_where_a_batch_has_an_array():
    ds = sw.Dataset(Table(hole=3))
    assert "maybe" not in ds[3]
    for asked in (ds, ds.select("maybe"), ds.decode(maybe=int)):
        with pytest.raises(DataError) as caught:
            asked.load(np.array([4, 3]))
        assert (caught.value.key, caught.value.field, caught.value.index) == ("k3", "maybe", 3)


def test_a_column_of_another_form_than_its_layout_is_an_error_in_a_batch():
    ds = sw.Dataset(Table(layouts={"v": ((3,), np.dtype(np.float32))})).select("v")
    with pytest.raises(DataError, match=r"float32 of shape \(2,\), and its layout says .* \(3,\)"):
        ds.load(np.arange(4), out={"v": np.zeros((4, 3), np.float32)})


def test_decoders_get_values_as_they_are():
    ds = sw.Dataset(Table()).decode(n=lambda n: n + 1, v=np.sum, b=int)
    assert ds.load(np.array([5]))["n"] == [6]
    assert (ds[5]["n"], float(ds[5]["v"]), ds[5]["b"]) == (6, 0.0, 5)


def test_values_of_a_column_are_alike_whatever_its_form():
    assert [type(v) for v in values_of(np.array([1]))] == [int]
    assert [type(v) for v in values_of(np.array([1.5]))] == [float]
    assert [type(v) for v in values_of(np.array([True]))] == [bool]
    assert [type(v) for v in values_of(np.array([1], np.int16))] == [np.int16]
    assert values_of(BytesColumn.of([b"a", None])) == [b"a", None]
