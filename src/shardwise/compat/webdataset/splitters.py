"""How shards are divided among ranks and workers.

Keeps I1 for pipelines: shards are in one order on all readers, and each reader takes every n-th, so
that none is read twice and none is missed.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from itertools import islice
from typing import Any

from shardwise.compat.webdataset.place import Place
from shardwise.compat.webdataset.run import CURRENT
from shardwise.compat.webdataset.utils import pytorch_worker_info


def split_by_node(src: Iterable[Any], group: Any = None) -> Iterator[Any]:
    """Give each rank its share: every n-th item.

    With a group, the ranks of one place in it are alike: what follows shuffles alike on them, too.
    """
    place = _turned(Place(*pytorch_worker_info(group)))
    run = CURRENT.get()
    if group is not None and run is not None:
        run.place = place
    return islice(src, place.rank, None, place.world_size)


def split_by_worker(src: Iterable[Any]) -> Iterator[Any]:
    """Give each worker its share: every n-th item."""
    place = _turned(Place(*pytorch_worker_info()))
    return islice(src, place.worker, None, place.num_workers)


def _turned(place: Place) -> Place:
    """The reader whose share is read.

    A reader that has read all of its share before a steered epoch is over goes on with the share of
    the one behind it, which may have more than it gets to. The samples of its own came already.
    """
    run = CURRENT.get()
    if run is None or not run.turn:
        return place
    reader = place.rank * place.num_workers + place.worker + run.turn
    rank, worker = divmod(reader % (place.world_size * place.num_workers), place.num_workers)
    return Place(rank, place.world_size, worker, place.num_workers)


def single_node_only(src: Iterable[Any], group: Any = None) -> Iterator[Any]:
    """Refuse more than one rank. `WebDataset` divides by ranks without being told."""
    _, world_size, _, _ = pytorch_worker_info(group)
    if world_size > 1:
        raise ValueError(
            f"single_node_only with {world_size} ranks: use split_by_node as the nodesplitter"
        )
    return iter(src)


def non_empty(src: Iterable[Any]) -> Iterator[Any]:
    """Raise `ValueError` at the end if nothing came."""
    is_empty = True
    for item in src:
        is_empty = False
        yield item
    if is_empty:
        raise ValueError(
            "the pipeline's source has no items, and non_empty was asked for: are there fewer "
            "shards than readers?"
        )
