"""Drivers of test_ray_servers.py: programs that join a Ray cluster and use servers there.

python -m tests.extensions.service.ray_driver SCENARIO ADDRESS
"""

from __future__ import annotations

import json
import logging
import os
import signal
import sys
import threading
import time
from collections.abc import Sequence
from contextlib import suppress
from typing import Any
from unittest.mock import patch

import numpy as np
import psutil

import shardwise as sw
from shardwise.engine.batch.builder import BatchBuilder
from shardwise.extensions.service.link import Links
from shardwise.extensions.service.service import RayService
from shardwise.testing import assert_batches_equal, check_executor
from tests.support.batch_servers import check_elastic_epoch, elastic_loader
from tests.support.waiting import wait_for

SIZE = 720


def noisy(sample: dict[str, Any], rng: np.random.Generator) -> dict[str, Any]:
    return {**sample, "noise": rng.random((8, 8)), "text": str(sample["value"])}


def refusing(sample: dict[str, Any]) -> dict[str, Any]:
    if sample["value"] == 33:
        raise ValueError("no such number")
    return sample


def dataset() -> sw.Dataset:
    return sw.wrap(list(range(SIZE))).map(noisy)


def loader_and_truth(servers: RayService) -> list[sw.DataLoader]:
    return [elastic_loader(dataset(), executor, 0, 1) for executor in (servers, "inline")]


def connected(loader: sw.DataLoader) -> list[str]:
    """Addresses of the servers that a loader can use now, in one order for all processes."""
    servers = loader.stats()["service"]["servers"]
    return sorted(address for address, each in servers.items() if each["is_connected"])


def pid_of(address: str) -> int | None:
    port = int(address.rpartition(":")[2])
    for each in psutil.net_connections("tcp"):
        if each.status == psutil.CONN_LISTEN and each.laddr.port == port:
            return each.pid
    return None


def kill_one(loaders: list[sw.DataLoader]) -> bool:
    """SIGKILL the server with the most requests under way; False where none is connected."""
    under_way: dict[str, int] = {}
    for loader in loaders:
        for address, each in loader.stats()["service"]["servers"].items():
            if each["is_connected"]:
                count = each["requests"] - each["answers"]
                under_way[address] = under_way.get(address, 0) + count
    for address in sorted(under_way, key=lambda each: -under_way[each]):
        pid = pid_of(address)
        if pid is None:
            continue
        # One that was killed before may still be listed.
        with suppress(ProcessLookupError):
            os.kill(pid, signal.SIGKILL)
            return True
    return False


def run_with_kills(
    servers: RayService, world_sizes: list[int], *, num_kills: int, every: int
) -> dict[str, int]:
    """One epoch on several numbers of ranks in turn; every few batches a server is killed."""
    num_batches = kills = 0

    def after_batch(ranks: list[sw.DataLoader], _: bool) -> None:
        nonlocal num_batches, kills
        num_batches += 1
        if kills < num_kills and num_batches % every == 0:
            # So that the one that is killed has been greeted.
            wait_for(lambda: any(map(connected, ranks)))
            kills += kill_one(ranks)

    counts = check_elastic_epoch(dataset(), servers, world_sizes, after_batch=after_batch)
    return {"kills": kills, **counts}


def everything(folder: str) -> dict[str, Any]:
    """What one process can see: conformance, errors, kills, scaling, no servers for a while."""
    del folder
    servers = sw.service(ray=2)
    check_executor(lambda builder: servers(builder, timeout=240), BatchBuilder(dataset(), seed=3))
    wrong = dataset().map(refusing)
    for executor in (servers, "inline"):
        with elastic_loader(wrong, executor, 0, 1) as loader:
            try:
                list(loader)
            except sw.DataError as error:
                message = [str(error), error.key, error.url]
        if executor is servers:
            told = message
    assert told == message, (told, message)
    counts = run_with_kills(servers, [1, 2, 3], num_kills=1, every=20)
    scaled(servers)
    return {**counts, "error": told}


