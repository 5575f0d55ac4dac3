"""A loader of a mixture: its own order in every loader, its state, its counts, and real kills."""

from __future__ import annotations

import io
import json
from collections import Counter
from itertools import chain
from pathlib import Path

import numpy as np
import pytest
import torch.utils.data
from PIL import Image

import shardwise as sw
from shardwise.base.errors import StateError
from shardwise.base.ranks import Ranks
from shardwise.testing import check_resume
from tests.extensions.mixtures.programs.mixed import mixture
from tests.support.ranks import Run, run_several
from tests.support.tars import make_shards

PROGRAM = Path(__file__).parent / "programs" / "mixed.py"


def numbered(name, count):
    return sw.wrap([{"text": f"{name} {i}"} for i in range(count)])


def with_noise(sample, rng):
    return {**sample, "noise": rng.random()}


def two(**options):
    parts = {"web": (numbered("web", 70), 0.7), "code": (numbered("code", 30), 0.3)}
    return sw.mix(parts, **({"until": 128, "block": 16} | options))


def loader_of(dataset, world_size=1, rank=0, global_batch=16, **options):
    return sw.DataLoader(
        dataset,
        batch_size=global_batch // world_size,
        rank=rank,
        world_size=world_size,
        **({"output": "numpy", "num_threads": 0} | options),
    )


def ids_of(batches):
    return [np.asarray(batch["__index__"]).tolist() for batch in batches]


@pytest.mark.parametrize("lengths", [{"batch_size": 16}, {"budget": 120}])
def test_buckets_of_a_mixture_resume_on_other_ranks_and_count_its_datasets(lengths):
    rng = np.random.default_rng(0)
    parts = {
        name: sw.wrap([{"x": np.zeros(n, np.uint8), "n": n} for n in rng.integers(1, 9, 60)])
        for name in "ab"
    }

    def make(rank, world_size):
        options = dict(lengths)
        if "batch_size" in options:
            options["batch_size"] //= world_size
        return sw.DataLoader(
            sw.mix({"a": (parts["a"], 3), "b": (parts["b"], 1)}, until=64, block=8),
            batch_by=sw.buckets("n", window=32, **options),
            collate=sw.pad(),
            remainder="uneven",
            rank=rank,
            world_size=world_size,
            output="numpy",
        )

    whole = list(chain.from_iterable(ids_of(make(0, 1))))
    loader = make(0, 1)
    taken = iter(loader)
    seen = next(taken)["__index__"].tolist()
    state = loader.state_dict()
    for rank in range(4):
        rest = make(rank, 4)
        rest.load_state_dict(state)
        seen += chain.from_iterable(ids_of(rest))
    assert sorted(seen) == sorted(whole)
    assert [*taken]
    counts = {name: facts["samples"] for name, facts in loader.stats()["sources"].items()}
    assert counts == {"a": 48, "b": 16}


@pytest.mark.parametrize("executor", ["inline", "threads", "processes"])
@pytest.mark.parametrize("is_late", [True, False])
def test_random_crops_of_a_mixture_differ_by_dataset_and_not_by_executor(
    tmp_path, executor, is_late
):
    picture = np.random.default_rng(0).integers(0, 255, (40, 40, 3), dtype=np.uint8)
    file = io.BytesIO()
    Image.fromarray(picture).save(file, "PNG")
    crop = sw.image("rgb", size=16, crop="random")
    parts = {}
    for name in "ab":
        with sw.TarWriter(tmp_path / name / "{shard}.tar") as writer:
            for i in range(8):
                writer.write({"__key__": f"{i}", "png": file.getvalue()})
        parts[name] = sw.tar(tmp_path / name)

    def crops(mixed, **options):
        loader = sw.DataLoader(mixed, batch_size=4, output="numpy", **options)
        return {
            index: image.copy()
            for batch in loader
            for index, image in zip(batch["__index__"].tolist(), batch["png"], strict=True)
        }

    def make(is_late):
        decoded = parts if is_late else {n: part.decode(png=crop) for n, part in parts.items()}
        mixed = sw.mix({name: (part, 1) for name, part in decoded.items()}, until="all", block=2)
        return mixed.decode(png=crop) if is_late else mixed

    expected = crops(make(False), executor="inline")
    assert sorted(expected) == list(range(16))
    assert any((expected[i] != expected[i + 8]).any() for i in range(8))
    num_workers = 2 if executor == "processes" else 0
    found = crops(make(is_late), executor=executor, num_workers=num_workers)
    assert all(np.array_equal(found[i], expected[i]) for i in expected)


