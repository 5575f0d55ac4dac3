"""Ready batches for torch's own DataLoader, in the same global order for any number of workers.

Worker w of V makes the steps s with s mod V = w, because DataLoader takes its workers in turn
(I3). Rank and world size are discovered where the dataset is built and travel with it, so that the
way workers are started does not matter (I10).
"""

from __future__ import annotations

import os
from collections.abc import Callable, Generator, Iterator, Mapping
from contextlib import closing
from typing import TYPE_CHECKING, Any, Unpack

import torch.utils.data

from shardwise.base.errors import StateError
from shardwise.base.plugins import find
from shardwise.engine.batch.builder import BatchBuilder
from shardwise.engine.batch.chunks import OnError
from shardwise.engine.batch.schedule import epoch_requests
from shardwise.engine.choice import ExecutorOptions, make_executor
from shardwise.loader.arguments import has_images_for_device
from shardwise.loader.batch_maker import Output
from shardwise.loader.notices import READ_AS_A_WHOLE, DropNotice, EpochNotice
from shardwise.loader.plan_options import (
    Grown,
    PlanArguments,
    PlanOptions,
    plan_for,
    takes_plan_options,
)
from shardwise.loader.planned_order import Divided, PlannedOrder
from shardwise.loader.rank_check import CurrentRanks
from shardwise.plan import Plan, checked_epoch
from shardwise.plan.arguments import DEFAULT_BATCH_SIZE
from shardwise.torch.account import NOT_COUNTED, CountedBatch, OrderAccount
from shardwise.torch.order import check_count, refusal, refuse_second_division
from shardwise.torch.shared_cursor import (
    LEFT_EARLY,
    EpochCursor,
    SharedCursor,
    SharedIntegers,
    WorkerPass,
)

if TYPE_CHECKING:
    from shardwise.dataset import Dataset


