"""The loader: from options to a plan, an executor, and batches that are counted.

Everything under it is a function of the plan: executors run ahead of the user, but the position
counts the batches that were returned (I4).
"""

from __future__ import annotations

import inspect
import os
import time
from collections.abc import Callable, Generator, Mapping, Sequence
from copy import copy
from typing import TYPE_CHECKING, Any, Literal, Unpack

from shardwise.base.arguments import check_flag, suggest_names
from shardwise.base.plugins import find
from shardwise.base.ranks import local_world_size
from shardwise.engine.batch.chunks import OnError
from shardwise.engine.batch.prefetch import DEFAULT_PREFETCH_BYTES
from shardwise.engine.batch.ragged import Ragged
from shardwise.engine.choice import ExecutorFactory, ExecutorName, ExecutorOptions
from shardwise.engine.stats.counts import Counts
from shardwise.loader.arguments import TorchArguments, as_dataset, translate
from shardwise.loader.batch_maker import BatchMaker, BatchOptions
from shardwise.loader.frameworks import FrameworkAttributes
from shardwise.loader.passes import Passes
from shardwise.loader.plan_options import Grown, PlanOptions, plan_for
from shardwise.loader.planned_order import PlannedOrder
from shardwise.loader.questions import Questions
from shardwise.loader.rank_check import CurrentRanks
from shardwise.loader.returned_types import B
from shardwise.plan import BatchBy, Plan, Remainder, Sampler, Shuffle, checked_epoch
from shardwise.plan.arguments import DEFAULT_BATCH_SIZE

if TYPE_CHECKING:
    from numpy.typing import ArrayLike

    from shardwise.dataset import Dataset


