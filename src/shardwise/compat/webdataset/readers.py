"""The reader and the pass that it builds: the random numbers of a stage depend on both.

Keeps I10: ranks are found in the process that iterates torch's DataLoader, and travel in the
pickled pipeline to workers that were not forked, which have no process group. Keeps I1: shards are
in one order on all readers, and each takes every n-th.
"""

from __future__ import annotations

import random
from collections.abc import Iterable, Iterator
from contextvars import ContextVar
from dataclasses import dataclass, field
from itertools import islice
from typing import Any

from torch.utils.data import get_worker_info

from shardwise.base.ranks import Ranks, discover, explicit_ranks
from shardwise.compat.environment import variable
from shardwise.plan.permute import mix

# The ranks that a pipeline brought into this worker process: for stages that are plain functions.
INHERITED_RANKS: ContextVar[Ranks | None] = ContextVar("shardwise_compat_ranks", default=None)


@dataclass(frozen=True, slots=True)
class Reader:
    """One of `world_size * num_workers` readers."""

    rank: int = 0
    world_size: int = 1
    worker: int = 0
    num_workers: int = 1


@dataclass
class Position:
    """The position of a reader.

    Attributes:
        number: the pass, counted from 0.
        num_prefix: items that the pass's prefix has given.
        num_yielded: items of the epoch that have come out.
        num_discarded: whole items to leave out first, where `num_prefix` is not known.
        is_done: whether the epoch is over.
        rotation: by how many readers the shares are rotated in the pass.
        loader_state: the state of the loader at the start of the pass, where there is one.
        left_out: how many samples stages have left out, shared by copies.
        seed, num_keyed: while a pass is built: the pipeline's, and stages that have taken a key.
    """

    epoch: int
    reader: Reader
    number: int = 0
    num_prefix: int = 0
    num_yielded: int = 0
    num_discarded: int = 0
    is_done: bool = False
    rotation: int = 0
    loader_state: dict[str, Any] | None = None
    seed: int = 0
    num_keyed: int = 0
    left_out: list[int] = field(default_factory=lambda: [0])

    @property
    def place(self) -> list[int]:
        """The position as a state holds it; `num_discarded` is there only if it is not 0."""
        place = [self.number, self.num_prefix, self.num_yielded]
        return [*place, self.num_discarded] if self.num_discarded else place


# The pass that is being built.
CURRENT_PASS: ContextVar[Position | None] = ContextVar("shardwise_compat_pass", default=None)


def find_ranks(group: Any = None, inherited: Ranks | None = None) -> Ranks:
    """Ranks as WebDataset knows them: of `group`, else found here, else `inherited`."""
    if group is not None:
        return discover(group=group)
    found = explicit_ranks()
    in_worker = get_worker_info() is not None
    inherited = inherited or (INHERITED_RANKS.get() if in_worker else None)
    # A process group is the truth; environment variables of a worker may be of any age.
    if inherited is None or found.source == "torch.distributed":
        return found
    return inherited if in_worker or found.source == "default" else found


def find_reader(group: Any = None, inherited: Ranks | None = None) -> Reader:
    ranks = find_ranks(group, inherited)
    worker, num_workers = variable("WORKER"), variable("NUM_WORKERS")
    if worker is not None and num_workers is not None:
        return Reader(ranks.rank, ranks.world_size, int(worker), int(num_workers))
    info = get_worker_info()
    if info is None:
        return Reader(ranks.rank, ranks.world_size)
    return Reader(ranks.rank, ranks.world_size, info.id, info.num_workers)


def as_seed(seed: Any) -> int:
    """A whole number for any seed that `random.Random` would take."""
    if isinstance(seed, int):
        return int(seed)
    text = seed if isinstance(seed, str) else repr(seed)
    try:
        return int(text)
    except ValueError:
        return int.from_bytes(text.encode(), "little")


def generators(seed: Any = None) -> tuple[random.Random, random.Random]:
    """Generators for a stage that is being built: alike on all readers, and this reader's own.

    Outside of a pipeline they are seeded with `seed`, or by the program's `random`, which programs
    seed alike on all ranks.
    """
    current = CURRENT_PASS.get()
    if current is None and seed is not None:
        rng = random.Random(as_seed(seed))  # noqa: S311
        return rng, rng
    if current is None:
        words, reader = (random.getrandbits(64),), find_reader()
    else:
        own = () if seed is None else (as_seed(seed),)
        current.num_keyed += 1
        words, reader = (current.seed, current.number, current.num_keyed, *own), current.reader
    keys = mix(*words), mix(*words, reader.rank, reader.worker)
    return random.Random(keys[0]), random.Random(keys[1])  # noqa: S311


def split_by_node(src: Iterable[Any], group: Any = None) -> Iterator[Any]:
    """Give each rank every n-th item; ranks alike in a group are shuffled alike, too."""
    reader = _rotate_reader(find_reader(group))
    current = CURRENT_PASS.get()
    if group is not None and current is not None:
        current.reader = reader
    return islice(src, reader.rank, None, reader.world_size)


def split_by_worker(src: Iterable[Any]) -> Iterator[Any]:
    reader = _rotate_reader(find_reader())
    return islice(src, reader.worker, None, reader.num_workers)


def _rotate_reader(reader: Reader) -> Reader:
    """The reader whose share is read: in a steered epoch, the next one's after its own."""
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
    return require_items(
        src,
        "the pipeline's source has no items, and non_empty was asked for: are there fewer shards "
        "than readers?",
    )


def require_items(src: Iterable[Any], message: str) -> Iterator[Any]:
    is_empty = True
    for item in src:
        is_empty = False
        yield item
    if is_empty:
        raise ValueError(message)
