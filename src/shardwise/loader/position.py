"""The position of a loader: the only one there is, everything else is a function of the plan (I4).

It counts the batches that were returned, not those that executors have made ahead of the user.
"""

from __future__ import annotations

import os
from dataclasses import dataclass, field
from typing import Any

from shardwise.plan import Plan


@dataclass(slots=True, eq=False)
class Pass:
    """One pass over an epoch, or over the rest of it.

    Attributes:
        start: the position in the epoch that the pass starts at.
        plan: the samples of each rank, from `start` on.
        num_steps: the plan's, which take 2 us to count.
        num_batches: batches returned.
        pid: the process that iterates.
    """

    epoch: int
    start: int
    plan: Plan
    num_steps: int = field(init=False)
    num_batches: int = 0
    pid: int = field(default_factory=os.getpid)

    def __post_init__(self) -> None:
        self.num_steps = self.plan.num_steps

    @property
    def is_whole(self) -> bool:
        """Whether all batches were returned; the end need not have been requested."""
        return self.num_batches >= self.num_steps

    def after(self) -> tuple[int, int]:
        """`(epoch, position)` after the batches returned; the end is the next epoch's start."""
        if self.is_whole:
            return self.epoch + 1, 0
        return self.epoch, self.plan.position_after(self.num_batches)


class Position:
    """The start of the next pass, and the pass under way.

    Attributes:
        current: the pass under way or returned whole; None between passes.
        continued: the pass whose iterator continues with the next one: its ranks changed.
    """

    continued: Pass | None = None

    def __init__(self) -> None:
        self._epoch = 0
        self._start = 0
        # The position that steps are cut from: a loaded state's, whatever was skipped since.
        self._cut = 0
        self.current: Pass | None = None

    @property
    def epoch(self) -> int:
        """The epoch that is being iterated, or else the one that comes next."""
        return self._epoch if self.current is None else self.current.epoch

    @property
    def is_in_pass(self) -> bool:
        """Whether a pass has started and batches of it are left."""
        return self.current is not None and not self.current.is_whole

    def after(self) -> tuple[int, int]:
        """`(epoch, position)` after the batches returned."""
        return (self._epoch, self._start) if self.current is None else self.current.after()

    def rest(self, plan: Plan) -> Plan:
        """The plan of the pass under way, or of the next one, from its first batch on."""
        if self.current is not None:
            return self.current.plan
        return plan.resumed(self._start, epoch=self._epoch)

    def begin(self, plan: Plan) -> Pass:
        """Start a pass, in place of one that was left."""
        rest = plan.resumed(self._start, epoch=self._epoch)
        self.current, self.continued = Pass(self._epoch, self._start, rest), None
        return self.current

    def leave(self) -> int:
        """Give up the pass under way; returns its number of batches, which the next one repeats."""
        left, self.current, self.continued = self.current, None, None
        return 0 if left is None else left.num_batches

    def move(self, epoch: int, start: int = 0, *, cut: int | None = None) -> None:
        """Set the start of the next pass; the one under way is given up."""
        self._epoch, self._start, self.current, self.continued = epoch, start, None, None
        self._cut = start if cut is None else cut

    def cut_of(self, epoch: int) -> int:
        """The position from which the steps of an epoch are cut."""
        return self._cut if epoch == self.epoch == self._epoch else 0

    def regroup(self) -> None:
        """Let the iterator of the pass under way continue where it stands, in another plan."""
        current = self.current
        if current is not None and not current.is_whole:
            self.move(*current.after())
            self.continued = current

    def leave_forked(self) -> None:
        """Continue after the parent's batches in a forked process, as a pickled loader does."""
        if self.current is not None and self.current.pid != os.getpid():
            self.move(*self.current.after())

    def __getstate__(self) -> dict[str, Any]:
        """The position travels, the pass does not: it belongs to this process's iterator."""
        epoch, start = self.after()
        return {"_epoch": epoch, "_start": start, "_cut": self.cut_of(epoch), "current": None}
