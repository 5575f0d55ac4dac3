"""`batch_by=` through loaders: states, executors, torch's own loader, and columns by name."""

from __future__ import annotations

import json
import logging
from itertools import islice

import numpy as np
import pytest
import torch.utils.data

import shardwise as sw
from shardwise.loader.notices import warn_once
from tests.support.ranks import run_ranks
from tests.support.torchrun import ROOT

NUM = 700
LENGTHS = np.random.default_rng(0).integers(1, 40, NUM)
DATA = sw.wrap([
    {"n": int(n), "kind": "ab"[i % 2], "x": np.arange(n)} for i, n in enumerate(LENGTHS)
])  # fmt: skip


def make(batch_size=64, *, rank=0, world_size=1, data=DATA, **options):
    given = {"output": "numpy", "shuffle": "full", "seed": 4, "num_workers": 0, **options}
    return sw.DataLoader(data, batch_size, rank=rank, world_size=world_size, **given)


def len_of_x(sample):
    return {"length": len(sample["x"])}


def ids(batches):
    return [batch["__index__"].tolist() for batch in batches]


@pytest.mark.parametrize("by", [
    sw.buckets("n", budget=300, window=200), sw.buckets("n", batch_size=16, window=200),
    sw.buckets("n", batch_size=16, window=200, shape="kind"),
], ids=["budget", "rows", "groups"])  # fmt: skip
def test_a_run_goes_on_with_any_number_of_ranks_in_any_epoch(by):
    """Two ranks, then three, then one; the state is small, and equal on all ranks."""
    seen, state, epoch = [], None, 1
    dropped = 0
    for world_size, num_steps in ((2, 5), (3, 4), (1, 10**6)):
        states = []
        for rank in range(world_size):
            loader = make(rank=rank, world_size=world_size, batch_by=by, remainder="uneven")
            loader.set_epoch(epoch)
            if state is not None:
                loader.load_state_dict(state)
            batches = list(islice(loader, num_steps))
            seen += [index for batch in ids(batches) for index in batch]
            states.append(loader.state_dict())
            dropped = loader.stats()["dropped"]
        assert all(each == states[0] for each in states)
        state = states[0]
        assert len(json.dumps(state)) < 1024
    assert sorted(seen) == list(range(NUM))
    assert dropped == 0
    assert state["epoch"] == epoch + 1


def test_len_is_the_number_of_batches_of_the_epoch():
    loader = make(batch_by=sw.buckets(LENGTHS, budget=300, window=100))
    lengths = []
    for epoch in range(6):
        loader.set_epoch(epoch)
        lengths.append(len(loader))
        assert len(loader) == loader.num_steps_left
        assert len(list(loader)) == lengths[-1]
    assert len(set(lengths)) > 1


def test_small_batches_of_rows_that_are_only_read_are_coalesced_rightly(tmp_path):
    with sw.TarWriter(str(tmp_path / "a.tar")) as writer:
        for i, n in enumerate(LENGTHS):
            writer.write({"__key__": str(i), "cls": int(n)})
    data = sw.tar(str(tmp_path / "a.tar")).decode(cls=int)
    for by in (sw.buckets("cls", budget=200), sw.buckets(LENGTHS, budget=200)):
        with make(data=data, batch_by=by, num_threads=1) as loader:
            for batch in loader:
                assert batch["cls"].tolist() == LENGTHS[batch["__index__"]].tolist()
                assert len(batch["cls"]) * batch["cls"].max() <= 200


@pytest.mark.parametrize("by", [sw.buckets("n", budget=300), sw.buckets("n", batch_size=16)],
                         ids=["budget", "rows"])  # fmt: skip
def test_torchs_loader_gets_the_same_batches(by):
    expected = [batch for rank in range(2) for batch in ids(make(
        rank=rank, world_size=2, batch_by=by
    ))]  # fmt: skip
    options = {"shuffle": "full", "seed": 4, "world_size": 2, "batch_by": by}
    from_sampler, from_workers = [], []
    for rank in range(2):
        sampler = sw.torch.BatchSampler(DATA, rank=rank, **options)
        assert len(sampler) == len(list(sampler))
        from_sampler += list(sampler)
        it = sw.torch.IterableDataset(DATA, rank=rank, output="numpy", **options)
        loader = torch.utils.data.DataLoader(
            it, batch_size=None, num_workers=2, collate_fn=lambda batch: batch["__index__"].tolist()
        )
        from_workers += list(loader)
    assert from_sampler == expected
    assert from_workers == expected


def test_torchs_batch_sampler_is_resumed_under_a_budget():
    by = sw.buckets(LENGTHS, budget=300)
    sampler = sw.torch.BatchSampler(NUM, shuffle="full", batch_by=by, rank=0, world_size=1)
    sampler.set_epoch(3)
    whole = list(sampler)
    again = sw.torch.BatchSampler(NUM, shuffle="full", batch_by=by, rank=0, world_size=1)
    again.load_state_dict(sampler.state_dict(7))
    assert list(again) == whole[7:]


