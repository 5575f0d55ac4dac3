"""Steps that are skipped and samples that are excluded: in loops, states, certificates."""

from __future__ import annotations

import json
from contextlib import nullcontext
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import shardwise as sw
from shardwise.base.errors import RankError, StateError
from shardwise.loader import planned_order
from shardwise.testing import assert_batches_equal
from tests.support.coverage import lines_of
from tests.support.ranks import run_ranks

NUM = 203
EXECUTORS = [
    {"executor": "inline"},
    {"num_workers": 0, "num_threads": 2},
    {"num_workers": 1, "num_threads": 1},
]


def noisy(sample: dict[str, Any], rng: np.random.Generator) -> dict[str, Any]:
    return {**sample, "noise": rng.random(2)}


def loader(**options: Any) -> sw.DataLoader:
    defaults = {"batch_size": 6, "output": "numpy", "executor": "inline", "remainder": "uneven"}
    if "num_workers" in options:
        defaults["executor"] = None
    data = sw.wrap(range(NUM)).map(noisy)
    return sw.DataLoader(data, **{**defaults, "shuffle": True, "seed": 4, **options})


def ids_of(batches: Any) -> list[int]:
    return [i for batch in batches for i in batch["__index__"].tolist()]


@pytest.mark.parametrize("options", EXECUTORS, ids=str)
def test_a_loop_goes_on_behind_skipped_steps(options: dict[str, Any]) -> None:
    with loader(**options) as it, loader() as whole:
        expected = list(whole)
        found = []
        for step, batch in enumerate(it):
            found.append(batch)
            if step == 3:
                it.skip(5)
        for got, wanted in zip(found, [*expected[:4], *expected[9:]], strict=True):
            assert_batches_equal(got, wanted)
        assert it.epoch == 1
        verdict = it.certificate()["verdict"]
        assert verdict.endswith("left out on purpose: 30 samples at steps 4 to 8")
        assert it.certificate()["ok"]
        assert it.certificate()["left_out"] == 30
        assert len(list(it)) == 34  # the next epoch is whole


def test_the_state_after_a_skip_is_behind_it_and_says_so() -> None:
    it = loader(world_size=2, rank=0)
    it.skip(2)
    assert it.state_dict()["position"] == 24
    assert it.state_dict()["skipped"] == [[0, 0, 24]]
    for _ in it:
        it.skip(1)
        break
    state = it.state_dict()
    assert (state["position"], state["skipped"]) == (48, [[0, 0, 24], [0, 36, 48]])
    resumed = loader(world_size=3, rank=1)
    resumed.load_state_dict(json.loads(json.dumps(state)))
    for _ in range(5):
        resumed.skip(1)
    assert resumed.state_dict()["skipped"][-1] == [0, 120, 138]
    assert len(resumed.state_dict()["skipped"]) == 4


def test_all_that_is_left_of_an_epoch_can_be_skipped(tmp_path: Path) -> None:
    it = loader(coverage=tmp_path)
    it.skip(34)
    assert (it.epoch, it.state_dict()["position"]) == (1, 0)
    with loader(coverage=tmp_path / "2") as other:
        for _ in other:
            other.skip(33)
        assert other.epoch == 1
    [line] = lines_of(tmp_path)
    assert (line.is_end, line.left_out.count, line.steps_skipped) == (True, NUM, "0 to 33")


@pytest.mark.parametrize("options", EXECUTORS, ids=str)
@pytest.mark.parametrize("count", [2, 35])
def test_a_skip_after_the_last_batch_is_of_the_next_epoch_and_the_loop_ends(
    options: dict[str, Any], count: int
) -> None:
    """Also where the skip is refused, since no epoch has that many steps."""
    with loader(**options) as it:
        for number, _ in enumerate(it, 1):
            if number == 34:
                with nullcontext() if count == 2 else pytest.raises(ValueError, match="34 steps"):
                    it.skip(count)
        assert (it.epoch, it.num_steps_left) == (1, 32 if count == 2 else 34)


@pytest.mark.parametrize("calls", ["rs", "sr", "rsrs", "re", "res"])
@pytest.mark.parametrize("options", EXECUTORS, ids=str)
def test_skips_and_new_ranks_between_two_steps_leave_the_loop_where_it_is(
    options: dict[str, Any], calls: str
) -> None:
    """By r the ranks change, s skips three steps, e skips to the end of the epoch."""
    with loader(**options) as it, loader() as whole:
        batches = iter(it)
        found = [next(batches), next(batches)]
        for call in calls:
            if call == "r":
                it.regroup(rank=0, world_size=1)
            else:
                it.skip(3 if call == "s" else it.num_steps_left)
        epoch, first = it.epoch, 2 + 3 * calls.count("s")
        found += batches
        expected = list(whole)
        expected = expected[:2] + (expected[first:] if epoch == 0 else [])
        for got, wanted in zip(found, expected, strict=True):
            assert_batches_equal(got, wanted)
        assert it.state_dict()["position"] == (18 if calls == "res" else 0)


@pytest.mark.parametrize("count", [0, -1, 32])
def test_more_steps_than_are_left_are_refused_and_nothing_moves(count: int) -> None:
    it = loader()
    batches = iter(it)
    for _ in range(3):
        next(batches)
    with pytest.raises(ValueError, match=rf"skip\({count}\): epoch 0 has 31 steps left"):
        it.skip(count)
    assert it.state_dict()["position"] == 18
    assert len(list(batches)) == 31


