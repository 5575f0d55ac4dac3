"""A job's start: one listing and one manifest for all ranks, counted by the server."""

from __future__ import annotations

import threading
from datetime import timedelta

import pytest
import torch.distributed as dist

import shardwise as sw
from shardwise.base import process_group
from shardwise.base.process_group import made_once
from shardwise.storage.open import read_whole
from shardwise.storage.options import StorageOptions
from tests.support.remote_shards import put_indexed_shards
from tests.support.servers import S3Server

WORLD = 256


@pytest.fixture
def as_rank(monkeypatch):
    """Runs a function on so many ranks at once, each a thread with its rank and the one store."""
    store, here = dist.HashStore(), threading.local()
    store.set_timeout(timedelta(seconds=60))
    monkeypatch.setattr(process_group, "group_store", lambda: store)
    ranks = {"world": 1}
    monkeypatch.setattr(
        process_group, "group_rank_and_size", lambda: (getattr(here, "rank", 0), ranks["world"])
    )

    def run(function, world_size):
        ranks["world"] = world_size
        found = [None] * world_size

        def call(rank):
            here.rank = rank
            try:
                found[rank] = function()
            except Exception as error:  # noqa: BLE001 - compared by the test
                found[rank] = error

        threads = [threading.Thread(target=call, args=(rank,)) for rank in range(world_size)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join(120)
        return found

    return run


def test_256_ranks_list_once_and_read_one_manifest(s3: S3Server, as_rank):
    urls = put_indexed_shards(s3, "job", [5] * 4)
    pattern = urls[0].replace("000.tar", "*.tar")

    def listings() -> int:
        return sum("list-type" in seen["path"] for seen in s3.requests())

    before = listings()
    sw.tar(pattern, storage=s3.config)
    # Shards and their indexes are in one listing.
    assert listings() == before + 1
    found = as_rank(lambda: sw.tar(pattern, storage=s3.config).source.urls, WORLD)
    assert all(list(each) == urls for each in found)
    assert listings() == before + 2

    key = s3.put("job/train.swm", b"x" * 100_000)

    def reads() -> int:
        return sum("train.swm" in each["path"] for each in s3.requests() if each["method"] == "GET")

    options = StorageOptions(config=s3.config)
    found = as_rank(lambda: read_whole(key, options=options, once=True), WORLD)
    assert set(found) == {b"x" * 100_000}
    assert reads() == 1

    listed = s3.put("job/train.swm.csv", b"path\na.txt\nb.txt\n")
    found = as_rank(lambda: sw.files(listed, storage=s3.config).source.listing.opened_ns, WORLD)
    # One time, too: the ranks share what a cache notes of the files.
    assert len(set(found)) == 1
    assert reads() == 2


def test_each_call_is_made_anew_and_a_maker_that_fails_costs_the_others_nothing(as_rank):
    made = []

    def make() -> bytes:
        made.append(threading.get_ident())
        return b"%d" % len(made)

    assert set(as_rank(lambda: made_once("numbers", make), 4)) == {b"1"}
    assert set(as_rank(lambda: made_once("numbers", make), 4)) == {b"2"}
    failed = []

    def fail_once() -> bytes:
        if not failed:
            failed.append(1)
            raise OSError("away")
        return b"there"

    found = as_rank(lambda: made_once("failing", fail_once), 4)
    assert sorted(map(str, found)) == ["away", *(["b'there'"] * 3)]