def scaled(servers: RayService) -> None:
    """A server is added, two are removed, and all are, for a while; the client is told late."""
    set_servers = Links.set_servers
    were_there: list[bool] = []

    def told_late(links: Links, addresses: Sequence[str], token: bytes | None) -> None:
        time.sleep(0.5)
        servers = links.dispatcher.servers
        if len(addresses) < len(servers):  # and not one more start of a server that was killed
            gone = [each for each in servers if each.address not in addresses]
            were_there.extend(each.is_live for each in gone)
        set_servers(links, addresses, token)

    # A depth that grew would have the rest of the epoch before the servers are gone.
    is_fixed = patch("shardwise.engine.batch.prefetch._MAX_GROWTH", 1)
    with patch.object(Links, "set_servers", told_late), is_fixed:
        scale_up_and_down(servers)
    # One that ends before its clients leave it is one that died, and its batches may be to blame.
    assert len(were_there) >= 3, were_there
    assert all(were_there), were_there


def scale_up_and_down(servers: RayService) -> None:
    log: list[str] = []
    handler = logging.Handler()
    handler.emit = lambda record: log.append(record.getMessage())  # type: ignore[method-assign]
    logging.getLogger("shardwise").addHandler(handler)
    loader, truth = loader_and_truth(servers)
    thread = None
    for step, (found, wanted) in enumerate(zip(loader, truth, strict=True)):
        assert_batches_equal(wanted, found)
        if step == 10:
            servers.scale(3)
            wait_for(lambda: len(connected(loader)) == 3)
        if step == 25:
            servers.scale(1)
            wait_for(lambda: len(loader.stats()["service"]["servers"]) == 1)
        if step == 40:
            servers.scale(0)
            wait_for(lambda: not loader.stats()["service"]["servers"])
            thread = threading.Thread(target=come_back, args=(servers, log))
            thread.start()
    assert thread is not None
    thread.join()
    assert any("no batch server answers, waiting for one" in each for each in log), log
    assert any(each.endswith(" answers") for each in log), log
    assert loader.stats()["service"]["made_here"] == 0
    loader.close()


def come_back(servers: RayService, log: list[str]) -> None:
    wait_for(lambda: any("waiting for one" in each for each in log))
    servers.scale(2)


def long_kills(folder: str) -> dict[str, Any]:
    """100 kills, over elastic resumes."""
    del folder
    servers = sw.service(ray=2)
    total = {"kills": 0, "resent": 0, "made_here": 0}
    while total["kills"] < 100:
        more = run_with_kills(servers, [1, 2, 3, 1], num_kills=100 - total["kills"], every=5)
        total = {name: count + more[name] for name, count in total.items()}
    return total


def half(name: str) -> dict[str, Any]:
    """A rank of a job of several Ray jobs: half an epoch, a line from the test, the other half."""
    loader, truth = loader_and_truth(sw.service(ray=2, name=name))
    addresses: list[str] = []
    for step, (found, wanted) in enumerate(zip(loader, truth, strict=True)):
        assert_batches_equal(wanted, found)
        if step == 5:
            wait_for(lambda: len(connected(loader)) == 2)
            addresses = connected(loader)
            print(json.dumps(addresses), flush=True)
            sys.stdin.readline()
    return {"before": addresses, "after": list(loader.stats()["service"]["servers"])}


def lost_node(folder: str) -> dict[str, Any]:
    """Half an epoch, a line from the test, the other half with as many servers as before."""
    del folder
    loader, truth = loader_and_truth(sw.service(ray=2))
    before: list[str] = []
    for step, (found, wanted) in enumerate(zip(loader, truth, strict=True)):
        assert_batches_equal(wanted, found)
        if step == 20:
            wait_for(lambda: len(connected(loader)) == 2)
            before += connected(loader)
            print(json.dumps(before), flush=True)
            sys.stdin.readline()
        if step == 40:
            # One or both were on the node.
            wait_for(lambda old=before: len(now := connected(loader)) == 2 and now != old)
    made_here: int = loader.stats()["service"]["made_here"]
    return {"made_here": made_here}


def main() -> None:
    """Run a scenario; its last line is what it found out, as JSON."""
    import ray

    scenario, address, argument = sys.argv[1:]
    ray.init(address=address, log_to_driver=False)
    run = {each.__name__: each for each in (everything, long_kills, half, lost_node)}[scenario]
    print(json.dumps(run(argument)), flush=True)


if __name__ == "__main__":
    main()
