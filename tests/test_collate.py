"""A batch from columns: what is stacked, what stays a list, and that pieces leave no trace."""

from __future__ import annotations

import itertools
import weakref

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from shardwise.base import collate as collate_module
from shardwise.base.collate import collate, collate_owned, join
from shardwise.base.columns import BytesColumn
from shardwise.testing.decoders import same_value
from tests.support.properties import examples


def _one(values):
    return collate({"x": values})["x"]


@pytest.mark.parametrize(
    ("values", "dtype"),
    [
        ([1, -2], np.int64),
        ([2**63 - 1, -(2**63)], np.int64),
        ([1.5, float("nan")], np.float64),
        ([1, 2.5], np.float64),
        ([True, False], np.bool_),
        ([np.float32(1), np.float32(2)], np.float32),
        ([np.uint8(1), np.uint8(2)], np.uint8),
        ([np.bool_(True), np.bool_(False)], np.bool_),
        ([np.array(1, np.int16), np.array(2, np.int16)], np.int16),
        ([np.float64(1), np.float64(2)], np.float64),
    ],
)
def test_scalars_of_one_kind_become_an_array(values, dtype):
    batch = _one(values)
    assert batch.dtype == dtype
    assert batch.shape == (2,)
    assert all(
        one == other or (one != one and other != other)
        for one, other in zip(batch.tolist(), [np.asarray(v).item() for v in values], strict=True)
    )


@pytest.mark.parametrize(
    ("values", "dtype"),
    [
        ([[1, 2], [3, 4]], np.int64),
        ([[1, 2], [3, 0.5]], np.float64),
        ([[True], [False]], np.bool_),
        ([[np.int32(1), np.int32(2)], [np.int32(3), np.int32(4)]], np.int32),
        ([[np.float32(0.5)], [np.float32(2)]], np.float32),
    ],
)
def test_lists_of_numbers_of_one_length_become_an_array(values, dtype):
    batch = _one(values)
    assert batch.dtype == dtype
    assert batch.tolist() == values


@pytest.mark.parametrize(
    "values",
    [
        ["a", "b"],
        [b"a", b"b"],
        [None, None],
        [1, None],
        [1, "a"],
        [True, 1],
        [{"a": 1}, {"a": 2}],
        [[1, 2], [3]],
        [[], []],
        [[1, 2], ["a", 3]],
        [[1, 2], [2**63, 3]],
        [[np.int32(1)], [np.int64(1)]],
        [[np.int64(1)], [2]],
        [[[1]], [[2]]],
        [[1], None],
        [2**63, 1],
        [10**400, 1.5],
        [np.float32(1), np.float64(2)],
        [np.str_("a"), np.str_("b")],
        [np.datetime64(0, "s"), np.datetime64(1, "s")],
        [1, np.int64(1)],
        [],
    ],
)
def test_all_else_stays_a_list_of_the_same_values(values):
    batch = _one(values)
    assert isinstance(batch, list)
    assert same_value(batch, values)


def test_arrays_of_one_shape_and_dtype_are_stacked():
    values = [np.full((2, 3), number, np.float32) for number in range(4)]
    batch = _one(values)
    assert batch.shape == (4, 2, 3)
    assert batch.dtype == np.float32
    assert batch.flags.c_contiguous
    assert all(np.array_equal(row, value) for row, value in zip(batch, values, strict=True))


@pytest.mark.parametrize(
    "values",
    [
        [np.zeros(2), np.zeros(3)],
        [np.zeros(2), np.zeros((2, 1))],
        [np.zeros(2), np.zeros(2, np.float32)],
        [np.zeros(2), None],
        [None, np.zeros(2)],
        [np.array(["a"]), np.array(["b"])],
        [np.array([{}], object), np.array([{}], object)],
    ],
)
def test_arrays_that_differ_stay_a_list(values):
    batch = _one(values)
    assert isinstance(batch, list)
    assert all(one is other for one, other in zip(batch, values, strict=True))


@pytest.mark.parametrize("shape", [(0, 3), (2, 3), (4,)])
def test_a_column_that_is_an_array_passes_through(shape):
    column = np.zeros(shape, np.uint8)
    assert _one(column) is column


def test_arrays_of_other_kinds_become_lists_of_python_values():
    assert same_value(_one(np.array(["a", "b"])), ["a", "b"])
    assert same_value(_one(np.array([b"a", b"b"])), [b"a", b"b"])
    assert same_value(_one(np.array([None, "a"], object)), [None, "a"])
    assert same_value(_one(np.array([1, 2], object)), np.array([1, 2]))


def test_undecoded_bytes_are_copied_out_of_the_shared_buffer():
    column = BytesColumn.of([b"a", None, b"bc"])
    column = BytesColumn(column.buffer.copy(), column.starts, column.lengths)
    batch = _one(column)
    joined = join([{"x": column}, {"x": [b"d"]}])["x"]
    column.buffer[:] = 0
    assert same_value(batch, [b"a", None, b"bc"])
    assert same_value(joined, [b"a", None, b"bc", b"d"])