def test_an_iterator_ends_where_a_state_is_loaded_after_a_skip() -> None:
    it = loader()
    state = it.state_dict()
    for _ in it:
        it.skip(1)
        it.load_state_dict(state)
        break
    batches = iter(it)
    next(batches)
    it.load_state_dict(state)
    with pytest.raises(RuntimeError, match="another iterator"):
        next(batches)


@pytest.mark.parametrize("options", EXECUTORS, ids=str)
def test_excluded_samples_never_come_and_the_others_once(options: dict[str, Any]) -> None:
    with loader(**options, exclude=np.arange(0, NUM, 3)) as it:
        for epoch in range(2):
            assert len(it) == -(-(NUM - 68) // 6)
            assert sorted(ids_of(it)) == [i for i in range(NUM) if i % 3]
            certificate = it.certificate()
            assert certificate["ok"]
            assert certificate["verdict"] == (
                f"epoch {epoch}: 135 samples between positions 0 and 203 exactly once, "
                "left out on purpose: 68 samples by exclude="
            )


def test_a_list_counts_from_the_loaded_state_on_also_on_other_ranks() -> None:
    first = loader()
    batches = iter(first)
    before = ids_of(next(batches) for _ in range(10))
    state = first.state_dict()
    assert state["version"] == 1
    bad = np.arange(0, NUM, 2)
    after, states = [], []
    for rank in range(3):
        it = loader(world_size=3, rank=rank, exclude=bad)
        it.load_state_dict(state)
        after += ids_of(it)
        states.append(it.state_dict())
    assert states[0] == states[1] == states[2]
    assert states[0]["excluded"]["since"] == [0, 60]
    assert sorted(before + after) == sorted({*before, *range(1, NUM, 2)})


def test_another_list_than_the_states_counts_from_the_loaded_state_on() -> None:
    first = loader(exclude=np.arange(0, NUM, 2))
    before = ids_of(next(iter(first)) for _ in range(1))
    state = first.state_dict()
    it = loader(exclude=np.arange(0, NUM, 3))
    it.load_state_dict(state)
    after = ids_of(it)
    assert it.state_dict()["excluded"]["since"] == [0, state["position"]]
    left = {int(i) for i in it.plan.ids(0, np.arange(state["position"], NUM))}
    assert sorted(after) == sorted(left - set(range(0, NUM, 3)))
    assert not left & set(before)


def test_a_short_list_is_in_the_state_and_a_long_one_by_its_digest() -> None:
    few, many = np.array([7, 3, 5]), np.arange(100)
    short, long = loader(exclude=few).state_dict(), loader(exclude=many).state_dict()
    assert short["excluded"]["ids"] == [3, 5, 7]
    assert (short["version"], "ids" in long["excluded"]) == (2, False)
    it = loader(world_size=2, rank=1)
    it.load_state_dict(short)
    assert it.state_dict()["excluded"] == short["excluded"]
    assert not {3, 5, 7} & set(ids_of(it))
    with pytest.raises(StateError, match=r"leaves out 100 samples.*exclude=\[\]"):
        it.load_state_dict(long)
    same = loader(exclude=many)
    same.load_state_dict(long)
    assert same.state_dict() == long
    none = loader(exclude=np.array([], dtype=np.int64))
    none.load_state_dict(long)
    assert sorted(ids_of(none)) == list(range(NUM))


@pytest.mark.parametrize(
    "damage",
    [{"since": 5}, {"since": ["a", 0]}, {"ids": ["x"]}, {"ids": [10**9]}, {"digest": None}],
)
def test_a_damaged_record_of_excluded_samples_is_refused(damage: dict[str, Any]) -> None:
    state = loader(exclude=np.array([1, 2])).state_dict()
    state["excluded"] |= damage
    with pytest.raises(StateError, match=r"excluded|leaves out"):
        loader().load_state_dict(state)


def test_a_rank_with_another_list_is_refused_and_both_are_named(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    names: dict[str, str] = {}

    def shared(key: str, proposal: str, *, is_new: bool) -> str:
        return names.setdefault(key, proposal)

    monkeypatch.setattr(planned_order, "shared_name", shared)
    monkeypatch.setattr(planned_order.CurrentRanks, "are_of_group", lambda _: True)
    for rank in range(2):
        next(iter(loader(rank=rank, world_size=3, exclude=np.array([1, 2]))))
    for exclude in (None, np.array([1])):
        other = loader(rank=2, world_size=3, exclude=exclude)
        with pytest.raises(RankError, match=r"rank 2 leaves out .*, and another .* 2 samples"):
            next(iter(other))


@pytest.mark.parametrize(("second", "is_refused"), [("4,9", False), ("4,10", True)])
@pytest.mark.extension
def test_ranks_of_a_process_group_leave_out_the_same_samples(second: str, is_refused: bool) -> None:
    program = Path(__file__).parent / "programs" / "leaves_out.py"
    done = run_ranks(program, "4,9", second, nproc=2)
    if is_refused:
        assert "leaves out 2 samples (digest" in done.stdout
        assert "give exclude= the same list on every rank" in done.stdout
    else:
        assert sorted(done.stdout.splitlines()) == ["rank 0: 19 rows", "rank 1: 19 rows"]
