"""A checksum (word) of a multiset of sample ids: a keyed sum, whatever the order or partition.

The word of some ids is the sum of b**id modulo the prime 2**61 - 1, with a base b drawn from the
data's fingerprint and the epoch. Words of parts add up to the word of the whole, and the word of a
range of ids is a geometric series, so that what an epoch must come to is one line of arithmetic for
any number of samples. Two different multisets of ids below N have the same word for at most N of
the 2**61 bases (a polynomial of degree N has N roots at most): 5e-9 of them at N = 10^10.

What an epoch's words must come to is found in closed form, or by walking its plan.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from operator import add, sub
from typing import Any

import numpy as np
from numpy.typing import NDArray

from shardwise.plan.plan import Plan
from shardwise.plan.protocol import Sampler, epoch_parts

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


_Table = NDArray[np.uint64]

# 16 bits a limb: products have 32 bits, and the sum of 4,096 of them is exact in a float64.
_LIMB_BITS = 16
_BLOCK = 4_096
# Below this many ids pow() takes less than making tables does, 1.4 ms.
_MIN_FOR_TABLES = 512
# Two tables of 4,096 powers (32 KiB each) know ids below 2**24. For larger ids they grow, to
# 512 KiB and 2 MiB, which know ids below 2**34, 1.7 * 10^10, and stay in a core's cache.
_MIN_BITS, _MAX_LOW_BITS, _MAX_HIGH_BITS = 12, 16, 18


class IdWord:
    """The key of an epoch's words; computes the words of sample ids.

    Adding many ids at once costs about 6 ns each; ranges cost nothing. Pickles without its tables.

    >>> word = IdWord("0123456789abcdef", epoch=3)
    >>> word.of(np.array([2, 0, 1, 3])) == word.of_range(range(4))
    True
    """

    def __init__(self, fingerprint: str, epoch: int) -> None:
        text = f"shardwise certificate 1 {fingerprint} {epoch}"
        drawn = int.from_bytes(hashlib.sha256(text.encode()).digest()[:16], "little")
        # Neither 0 nor 1 nor -1, whose powers are the same for many ids.
        self._base = 2 + drawn % (MODULUS - 3)
        self._key = (fingerprint, epoch)
        self._bits = (0, 0)
        self._tables: tuple[_Table, _Table] | None = None

    def of(self, ids: NDArray[np.int64]) -> int:
        """Compute the word of ids, in [0, 2**61 - 1); each counts as often as it is there."""
        if len(ids) < _MIN_FOR_TABLES and self._tables is None:
            return sum(pow(self._base, i, MODULUS) for i in ids.tolist()) % MODULUS
        total = 0
        for start in range(0, len(ids), _BLOCK):
            total += self._of_block(ids[start : start + _BLOCK])
        return total % MODULUS

    def of_range(self, ids: range) -> int:
        """Compute the word of a range of ids in closed form: 10 us at any length."""
        if ids.step != 1 or ids.start < 0:
            raise ValueError(f"{ids} is no run of sample ids")
        ratio = pow(self._base, len(ids), MODULUS) - 1
        first = pow(self._base, ids.start, MODULUS)
        return first * ratio * pow(self._base - 1, -1, MODULUS) % MODULUS

    def of_parts(self, parts: Iterable[range | NDArray[np.int64]]) -> tuple[int, int]:
        """Count the ids in ranges and arrays, and compute their word."""
        count = word = 0
        for part in parts:
            count += len(part)
            word += self.of_range(part) if isinstance(part, range) else self.of(part)
        return count, word % MODULUS

    def _of_block(self, ids: NDArray[np.int64]) -> int:
        largest = int(ids.max())
        low, high = self._make_tables(largest)
        bits, known = self._bits[0], sum(self._bits)
        if largest >> known:
            # One sum for each part of 2**34 ids; few parts are met.
            above, total = ids >> known, 0
            for part in np.unique(above).tolist():
                rest = ids[above == part] - (part << known)
                total += pow(self._base, part << known, MODULUS) * self._of_block(rest)
            return total
        # b**id = low * high, in limbs: their products, summed over all ids, are a 4 x 4 matrix.
        products = _limbs(low.take(ids & (1 << bits) - 1)).T @ _limbs(high.take(ids >> bits))
        total = 0
        for i, row in enumerate(products.tolist()):
            for j, product in enumerate(row):
                total += int(product) << _LIMB_BITS * (i + j)
        return total

    def _make_tables(self, largest: int) -> tuple[_Table, _Table]:
        """Return the tables, rebuilt if an id is larger than they cover."""
        total = largest.bit_length()
        low = min(max(_MIN_BITS, -(-total // 2)), _MAX_LOW_BITS)
        high = min(max(low, total - low), _MAX_HIGH_BITS)
        if self._tables is None or low + high > sum(self._bits):
            self._bits = (low, high)
            step = pow(self._base, 1 << low, MODULUS)
            self._tables = _powers(self._base, 1 << low), _powers(step, 1 << high)
        return self._tables

    def __reduce__(self) -> tuple[type[IdWord], tuple[str, int]]:
        return IdWord, self._key


def _limbs(powers: _Table) -> NDArray[np.float64]:
    """Numbers in limbs, the lowest first: float64 `[count, 4]`."""
    # Converted here: tables of limbs would be four times as large, and missed in the cache.
    return powers.view("<u2").astype(np.float64).reshape(-1, 4)


def _powers(base: int, count: int) -> _Table:
    """base**0, base**1, ...: `[count]`, little-endian, for `_limbs`."""
    table = np.empty(count, dtype="<u8")
    power = 1
    for i in range(count):
        table[i] = power
        power = power * base % MODULUS
    return table


Ids = NDArray[np.int64]

# Rows that are walked by one numpy call, about 0.15 to 0.3 us each: 0.5 MB of ids.
_BLOCK_ROWS = 65_536


def epoch_samples(sampler: Sampler, epoch: int, word: IdWord) -> Tallied | None:
    """All samples of an epoch; None where the sampler knows no closed form of them."""
    parts = epoch_parts(sampler, epoch)
    return None if parts is None else Tallied(*word.of_parts(parts))


def rank_ids(plan: Plan, epoch: int, steps: range, rank: int) -> Ids:
    """The sample ids that the plan gives a rank at some steps, without padding: int64 `[k]`."""
    positions, valid = plan.positions(epoch, steps, rank)
    return plan.ids(epoch, positions[valid])


def planned_samples(plan: Plan, epoch: int, steps: range, rank: int, word: IdWord) -> Tallied:
    """Tally the samples that the plan gives a rank at some steps, by walking it: 0.2 us each."""
    count = total = 0
    size = max(1, _BLOCK_ROWS // plan.rows_dealt)
    for first in range(steps.start, steps.stop, size):
        ids = rank_ids(plan, epoch, range(first, min(first + size, steps.stop)), rank)
        count, total = count + len(ids), total + word.of(ids)
    return Tallied(count, total % MODULUS)


def padded_rows(plan: Plan, epoch: int, steps: range, rank: int) -> int:
    """The rows of a rank that only fill its batches at some steps."""
    if plan.remainder != "pad":
        return 0
    return int(np.count_nonzero(~plan.positions(epoch, steps, rank)[1]))


def dropped_samples(plan: Plan, epoch: int, word: IdWord) -> Tallied:
    """The samples at an epoch's end that no rank gets: fewer than a global batch."""
    count = plan.num_dropped
    if not count:
        return Tallied()
    return Tallied(count, word.of(plan.ids(epoch, plan.last_positions(count))))


def left_out_samples(plan: Plan, epoch: int, first: int, last: int, word: IdWord) -> Tallied:
    """The samples that are left out on purpose between two positions, over all ranks."""
    places = plan.order.left_out(epoch)
    places = places[(places >= first) & (places < last)]
    return Tallied(len(places), word.of(plan.ids(epoch, places)))


def num_removed(plan: Plan, epoch: int, first: int, last: int) -> int:
    """Count the positions from `first` to `last` whose samples the data no longer has."""
    removed = plan.order.removed
    places = np.empty(0) if removed is None else removed.positions(plan.sampler, epoch)
    return int(np.count_nonzero((places >= first) & (places < last)))
