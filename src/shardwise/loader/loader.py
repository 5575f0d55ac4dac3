"""The loader: from options to a plan, an executor, and batches that are counted.

Everything under it is a function of the plan: executors run ahead of the user, but the position
counts the batches that were handed out (I4).
"""

from __future__ import annotations

import inspect
import os
import time
from collections.abc import Callable, Generator, Iterator, Sequence
from contextlib import closing
from typing import TYPE_CHECKING, Any, Literal, Unpack

from shardwise.base.arguments import check_flag
from shardwise.base.errors import RankError
from shardwise.base.markup import table
from shardwise.base.ranks import local_world_size
from shardwise.engine.batch.bad_samples import OnError
from shardwise.engine.batch.builder import BatchBuilder
from shardwise.engine.batch.padding import Padding
from shardwise.engine.batch.prefetch import DEFAULT_PREFETCH_BYTES
from shardwise.engine.batch.ragged import Ragged
from shardwise.engine.batch.schedule import coalesced_batches, epoch_requests, num_coalesced
from shardwise.engine.choice import (
    ExecutorFactory,
    ExecutorName,
    ExecutorOptions,
    make_executor,
)
from shardwise.engine.request import Batch, BatchRequest, Executor
from shardwise.engine.stats.counts import Counts
from shardwise.loader.account import Account
from shardwise.loader.arguments import as_dataset, checked_names, not_nested
from shardwise.loader.device_images import ImagesOnDevice
from shardwise.loader.drop_notice import DropNotice
from shardwise.loader.epoch_notice import EpochNotice
from shardwise.loader.output import Output
from shardwise.loader.plan_options import PlanOptions, plan_for
from shardwise.loader.position import Position
from shardwise.loader.rank_check import CurrentRanks
from shardwise.loader.stateful import StatefulLoader
from shardwise.loader.torch_arguments import TorchArguments, translate
from shardwise.plan import Buckets, Remainder, Sampler, SequentialSampler, Shuffle

if TYPE_CHECKING:
    from shardwise.dataset import Dataset


