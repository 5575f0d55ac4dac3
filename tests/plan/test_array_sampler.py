"""An array of sample ids is an order."""

from __future__ import annotations

import numpy as np
import pytest

import shardwise as sw
from shardwise.plan.user_sampler import ArraySampler
from shardwise.testing import check_sampler


def test_an_array_of_ids_holds_the_contract_of_a_sampler() -> None:
    check_sampler(ArraySampler(np.random.default_rng(0).permutation(500)), process=False)
    check_sampler(ArraySampler(np.array([7, 3, 3, 5])), ids=range(8), repeats=True, process=False)


def test_a_plan_takes_an_array_for_its_order() -> None:
    order = np.array([4, 2, 0, 1, 3], dtype=np.uint8)
    plan = sw.Plan(5, batch_size=2, world_size=1, sampler=order, remainder="uneven")
    assert [plan.indices(7, step, 0).tolist() for step in range(3)] == [[4, 2], [0, 1], [3]]


def test_each_sample_once_has_a_closed_form_and_others_have_their_ids() -> None:
    assert ArraySampler(np.array([2, 0, 1])).epoch_ids(0) == [range(3)]
    for order in ([2, 0, 3], [0, 0, 1]):
        [ids] = ArraySampler(np.array(order)).epoch_ids(0)
        assert list(ids) == order


def test_other_ids_make_another_spec() -> None:
    specs = [ArraySampler(np.array(order)).spec() for order in ([0, 1, 2], [0, 2, 1])]
    assert specs[0]["ids"] != specs[1]["ids"]
    same = ArraySampler(np.array([0, 1, 2], dtype=np.int32), seed=5).spec()
    assert same == specs[0]


@pytest.mark.parametrize(
    ("order", "message"),
    [
        (np.array([0.5, 1.0]), "float64.*whole numbers"),
        (np.array([True, False]), "bool.*whole numbers"),
        (np.array([[0, 1]]), "one row"),
        (np.array([], dtype=np.int64), "one row"),
        (np.array([0, -1]), "from -1 on.*from 0 on"),
    ],
)
def test_what_is_no_row_of_ids_is_refused(order: np.ndarray, message: str) -> None:
    with pytest.raises((TypeError, ValueError), match=message):
        sw.Plan(2, sampler=order)


def test_the_order_of_more_samples_is_refused() -> None:
    with pytest.raises(ValueError, match="ids up to 9, the dataset has 5 samples"):
        sw.Plan(5, sampler=np.arange(10))
