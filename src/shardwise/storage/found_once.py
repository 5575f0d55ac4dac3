"""Facts of remote files, which one rank finds for all; the process group's store carries them."""

from __future__ import annotations

import hashlib
import json
import logging
import struct
import time
import zlib
from collections.abc import Callable, Sequence
from contextlib import suppress
from typing import Any

from shardwise.base.process_group import NO_STORE, group_rank_and_size, group_store
from shardwise.storage.open import is_local
from shardwise.storage.options import StorageOptions

_logger = logging.getLogger("shardwise")

# Seconds until the next rank in line makes what is not made yet, at most between two looks.
_MAKER_S, _LOOK_S = 60.0, 0.2
# Torch's own time limit of a group: ranks that open data together are not further apart.
_OLD_S = 1800.0
# Larger ones are too many bytes for a store that all ranks ask.
_MOST_BYTES = 64 << 20
# A digest of the rest, and the time; compressed bytes follow. Instead: the maker failed.
_DIGEST_BYTES, _TIME, _FAILED = 32, struct.Struct("<d"), b"-"


def has_other_ranks() -> bool:
    """Whether `made_once` has other ranks to share with."""
    return (group_rank_and_size() or (0, 1))[1] > 1


def found_once(
    what: str, urls: Sequence[str], options: StorageOptions | None, find: Callable[[], Any]
) -> Any:
    """What `find` finds in remote files, as JSON has it; see `made_once`."""
    if any(map(is_local, urls)):
        return find()
    return json.loads(made_once(what, urls, options, lambda: json.dumps(find()).encode()))


def made_once(
    what: str, urls: Sequence[str], options: StorageOptions | None, make: Callable[[], bytes]
) -> bytes:
    """Bytes that one rank of the process group makes of remote files, and all others get from it.

    The n-th call of a process returns what was made for the n-th call of any, up to 30 minutes
    ago. Where the maker fails, each process makes them; each minute without them one rank more.
    """
    ranks, store, found, pause_s = group_rank_and_size(), group_store(), b"", 0.005
    if ranks is None or ranks[1] < 2 or store is None:
        return make()
    settings = sorted((options or StorageOptions()).settings().items())
    # Names of a million files are a short key, too.
    digest = hashlib.sha256(repr((what, [*urls], settings)).encode()).hexdigest()
    try:
        key = f"shardwise/{digest}/{store.add(f'shardwise/{digest}/rank {ranks[0]}', 1)}"
        until = time.monotonic() + (store.add(f"{key}/makers", 1) - 1) * _MAKER_S
        while not found and time.monotonic() < until:
            if store.check([key]):
                found = bytes(store.get(key)) or _FAILED
            else:
                time.sleep(pause_s)
                pause_s = min(2 * pause_s, _LOOK_S)
    except NO_STORE:
        return make()
    if found:
        body = found[_DIGEST_BYTES:]
        if hashlib.sha256(body).digest() != found[:_DIGEST_BYTES]:
            if found != _FAILED:
                _logger.warning("%s is damaged in the group's store: reading the files", key)
            return make()
        if time.time() - _TIME.unpack_from(body)[0] > _OLD_S:
            return made_once(f"{what}, again: {key}", urls, options, make)
        return zlib.decompress(body[_TIME.size :])
    found = _FAILED
    try:
        made = make()
        body = _TIME.pack(time.time()) + zlib.compress(made, 1)
        if len(body) < _MOST_BYTES:
            found = hashlib.sha256(body).digest() + body
        return made
    finally:
        with suppress(*NO_STORE):
            if not store.check([key]):
                store.set(key, found)