def test_padding_marks_the_repeats_of_a_rank_without_a_batch():
    by = sw.buckets("n", budget=300)
    ranks = [list(make(rank=r, world_size=5, batch_by=by, remainder="pad")) for r in range(5)]
    assert len({len(batches) for batches in ranks}) == 1
    rows = [(batch["__index__"], batch["__valid__"]) for batches in ranks for batch in batches]
    valid = np.concatenate([index[is_valid] for index, is_valid in rows])
    assert sorted(valid.tolist()) == list(range(NUM))


def test_another_global_batch_goes_on_in_the_order_of_the_state(caplog):
    by = sw.buckets("n", window=200)
    first = make(16, world_size=1, batch_by=by)
    seen = [index for batch in ids(islice(first, 5)) for index in batch]
    later = make(24, world_size=1, batch_by=by, remainder="uneven")
    with caplog.at_level(logging.WARNING, "shardwise"):
        later.load_state_dict(first.state_dict())
    assert "global batches of 16 samples, this loader's have 24" in caplog.text
    seen += [index for batch in ids(later) for index in batch]
    assert sorted(seen) == list(range(NUM))
    assert later.state_dict()["order"]["global_batch"] == 16


def test_a_state_of_other_lengths_is_refused():
    state = make(batch_by=sw.buckets(LENGTHS, budget=300)).state_dict()
    other = make(batch_by=sw.buckets(LENGTHS + 1, budget=300))
    with pytest.raises(sw.StateError, match="lengths: the state has"):
        other.load_state_dict(state)
    with pytest.raises(sw.StateError, match="budget: the state has"):
        make(batch_by=sw.buckets(LENGTHS, budget=299)).load_state_dict(state)


def test_a_name_that_is_no_field_or_no_number_is_refused():
    with pytest.raises(ValueError, match="no field 'frames': the fields are 'n', 'kind', 'x'"):
        make(batch_by=sw.buckets("frames"))
    mapped = DATA.map(len_of_x)
    assert len(make(data=mapped, batch_by=sw.buckets("length", budget=300)))
    with pytest.raises(ValueError, match=r"column\('frames'\): the samples have .*'length'"):
        make(data=mapped, batch_by=sw.buckets("frames"))
    with pytest.raises(TypeError, match="lengths must be numbers"):
        make(batch_by=sw.buckets("kind"))
    with pytest.raises(TypeError, match="list has none: give an array"):
        sw.torch.BatchSampler([1, 2], batch_by=sw.buckets("n"))
    with pytest.raises(TypeError, match=r"use sw\.buckets"):
        make(batch_by="n")


def test_groups_smaller_than_a_batch_are_told(caplog):
    kinds = ["rare"] * 3 + ["common"] * (NUM - 3)
    by = sw.buckets(None, batch_size=16, shape=kinds)
    warn_once.cache_clear()  # of other tests in this process
    with caplog.at_level(logging.WARNING, "shardwise"):
        loader = make(batch_by=by, remainder="drop")
        assert not {0, 1, 2} & {index for batch in ids(loader) for index in batch}
    assert "1 groups of shape= are smaller than a global batch" in caplog.text
    assert "'rare' with 3 samples" in caplog.text
    assert loader.stats()["dropped"] == NUM - 16 * len(loader)
    last = list(make(batch_by=by, remainder="uneven"))
    assert [0, 1, 2] in [sorted(batch) for batch in ids(last)]


def test_two_real_ranks_take_equal_steps_under_the_cap(tmp_path):
    run_ranks(ROOT / "tests/extensions/buckets/programs/bucketed.py", tmp_path, nproc=2)
    ranks = [json.loads((tmp_path / f"{rank}.json").read_text()) for rank in range(2)]
    assert len(ranks[0]) == len(ranks[1])
    seen = [index for batches in ranks for batch in batches for index in batch]
    assert sorted(seen) == list(range(300))


def test_batches_of_a_users_own_class_are_taken_also_where_it_is_empty():
    class Own:
        def __init__(self, inner):
            self.inner = inner

        def __len__(self):
            return 0

        def resolved(self, column):
            return Own(self.inner.resolved(column))

        def rows(self, batch_size, *, fixed_size=None):
            return self.inner.rows(batch_size, fixed_size=fixed_size)

        def over(self, sampler, num_samples, *, rows, seed):
            return self.inner.over(sampler, num_samples, rows=rows, seed=seed)

    by = sw.buckets("n", budget=300)
    assert ids(make(batch_by=Own(by))) == ids(make(batch_by=by))
