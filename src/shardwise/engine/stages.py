"""Seconds by stage: where the time of a batch goes. Imports nothing."""

from __future__ import annotations

from dataclasses import dataclass, field

__all__ = ["Stages"]


@dataclass(slots=True)
class Stages:
    """Sums by stage ("read", "decode", "transform", "collate"); not shared between threads.

    Attributes:
        seconds: busy seconds by stage, summed over threads.
        num_bytes: bytes read from storage.
        cpu_s: seconds of these that loading had a core; less where it waited for storage, for
            the GIL or for a core.
    """

    seconds: dict[str, float] = field(default_factory=dict)
    num_bytes: int = 0
    cpu_s: float = 0.0

    def add(self, stage: str, seconds: float, num_bytes: int = 0) -> None:
        """Count what one stage took for some rows."""
        self.seconds[stage] = self.seconds.get(stage, 0.0) + seconds
        self.num_bytes += num_bytes

    def merge(self, other: Stages) -> None:
        """Add the sums of `other` to these."""
        for stage, seconds in other.seconds.items():
            self.add(stage, seconds)
        self.num_bytes += other.num_bytes
        self.cpu_s += other.cpu_s

    def total(self) -> float:
        """Busy seconds of all stages."""
        return sum(self.seconds.values())
