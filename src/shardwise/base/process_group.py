"""torch's view of this process: its process group, and whether it is a worker of a DataLoader.

torch is looked at where the program has imported it already, never imported here, and
torch.distributed is never initialised.
"""

from __future__ import annotations

import os
import sys
import time
import weakref
from collections.abc import Callable, Sequence
from typing import Any

from shardwise.base.errors import RankError, StallError

# A group made in another way, a backend's own store, a store that is gone.
NO_STORE = (AttributeError, RuntimeError, ValueError)
_inherited: list[object] = []  # the groups that a forked child has from its parents
os.register_at_fork(after_in_child=lambda: _inherited.append(default_group()))


def loader_worker() -> Any:
    """The worker info of torch if this process is a worker of its DataLoader; else None."""
    data = sys.modules.get("torch.utils.data")
    return data.get_worker_info() if data is not None else None


def group_rank_and_size() -> tuple[int, int] | None:
    """Rank and world size of torch.distributed, if it is initialised in this process."""
    distributed = sys.modules.get("torch.distributed")
    if distributed is None or not distributed.is_available() or not distributed.is_initialized():
        return None
    return distributed.get_rank(), distributed.get_world_size()


def default_group() -> object:
    """The process group as an object, a new one after it was made again; None without a group."""
    group = getattr(sys.modules.get("torch.distributed"), "group", None)
    return getattr(group, "WORLD", None)


def group_reference() -> Callable[[], object]:
    """Return a weak reference to the process group.

    A group that is held lives on after `destroy_process_group`, and its threads with it, one of
    which may abort the process as the interpreter ends.
    """
    group = default_group()
    return (lambda: None) if group is None else weakref.ref(group)


def watch_group(changed: Callable[[], None]) -> Callable[[], None]:
    """Return a check, which calls `changed` if there is another group than before."""
    seen = group_reference()

    def check() -> None:
        nonlocal seen
        found = default_group()
        if found is not seen() and found is not None:
            changed()
            seen = group_reference()

    return check


def shared_name(key: str, proposal: str, *, is_new: bool = False) -> str | None:
    """The first name that a rank of the process group proposed under `key`, the same on all ranks.

    Waits for no other rank. None without a group, or where the group's store can't answer. With
    `is_new` the n-th call of each process returns the n-th name.
    """
    ranks, store = group_rank_and_size(), group_store()
    if ranks is None or store is None:
        return None
    try:
        if is_new:
            key = f"{key}/{store.add(f'{key}/rank {ranks[0]}', 1)}"
        return bytes(store.compare_set(key, "", proposal)).decode()
    except NO_STORE:
        return None


def exchange(key: str, own: str, ranks: Sequence[int], *, timeout_s: float) -> list[str]:
    """Return the text of each of `ranks`, which all call this, the n-th time in the n-th call."""
    found, store, deadline = group_rank_and_size(), group_store(), time.monotonic() + timeout_s
    if found is None or store is None:
        raise RankError("there is no process group with a store: call init_process_group first")
    key = f"{key}/{','.join(map(str, ranks))}"
    key = f"{key}/{store.add(f'{key}/rank {found[0]}', 1)}"
    store.set(f"{key}/{found[0]}", own)
    for rank in ranks:
        # Waiting in the store would keep other threads from it.
        while not store.check([f"{key}/{rank}"]):
            if time.monotonic() > deadline:
                raise StallError(f"ranks {ranks}: rank {rank} did not come within {timeout_s:g} s")
            time.sleep(0.01)
    return [bytes(store.get(f"{key}/{rank}")).decode() for rank in ranks]


def group_store() -> Any:
    """The store that the process group was made with; None without one.

    A forked child has its parent's connection, which two processes can't use.
    """
    if loader_worker() is not None or default_group() in _inherited:
        return None
    try:
        return sys.modules["torch.distributed"].distributed_c10d._get_default_store()
    except (KeyError, *NO_STORE):
        return None
