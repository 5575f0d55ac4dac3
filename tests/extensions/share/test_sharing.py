"""Nodes that share a cache: each byte leaves the store once, in all epochs that the disks hold."""

from __future__ import annotations

import functools
import gc
import json
import os
import subprocess
import sys
import threading
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack
from dataclasses import replace
from itertools import islice
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import shardwise as sw
from shardwise.extensions.service import frames
from shardwise.extensions.share import block_server, peers, sharing
from shardwise.extensions.share.block_server import BlockServer
from tests.extensions.share.nodes import nodes, read_epoch, sent
from tests.support.certificates import Authority
from tests.support.python_code import printed_by
from tests.support.remote_shards import body, loader, put_indexed_shards
from tests.support.servers import S3Server
from tests.support.tcp_proxy import TcpProxy
from tests.support.torchrun import ROOT
from tests.support.waiting import wait_for

SAMPLE_BYTES, SIZES = 20_000, [30] * 8
STORED = sum(SIZES) * SAMPLE_BYTES
EXPECTED = {g: body(g, SAMPLE_BYTES) for g in range(sum(SIZES))}


@pytest.fixture(autouse=True)
def patient_nodes(monkeypatch: pytest.MonkeyPatch) -> None:
    """On a busy machine a node that answers late is not one that failed."""
    for name in ("CONNECT_S", "_ANSWER_S", "_HOLDER_S"):
        monkeypatch.setattr(peers, name, 60.0)
    monkeypatch.setattr(sharing, "CONNECT_S", 60.0)
    monkeypatch.setattr(block_server, "_FETCH_S", 50.0)


def ratios(s3: S3Server, prefix: str, folder: Path, num_nodes: int = 3, **options: Any) -> list:
    """What the store sends in three epochs, over the bytes of the data."""
    urls = put_indexed_shards(s3, prefix, SIZES, num_bytes=SAMPLE_BYTES)
    found = []
    with nodes(s3, urls, folder, [f"node{n}" for n in range(num_nodes)], **options) as loaders:
        stored = int(loaders[0].dataset.manifest.shard_bytes.sum())
        for _ in range(3):
            before = sent(s3, prefix)
            assert read_epoch(loaders) == EXPECTED
            found.append((sent(s3, prefix) - before) / stored)
    return found


@pytest.mark.parametrize("shuffle", [pytest.param("window", marks=pytest.mark.long), "full"])
def test_each_byte_leaves_the_store_once(s3: S3Server, tmp_path: Path, shuffle: str) -> None:
    first, *later = ratios(s3, f"once-{shuffle}", tmp_path, shuffle=shuffle)
    assert first <= 1.03
    assert max(later) <= 0.03


def test_a_window_shuffle_of_lanes_is_read_once_by_four_nodes(s3, tmp_path) -> None:
    sampler = sw.WindowSampler(SIZES, seed=1, lanes=8, window=4)
    first, *later = ratios(s3, "lanes", tmp_path, 4, sampler=sampler)
    assert first <= 1.03
    assert max(later) <= 0.03


@pytest.mark.long
def test_worker_processes_read_of_other_nodes(s3, tmp_path) -> None:
    first, *later = ratios(s3, "workers", tmp_path, 2, shuffle="full", num_workers=2)
    assert first <= 1.03
    assert max(later) <= 0.03


def test_a_larger_disk_holds_what_a_smaller_one_has_no_room_for(s3, tmp_path) -> None:
    # Half of the data is 2.5 MB.
    rooms = [2 << 20, 8 << 20]
    first, *later = ratios(s3, "sizes", tmp_path, 2, shuffle="full", rooms=rooms)
    assert first <= 1.1
    assert max(later) <= 0.03


def test_blocks_travel_by_tls(s3, tmp_path) -> None:
    authority = Authority(tmp_path)
    tls = {"tls_cert": authority.certificate("node"), "tls_ca": authority.ca}
    first, *later = ratios(s3, "tls", tmp_path, 2, shuffle="full", tls=tls)
    assert first <= 1.03
    assert max(later) <= 0.03


