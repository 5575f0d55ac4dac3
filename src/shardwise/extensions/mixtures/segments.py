"""Segments of a mixture's schedule: constant weights, or a linear ramp between two.

A segment starts where the one before it ends: with the draws that each dataset had until then, and
those that its weights gave it a right to. The difference is carried over, so that it does not add
up over segments. A segment depends on those before it and on its own start and weights; a ramp on
its end, too.

The dataset of the n-th draw among K is a closed form without a history. A binary tree over the
datasets is halved by weight. A node with b parts, a of them on the left, is a Bresenham line with
the phase u: of its first n draws, left(n) = floor((n a + u) / b) go left. So draw n goes left iff
left(n + 1) > left(n), and it is number left(n) there, or n - left(n) on the right. Descending from
the root costs O(log K) array operations, for any n, and descending with all children gives how many
of the first n draws each dataset has. All in whole numbers below 2**63.
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Sequence
from fractions import Fraction
from itertools import accumulate
from math import gcd, lcm
from typing import Any

import numpy as np
from numpy.typing import NDArray

from shardwise.plan.permute import LastValues

Ints = NDArray[np.int64]

# A product of two parts, and one part more, stay below 2**63.
MAX_PARTS = 2**31
_HALF = Fraction(1, 2)


def whole_parts(shares: Sequence[Fraction]) -> list[int]:
    """Whole numbers in the ratio of the shares; a share above 0 has 1 part or more.

    The smallest of exactly this ratio; where their sum would exceed 2**31, that many parts, rounded
    by the largest remainder: after 10**9 draws that is a quarter of a draw.

    Args:
        shares: 0 or more each, not all 0.
    """
    common = lcm(*(share.denominator for share in shares))
    exact = [int(share * common) for share in shares]
    divisor = gcd(*exact)
    if sum(exact) // divisor <= MAX_PARTS:
        return [part // divisor for part in exact]
    whole = sum(shares)
    quotas = [share * MAX_PARTS / whole for share in shares]
    parts = [max(int(quota), quota > 0) for quota in quotas]
    by_rest = sorted(range(len(parts)), key=lambda i: parts[i] - quotas[i])
    for i in by_rest[: max(0, MAX_PARTS - sum(parts))]:
        parts[i] += 1
    # Shares that were raised to 1 part take it from the largest.
    parts[max(range(len(parts)), key=parts.__getitem__)] -= max(0, sum(parts) - MAX_PARTS)
    return parts


class MixtureTree:
    """Draws of K datasets in the ratio of their parts.

    Args:
        parts: whole numbers of 0 or more, at most 2**31 in all and not all 0. A dataset with 0 is
            never drawn.
        owed: draws that each dataset should have had before draw 0 beyond those it had; their sum
            is 0. The phases make up for up to half a draw a node. None for none.

    After any n draws, dataset k has n * parts[k] / sum(parts) of them, up to 2.4 more or fewer;
    after sum(parts) draws exactly parts[k].

    >>> which, number = MixtureTree([2, 1]).split(np.arange(6))
    >>> which, number
    (array([0, 1, 0, 0, 1, 0]), array([0, 0, 1, 2, 1, 3]))
    """

    def __init__(self, parts: Sequence[int], owed: Sequence[Fraction] | None = None) -> None:
        self.num_datasets = len(parts)
        leaves = sorted((k for k, part in enumerate(parts) if part), key=lambda k: -parts[k])
        self._ends = [0, *accumulate(parts[k] for k in leaves)]
        zero = Fraction(0)
        self._owed = None if owed is None else [zero, *accumulate(owed[k] for k in leaves)]
        self._leaves = leaves
        # A row a node: a, b, u, left child, right child. A child below 0 is the dataset -child - 1.
        self._nodes: list[tuple[int, int, int, int, int]] = []
        self._root = self._build(0, len(leaves))
        columns = np.array(self._nodes or [(0, 1, 0, 0, 0)], dtype=np.int64).T
        self._lefts, self._parts, self._phases = np.ascontiguousarray(columns[:3])
        # The children one after the other: `2 * node` is the right one, the next one the left.
        self._children = np.ascontiguousarray(columns[[4, 3]].T.ravel())

    def _build(self, low: int, high: int) -> int:
        """Build the node over the leaves [low, high); return its number."""
        if high - low == 1:
            return -self._leaves[low] - 1
        ends = self._ends
        # Halves of about the same parts: a dataset of weight w is about -log2(w) levels deep.
        middle = (ends[low] + ends[high]) // 2
        above = min(bisect_left(ends, middle, low + 1, high), high - 1)
        cut = min(max(above - 1, low + 1), above, key=lambda i: abs(ends[i] - middle))
        a, b = ends[cut] - ends[low], ends[high] - ends[low]
        number = len(self._nodes)
        self._nodes.append((0, 0, 0, 0, 0))
        children = self._build(low, cut), self._build(cut, high)
        self._nodes[number] = (a, b, self._phase(low, cut, high, a, b), *children)
        return number

    def _phase(self, low: int, cut: int, high: int, a: int, b: int) -> int:
        """Half of b, so that lines err to both sides alike; more where the left is owed draws."""
        if self._owed is None:
            return b // 2
        left = self._owed[cut] - self._owed[low]
        both = self._owed[high] - self._owed[low]
        share = _HALF + left - both * a / b
        return min(max(int(share * b), 0), b - 1)

    def split(self, draws: Ints) -> tuple[Ints, Ints]:
        """For each draw its dataset, and how many draws that dataset had before: int64 `[k]` each.

        Args:
            draws: int64 `[k]`, in [0, 2**62).
        """
        which = np.full(len(draws), -self._root - 1, dtype=np.int64)
        numbers = draws.copy()
        if self._root < 0:
            return which, numbers
        rows = np.arange(len(draws))
        node = np.full(len(draws), self._root, dtype=np.int64)
        n = numbers
        while len(rows):
            a, b = self._lefts[node], self._parts[node]
            # n = whole * b + rest keeps the products below 2**63.
            whole = n // b
            line = (n - whole * b) * a + self._phases[node]
            steps = line // b
            goes_left = line - steps * b >= b - a
            left = whole * a + steps
            n = np.where(goes_left, left, n - left)
            node = self._children[2 * node + goes_left]
            is_leaf = node < 0
            here = np.flatnonzero(is_leaf)
            done = rows[here]
            which[done] = -node[here] - 1
            numbers[done] = n[here]
            deeper = np.flatnonzero(~is_leaf)
            rows, node, n = rows[deeper], node[deeper], n[deeper]
        return which, numbers

    def counts(self, num_draws: int) -> list[int]:
        """Count each dataset's draws among the first `num_draws`; any whole number."""
        counts = [0] * self.num_datasets
        pending = [(self._root, num_draws)]
        while pending:
            node, n = pending.pop()
            if node < 0:
                counts[-node - 1] = n
                continue
            a, b, phase, left_child, right_child = self._nodes[node]
            left = (n * a + phase) // b
            pending += [(left_child, left), (right_child, n - left)]
        return counts


