"""Code that samplers share: a cursor in an order, its state, and who may divide the data."""

from __future__ import annotations

from collections.abc import Generator, Mapping
from dataclasses import dataclass
from typing import Any

from shardwise.base.errors import RankError, StateError
from shardwise.base.framework_guards import active_guards
from shardwise.loader.notices import READ_AS_A_WHOLE, EpochNotice
from shardwise.loader.plan_options import Grown
from shardwise.loader.planned_order import PlannedOrder
from shardwise.plan import Plan, checked_epoch
from shardwise.torch.account import OrderAccount


@dataclass(slots=True, eq=False)
class Cursor:
    """The position of a sampler in one pass; an iterator that was left behind counts for nothing.

    `is_whole` says whether all steps were yielded; the end need not have been asked for.
    """

    epoch: int = 0
    start: int = 0
    num_yielded: int = 0
    is_whole: bool = False

    @property
    def num_repeated(self) -> int:
        """The number of steps that a restarted pass repeats: torch's loader takes steps ahead."""
        return READ_AS_A_WHOLE if self.is_whole and self.num_yielded else min(self.num_yielded, 1)

    def again(self) -> Cursor:
        """The next pass of the same epoch: from the same position, after a whole pass from 0."""
        return Cursor(self.epoch, 0 if self.is_whole else self.start)

    def moved_to(self, epoch: int) -> Cursor:
        """The start of another epoch, or of one that is over; else the same epoch continues."""
        epoch = checked_epoch(epoch)
        return self if epoch == self.epoch and not self.is_whole else Cursor(epoch)

    def count(self, num_steps: int) -> None:
        """Count a yielded step, of `num_steps` in the pass."""
        self.num_yielded += 1
        self.is_whole = self.num_yielded >= num_steps


class SamplerState:
    """The state of a sampler that runs in the main process: a cursor in the order of a plan."""

    _order: PlannedOrder
    _plan: Plan
    _cursor: Cursor
    _notice: EpochNotice
    _account: OrderAccount

    @property
    def plan(self) -> Plan:
        """The plan for the ranks of this process."""
        raise NotImplementedError

    @property
    def num_left(self) -> int:
        """Steps that the next iterator yields."""
        return self._rest(self._cursor.again()).num_steps

    def certificate(self, num_steps: int | None = None) -> dict[str, Any]:
        """The indices that were given in the newest pass, compared with the plan.

        As `DataLoader.certificate`, of what a sampler knows: the indices that it gave, not whether
        their samples were loaded.

        Args:
            num_steps: how many batches of a BatchSampler, or indices of a DistributedSampler, the
                program has taken since `iter(loader)`. None counts those that were yielded.

        Raises:
            ValueError: num_steps is not in [0, what is left of the epoch].
        """
        cursor = self._cursor
        if num_steps is not None:
            check_count("num_steps", num_steps, self._rest(cursor), cursor.epoch)
        return self._account.certificate(num_steps, self._order.ranks, epoch=cursor.epoch)

    def load_state_dict(self, state: Mapping[str, Any], *, grown: Grown = None) -> None:
        """Let the next iterator continue where a state was taken; see `DataLoader.load_state_dict`.

        Raises:
            StateError: the state belongs to other data, another seed or another order.
        """
        self._plan, loaded = self._order.take_up(self.plan, state, grown)
        self._move(Cursor(loaded.epoch, loaded.position))
        self._notice.load(loaded.epoch)
        self._account.resume(loaded.run)

    def _state_after(self, name: str, num_steps: int | None) -> dict[str, Any]:
        """The state after some steps of the pass under way, by default those yielded.

        Raises:
            ValueError: the pass does not have as many; `name` is the argument in the message.
        """
        cursor = self._cursor
        rest = self._rest(cursor)
        is_named = num_steps is not None
        num_steps = cursor.num_yielded if num_steps is None else num_steps
        check_count(name, num_steps, rest, cursor.epoch)
        self._account.note(cursor, num_steps, is_named=is_named)
        run = self._account.state_run
        return self._order.state_after(rest, cursor.epoch, num_steps, run=run)

    def _begin(self) -> tuple[Cursor, Plan]:
        """Start a pass: its cursor, and the plan of what is left of the epoch."""
        num_repeated = self._cursor.num_repeated
        cursor = self._cursor = self._cursor.again()
        rest, rank = self._rest(cursor), self._order.ranks.certain().rank
        self._notice.begin(rest, cursor.epoch, rank, num_repeated=num_repeated)
        return cursor, rest

    def _name(self, epoch: int) -> None:
        """Choose the epoch of the next iterator."""
        self._notice.set(epoch, self._order.ranks.now().rank)
        self._move(self._cursor.moved_to(epoch))

    def _rest(self, cursor: Cursor) -> Plan:
        """The plan of the epoch from where the cursor started."""
        return self.plan.resumed(cursor.start, epoch=cursor.epoch)

    def _move(self, cursor: Cursor) -> None:
        self._cursor = cursor


def check_count(name: str, count: int, rest: Plan, epoch: int) -> None:
    """Refuse a number of steps that the rest of an epoch does not have.

    Raises:
        ValueError: it is not in [0, rest.num_steps].
    """
    if not 0 <= count <= rest.num_steps:
        raise ValueError(
            f"{name}={count}: epoch {epoch} has {rest.num_steps} {name.removeprefix('num_')} from "
            f"position {rest.start} on; count anew after each iter(loader)"
        )


def refusal(message: str) -> Generator[Any, None, None]:
    """Refuse in the first `next`: a worker that lives on would end by an error before it."""
    yield from ()
    raise StateError(message)


def refuse_second_division(part: object, world_size: int) -> None:
    """Refuse to be read by what Accelerate divides with, if the data are divided already.

    Raises:
        RankError: each rank would read a part of its part.
        FrameworkError: this version of Accelerate divides with something else.
    """
    owner = None if world_size == 1 else dividing_caller()
    if owner is not None:
        name = type(part).__name__
        raise RankError(
            f"{owner} divides among its processes what {name} has divided over "
            f"world_size={world_size} ranks, so each would read a part of its part: give "
            f"accelerator.prepare a shardwise.torch.StatefulDataLoader around the {name}, or a "
            "sw.DataLoader; give Hugging Face's Trainer a sw.DataLoader through LoaderMixin of "
            "shardwise.integrations.huggingface"
        )


def dividing_caller() -> str | None:
    """Return a framework's class that divides the answer among its ranks once more, if one does.

    Raises:
        FrameworkError: this version of the framework divides with something else.
    """
    return next(filter(None, (guard.find_divider() for guard in active_guards())), None)
