"""What torch says of this process: its process group, and whether a DataLoader works through it.

torch is looked at where the program has imported it already, never imported here, and
torch.distributed is never initialised.
"""

from __future__ import annotations

import sys
from typing import Any


def loader_worker() -> Any:
    """What torch says of this process if it is a worker of its DataLoader; else None."""
    data = sys.modules.get("torch.utils.data")
    return data.get_worker_info() if data is not None else None


def group_rank_and_size() -> tuple[int, int] | None:
    """Rank and world size of torch.distributed, if it is initialised in this process."""
    distributed = sys.modules.get("torch.distributed")
    if distributed is None or not distributed.is_available() or not distributed.is_initialized():
        return None
    return distributed.get_rank(), distributed.get_world_size()


def default_group() -> object:
    """The process group as an object, another one once it was made anew; None without one."""
    group = getattr(sys.modules.get("torch.distributed"), "group", None)
    return getattr(group, "WORLD", None)


def shared_name(key: str, proposal: str, *, is_new: bool = False) -> str | None:
    """The first name that a rank of the process group proposed under `key`, the same on all ranks.

    No collective: it asks the store that the group was made with, and waits for no other rank.
    None where there is no group, or its store can't tell. With `is_new` the n-th call of each
    process returns the n-th name.
    """
    ranks = group_rank_and_size()
    if ranks is None:
        return None
    try:
        store = sys.modules["torch.distributed"].distributed_c10d._get_default_store()
        if is_new:
            key = f"{key}/{store.add(f'{key}/rank {ranks[0]}', 1)}"
        return bytes(store.compare_set(key, "", proposal)).decode()
    except (AttributeError, RuntimeError, ValueError):
        # A group made in another way, a backend's own store, a store that is gone.
        return None
