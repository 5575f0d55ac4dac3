"""How many requests are on their way is found out from what comes."""

from __future__ import annotations

import heapq

import pytest

from shardwise.extensions.remote.prefetch.concurrency import MIN_REQUEST_BYTES, AdaptiveConcurrency

BLOCK = 4 << 20
MOST = 192 << 20


class Store:
    """A store behind a line of so many bytes a second, which sends each reply at a rate of its own.

    Time is simulated: blocks come in turn from the requests that are on their way.
    """

    def __init__(self, *, latency_s, line, reply=float("inf"), most_bytes=MOST, most_requests=64):
        self.latency_s = latency_s
        self.line = line
        self.reply = reply
        self.now = 0.0
        self.num_bytes = 0
        self.most_seen = 0
        self.flow = AdaptiveConcurrency(most_bytes, most_requests, clock=lambda: self.now)
        # When the next block of each request is there, and how many of its bytes are left.
        self._coming = []
        self._free_at = 0.0

    def read(self, seconds, *, starves=True):
        """Read so long, as quickly as it comes; the bytes a second."""
        began, before = self.now, self.num_bytes
        while self.now < began + seconds:
            target = self.flow.target
            while len(self._coming) < target.num_requests:
                self._send(self.now + self.latency_s, target.request_bytes)
            self.most_seen = max(self.most_seen, sum(left for _, left in self._coming))
            self.now, left = heapq.heappop(self._coming)
            self.num_bytes += BLOCK
            if starves:
                self.flow.note_waiting_reader()
            self.flow.add(BLOCK, self.latency_s)
            if left > BLOCK:
                self._send(self.now, left - BLOCK)
        return (self.num_bytes - before) / (self.now - began)

    def _send(self, at, left):
        self._free_at = max(self._free_at, at) + BLOCK / self.line
        there = max(self._free_at, at + BLOCK / self.reply)
        heapq.heappush(self._coming, (there, left))


@pytest.mark.parametrize("latency_s", [0.001, 0.03])
@pytest.mark.parametrize("line", [200e6, 1e9])
def test_where_replies_are_slow_many_are_on_their_way(latency_s, line):
    store = Store(latency_s=latency_s, line=line, reply=80e6)
    store.read(20)
    assert store.read(10) > 0.75 * min(line, 80e6 * MOST // MIN_REQUEST_BYTES)


@pytest.mark.parametrize("rate", [20e6, 200e6, 1e9])
def test_where_the_line_is_slow_few_are_on_their_way(rate):
    store = Store(latency_s=0.001, line=rate)
    store.read(20 * max(1, 200e6 / rate))
    assert store.flow.target.num_requests <= 2
    assert store.flow.target.request_bytes == 64 << 20


def test_a_store_that_changes_is_found_out_about():
    store = Store(latency_s=0.001, line=1e9)
    store.read(10)
    store.reply = 50e6
    store.read(60)
    assert store.flow.target.num_requests >= 8
    store.reply = float("inf")
    store.read(400)
    assert store.flow.target.num_requests <= 4


def test_nothing_is_tried_while_the_reader_does_not_wait():
    store = Store(latency_s=0.03, line=1e9, reply=80e6)
    store.read(20, starves=False)
    assert store.flow.target.num_requests == 4


def test_memory_and_requests_bound_it():
    store = Store(latency_s=0.03, line=10e9, reply=80e6, most_bytes=40 << 20)
    store.read(30)
    assert store.most_seen <= 40 << 20
    store = Store(latency_s=0.03, line=10e9, reply=80e6, most_requests=3)
    store.read(30)
    assert store.flow.target.num_requests == 3


def test_more_is_ahead_where_the_way_is_long():
    near, far = Store(latency_s=0.001, line=1e9), Store(latency_s=0.05, line=1e9)
    near.read(30)
    far.read(30)
    assert near.flow.target.ahead_bytes < far.flow.target.ahead_bytes <= MOST


def test_before_anything_came_there_are_four_long_ones_and_a_lead():
    target = AdaptiveConcurrency(MOST, 64).target
    assert target == (4, 40 << 20, 192 << 20)
