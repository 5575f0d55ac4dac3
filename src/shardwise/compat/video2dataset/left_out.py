"""What is left out of the epochs, counted by reason over all workers of a loader (I6)."""

from __future__ import annotations

from torch.utils.data import get_worker_info

from shardwise.torch.shared_integers import SharedIntegers

__all__ = ["REASONS", "LeftOut"]

REASONS = (
    "too short", "too few fps", "bad", "missing keys", "aesthetics", "language", "unsafe",
    "last batch",
)  # fmt: skip
# Each worker counts in cells of its own, so that no lock is needed.
_MAX_WORKERS = 256


class LeftOut:
    """Counts in memory that workers share with the program."""

    def __init__(self) -> None:
        self._cells = SharedIntegers([0] * (len(REASONS) * _MAX_WORKERS))

    def add(self, reason: str, count: int = 1) -> None:
        """Count samples of this worker."""
        info = get_worker_info()
        worker = 0 if info is None else info.id % _MAX_WORKERS
        cell = worker * len(REASONS) + REASONS.index(reason)
        self._cells[cell] = self._cells[cell] + count

    def counts(self) -> dict[str, int]:
        """How many by reason, since the dataset was made; reasons without any are left away."""
        totals = {
            reason: sum(self._cells[w * len(REASONS) + i] for w in range(_MAX_WORKERS))
            for i, reason in enumerate(REASONS)
        }
        return {reason: total for reason, total in totals.items() if total}