@pytest.mark.parametrize("per", ["sample", "batch"])
def test_a_mixture_resumes_at_every_step_on_any_number_of_ranks(per):
    mixed = two(per=per, schedule=[(0, {"web": 1, "code": 1}), ((64, 192), {"code": 1})])
    check_resume(lambda: loader_of(mixed.map(with_noise)))
    whole = loader_of(mixed)
    global_batches = ids_of([*whole, *whole])
    for world_size in (2, 4):
        state = loader_of(mixed)
        taken = iter(state)
        next(taken)
        next(taken)
        saved = json.loads(json.dumps(state.state_dict()))
        ranks = []
        for rank in range(world_size):
            loader = loader_of(mixed, world_size, rank)
            loader.load_state_dict(saved)
            ranks.append(ids_of([*loader, *loader]))
        joined = [list(chain(*step)) for step in zip(*ranks, strict=True)]
        assert joined == global_batches[2:]


def test_the_shares_of_every_batch_that_is_a_whole_block_are_exact():
    for batch in loader_of(two(block=16, until=1_600)):
        assert 3 <= Counter(batch["__source__"])["code"] <= 7
    names = [n for batch in loader_of(two(until=1_600)) for n in batch["__source__"]]
    assert abs(Counter(names)["code"] - 480) <= 2


def test_stats_count_samples_and_epochs_of_each_dataset_over_all_ranks():
    loader = loader_of(two(), world_size=2, rank=1)
    seen = Counter()
    for epoch in range(2):
        for step, _ in enumerate(loader):
            if (epoch, step) == (1, 2):
                break
    for rank in range(2):
        other = loader_of(two(), world_size=2, rank=rank)
        batches = [*other, *list(other)[:3]]
        seen.update(name for batch in batches for name in batch["__source__"])
    sources = loader.stats()["sources"]
    assert {name: facts["samples"] for name, facts in sources.items()} == dict(seen)
    assert sources["code"]["epochs"] == seen["code"] / 30
    json.dumps(sources)
    assert "sources" not in loader_of(numbered("x", 32)).stats()


def test_every_loader_and_sampler_walks_the_same_order():
    mixed = two()
    expected = ids_of(loader_of(mixed))
    iterable = sw.torch.IterableDataset(mixed, batch_size=16, rank=0, world_size=1)
    for num_workers in (0, 2):
        loader = torch.utils.data.DataLoader(iterable, batch_size=None, num_workers=num_workers)
        assert ids_of(loader) == expected
    assert list(sw.torch.BatchSampler(mixed, 16, rank=0, world_size=1)) == expected
    ranks = [sw.torch.DistributedSampler(mixed, 2, rank) for rank in range(2)]
    assert [len(sampler) for sampler in ranks] == [64, 64]
    assert list(chain(*zip(*ranks, strict=True))) == list(chain(*expected))
    batches = torch.utils.data.DataLoader(mixed, batch_sampler=_of_batches(mixed), collate_fn=list)
    assert [[s["text"] for s in batch] for batch in batches] == [
        [mixed[i]["text"] for i in ids] for ids in expected
    ]


def _of_batches(mixed):
    return sw.torch.BatchSampler(mixed, 16, rank=0, world_size=1)


def test_batches_of_one_dataset_are_the_same_in_every_loader_that_knows_the_batch():
    mixed = two(per="batch")
    batches = list(loader_of(mixed))
    assert all(len(set(batch["__source__"])) == 1 for batch in batches)
    assert Counter(batch["__source__"][0] for batch in batches) == {"web": 6, "code": 2}
    iterable = sw.torch.IterableDataset(mixed, batch_size=16, rank=0, world_size=1)
    assert ids_of(iterable) == ids_of(batches)
    assert list(sw.torch.BatchSampler(mixed, 16, rank=0, world_size=1)) == ids_of(batches)
    with pytest.raises(ValueError, match=r"does not know: use sw\.torch\.BatchSampler"):
        sw.torch.DistributedSampler(mixed, 2, 0)
    state = loader_of(mixed)
    next(iter(state))
    other = loader_of(mixed, global_batch=32)
    with pytest.raises(StateError, match="global_batch_size: the state has 16, this loader 32"):
        other.load_state_dict(state.state_dict())


