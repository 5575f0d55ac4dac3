"""`loader.explain`: the samples of a step are named without reading one."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import shardwise as sw
from shardwise.dataset import Dataset
from shardwise.testing import assert_batches_equal
from tests.support.batch_servers import BatchServers, module_of, write_dataset
from tests.support.tars import make_shards


def renamed(sample: dict[str, Any]) -> dict[str, Any]:
    return {**sample, "extra": 1}


def tars(folder: Path) -> Dataset:
    return sw.tar(make_shards(folder, [30, 0, 41])).decode(cls=int).map(renamed)


def rows(count: int) -> Dataset:
    return sw.wrap([{"__key__": f"row {i}", "cls": i} for i in range(count)]).map(renamed)


def kinds(folder: Path) -> dict[str, tuple[Dataset, dict[str, Any]]]:
    data = tars(folder / "a")
    plain = sw.tar(str(folder / "a")).select("cls").decode(cls=int)
    other = sw.tar(make_shards(folder / "b", [20])).select("cls").decode(cls=int)
    documents = sw.wrap([{"tokens": np.arange(1 + n % 7)} for n in range(60)])
    inner = sw.mix({"x": (plain, 1), "y": (other, 1)}, until=60, block=8)
    return {
        "tar": (data, {"shuffle": True}),
        "window": (data, {"shuffle": "window"}),
        "subset": (data.subset(np.arange(70, 0, -2)), {"shuffle": "full"}),
        "rows": (rows(50), {"shuffle": True}),
        "concat": (sw.concat([plain, other, plain]), {"shuffle": "full"}),
        "mixture": (inner, {}),
        "nested": (sw.mix({"in": (inner, 1), "out": (other, 2)}, until=60, block=8), {}),
        "packs": (sw.pack(documents, length=16), {"shuffle": True}),
        "buckets": (data, {"shuffle": True, "batch_by": sw.buckets(np.arange(71) % 9)}),
        "weighted": (data, {"sampler": sw.WeightedSampler(np.arange(71))}),
        "padded": (data, {"remainder": "pad"}),
    }


def loader(data: Any, **options: Any) -> sw.DataLoader:
    fixed = {"batch_size": 5, "executor": "inline", "output": "numpy", "world_size": 2, "rank": 0}
    return sw.DataLoader(data, **{**fixed, **options})


NAMES = (
    "tar", "window", "subset", "rows", "concat", "mixture", "nested", "packs", "buckets",
    "weighted", "padded",
)  # fmt: skip


@pytest.mark.parametrize("name", NAMES)
def test_it_names_the_samples_of_every_batch_of_a_run(name: str, tmp_path: Path) -> None:
    data, options = kinds(tmp_path)[name]
    asked = loader(data, **options)
    for rank in range(2):
        run = loader(data, rank=rank, **options)
        for epoch in range(2):
            for number, batch in enumerate(run):
                step = asked.explain(number, rank, epoch)
                assert step.ids.tolist() == batch["__index__"].tolist()
                assert step.keys == list(batch["__key__"])
                assert step.urls == [data.url_of(i) for i in step.ids.tolist()]
                assert step.sources == (
                    list(batch["__source__"]) if "__source__" in batch else None
                )
                assert step.valid.tolist() == batch.get("__valid__", step.valid).tolist()
                assert json.loads(json.dumps(step.to_dict()))["keys"] == step.keys


def test_byte_ranges_are_those_of_the_fields_in_the_shard(tmp_path: Path) -> None:
    data = tars(tmp_path)
    for step in range(7):
        found = loader(data, shuffle=True).explain(step)
        for url, span, key in zip(found.urls, found.byte_ranges, found.keys, strict=True):
            assert span is not None
            with open(url, "rb") as shard:
                shard.seek(span[0])
                assert shard.read(span[1] - span[0]).find(key[-1:].encode()) >= 0
    assert loader(rows(20)).explain(0).byte_ranges == [None] * 5


def test_no_item_is_read_but_for_its_key() -> None:
    class Counted:
        count = 0

        def __len__(self) -> int:
            return 40

        def __getitem__(self, index: int) -> int:
            Counted.count += 1
            return index

    it = loader(Counted(), shuffle=True)
    before = Counted.count
    step = it.explain(2, rank=1, epoch=40)
    assert (len(step.ids), len(step.urls), Counted.count) == (5, 5, before)


def test_a_key_is_found_where_it_comes(tmp_path: Path) -> None:
    for name in ("tar", "subset", "concat", "mixture", "rows"):
        data, options = kinds(tmp_path)[name]
        asked = loader(data, **options)
        key = asked.explain(2, 1).keys[2]
        places = asked.places_of(key, epochs=range(2))
        assert (0, 2, 1, 2) in places
        for epoch, step, rank, row in places:
            assert asked.explain(step, rank, epoch).keys[row] == key
    with pytest.raises(ValueError, match=r"no sample has the key 'nobody'"):
        asked.places_of("nobody")


def test_a_step_is_printed_with_a_row_a_sample(tmp_path: Path) -> None:
    lines = str(loader(tars(tmp_path)).explain(0)).splitlines()
    assert lines[0] == "epoch 0, step 0, rank 0"
    assert len(lines) == 6
    assert "s00000003" in lines[4]


def test_batch_servers_make_what_the_plan_says(tmp_path: Path) -> None:
    folder = write_dataset(tmp_path, size=60)
    data = module_of(folder).dataset()
    with BatchServers(folder, 1) as servers:
        options = {"executor": sw.service(servers.addresses), "shuffle": True}
        with loader(data, **options, exclude=[1, 2, 3]) as it:
            for number, batch in enumerate(it):
                assert it.explain(number).ids.tolist() == batch["__index__"].tolist()
                assert_batches_equal(it.batch_at(number), batch)
                assert not {1, 2, 3} & set(batch["__index__"].tolist())
        with loader(data, **options) as it:
            batches = iter(it)
            next(batches)
            it.skip(2)
            assert it.explain(3).ids.tolist() == next(batches)["__index__"].tolist()
