"""A rank that leaves out the samples of its own list; prints what its loader says of that."""

from __future__ import annotations

import sys

import torch.distributed as dist

import shardwise as sw

dist.init_process_group("gloo")
rank = dist.get_rank()
lists = [[int(number) for number in each.split(",")] for each in sys.argv[1:]]
loader = sw.DataLoader(sw.wrap(range(40)), batch_size=4, exclude=lists[rank], output="numpy")
try:
    num_rows = sum(len(batch["value"]) for batch in loader)
except sw.RankError as error:
    print(f"rank {rank}: {error}")
else:
    print(f"rank {rank}: {num_rows} rows")
dist.barrier()
dist.destroy_process_group()
