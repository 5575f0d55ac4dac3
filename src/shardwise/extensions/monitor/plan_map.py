"""The map of a plan: which shards one rank reads, and when, in this epoch and the next one."""

from __future__ import annotations

from typing import Any

import numpy as np

from shardwise.base.shown import shown_in
from shardwise.loader.position import Pass
from shardwise.sources.samples import Samples

# Columns of steps and rows of shards, at most: 1.5 kB per epoch and rank. In a column, 4 steps are
# looked up, and some 512 samples of each.
_COLUMNS, _ROWS, _STEPS, _SAMPLES = 96, 64, 4, 512


def plan_map(current: Pass, rank: int, dataset: Samples) -> dict[str, Any]:
    """The facts of a pass, and the map of its epoch and the next one; reads no sample.

    Returns:
        JSON: for each of `epochs`, a hex number per range of steps, whose bit k is set if the
        rank reads shards of the k-th of `num_bins` ranges.
    """
    ends = np.cumsum(dataset.shard_sizes)
    num_bins = min(_ROWS, len(ends))
    epochs = []
    # A sampler of the program's own may not expect another thread.
    is_users = current.plan.order.is_users
    is_own = is_users and not type(current.plan.sampler).__module__.startswith("shardwise.")
    for epoch in () if is_own else (current.epoch, current.epoch + 1):
        plan = current.plan.resumed(0, epoch=epoch)
        columns = [0] * min(_COLUMNS, plan.num_steps)
        stride = -(-plan.num_steps // max(1, len(columns) * _STEPS))
        for step in range(0, plan.num_steps, max(1, stride)):
            ids = plan.indices(epoch, step, rank)[:: max(1, plan.batch_size // _SAMPLES)]
            shards = np.searchsorted(ends, ids, side="right") * num_bins // len(ends)
            for shard in np.unique(shards).tolist():
                columns[step * len(columns) // plan.num_steps] |= 1 << shard
        steps = [f"{column:x}" for column in columns]
        epochs.append({"epoch": epoch, "num_steps": plan.num_steps, "columns": steps})
    size, data = current.plan.world_size, shown_in(repr(dataset))[:2000]
    facts = {"rank": rank, "world_size": size, "num_shards": len(ends), "num_bins": num_bins}
    return {"version": 1, "data": data, **facts, "epochs": epochs}