@takes_plan_options
class IterableDataset(Divided, torch.utils.data.IterableDataset[Any]):
    """A dataset of batches, for `torch.utils.data.DataLoader(it, batch_size=None, ...)`.

    Args:
        dataset: a `shardwise.Dataset`.
        num_threads: threads that read and decode in each worker; 0 for none.
        **options: batch_size, collate, on_error, output, rank, world_size, group, coverage and the
            options of the order, as of `shardwise.DataLoader`. torch's DataLoader makes tensors of
            output="numpy" unless it gets a `collate_fn` that leaves arrays alone. With workers,
            coverage takes a `StatefulDataLoader`, which knows what the program got.

    Batches are those of `shardwise.DataLoader` with the same options, in the same order, for any
    `num_workers`, start method and `persistent_workers`. DataLoader needs `batch_size=None`,
    since these are batches already, and its `in_order=True`, which is the default.

    Rank and world size are those of the process that iterates it, or whose workers do, as for
    `shardwise.DataLoader`.

    Nothing but `set_epoch` moves on to another epoch: call it before each `iter(loader)`. Workers
    read ahead of the program and end at different times, so that none of them could know when
    an epoch is over on all ranks. A shuffled epoch that is started again warns once; after the rest
    of an epoch that a loaded state stood in, the same epoch is read as a whole. Where the
    program left that rest before its end, the next pass with workers is a `StateError`, unless
    `load_state_dict` or `set_epoch` is called before it.

    Raises:
        ValueError: an option is not usable, or no rank would get a single batch.
        RankError: rank and world size are not known for certain.

    Examples:
        >>> import shardwise as sw
        >>> from torch.utils.data import DataLoader
        >>> it = sw.torch.IterableDataset(sw.wrap(range(6)), batch_size=3)
        >>> for batch in DataLoader(it, batch_size=None):
        ...     print(batch["__index__"])
        tensor([0, 1, 2])
        tensor([3, 4, 5])
    """

    def __init__(
        self,
        dataset: Dataset,
        *,
        batch_size: int = DEFAULT_BATCH_SIZE,
        rank: int | None = None,
        world_size: int | None = None,
        group: Any = None,
        collate: Callable[[list[dict[str, Any]]], Any] | None = None,
        on_error: OnError = "raise",
        output: str = "torch",
        num_threads: int = 0,
        coverage: str | os.PathLike[str] | None = None,
        **options: Unpack[PlanArguments],
    ) -> None:
        if has_images_for_device(dataset):
            obstacle = "sw.torch.IterableDataset decodes on the CPU"
            find("decoding", "images")(dataset, device=None, obstacle=obstacle)
        self._output = Output(output)
        self._executor_options = ExecutorOptions(num_workers=0, num_threads=num_threads)
        chosen = PlanOptions(batch_size=batch_size, **options).of(dataset)
        self._order = PlannedOrder(dataset, CurrentRanks(rank, world_size, group=group))
        self.dataset = dataset
        self.shuffle = chosen.shuffle
        self.output = output
        self.num_threads = num_threads
        self._is_default = options.get("remainder") is None
        self._plan = plan_for(dataset, chosen, world_size=self.world_size).require_steps()
        self.batch_size = self._plan.batch_size
        self._builder = BatchBuilder(
            dataset, seed=chosen.transform_seed, collate=collate, on_error=on_error
        )
        # The cursor of this process travels by pickle and fork, so that all new workers have the
        # same one. Workers that live on read the shared one.
        self._cursor = EpochCursor()
        self._shared = SharedCursor()
        self._notice = EpochNotice(SharedIntegers([0, 0]))
        self._lives_on = False
        self._pass: WorkerPass | None = None
        self._account = OrderAccount(dataset, coverage)
        # Batches of the worker that the next pass skips: by its state they were returned before.
        self._num_skipped = 0
        self._is_loaded = False
        self._num_passes = 0

    def __iter__(self) -> Iterator[Any]:
        """Go through this worker's steps of the epoch, or through all steps without workers."""
        worker = torch.utils.data.get_worker_info()
        self._num_passes += 1
        worker_pass = WorkerPass.begin(worker, self._num_passes, self._num_skipped)
        if worker is not None:
            self._pass, self._num_skipped = worker_pass, 0
            self._shared.mark_workers()
            if self._lives_on:
                self._cursor = self._shared.read()
            self._lives_on = True
        cursor, rank, plan = self._cursor, self.rank, self.plan
        refuse_second_division(self, plan.world_size)
        is_loaded, self._is_loaded = self._is_loaded, False
        is_first = worker is None or self._shared.is_first(worker_pass, cursor)
        was_read = self._shared.was_read(cursor) and not is_loaded
        if cursor.start and not (is_first or was_read or is_loaded):
            return refusal(LEFT_EARLY.format(cursor))
        if worker_pass.number == 0:
            num_left = self._pass.num_yielded if worker is None and self._pass else 0
            num_repeated = READ_AS_A_WHOLE if was_read else num_left or int(not is_first)
            self._notice.begin(plan, cursor.epoch, rank, num_repeated=num_repeated)
        if worker_pass.number == 0 and self._shared.first_notice():
            DropNotice(is_default=self._is_default).say(plan, rank)
        if was_read:
            cursor = self._cursor = cursor._replace(start=0)
        rest = plan.resumed(cursor.start, epoch=cursor.epoch)
        # If a loader counts, each batch takes its sample ids along.
        is_counted = self._account.is_counted
        if worker is not None and self._account.writes and not is_counted:
            return refusal(NOT_COUNTED)
        if worker is None and not is_counted:
            self._account.begin(rest, epoch=cursor.epoch, rank=rank, progress=worker_pass)
        self._shared.mark_begun(worker_pass, cursor)
        return self._batches(cursor, rest, rank, worker_pass, is_counted=is_counted)

    @property
    def epoch(self) -> int:
        """The epoch that the next iterator goes through."""
        return self._cursor.epoch

    @property
    def num_left(self) -> int:
        """Batches of this rank that the next iterator goes through."""
        start = 0 if self._shared.was_read(self._cursor) else self._cursor.start
        return self.plan.resumed(start, epoch=self.epoch).num_steps

    def set_epoch(self, epoch: int) -> None:
        """Choose the epoch of the next `iter(loader)`, also for workers that live on.

        The epoch that a loaded state stands in continues at its position; any other starts at 0.
        What is being iterated continues unchanged.
        """
        # Accelerate calls this on all ranks, also where one alone is to read.
        refuse_second_division(self, self.world_size)
        epoch = checked_epoch(epoch)
        self._notice.set(epoch, self._order.ranks.now().rank)
        if epoch == self._cursor.epoch and not self._shared.was_read(self._cursor):
            self._move(epoch, self._cursor.start)
        else:
            self._move(epoch, 0)
            self._pass = None

    def state_dict(self, num_batches: int | None = None) -> dict[str, Any]:
        """The position after some batches of the iteration under way, equal on all ranks.

        Args:
            num_batches: how many batches the program has taken since `iter(loader)`, in the epoch
                that was set last. None counts what was yielded in this process, which is right
                for `num_workers=0` only: worker processes read ahead, so that nothing here knows
                what came out of them.

        Returns:
            JSON, under 1 KB: what `load_state_dict` of any rank takes, here or in a
            `shardwise.DataLoader`, with any world size, batch size and number of workers. Called
            in a worker process, as torchdata's StatefulDataLoader does: that worker's own state,
            for the same worker of as many.

        Raises:
            StateError: called with workers and without num_batches.
            ValueError: num_batches is not in [0, batches left in the epoch].
        """
        worker = torch.utils.data.get_worker_info()
        if worker is not None:
            return self._state_in_worker(worker.id, worker.num_workers)
        if num_batches is None:
            if self._shared.has_workers():
                raise StateError(
                    "worker processes read this dataset ahead of the program: pass "
                    "state_dict(num_batches=...), the batches taken since iter(loader)"
                )
            num_batches = 0 if self._pass is None else self._pass.num_yielded
        epoch = self._cursor.epoch
        plan = self.plan.resumed(self._shared.beginning(), epoch=epoch)
        check_count("num_batches", num_batches, plan, epoch)
        self._account.note(self._pass, num_batches)
        run = self._account.state_run
        return self._order.state_after(plan, epoch, num_batches, run=run)

    def certificate(self) -> dict[str, Any]:
        """The record of this process's newest pass, as `DataLoader.certificate`.

        Raises:
            StateError: worker processes read this dataset, and no `StatefulDataLoader` counts.
        """
        if self._shared.has_workers() and not self._account.is_loaders:
            raise StateError(NOT_COUNTED)
        return self._account.certificate(None, self._order.ranks, epoch=self.epoch)

    def load_state_dict(self, state: Mapping[str, Any], *, grown: Grown = None) -> None:
        """Let the next `iter(loader)` continue where a state was taken, as of `DataLoader`.

        Raises:
            StateError: the state belongs to other data, another seed or another order, or it is
                a worker's and this is not that worker.
        """
        worker = torch.utils.data.get_worker_info()
        if worker is not None:
            self._load_in_worker(state, worker.id, worker.num_workers)
            return
        self._plan, loaded = self._order.take_up(self.plan, state, grown)
        self._move(loaded.epoch, loaded.position)
        self._notice.load(loaded.epoch)
        self._pass = None
        self._account.resume(loaded.run)

    def __getstate__(self) -> dict[str, Any]:
        """Rank, world size and cursor travel (I10); a copy has yielded nothing."""
        return {**self.__dict__, "_plan": self.plan, "_pass": None}

    def _batches(
        self,
        cursor: EpochCursor,
        plan: Plan,
        rank: int,
        worker_pass: WorkerPass,
        *,
        is_counted: bool,
    ) -> Generator[Any, None, None]:
        self._pass = worker_pass
        steps = worker_pass.steps_left(plan.num_steps)
        if not steps:
            self._shared.mark_done(worker_pass, cursor)
        requests = epoch_requests(
            plan, epoch=cursor.epoch, rank=rank, first_step=steps.start, stride=steps.step
        )
        executor = make_executor(self._builder, self._executor_options, num_ranks=1)
        check_ranks = self._order.ranks.watch()
        with closing(executor), closing(executor.run(requests)) as batches:
            for batch in batches:
                check_ranks()
                worker_pass.num_yielded += 1
                self._account.add(worker_pass, batch.rows)
                if not worker_pass.steps_left(plan.num_steps):
                    # Before the last one is taken: the end need not be requested.
                    self._shared.mark_done(worker_pass, cursor)
                    self._account.note(worker_pass, worker_pass.num_yielded)
                data = self._output.of(batch)
                yield CountedBatch.of(data, batch.rows) if is_counted else data

    def _move(self, epoch: int, start: int) -> None:
        cursor = EpochCursor(epoch, start, self._cursor.times_set + 1)
        self._shared.write(cursor)
        self._cursor = cursor

    def _state_in_worker(self, number: int, num_workers: int) -> dict[str, Any]:
        began = self._order.state(self.plan, self._cursor.epoch, self._cursor.start)
        num_yielded = 0 if self._pass is None else self._pass.num_yielded
        worker = {"number": number, "num_workers": num_workers, "num_given": num_yielded}
        return {"worker": worker, "began": began}

    def _load_in_worker(self, state: Mapping[str, Any], number: int, num_workers: int) -> None:
        worker = state.get("worker", {})
        if (worker.get("number"), worker.get("num_workers")) != (number, num_workers):
            raise StateError(
                f"worker {number} of {num_workers} got the state of {worker or 'no worker'}: use "
                "shardwise.torch.StatefulDataLoader, whose state any number of workers takes up"
            )
        self._plan, began = self._order.take_up(self.plan, state["began"])
        self._cursor = EpochCursor(began.epoch, began.position, self._cursor.times_set)
        self._lives_on = False  # the next pass starts here, not at the main process's cursor
        self._num_skipped = worker["num_given"]
        self._is_loaded = True
