"""The passes of a loader: where it stands, what it returned, and what there is to warn of."""

from __future__ import annotations

import logging
import os
import time
from collections.abc import Callable, Generator
from contextlib import closing
from copy import copy
from functools import partial
from typing import Any

from shardwise.engine.batch.schedule import epoch_requests
from shardwise.engine.stats.counts import Counts
from shardwise.loader.account import Account
from shardwise.loader.batch_maker import BatchMaker
from shardwise.loader.drop_notice import DropNotice
from shardwise.loader.epoch_notice import EpochNotice
from shardwise.loader.position import Position
from shardwise.plan import LoaderState, Plan
from shardwise.sources.samples import Samples

_logger = logging.getLogger("shardwise")


class Passes:
    """One pass after the other over the epochs of a plan, and their accounts.

    Args:
        dataset: what is read.
        counts: of the batches that are returned.
        coverage: the coverage directory; None for none.
        metrics: an extension's `MetricsFile`, which reads the counts in its thread; or None.
        is_default: whether the remainder was left to the library.
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

    def leave(self) -> None:
        """Leave the pass under way: the next one starts where it started, unless it is whole."""
        self.position.leave_forked()
        self.end_if_whole()
        self._num_left = self.position.leave()

    def run(
        self, maker: BatchMaker, plan: Plan, rank: int, check_ranks: Callable[[], None]
    ) -> Generator[Any, None, None]:
        """Yield the batches of a pass, after `leave`.

        Raises:
            RuntimeError: another pass was started, or a state was loaded.
        """
        self._drop_notice.say(plan, rank)
        current = self.position.begin(plan)
        self.notice.begin(plan, current.epoch, rank, num_repeated=self._num_left)
        self.account.begin(current, rank=rank)
        self._counts.begin()
        if self.metrics is not None:
            self.metrics.begin(current, rank, self._dataset, partial(maker.stats, self._counts))
        requests = epoch_requests(current.plan, epoch=current.epoch, rank=rank)
        with closing(maker.run(requests)) as batches:
            while True:
                if self.position.current is not current:
                    raise RuntimeError(
                        "another iterator of this loader has begun, or its state was set: only "
                        "the newest iterator goes on; make a second loader to iterate twice at once"
                    )
                check_ranks()
                asked_at = self._counts.asked_at = time.perf_counter()
                with maker.output.range("shardwise.next"):
                    batch = next(batches, None)
                if batch is None:
                    self._counts.asked_at = None
                    break
                ready_at = time.perf_counter()
                with maker.output.range("shardwise.to_tensors"):
                    output = maker.finish(batch)
                returned_at = time.perf_counter()
                self._counts.add(
                    batch, asked_at=asked_at, ready_at=ready_at, returned_at=returned_at
                )
                self.account.add(batch.rows)
                current.num_batches += 1
                if current.is_whole:
                    # Here, not where the end is asked for: programs that count steps never ask.
                    self.account.note(current)
                # Of these, the program has the only reference: what it drops is freed then, and not
                # when it waits for the next one.
                batch.data, outputs = None, [output]
                del output, batch
                yield outputs.pop()
            self.end_if_whole()

    def end_if_whole(self) -> None:
        """End a pass whose last batch was returned: programs that count steps ask for no more."""
        current = self.position.current
        if current is not None and current.is_whole:
            self.account.note(current)
            self.position.move(current.epoch + 1)
            self._counts.end_epoch(current.plan)

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

    def __getstate__(self) -> dict[str, Any]:
        """The position travels with a pickled loader (I10), also in a shallow copy."""
        return {**self.__dict__, "position": copy(self.position)}
