"""torch's view of this process: its process group, and whether it is a worker of a DataLoader.

torch is looked at where the program has imported it already, never imported here, and
torch.distributed is never initialised.
"""

from __future__ import annotations

import hashlib
import json
import os
import sys
import time
import zlib
from collections.abc import Callable, Sequence
from contextlib import suppress
from typing import Any

from shardwise.base.errors import RankError, StallError

# A group made in another way, a backend's own store, a store that is gone.
NO_STORE = (AttributeError, RuntimeError, ValueError)
# Seconds until the next rank in line makes what is not made yet, at most between two looks.
_MAKER_S, _LOOK_S = 60.0, 0.2
# Before bytes that were made; larger ones are too many for a store that all ranks ask.
_MADE, _MOST_BYTES = b"+", 64 << 20
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


def has_other_ranks() -> bool:
    """Whether `made_once` has other ranks to share with."""
    return (group_rank_and_size() or (0, 1))[1] > 1


def made_once(key: str, make: Callable[[], bytes]) -> bytes:
    """Bytes that one rank of the process group makes, and all others get from it.

    The n-th call of a process returns what was made for the n-th call of any. Without a group, and
    where the maker fails, this process makes them itself; each minute without them one rank more.
    """
    ranks, store = group_rank_and_size(), group_store()
    if ranks is None or ranks[1] < 2 or store is None:
        return make()
    try:
        # Names of a million files are a short key, too.
        key = f"shardwise/{hashlib.sha256(key.encode()).hexdigest()}"
        key = f"{key}/{store.add(f'{key}/rank {ranks[0]}', 1)}"
        place = store.add(f"{key}/makers", 1) - 1
        deadline, pause_s = time.monotonic() + place * _MAKER_S, 0.005
        while not store.check([key]) and time.monotonic() < deadline:
            time.sleep(pause_s)
            pause_s = min(2 * pause_s, _LOOK_S)
        made = bytes(store.get(key)) if store.check([key]) else b""
    except NO_STORE:
        return make()
    if made:
        return zlib.decompress(made[1:]) if made[:1] == _MADE else make()
    try:
        made = make()
        return made
    finally:
        packed = zlib.compress(made, 1)
        with suppress(*NO_STORE):
            if not store.check([key]):
                store.set(key, _MADE + packed if made and len(packed) < _MOST_BYTES else b"-")


def found_once(key: str, find: Callable[[], Any]) -> Any:
    """What `find` returns, as JSON has it: one rank of the process group finds it for all."""
    return json.loads(made_once(key, lambda: json.dumps(find()).encode()))


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
