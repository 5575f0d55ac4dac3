"""A requested batch, and a server as its client knows it."""

from __future__ import annotations

import hashlib
import statistics
import time
from collections import deque
from dataclasses import dataclass, field
from queue import SimpleQueue
from typing import Any

from shardwise.base.errors import ServiceError
from shardwise.engine.request import Batch, BatchRequest

# Latencies that the median is taken of.
_NUM_LATENCIES = 64


@dataclass(slots=True, eq=False)
class Work:
    """One request by its `number`, until its batch, or an error, is its `result`.

    `shard` is that of its first sample, `holders` are the servers that have it now, `num_deaths`
    counts connections that ended meanwhile, and nobody waits for what `is_dropped`.
    """

    number: int
    request: BatchRequest
    shard: int
    result: Batch | Exception | None = None
    holders: list[Server] = field(default_factory=list)
    num_deaths: int = 0
    sent_at: float = 0.0
    is_local: bool = False
    is_dropped: bool = False

    @property
    def is_open(self) -> bool:
        return self.result is None and not self.is_dropped


class Server:
    """A server as its client sees it; changed under the dispatcher's lock.

    `credits` is the most works under way there; `held` has these with their times of sending.
    `outbox` is None without a connection; `trouble` is the reason. `refusal`: why it is not used.
    """

    def __init__(self, address: str) -> None:
        self.address = address
        self.outbox: SimpleQueue[Work | None] | None = None
        self.credits = 0
        self.held: dict[int, tuple[Work, float]] = {}
        self.trouble: str | None = None
        self.refusal: ServiceError | None = None
        self.num_malformed = 0
        self.num_connected = self.num_sent = self.num_answered = self.num_hedges = 0
        self.latencies: deque[float] = deque(maxlen=_NUM_LATENCIES)

    @property
    def is_live(self) -> bool:
        return self.outbox is not None

    @property
    def silence(self) -> str:
        """A description of the wait when `trouble` is empty."""
        return "connected, asked for batches" if self.is_live else "does not answer"

    @property
    def has_credit(self) -> bool:
        return self.outbox is not None and len(self.held) < self.credits

    def weight(self, shard: int) -> bytes:
        """Rank servers for a shard (rendezvous hashing): all clients agree, few shards move."""
        return hashlib.blake2b(f"{self.address} {shard}".encode(), digest_size=8).digest()

    def send(self, work: Work) -> None:
        assert self.outbox is not None
        now = time.monotonic()
        self.held[work.number] = (work, now)
        if not work.holders:
            work.sent_at = now
        work.holders.append(self)
        self.num_sent += 1
        self.outbox.put(work)

    def answered(self, number: int) -> Work | None:
        """The work of an answer, which it has no more; None where it had none of this number."""
        work, sent_at = self.held.pop(number, (None, 0.0))
        if work is not None:
            self.latencies.append(time.monotonic() - sent_at)
            self.num_answered += 1
            work.holders.remove(self)
        return work

    def stats(self) -> dict[str, Any]:
        median = statistics.median(self.latencies) if self.latencies else None
        return {
            "requests": self.num_sent,
            "answers": self.num_answered,
            "hedges": self.num_hedges,
            "reconnects": max(0, self.num_connected - 1),
            "latency_s": median,
            "is_connected": self.is_live,
        }
