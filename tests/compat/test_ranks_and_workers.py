"""Ranks times workers, however they were started: each sample once, other orders each epoch."""

from __future__ import annotations

import json
from dataclasses import dataclass
from functools import partial
from itertools import islice
from operator import itemgetter
from pathlib import Path

import pytest

import shardwise.compat.webdataset as wds
from shardwise.compat.webdataset.utils import pytorch_worker_info
from tests.support.ranks import Run, run_ranks, run_several
from tests.support.tars import make_shards, sample_key
from tests.support.wds_shards import SIZES

PROGRAM = Path(__file__).parent / "programs" / "matrix.py"
TASK = PROGRAM.with_name("tasks.py")
KEYS = sorted(map(sample_key, range(sum(SIZES))))


key = itemgetter("__key__")


# Fresh interpreters import torch.
METHODS = ("fork", pytest.param("fork,spawn,forkserver", marks=pytest.mark.long))


@pytest.fixture(scope="module", params=METHODS)
def two_ranks(
    request: pytest.FixtureRequest, urls: list[str], tmp_path_factory: pytest.TempPathFactory
) -> list[dict[str, list[list[str]]]]:
    folder = tmp_path_factory.mktemp("ranks")
    run_ranks(PROGRAM, request.param, folder, *urls, nproc=2, timeout=280)
    found = [json.loads((folder / f"{rank}.json").read_text()) for rank in range(2)]
    assert set(request.param.split(",")) < set(found[0])
    return found


def test_no_sample_is_read_twice_and_none_is_missed(two_ranks):
    for way in two_ranks[0]:
        for first, second in zip(*(found[way] for found in two_ranks), strict=True):
            assert sorted(first + second) == KEYS, way


def test_each_epoch_has_another_order_and_other_shards_on_a_rank(two_ranks):
    for found in two_ranks:
        first, second, third = found["fork"]
        assert len({tuple(first), tuple(second), tuple(third)}) == 3
        assert len({frozenset(first), frozenset(second), frozenset(third)}) > 1


def test_start_methods_and_loaders_agree(two_ranks):
    for found in two_ranks:
        for other in {"spawn", "forkserver", "fork again"} & set(found):
            assert found[other] == found["fork"], other
        # The dataset of "fork again", three epochs further on.
        assert not any(epoch in found["fork"] for epoch in found["WebLoader"])


@pytest.mark.parametrize(("world_size", "num"), [(1, 1), (2, 2), (4, 1), (1, 5), (5, 2)])
def test_readers_that_the_environment_names_divide_the_shards(urls, as_reader, world_size, num):
    found = []
    for rank in range(world_size):
        for worker in range(num):
            as_reader(rank, world_size, worker, num)
            assert pytorch_worker_info() == (rank, world_size, worker, num)
            found += wds.WebDataset(urls, shardshuffle=True).shuffle(20).map(key)
    assert sorted(found) == KEYS


SRUN = {"SLURM_PROCID": "{}", "SLURM_NTASKS": "2", "SLURM_STEP_ID": "0"}
MPIRUN = {"OMPI_COMM_WORLD_RANK": "{}", "OMPI_COMM_WORLD_SIZE": "2"}
TORCHRUN = {"RANK": "{}", "WORLD_SIZE": "2"}


def read_as_tasks(
    urls_of_tasks: list[list[str]], env: dict[str, str], workers: int, splitter: str = "default"
) -> tuple[list[list[str]], list[str]]:
    """What two tasks of a launcher read, and what they printed beside it."""
    runs = []
    for rank, urls in enumerate(urls_of_tasks):
        mine = {name: value.format(rank) for name, value in env.items()}
        runs.append(Run((TASK, splitter, str(workers), *urls), None, env=mine))
    outputs = [done.stdout for done in run_several(*runs, timeout=280)]
    lines = [
        next(line for line in output.splitlines() if line.startswith("[")) for output in outputs
    ]
    return [json.loads(line) for line in lines], outputs


@pytest.mark.parametrize(
    ("env", "workers"),
    [
        pytest.param(SRUN, 2, id="srun and workers"),
        pytest.param(SRUN, 0, id="srun", marks=pytest.mark.long),
        pytest.param(MPIRUN, 2, id="mpirun and workers", marks=pytest.mark.long),
        pytest.param({"WORLD_SIZE": "2"}, 0, id="WORLD_SIZE alone", marks=pytest.mark.long),
        pytest.param(SRUN | {"WORLD_SIZE": "2"}, 2, id="img2dataset's", marks=pytest.mark.long),
    ],
)
def test_tasks_of_a_launcher_read_all_of_their_own_lists_and_are_told_once(urls, env, workers):
    found, outputs = read_as_tasks([urls[::2], urls[1::2]], env, workers)
    assert sorted(found[0] + found[1]) == KEYS
    for output in outputs:
        assert output.count("nothing is divided among tasks: this one reads all 5 shards") == 1
        assert output.count("nodesplitter=None says so") == 1


