"""Counters of the storage layer: exact in threads, zero in a forked child."""

from __future__ import annotations

from shardwise.base.counters import IoCounts
from tests.support.forks import in_child
from tests.support.threads import at_once


def test_threads_count_without_loss():
    counts = IoCounts()

    def work(_):
        for _ in range(2000):
            counts.add(requests=1, bytes=3)

    at_once(work, 4)
    found = counts.snapshot()
    assert found["requests"] == 8000
    assert found["bytes"] == 24000
    assert found["degraded"] == 0


def test_a_forked_child_begins_with_zeros_even_if_the_lock_was_held():
    counts = IoCounts()
    counts.add(retries=5)

    def child():
        counts.add(retries=1)
        return counts.snapshot()["retries"]

    with counts._lock:
        assert in_child(child) == 1
    assert counts.snapshot()["retries"] == 5
