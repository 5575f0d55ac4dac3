"""Which reader this is: rank, world size, worker, number of workers.

Keeps I10 for pipelines that run in workers of torch's DataLoader: ranks are found in the process
that iterates the loader, and travel in the pickled pipeline to workers that were not forked, which
have no process group. `WORKER` and `NUM_WORKERS` in the environment stand for a worker, as in
WebDataset.
"""

from __future__ import annotations

from contextvars import ContextVar
from dataclasses import dataclass
from typing import Any

from torch.utils.data import get_worker_info

from shardwise.compat.webdataset.environment import variable
from shardwise.ranks import Ranks, discover, explicit_ranks

# The ranks that a pipeline brought into this worker process: for stages that are plain functions.
TOLD: ContextVar[Ranks | None] = ContextVar("shardwise_compat_told", default=None)


@dataclass(frozen=True, slots=True)
class Place:
    """One of `world_size * num_workers` readers."""

    rank: int = 0
    world_size: int = 1
    worker: int = 0
    num_workers: int = 1


def in_worker() -> bool:
    """Whether this process is a worker of torch's DataLoader."""
    return get_worker_info() is not None


def find_ranks(group: Any = None, told: Ranks | None = None) -> Ranks:
    """Rank and world size, as WebDataset knows them: not what srun or mpirun say by themselves."""
    if group is not None:
        return discover(group=group)
    found = explicit_ranks()
    told = told or (TOLD.get() if in_worker() else None)
    # A process group is the truth; environment variables of a worker may be of any age.
    if told is None or found.source == "torch.distributed":
        return found
    return told if in_worker() or found.source == "default" else found


def find_place(group: Any = None, told: Ranks | None = None) -> Place:
    """The reader that this process is."""
    ranks = find_ranks(group, told)
    worker, num_workers = variable("WORKER"), variable("NUM_WORKERS")
    if worker is not None and num_workers is not None:
        return Place(ranks.rank, ranks.world_size, int(worker), int(num_workers))
    info = get_worker_info()
    if info is None:
        return Place(ranks.rank, ranks.world_size)
    return Place(ranks.rank, ranks.world_size, info.id, info.num_workers)
