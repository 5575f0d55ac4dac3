"""`shardwise explain`."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

import shardwise as sw
from tests.support.commands import document, run
from tests.support.tars import make_shards


@pytest.fixture
def shards(tmp_path: Path) -> list[str]:
    return make_shards(tmp_path, [30, 21], fields=("jpg", "cls"))


def loader(shards: list[str], **options: object) -> sw.DataLoader:
    fixed = {"batch_size": 4, "output": "numpy", "executor": "inline", "shuffle": True}
    return sw.DataLoader(sw.tar(shards), **{**fixed, **options})


def test_it_shows_the_step_that_a_loader_gives(shards: list[str]) -> None:
    its = loader(shards, seed=3, world_size=2, rank=1).explain(4, epoch=2)
    options = ("--rank", 1, "--world-size", 2, "--batch-size", 4, "--seed", 3, "--epoch", 2)
    found = document("explain", *shards, "--step", 4, *options)
    assert found["keys"] == its.keys
    assert found["ids"] == its.ids.tolist()
    assert [tuple(span) for span in found["byte_ranges"]] == its.byte_ranges
    printed = run("explain", *shards, "--step", 4, *options).stdout
    assert all(key in printed for key in its.keys)
    assert document("explain", *shards, "--step", 0)["ids"] == list(range(51))


def test_it_says_where_a_key_comes(shards: list[str]) -> None:
    its = loader(shards, seed=3)
    found = document("explain", *shards, "--key", "s00000017", "--epochs", 3, "--seed", 3,
                     "--batch-size", 4)  # fmt: skip
    places = [tuple(place.values()) for place in found["places"]]
    assert places == its.places_of("s00000017", epochs=range(3))
    assert "does not come" in run("explain", *shards, "--key", "s00000050", "--remainder", "drop",
                                  "--batch-size", 50).stdout  # fmt: skip


def test_a_state_has_the_order_and_the_next_step(shards: list[str], tmp_path: Path) -> None:
    its = loader(shards, seed=3, exclude=[1, 2])
    for step, _ in enumerate(its):
        if step == 4:
            break
    state = tmp_path / "state.json"
    state.write_text(json.dumps(its.state_dict()))
    for options, step, rank in (
        (("--batch-size", 4), 5, 0),
        (("--batch-size", 4, "--step", 9), 9, 0),
    ):
        found = document("explain", *shards, "--state", state, *options)
        assert (found["step"], found["ids"]) == (step, its.explain(step, rank).ids.tolist())
    data = tmp_path / "data.py"
    data.write_text(
        "import shardwise as sw\n"
        "def mixed():\n"
        "    return sw.mix({n: (sw.wrap(range(40)), 1) for n in 'ab'}, until=60, block=8)\n"
    )
    mixture = document("explain", f"{data}:mixed", "--step", 1, "--batch-size", 5)
    assert len(mixture["sources"]) == 5


def test_pictures_are_written_into_one_page(shards: list[str], tmp_path: Path) -> None:
    page = tmp_path / "page.html"
    run("explain", *shards, "--step", 1, "--batch-size", 4, "--seed", 0, "--show", page)
    text = page.read_text()
    assert text.count("<img ") == 4
    assert "epoch 0, step 1, rank 0" in text


def test_what_it_can_not_show_is_a_usage_error(shards: list[str], tmp_path: Path) -> None:
    state, no_state = tmp_path / "state.json", tmp_path / "none.json"
    weighted = loader(shards, shuffle=False, sampler=sw.WeightedSampler([1] * 51))
    state.write_text(json.dumps(weighted.state_dict()))
    no_state.write_text("[]")
    for arguments, message in (
        ((), "give --step N, --state FILE or both; or --key KEY"),
        (("--step", 1, "--key", "a"), "give --step N"),
        (("--key", "a", "--show"), "without --show"),
        (("--step", 99, "--batch-size", 4), "epoch 0 has the steps 0 to 12"),
        (("--step", 1, "--rank", 5, "--world-size", 2, "--batch-size", 4), "rank"),
        (("--key", "nobody"), "no sample has the key 'nobody'"),
        (("--step", 1, "--batch-size", 4, "--show"), "name a page"),
        (("--state", state), "ask loader.explain() in the program"),
        (("--state", state, "--seed", 1), "leave --shuffle, --seed"),
        (("--state", no_state), "it is no state of a loader"),
    ):
        result = run("explain", *shards, *arguments, exit_code=2)
        assert message in " ".join(result.output.replace("│", " ").split()), arguments
