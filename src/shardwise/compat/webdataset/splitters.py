"""How shards are divided among ranks and workers.

Keeps I1 for pipelines: shards are in one order on all readers, and each reader takes every n-th, so
that none is read twice and none is missed.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from itertools import islice
from typing import Any

from shardwise.compat.webdataset.readers import CURRENT_PASS, Reader, find_reader


def split_by_node(src: Iterable[Any], group: Any = None) -> Iterator[Any]:
    """Give each rank its share: every n-th item.

    With a group, the ranks of one number in it are alike: later stages shuffle alike there, too.
    """
    reader = _rotated(find_reader(group))
    current = CURRENT_PASS.get()
    if group is not None and current is not None:
        current.reader = reader
    return islice(src, reader.rank, None, reader.world_size)


def split_by_worker(src: Iterable[Any]) -> Iterator[Any]:
    """Give each worker its share: every n-th item."""
    reader = _rotated(find_reader())
    return islice(src, reader.worker, None, reader.num_workers)


def _rotated(reader: Reader) -> Reader:
    """The reader whose share is read.

    A reader that has read all of its share before a steered epoch is over continues with the next
    reader's share, which may be more than that one gets to. Its own samples came already.
    """
    current = CURRENT_PASS.get()
    if current is None or not current.rotation:
        return reader
    number = reader.rank * reader.num_workers + reader.worker + current.rotation
    rank, worker = divmod(number % (reader.world_size * reader.num_workers), reader.num_workers)
    return Reader(rank, reader.world_size, worker, reader.num_workers)


def single_node_only(src: Iterable[Any], group: Any = None) -> Iterator[Any]:
    """Refuse more than one rank. `WebDataset` divides by ranks by itself."""
    world_size = find_reader(group).world_size
    if world_size > 1:
        raise ValueError(
            f"single_node_only with {world_size} ranks: use split_by_node as the nodesplitter"
        )
    return iter(src)


def non_empty(src: Iterable[Any]) -> Iterator[Any]:
    """Raise `ValueError` at the end if there was no item."""
    return require_items(
        src,
        "the pipeline's source has no items, and non_empty was asked for: are there fewer shards "
        "than readers?",
    )


def require_items(src: Iterable[Any], message: str) -> Iterator[Any]:
    """Raise `ValueError` with a message at the end if there was no item."""
    is_empty = True
    for item in src:
        is_empty = False
        yield item
    if is_empty:
        raise ValueError(message)