def test_nodes_of_ipv6_share(s3, tmp_path) -> None:
    urls = put_indexed_shards(s3, "ipv6", SIZES[:2], num_bytes=SAMPLE_BYTES)
    with nodes(s3, urls, tmp_path, ["a", "b"], host="[::1]", shuffle="full") as loaders:
        read_epoch(loaders)
        before = sent(s3, "ipv6")
        read_epoch(loaders)
        assert sent(s3, "ipv6") == before


def test_a_server_ends_with_the_data_that_it_serves(s3, tmp_path) -> None:
    urls = put_indexed_shards(s3, "ends", [8], num_bytes=1000)
    with nodes(s3, urls, tmp_path, ["a"]) as loaders:
        read_epoch(loaders)
        [each] = loaders
        reception = each.dataset.source._pool.options.cache.opened.peers._server._reception
        assert not reception._is_closed
    del loaders, each
    wait_for(lambda: gc.collect() >= 0 and reception._is_closed)


@pytest.mark.long
@pytest.mark.parametrize("shuffle", ["window", "full"])
def test_a_node_is_killed_and_comes_back_while_others_read(s3, tmp_path, shuffle) -> None:
    prefix = f"lone-{shuffle}"
    urls = put_indexed_shards(s3, prefix, SIZES, num_bytes=SAMPLE_BYTES)
    with (
        nodes(s3, urls, tmp_path, ["a", "b", "c"], shuffle=shuffle) as loaders,
        ExitStack() as stack,
    ):
        peers = loaders[0].dataset.source._pool.options.cache.peers

        def start(**options: Any) -> subprocess.Popen[str]:
            given = {
                "storage": s3.unhedged, "urls": urls, "folder": str(tmp_path / "c"), "peers": peers,
                "rank": 2, "shuffle": shuffle, **options,
            }  # fmt: skip
            command = [sys.executable, "-m", "tests.extensions.share.lone_node", json.dumps(given)]
            node = subprocess.Popen(
                command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True, cwd=ROOT
            )
            stack.enter_context(node)
            stack.callback(node.kill)
            return node

        def read(count: int) -> list[Any]:
            return [json.loads(node.stdout.readline()) for _ in range(count)]

        pool, steps = stack.enter_context(ThreadPoolExecutor()), len(loaders[0])
        node = start(epochs=2, state=None, stop=steps + 2)
        first = pool.submit(read_epoch, loaders[:2])
        read(steps)
        first.result()
        before = sent(s3, prefix)
        second = pool.submit(read_epoch, loaders[:2])
        seen = read(2)
        node.kill()
        node.wait()
        node = start(epochs=1, state=seen[-1][1], stop=None)
        seen += read(steps - 2)
        found = second.result()
    assert sorted([*found, *(each for ids, _ in seen for each in ids)]) == sorted(EXPECTED)
    assert sent(s3, prefix) - before <= 0.6 * STORED


def test_other_nodes_of_a_resumed_job_get_what_the_first_ones_hold(s3, tmp_path) -> None:
    urls = put_indexed_shards(s3, "resized", SIZES, num_bytes=SAMPLE_BYTES)
    with nodes(s3, urls, tmp_path, ["a", "b", "c"], shuffle="full") as loaders:
        assert read_epoch(loaders) == EXPECTED
        state = loaders[0].state_dict()
    before = sent(s3, "resized")
    with nodes(s3, urls, tmp_path, ["c", "d", "b", "a"], shuffle="full", batch_size=6) as loaders:
        for each in loaders:
            each.load_state_dict(state)
        assert read_epoch(loaders) == EXPECTED
    assert sent(s3, "resized") - before <= 0.03 * STORED


def _close_server(server: BlockServer, answer: Any) -> None:
    server.close()
    server._serve = lambda connection, _: connection.close()


