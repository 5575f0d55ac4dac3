"""Lists of files in a store: each file is one request of an epoch, counted by the server."""

from __future__ import annotations

import asyncio
import time
from typing import ClassVar

import numpy as np
import pytest

import shardwise as sw
from shardwise.base.errors import DataError, MissingShardError, StaleIndexError
from shardwise.stores import register
from tests.extensions.remote.stores.test_own_store import FolderClient
from tests.remote.test_planned_bytes import EXECUTORS
from tests.support.remote_shards import body, loader, replace_object

# The second is empty, and the third is longer than what is requested of a file at first.
SIZES = [3000, 0, (4 << 20) + 1000, *range(1000, 2200, 100)]


def put_list(s3, name, sizes=SIZES):
    """Store files `name/000.bin`, ... and their list; its URL, and what the files hold."""
    files = [body(i, size) for i, size in enumerate(sizes)]
    for i, data in enumerate(files):
        s3.put(f"{name}/{i:03d}.bin", data)
    lines = [f"{i:03d}.bin,{i}" for i in range(len(files))]
    return s3.put(f"{name}/list.csv", "\n".join(["path,label", *lines]).encode()), files


def open_list(s3, url, **options):
    data = sw.files(url, field="bin", storage=s3.unhedged, **options)
    assert len(data)  # the list was read
    return data


class Asked:
    """The requests for files of a list since the last call, as (method, file)."""

    def __init__(self, s3, name):
        self._s3, self._name, self._seen = s3, name, 0
        self()

    def __call__(self):
        seen = self._s3.requests()
        new, self._seen = seen[self._seen :], len(seen)
        paths = [(each["method"], each["path"].partition("?")[0]) for each in new]
        return sorted(
            (method, path.rpartition("/")[2])
            for method, path in paths
            if f"/{self._name}/" in path and path.endswith(".bin")
        )


def read_epoch(batches, files):
    seen = []
    for batch in batches:
        for index, data in zip(batch["__index__"].tolist(), batch["bin"], strict=True):
            assert bytes(data) == files[index]
            seen.append(index)
    assert sorted(seen) == list(range(len(files)))


@pytest.mark.parametrize("cached", ["", "cached", "shared"])
@pytest.mark.parametrize("executor", EXECUTORS, ids=str)
def test_a_small_file_is_one_request_and_no_look_before(s3, tmp_path, executor, cached):
    name = f"lists-{cached}-{len(executor)}-{next(iter(executor))}"
    url, files = put_list(s3, name)
    asked = Asked(s3, name)
    # Without a process group, nothing is shared.
    cache = sw.CacheSettings(tmp_path / "cache", share=cached == "shared")
    data = open_list(s3, url, cache=cache if cached else None)
    small = sorted(("GET", f"{i:03d}.bin") for i in range(len(files)) if i not in (1, 2))
    with loader(data, batch_size=4, shuffle="full", **executor) as batches:
        for epoch in range(2):
            read_epoch(batches, files)
            found = asked()
            large = [each for each in found if each[1] in ("001.bin", "002.bin")]
            if cached and epoch:
                assert not found
            else:
                assert [each for each in found if each not in large] == small
                # An empty file is looked at, since a store refuses a range of it.
                assert large.count(("GET", "002.bin")) == 2
                assert ("HEAD", "002.bin") not in large


def test_a_later_run_looks_at_cached_files_and_fetches_those_that_changed(s3, tmp_path):
    url, files = put_list(s3, "lists-again", [1000] * 6)
    read_epoch(loader(open_list(s3, url, cache=tmp_path), batch_size=4), files)
    files[4] = body(99, 1500)
    replace_object(s3, s3.url("lists-again/004.bin"), files[4])
    asked = Asked(s3, "lists-again")
    with loader(open_list(s3, url, cache=tmp_path), batch_size=4) as batches:
        read_epoch(batches, files)
        found = asked()
        assert [each for each in found if each[0] == "GET"] == [("GET", "004.bin")]
        read_epoch(batches, files)
        assert not asked()


