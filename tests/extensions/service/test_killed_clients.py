"""A client that is killed: what it waited for is not read, and others' batches go on."""

from __future__ import annotations

import asyncio
import os
import signal
import threading
from concurrent.futures import ThreadPoolExecutor
from typing import Any, ClassVar

import numpy as np

import shardwise as sw
from shardwise.stores import Reply, register
from shardwise.testing import assert_batches_equal
from tests.extensions.remote.stores.test_own_store import FolderClient
from tests.support.batch_servers import addresses, loader, serving
from tests.support.waiting import wait_for

# A server with one thread lets a client wait for three batches.
BATCH, ROWS, CREDITS = 8, 96, 3


class SlowClient(FolderClient):
    """Counts the requests for shards, and answers none while its gate is closed."""

    gate: ClassVar[threading.Event] = threading.Event()
    num_requests: ClassVar[int] = 0

    async def get(self, key: str, start: int, stop: int, etag: str) -> Reply:
        if key.endswith(".tar"):
            SlowClient.num_requests += 1
        while not self.gate.is_set():
            await asyncio.sleep(0.005)
        return await super().get(key, start, stop, etag)


def test_a_killed_client_ends_what_is_read_for_it_and_others_get_their_batches(
    tmp_path, monkeypatch
):
    monkeypatch.setattr("shardwise.storage.client._FACTORIES", {})
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    register("slow", SlowClient)
    SlowClient.gate.set()
    (tmp_path / "bucket").mkdir()
    with sw.TarWriter(str(tmp_path / "bucket" / "{shard:03d}.tar"), max_samples=24) as writer:
        for row in range(ROWS):
            # What lies between two fields of a kind keeps them from sharing a request.
            body = np.random.default_rng(row).bytes(1000)
            writer.write({"__key__": f"{row:03d}", "bin": body, "rest": bytes(20_000)})
    options: dict[str, Any] = {"folder": str(tmp_path), "max_requests": 1, "hedge": False}
    data = sw.tar("slow://bucket/{000..003}.tar", storage=options).select("bin")
    expected = list(loader(data, "inline", shuffle="full", seed=1))
    data = sw.tar("slow://bucket/{000..003}.tar", storage=options).select("bin")
    with (
        serving(data, num_threads=1) as [server],
        ThreadPoolExecutor(1) as pool,
        loader(data, sw.service(addresses([server])[0]), shuffle="full", seed=1) as other,
    ):
        service = sw.service(addresses([server])[0])
        SlowClient.gate.clear()
        SlowClient.num_requests = 0
        pid = os.fork()
        if not pid:
            try:
                next(iter(loader(data, service, shuffle="full", seed=2)))
            finally:
                os._exit(1)
        try:
            wait_for(lambda: server.cache.num_built == CREDITS)
            found = pool.submit(list, other)
            wait_for(lambda: server.cache.num_built == 2 * CREDITS)
        finally:
            os.kill(pid, signal.SIGKILL)
            os.waitpid(pid, 0)
        wait_for(lambda: server._num_clients == 1)
        SlowClient.gate.set()
        batches = found.result(120)
        # The batch that was being built for the killed client, and those of the other.
        assert SlowClient.num_requests <= BATCH + ROWS
        assert server.cache.num_built == CREDITS + ROWS // BATCH
    for one, two in zip(batches, expected, strict=True):
        assert_batches_equal(one, two)
