"""torch's view of this process: its process group, and whether it is a worker of a DataLoader.

torch is looked at where the program has imported it already, never imported here, and
torch.distributed is never initialised.
"""

from __future__ import annotations

import sys
import time
from collections.abc import Callable, Sequence
from contextlib import suppress
from datetime import timedelta
from typing import Any

from shardwise.base.errors import RankError, StallError

# A group made in another way, a backend's own store, a store that is gone.
NO_STORE = (AttributeError, RuntimeError, ValueError)
# Seconds that a rank waits for what another one makes.
_MAKER_S = 60
# Before bytes that were made; larger ones are too many for a store that all ranks ask.
_MADE, _MOST_BYTES = b"+", 64 << 20


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


def watch_group(changed: Callable[[], None]) -> Callable[[], None]:
    """Return a check, which calls `changed` if there is another group than before."""
    seen = default_group()

    def check() -> None:
        nonlocal seen
        found = default_group()
        if found is not seen and found is not None:
            changed()
            seen = found

    return check


def shared_name(key: str, proposal: str, *, is_new: bool = False) -> str | None:
    """The first name that a rank of the process group proposed under `key`, the same on all ranks.

    No collective: it asks the store that the group was made with, and waits for no other rank.
    None without a group, or where its store can't answer. With `is_new` the n-th call of each
    process returns the n-th name.
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


def made_once(key: str, make: Callable[[], bytes]) -> bytes:
    """Bytes that one rank of the process group makes, and all others get from it.

    The n-th call of a process returns what was made for the n-th call of any. Without a group, and
    where the maker fails or takes longer than a minute, this process makes them itself.
    """
    ranks, store = group_rank_and_size(), group_store()
    if ranks is None or ranks[1] < 2 or store is None:
        return make()
    is_maker = False
    try:
        key = f"{key}/{store.add(f'{key}/rank {ranks[0]}', 1)}"
        is_maker = store.add(f"{key}/makers", 1) == 1
        if not is_maker:
            store.wait([key], timedelta(seconds=_MAKER_S))
            made = bytes(store.get(key))
            return made[1:] if made[:1] == _MADE else make()
    except NO_STORE:
        return make()
    made = b""
    try:
        made = make()
        return made
    finally:
        with suppress(*NO_STORE):
            store.set(key, _MADE + made if 0 < len(made) < _MOST_BYTES else b"-")


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
    """The store that the process group was made with; None without one."""
    try:
        return sys.modules["torch.distributed"].distributed_c10d._get_default_store()
    except (KeyError, *NO_STORE):
        return None
