"""One epoch of a dataset over ranks and workers: every sample once, in one order.

Expects a field `id` that is the sample's index.
"""

from __future__ import annotations

from typing import Any

import torch.utils.data

import shardwise as sw

_BATCH_SIZE = 16


def check_worlds(dataset: sw.Dataset, world_sizes: tuple[int, ...] = tuple(range(1, 9))) -> None:
    """Every world size, both shuffles and storage order: the same ids at the same positions."""
    for shuffle in (False, "full", "window"):
        whole = _epoch(dataset, shuffle, rank=0, world_size=1, executor="inline")
        assert sorted(_flat([whole])) == list(range(len(dataset)))
        for world_size in world_sizes:
            ranks = [
                _epoch(dataset, shuffle, rank=rank, world_size=world_size, num_threads=2)
                for rank in range(world_size)
            ]
            assert len({len(batches) for batches in ranks}) == 1, "ranks end at different steps"
            assert sorted(_flat(ranks)) == list(range(len(dataset))), (shuffle, world_size)
            _check_order(ranks, whole, one_lane=shuffle != "window")


def check_processes(dataset: sw.Dataset, num_workers: int) -> None:
    """The loader's own worker processes give what one thread gives."""
    for shuffle in ("full", "window"):
        wanted = _epoch(dataset, shuffle, rank=1, world_size=2, executor="inline")
        found = _epoch(dataset, shuffle, rank=1, world_size=2, num_workers=num_workers)
        assert found == wanted


def check_torch_workers(dataset: sw.Dataset, num_workers: int, start: str | None) -> None:
    """torch's own loader over two ranks, with workers started in a certain way."""
    whole = _epoch(dataset, True, rank=0, world_size=1, executor="inline")
    ranks = []
    for rank in range(2):
        it = sw.torch.IterableDataset(
            dataset,
            batch_size=_BATCH_SIZE,
            shuffle=True,
            remainder="uneven",
            rank=rank,
            world_size=2,
        )
        loader = torch.utils.data.DataLoader(
            it,
            batch_size=None,
            num_workers=num_workers,
            multiprocessing_context=start if num_workers else None,
        )
        ranks.append([_ids(batch) for batch in loader])
    _check_order(ranks, whole, one_lane=False)


def _epoch(dataset: sw.Dataset, shuffle: Any, **options: Any) -> list[list[int]]:
    loader = sw.DataLoader(
        dataset, batch_size=_BATCH_SIZE, shuffle=shuffle, remainder="uneven", **options
    )
    with loader:
        return [_ids(batch) for batch in loader]


def _ids(batch: dict[str, Any]) -> list[int]:
    ids: list[int] = batch["__index__"].tolist()
    values = batch["id"]
    assert (values.tolist() if hasattr(values, "tolist") else list(values)) == ids
    return ids


def _flat(ranks: list[list[list[int]]]) -> list[int]:
    return [i for batches in ranks for batch in batches for i in batch]


def _check_order(ranks: list[list[list[int]]], whole: list[list[int]], *, one_lane: bool) -> None:
    """A global batch has the samples of as many batches of one rank; in their order in one lane."""
    num_ranks = len(ranks)
    for step, batches in enumerate(zip(*ranks, strict=True)):
        gathered = _flat([list(batches)])
        wanted = _flat([whole[step * num_ranks : (step + 1) * num_ranks]])
        if one_lane:
            assert gathered == wanted
        assert sorted(gathered) == sorted(wanted)