# Steps of a ramp. In one of them the weights are constant: over a ramp of n draws a dataset whose
# weight goes from 0 to 1 is off by n / 8 / 256**2 draws in the middle of a step, 2 of a million,
# and by less than one at its end.
_MAX_STEPS = 256


class ConstantSegment:
    """Draws by constant weights.

    Args:
        start: the first draw.
        weights: of all datasets; their sum is 1.
        before: draws that each dataset had before `start`.
        due: draws that its weights gave it a right to before `start`.
    """

    def __init__(
        self,
        start: int,
        weights: Sequence[Fraction],
        before: Sequence[int],
        due: Sequence[Fraction],
    ) -> None:
        self.start = start
        self.last_weights = tuple(weights)
        self._before = tuple(before)
        self._due = tuple(due)
        self._offsets = np.array(before, dtype=np.int64)
        # A dataset without a weight keeps what it is owed: the others share the rest.
        owed = [d - b if w else Fraction(0) for d, b, w in zip(due, before, weights, strict=True)]
        rest = sum(owed, Fraction(0))
        owed = [o - rest * w for o, w in zip(owed, weights, strict=True)]
        self._tree = MixtureTree(whole_parts(weights), owed)

    def split(self, draws: Ints) -> tuple[Ints, Ints]:
        """For each draw its dataset, and how many draws that had before, from draw 0 on."""
        which, numbers = self._tree.split(draws - self.start)
        return which, numbers + self._offsets[which]

    def counts(self, draw: int) -> list[int]:
        here = self._tree.counts(draw - self.start)
        return [before + count for before, count in zip(self._before, here, strict=True)]

    def due(self, draw: int) -> list[Fraction]:
        """The draws before `draw` that each dataset's weights give it a right to."""
        num_draws = draw - self.start
        return [due + w * num_draws for due, w in zip(self._due, self.last_weights, strict=True)]

    def spec(self, names: Sequence[str]) -> dict[str, Any]:
        return shown_weights(names, self.last_weights)