class DataLoader(StatefulLoader):
    """Batches of a dataset for one rank: exactly once, in equal steps, in one order everywhere.

    Args:
        dataset: a `Dataset`; or whatever has a length and items (a list, a torch dataset, one of
            Hugging Face's), which is wrapped by `sw.wrap`.
        batch_size: samples a rank in each batch.
        shuffle: False or None, True (the way that suits the source), "full" or "window".
        seed: makes another order, and other randomness in transforms.
        sampler: an order of your own, in place of shuffle, seed and epoch_size: any object of the
            `shardwise.plan.Sampler` protocol. Its `seed`, if it has one, keys transforms.
        remainder: what becomes of samples that do not fill a global batch. "drop" leaves them
            out of this epoch; "pad" repeats samples and marks the repeats False in "__valid__";
            "uneven" gives each exactly once, and the last batch of some ranks is shorter,
            possibly empty. None is "uneven" where nothing is shuffled, and "drop" where it is,
            with a line in the log on rank 0 if that leaves samples out.
        rank: this process's rank; found, together with world_size, when both are None.
        world_size: how many ranks share the data.
        group: a process group or one dimension of a device mesh to take both from.
        num_workers: worker processes; 0 for none. None for one a core that this rank may use if
            functions of yours run for each sample (a `map()`, a decoder that is a plain function)
            and there is more than one core, else for none.
        num_threads: threads that read and decode, in each process; 0 for none. None for one a core
            that this rank may use; with worker processes, for one in each. Samples that are read
            without decoding are loaded by one of them until a read has to wait.
        executor: None, "inline", "threads" or "processes"; None follows from the two above. Or
            `sw.service(...)`, for batches that servers make; or what makes an executor of your own
            from a `shardwise.executors.BatchBuilder`: its class, for example.
        epoch_size: samples in an epoch, over all ranks, where that is not all samples: such
            epochs walk on through the data, each sample once before any comes again.
        batch_by: batches of neighbours in length, of a fixed size or under a budget, over the order
            of shuffle or sampler: see `sw.buckets`.
        collate: None for a dict of columns, else a function from a list of samples to a batch.
        as_tuple: batches are tuples of these fields, in this order; the samples that a `collate`
            gets are, too.
        ragged: what becomes of fields whose values differ in shape. "list" leaves them lists, and
            says so once; "error" raises; "pad" fills up with zeros to the largest of the batch
            and adds "<field>.mask", bool of the same shape, in every batch, for each field of
            arrays whose shape its decoder does not fix; "nested" makes nested tensors of these
            fields. `collate=sw.pad(...)` pads to multiples.
        on_error: what a damaged sample does. "raise" raises its error; "skip" leaves its row out;
            "replace" puts another sample there, the same one in every run. `StorageError` and
            `StaleIndexError` are raised in any case.
        prefetch_factor: batches that are made ahead, for each worker process, or else each thread.
        pin_memory: tensors in page-locked memory, for copies to a GPU.
        timeout: seconds to wait for one batch before `StallError`; None or 0 waits for ever.
        decode_timeout: seconds that a decoder or function of a `map()` may take for one sample.
            Then its worker process is stopped, and the sample is a damaged one for `on_error`,
            with a `DecodeTimeoutError` that names url, key and field, and the frames of a clip. It
            takes worker processes; None lets decoders take any time.
        prefetch_bytes: memory of this process, by default 1 GiB, for the batches that are made
            ahead, the one that the program has and the pictures of video decoders: fewer batches
            are made ahead where they would take more, but always one. Where two batches leave too
            little, decoders wait for one another. A copy on its way to a device, and decoders in
            worker processes, come on top.
        output: "torch" for tensors, "numpy" for arrays.
        device: where the tensors are to be: a `torch.device` or its name, such as "cuda". The
            next batch is copied there while the program computes on the one it has. None leaves
            them in host memory.
        coverage: a local directory to which each rank writes which samples it handed out, for
            `shardwise certify`: at each `state_dict()`, which every rank must call for it, and at
            the end of each epoch.
        **torch_names: what torch's DataLoader calls these, see docs/from-torch.md.

    A batch is a dict: a tensor `[batch_size, ...]` for each field that can be stacked, a list for
    each that can't; "__key__", a list of str; "__index__", int64, the sample ids; with padding
    "__valid__", bool. Iterating again after the end begins the next epoch, also where the last
    batch was taken and the end not asked for; iterating again before begins the same one again.

    Raises:
        ValueError: an option is not usable; the message has its value and what to use instead.
        TypeError: an option is of another type; the message has its name, value and type.
        RankError: rank and world size can't be told for certain.

    The order depends on the data, `seed`, `shuffle`, `epoch_size` and the epoch alone. One thread
    at a time may iterate a loader.

    Examples:
        >>> import shardwise as sw
        >>> loader = sw.DataLoader(sw.wrap(range(10)), batch_size=4, output="numpy")
        >>> [batch["value"].tolist() for batch in loader]
        [[0, 1, 2, 3], [4, 5, 6, 7], [8, 9]]
    """

    def __init__(
        self,
        dataset: Dataset | Any,
        batch_size: int = 64,
        shuffle: Shuffle | None = False,
        *,
        seed: int = 0,
        sampler: Sampler | None = None,
        remainder: Remainder | None = None,
        rank: int | None = None,
        world_size: int | None = None,
        group: Any = None,
        num_workers: int | None = None,
        num_threads: int | None = None,
        executor: ExecutorName | ExecutorFactory | None = None,
        epoch_size: int | None = None,
        batch_by: Buckets | None = None,
        collate: Callable[[list[Any]], Any] | None = None,
        as_tuple: Sequence[str] | None = None,
        ragged: Ragged = "list",
        on_error: OnError = "raise",
        prefetch_factor: int | None = 2,
        pin_memory: bool = False,
        timeout: float | None = None,
        decode_timeout: float | None = None,
        prefetch_bytes: int = DEFAULT_PREFETCH_BYTES,
        output: Literal["torch", "numpy"] = "torch",
        device: Any = None,
        coverage: str | os.PathLike[str] | None = None,
        **torch_names: Unpack[TorchArguments],
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
        ).of(self.dataset)
        self._drop_notice = DropNotice(is_default=remainder is None)
        remainder = options.effective_remainder
        prefetch_factor = 2 if prefetch_factor is None else prefetch_factor
        self._executor_options = ExecutorOptions(
            executor=executor,
            num_workers=num_workers,
            num_threads=num_threads,
            prefetch_factor=prefetch_factor,
            prefetch_bytes=prefetch_bytes,
            timeout=timeout,
            decode_timeout=decode_timeout,
        )
        names = checked_names(
            as_tuple, self.dataset, remainder=remainder, ragged=ragged, collate=collate
        )
        self._ranks = CurrentRanks(rank, world_size, group=group)
        self.drop_last = remainder == "drop"
        self.pin_memory = pin_memory
        self.prefetch_factor = prefetch_factor
        self.collate_fn = collate
        self.timeout = timeout
        self.output = output
        makes_columns = collate is None or isinstance(collate, Padding)
        self._output = Output(
            output,
            device=device,
            pin_memory=pin_memory,
            as_tuple=names if makes_columns else None,
            not_nested=not_nested(self.dataset) if ragged == "nested" else None,
        )
        self.device = self._output.device
        self._counts = Counts(self.dataset, pin_memory=pin_memory)
        began = time.perf_counter()
        plan = plan_for(self.dataset, options, world_size=self.world_size)
        self._plan = plan.require_steps()
        self.batch_size = plan.batch_size
        self._counts.opened(time.perf_counter() - began)
        self._on_device = ImagesOnDevice(
            self.dataset,
            device=self.device,
            obstacle="a collate= function gets pixels" * (not makes_columns)
            or "batch servers send pixels" * callable(executor),
        )
        build: dict[str, Any] = {
            "seed": options.transform_seed,
            "collate": collate,
            "as_tuple": names,
            "ragged": ragged,
            "on_error": on_error,
        }
        self._builder = BatchBuilder(self._on_device.dataset, **build)
        # Where a device finds a file damaged.
        self._cpu_builder = BatchBuilder(self.dataset, **build)
        self._set_executor(local_world_size())
        # Skipped rows, substitutes, a collate of the user's and a watch need batches one by one.
        is_plain = makes_columns and on_error == "raise" and decode_timeout is None
        in_order = isinstance(plan.sampler, SequentialSampler)
        self._num_coalesced = (
            num_coalesced(self.dataset, self.batch_size, in_order=in_order) if is_plain else 1
        )
        self._position = Position()
        self._notice = EpochNotice()
        self._account = Account(self.dataset, coverage)

    def _set_executor(self, num_local: int) -> None:
        """Choose the executor for this number of ranks on the machine."""
        self._num_local = num_local
        self._executor: Executor = make_executor(
            self._builder, self._executor_options, num_ranks=num_local
        )
        self.num_workers = self._executor.concurrency.num_workers

    def _start_anew(self, world_size: int) -> None:
        if not self._ranks.has_travelled:
            self._executor.close()
        # Launchers that say nothing of a machine's ranks start them on one machine.
        self._set_executor(local_world_size(default=world_size))

    def __repr__(self) -> str:
        facts = ", ".join(f"{name}={value!r}" for name, value in self._facts())
        return f"DataLoader({self.dataset!r}, {facts})"

    def _repr_html_(self) -> str:
        return table("DataLoader", [("dataset", self.dataset), *self._facts()])

    def _facts(self) -> list[tuple[str, object]]:
        """Names and values of its repr, of the ranks as they are now; changes nothing."""
        try:
            now = self._ranks.now()
        except RankError as error:
            return [("rank", str(error))]
        plan = self._plan.divided(now.world_size).require_steps().resumed(0, epoch=self.epoch)
        names = ("batch_size", "world_size", "remainder", "num_steps", "num_dropped", "sampler")
        return [
            ("rank", now.rank),
            *((name, getattr(plan, name)) for name in names),
            ("executor", str(self._executor.concurrency)),
            ("epoch", self.epoch),
        ]

    def _batches(self) -> Generator[Any, None, None]:
        position = self._position
        position.leave_forked()
        self._end_if_whole()
        num_left = position.leave()
        rank, plan, check_ranks = self.rank, self.plan, self._ranks.watch()
        self._drop_notice.say(plan, rank)
        current = position.begin(plan)
        self._notice.begin(plan, current.epoch, rank, num_repeated=num_left)
        account = self._account
        account.begin(current, rank=rank)
        requests = epoch_requests(current.plan, epoch=current.epoch, rank=rank)
        self._counts.begin()
        made = self._on_device.run(requests, self._made, self._cpu_builder.build)
        with closing(self._output.ahead(made)) as batches:
            while True:
                if position.current is not current:
                    raise RuntimeError(
                        "another iterator of this loader has begun, or its state was set: only "
                        "the newest iterator goes on; make a second loader to iterate twice at once"
                    )
                check_ranks()
                asked_at = time.perf_counter()
                with self._output.range("shardwise.next"):
                    batch = next(batches, None)
                if batch is None:
                    break
                ready_at = time.perf_counter()
                with self._output.range("shardwise.to_tensors"):
                    self._on_device.keep(batch)
                    output = self._output.of(batch)
                returned_at = time.perf_counter()
                self._counts.add(
                    batch, asked_at=asked_at, ready_at=ready_at, returned_at=returned_at
                )
                account.add(batch.rows)
                current.num_batches += 1
                if current.num_batches == current.num_steps:
                    # Here, not where the end is asked for: programs that count steps never ask.
                    account.note(current)
                # Of these, the program has the only reference: what it drops is freed then, and not
                # when it waits for the next one.
                batch.data, outputs = None, [output]
                del output, batch
                yield outputs.pop()
            self._end_if_whole()

    def _made(self, requests: Iterator[BatchRequest]) -> Generator[Batch, None, None]:
        # A batch is whole, and can be prepared, after its images were decoded.
        if not self._on_device.decodes:
            self._builder.prepare = self._output.prepare
        return coalesced_batches(self._executor, requests, self._num_coalesced)

    def close(self) -> None:
        """End threads and processes with their batches in progress; iterating starts them anew."""
        self._executor.close()

    def __enter__(self) -> DataLoader:
        return self

    def __exit__(self, *exc: object) -> None:
        self.close()


_OPTIONS = tuple(name for name in inspect.signature(DataLoader).parameters if name != "torch_names")
