"""The plan as a whole: who gets what, for any cluster, from any position on."""

from __future__ import annotations

import pickle
import tracemalloc
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import numpy as np
import pytest

from shardwise.plan import FullSampler, Plan, SequentialSampler, VirtualEpochs, WindowSampler

REMAINDERS = ("drop", "pad", "uneven")
SHUFFLES = (False, "full", "window")


def make(n: int, shuffle: Any, **options: Any) -> Plan:
    sizes = None
    if shuffle == "window":
        sizes = [n // 3, 0, n - n // 3]
    return Plan(n, shuffle=shuffle, shard_sizes=sizes, **options)


def epoch_of(plan: Plan, epoch: int = 0) -> list[list[int]]:
    """The valid samples of each global batch, sorted."""
    batches = []
    for step in range(plan.num_steps):
        ids: list[int] = []
        for rank in range(plan.world_size):
            valid = plan.valid(epoch, step, rank)
            ids += plan.indices(epoch, step, rank)[valid].tolist()
        batches.append(sorted(ids))
    return batches


@pytest.mark.parametrize("shuffle", SHUFFLES)
@pytest.mark.parametrize(("world_size", "batch_size"), [(1, 5), (3, 2), (8, 7)])
def test_resuming_at_every_position_with_another_cluster_yields_the_rest_once(
    shuffle: Any, world_size: int, batch_size: int
) -> None:
    n, epoch = 83, 2
    line = make(n, shuffle).sampler.indices(epoch, np.arange(n)).tolist()
    plan = make(n, shuffle, world_size=world_size, batch_size=batch_size, remainder="uneven")
    for position in range(n + 1):
        resumed = plan.resumed(position)
        assert resumed.start == position
        batches = epoch_of(resumed, epoch)
        size = world_size * batch_size
        expected = [sorted(line[i : i + size]) for i in range(position, n, size)]
        assert batches == expected


def test_steps_may_be_asked_for_in_any_order_and_by_threads() -> None:
    plan = Plan(20_000, batch_size=7, world_size=3, shuffle="full", remainder="pad")
    asked = [(e, s, r) for e in range(2) for s in range(0, plan.num_steps, 17) for r in range(3)]
    expected = [Plan.indices(pickle.loads(pickle.dumps(plan)), *a).tolist() for a in asked[:40]]
    assert [plan.indices(*a).tolist() for a in reversed(asked[:40])] == expected[::-1]
    alone = [plan.indices(*a).tolist() for a in asked]
    with ThreadPoolExecutor(4) as threads:
        assert list(threads.map(lambda a: plan.indices(*a).tolist(), asked)) == alone


def test_indices_are_the_samplers_at_the_positions() -> None:
    plan = Plan(100_000, batch_size=1000, world_size=3, shuffle="full", remainder="pad")
    for step in (0, 3, 4, plan.num_steps - 1):
        positions, valid = plan.positions(5, range(step, step + 1), 1)
        assert np.array_equal(plan.indices(5, step, 1), plan.sampler.indices(5, positions))
        assert np.array_equal(plan.valid(5, step, 1), valid)


def test_what_the_caller_does_to_indices_is_the_callers() -> None:
    plan = Plan(100, batch_size=10)
    plan.indices(0, 0, 0)[:] = -1
    plan.valid(0, 0, 0)[:] = False
    assert plan.indices(0, 0, 0).tolist() == list(range(10))
    assert plan.valid(0, 0, 0).all()


@pytest.mark.parametrize(
    ("options", "sampler"),
    [
        ({}, SequentialSampler(10)),
        ({"shuffle": True}, FullSampler(10, seed=3)),
        ({"shuffle": "full", "shard_sizes": [5, 5]}, FullSampler(10, seed=3)),
        ({"shuffle": True, "shard_sizes": [5, 5]}, WindowSampler([5, 5], seed=3)),
        ({"shuffle": "window", "shard_sizes": [5, 5]}, WindowSampler([5, 5], seed=3)),
        ({"epoch_size": 3}, VirtualEpochs(SequentialSampler(10), 3)),
    ],
)
def test_the_options_make_a_sampler_and_true_means_window_where_shards_are_known(
    options: dict[str, Any], sampler: Any
) -> None:
    assert Plan(10, seed=3, **options).sampler.spec() == sampler.spec()


def test_an_own_sampler_replaces_the_options() -> None:
    sampler = FullSampler(50, seed=9)
    plan = Plan(50, batch_size=50, sampler=sampler)
    assert np.array_equal(plan.indices(1, 0, 0), sampler.indices(1, np.arange(50)))
    options: dict[str, Any]
    for options in ({"shuffle": "full"}, {"shard_sizes": [50]}, {"epoch_size": 5}, {"seed": 9}):
        with pytest.raises(ValueError, match=f"{next(iter(options))}.*the sampler's alone"):
            Plan(50, sampler=sampler, **options)


class Backwards:
    """A sampler of the user's: the last sample first."""

    num_samples = 50

    def __init__(self, shift: int = 0, dtype: Any = np.int64, spec: Any = "backwards") -> None:
        self.shift, self.dtype, self._spec = shift, dtype, spec

    def indices(self, epoch: int, positions: Any) -> Any:
        return (49 - positions + self.shift).astype(self.dtype)

    def spec(self) -> dict[str, Any]:
        return {"sampler": self._spec}


def test_a_sampler_of_the_users_own_is_followed_also_after_a_resume() -> None:
    plan = Plan(50, batch_size=10, world_size=2, sampler=Backwards())
    assert epoch_of(plan) == [list(range(30, 50)), list(range(10, 30))]
    assert epoch_of(plan.resumed(20)) == [list(range(10, 30))]


@pytest.mark.parametrize(
    ("sampler", "num_samples"),
    [(Backwards(shift=1), 50), (Backwards(shift=-50), 50), (Backwards(), 49)],
)
def test_ids_that_the_data_does_not_have_are_an_error(sampler: Any, num_samples: int) -> None:
    plan = Plan(num_samples, batch_size=10, sampler=sampler, remainder="uneven")
    with pytest.raises(ValueError, match=f"the dataset has {num_samples} samples"):
        epoch_of(plan)


@pytest.mark.parametrize("sampler", [FullSampler(40), SequentialSampler(60), WindowSampler([9])])
def test_a_sampler_that_was_made_for_another_number_of_samples_is_refused(sampler: Any) -> None:
    with pytest.raises(ValueError, match=r"the dataset has 50.*ds\.subset"):
        Plan(50, sampler=sampler)


@pytest.mark.parametrize(
    ("sampler", "message"),
    [
        ([3, 1, 2], r"ds\.subset\(indices\)"),
        (Backwards(spec=object()), "must be JSON"),
        (type("RandomSampler", (), {"num_samples": 3})(), "use shuffle=True and seed="),
    ],
)
def test_what_is_no_sampler_is_refused_with_what_to_use(sampler: Any, message: str) -> None:
    with pytest.raises(TypeError, match=message):
        Plan(50, sampler=sampler)


def test_ids_of_another_dtype_or_number_are_an_error() -> None:
    plan = Plan(50, batch_size=10, sampler=Backwards(dtype=np.float64))
    with pytest.raises(ValueError, match="return an int64 array of as many"):
        plan.indices(0, 0, 0)


def test_steps_epochs_and_ranks_that_are_not_there_are_refused() -> None:
    plan = Plan(10, batch_size=2, world_size=2)
    with pytest.raises(ValueError, match="step=2 is not in an epoch of 2 steps"):
        plan.indices(0, 2, 0)
    with pytest.raises(ValueError, match=r"rank=2 must be in 0\.\.1"):
        plan.indices(0, 0, 2)
    with pytest.raises(ValueError, match="epoch=-1"):
        plan.indices(-1, 0, 0)
    with pytest.raises(TypeError, match="seed must be a whole number, not 'a'"):
        Plan(10, batch_size=2, seed="a")
    with pytest.raises(ValueError, match="start=11"):
        plan.resumed(11)


def test_a_plan_pickles_small_and_without_what_it_keeps() -> None:
    plan = Plan(10**9, shuffle="window", shard_sizes=[10**7] * 100, batch_size=1024)
    expected = plan.indices(0, 0, 0)
    pickled = pickle.dumps(plan)
    assert len(pickled) < 3_000
    assert np.array_equal(pickle.loads(pickled).indices(0, 0, 0), expected)


@pytest.mark.parametrize("shuffle", ["full", "window"])
def test_a_billion_samples_plan_in_100_mb(shuffle: Any) -> None:
    tracemalloc.start()
    plan = Plan(10**9, batch_size=64, world_size=64, shuffle=shuffle, shard_sizes=[10**5] * 10**4)
    assert len(plan.indices(0, 0, 63)) == 64
    assert len(plan.indices(1, plan.num_steps - 1, 0)) == 64
    _, peak = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    assert peak < 100 * 2**20