def test_tensors_are_left_to_the_torch_layer():
    values = [torch.zeros(2), torch.ones(2)]
    assert _one(values) == values


def test_columns_keep_their_order_and_names():
    batch = collate({"b": [1], "a": ["x"], "c": [None]})
    assert list(batch) == ["b", "a", "c"]


scalars = st.sampled_from(
    [
        st.integers(-5, 5),
        st.integers(2**63 - 2, 2**63 + 1),
        st.floats(allow_nan=False),
        st.one_of(st.integers(-5, 5), st.floats(allow_nan=False)),
        st.booleans(),
        st.text(max_size=2),
        st.one_of(st.none(), st.integers(0, 3)),
        st.integers(0, 3).map(np.uint8),
        st.integers(1, 2).map(lambda size: np.ones(size, np.float32)),
        st.just(np.ones((2, 2), np.int16)),
    ]
)


@given(st.data())
@settings(deadline=None, max_examples=examples(200))
def test_a_batch_shows_no_trace_of_its_pieces(data):
    values = data.draw(st.lists(data.draw(scalars), min_size=1, max_size=12))
    cuts = sorted(data.draw(st.lists(st.integers(0, len(values)), max_size=4)))
    edges = [0, *cuts, len(values)]
    parts = [values[low:high] for low, high in itertools.pairwise(edges)]
    # Some pieces come as arrays already, as a decoder of whole columns makes them.
    kinds = {type(value) for value in values}
    shapes = {np.shape(value) for value in values}
    whole = _one(values)
    if isinstance(whole, np.ndarray) and len(kinds) == 1 and len(shapes) == 1:
        parts = [
            np.array(part, whole.dtype) if part and data.draw(st.booleans()) else part
            for part in parts
        ]
    batch = collate(join([{"x": part} for part in parts]))["x"]
    assert same_value(batch, whole)


def test_join_makes_a_list_of_arrays_that_differ():
    joined = join([{"x": np.zeros((2, 3))}, {"x": np.ones((1, 4))}, {"x": [None]}])["x"]
    assert [None if value is None else value.shape for value in joined] == [(3,), (3,), (4,), None]


def test_join_gives_python_numbers_where_an_array_meets_a_list():
    joined = join([{"x": np.array([1, 2])}, {"x": [None, 3]}])["x"]
    assert same_value(joined, [1, 2, None, 3])


def test_pieces_without_rows_do_not_count():
    filled = np.ones((2, 3), np.float32)
    assert join([{"x": []}, {"x": filled}, {"x": np.empty((0, 9))}])["x"] is filled
    empty = join([{"x": np.empty((0, 3), np.float32)}, {"x": []}])["x"]
    assert (empty.shape, empty.dtype) == ((0, 3), np.float32)


def test_one_piece_is_not_copied():
    column = np.zeros(3)
    values = ["a"]
    joined = join([{"x": column, "y": values}])
    assert joined["x"] is column
    assert joined["y"] is values


def test_pieces_of_different_columns_are_refused():
    with pytest.raises(ValueError, match=r"piece 1 has the columns \['b'\], piece 0 has \['a'\]"):
        join([{"a": [1]}, {"b": [1]}])
    with pytest.raises(ValueError, match="one piece or more"):
        join([])


def test_large_rows_are_stacked_alike_and_freed_one_by_one(monkeypatch):
    monkeypatch.setattr(collate_module, "_LARGE_ROW_BYTES", 100)
    made = []

    def empty(shape, dtype):
        made.append(np.full(shape, -1, dtype))
        return made[0]

    monkeypatch.setattr(collate_module.np, "empty", empty)
    rows = [np.full((4, 5), number, np.int64) for number in range(3)]
    expected = np.stack(rows)
    kept = list(rows)
    refs = [weakref.ref(row) for row in rows]
    stacked = collate_owned(columns := {"x": rows})["x"]
    np.testing.assert_array_equal(stacked, expected)
    assert columns == {}
    # The caller's own list is as it was.
    assert all(row is mine for row, mine in zip(rows, kept, strict=True))
    # What no one else has is freed before the next one is copied.
    missing = []
    weakref.finalize(kept.pop(0), lambda: missing.append(int((made[0] == -1).sum())))
    made.clear()
    del kept
    collate_owned({"x": [rows.pop(0), *rows]})
    assert missing == [2 * 20]
    assert refs[0]() is None
    # Of another order in memory they stay in it.
    turned = [np.asfortranarray(np.ones((4, 5))) for _ in range(2)]
    assert collate({"x": turned})["x"].strides == np.stack(turned).strides