class RampSegment:
    """Draws by weights that go linearly from one to another.

    Args:
        ends: the first draw, and the one after the last.
        weights: of all datasets at both ends; the sum of each is 1.
        before: draws that each dataset had before the first.
        due: draws that its weights gave it a right to before the first.
        block: draws that are permuted among each other: steps are a multiple of it.
    """

    def __init__(
        self,
        ends: tuple[int, int],
        weights: tuple[Sequence[Fraction], Sequence[Fraction]],
        before: Sequence[int],
        due: Sequence[Fraction],
        *,
        block: int,
    ) -> None:
        start, stop = self.start, self.stop = ends
        self._weights = weights
        self.last_weights = tuple(weights[1])
        self._due = tuple(due)
        self._parts = whole_parts(weights[0]), whole_parts(weights[1])
        blocks = (stop - start) // block
        self._step = -(-blocks // min(blocks, _MAX_STEPS)) * block
        counts = [list(before)]
        for end in [*range(start + self._step, stop, self._step), stop]:
            scaled, unit = self._scaled_due(end)
            counts.append(_round_counts(scaled, unit, counts[-1], total=end - start + sum(before)))
        # int64 [steps + 1, datasets]: the draws that each dataset had before a step.
        self._counts = np.array(counts, dtype=np.int64)
        self._trees: LastValues[int, MixtureTree] = LastValues()

    def _scaled_due(self, draw: int) -> tuple[list[int], int]:
        """The values of `due` as multiples of 1 over the second number: 30 times as fast."""
        n, length = draw - self.start, self.stop - self.start
        first, last = self._parts
        unit = 2 * length * sum(first) * sum(last)
        early, late = (2 * length * n - n * n) * sum(last), n * n * sum(first)
        before = [due.numerator * unit // due.denominator for due in self._due]
        return [b + f * early + s * late for b, f, s in zip(before, first, last, strict=True)], unit

    def _tree(self, step: int) -> MixtureTree:
        """The tree of a step, whose draws are exactly what its datasets must get in it."""
        return MixtureTree((self._counts[step + 1] - self._counts[step]).tolist())

    def split(self, draws: Ints) -> tuple[Ints, Ints]:
        steps, within = np.divmod(draws - self.start, self._step)
        which, numbers = np.empty_like(draws), np.empty_like(draws)
        for step in np.unique(steps).tolist():
            here = np.flatnonzero(steps == step)
            which[here], numbers[here] = self._trees.get(step, self._tree).split(within[here])
        return which, numbers + self._counts[steps, which]

    def counts(self, draw: int) -> list[int]:
        step = min((draw - self.start) // self._step, len(self._counts) - 2)
        here = self._trees.get(step, self._tree).counts(draw - self.start - step * self._step)
        before: list[int] = self._counts[step].tolist()
        return [before[k] + count for k, count in enumerate(here)]

    def due(self, draw: int) -> list[Fraction]:
        """The draws that each dataset's weight gives it a right to: the weight's integral."""
        n, length = draw - self.start, self.stop - self.start
        late = Fraction(n * n, 2 * length)
        return [
            due + first * (n - late) + last * late
            for due, first, last in zip(self._due, *self._weights, strict=True)
        ]

    def spec(self, names: Sequence[str]) -> dict[str, Any]:
        first, last = (shown_weights(names, weights) for weights in self._weights)
        return {"until": self.stop, "first": first, "last": last}


Segment = ConstantSegment | RampSegment


def shown_weights(names: Sequence[str], weights: Sequence[Fraction]) -> dict[str, str | float]:
    """The weights above 0 by name, as JSON; different weights have different JSON."""
    return {
        name: float(weight) if Fraction(repr(float(weight))) == weight else str(weight)
        for name, weight in zip(names, weights, strict=True)
        if weight
    }


def _round_counts(due: Sequence[int], unit: int, least: Sequence[int], *, total: int) -> list[int]:
    """Whole numbers of this sum next to `due / unit`, none below `least`."""
    counts = [max(d // unit, low) for d, low in zip(due, least, strict=True)]
    missing = total - sum(counts)
    by_rest = sorted(range(len(due)), key=lambda k: counts[k] * unit - due[k])
    for k in by_rest[: max(0, missing)]:
        counts[k] += 1
    # If `least` kept some counts up, those that are furthest ahead give back.
    for k in reversed(by_rest):
        if missing >= 0:
            break
        if counts[k] > least[k]:
            counts[k] -= 1
            missing += 1
    return counts
