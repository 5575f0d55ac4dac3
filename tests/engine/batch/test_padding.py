"""`sw.pad`: one length a batch, in multiples, with masks; in loaders and as a collate."""

from __future__ import annotations

import pickle
from itertools import islice

import numpy as np
import pytest
import torch.utils.data
from hypothesis import given, settings
from hypothesis import strategies as st

import shardwise as sw
from shardwise.base.errors import DataError
from shardwise.dataset import Dataset
from tests.support.memory_source import MemorySource

DATA = sw.wrap([{"x": np.arange(1, 2 + i % 11), "n": i} for i in range(60)])


def make(collate, data=DATA, **options):
    given_options = {"output": "numpy", "rank": 0, "world_size": 1, "batch_size": 12, **options}
    return sw.DataLoader(data, collate=collate, **given_options)


@given(
    st.lists(st.tuples(st.integers(0, 9), st.integers(0, 4)), min_size=1, max_size=6),
    st.integers(1, 8),
    st.sampled_from([(0,), (1,), (0, 1), (), (5,)]),
)
@settings(max_examples=60, deadline=None)
def test_each_value_stands_at_its_place_and_the_rest_is_filled(shapes, multiple, dims) -> None:
    values = [np.random.default_rng(0).integers(1, 99, shape) for shape in shapes]
    batch = sw.pad(multiple=multiple, dims=dims, value=-7)([{"x": value} for value in values])
    x, mask = batch["x"], batch["x.mask"]
    for dim in (0, 1):
        largest = max(shape[dim] for shape in shapes)
        size = -(-largest // multiple) * multiple if dim in dims else largest
        assert x.shape[1 + dim] == size
    assert x.shape == mask.shape
    assert mask.sum() == sum(value.size for value in values)
    for row, value in enumerate(values):
        assert np.array_equal(x[row, : value.shape[0], : value.shape[1]], value)
    assert (x[~mask] == -7).all()


def test_the_datasets_of_torchs_loader_are_padded_alike() -> None:
    batches = list(make(sw.pad(multiple=8), shuffle="full"))
    assert {batch["x"].shape[1] for batch in batches} <= {8, 16}
    it = sw.torch.IterableDataset(
        DATA, batch_size=12, shuffle="full", collate=sw.pad(multiple=8), rank=0, world_size=1
    )
    for batch, expected in zip(it, batches, strict=True):
        assert isinstance(batch["x.mask"], torch.Tensor)
        assert np.array_equal(batch["x"], expected["x"])


def test_torchs_dataloader_takes_it_as_a_collate_function() -> None:
    collate = pickle.loads(pickle.dumps(sw.pad("x", length=16)))
    loader = torch.utils.data.DataLoader(DATA, batch_size=12, collate_fn=collate)  # type: ignore[arg-type]
    for batch in loader:
        assert batch["x"].shape == batch["x.mask"].shape == (12, 16)
        assert batch["n"].shape == (12,)


def test_fields_of_a_fixed_shape_are_padded_only_where_they_are_named() -> None:
    samples = [{"img": bytes(range(9)), "x": bytes(range(1 + i))} for i in range(12)]
    data = Dataset(MemorySource(samples)).decode(img=sw.array("u1", (3, 3)), x=sw.array("u1"))
    [batch] = make(sw.pad(multiple=8), data)
    assert batch["img"].shape == (12, 3, 3)
    assert "img.mask" not in batch
    assert batch["x"].shape == (12, 16)
    [batch] = make(sw.pad(["img"], multiple=8), data)
    assert batch["img"].shape == (12, 8, 3)
    assert isinstance(batch["x"], list)


def test_a_batch_without_samples_has_the_same_columns() -> None:
    by_rank = [
        list(make(sw.pad(multiple=8), rank=r, world_size=7, batch_size=9, remainder="uneven"))
        for r in range(7)
    ]
    assert {frozenset(batch) for batches in by_rank for batch in batches} == {
        frozenset(["__key__", "__index__", "x", "x.mask", "n"])
    }


def test_batches_may_be_tuples_and_without_masks() -> None:
    for x, mask in make(sw.pad(multiple=4), as_tuple=("x", "x.mask")):
        assert x.shape == mask.shape
        assert x.shape[1] % 4 == 0
    assert "x.mask" not in next(iter(make(sw.pad(mask=False))))
    with pytest.raises(ValueError, match=r"as_tuple names 'x\.mask'"):
        make(sw.pad(mask=False), as_tuple=("x", "x.mask"))


@pytest.mark.extension
def test_buckets_and_padding_go_together() -> None:
    by = sw.buckets("n", budget=900, window=64)
    data = sw.wrap([{"n": n, "x": np.zeros(n)} for n in range(1, 90)])
    loader = make(sw.pad(multiple=1), data, batch_size=64, batch_by=by, shuffle="full")
    for batch in islice(loader, 100):
        assert batch["x"].size <= 900


@pytest.mark.parametrize(
    ("samples", "options", "message"),
    [
        ([{"x": np.arange(9)}], {"length": 8}, "9 entries in dimension 0, more than length=8"),
        ([{"x": np.arange(9)}], {"length": 2**40}, r"1 rows padded to .* are more than memory has"),
        ([{"x": np.arange(2)}, {"x": None}], {}, "row 1 of the batch is no value"),
        ([{"x": np.arange(2)}, {"x": np.arange(2.0)}], {}, "float64"),
        ([{"x": np.zeros(2)}, {"x": np.zeros((2, 2))}], {}, r"float64 \[2, 2\]"),
        (
            [{"x": np.zeros(3, "u1")}],
            {"value": -1, "length": 4},
            "value=-1 does not fit into uint8",
        ),
        ([{"x": np.arange(2), "x.mask": 1}], {}, "adds 'x.mask', and there is such a field"),
        ([{"x": np.arange(2)}], {"fields": "y"}, "no such field to pad; a batch has 'x'"),
    ],
)
def test_values_that_cannot_be_padded_are_an_error_with_the_field(samples, options, message):
    with pytest.raises(DataError, match=message) as caught:
        sw.pad(**options)(samples)
    assert caught.value.field in ("x", "x.mask", "y")


@pytest.mark.parametrize(
    ("options", "error", "message"),
    [
        ({"multiple": 0}, ValueError, "multiple=0"),
        ({"multiple": 1.5}, TypeError, "multiple must be a whole number"),
        ({"length": -1}, ValueError, "length=-1"),
        ({"length": 9, "multiple": 8}, ValueError, "length=9 is no multiple"),
        ({"dims": (-1,)}, ValueError, "dims=-1"),
        ({"value": "0"}, TypeError, "value must be a number"),
        ({"fields": [1]}, TypeError, "names of fields"),
    ],
)
def test_options_that_mean_nothing_are_refused(options, error, message) -> None:
    with pytest.raises(error, match=message):
        sw.pad(**options)


def test_samples_of_different_fields_are_refused() -> None:
    with pytest.raises(ValueError, match="sample 1 has the fields"):
        sw.pad()([{"x": np.arange(2)}, {"y": np.arange(2)}])
    with pytest.raises(ValueError, match="leave one of them out"):
        make(sw.pad(), ragged="pad")
