"""A loader's epochs, state and accounts: where it stands in its plan, and what it handed out."""

from __future__ import annotations

import logging
import weakref
from collections.abc import Generator, Iterator, Mapping
from copy import copy
from inspect import GEN_RUNNING, getgeneratorstate
from types import GenericAlias
from typing import Any, NoReturn

from shardwise.base.cores import usable_cores
from shardwise.engine.request import Executor
from shardwise.engine.stats.bottleneck import wanted_servers
from shardwise.engine.stats.counts import Counts
from shardwise.loader.account import Account
from shardwise.loader.epoch_notice import EpochNotice
from shardwise.loader.frameworks import batches_for_frameworks, no_such_attribute, sampler_of
from shardwise.loader.plan_options import PlanOptions
from shardwise.loader.planned_order import RankedPlan
from shardwise.loader.position import Position
from shardwise.plan import Plan, checked_epoch
from shardwise.plan.epoch_sampler import EpochSampler
from shardwise.sources.samples import Samples

_logger = logging.getLogger("shardwise")
# The attributes that are options, which the plan and the executor were made by.
_FIXED = frozenset(
    ("dataset", "batch_size", "sampler", "batch_sampler", "drop_last", "collate_fn", "output")
)


class StatefulLoader(RankedPlan):
    """The base of `DataLoader`: a position in the plan of a dataset, without the batches.

    Frameworks find here what they ask a loader for.
    """

    dataset: Samples
    batch_size: int
    _options: PlanOptions
    _position: Position
    _notice: EpochNotice
    _counts: Counts
    _account: Account
    _executor: Executor
    _num_local: int

    # What frameworks read.
    use_stateful_dataloader = True
    batch_sampler = None
    multiprocessing_context = None
    # Accelerate's own mark of a loader that it has prepared: any other it would shard once more.
    _is_accelerate_prepared = True

    def __class_getitem__(cls, item: Any) -> GenericAlias:
        """`DataLoader[...]` in annotations, as of torch's."""
        return GenericAlias(cls, item)

    def __getitem__(self, item: Any) -> NoReturn:
        """Refuse to be the dataset of torch's DataLoader, which asks for items."""
        raise TypeError(
            f"a shardwise {type(self).__name__} has batches and no items: it is the loader "
            "already, so iterate it without torch's DataLoader around it; loader.dataset has the "
            "samples"
        )

    def __setattr__(self, name: str, value: Any) -> None:
        # `_notice` is the last one that is set where a loader is made.
        if name in _FIXED and "_notice" in vars(self):
            raise ValueError(f"{name} can't be set after the loader was made: make another loader")
        super().__setattr__(name, value)

    def __getattr__(self, name: str) -> NoReturn:
        no_such_attribute(type(self), name)

    def __iter__(self) -> Iterator[Any]:
        """Go through the epoch from where it stands; nothing happens before the first `next`."""
        # A framework that saves the state sets the mark on the instance; the class has it, too.
        is_known = "_is_accelerate_prepared" in vars(self)
        batches = self._batches()
        close_at_exit(batches)
        return batches_for_frameworks(batches, lambda: self._pass_plan, is_known=is_known)

    def as_torch_dataloader(self) -> Any:
        """This loader as a `torch.utils.data.DataLoader`, for code that checks the type."""
        from shardwise.tensors.torch_dataloader import TorchDataLoader

        return TorchDataLoader(self)

    @property
    def plan(self) -> Plan:
        """The plan for the ranks of this process, which do not change within a pass."""
        self._position.leave_forked()
        world_size = self._plan.world_size if self._position.is_in_pass else self.world_size
        if world_size != self._plan.world_size:
            self._plan = self._plan.divided(world_size).require_steps()
            self._start_anew(world_size)
        return self._plan

    @property
    def epoch(self) -> int:
        """The epoch that is being iterated, or else the one that comes next."""
        return self._position.epoch

    @property
    def total_batch_size(self) -> int:
        """Samples of a step over all ranks, under the name that Accelerate's loaders have."""
        return self.plan.global_batch_size

    @property
    def num_steps_left(self) -> int:
        """Batches left of the pass under way, or else of the next one."""
        current = self._position.current
        return self._pass_plan.num_steps - (0 if current is None else current.num_batches)

    @property
    def sampler(self) -> EpochSampler:
        """A way to set the epoch, which frameworks look for here."""
        return sampler_of(self)

    def set_epoch(self, epoch: int) -> None:
        """Choose the epoch that the next iterator goes through, from its beginning.

        Naming the epoch that a loaded state stands in, or that is under way, changes nothing. One
        whose last batch was handed out is over: naming it begins it anew.
        """
        epoch = checked_epoch(epoch)
        self._end_if_whole()
        self._notice.set(epoch, self._ranks.now().rank)
        if epoch != self.epoch:
            self._position.move(epoch)

    def state_dict(self) -> dict[str, Any]:
        """The position after the batches handed out: JSON, under 1 KB, equal on all ranks.

        With a coverage directory it also writes what this rank handed out since the last line, so
        call it on every rank, also where one rank alone saves it.
        """
        self._account.note(self._position.current)
        run = self._account.state_run
        return self._to_dict(self._order.state(*self._position.after(), run=run))

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Go on where a state was taken, with any world size, batch size or executor.

        Raises:
            StateError: the state belongs to other data, another seed or another order.
        """
        loaded = self._take_up(state).in_next_epoch()
        self._tell_order_size(self._plan)
        self._position.move(loaded.epoch, loaded.position)
        self._notice.load(loaded.epoch)
        self._account.resume(loaded.run)

    def certificate(self) -> dict[str, Any]:
        """What was handed out in the newest pass, compared with the plan: a proof, or what differs.

        Where torch.distributed is initialised and its ranks are the loader's, it is of all ranks,
        and all of them must call it, at the same step: it gathers 12 numbers of each. Else it is
        of this rank.

        Returns:
            `epoch`; `count`, samples handed out; `word`, their keyed sum as 16 hex digits, and
            `expected`, what it must be; `ok`, whether it is; `from` and `to`, the positions of the
            epoch between which these samples lie; `num_samples`, positions of the epoch;
            `skipped`, `replaced` and `padded` rows, and `dropped` samples at the epoch's end, none
            of which is in the words; `ranks`, whose numbers these are; `verdict`, in words. JSON.

        Two different multisets of ids have the same word with a chance of N / 2**61. At the end of
        an epoch that all ranks know from its beginning on, the expected word is the closed form of
        the sampler's ids where it has one (`Sampler`), in microseconds; else the plan is walked
        once more, 0.2 us for each sample of this rank.
        """
        return self._account.certificate(self._ranks, epoch=self.epoch)

    def stats(self, *, reset: bool = False) -> dict[str, Any]:
        """Counts and seconds of the batches handed out so far, and the bottleneck.

        Args:
            reset: count from zero after this, to see one part of a run.

        Returns:
            `samples` and `batches` handed out by this rank; `seconds`, busy seconds by stage
            ("open", "read", "decode", "transform", "collate", "hand over"; of media also
            "demux" and "convert"), summed over threads, and `cpu_s` of them on a core while
            loading; `wait_s`, seconds that the caller waited for batches, of `wall_s` seconds in
            all; `rate`, samples a second;
            `queue_depth`, the mean number of batches that were ready when one was asked for;
            `slowest_shards`, dicts of `url` and `seconds_a_sample`; `bytes` read; of remote
            storage, for this process and the loader's workers as a whole: `requests`,
            `bytes_fetched`, `retries`, `hedges` (second requests for late ones), `hits`, `misses`
            and `evictions` of cached blocks, `damaged` (blocks that were fetched anew),
            `degraded` (times that a cache could not be used), `outage_s` (seconds in which
            requests to a store failed and were tried again), `waits` (reads that had to wait for
            a disk or a store); `skipped` and `replaced` damaged samples of this rank; `dropped`
            and `padded`, samples over all ranks of the epochs that ended; `executor`,
            `num_workers` and `num_threads` as they are now; `bound_by` and `verdict`, what limits
            the loader, as a word and as a line; of a mixture, `sources`: by name, `samples` and
            `epochs` up to the loader's position, over all ranks since the first epoch; of
            batch servers, `service`: `servers`, by address `requests`, `answers`, `hedges`,
            `reconnects`, `latency_s` and `is_connected`; `resent` and `made_here` of all; and
            `wanted`, how many servers would keep up with this rank. JSON.
        """
        num_cores = usable_cores(num_ranks=self._num_local)
        stats = self._counts.to_dict(self._executor.concurrency, num_cores=num_cores)
        sources = getattr(self._plan.sampler, "sources", None)
        if sources is not None:
            stats["sources"] = sources(*self._position.after())
        service = getattr(self._executor, "stats", None)
        if service is not None:
            wanted = wanted_servers(stats, self._executor.concurrency.num_threads)
            stats["service"] = {**service(), "wanted": wanted}
        if reset:
            self._counts.clear()
        return stats

    def __getstate__(self) -> dict[str, Any]:
        """Rank, world size and position travel with a pickled loader (I10)."""
        return {**self.__dict__, "_position": copy(self._position)}

    @staticmethod
    def _tell_order_size(plan: Plan) -> None:
        if plan.order_size != plan.global_batch_size:
            _logger.warning(
                "the state's order has global batches of %d samples, this loader's have %d: each "
                "sample still comes once, and a step has samples of several of them, until a run "
                "begins without a state",
                plan.order_size,
                plan.global_batch_size,
            )

    def _batches(self) -> Generator[Any, None, None]:
        """The batches of the pass that begins with the first `next`."""
        raise NotImplementedError

    def _start_anew(self, world_size: int) -> None:
        """Build the batches for another number of ranks."""
        raise NotImplementedError

    @property
    def _pass_plan(self) -> Plan:
        """The plan of the pass under way, or else the next one, from its first batch on."""
        return self._position.rest(self.plan)

    def _end_if_whole(self) -> None:
        """End a pass whose last batch was handed out: programs that count steps ask for no more."""
        current = self._position.current
        if current is not None and current.is_whole:
            self._account.note(current)
            self._position.move(current.epoch + 1)
            self._counts.end_epoch(current.plan)

    def _pad(self, *, only_default: bool) -> None:
        """Fill the last batch where it would be uneven, for frameworks that gather equal ones."""
        is_default = self._options.remainder is None
        if self._plan.remainder == "uneven" and (is_default or not only_default):
            self._plan = self._plan.padded()


def close_at_exit(batches: Generator[Any, None, None]) -> None:
    """Close a generator when the interpreter ends, unless it is gone or a thread is in it.

    One that a global holds would be closed after the modules have lost their globals, where its
    `except` and `finally` blocks raise.
    """
    weakref.finalize(batches, _close, weakref.ref(batches))


def _close(reference: weakref.ref[Generator[Any, None, None]]) -> None:
    batches = reference()
    if batches is not None and getgeneratorstate(batches) != GEN_RUNNING:
        batches.close()