def test_a_file_that_is_missing_or_was_replaced_is_named(s3):
    url, _ = put_list(s3, "lists-faults", [1000] * 6)
    s3.delete("lists-faults/002.bin")
    data = open_list(s3, url)
    with pytest.raises(MissingShardError, match=r"002\.bin") as missing:
        list(loader(data.subset(np.arange(1, 4)), batch_size=3))
    assert (missing.value.key, missing.value.index) == ("002.bin", 1)
    # As if the list had been read an hour ago.
    object.__setattr__(
        data.source.listing, "opened_ns", data.source.listing.opened_ns - 3600 * 10**9
    )
    with pytest.raises(StaleIndexError, match="was written") as stale:
        list(loader(data.subset(np.arange(3, 6)), batch_size=3))
    assert stale.value.key == "003.bin"


def test_a_cached_file_that_was_replaced_is_told_when_it_is_fetched_again(s3, tmp_path):
    url, files = put_list(s3, "lists-stale", [1000] * 3)
    cache = sw.CacheSettings(tmp_path / "cache")
    data = open_list(s3, url, cache=cache)
    with loader(data, batch_size=3, executor="inline") as batches:
        read_epoch(batches, files)
        replace_object(s3, s3.url("lists-stale/001.bin"), body(7, 1000))
        read_epoch(batches, files)  # of the version that was seen first
        for block in (tmp_path / "cache").rglob("*.block"):
            if block.stat().st_size > 1000:  # not the notes of versions
                block.unlink()
        cache.opened._start()  # as in a new process
        with pytest.raises(DataError, match="replaced while it was in use"):
            read_epoch(batches, files)


class PairedClient(FolderClient):
    """Notes how many requests for files are in flight, and answers none that could have company."""

    asked: ClassVar[list[str]] = []
    in_flight: ClassVar[int] = 0
    most: ClassVar[int] = 0

    async def get(self, key, start, stop, etag):
        if not key.endswith(".bin"):
            return await super().get(key, start, stop, etag)
        PairedClient.asked.append(key)
        PairedClient.in_flight += 1
        PairedClient.most = max(self.most, self.in_flight)
        until = time.monotonic() + 5
        while self.most < 2 and time.monotonic() < until:
            await asyncio.sleep(0.002)
        PairedClient.in_flight -= 1
        return await super().get(key, start, stop, etag)


def test_files_that_a_cache_evicted_are_announced_again(tmp_path, monkeypatch):
    monkeypatch.setattr("shardwise.storage.client._FACTORIES", {})
    register("paired", PairedClient)
    (tmp_path / "bucket").mkdir()
    files = [body(i, 1000) for i in range(6)]
    for i, data in enumerate(files):
        (tmp_path / f"bucket/{i}.bin").write_bytes(data)
    (tmp_path / "bucket/list.csv").write_text("path\n" + "".join(f"{i}.bin\n" for i in range(6)))
    cache = sw.CacheSettings(tmp_path / "cache")
    options = {"folder": str(tmp_path), "hedge": False}
    data = sw.files("paired://bucket/list.csv", field="bin", storage=options, cache=cache)
    with loader(data, batch_size=2, executor="inline") as batches:
        read_epoch(batches, files)
        read_epoch(batches, files)
        assert sorted(PairedClient.asked) == [f"{i}.bin" for i in range(6)]
        for block in (tmp_path / "cache").rglob("*.block"):
            if block.stat().st_size > 1000:  # not the notes of versions
                block.unlink()
        cache.opened._start()  # as in a new process
        PairedClient.asked.clear()
        PairedClient.most = 0
        read_epoch(batches, files)
        assert sorted(PairedClient.asked) == [f"{i}.bin" for i in range(6)]
        assert PairedClient.most > 1
