"""Files read in sequence by long requests: the right bytes over any line, of one version."""

from __future__ import annotations

import random

import pytest

from shardwise.base.errors import StaleIndexError
from shardwise.storage import Scan, StorageOptions, open_file
from tests.support.fault_proxy import FaultProxy
from tests.support.io_counts import counted_io
from tests.support.remote_shards import replace_object

NUM_BYTES = (60 << 20) + 4321
STEP = 3 << 20


@pytest.fixture(scope="module")
def content():
    return random.Random(5).randbytes(NUM_BYTES)


@pytest.fixture(scope="module")
def url(s3, content):
    return s3.put("streams/whole.bin", content)


def opened(s3, url, **options):
    file = open_file(url, options=StorageOptions(config=s3.config, **options))
    file.pin(file.stat())
    return file


def read_all(file, content):
    scan, buffer = Scan(file, NUM_BYTES), bytearray(STEP)
    for start in range(0, NUM_BYTES, STEP):
        stop = min(NUM_BYTES, start + STEP)
        view = memoryview(buffer)[: stop - start]
        scan.read_into(start, view)
        assert view == content[start:stop]
    scan.close()
    file.close()


def test_a_file_comes_by_few_requests_and_each_byte_once(s3, url, content):
    with counted_io() as counts:
        read_all(opened(s3, url, hedge=False), content)
    assert counts["bytes"] == NUM_BYTES
    # Behind the first seven at most they are 8 MiB long.
    assert counts["requests"] <= 7 + NUM_BYTES / (8 << 20)


@pytest.mark.parametrize(
    "faults",
    [
        pytest.param({"cut_share": 0.4}, marks=pytest.mark.long),
        {"cut_share": 0.4, "hide_etag": True},
        {"reset_share": 0.4},
        pytest.param({"stall_share": 0.3}, marks=pytest.mark.long),
        pytest.param({"stall_share": 0.3, "stall_head": True}, marks=pytest.mark.long),
        pytest.param({"error_share": 0.4}, marks=pytest.mark.long),
        {"cut_share": 0.2, "error_share": 0.2, "stall_share": 0.1, "latency_s": 0.02},
        {"cut_share": 0.5, "cut_after": 1 << 20},
    ],
    ids=", ".join,
)
def test_over_a_bad_line_every_byte_is_right(s3, url, content, faults):
    with FaultProxy(s3.endpoint, seed=3, **faults) as proxy:
        read_all(opened(s3.behind(proxy.url), url, max_attempts=30), content)
        counts = proxy.counts()
    for fault in ("cut", "reset", "stall", "error"):
        assert (counts[fault] > 0) == (f"{fault}_share" in faults)


def test_where_each_reply_is_slow_several_come_at_a_time(s3, url, content):
    with FaultProxy(s3.endpoint, seed=3, reply_bandwidth=30e6) as proxy:
        read_all(opened(s3.behind(proxy.url), url), content)
        assert proxy.counts()["most_at_once"] >= 2


def test_a_file_that_is_replaced_while_it_is_read_ends_it(s3, content):
    url = s3.put("streams/replaced.bin", content)
    file = opened(s3, url)
    for start in range(0, 12 << 20, STEP):
        file.read(start, STEP)
    replace_object(s3, url, content[::-1])
    with pytest.raises(StaleIndexError, match="replaced"):
        for start in range(12 << 20, NUM_BYTES - STEP, STEP):
            # What was on its way when it was replaced may still come, and is of the old one.
            assert file.read(start, STEP) == content[start : start + STEP]
    file.close()
