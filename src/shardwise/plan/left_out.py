"""Samples that are left out on purpose, and the partition of the remaining ones.

The remaining samples move up: the next sample replaces one that is left out, so that batches
stay full and an epoch gets shorter. Positions stay as they are, and so does everything before
the position at which samples started to be left out.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from functools import cached_property
from typing import Any

import numpy as np
from numpy.typing import NDArray

from shardwise.base.errors import StateError
from shardwise.plan.arguments import digest_of_array
from shardwise.plan.batch_partition import BatchPartition
from shardwise.plan.partition import Partition
from shardwise.plan.permute import LastValues
from shardwise.plan.protocol import BatchEnds, Sampler, positions_of

Ints = NDArray[np.int64]

# Characters: a state stays under 1 KB, so a digest stands for a longer list.
_MAX_LISTED = 160


@dataclass(frozen=True, eq=False)
class Excluded:
    """Samples that are left out: int64 `[k]`, ascending; since a position of an epoch.

    `is_given` is False for those that a state named, and not the program.
    """

    ids: Ints
    since: tuple[int, int] = (0, 0)
    is_given: bool = True
    _found: LastValues[tuple[Sampler, int], Ints] = field(
        default_factory=LastValues, init=False, repr=False
    )

    @classmethod
    def of(cls, ids: Any, num_ids: int) -> Excluded:
        """Make it from ids in any order."""
        try:
            array = np.asarray(ids)
        except ValueError:  # lists of several lengths
            array = np.empty((), object)
        if array.ndim != 1 or (array.size and array.dtype.kind not in "iu"):
            raise TypeError(f"exclude={ids!r:.80}: give sample ids, whole numbers in one dimension")
        unique = np.unique(array).astype(np.int64)
        if len(unique) and not 0 <= unique[0] <= unique[-1] < num_ids:
            raise ValueError(
                f"exclude= has sample ids from {unique[0]} to {unique[-1]}, and the dataset has "
                f"{num_ids} samples: is it the list of another dataset?"
            )
        return cls(unique)

    def positions(self, sampler: Sampler, epoch: int) -> Ints:
        """Their positions in an epoch without exclusions, int64 `[holes]`, ascending."""
        first, position = self.since
        if epoch < first or not len(self.ids):
            return self.ids[:0]
        found = self._found.get((sampler, epoch), lambda key: positions_of(*key, self.ids))
        return found if epoch > first else found[found >= position]

    @cached_property
    def digest(self) -> str:
        return digest_of_array(self.ids, "<i8")

    def spec(self) -> dict[str, Any]:
        listed = self.ids[:_MAX_LISTED].tolist()
        is_short = len(listed) == len(self.ids) and len(json.dumps(listed)) <= _MAX_LISTED
        spec = {"since": [*self.since], "count": len(self.ids), "digest": self.digest}
        return {**spec, "ids": listed} if is_short else spec

    def __str__(self) -> str:
        return f"{len(self.ids)} samples (digest {self.digest})"


def resumed(
    own: Excluded | None, spec: Mapping[str, Any] | None, now: tuple[int, int], num_ids: int
) -> Excluded | None:
    """Return what is left out after a state of position `now`: by the loader's list, or its own.

    A loader's list that is not the state's counts from the state's position on.
    """
    own = own if own is not None and own.is_given else None
    if spec is None:
        return None if own is None else replace(own, since=now)
    try:
        (epoch, position), digest = map(int, spec["since"]), spec["digest"]
        its = Excluded.of(np.array(spec.get("ids", []), np.int64), num_ids)
        its = replace(its, is_given=False)
    except (KeyError, TypeError, ValueError, OverflowError) as error:
        raise StateError(f"the state's 'excluded' can't be used: {error!r}") from None
    if own is not None and own.digest != digest:
        return replace(own, since=now)
    if own is None and its.digest != digest:
        raise StateError(
            f"the state leaves out {spec.get('count')} samples (digest {digest}) since position "
            f"{position} of epoch {epoch}, and this loader has no list of them: give it exclude= "
            "with that list, or exclude=[] to have them again from here on"
        )
    return replace(own or its, since=(epoch, position))


class RestPartition:
    """A partition of the positions that are not left out; has the members of `Partition`.

    Args:
        holes: int64 `[holes]`, ascending: the positions that are left out.
        base: the partition as it would be without holes.
        own: the batches that the sampler cuts: where rows are left out, they are shorter.
    """

    def __init__(self, holes: Ints, base: Partition, own: BatchEnds | None) -> None:
        # For each hole the number of positions before it that are not left out.
        self._before = holes - np.arange(len(holes))
        self._start, self._is_dropping = base.start, base.remainder == "drop"
        self._count = base.num_samples - len(holes)
        start = base.start - int(np.searchsorted(holes, base.start))
        rest = replace(base, num_samples=self._count, start=start)
        if (costs := base.costs) is not None:
            rest = replace(rest, costs=lambda numbers: costs(self._places(numbers)))
        self._inner: Partition | BatchPartition = rest
        if own is not None:
            ends, rows = own
            if rows is not None and self._is_dropping:
                ends = ends[np.diff(ends, prepend=0) >= rows]
            left = np.unique(ends - np.searchsorted(holes, ends))
            batches = BatchEnds(left[left > 0], None if rows is None else 1)
            self._inner = BatchPartition.of(rest, batches)
        self.has_even_steps = own is None
        for name in ("num_steps", "num_padded", "has_empty", "row_ends"):
            setattr(self, name, getattr(self._inner, name))

    num_steps: int
    num_padded: int
    has_empty: bool
    row_ends: Any

    @property
    def num_dropped(self) -> int:
        given = self._inner.position_after(self.num_steps)
        return self._count - given if self._is_dropping else 0

    def position_after(self, num_batches: int) -> int:
        after = np.array([self._inner.position_after(num_batches)])
        return int(self._places(after)[0]) if num_batches else self._start

    def last(self, count: int) -> Ints:
        """The last positions that are not left out."""
        return self._places(np.arange(self._count - count, self._count))

    def block(self, steps: range, rank: int) -> tuple[Ints, NDArray[np.bool_]]:
        positions, valid = self._inner.block(steps, rank)
        return self._places(positions), valid

    def _places(self, numbers: Ints) -> Ints:
        return numbers + np.searchsorted(self._before, numbers, side="right")
