"""Real servers, killed with SIGKILL: exactly once, in order, bit-equal to the inline executor."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

import shardwise as sw
from shardwise.testing import assert_batches_equal
from tests.support.batch_servers import (
    BatchServers,
    check_elastic_epoch,
    elastic_loader,
    module_of,
    write_dataset,
)
from tests.support.transports import TRANSPORTS, Transport
from tests.support.waiting import wait_for

SIZE = 1_440
# Large enough that batches go by UCX where that is the transport: 200 kB in rows of 33 kB.
SIDES = {"tcp": 8, "ucx": 64}


def _run_with_kills(
    data: sw.Dataset, servers: BatchServers, *, world_sizes: list[int], num_kills: int, every: int
) -> tuple[int, int]:
    """One epoch on several numbers of ranks in turn, a server killed every few batches.

    Returns the kills, and how often work was sent anew.
    """
    num_batches = kills = 0
    is_frozen = False

    def kill_one(ranks: list[sw.DataLoader], is_last: bool) -> None:
        nonlocal num_batches, kills, is_frozen
        num_batches += 1
        if kills < num_kills and num_batches % every == 0:
            servers.freeze()
            is_frozen = True
        # Frozen servers answer nothing, so that the one that is killed has work.
        victim = _busiest(ranks, servers) if is_frozen else None
        if victim is not None:
            servers.kill(victim)
            servers.start(victim)
            kills += 1
        if victim is not None or is_last:
            servers.go_on()
            is_frozen = False

    service = sw.service(servers.addresses, token_file=servers.token_file)
    counts = check_elastic_epoch(data, service, world_sizes, after_batch=kill_one)
    return kills, counts["resent"]


def _busiest(ranks: list[sw.DataLoader], servers: BatchServers) -> int | None:
    """The server with the most requests under way; None where there are none."""
    counts = [loader.stats()["service"]["servers"] for loader in ranks]
    under_way = [
        sum(count[address]["requests"] - count[address]["answers"] for count in counts)
        for address in servers.addresses
    ]
    return under_way.index(max(under_way)) if max(under_way) else None


@contextmanager
def _servers(folder: Path, transport: Transport) -> Iterator[tuple[sw.Dataset, BatchServers]]:
    """Two servers, and the data as their clients have it."""
    scheme, token = transport.scheme, transport.token_file
    path = write_dataset(folder, size=SIZE, side=SIDES[scheme])
    options = ("--num-threads", 1, "--transport", scheme)
    with BatchServers(path, 2, *options, token_file=token) as servers:
        yield module_of(path).dataset(), servers


@pytest.mark.parametrize(
    ("world_size", "transport"),
    [
        (1, "tcp"),
        pytest.param(2, "tcp", marks=pytest.mark.long),
        pytest.param(1, "ucx", marks=pytest.mark.long),
        pytest.param(2, "ucx", marks=pytest.mark.long),
        pytest.param(1, "ucx-between-machines", marks=pytest.mark.long),
    ],
    indirect=["transport"],
)
def test_servers_that_are_killed_lose_and_double_nothing(
    tmp_path: Path, world_size: int, transport: Transport
) -> None:
    with _servers(tmp_path, transport) as (data, servers):
        kills, resent = _run_with_kills(
            data, servers, world_sizes=[world_size], num_kills=3, every=25
        )
    assert kills == 3
    assert resent > 0, "no kill hit any work"


@pytest.mark.long
@pytest.mark.timeout(1200)
@pytest.mark.parametrize("transport", TRANSPORTS, indirect=True)
def test_a_hundred_kills_over_elastic_resumes_lose_and_double_nothing(
    tmp_path: Path, transport: Transport
) -> None:
    kills = resent = 0
    with _servers(tmp_path, transport) as (data, servers):
        while kills < 100:
            more, again = _run_with_kills(
                data, servers, world_sizes=[1, 2, 3, 1], num_kills=25, every=6
            )
            kills, resent = kills + more, resent + again
            assert more > 0
    assert resent > 0


def test_a_server_that_is_added_and_one_that_is_removed(tmp_path: Path) -> None:
    path = write_dataset(tmp_path, size=3 * SIZE)
    data = module_of(path).dataset()
    with BatchServers(path, 2) as servers:
        servers.kill(1)
        loader = elastic_loader(data, sw.service(servers.addresses), 0, 1)
        truth = elastic_loader(data, "inline", 0, 1)
        with loader:
            pairs = zip(loader, truth, strict=True)
            one, other = (f"{address}" for address in servers.addresses)
            was_removed = False

            def answers_of(address: str) -> int:
                return loader.stats()["service"]["servers"][address]["answers"]

            def is_connected(address: str) -> bool:
                return bool(loader.stats()["service"]["servers"][address]["is_connected"])

            for step, (found, wanted) in enumerate(pairs):
                assert_batches_equal(wanted, found)
                if step == 20:
                    servers.start(1, wait=True)
                    # It takes part once its client, which asks each second, has found it.
                    wait_for(lambda: is_connected(other))
                # Batches that the first one had made ahead come before the other one's.
                if step >= 20 and not was_removed and answers_of(other) > 0:
                    servers.kill(0)
                    was_removed = True
            stats = loader.stats()["service"]["servers"]
        assert stats[one]["answers"] > 0
        assert was_removed
        assert stats[other]["answers"] > 0
        assert loader.stats()["service"]["made_here"] == 0
