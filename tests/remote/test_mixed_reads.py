"""Ranges of many files into one buffer, local and remote ones mixed."""

from __future__ import annotations

import os
import random

import pytest

from shardwise.base.errors import MissingShardError
from shardwise.storage import FilePool, StorageOptions, read_files


def layout(reads):
    """What `read_files` takes for `(url, offset, length)` in order of the files, and its size."""
    wanted, end = [], 0
    for url, offset, length in reads:
        begin, end = end, end + length
        if wanted and wanted[-1][0] == url:
            wanted[-1][1].append(offset)
            wanted[-1][2].append(end)
        else:
            wanted.append((url, [offset], [end], begin))
    return wanted, end


def test_local_and_remote_files_fill_one_buffer(s3, tmp_path):
    rng = random.Random(1)
    contents = {}
    for name in ("a.tar", "b.tar", "c.tar"):
        far, near = rng.randbytes(200_000), rng.randbytes(100_000)
        contents[s3.put(name, far)] = far
        (tmp_path / name).write_bytes(near)
        contents[os.fspath(tmp_path / name)] = near
    reads = []
    for url, data in contents.items():
        for _ in range(10):
            offset = rng.randrange(len(data) - 3000)
            reads.append((url, offset, rng.randrange(3000)))
    wanted, size = layout(reads)
    buffer = bytearray(size)
    pool = FilePool(options=StorageOptions(config=s3.config))
    read_files(pool, wanted, memoryview(buffer))
    assert buffer == b"".join(contents[url][at : at + length] for url, at, length in reads)


def test_nothing_wanted_reads_nothing(s3):
    pool = FilePool(options=StorageOptions(config=s3.config))
    read_files(pool, [], memoryview(bytearray()))
    read_files(pool, [(s3.url("none"), [], [], 0)], memoryview(bytearray()))


def test_one_that_is_missing_is_named(s3):
    there = s3.put("there.tar", bytes(100))
    pool = FilePool(options=StorageOptions(config=s3.config))
    wanted, size = layout([(there, 0, 10), (s3.url("gone.tar"), 0, 10), (there, 20, 10)])
    with pytest.raises(MissingShardError) as caught:
        read_files(pool, wanted, memoryview(bytearray(size)))
    assert caught.value.url == s3.url("gone.tar")


def test_a_buffer_of_another_type_is_filled_too(s3):
    import numpy as np

    url = s3.put("n.tar", bytes(range(200)))
    out = np.zeros(10, np.int64)
    pool = FilePool(options=StorageOptions(config=s3.config))
    read_files(pool, [(url, [5], [80], 0)], out.data)
    assert out.tobytes() == bytes(range(5, 85))
