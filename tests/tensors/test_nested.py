"""Ragged fields as torch's nested tensors."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch

import shardwise as sw
from shardwise.base.errors import DataError

DATA = sw.wrap([
    {"x": np.arange(1 + i % 5), "y": np.full((1 + i % 3, 2), i, "f4"), "n": i} for i in range(50)
])  # fmt: skip


def make(data=DATA, **options):
    return sw.DataLoader(data, 8, rank=0, world_size=1, ragged="nested", **options)


@pytest.mark.parametrize("options", [
    {"num_threads": 0}, {"num_workers": 2}, {"num_threads": 0, "device": "cpu"},
], ids=str)  # fmt: skip
def test_a_nested_tensor_has_the_samples_values(options) -> None:
    with make(shuffle="full", remainder="uneven", **options) as loader:
        for batch in loader:
            assert batch["x"].layout is batch["y"].layout is torch.jagged
            for n, x, y in zip(
                batch["n"].tolist(), batch["x"].unbind(), batch["y"].unbind(), strict=True
            ):
                assert x.tolist() == list(range(1 + n % 5))
                assert y.shape == (1 + n % 3, 2)
                assert (y == n).all()


def test_a_device_gets_the_parts_and_makes_the_tensor_there() -> None:
    """The copier of other devices; "meta" stands for one."""
    batch = next(iter(make(device="meta", num_threads=0)))
    assert batch["x"].device.type == batch["y"].device.type == "meta"


def test_a_batch_without_samples_is_nested_too() -> None:
    data = sw.wrap([{"x": np.arange(3)}])
    loader = sw.DataLoader(
        data, 2, rank=1, world_size=2, ragged="nested", remainder="uneven", num_threads=0
    )
    [batch] = loader
    assert batch["x"].is_nested
    assert batch["x"].shape[0] == 0


@pytest.mark.parametrize(
    ("odd", "remedy"),
    [
        (np.zeros((2, 3)), "pad them with ragged='pad'"),
        (np.zeros((3, 2), np.float32), "give all of them one dtype, in decode"),
        (np.zeros(3), "one type and number of dimensions"),
        (None, "what stands for a null, by fill="),
    ],
    ids=str,
)
def test_values_that_differ_in_more_than_the_first_dimension_are_an_error(
    odd: Any, remedy: str
) -> None:
    data = sw.wrap([{"x": odd if i == 1 else np.zeros((2, 2))} for i in range(8)])
    with pytest.raises(DataError, match="first dimension alone; .*" + remedy):
        next(iter(make(data)))


def test_arrays_are_not_nested() -> None:
    with pytest.raises(ValueError, match="ragged='nested' makes torch tensors"):
        make(output="numpy")