def _flip_a_bit(server: BlockServer, answer: Any) -> None:
    def lie(body: Any) -> Iterator[frames.Encoded]:
        for true in answer(body):
            wrong = [np.frombuffer(each, np.uint8).copy() for each in true.buffers]
            for each in wrong[:1]:
                each[len(each) // 2] ^= 1
            yield replace(true, buffers=tuple(wrong))

    server._answers = lie


def _send_other_blocks(server: BlockServer, answer: Any) -> None:
    server._answers = lambda _: [frames.encoded(7, [np.zeros(10, np.uint8)])]


def _stop_after_a_block(server: BlockServer, answer: Any) -> None:
    def stop(body: Any) -> Iterator[frames.Encoded]:
        yield from islice(answer(body), 1)
        threading.Event().wait()

    server._answers = stop


def _lose_all(server: BlockServer, answer: Any) -> None:
    server._answers = lambda body: (
        answer(body) if body is None else [frames.encoded(None) for _ in body[1]]
    )


@pytest.mark.parametrize(
    "harm",
    [_close_server, _flip_a_bit]
    + [
        pytest.param(each, marks=pytest.mark.long)
        for each in (_stop_after_a_block, _send_other_blocks, _lose_all)
    ],
)
def test_a_node_that_fails_costs_what_it_held_and_no_byte(s3, tmp_path, monkeypatch, harm) -> None:
    if harm is _stop_after_a_block:
        monkeypatch.setattr(peers, "_ANSWER_S", 0.5)
    prefix = f"harm{harm.__name__}"
    urls = put_indexed_shards(s3, prefix, SIZES, num_bytes=SAMPLE_BYTES)
    with nodes(s3, urls, tmp_path, ["a", "b", "c"], shuffle="full") as loaders:
        assert read_epoch(loaders) == EXPECTED
        server = loaders[0].dataset.source._pool.options.cache.opened.peers._server
        harm(server, server._answers)
        before = sent(s3, prefix)
        assert read_epoch(loaders) == EXPECTED
    # It holds a third, which two others fetch, one of them in its place for the other.
    assert sent(s3, prefix) - before <= 0.8 * STORED


@pytest.mark.long
def test_a_store_whose_connections_break_sends_little_more(s3: S3Server, tmp_path: Path) -> None:
    urls = put_indexed_shards(s3, "broken", SIZES, num_bytes=SAMPLE_BYTES)
    with TcpProxy(int(s3.endpoint.rpartition(":")[2])) as proxy:
        behind = s3.behind(f"http://127.0.0.1:{proxy.port}")
        with nodes(behind, urls, tmp_path, ["a", "b", "c"], shuffle="full") as loaders:
            before = sent(s3, "broken")
            is_over = threading.Event()

            def break_all() -> None:
                while not is_over.wait(0.1):
                    proxy.drop()

            breaking = threading.Thread(target=break_all)
            breaking.start()
            try:
                assert [read_epoch(loaders) for _ in range(3)] == [EXPECTED] * 3
            finally:
                is_over.set()
                breaking.join()
    assert sent(s3, "broken") - before <= 1.6 * STORED


@pytest.mark.parametrize(
    ("wrong", "why"),
    [
        ({"share": 1}, "share=1"),
        ({"peers": "tcp://a:1"}, "need share=True"),
        ({"share": True, "peers": "tcp://a:1"}, "token_file="),
        ({"share": True, "peers": "tls://a:1", "token_file": "t"}, "tls_cert="),
        ({"share": True, "peers": "a"}, "no address"),
    ],
)
def test_settings_that_do_not_go_together_are_refused(tmp_path, wrong, why) -> None:
    with pytest.raises((TypeError, ValueError), match=why):
        sw.CacheSettings(tmp_path, **wrong)


def test_a_loader_without_other_ranks_says_so_and_reads_on(s3, tmp_path, caplog) -> None:
    urls = put_indexed_shards(s3, "alone", [8], num_bytes=1000)
    cache = sw.CacheSettings(tmp_path, share=True)
    data = sw.tar(urls, storage={"config": s3.config}, cache=cache).select("bin")
    with loader(data, batch_size=4) as batches:
        assert sum(len(batch["bin"]) for batch in batches) == 8
    assert "not shared" in caplog.text


def test_a_program_that_ends_while_ranks_are_missing_leaves_no_thread_in_the_groups_store(
    s3, tmp_path
) -> None:
    """In C++ code of torch, it would abort the process: 8 of 10 runs of a thread that polls."""
    printed = printed_by(
        """
        import atexit, json, sys, threading, weakref

        # The first to be registered runs last.
        atexit.register(lambda: print([t.name for t in threading.enumerate()]))
        import torch.distributed as dist

        import shardwise as sw
        from shardwise.extensions.share import peers, sharing

        peers.JOIN_S = 0.1
        dist.init_process_group("gloo", store=dist.HashStore(), rank=0, world_size=1)
        folder, urls, storage = json.loads(sys.argv[1])
        cache = sw.CacheSettings(folder, share=True)
        data = sw.tar(urls, storage=storage, cache=cache)
        batches = iter(sw.DataLoader(data, batch_size=8, rank=0, world_size=2, num_threads=1))
        next(batches)
        assert "shardwise-homes" in [t.name for t in threading.enumerate()]
        # Nothing of the loader keeps the group's threads.
        group = weakref.ref(dist.group.WORLD)
        dist.destroy_process_group()
        assert group() is None
        """,
        json.dumps([str(tmp_path), put_indexed_shards(s3, "ends", SIZES), s3.unhedged]),
    )
    assert "shardwise-homes" not in printed
    assert "MainThread" in printed


def test_a_program_whose_main_function_has_ended_shares_as_long_as_its_threads_train(
    s3, tmp_path
) -> None:
    printed = printed_by(
        """
        import json, logging, sys, threading

        import torch.distributed as dist

        import shardwise as sw
        from shardwise.extensions.share import peers, sharing

        peers.JOIN_S = sharing.JOIN_S = 0.1
        said = threading.Event()
        logging.getLogger("shardwise").addFilter(lambda _: said.set() or True)
        dist.init_process_group("gloo", store=dist.HashStore(), rank=0, world_size=1)
        folder, urls, storage = json.loads(sys.argv[1])
        data = sw.tar(urls, storage=storage, cache=sw.CacheSettings(folder, share=True))
        loader = sw.DataLoader(data, batch_size=8, rank=0, world_size=2, num_threads=0)

        def train():
            threading.main_thread().join()
            said.clear()
            batches = iter(loader)
            next(batches)
            print("waits for the other rank:", said.wait(20))
            dist.destroy_process_group()

        threading.Thread(target=train).start()
        """,
        json.dumps([str(tmp_path), put_indexed_shards(s3, "threads", SIZES), s3.unhedged]),
    )
    assert "waits for the other rank: True" in printed


def test_the_interpreters_end_waits_once_for_all_threads_in_a_store_that_hangs(monkeypatch) -> None:
    now, ending = 100.0, threading.Event()

    class Hanging(threading.Event):
        def wait(self, timeout: float | None = None) -> bool:
            nonlocal now
            assert timeout is not None
            now += max(0.0, timeout)
            return False

    monkeypatch.setattr(sharing.time, "monotonic", lambda: now)
    monkeypatch.setattr(sharing, "_end_at", functools.cache(sharing._end_at.__wrapped__))
    left = threading.Event()
    left.set()
    sharing._wait_for(left, ending, os.getpid())
    sharing._wait_for(Hanging(), ending, os.getppid())
    assert not ending.is_set()
    for _ in range(3):
        sharing._wait_for(Hanging(), ending, os.getpid())
    assert ending.is_set()
    assert now == 105
