"""Hands: who loads samples, and how many of them work side by side. Imports nothing."""

from __future__ import annotations

from dataclasses import dataclass

__all__ = ["Hands"]


@dataclass(frozen=True, slots=True)
class Hands:
    """What an executor makes batches with.

    Attributes:
        executor: "inline", "threads" or "processes".
        num_workers: worker processes; 0 without any.
        num_threads: threads that load in each process; 0 where the caller's own thread does.
        num_prefetch: batches that may be ready or under way at most; 0 without any ahead.
        collate: whether they put batches together, too, which else the caller's thread does.
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
        threads = f"{self.num_threads} thread" + "s" * (self.num_threads != 1)
        if not self.num_workers:
            return threads
        processes = f"{self.num_workers} process" + "es" * (self.num_workers != 1)
        return processes if self.num_threads == 1 else f"{processes} of {threads}"
