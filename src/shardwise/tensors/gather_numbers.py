"""Numbers of all ranks of a process group, gathered on each."""

from __future__ import annotations

import torch
import torch.distributed as dist


def gather_numbers(numbers: list[int]) -> list[list[int]]:
    """The lists of all ranks, by rank; numbers are within 64 bits, the lists of one length.

    A collective of the default group: all of its ranks must call it.
    """
    # NCCL moves tensors of its device only.
    device = torch.device("cuda" if dist.get_backend() == "nccl" else "cpu")
    own = torch.tensor(numbers, dtype=torch.int64, device=device)
    all_ranks = [torch.empty_like(own) for _ in range(dist.get_world_size())]
    dist.all_gather(all_ranks, own)
    return [each.tolist() for each in all_ranks]
