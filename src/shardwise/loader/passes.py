"""The passes of a loader: where it stands, what it returned, and what there is to warn of."""

from __future__ import annotations

import logging
import os
import sys
import time
from bisect import bisect_left
from collections.abc import Callable, Generator, Iterator
from contextlib import closing, nullcontext
from copy import copy
from functools import partial
from typing import Any

from shardwise.base.abilities import having
from shardwise.base.errors import DataError, StorageError
from shardwise.base.plugins import find
from shardwise.engine.batch.schedule import epoch_requests
from shardwise.engine.request import Batch
from shardwise.engine.stats.counts import Counts
from shardwise.loader.account import Account
from shardwise.loader.batch_maker import BatchMaker
from shardwise.loader.notices import DropNotice, EpochNotice
from shardwise.loader.position import Pass, Position
from shardwise.plan import LoaderState, Plan
from shardwise.plan.arguments import whole
from shardwise.sources.samples import Samples, SourcedSamples, TellsRanges
from shardwise.storage.file_pool import FilePool
from shardwise.storage.protocol import RemoteReads

_logger = logging.getLogger("shardwise")

_MAX_SKIPPED = 4


class Passes:
    """One pass after the other over the epochs of a plan, and their accounts.

    `metrics` is an extension's `MetricsFile`, which reads the counts in its thread, or None;
    `is_default`: whether the remainder was left to the library.
    """

    def __init__(
        self,
        dataset: Samples,
        counts: Counts,
        coverage: str | os.PathLike[str] | None,
        metrics: Any,
        *,
        is_default: bool,
    ) -> None:
        self.position = Position()
        self.account = Account(dataset, coverage)
        self.metrics = metrics
        self._dataset = dataset
        self._counts = counts
        self._drop_notice = DropNotice(is_default=is_default)
        self.notice = EpochNotice()
        self._num_left = 0
        # The last steps that were skipped on purpose: epoch, first and last position.
        self.skipped: list[list[int]] = []

    def _leave(self) -> None:
        """Leave the pass under way: the next one starts where it started, unless it is whole."""
        self.position.leave_forked()
        self.end_if_whole()
        self._num_left = self.position.leave()

    def run(
        self, maker: BatchMaker, divided: Callable[[], tuple[int, Plan, Callable[[], None]]]
    ) -> Generator[Any, None, None]:
        """Leave the pass under way; yield the batches of the next, and of those that continue it.

        `divided` gives this process's rank and plan, and a check that they are still valid.

        Raises:
            RuntimeError: another pass was started, or a state was loaded.
        """
        self._leave()
        while True:
            rank, plan, check_ranks = divided()
            self._drop_notice.say(plan, rank)
            current = self.position.begin(plan)
            self.notice.begin(plan, current.epoch, rank, num_repeated=self._num_left)
            self._num_left = 0
            self.account.begin(current, rank=rank)
            self._counts.begin()
            if self.metrics is not None:
                self.metrics.begin(current, rank, self._dataset, partial(maker.stats, self._counts))
            of_pass = {"epoch": current.epoch, "rank": rank}
            caches = dict(_caches(self._dataset, current.plan, **of_pass))
            expected = caches and find("storage", "expected")(
                self._dataset, current.plan, caches, **of_pass, num_local=maker.num_local
            )
            with closing(expected) if expected else nullcontext():
                while self.position.current is current and not current.is_whole:
                    # Requests from the first step on, and after each `skip`.
                    requests = epoch_requests(
                        current.plan,
                        epoch=current.epoch,
                        rank=rank,
                        first_step=current.num_batches,
                    )
                    with closing(maker.run(requests)) as batches:
                        yield from self._give(current, batches, maker, expected, check_ranks)
            if self.position.current is current:
                self.end_if_whole()
            # The end comes to a pass that gave all its batches, wherever its loader went since.
            if current.is_whole:
                return
            if self.position.continued is not current:
                raise RuntimeError(
                    "another iterator of this loader has begun, or its state was set: only the "
                    "newest iterator goes on; make a second loader to iterate twice at once"
                )

    def _give(
        self,
        current: Pass,
        batches: Generator[Batch, None, None],
        maker: BatchMaker,
        expected: Any,
        check_ranks: Callable[[], None],
    ) -> Generator[Any, None, None]:
        """Yield the batches of a pass while it is the current one, up to its end or a `skip`."""
        num_given, num_steps = current.num_batches, current.num_steps
        while self.position.current is current and num_given == current.num_batches:
            # Without torch.distributed there is no group that ranks could differ from.
            if num_given < num_steps and "torch.distributed" in sys.modules:
                check_ranks()
            asked_at = self._counts.asked_at = time.perf_counter()
            with maker.output.range("shardwise.next"):
                batch = next(batches, None)
            if batch is None:
                self._counts.asked_at = None
                return
            ready_at = time.perf_counter()
            with maker.output.range("shardwise.to_tensors"):
                output = maker.finish(batch)
            returned_at = time.perf_counter()
            self._counts.add(batch, asked_at=asked_at, ready_at=ready_at, returned_at=returned_at)
            self.account.add(batch.rows)
            num_given += 1
            current.num_batches = num_given
            if expected:
                for move in expected.moves:
                    move(expected.first_step + num_given)
            if num_given == num_steps:
                # Here, not when the end is requested: programs that count steps never request it.
                self.account.note(current)
            # The program has the only references: what it drops is freed then, and not
            # when it waits for the next one.
            batch.data, outputs = None, [output]
            del output, batch
            yield outputs.pop()

    def end_if_whole(self) -> None:
        """End a pass whose last batch was returned: programs that count steps ask for no more."""
        current = self.position.current
        if current is not None and current.is_whole:
            self.account.note(current)
            self.position.move(current.epoch + 1)
            self._counts.end_epoch(current.plan)

    def skip(self, plan: Plan, rank: int, num_steps: int, first_step: int) -> None:
        """Leave out the next steps of the pass under way, or else of the next one.

        `first_step` is the number of the step that the position's cut starts with.
        """
        self.position.leave_forked()
        self.end_if_whole()
        position = self.position
        # Where ranks just changed, an iterator continues with the next pass.
        current, continued = position.current, position.continued
        rest = position.rest(plan)
        begun = 0 if current is None else current.num_batches
        most = rest.num_steps - begun
        if not 0 < whole("num_steps", num_steps) <= most:
            raise ValueError(
                f"skip({num_steps}): epoch {position.epoch} has {most} steps left from position "
                f"{position.after()[1]} on"
            )
        if current is None:
            self.account.begin(position.begin(plan), rank=rank)
        passed = position.current
        assert passed is not None
        epoch, first = passed.after()
        self.account.note(passed)
        cut = plan.resumed(position.cut_of(epoch), epoch=epoch)
        number = first_step + bisect_left(range(cut.num_steps), first, key=cut.position_after)
        self.account.skip(num_steps, f"{number} to {number + num_steps - 1}")
        passed.num_batches += num_steps
        self.account.note(passed)
        last = plan.num_samples if passed.is_whole else passed.after()[1]
        self.skipped = [*self.skipped, [epoch, first, last]][-_MAX_SKIPPED:]
        if current is None:
            position.move(*passed.after(), cut=position.cut_of(epoch) if not passed.is_whole else 0)
            if continued is not None and passed.is_whole:
                # Its iterator ends.
                continued.num_batches = continued.num_steps
            position.continued = continued

    def regroup(self) -> None:
        """Let the pass under way continue in another plan, and its iterator with it."""
        self.position.leave_forked()
        self.account.note(self.position.current)
        self.account.resume(self.account.state_run, is_regrouped=True)
        self.position.regroup()

    def load(self, plan: Plan, loaded: LoaderState) -> None:
        """Let the next pass start where a state was taken, in the plan of its order."""
        if plan.order_size != plan.global_batch_size:
            _logger.warning(
                "the state's order has global batches of %d samples, this loader's have %d: each "
                "sample still comes once, and a step has samples of several of them, until a run "
                "begins without a state",
                plan.order_size,
                plan.global_batch_size,
            )
        self.position.move(loaded.epoch, loaded.position)
        self.notice.load(loaded.epoch)
        self.account.resume(loaded.run)
        self.skipped = [[*each] for each in loaded.skipped]

    def __getstate__(self) -> dict[str, Any]:
        """The position travels with a pickled loader (I10), also in a shallow copy."""
        return {**self.__dict__, "position": copy(self.position)}


def _caches(
    samples: Samples, plan: Plan, *, epoch: int, rank: int
) -> Iterator[tuple[Any, FilePool]]:
    """The caches that a pass's first batch is read through, each with a pool of its files."""
    own = having(samples, TellsRanges)
    if own is None or not having(samples, SourcedSamples) or not plan.num_steps:
        return
    ids, _ = next(plan.batches(epoch, range(1), rank))
    try:
        for pool, reads in own.ranges(ids, epoch=epoch) or ():
            if pool.options.cache is not None and reads:
                file = pool.get(reads[0][0])
                if isinstance(file, RemoteReads) and file.cache is not None:
                    yield file.cache, pool
    except (DataError, StorageError):
        return  # the reader of the batch meets it
