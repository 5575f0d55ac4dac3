"""The loader: in which order samples come, who gets them, and where one is in the epoch.

It owns the only position there is (I4). Everything under it is a function of the plan: executors
run ahead of the user, but the state counts the batches that were handed out. It reaches
`shardwise.torch` when it hands out the first tensors, so that it can be used without torch.
"""

from __future__ import annotations

import sys
import time
from collections.abc import Callable, Generator, Iterator, Mapping
from contextlib import AbstractContextManager, closing, nullcontext
from threading import TIMEOUT_MAX
from typing import TYPE_CHECKING, Any

from shardwise.engine.choice import choose_executor
from shardwise.engine.cores import usable_cores
from shardwise.engine.counts import Counts
from shardwise.engine.groups import batches_in_groups, group_size
from shardwise.engine.maker import BatchMaker
from shardwise.engine.schedule import epoch_works
from shardwise.engine.work import Batch, Executor, Work
from shardwise.plan import Order, Plan, Remainder, Shuffle, checked_epoch
from shardwise.ranks import discover, local_world_size

if TYPE_CHECKING:
    from shardwise.dataset import Dataset

__all__ = ["DataLoader", "EpochSampler", "plan_for"]

_OUTPUTS = ("torch", "numpy")


def plan_for(
    dataset: Dataset,
    *,
    batch_size: int,
    world_size: int,
    shuffle: Shuffle,
    seed: int,
    remainder: Remainder,
    epoch_size: int | None,
) -> Plan:
    """Make the plan of a dataset; True shuffles in the way that suits its source.

    Raises:
        ValueError: an option is not usable, or no rank would get a single batch.
    """
    shuffle = dataset.default_shuffle if shuffle is True else shuffle
    return Plan(
        len(dataset),
        batch_size=batch_size,
        world_size=world_size,
        seed=seed,
        shuffle=shuffle,
        remainder=remainder,
        shard_sizes=dataset.shard_sizes if shuffle == "window" else None,
        window_shape=dataset.window_shape,
        epoch_size=epoch_size,
    ).require_steps()


class EpochSampler:
    """What frameworks look for under `loader.sampler`: a way to set the epoch."""

    def __init__(self, loader: DataLoader) -> None:
        self._loader = loader

    def set_epoch(self, epoch: int) -> None:
        """Set the loader's epoch."""
        self._loader.set_epoch(epoch)

    def __len__(self) -> int:
        return len(self._loader) * self._loader.batch_size


class _Run:
    """One pass over an epoch: which one, where it began, what was handed out."""

    __slots__ = ("epoch", "num_given", "plan", "start")

    def __init__(self, epoch: int, start: int, plan: Plan) -> None:
        self.epoch = epoch
        self.start = start
        self.plan = plan
        self.num_given = 0

    @property
    def is_whole(self) -> bool:
        """Whether all batches were handed out."""
        return self.num_given >= self.plan.num_steps

    def position(self) -> tuple[int, int]:
        """`(epoch, position)` after the batches handed out; the end is the next epoch's begin."""
        if self.is_whole:
            return self.epoch + 1, 0
        return self.epoch, self.start + self.num_given * self.plan.global_batch_size