@suggest_names
class DataLoader(Questions[B], FrameworkAttributes[B]):
    """Batches of a dataset for one rank: exactly once, in equal steps, in one order everywhere.

    Args:
        dataset: a `Dataset`; or whatever has a length and items (a list, a torch dataset, one of
            Hugging Face's), which is wrapped by `sw.wrap`.
        batch_size: samples per rank in each batch.
        shuffle: False or None, True (the way that suits the source), "full" or "window".
        seed: makes another order, and other randomness in transforms.
        sampler: an order of your own, in place of shuffle, seed and epoch_size: any object of the
            `shardwise.plan.Sampler` protocol. Its `seed`, if it has one, keys transforms. Or an
            array of sample ids, or the path of a `.npy` file, for the same order in every epoch.
        remainder: what becomes of samples that do not fill a global batch. "drop" leaves them
            out of this epoch; "pad" repeats samples and marks the repeats False in "__valid__";
            "uneven" gives each exactly once, the last batch of some ranks shorter or empty. None
            is "uneven" without a shuffle, else "drop", which is logged once.
        rank: this process's rank; found, together with world_size, when both are None.
        world_size: how many ranks share the data.
        group: a process group or one dimension of a device mesh to take both from.
        share: the ranks that get the same batches, which one of them on each machine makes:
            dimensions of that mesh, such as ("tp", "cp"), or a process group.
        halves: fields `[rows, length]` that context-parallel ranks get parts of, {"cp": ["x"]}.
        num_workers: worker processes; 0 for none. None is one per core of this rank, of several,
            if functions of yours run for each sample (a `map()`, a decoder that is a function),
            and after a second of decoding if decoders of this library fill rows of a fixed shape.
        num_threads: threads in each process; 0 for none. None is one per core or worker process.
        executor: None, "inline", "threads" or "processes"; None follows from the two above. Or
            `sw.service(...)`; or what makes one from a `shardwise.executors.BatchBuilder`.
        epoch_size: samples in an epoch, over all ranks: such epochs walk on through the data.
        batch_by: batches of neighbours in length, see `sw.buckets`.
        exclude: samples that are left out on purpose: ids, keys, or the path of a file with one id
            or key a line, or of a `.npy` file. It counts from the position of a loaded state on.
        global_batch_size: in place of batch_size: samples per step over all ranks, in shares that
            differ by one sample at most: 24 over 5 ranks are 5, 5, 5, 5 and 4.
        balance: what each sample costs: an array, a field's name, or "attention" for packs of
            `sw.pack`. The rows of a global batch are dealt so that all ranks have equal work.
        hidden: the width of the model, for balance="attention", see `Dataset.costs`.
        collate: None for a dict of columns, else a function from a list of samples to a batch.
        as_tuple: batches, and the samples for `collate`, are tuples with these fields, in order.
        ragged: what becomes of fields whose values differ in shape. "list" leaves them lists;
            "error" raises; "pad" fills up with zeros to the largest of the batch and adds
            "<field>.mask", bool of the same shape, for each field whose decoder does not fix the
            shape; "nested" makes nested tensors of them. `collate=sw.pad(...)` pads to multiples.
        on_error: what a damaged sample does. "raise" raises its error; "skip" leaves its row out;
            "replace" puts another sample there, the same one in every run.
        prefetch_factor: batches made ahead per worker process or thread; at most 16 times as many.
        pin_memory: page-locked tensors, for copies to a GPU.
        timeout: seconds to wait for one batch before `StallError`; None or 0 waits for ever.
        decode_timeout: seconds that decoders or functions of a `map()` may take for one sample, in
            worker processes. The process of a late one is stopped, and its sample is damaged.
        prefetch_bytes: memory of this process, by default 1 GiB, for batches that are made ahead,
            the program's own batch and pictures of video decoders.
        output: "torch" for tensors, "numpy" for arrays, "jax" for arrays of JAX.
        sharding: for "jax": a `jax.sharding.Sharding`, which also defines ranks, or a device.
        device: where the tensors are to be: a `torch.device` or its name, such as "cuda". The
            next batch is copied while the program computes. None leaves them in host memory.
        coverage: a local directory to which each rank writes which samples it returned, for
            `shardwise certify`: at each `state_dict()` and the end of each epoch, on every rank.
        metrics: a local directory to which each rank appends what it counts, every 10 s, for
            `shardwise watch` and `shardwise report`; one loader's alone.
        **torch_names: what torch's DataLoader calls these, see docs/from-torch.md.

    A batch is a dict: a tensor `[batch_size, ...]` for each field that can be stacked, else a list;
    "__key__", a list of str; "__index__", int64, the sample ids; with padding "__valid__", bool.
    Iterating again after the last batch starts the next epoch, before it the same one again.

    Raises:
        ValueError: an option is not usable; the message has its value and what to use instead.
        TypeError: an option is of another type; the message has its name, value and type.
        RankError: rank and world size can't be determined for certain.

    One thread at a time may iterate a loader.

    Examples:
        >>> import shardwise as sw
        >>> loader = sw.DataLoader(sw.wrap(range(10)), batch_size=4, output="numpy")
        >>> [batch["value"].tolist() for batch in loader]
        [[0, 1, 2, 3], [4, 5, 6, 7], [8, 9]]
    """

    def __init__(
        self,
        dataset: Dataset | Any,
        batch_size: int = DEFAULT_BATCH_SIZE,
        shuffle: Shuffle | None = False,
        *,
        seed: int = 0,
        sampler: Sampler | ArrayLike | os.PathLike[str] | None = None,
        remainder: Remainder | None = None,
        rank: int | None = None,
        world_size: int | None = None,
        group: Any = None,
        share: Any = None,
        halves: Mapping[str, Sequence[str]] | None = None,
        num_workers: int | None = None,
        num_threads: int | None = None,
        executor: ExecutorName | ExecutorFactory | None = None,
        epoch_size: int | None = None,
        batch_by: BatchBy | None = None,
        exclude: Any = None,
        global_batch_size: int | None = None,
        balance: Any = None,
        hidden: int | None = None,
        collate: Callable[[list[Any]], B] | None = None,
        as_tuple: Sequence[str] | None = None,
        ragged: Ragged = "list",
        on_error: OnError = "raise",
        prefetch_factor: int | None = 2,
        pin_memory: bool = False,
        timeout: float | None = None,
        decode_timeout: float | None = None,
        prefetch_bytes: int = DEFAULT_PREFETCH_BYTES,
        output: Literal["torch", "numpy", "jax"] = "torch",
        sharding: Any = None,
        device: Any = None,
        coverage: str | os.PathLike[str] | None = None,
        metrics: str | os.PathLike[str] | None = None,
        **torch_names: Unpack[TorchArguments[B]],
    ) -> None:
        remainder, collate = translate(
            torch_names, remainder=remainder, collate=collate, options=_OPTIONS
        )
        check_flag("pin_memory", pin_memory)
        self.dataset = as_dataset(dataset)
        timeout = None if timeout == 0 else timeout  # 0 is torch's default
        options = self._options = PlanOptions(
            batch_size=batch_size,
            shuffle=shuffle,
            seed=seed,
            sampler=sampler,
            remainder=remainder,
            epoch_size=epoch_size,
            batch_by=batch_by,
            exclude=exclude,
            global_batch_size=global_batch_size,
            balance=balance,
            hidden=hidden,
        ).of(self.dataset)
        prefetch_factor = 2 if prefetch_factor is None else prefetch_factor
        began = time.perf_counter()
        self._maker = BatchMaker(
            self.dataset,
            BatchOptions(
                seed=options.transform_seed,
                remainder=options.effective_remainder,
                collate=collate,
                as_tuple=as_tuple,
                ragged=ragged,
                on_error=on_error,
                output=output,
                device=device,
                sharding=sharding,
                pin_memory=pin_memory,
                group=group,
                share=share,
                halves=halves,
            ),
            ExecutorOptions(
                executor=executor,
                num_workers=num_workers,
                num_threads=num_threads,
                prefetch_factor=prefetch_factor,
                prefetch_bytes=prefetch_bytes,
                timeout=timeout,
                decode_timeout=decode_timeout,
            ),
        )
        if (arrays := self._maker.output.arrays) is not None:
            rank, world_size = arrays.ranks(rank, world_size, group, global_batch_size)
        self._order = PlannedOrder(self.dataset, CurrentRanks(rank, world_size, group=group))
        self.drop_last = options.effective_remainder == "drop"
        self.pin_memory, self.prefetch_factor, self.timeout = pin_memory, prefetch_factor, timeout
        self.collate_fn, self.output, self.device = collate, output, self._maker.output.device
        counts = self._counts = Counts(self.dataset, pin_memory=pin_memory)
        self._plan = plan_for(self.dataset, options, world_size=self.world_size).require_steps()
        counts.opened(time.perf_counter() - began)
        self.num_workers = self._maker.start(self._plan, local_world_size())
        wants_metrics = metrics is not None and self._maker.accounts
        written = find("metrics", "lines")(metrics, coverage) if wants_metrics else None
        self._passes = Passes(self.dataset, counts, coverage, written, is_default=remainder is None)
        self._passes.account.is_others = not self._maker.accounts

    @property
    def plan(self) -> Plan:
        """The plan for the ranks of this process, which do not change within a pass."""
        position = self._passes.position
        position.leave_forked()
        if not position.is_in_pass and self.world_size != self._plan.world_size:
            self._plan = self._order.divide(self._plan)
            if not self._order.ranks.has_travelled:
                self.close()
            # Launchers that do not report a machine's ranks start them on one machine.
            num_local = local_world_size(default=self._plan.world_size)
            self.num_workers = self._maker.start(self._plan, num_local)
        return self._plan

    @property
    def _pass_plan(self) -> Plan:
        """The plan of the pass under way, or else the next one, from its first batch on."""
        return self._passes.position.rest(self.plan)

    @property
    def epoch(self) -> int:
        """The epoch that is being iterated, or else the one that comes next."""
        return self._passes.position.epoch

    @property
    def num_steps_left(self) -> int:
        """Batches left of the pass under way, or else of the next one."""
        current = self._passes.position.current
        return self._pass_plan.num_steps - (0 if current is None else current.num_batches)

    def set_epoch(self, epoch: int) -> None:
        """Choose the epoch that the next iterator goes through, from its start.

        Naming the epoch that a loaded state stands in, or that is under way, changes nothing. One
        whose last batch was returned is over: naming it starts it again.
        """
        epoch, passes = checked_epoch(epoch), self._passes
        passes.end_if_whole()
        passes.notice.set(epoch, self._order.ranks.now().rank)
        if epoch != self.epoch:
            passes.position.move(epoch)

    def state_dict(self) -> dict[str, Any]:
        """The position after the batches returned: JSON, under 1 KB, equal on all ranks.

        With a coverage directory it also writes what this rank returned since the last line, so
        call it on every rank, also where one rank alone saves it.
        """
        passes, account = self._passes, self._passes.account
        account.note(passes.position.current)
        return self._order.state(
            self.plan, *passes.position.after(), run=account.state_run, skipped=passes.skipped
        )

    def load_state_dict(self, state: Mapping[str, Any], *, grown: Grown = None) -> None:
        """Continue where a state was taken, with any world size, batch size or executor.

        With grown="next_epoch", shards may have come after the state's: the epoch under way ends
        without them. A `StateError` names any other difference: data, seed or order.
        """
        self._plan, loaded = self._order.take_up(self.plan, state, grown)
        self._passes.load(self._plan, loaded.in_next_epoch())

    def skip(self, num_steps: int) -> None:
        """Leave out the next steps on purpose, as after a loss spike: the same ones on every rank.

        A loop under way continues after them. The state, the coverage and certificates record them.

        Raises:
            ValueError: the epoch has no more than that many steps left.
        """
        self._passes.skip(self.plan, self.rank, num_steps, self._cut_epoch(self.epoch)[1])

    def regroup(
        self, rank: int | None = None, world_size: int | None = None, *, group: Any = None
    ) -> None:
        """Continue as another rank of another world, between two steps; rebuild nothing.

        Threads, processes, caches and open files stay. A running iterator continues after the
        batches it returned; those made ahead for the old rank are dropped. Every rank of the new
        world calls it at the same position, which a new one has loaded as a state. The arguments
        are the loader's own: without them the ranks are found again.

        Raises:
            ValueError: the world is too large, has no such order, or an argument is wrong.
            RankError: the rank of this process is unknown. The loader is as it was, in both cases.
        """
        order = self._order.regrouped(rank, world_size, group=group)
        # Use the state's order: with other global batches, the order may be another one.
        state = self._order.state(self._plan, *self._passes.position.after())
        plan, _ = order.take_up(order.divide(self._plan), state)
        self._order, self._plan = order, plan
        self._maker.coalesce(plan)
        self._passes.regroup()

    def __getstate__(self) -> dict[str, Any]:
        """Rank, world size and position travel with a pickled loader (I10)."""
        return {**self.__dict__, "_passes": copy(self._passes)}

    def _batches(self) -> Generator[Any, None, None]:
        return self._passes.run(self._maker, self._agree_on_plan)

    def _agree_on_plan(self) -> tuple[int, Plan, Callable[[], None]]:
        """This process's rank and plan, and the check that they are still its own."""
        rank, plan, check_ranks = self.rank, self.plan, self._order.ranks.watch()
        self._order.require_agreement(plan, *self._passes.position.after())
        return rank, plan, check_ranks

    def close(self) -> None:
        """End threads and processes with their batches in progress; iterating starts them again."""
        if self._passes.metrics is not None:
            self._passes.metrics.close()
        self._maker.close()

    def __enter__(self) -> DataLoader[B]:
        return self

    def __exit__(self, *exc: object) -> None:
        self.close()


_OPTIONS = tuple(name for name in inspect.signature(DataLoader).parameters if name != "torch_names")
