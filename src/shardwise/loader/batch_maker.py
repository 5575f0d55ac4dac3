"""The batches of a loader: who builds them, in which executor, and the form that the program gets.

Reaches `shardwise.tensors` when the first tensors are made, so that arrays need no torch.
"""

from __future__ import annotations

import sys
import time
from collections.abc import Callable, Collection, Generator, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, closing, nullcontext
from dataclasses import dataclass
from functools import partial
from typing import Any, Protocol

from shardwise.base.abilities import having
from shardwise.base.arguments import check_choice
from shardwise.base.collate import named
from shardwise.base.parallel import usable_cores
from shardwise.base.plugins import find
from shardwise.engine.batch.builder import BatchBuilder, InlineExecutor
from shardwise.engine.batch.chunks import OnError
from shardwise.engine.batch.padding import Padding
from shardwise.engine.batch.ragged import Ragged
from shardwise.engine.batch.schedule import coalesced_batches, num_coalesced
from shardwise.engine.choice import ExecutorOptions, explain_choice, make_executor
from shardwise.engine.request import Batch, BatchRequest, Concurrency, Executor
from shardwise.engine.stats.bottleneck import wanted_servers
from shardwise.engine.stats.counts import Counts
from shardwise.loader.arguments import checked_names, has_images_for_device, not_nested
from shardwise.plan import Plan, Remainder, SequentialSampler
from shardwise.sources.samples import Samples

_OUTPUTS = ("torch", "numpy", "jax")


class Output:
    """Turns batches of arrays into the user's batches.

    Args:
        kind: "torch", "numpy" or "jax".
        sharding: of arrays of JAX; `remainder` is the loader's.
        as_tuple: the columns of a batch that is a tuple, in their order; None for dicts, and where
            a collate of the user's made the batch.
        not_nested: the fields of a fixed shape, where others of arrays become nested tensors; None
            where none does.

    Raises:
        ValueError: an option does not apply to arrays, or the kind is unknown.
    """

    def __init__(
        self,
        kind: str,
        *,
        device: Any = None,
        sharding: Any = None,
        remainder: str = "drop",
        pin_memory: bool = False,
        as_tuple: tuple[str, ...] | None = None,
        not_nested: Collection[str] | None = None,
        cut: Callable[[Any], Any] | None = None,
    ) -> None:
        check_choice("output", kind, _OUTPUTS)
        if kind != "torch":
            if not_nested is not None:
                raise ValueError(f"ragged='nested' makes torch tensors, not output={kind!r}")
            if pin_memory:
                raise ValueError(f"pin_memory=True makes torch tensors, not output={kind!r}")
            if device is not None:
                raise ValueError(f"device={str(device)!r} is for tensors, not output={kind!r}")
        if sharding is not None and kind != "jax":
            raise ValueError(f"sharding={sharding!r:.60} is for output='jax', not output={kind!r}")
        self.kind = kind
        self.arrays = find("outputs", kind)(sharding, remainder) if kind == "jax" else None
        self.device: Any = None
        if device is not None:
            from shardwise.tensors.device import checked_device

            self.device = checked_device(device)
        self.pin_memory = pin_memory
        self.as_tuple = as_tuple
        self._not_nested = not_nested
        self._cut = cut
        self._copier: Any = None

    def __getstate__(self) -> dict[str, Any]:
        """The copier does not travel: it has a stream of this process."""
        return {**self.__dict__, "_copier": None}

    def ahead(self, batches: Generator[Batch, None, None]) -> Generator[Batch, None, None]:
        """The batches, with the copy of the next one to the device in progress, if there is one.

        Called before the executor makes any: what `prepare` needs of the caller's thread is here.
        """
        if self.kind != "torch":
            return batches
        # Imports torch in this thread.
        from shardwise.tensors.device import copier_for, look_ahead

        if not self._copies:
            return batches
        # Not made earlier: a program may choose its device after making the loader.
        self._copier = self._copier or copier_for(self.device)
        return look_ahead(self._prepare_each(batches), self._copier)

    def prepare(self, batch: Batch) -> None:
        """Make tensors of a batch's arrays, page-locked where that is requested.

        An executor calls it in one of its threads.
        """
        for part in batch.parts or [batch]:
            began = time.perf_counter()
            self._prepare(part)
            part.stages.add("collate", time.perf_counter() - began)

    def of(self, batch: Batch) -> Any:
        if not batch.is_prepared:
            self._prepare(batch)
        data = batch.data
        if self._not_nested is not None:
            from shardwise.tensors.convert import to_nested

            data = to_nested(data)
        if self.as_tuple is None:
            return data
        return tuple(data[name] for name in named(data, self.as_tuple))

    def range(self, name: str) -> AbstractContextManager[object]:
        """A range of torch's profiler, where there is one that could be recording."""
        if self.kind != "torch" or "torch" not in sys.modules:
            return nullcontext()
        from shardwise.tensors.convert import named_range

        return named_range(name)

    def _prepare_each(self, batches: Generator[Batch, None, None]) -> Generator[Batch, None, None]:
        with closing(batches):
            for batch in batches:
                if not batch.is_prepared:
                    began = time.perf_counter()
                    self._prepare(batch)
                    batch.stages.add("hand over", time.perf_counter() - began)
                yield batch

    def _prepare(self, batch: Batch) -> None:
        batch.is_prepared = True
        if self._cut is not None:
            batch.data = self._cut(batch.data)
        if self.arrays is not None:
            batch.data, batch.memory = self.arrays(batch.data), None
        if self.kind != "torch":
            return
        from shardwise.tensors.convert import can_page_lock, pinned, to_tensors

        data = batch.data
        if isinstance(data, dict):
            if self._not_nested is not None:
                from shardwise.tensors.convert import to_jagged

                data = to_jagged(data, fixed=self._not_nested)
            data = to_tensors(data)
        if self._copies:
            data = self._copier.prepare(data, batch.memory)
        elif self.pin_memory and can_page_lock():
            # Copied, even from memory that could be page-locked in place: torch knows which copies
            # of the program still read memory only if its own allocator made it.
            data = pinned(data)
        batch.data = data
        batch.memory = None

    @property
    def _copies(self) -> bool:
        """Whether batches are copied to a device; they are built in host memory."""
        return self.device is not None and self.device.type != "cpu"


