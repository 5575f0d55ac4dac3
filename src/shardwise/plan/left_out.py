"""Samples that are left out on purpose, and the partition of those that are left.

What is left moves up: the next sample comes in the place of one that is left out, so that batches
stay full and an epoch gets shorter. Positions stay what they are, and so does all that was before
the position at which samples began to be left out.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from functools import cached_property
from typing import Any

import numpy as np
from numpy.typing import NDArray

from shardwise.base.errors import StateError
from shardwise.plan.batch_partition import BatchPartition
from shardwise.plan.last_values import LastValues
from shardwise.plan.partition import Partition
from shardwise.plan.protocol import BatchEnds, Sampler, positions_of

Ints = NDArray[np.int64]

# A state is under 1 KB: longer lists are told by their digest.
_MAX_LISTED = 160


@dataclass(frozen=True, eq=False)
class Excluded:
    """Samples that are left out from a position on.

    Attributes:
        ids: int64 `[k]`, ascending, each once.
        since: the epoch and the position in it.
    """

    ids: Ints
    since: tuple[int, int] = (0, 0)
    # The positions of the epochs that were asked for last; a sampler is told by its identity.
    _found: LastValues[Any, Ints] = field(default_factory=LastValues, init=False, repr=False)

    @classmethod
    def of(cls, ids: NDArray[Any], num_ids: int) -> Excluded:
        """Of ids in any order.

        Raises:
            TypeError: they are no whole numbers.
            ValueError: the data have no such samples.
        """
        if ids.size and ids.dtype.kind not in "iu":
            raise TypeError(f"exclude=<array of {ids.dtype}>: sample ids are whole numbers")
        unique = np.unique(ids).astype(np.int64)
        if len(unique) and not 0 <= unique[0] <= unique[-1] < num_ids:
            raise ValueError(
                f"exclude= has sample ids from {unique[0]} to {unique[-1]}, and the dataset has "
                f"{num_ids} samples: is it the list of another dataset?"
            )
        return cls(unique)

    def positions(self, sampler: Sampler, epoch: int) -> Ints:
        """Where they would come in an epoch, int64 `[holes]`, ascending."""
        first, position = self.since
        if epoch < first or not len(self.ids):
            return self.ids[:0]
        found = self._found.get(
            (id(sampler), epoch), lambda _: positions_of(sampler, epoch, self.ids)
        )
        return found if epoch > first else found[found >= position]

    @cached_property
    def digest(self) -> str:
        """Of the ids: 16 hex digits."""
        return hashlib.sha256(self.ids.astype("<i8").tobytes()).hexdigest()[:16]

    def spec(self) -> dict[str, Any]:
        """What a state says of them, as JSON."""
        spec = {"since": [*self.since], "count": len(self.ids), "digest": self.digest}
        listed = self.ids[: _MAX_LISTED // 2].tolist()
        is_short = len(listed) == len(self.ids) and len(json.dumps(listed)) <= _MAX_LISTED
        return {**spec, "ids": listed} if is_short else spec

    def __str__(self) -> str:
        return f"{len(self.ids)} samples (digest {self.digest})"


def resumed(
    own: Excluded | None, spec: Mapping[str, Any] | None, now: tuple[int, int], num_ids: int
) -> Excluded | None:
    """Return what is left out after a state of position `now`: by the loader's list, or its own.

    A loader's list that is not the state's counts from the state's position on.

    Raises:
        StateError: the state's list is too long to be in it, and the loader has none; or damaged.
    """
    if spec is None:
        return None if own is None else replace(own, since=now)
    try:
        (epoch, position), count, digest = spec["since"], int(spec["count"]), str(spec["digest"])
        since = int(epoch), int(position)
        its = None if "ids" not in spec else Excluded.of(np.array(spec["ids"], np.int64), num_ids)
    except (KeyError, TypeError, ValueError, OverflowError) as error:
        raise StateError(f"the state's 'excluded' can't be used: {error!r}") from None
    if own is not None:
        return replace(own, since=since if own.digest == digest else now)
    if its is None or its.digest != digest:
        raise StateError(
            f"the state leaves out {count} samples (digest {digest}) since position {position} of "
            f"epoch {epoch}, and this loader has no list of them: give it exclude= with that list, "
            "or exclude=[] to have them again from here on"
        )
    return replace(its, since=since)


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
        self.num_samples = base.num_samples
        self._count = base.num_samples - len(holes)
        self._is_dropping = base.remainder == "drop"
        self._start = base.start
        start = base.start - int(np.searchsorted(holes, base.start))
        self._inner: Partition | BatchPartition
        if own is None:
            self._inner = replace(base, num_samples=self._count, start=start)
        else:
            ends, rows = own.ends, own.rows
            if rows is not None and self._is_dropping:
                ends = ends[np.diff(ends, prepend=0) >= rows]
            live = np.unique(ends - np.searchsorted(holes, ends))
            live = live[live > 0]
            rest = replace(base, num_samples=self._count, start=start)
            self._inner = BatchPartition.of(rest, BatchEnds(live, None if rows is None else 1))
        self.num_steps = self._inner.num_steps
        self.num_padded, self.has_empty = self._inner.num_padded, self._inner.has_empty
        self.row_ends = self._inner.row_ends
        self.has_even_steps = own is None

    @property
    def num_dropped(self) -> int:
        """Positions of what is left that no rank yields, over all ranks."""
        given = self._inner.position_after(self.num_steps)
        return self._count - given if self._is_dropping else 0

    def position_after(self, num_batches: int) -> int:
        """The position after some batches of what is left."""
        if not num_batches:
            return self._start
        return int(self._places(np.array([self._inner.position_after(num_batches)]))[0])

    def last(self, count: int) -> Ints:
        """The last positions that are not left out."""
        return self._places(np.arange(self._count - count, self._count))

    def block(self, steps: range, rank: int, *, shift: int = 0) -> tuple[Ints, NDArray[np.bool_]]:
        """One rank's positions at ascending steps, and which of them are valid."""
        positions, valid = self._inner.block(steps, rank, shift=shift)
        return self._places(positions), valid

    def _places(self, numbers: Ints) -> Ints:
        return numbers + np.searchsorted(self._before, numbers, side="right")
