"""Segments of a mixture's schedule: constant weights, or a linear ramp between two.

A segment starts where the one before it ends: with the draws that each dataset had until then, and
those that its weights gave it a right to. The difference is carried over, so that it does not add
up over segments. A segment depends on those before it and on its own start and weights; a ramp on
its end, too.
"""

from __future__ import annotations

from collections.abc import Sequence
from fractions import Fraction
from typing import Any

import numpy as np
from numpy.typing import NDArray

from shardwise.plan.last_values import LastValues
from shardwise.plan.mixture_tree import MixtureTree, whole_parts

Ints = NDArray[np.int64]

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