@pytest.mark.parametrize("make", [sw.DataLoader, sw.torch.BatchSampler])
def test_a_state_is_of_the_global_batch_of_the_ranks_that_are_found_later(make, monkeypatch):
    mixed = two(per="batch")
    early = make(mixed, 8)
    two_ranks = sw.torch.BatchSampler(mixed, 8, rank=0, world_size=2)
    next(iter(two_ranks))
    saved = two_ranks.state_dict()
    group = Ranks(1, 2, "torch.distributed")
    monkeypatch.setattr("shardwise.loader.rank_check.ranks_of_group", lambda: group)
    early.load_state_dict(saved)
    assert early.state_dict() == saved
    assert early.state_dict()["order"]["global_batch_size"] == 16


def test_the_order_is_the_mixtures_and_options_of_another_one_are_refused():
    mixed = two(seed=9)
    assert ids_of(loader_of(mixed, shuffle=True)) == ids_of(loader_of(mixed))
    for options, told in (
        ({"shuffle": "full"}, "shuffle='full'"),
        ({"seed": 3}, "seed=3"),
        ({"epoch_size": 10}, "epoch_size=10"),
    ):
        with pytest.raises(ValueError, match=f"{told}: this dataset brings an order of its own"):
            loader_of(mixed, **options)
    own = loader_of(mixed, sampler=sw.SequentialSampler(100), remainder="drop")
    assert ids_of(own)[0] == list(range(16))


def test_transforms_are_keyed_by_the_seed_of_the_mixture():
    noises = [
        next(iter(loader_of(two(seed=seed).map(with_noise))))["noise"].tolist()
        for seed in (1, 1, 2)
    ]
    assert noises[0] == noises[1]
    assert not set(noises[0]) & set(noises[2])


def test_a_change_of_weights_takes_up_a_state_from_before_it_and_none_from_after():
    changed = {"schedule": [(0, {"web": 0.7, "code": 0.3}), (64, {"code": 1})]}
    old, new = loader_of(two()), loader_of(two(**changed))
    passes = iter(old)
    for _ in range(4):
        next(passes)
    new.load_state_dict(old.state_dict())
    assert {name for batch in new for name in batch["__source__"]} == {"code"}
    later = loader_of(two(**changed))
    passes = iter(later)
    for _ in range(5):
        next(passes)
    with pytest.raises(
        StateError, match=r"from 64: the state has \{'code': 1.0\}, this loader none"
    ):
        loader_of(two()).load_state_dict(later.state_dict())


@pytest.mark.parametrize("per", ["sample", pytest.param("batch", marks=pytest.mark.long)])
def test_a_killed_mixture_goes_on_with_new_weights_on_other_ranks(per, tmp_path):
    shards = make_shards(tmp_path / "shards", [20, 31, 9])
    arguments = (tmp_path / "shards", tmp_path)
    common = ("24", per, "14")
    killed, _ = run_several(
        Run((PROGRAM, *arguments, "0", *common, "6", "0"), 2, check=False),
        Run((PROGRAM, *arguments, "1", *common, "-1", "1"), 3),
    )
    assert killed.returncode != 0
    steps = {}
    for run, world_size, first, stop in ((0, 2, 0, 6), (1, 3, 6, 14)):
        for rank in range(world_size):
            lines = (tmp_path / f"run-{run}-rank-{rank}.jsonl").read_text().splitlines()
            assert json.loads(lines[0])["step"] == first
            # Rank 1 wrote step 6, whose collective rank 0 did not come to.
            for line in map(json.loads, lines[: stop - first]):
                ids, names = steps.setdefault(line["step"], ([], []))
                ids += line["ids"]
                names += line["names"]
    uninterrupted = loader_of(mixture(shards, per, changes=1), global_batch=24)
    expected = [*uninterrupted, *uninterrupted][:14]
    assert [ids for ids, _ in steps.values()] == ids_of(expected)
    assert [names for _, names in steps.values()] == [b["__source__"] for b in expected]
    assert set(steps[13][1]) == {"small"}
