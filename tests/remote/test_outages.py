"""A store that goes away for a while: the epoch waits, stays exact, and can be ended."""

from __future__ import annotations

import json
import os
import re
import signal
import subprocess
import sys
import threading
import time
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from pathlib import Path

import pytest

import shardwise as sw
from shardwise.extensions.remote.requests import outage
from shardwise.storage import outages
from tests.support.fault_proxy import FaultProxy
from tests.support.ranks import run_ranks
from tests.support.remote_shards import put_indexed_shards
from tests.support.torchrun import PYTHON_PATH
from tests.support.waiting import wait_for

PROGRAM = Path(__file__).parent / "programs" / "waits.py"
NUM_SAMPLES, NUM_BYTES = 60, 200_000


@pytest.fixture(scope="module")
def urls(s3):
    return put_indexed_shards(s3, "away", [25, 35], num_bytes=NUM_BYTES)


def take_ctrl_c():
    """In a child before exec: tests that run in the background ignore SIGINT, and so would it."""
    signal.signal(signal.SIGINT, signal.default_int_handler)


@contextmanager
def reading(proxy, s3, urls):
    """The program, reading alone through the proxy."""
    process = subprocess.Popen(
        [sys.executable, PROGRAM, "alone", *urls],
        stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True,
        env={**os.environ, **s3.behind(proxy.url).environment, "PYTHONPATH": PYTHON_PATH},
        preexec_fn=take_ctrl_c,  # noqa: PLW1509 - one system call
    )  # fmt: skip
    try:
        yield process
    finally:
        process.kill()
        process.wait()
        process.stdout.close()
        process.stderr.close()


def read_until(process, word):
    """Read its stderr up to the line that is `word`."""
    lines = []
    while not lines or lines[-1].strip() != word:
        lines.append(process.stderr.readline())
        assert lines[-1], "".join(lines)


def wait_until_said(output, ended, text, times):
    """Wait until the ranks have written a text so often."""

    def is_said():
        assert not ended.done(), ended.result()
        return output.exists() and output.read_text().count(text) >= times

    wait_for(is_said)


def waiting(s3):
    """The outages of this file's shards: others may belong to what an earlier test left behind."""
    return [each for each in outages() if s3.url("away/") in each]


def test_an_epoch_waits_for_a_store_and_is_exact(s3, urls, monkeypatch, caplog):
    monkeypatch.setattr(outage, "_WARN_AFTER_S", 0.5)
    ids, begun = [], threading.Event()

    def read(loader):
        for batch in loader:
            ids.extend(batch["__index__"].tolist())
            assert {len(each) for each in batch["bin"]} == {NUM_BYTES}
            begun.set()

    with FaultProxy(s3.endpoint, bandwidth=3e6) as proxy, ThreadPoolExecutor(1) as pool:
        data = sw.tar(urls, storage={**s3.behind(proxy.url).config, "prefetch_bytes": 4 << 20})
        with sw.DataLoader(data, batch_size=2, shuffle=True, num_threads=2, output="numpy") as made:
            ended = pool.submit(read, made)
            wait_for(lambda: begun.is_set() or ended.done())
            proxy.leave()
            wait_for(lambda: "/away/" in caplog.text or ended.done())
            proxy.come_back()
            ended.result()
            assert made.stats()["outage_s"] > 0.4
    assert sorted(ids) == list(range(NUM_SAMPLES))
    said = [each.message for each in caplog.records if "/away/" in each.message]
    # With so short a bound, a request that was refused late may begin another one.
    assert "has not answered" in said[0], said
    assert "answers again" in said[-1], said


