"""What to say about how a pipeline's shards are divided, where the program may mean otherwise.

Keeps I6 where only the program knows: whether each task was given all shards or its own.
"""

from __future__ import annotations

from typing import Any

from shardwise.compat.webdataset.pytorch import IterableDataset
from shardwise.compat.webdataset.readers import Reader
from shardwise.compat.webdataset.shardlists import (
    ResampledShards,
    SimpleShardList,
    split_by_node,
    split_by_worker,
)
from shardwise.compat.webdataset.utils import PipelineStage
from shardwise.ranks import Ranks, unused_world_size


def division_warning(
    stages: list[Any], reader: Reader, ranks: Ranks, *, is_asked: bool
) -> str | None:
    """What may be wrong about how the shards are divided, and how to say what is meant."""
    source = stages[0]
    num = len(getattr(source, "urls", ()))
    splits = split_by_node in stages
    if ranks.world_size > 1 and splits and not is_asked:
        mine = len(range(ranks.rank, num, ranks.world_size))
        return (
            f"rank {ranks.rank} of {ranks.world_size} ({ranks.source}) reads {mine} of the {num} "
            "shards that it was given. If that list is this rank's own already, pass "
            "nodesplitter=None; if all ranks have the same list, nodesplitter=wds.split_by_node "
            "says so, and this is not said again"
        )
    draws_alike = isinstance(source, ResampledShards) and not (source.entropy or is_asked)
    unused = unused_world_size() if ranks.world_size == 1 and (splits or draws_alike) else None
    if unused is not None:
        what = (
            "draws what the others draw" if draws_alike else f"reads all {num} shards of its list"
        )
        return (
            f"{unused}, but neither is torch.distributed initialised nor are RANK and WORLD_SIZE "
            f"both set, so that nothing is divided among tasks: this one {what}. If the list is "
            "this task's own, nodesplitter=None says so; if all tasks have the same list, call "
            "torch.distributed.init_process_group first, or set RANK and WORLD_SIZE in each task "
            "(with srun: export RANK=$SLURM_PROCID WORLD_SIZE=$SLURM_NTASKS)"
        )
    is_whole = isinstance(source, SimpleShardList) and split_by_worker not in stages
    num_readers = ranks.world_size * reader.num_workers
    if is_whole and not splits and not is_asked and num > 1 and num_readers > 1:
        return (
            f"a SimpleShardList of {num} shards as urls is not divided, as in WebDataset 0.2: each "
            f"of {num_readers} readers (ranks times workers) reads all of it. Pass the list of "
            "shards itself to have it divided"
        )
    return None


def is_steered(stages: list[Any]) -> bool:
    """Whether objects of the program's own choose the shards, or their order.

    They may follow an epoch that the program counts and shares, as open_clip's do.
    """
    splits = [i for i, stage in enumerate(stages) if stage in (split_by_node, split_by_worker)]
    chosen = stages[: splits[-1]] if splits else []
    if stages and isinstance(getattr(stages[0], "urls", None), list):
        chosen = chosen or stages[:1]
    package = __name__.rpartition(".")[0]
    return any(
        isinstance(stage, PipelineStage | IterableDataset)
        and not type(stage).__module__.startswith(package)
        for stage in chosen
    )
