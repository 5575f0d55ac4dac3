"""Shards for servers, whose every byte follows from the number of the sample.

Sample g has the key `s{g:08d}`, the field `cls` (the last digit of g) and the field `bin`:
`num_bytes` bytes that a generator seeded with g gives.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Any, Protocol

import numpy as np

import shardwise as sw
from shardwise.sources.tar.index.build import build_indexes
from shardwise.storage import StorageOptions
from tests.support.servers import S3Server
from tests.support.tars import tar_bytes
from tests.support.waiting import wait_for


class _Server(Protocol):
    def put(self, key: str, data: bytes) -> str:
        """Store an object; its URL."""
        ...


def body(g: int, num_bytes: int) -> bytes:
    """The field `bin` of sample g."""
    return np.random.default_rng(g).bytes(num_bytes)


def numbered_tar(first: int, num_samples: int, num_bytes: int) -> bytes:
    """A shard of the samples first, first + 1, ..."""
    return tar_bytes(
        (f"s{g:08d}.{field}", data)
        for g in range(first, first + num_samples)
        for field, data in (("bin", body(g, num_bytes)), ("cls", b"%d" % (g % 10)))
    )


def put_shards(
    server: _Server, prefix: str, sizes: Sequence[int], *, num_bytes: int = 1000
) -> list[str]:
    """Store `prefix/000.tar`, `prefix/001.tar`, ... of so many samples each; their URLs."""
    urls = []
    first = 0
    for number, size in enumerate(sizes):
        data = numbered_tar(first, size, num_bytes)
        urls.append(server.put(f"{prefix}/{number:03d}.tar", data))
        first += size
    return urls


def put_indexed_shards(
    s3: S3Server, prefix: str, sizes: Sequence[int], *, num_bytes: int = 1000
) -> list[str]:
    """As `put_shards`, with an index beside each."""
    urls = put_shards(s3, prefix, sizes, num_bytes=num_bytes)
    results = build_indexes(urls, options=StorageOptions(config=s3.config))
    assert not any(result.error for result in results)
    return urls


def replace_object(s3: S3Server, url: str, data: bytes) -> None:
    """Store another object under a URL, and wait until the server gives that one."""
    key = url.removeprefix(s3.url(""))
    before = s3.request("HEAD", key).headers["etag"]
    s3.put(key, data)
    # It remembers for a while what it looked at.
    wait_for(lambda: s3.request("HEAD", key).headers["etag"] != before)


def check_epoch(
    batches: Iterable[Mapping[str, Any]], num_samples: int, *, num_bytes: int = 1000
) -> None:
    """Hold every sample of an epoch against what it must be: each once, each byte right."""
    seen = []
    for batch in batches:
        for key, index, data, digit in zip(
            batch["__key__"], batch["__index__"].tolist(), batch["bin"], batch["cls"], strict=True
        ):
            assert key == f"s{index:08d}"
            assert bytes(data) == body(index, num_bytes), key
            assert int(digit) == index % 10
            seen.append(index)
    assert sorted(seen) == list(range(num_samples))


def loader(dataset: sw.Dataset, **options: Any) -> sw.DataLoader:
    """A loader of all samples in one rank."""
    given: dict[str, Any] = {"batch_size": 32, "remainder": "uneven", "rank": 0, "world_size": 1}
    return sw.DataLoader(dataset, **{**given, "timeout": 120, **options})
