"""Concurrency: the worker processes and threads that load samples."""

from __future__ import annotations

from dataclasses import dataclass

__all__ = ["Concurrency"]


@dataclass(frozen=True, slots=True)
class Concurrency:
    """The processes and threads that build batches.

    Attributes:
        executor: "inline", "threads", "processes" or "service".
        num_workers: worker processes; 0 without any.
        num_threads: threads that load in each process; 0 where the caller's own thread does; of a
            service, its servers.
        num_prefetch: batches that are ready or in progress at most; 0 without prefetch.
        collate: whether they collate, too, which else the caller's thread does.
    """

    executor: str
    num_workers: int = 0
    num_threads: int = 0
    num_prefetch: int = 0
    collate: bool = False

    @property
    def count(self) -> int:
        """Threads that load side by side, over all processes; the caller's own counts as one."""
        return max(1, self.num_workers) * max(1, self.num_threads)

    def __str__(self) -> str:
        if self.executor == "inline":
            return "the caller's thread"
        if self.executor == "service":
            return f"{self.num_threads} batch server" + "s" * (self.num_threads != 1)
        threads = f"{self.num_threads} thread" + "s" * (self.num_threads != 1)
        if not self.num_workers:
            return threads
        processes = f"{self.num_workers} process" + "es" * (self.num_workers != 1)
        return processes if self.num_threads == 1 else f"{processes} of {threads}"
