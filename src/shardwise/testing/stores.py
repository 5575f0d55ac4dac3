"""Conformance of stores: what a client of `shardwise.stores` must keep."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine, Mapping
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import numpy as np

from shardwise.base.arguments import suggest_names
from shardwise.base.errors import MissingShardError, StaleIndexError
from shardwise.dataset import Dataset
from shardwise.loader import DataLoader
from shardwise.sources.tar.source import TarSource
from shardwise.sources.tar.write.writer import TarWriter
from shardwise.storage import StorageOptions, expand, open_file
from shardwise.stores import AttemptError, Client

_CONTENT = bytes(range(256)) * 40


@suggest_names
def check_store(
    root: str,
    make_client: Callable[[str, StorageOptions], Client],
    *,
    storage: StorageOptions | Mapping[str, Any] | None = None,
) -> None:
    """Hold a registered store to the contract, in threads and in a worker process.

    Ranges end where the object does, a missing object is distinguished from an empty one, versions
    differ when an object is replaced, listings are complete, and an epoch from shards that were
    written there yields each sample once.

    Args:
        root: the URL of an empty folder that may be written to, without a slash at its end:
            "mem://bucket/test".
        make_client: the factory that was registered for the scheme.
        storage: how the store is reached, as `shardwise.tar` takes it.

    Raises:
        AssertionError: the store differs; the message names the difference.
    """
    options = StorageOptions.of(storage)
    scheme, _, rest = root.partition("://")
    bucket, _, prefix = rest.partition("/")
    key = f"{prefix}/object.bin" if prefix else "object.bin"
    client = make_client(f"{scheme}://{bucket}", options)
    asyncio.run(_check_client(client, key))
    _check_file(root, options)
    _check_epoch(root, options)


async def _check_client(client: Client, key: str) -> None:
    await _fails_as("missing", client.get(key, 0, 4, ""))
    await _fails_as("missing", client.head(key))
    await client.put(key, _CONTENT)
    stat = await client.head(key)
    assert stat.num_bytes == len(_CONTENT), f"head: {stat.num_bytes} bytes of {len(_CONTENT)}"
    for start, stop in ((0, 4), (9000, 9008), (len(_CONTENT) - 2, len(_CONTENT) + 9)):
        reply = await client.get(key, start, stop, stat.etag)
        assert bytes(reply.data) == _CONTENT[start:stop], f"get: other bytes of [{start}, {stop})"
        assert reply.stat == stat, f"get: the version {reply.stat}, and head says {stat}"
    pieces = [r async for r in client.stream(key, 0, len(_CONTENT), stat.etag, 1 << 10)]
    assert b"".join(bytes(r.data) for r in pieces) == _CONTENT, "stream: other bytes"
    listed = await client.names(key.rpartition("/")[0], delimiter=False)
    assert key in listed, f"names: {key!r} is not among {listed[:5]}"
    with TemporaryDirectory() as folder:
        path = Path(folder) / "new.bin"
        path.write_bytes(_CONTENT[:100])
        await client.put(key, path)
    new = await client.head(key)
    assert new != stat, f"put: a replaced object has the version of the one before, {stat}"
    if stat.etag:
        await _fails_as("changed", client.get(key, 0, 4, stat.etag))
    await client.remove(key)
    await _fails_as("missing", client.head(key))


async def _fails_as(kind: str, call: Coroutine[Any, Any, Any]) -> None:
    try:
        found = await call
    except AttemptError as error:
        found = f"AttemptError {error.kind!r}"
    assert found == f"AttemptError {kind!r}", f"{found!r:.80} in place of AttemptError {kind!r}"


def _check_file(root: str, options: StorageOptions) -> None:
    try:
        open_file(f"{root}/missing.tar", options=options).read(0, 1)
    except MissingShardError:
        return
    raise AssertionError("a missing file is not a MissingShardError")


def _check_epoch(root: str, options: StorageOptions) -> None:
    with TarWriter(f"{root}/{{shard:03d}}.tar", max_samples=20, storage=options) as writer:
        for i in range(50):
            writer.write({"__key__": f"{i:03d}", "cls": i})
    found = expand(f"{root}/*.tar", options=options)
    assert found == writer.shards, f"a glob finds {found} of {writer.shards}"
    data = Dataset(TarSource(f"{root}/{{000..002}}.tar", storage=options)).decode(cls=int)
    for num_workers in (0, 1):
        with DataLoader(
            data, batch_size=8, shuffle="full", remainder="uneven", output="numpy",
            num_workers=num_workers,
        ) as loader:  # fmt: skip
            seen = np.sort(np.concatenate([batch["cls"] for batch in loader])).tolist()
        assert seen == list(range(50)), f"num_workers={num_workers}: {len(seen)} of 50 samples"
    with TarWriter(f"{root}/000.tar", overwrite=True, storage=options) as writer:
        writer.write({"__key__": "other", "cls": 1})
    try:
        data.source.read(np.array([0]), ("cls",))
    except StaleIndexError:
        return
    raise AssertionError("a shard that was replaced is read as the one before")
