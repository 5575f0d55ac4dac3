"""One epoch under a budget on each rank, resumed in its middle; writes the ids of its batches."""

from __future__ import annotations

import json
import sys
from itertools import islice
from pathlib import Path

import numpy as np
import torch
import torch.distributed as dist

import shardwise as sw

lengths = np.random.default_rng(1).integers(1, 50, 300)
data = sw.wrap([{"n": int(n)} for n in lengths])


def loader() -> sw.DataLoader:
    by = sw.buckets("n", budget=200, window=128)
    return sw.DataLoader(data, shuffle="full", remainder="uneven", batch_by=by, num_workers=0)


dist.init_process_group("gloo")
first, second = loader(), loader()
batches = list(islice(first, 4))
second.load_state_dict(first.state_dict())
batches += second
for batch in batches:
    # A rank with one batch less would wait here for ever.
    dist.all_reduce(torch.ones(1))
    assert len(batch["n"]) <= 1 or len(batch["n"]) * int(batch["n"].max()) <= 200
ids = [batch["__index__"].tolist() for batch in batches]
(Path(sys.argv[1]) / f"{dist.get_rank()}.json").write_text(json.dumps(ids))
dist.destroy_process_group()