class DataLoader:
    """Batches of a dataset for one rank: exactly once, in equal steps, in one order everywhere.

    Args:
        dataset: a `Dataset`; it stays as it is.
        batch_size: samples a rank in each batch.
        shuffle: False, True (the way that suits the source), "full" or "window".
        seed: makes another order, and other randomness in transforms.
        remainder: what becomes of samples that do not fill a global batch. "drop" leaves them
            out of this epoch; "pad" repeats samples and marks the repeats False in "__valid__";
            "uneven" gives each exactly once, and the last batch of some ranks is shorter,
            possibly empty.
        rank: this process's rank; found, together with world_size, when both are None.
        world_size: how many ranks share the data.
        group: a process group or one dimension of a device mesh to take both from.
        num_workers: worker processes; 0 for none. None for one a core that this rank may use if
            functions of yours run for each sample (a `map()`, a decoder that is a plain function)
            and there is more than one core, else for none.
        num_threads: threads that read and decode, in each process; None for one a core that this
            rank may use (of tar shards that are only read, for one alone while no read has to
            wait), or one in each of several processes; 0 for none.
        executor: None, "inline", "threads" or "processes"; None follows from the two above.
        epoch_size: samples in an epoch, over all ranks, where that is not all samples: such
            epochs walk on through the data, each sample once before any comes again.
        collate: None for a dict of columns, else a function from a list of samples to a batch.
        on_error: "raise", "skip" or "replace"; see `BatchMaker`.
        prefetch_factor: batches that are made ahead, for each worker process, or else each thread.
        pin_memory: tensors in page-locked memory, for copies to a GPU.
        timeout: seconds to wait for one batch before `StallError`; None waits for ever.
        output: "torch" for tensors, "numpy" for arrays.
        device: where the tensors are to be: a `torch.device` or its name, such as "cuda". The
            next batch is copied there while the program computes on the one it has. None leaves
            them in host memory.

    A batch is a dict: a tensor `[batch_size, ...]` for each field that can be stacked, a list for
    each that can't; "__key__", a list of str; "__index__", int64, the sample ids; with padding
    "__valid__", bool. Iterating again after the end begins the next epoch, also where the last
    batch was taken and the end not asked for; iterating again before begins the same one again.

    Raises:
        ValueError: an option is not usable; the message has its value and what to use instead.
        RankError: rank and world size can't be told for certain.

    The order depends on the data, `seed`, `shuffle`, `epoch_size` and the epoch alone. One thread
    at a time may iterate a loader.

    Example:
        >>> import shardwise as sw
        >>> loader = sw.DataLoader(sw.wrap(range(10)), batch_size=4, output="numpy")
        >>> [batch["value"].tolist() for batch in loader]
        [[0, 1, 2, 3], [4, 5, 6, 7]]
    """

    # What frameworks read. Accelerate would wrap a loader and shard it once more, if it did not
    # take it for one that it has prepared.
    _is_accelerate_prepared = True
    use_stateful_dataloader = True
    batch_sampler = None
    multiprocessing_context = None

    def __init__(
        self,
        dataset: Dataset,
        *,
        batch_size: int = 64,
        shuffle: Shuffle = False,
        seed: int = 0,
        remainder: Remainder = "drop",
        rank: int | None = None,
        world_size: int | None = None,
        group: Any = None,
        num_workers: int | None = None,
        num_threads: int | None = None,
        executor: str | None = None,
        epoch_size: int | None = None,
        collate: Callable[[list[dict[str, Any]]], Any] | None = None,
        on_error: str = "raise",
        prefetch_factor: int = 2,
        pin_memory: bool = False,
        timeout: float | None = None,
        output: str = "torch",
        device: Any = None,
    ) -> None:
        if output not in _OUTPUTS:
            raise ValueError(f"output={output!r}: use one of {', '.join(map(repr, _OUTPUTS))}")
        if prefetch_factor < 1:
            raise ValueError(f"prefetch_factor={prefetch_factor}: use 1 or more")
        if timeout is not None and not 0 < timeout <= TIMEOUT_MAX:
            raise ValueError(f"timeout={timeout}: use seconds above 0, or None to wait for ever")
        if pin_memory and output != "torch":
            raise ValueError(f"pin_memory=True makes torch tensors, not output={output!r}")
        if device is not None and output != "torch":
            raise ValueError(f"device={str(device)!r} is for tensors, not output={output!r}")
        ranks = discover(rank, world_size, group=group)
        self.dataset = dataset
        self.batch_size = batch_size
        self.rank = ranks.rank
        self.world_size = ranks.world_size
        self.drop_last = remainder == "drop"
        self.pin_memory = pin_memory
        self.prefetch_factor = prefetch_factor
        self.collate_fn = collate
        self.timeout = timeout
        self.output = output
        self.device: Any = None if device is None else _checked_device(device)
        self.sampler = EpochSampler(self)
        self._counts = Counts(dataset)
        began = time.perf_counter()
        self.plan = plan_for(
            dataset,
            batch_size=batch_size,
            world_size=self.world_size,
            shuffle=shuffle,
            seed=seed,
            remainder=remainder,
            epoch_size=epoch_size,
        )
        self._counts.opened(time.perf_counter() - began)
        self._executor: Executor = choose_executor(
            BatchMaker(dataset, seed=seed, collate=collate, on_error=on_error),
            executor=executor,
            num_workers=num_workers,
            num_threads=num_threads,
            num_ranks=local_world_size(),
            prefetch_factor=prefetch_factor,
            timeout=timeout,
        )
        self.num_workers = self._executor.hands.num_workers
        # Substitutes and gaps are dealt with batch by batch, and so is a collate of the user's.
        is_plain = collate is None and on_error == "raise"
        # Shuffled, each sample of a store is a request: no batch should wait for those of others.
        is_plain = is_plain and not (shuffle and dataset.asks_a_store)
        self._group_size = group_size(dataset, batch_size) if is_plain else 1
        self._epoch = 0
        self._start = 0
        self._run: _Run | None = None
        self._copier: Any = None

    def __len__(self) -> int:
        """Batches in an epoch: the same on every rank, and the same after a resume."""
        return self.plan.num_steps

    def __iter__(self) -> Iterator[Any]:
        """Go through the epoch from where it stands; nothing happens before the first `next`."""
        last = self._run
        if last is not None and last.is_whole:
            # Programs that count steps take the last batch and never ask for the end.
            self._end(last)
        run = self._run = _Run(self._epoch, self._start, self.plan.resumed(self._start))
        works = epoch_works(run.plan, epoch=run.epoch, rank=self.rank)
        self._counts.begin()
        with closing(self._made(works)) as batches:
            while True:
                if self._run is not run:
                    raise RuntimeError(
                        "another iterator of this loader has begun, or its state was set: only "
                        "the newest iterator goes on; make a second loader to iterate twice at once"
                    )
                asked = time.perf_counter()
                with self._named("shardwise.next"):
                    batch = next(batches, None)
                if batch is None:
                    break
                made = time.perf_counter()
                with self._named("shardwise.to_tensors"):
                    output = self._output(batch)
                self._counts.add(batch, asked=asked, made=made, given=time.perf_counter())
                run.num_given += 1
                yield output
            self._end(run)

    def _end(self, run: _Run) -> None:
        self._epoch, self._start, self._run = run.epoch + 1, 0, None
        self._counts.end_epoch(run.plan)

    @property
    def epoch(self) -> int:
        """The epoch that is being iterated, or else the one that comes next."""
        return self._epoch if self._run is None else self._run.epoch

    @property
    def num_steps_left(self) -> int:
        """Batches that the pass under way, or else the next one, has still to hand out."""
        if self._run is None:
            return self.plan.resumed(self._start).num_steps
        return self._run.plan.num_steps - self._run.num_given

    def set_epoch(self, epoch: int) -> None:
        """Choose the epoch that the next iterator goes through, from its beginning.

        Naming the epoch that a loaded state stands in, or that is under way, changes nothing.
        """
        epoch = checked_epoch(epoch)
        if epoch != self._epoch:
            self._epoch, self._start, self._run = epoch, 0, None

    def state_dict(self) -> dict[str, Any]:
        """The position after the batches handed out: JSON, under 1 KB, equal on all ranks."""
        return self._order.state(*self._position()).to_dict()

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Go on where a state was taken, with any world size, batch size or executor.

        Raises:
            StateError: the state belongs to other data, another seed or another order.
        """
        loaded = self._order.read(state)
        self._epoch, self._start, self._run = loaded.epoch, loaded.position, None

    def stats(self, *, reset: bool = False) -> dict[str, Any]:
        """What was handed out so far, what it took, and what the limit is.

        Args:
            reset: count from zero after this, to see one part of a run.

        Returns:
            `samples` and `batches` handed out by this rank; `seconds`, busy seconds by stage
            ("open", "read", "decode", "transform", "collate", "hand over"), summed over
            threads, and `cpu_s` of them on a core while loading; `wait_s`, seconds that the
            caller waited for batches, of `wall_s` seconds in all; `rate`, samples a second;
            `queue_depth`, the mean number of batches that were ready when one was asked for;
            `slowest_shards`, dicts of `url` and `seconds_a_sample`; `bytes` read; of remote
            storage, for this process and the loader's workers as a whole: `requests`,
            `bytes_fetched`, `retries`, `hedges` (second requests for late ones), `hits`, `misses`
            and `evictions` of cached blocks, `damaged` (blocks that were fetched anew),
            `degraded` (times that a cache could not be used);
            `skipped` and `replaced` damaged samples of this rank; `dropped`
            and `padded`, samples over all ranks of the epochs that ended; `executor`,
            `num_workers` and `num_threads` as they are now; `bound_by` and `verdict`, what limits
            the loader, as a word and as a line. JSON.
        """
        num_cores = usable_cores(num_ranks=local_world_size())
        stats = self._counts.to_dict(self._executor.hands, num_cores=num_cores)
        if reset:
            self._counts.clear()
        return stats

    def as_torch_dataloader(self) -> Any:
        """This loader as an instance of `torch.utils.data.DataLoader`, for code that insists."""
        from shardwise.torch.facade import TorchDataLoader

        return TorchDataLoader(self)

    def close(self) -> None:
        """End threads and processes with what is under way; iterating starts them anew."""
        self._executor.close()

    def __getstate__(self) -> dict[str, Any]:
        """Rank, world size and position travel with a pickled loader (I10)."""
        epoch, position = self._position()
        return {**self.__dict__, "_epoch": epoch, "_start": position, "_run": None, "_copier": None}

    def __enter__(self) -> DataLoader:
        return self

    def __exit__(self, *exc: object) -> None:
        self.close()

    def _position(self) -> tuple[int, int]:
        return (self._epoch, self._start) if self._run is None else self._run.position()

    @property
    def _order(self) -> Order:
        return Order(self.dataset.fingerprint, self.plan.sampler)

    def _made(self, works: Iterator[Work]) -> Generator[Batch, None, None]:
        batches = batches_in_groups(self._executor, works, self._group_size)
        if not self._copies:
            return batches
        from shardwise.torch.device import copier_for, look_ahead

        # Made here and not before: the program may choose its device after making the loader.
        self._copier = self._copier or copier_for(self.device)
        return look_ahead(batches, self._copier)

    @property
    def _copies(self) -> bool:
        """Whether batches are to be copied: they are made in host memory."""
        return self.device is not None and self.device.type != "cpu"

    def _named(self, name: str) -> AbstractContextManager[object]:
        """A range of torch's profiler, where there is one that could be recording."""
        if self.output != "torch" or "torch" not in sys.modules:
            return nullcontext()
        from shardwise.torch.profiling import named_range

        return named_range(name)

    def _output(self, batch: Batch) -> Any:
        if self.output == "numpy" or self._copies or not isinstance(batch.data, dict):
            return batch.data
        from shardwise.torch.tensors import to_tensors

        return to_tensors(batch.data, pin_memory=self.pin_memory)


def _checked_device(device: Any) -> Any:
    from shardwise.torch.device import checked_device

    return checked_device(device)
