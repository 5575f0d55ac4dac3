"""Ranks times workers, however they were started: each sample once, other orders each epoch."""

from __future__ import annotations

import json
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from pathlib import Path

import pytest

import shardwise.compat.webdataset as wds
from shardwise.compat.webdataset.utils import pytorch_worker_info
from tests.compat.programs.matrix import METHODS
from tests.support.tars import make_shards, sample_key
from tests.support.torchrun import run_program
from tests.support.wds_shards import SIZES

PROGRAM = Path(__file__).parent / "programs" / "matrix.py"
KEYS = sorted(map(sample_key, range(sum(SIZES))))


def key(sample):
    return sample["__key__"]


@pytest.fixture(scope="module")
def two_ranks(tmp_path_factory: pytest.TempPathFactory) -> list[dict[str, list[list[str]]]]:
    folder = tmp_path_factory.mktemp("ranks")
    urls = make_shards(folder / "shards", SIZES)

    def run(rank: int) -> None:
        # Without RANK: only the process group knows the ranks.
        run_program(
            PROGRAM, str(rank), folder, *urls, timeout=280, env={"GLOO_SOCKET_IFNAME": "lo"}
        )

    with ThreadPoolExecutor(2) as pool:
        list(pool.map(run, range(2)))
    return [json.loads((folder / f"{rank}.json").read_text()) for rank in range(2)]


@pytest.mark.parametrize("way", [*METHODS, *(f"{m} by hand" for m in METHODS), "WebLoader"])
def test_no_sample_is_read_twice_and_none_is_missed(two_ranks, way):
    epochs = zip(*(found[way] for found in two_ranks), strict=True)
    for first, second in epochs:
        assert sorted(first + second) == KEYS


@pytest.mark.parametrize("method", METHODS)
def test_each_epoch_has_another_order_and_other_shards_on_a_rank(two_ranks, method):
    for found in two_ranks:
        first, second, third = found[method]
        assert len({tuple(first), tuple(second), tuple(third)}) == 3
        assert len({frozenset(first), frozenset(second), frozenset(third)}) > 1


def test_start_methods_and_loaders_agree(two_ranks):
    for found in two_ranks:
        for other in ("spawn", "forkserver", "fork again"):
            assert found[other] == found["fork"]
        # The dataset of "fork again", three epochs further on.
        assert not any(epoch in found["fork"] for epoch in found["WebLoader"])


def as_reader(patch: pytest.MonkeyPatch, rank: int, world_size: int, worker: int, num: int) -> None:
    for name, value in (
        ("RANK", rank),
        ("WORLD_SIZE", world_size),
        ("WORKER", worker),
        ("NUM_WORKERS", num),
    ):
        patch.setenv(name, str(value))


@pytest.mark.parametrize(("world_size", "num"), [(1, 1), (2, 2), (4, 1), (1, 5), (5, 2)])
def test_readers_that_the_environment_names_divide_the_shards(
    tmp_path, monkeypatch, world_size, num
):
    urls = make_shards(tmp_path, SIZES)
    found = []
    for rank in range(world_size):
        for worker in range(num):
            as_reader(monkeypatch, rank, world_size, worker, num)
            assert pytorch_worker_info() == (rank, world_size, worker, num)
            found += wds.WebDataset(urls, shardshuffle=True).shuffle(20).map(key)
    assert sorted(found) == KEYS


def test_a_group_wins_over_the_environment(monkeypatch):
    class Group:
        def rank(self):
            return 2

        def size(self):
            return 3

    as_reader(monkeypatch, 0, 8, 0, 1)
    assert pytorch_worker_info(Group())[:2] == (2, 3)
    assert list(wds.split_by_node(iter(range(9)), group=Group())) == [2, 5, 8]


def test_ranks_of_one_place_in_a_group_read_the_same(tmp_path, monkeypatch):
    class Pair:
        def rank(self):
            return 1

        def size(self):
            return 2

    urls = make_shards(tmp_path, SIZES)
    split = partial(wds.split_by_node, group=Pair())
    found = []
    for rank in (1, 3):
        as_reader(monkeypatch, rank, 4, 0, 1)
        dataset = wds.WebDataset(urls, shardshuffle=True, nodesplitter=split)
        found.append(list(dataset.shuffle(20).map(key)))
    assert found[0] == found[1]
    assert 30 < len(found[0]) < 75


def test_single_node_only_still_refuses_several_ranks(monkeypatch):
    as_reader(monkeypatch, 0, 2, 0, 1)
    with pytest.raises(ValueError, match="split_by_node"):
        list(wds.single_node_only(iter([1])))


def test_no_nodesplitter_gives_every_rank_all_shards(tmp_path, monkeypatch):
    urls = make_shards(tmp_path, [3, 4])
    as_reader(monkeypatch, 1, 2, 0, 1)
    assert len(list(wds.WebDataset(urls, nodesplitter=None))) == 7


def test_a_reader_without_shards_says_so(tmp_path, monkeypatch):
    urls = make_shards(tmp_path, [3])
    as_reader(monkeypatch, 1, 2, 0, 1)
    with pytest.raises(ValueError, match="fewer shards than readers"):
        list(wds.WebDataset(urls))
    assert list(wds.WebDataset(urls, empty_check=False)) == []