def test_a_list_that_torchrun_may_divide_a_second_time_is_told_once(urls):
    found, outputs = read_as_tasks([urls, urls], TORCHRUN, 2)
    assert sorted(found[0] + found[1]) == KEYS
    assert [output.count("reads 5 of the 10 shards that it was given") for output in outputs] == [
        1,
        1,
    ]


def test_a_loader_says_once_in_the_main_process_how_shards_are_divided(tmp_path, as_reader):
    urls = make_shards(tmp_path, [3, 4])
    as_reader(1, 2)
    loader = wds.WebLoader(wds.WebDataset(urls).map(key), batch_size=None, num_workers=1)
    with pytest.warns(UserWarning, match="reads 1 of the 2 shards") as told:
        assert [len(list(loader)) for _ in range(2)] == [4, 4]
    # Lance, where another test has imported it, warns at each fork.
    assert sum("reads 1 of the 2 shards" in str(each.message) for each in told) == 1


@pytest.mark.parametrize(
    ("env", "splitter"),
    [
        pytest.param(SRUN, "None", id="srun-None", marks=pytest.mark.long),
        pytest.param(TORCHRUN, "own", id="torchrun-own"),
        pytest.param(SRUN, "own", id="srun-own", marks=pytest.mark.long),
        pytest.param(TORCHRUN, "None", id="torchrun-None", marks=pytest.mark.long),
    ],
)
def test_a_nodesplitter_of_the_program_is_followed_without_a_word(urls, env, splitter):
    found, outputs = read_as_tasks([urls[::2], urls[1::2]], env, 0, splitter)
    assert sorted(found[0] + found[1]) == KEYS
    assert not any("Warning" in output for output in outputs)


def test_resampled_tasks_that_draw_alike_are_told(tmp_path, monkeypatch):
    urls = make_shards(tmp_path, [3, 4])
    for name, value in SRUN.items():
        monkeypatch.setenv(name, value.format(1))
    with pytest.warns(UserWarning, match="SLURM_NTASKS=2.*draws what the others draw"):
        next(iter(wds.WebDataset(urls, resampled=True)))


def test_a_shard_list_as_urls_is_not_divided_and_that_is_told(tmp_path, as_reader):
    urls = make_shards(tmp_path, [3, 4])
    assert len(list(wds.WebDataset(wds.SimpleShardList(urls)))) == 7
    as_reader(0, 1, 1, 2)
    assert len(list(wds.WebDataset(wds.SimpleShardList(urls[:1])))) == 3
    as_reader(0, 1, 0, 2)
    with pytest.warns(UserWarning, match="SimpleShardList of 2 shards as urls is not divided"):
        assert len(list(wds.WebDataset(wds.SimpleShardList(urls)))) == 7
    # Which of the two shards this reader draws is random: not to draw one in 70 is 1 in 10^21.
    keys = list(islice(wds.WebDataset(wds.ResampledShards(urls)).map(key), 280))
    assert len(set(keys)) == 7


@dataclass
class Group:
    number: int
    length: int

    def rank(self):
        return self.number

    def size(self):
        return self.length


def test_a_group_wins_over_the_environment(as_reader):
    as_reader(0, 8, 0)
    assert pytorch_worker_info(Group(2, 3))[:2] == (2, 3)
    assert list(wds.split_by_node(iter(range(9)), group=Group(2, 3))) == [2, 5, 8]


def test_ranks_of_one_place_in_a_group_read_the_same(urls, as_reader):
    split = partial(wds.split_by_node, group=Group(1, 2))
    found = []
    for rank in (1, 3):
        as_reader(rank, 4, 0)
        dataset = wds.WebDataset(urls, shardshuffle=True, nodesplitter=split)
        found.append(list(dataset.shuffle(20).map(key)))
    assert found[0] == found[1]
    assert 30 < len(found[0]) < 75


def test_single_node_only_still_refuses_several_ranks(as_reader):
    as_reader(0, 2, 0, 1)
    with pytest.raises(ValueError, match="split_by_node"):
        list(wds.single_node_only(iter([1])))


def test_no_nodesplitter_gives_every_rank_all_shards(tmp_path, as_reader):
    urls = make_shards(tmp_path, [3, 4])
    as_reader(1, 2, 0, 1)
    assert len(list(wds.WebDataset(urls, nodesplitter=None))) == 7


def test_a_reader_without_shards_says_so(tmp_path, as_reader):
    urls = make_shards(tmp_path, [3])
    as_reader(1, 2, 0, 1)
    with pytest.raises(ValueError, match="fewer shards than readers"):
        list(wds.WebDataset(urls))
    assert list(wds.WebDataset(urls, empty_check=False)) == []
