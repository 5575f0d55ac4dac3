"""Batches of arrays become batches of tensors, on the same memory where torch can hold it."""

from __future__ import annotations

import numpy as np
import pytest
import torch

from shardwise.torch import to_tensors

SHARED = ["?", "u1", "i1", "u2", "i2", "u4", "i4", "u8", "i8", "f2", "f4", "f8", "c8", "c16"]


@pytest.mark.parametrize("dtype", SHARED)
def test_an_array_becomes_a_tensor_on_the_same_memory(dtype):
    array = np.arange(6).reshape(2, 3).astype(dtype)
    tensor = to_tensors({"x": array})["x"]
    assert tensor.shape == (2, 3)
    assert str(tensor.dtype).removeprefix("torch.") == array.dtype.name
    assert tensor.numpy().dtype == array.dtype
    assert tensor.data_ptr() == array.ctypes.data


@pytest.mark.parametrize(
    "array",
    [
        np.array(["a", "b"]),
        np.array([b"a"]),
        np.array([None, 1], dtype=object),
        np.array(["2020-01-01"], dtype="datetime64[D]"),
        np.zeros(2, dtype=[("x", "f4")]),
        np.zeros(2, dtype=np.longdouble),
    ],
    ids=lambda array: array.dtype.kind + str(array.dtype.itemsize),
)
def test_an_array_of_a_dtype_that_torch_lacks_stays_as_it_is(array):
    assert to_tensors({"x": array})["x"] is array


def test_a_read_only_array_is_copied_so_that_nobody_writes_through_the_tensor(recwarn):
    array = np.frombuffer(b"\x01\x02\x03", dtype=np.uint8)
    tensor = to_tensors({"x": array})["x"]
    tensor += 1
    assert tensor.tolist() == [2, 3, 4]
    assert array.tolist() == [1, 2, 3]
    # Others' files that are collected now may warn of their own.
    assert [str(w) for w in recwarn.list if not issubclass(w.category, ResourceWarning)] == []


@pytest.mark.parametrize(
    "array",
    [
        np.arange(6, dtype=np.int32).reshape(2, 3)[:, ::-1],
        np.arange(6, dtype=np.int32).reshape(2, 3)[::-1],
        np.arange(6, dtype=">i4").reshape(2, 3),
        np.arange(12, dtype=np.int32).reshape(2, 6)[:, ::2],
        np.arange(6, dtype=np.int32).reshape(3, 2).T,
        np.zeros((0, 3), dtype=np.int32),
        np.array(7, dtype=np.int32),
    ],
    ids=["columns reversed", "rows reversed", "big-endian", "strided", "turned", "empty", "scalar"],
)
def test_arrays_that_lie_oddly_keep_shape_and_values(array):
    tensor = to_tensors({"x": array})["x"]
    assert tensor.dtype == torch.int32
    assert tensor.shape == array.shape
    assert tensor.tolist() == array.tolist()


def test_tensors_of_one_shape_are_stacked_and_all_other_lists_stay():
    same = [torch.ones(2), torch.zeros(2)]
    ragged = [torch.ones(2), torch.zeros(3)]
    mixed = [torch.ones(2), torch.zeros(2, dtype=torch.int64)]
    batch = {"same": same, "ragged": ragged, "mixed": mixed, "__key__": ["a", "b"], "none": []}
    tensors = to_tensors(batch)
    assert tensors["same"].tolist() == [[1, 1], [0, 0]]
    for name in ("ragged", "mixed", "__key__", "none"):
        assert tensors[name] is batch[name]


LARGE = 5 << 18


@pytest.mark.parametrize("dtype", [torch.uint8, torch.bool, torch.bfloat16, torch.complex64])
def test_large_tensors_are_stacked_in_memory_of_numpy_which_is_freed_in_less_time(
    dtype, monkeypatch
):
    made, empty = [], np.empty

    def note(*args, **options):
        made.append(empty(*args, **options))
        return made[-1]

    monkeypatch.setattr(np, "empty", note)
    rows = [torch.full((LARGE,), number, dtype=dtype) for number in range(4)]
    stacked = to_tensors({"x": rows})["x"]
    assert stacked.data_ptr() in [array.ctypes.data for array in made]
    assert stacked.dtype == dtype
    assert torch.equal(stacked, torch.stack(rows))


@pytest.mark.parametrize(
    "row",
    [
        torch.zeros(LARGE, requires_grad=True),
        torch.zeros(LARGE).to_sparse(),
        torch.zeros(LARGE, device="meta"),
        torch.zeros(LARGE).expand(2, LARGE),
        torch.zeros(LARGE, dtype=torch.complex64).conj(),
        torch.zeros(64, 4, 64, 80).contiguous(memory_format=torch.channels_last),
    ],
    ids=["leaf", "sparse", "meta", "expanded", "conjugate", "channels last"],
)
def test_large_tensors_of_any_kind_are_stacked_as_torch_does(row):
    stacked, expected = to_tensors({"x": [row] * 4})["x"], torch.stack([row] * 4)
    assert (stacked.shape, stacked.dtype, stacked.layout, stacked.device) == (
        *(expected.shape, expected.dtype, expected.layout, expected.device),
    )
    assert stacked.requires_grad == expected.requires_grad
    if not stacked.is_sparse:
        assert stacked.stride() == expected.stride()


def test_pinning_without_an_accelerator_does_nothing():
    if torch.accelerator.is_available():
        pytest.skip("this machine has an accelerator")
    batch = {"x": np.arange(3), "y": ["a"]}
    assert to_tensors(batch, pin_memory=True)["x"].data_ptr() == batch["x"].ctypes.data


def test_pinning_asks_cuda_where_torch_is_older_than_2_6(monkeypatch):
    monkeypatch.delattr(torch, "accelerator")
    tensors = to_tensors({"x": np.arange(3)}, pin_memory=True)
    assert tensors["x"].is_pinned() == torch.cuda.is_available()


@pytest.mark.parametrize(("kind", "pins"), [("cuda", True), ("xpu", True), ("mps", False)])
def test_memory_is_page_locked_for_each_accelerator_but_apples(monkeypatch, kind, pins):
    monkeypatch.setattr(torch.accelerator, "is_available", lambda: True)
    monkeypatch.setattr(torch.accelerator, "current_accelerator", lambda: torch.device(kind))
    monkeypatch.setattr(torch.Tensor, "pin_memory", lambda tensor: "pinned")
    tensors = to_tensors({"x": np.arange(3)}, pin_memory=True)
    assert (isinstance(tensors["x"], str)) == pins


@pytest.mark.skipif(not torch.accelerator.is_available(), reason="needs an accelerator")
def test_pinned_tensors_lie_in_page_locked_memory():
    tensors = to_tensors({"x": np.arange(3), "y": ["a"]}, pin_memory=True)
    assert tensors["x"].is_pinned()
    assert tensors["y"] == ["a"]
