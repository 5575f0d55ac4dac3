"""Nodes of a job in one process, each with a cache directory of its own, that name each other."""

from __future__ import annotations

import threading
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import shardwise as sw
from shardwise.extensions.service.token import make_token
from tests.support.remote_shards import loader
from tests.support.server_process import free_port
from tests.support.servers import S3Server
from tests.support.threads import at_once

BLOCK = 64 << 10
ROOM = 64 << 20


@contextmanager
def nodes(
    s3: S3Server,
    urls: Sequence[str],
    folder: Path,
    names: Sequence[str],
    *,
    rooms: Sequence[int] | None = None,
    tls: dict[str, Any] | None = None,
    host: str = "127.0.0.1",
    **options: Any,
) -> Iterator[list[sw.DataLoader]]:
    """A loader on each node, one rank on each."""
    make_token(folder / "token")
    scheme = "tcp" if tls is None else "tls"
    peers = [f"{scheme}://{host}:{free_port()}" for _ in names]
    loaders = [
        node_loader(
            s3.unhedged,
            urls,
            folder / name,
            peers,
            rank,
            max_bytes=ROOM if rooms is None else rooms[rank],
            tls=tls or {},
            **options,
        )
        for rank, name in enumerate(names)
    ]
    try:
        yield loaders
    finally:
        for each in loaders:
            each.close()


def node_loader(
    storage: Any,
    urls: Sequence[str],
    folder: Path,
    peers: Sequence[str],
    rank: int,
    *,
    max_bytes: int = ROOM,
    tls: dict[str, Any] | None = None,
    **options: Any,
) -> sw.DataLoader:
    """The loader of a node whose cache lies in `folder`, beside the token."""
    cache = sw.CacheSettings(
        folder,
        max_bytes=max_bytes,
        block_bytes=BLOCK,
        share=True,
        peers=peers,
        token_file=folder.parent / "token",
        **(tls or {}),
    )
    data = sw.tar(urls, storage=storage, cache=cache)
    given = {"batch_size": 8, "num_threads": 1, "rank": rank, "world_size": len(peers)}
    return loader(data.select("bin"), **{**given, **options})


def read_epoch(loaders: Sequence[sw.DataLoader]) -> dict[int, bytes]:
    """One epoch of all ranks, each in a thread, and as in a training step by step: its samples."""
    step = threading.Barrier(len(loaders))

    def read(rank: int) -> list[Any]:
        batches = []
        try:
            for batch in loaders[rank]:
                batches.append(batch)
                step.wait(60)
        except Exception:
            step.abort()
            raise
        return batches

    seen = [
        (index, bytes(data))
        for batches in at_once(read, len(loaders))
        for batch in batches
        for index, data in zip(batch["__index__"].tolist(), batch["bin"], strict=True)
    ]
    found = dict(seen)
    assert len(found) == len(seen), "a sample came twice"
    return found


def sent(s3: S3Server, prefix: str) -> int:
    """Bytes of shards that the store sent."""
    return sum(
        seen["num_bytes"]
        for seen in s3.requests()
        if seen["method"] == "GET"
        and seen["path"].partition("?")[0].endswith(".tar")
        and f"/{prefix}/" in seen["path"]
    )
