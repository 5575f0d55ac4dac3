"""Samples that were counted: how many, and their word. Sums and differences of them.

Words of parts add up to the word of the whole, see `shardwise.plan.id_word`.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from operator import add, sub
from typing import Any

MODULUS = 2**61 - 1

# A verdict's remark on samples whose indices alone were counted.
_GIVEN = "of them as indices given to torch's DataLoader, which reads ahead"


@dataclass(frozen=True, slots=True)
class Tallied:
    """Some samples: how many, and their word."""

    count: int = 0
    word: int = 0

    def __add__(self, other: Tallied) -> Tallied:
        return Tallied(self.count + other.count, (self.word + other.word) % MODULUS)

    def __sub__(self, other: Tallied) -> Tallied:
        return Tallied(self.count - other.count, (self.word - other.word) % MODULUS)


@dataclass(frozen=True, slots=True)
class Counted:
    """Sums over some batches, see `CoverageLine`; `num_padded` are rows that only fill a batch."""

    handed_out: Tallied = Tallied()
    skipped: Tallied = Tallied()
    replaced: Tallied = Tallied()
    num_padded: int = 0
    left_out: Tallied = Tallied()

    def __add__(self, other: Counted) -> Counted:
        return Counted(*map(add, self._parts, other._parts))

    def __sub__(self, other: Counted) -> Counted:
        return Counted(*map(sub, self._parts, other._parts))

    @property
    def _parts(self) -> tuple[Any, ...]:
        return self.handed_out, self.skipped, self.replaced, self.num_padded, self.left_out

    @property
    def planned(self) -> Tallied:
        """All samples as planned, whatever their outcome."""
        return self.handed_out + self.skipped + self.replaced + self.left_out

    def remarks(
        self,
        *,
        num_dropped: int,
        num_given: int,
        num_excluded: int,
        num_removed: int,
        steps_skipped: Sequence[str],
        spec: str = "",
    ) -> list[str]:
        """Explain in words why samples were not returned as they are.

        Removed samples are among the excluded; `spec` is the format of numbers.
        """
        on_purpose = []
        if self.left_out.count:
            steps = ", ".join(steps_skipped)
            on_purpose.append(f"{self.left_out.count:{spec}} samples at steps {steps}")
        for number, why in ((num_excluded - num_removed, "by exclude="), (num_removed, "removed")):
            if number:
                on_purpose.append(f"{number:{spec}} samples {why}")
        return [
            f"{number:{spec}} {words}"
            for number, words in (
                (self.skipped.count, "skipped as damaged"),
                (self.replaced.count, "replaced by others"),
                (num_dropped, "left out at the end"),
                (self.num_padded, "rows of padding"),
                (num_given, _GIVEN),
            )
            if number
        ] + [f"left out on purpose: {', '.join(on_purpose)}"] * bool(on_purpose)