@dataclass(frozen=True, kw_only=True)
class BatchOptions:
    """The options that define a batch; `shardwise.DataLoader` documents them."""

    seed: int
    remainder: Remainder
    collate: Callable[[list[Any]], Any] | None
    as_tuple: Sequence[str] | None
    ragged: Ragged
    on_error: OnError
    output: str
    device: Any
    sharding: Any
    pin_memory: bool
    group: Any = None
    share: Any = None
    halves: Any = None

    @property
    def makes_columns(self) -> bool:
        """Whether batches are columns, and not what a function of the user's returns."""
        return self.collate is None or isinstance(self.collate, Padding)


class CountsServers(Protocol):
    """An executor whose batches are made by servers."""

    def service_stats(self) -> dict[str, Any]:
        """Return counts of the servers, for `DataLoader.stats`."""


class BatchMaker:
    """Makes the batches of a loader, and gives them the form that the program gets.

    Args:
        dataset: the samples.
        options: what a batch is made of.
        executor: how batches are made.

    Attributes:
        output: gives batches the form that the program gets.
        executor: runs the builder, for the ranks of this machine; made by `start`.
        num_local: how many ranks it is made for.
        num_coalesced: batches that are loaded together.
        sharing: an extension's `Sharing`, the ranks that get the same batches; or None.
    """

    executor: Executor
    num_local: int
    num_coalesced: int

    def __init__(self, dataset: Samples, options: BatchOptions, executor: ExecutorOptions) -> None:
        self._dataset = dataset
        self._options = options
        self._executor_options = executor
        names = checked_names(
            options.as_tuple,
            dataset,
            remainder=options.remainder,
            ragged=options.ragged,
            collate=options.collate,
        )
        self.sharing: Any = None
        if options.share is not None:
            sharing = find("parallel", "sharing")
            self.sharing = sharing(options.group, options.share, executor.timeout)
        self.output = Output(
            options.output,
            device=options.device,
            sharding=options.sharding,
            remainder=options.remainder,
            pin_memory=options.pin_memory,
            as_tuple=names if options.makes_columns else None,
            not_nested=not_nested(dataset) if options.ragged == "nested" else None,
            cut=options.halves and find("parallel", "halves")(options.group, options.halves),
        )
        self._on_device: Any = None
        if has_images_for_device(dataset):
            self._on_device = find("decoding", "images")(
                dataset,
                device=self.output.device,
                obstacle="a collate= function gets pixels" * (not options.makes_columns)
                or "batch servers send pixels" * callable(executor.executor),
            )
        build = partial(
            BatchBuilder,
            seed=options.seed,
            collate=options.collate,
            as_tuple=names,
            ragged=options.ragged,
            on_error=options.on_error,
        )
        loaded = dataset if self._on_device is None else self._on_device.dataset
        self._builder = build(loaded)
        # For files that a device finds damaged.
        self._cpu_builder = build(dataset)

    def start(self, plan: Plan, num_local: int) -> int:
        """Choose the executor for this number of ranks on the machine; return its workers."""
        num_sharing = 1 if self.sharing is None else len(self.sharing.ranks)
        self.num_local = num_local = max(1, num_local // num_sharing)
        self.executor = make_executor(self._builder, self._executor_options, num_ranks=num_local)
        self.coalesce(plan)
        return self.executor.concurrency.num_workers

    def coalesce(self, plan: Plan) -> None:
        """Choose how many batches of a plan are loaded together."""
        options = self._options
        # Skipped rows, substitutes, a collate of the user's and a watch need batches one by one.
        is_plain = options.makes_columns and options.on_error == "raise"
        in_order = isinstance(plan.sampler, SequentialSampler)
        self.num_coalesced = (
            num_coalesced(self._dataset, plan.batch_size, in_order=in_order)
            if is_plain and self._executor_options.decode_timeout is None
            else 1
        )

    def run(self, requests: Iterator[BatchRequest]) -> Generator[Batch, None, None]:
        # A batch is whole, and can be prepared, after its images were decoded.
        if self._on_device is None and self.sharing is None:
            self._builder.prepare = self.output.prepare
        return self.output.ahead(self._decode(requests, self._coalesce_requests))

    def make(self, request: BatchRequest) -> Any:
        """Make one batch in this thread, and return what the program would get of it."""
        inline = InlineExecutor(self._builder)
        batches = self._decode(iter([request]), inline.run)
        with closing(self.output.ahead(batches)) as made:
            return self.finish(next(made))

    @property
    def accounts(self) -> bool:
        """Whether this is the one of the ranks with the same batches that accounts for them."""
        return self.sharing is None or self.sharing.rank == self.sharing.ranks[0]

    def close(self) -> None:
        """End threads, processes and connections; a later `run` starts them again."""
        self._builder.close()
        self.executor.close()
        if self.sharing is not None:
            self.sharing.close()

    def finish(self, batch: Batch) -> Any:
        if self._on_device is not None:
            self._on_device.keep(batch)
        return self.output.of(batch)

    @property
    def concurrency(self) -> Concurrency:
        """The executor, threads and processes that make the batches, as far as they are known."""
        is_made_here = self.sharing is None or self.sharing.maker in (None, self.sharing.rank)
        return self.executor.concurrency if is_made_here else Concurrency("shared")

    def stats(self, counts: Counts, since: Mapping[str, Any] | None = None) -> dict[str, Any]:
        """Return counts with the current maker of the batches; see `DataLoader.stats`."""
        concurrency = self.concurrency
        num_cores = usable_cores(num_ranks=self.num_local)
        stats = counts.to_dict(concurrency, num_cores=num_cores, since=since)
        options = self._executor_options
        stats["executor_reason"] = explain_choice(self.executor, self._builder, options)
        servers = having(self.executor, CountsServers)
        if servers is not None:
            wanted = wanted_servers(stats, concurrency.num_threads)
            stats["service"] = {**servers.service_stats(), "wanted": wanted}
        return stats

    def _decode(self, requests: Iterator[BatchRequest], make: Callable[..., Any]) -> Any:
        """Yield what `make` makes of the requests, with the images that a device decodes."""
        if self._on_device is None:
            return make(requests)
        return self._on_device.run(requests, make, self._cpu_builder.build)

    def _coalesce_requests(self, requests: Iterator[BatchRequest]) -> Generator[Batch, None, None]:
        make = partial(coalesced_batches, self.executor, size=self.num_coalesced)
        return make(requests) if self.sharing is None else self.sharing.run(requests, make)