@pytest.mark.long
def test_an_epoch_on_two_ranks_waits_for_a_store_and_is_exact(s3, urls, tmp_path):
    output = tmp_path / "0.out"
    # Thin, so that the epoch is not over before the store goes away.
    with FaultProxy(s3.endpoint, bandwidth=3e6) as proxy, ThreadPoolExecutor(1) as pool:
        env = s3.behind(proxy.url).environment
        options = {"nproc": 2, "env": env, "timeout": 240, "folder": tmp_path}
        ended = pool.submit(run_ranks, PROGRAM, "ranks", *urls, **options)
        wait_until_said(output, ended, "begun\n", 2)
        proxy.leave()
        # The warning comes later than the end of any count of quick attempts. One a process that
        # reads, not one a request.
        wait_until_said(output, ended, "has not answered", 2)
        proxy.come_back()
        said = ended.result().stdout
    ranks = [json.loads(line) for line in said.splitlines() if line.startswith("{")]
    assert sorted(i for rank in ranks for i in rank["ids"]) == list(range(NUM_SAMPLES))
    assert all(rank["sizes"] == [NUM_BYTES] for rank in ranks)
    assert all(rank["outage_s"] > 5 for rank in ranks)
    away = re.findall(r"the store of .* has not answered for 1\d s \((.*)\): trying .*", said)
    assert len(away) == 2, said
    assert said.count("answers again") == 2, said


def test_a_program_that_waits_for_a_store_ends_at_ctrl_c(s3, urls):
    with FaultProxy(s3.endpoint, bandwidth=3e6) as proxy:
        with reading(proxy, s3, urls) as process:
            read_until(process, "begun")
            proxy.leave()
            read_until(process, "waits")
            process.send_signal(signal.SIGINT)
            _, err = process.communicate(timeout=60)
            assert process.returncode in (1, 130, -signal.SIGINT), err
            assert "KeyboardInterrupt" in err


def test_a_loader_with_a_shorter_timeout_names_the_store(s3, urls):
    with FaultProxy(s3.endpoint, bandwidth=1e6) as proxy:
        data = sw.tar(urls, storage={**s3.behind(proxy.url).config, "prefetch_bytes": 0})
        with sw.DataLoader(data, batch_size=4, num_threads=2, output="numpy") as patient:
            next(iter(patient))
        proxy.leave()
        # Begun without the store: on a busy machine the first batch alone may take 3 s.
        loader = sw.DataLoader(data, batch_size=4, num_threads=2, timeout=3, output="numpy")
        with pytest.raises(sw.StallError, match=r"for 's3://.*/away/.*: connection refused"):
            list(loader)
        # The thread that waited has given its request up, which would be retried for 300 s.
        wait_for(lambda: not waiting(s3))
        loader.close()


@pytest.mark.parametrize("executor", [{"num_threads": 2}, {"num_workers": 1}], ids=str)
def test_close_does_not_wait_for_a_store(s3, urls, executor):
    with FaultProxy(s3.endpoint, bandwidth=1e6) as proxy:
        data = sw.tar(urls, storage={**s3.behind(proxy.url).config, "prefetch_bytes": 0})
        loader = sw.DataLoader(data, batch_size=4, output="numpy", **executor)
        batches = iter(loader)
        next(batches)
        proxy.leave()
        if "num_threads" in executor:
            wait_for(lambda: waiting(s3))
        began = time.monotonic()
        loader.close()
        # Far from the 300 s of a request; a bound that a busy machine meets.
        assert time.monotonic() - began < 30


def test_close_ends_what_a_cache_fetches_ahead(s3, urls, tmp_path):
    before = set(threading.enumerate())

    def fetching():
        every = set(threading.enumerate()) - before
        return [thread for thread in every if thread.name == "shardwise-cache"]

    with FaultProxy(s3.endpoint, bandwidth=1e6) as proxy:
        config = s3.behind(proxy.url).config
        cache = sw.CacheSettings(tmp_path / "cache", block_bytes=256 << 10)
        data = sw.tar(urls, storage=config, cache=cache)
        loader = sw.DataLoader(data, batch_size=4, num_threads=2, output="numpy")
        batches = iter(loader)
        next(batches)
        proxy.leave()
        wait_for(lambda: waiting(s3) and fetching())
        held = fetching()
        loader.close()
        for thread in held:
            thread.join(60)
            assert not thread.is_alive()
        # Locks of blocks that were not fetched are released.
        assert not list((tmp_path / "cache").glob("*/parts/*"))
        batches.close()
