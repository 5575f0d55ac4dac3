"""A list of stages, one pass through it, and how its shards are divided."""

from __future__ import annotations

import warnings
from collections.abc import Iterator
from dataclasses import replace
from itertools import count, islice
from typing import Any, Self

from shardwise.base.errors import StateError
from shardwise.base.ranks import Ranks, unused_world_size
from shardwise.compat.environment import variable
from shardwise.compat.webdataset import filters, mapping, readers
from shardwise.compat.webdataset.left_out import nothing_passes
from shardwise.compat.webdataset.pytorch import DataLoader, IterableDataset
from shardwise.compat.webdataset.readers import CURRENT_PASS, Position, Reader, as_seed
from shardwise.compat.webdataset.shardlists import PASS_SHARDS, ResampledShards, SimpleShardList
from shardwise.compat.webdataset.utils import FilterFunction, PipelineStage

# The distance between first passes of epochs that can't know where the last one ended.
PASSES_APART = 1 << 20


def is_stateless(stage: Any) -> bool:
    """Whether a stage's position is known from the number of its input items."""
    if isinstance(stage, FilterFunction):
        # Those of `mapping` treat one sample at a time.
        return stage.f is filters._batched or stage.f.__module__ == mapping.__name__
    return bool(getattr(stage, "is_stateless", False))


class StageList(IterableDataset[Any], PipelineStage):
    """The stages of a `DataPipeline`, as a list `pipeline` that may be changed."""

    def __init__(self, *args: Any, seed: Any = None) -> None:
        super().__init__()
        self.pipeline: list[Any] = []
        for arg in args:
            self.pipeline += arg if isinstance(arg, list) else [] if arg is None else [arg]
        # Below 0, `len()` raises TypeError.
        self.length = -1
        self.seed = (variable("WDS_SEED") or 0) if seed is None else seed

    def __len__(self) -> int:
        if self.length < 0:
            raise TypeError(
                f"object of type {type(self).__name__!r} has no len(): set one by .with_length(n)"
            )
        return self.length

    def __bool__(self) -> bool:
        return True

    def with_length(self, n: int, silent: bool = False) -> Self:
        """State a length for `len()`; it does not change how many samples come."""
        if not silent:
            warnings.warn(
                "with_length sets what len() returns and not how many samples come; with_epoch "
                "does that",
                stacklevel=2,
            )
        self.length = n
        return self

    def stage(self, i: int) -> Any:
        return self.pipeline[i]

    def append(self, f: Any) -> None:
        self.pipeline.append(f)

    def invoke(self, f: Any, *args: Any, **kwargs: Any) -> Any:
        if isinstance(f, list) or (isinstance(f, IterableDataset | DataLoader) and not args):
            return iter(f)
        if isinstance(f, PipelineStage):
            # Stages have a method `run`, which the base class does not declare.
            run: Any = f
            return run.run(*args, **kwargs)
        if callable(f):
            return f(*args, **kwargs)
        raise TypeError(f"{f!r} is no stage: neither a function, a dataset, a list nor a stage")

    @property
    def _is_resampled(self) -> bool:
        source = self.pipeline[0] if self.pipeline else None
        return isinstance(source, ResampledShards) and source.in_passes

    def _run(self, position: Position, source: Any, stages: list[Any]) -> Iterator[Any]:
        token = CURRENT_PASS.set(replace(position, seed=as_seed(self.seed), num_keyed=0))
        try:
            for stage in stages:
                source = self.invoke(stage) if source is None else self.invoke(stage, source)
        finally:
            CURRENT_PASS.reset(token)
        return source  # type: ignore[no-any-return]

    def _prefix_length(self) -> int:
        """The number of stages up to the last one that keeps samples back."""
        num = len(self.pipeline)
        while num > 1 and is_stateless(self.pipeline[num - 1]):
            num -= 1
        return num

    def _prefix(self, position: Position, skip: int) -> Iterator[Any]:
        """The items that go into the stateless stages in a pass, counted, without the first."""
        items = iter(self._run(position, None, self.pipeline[: self._prefix_length()]))
        position.num_prefix = sum(1 for _ in islice(items, skip))
        if position.num_prefix < skip:
            raise StateError(
                f"the state was taken behind {skip} samples of a pass that has "
                f"{position.num_prefix} now: are the shards and the stages the same?"
            )
        for item in items:
            position.num_prefix += 1
            yield item

    def _pass(self, position: Position, skip: int = 0) -> Iterator[Any]:
        stages = self.pipeline[self._prefix_length() :]
        return self._run(position, self._prefix(position, skip), stages)

    def _passes(self, position: Position, end: int) -> Iterator[Any]:
        skip, num_barren = position.num_prefix, 0
        for number in range(position.number, end):
            position.number = number
            is_empty = not skip
            for item in self._pass(position, skip):
                is_empty = False
                yield item
            num_barren = num_barren + 1 if is_empty else 0
            if is_empty and self._is_over(position, num_barren):
                return
            skip = 0

    def _is_over(self, position: Position, num_barren: int) -> bool:
        """Whether later passes are empty, too; left-out samples are a warning, or an error."""
        num = position.num_prefix or position.left_out[0]
        if not num:
            return True
        # A pass of resampled shards is a part of them: the samples may be in another one.
        num_shards = len(self.pipeline[0].urls) if self._is_resampled else 0
        if num_barren * PASS_SHARDS < num_shards:
            return False
        if self._is_resampled or getattr(self, "is_sized", False):
            raise ValueError(nothing_passes(num))
        warnings.warn(nothing_passes(num), stacklevel=2)
        return True

    def _joined_passes(self, position: Position) -> Iterator[Any]:
        """Passes as one stream: what the last stages gather continues after the end of a pass."""

        def prefixes() -> Iterator[Any]:
            skip, rotation = position.num_prefix, position.number % PASSES_APART
            first, num_barren = position.number - rotation, 0
            for position.rotation in count(rotation):
                position.number = first + position.rotation
                yield from self._prefix(position, skip)
                num_barren = 0 if position.num_prefix else num_barren + 1
                if num_barren and self._is_over(position, num_barren):
                    return
                skip = 0

        return self._run(position, prefixes(), self.pipeline[self._prefix_length() :])


def division_warning(
    stages: list[Any], reader: Reader, ranks: Ranks, *, is_asked: bool
) -> str | None:
    source = stages[0]
    num = len(getattr(source, "urls", ()))
    splits = readers.split_by_node in stages
    if ranks.world_size > 1 and splits and not is_asked:
        mine = len(range(ranks.rank, num, ranks.world_size))
        return (
            f"rank {ranks.rank} of {ranks.world_size} ({ranks.source}) reads {mine} of the {num} "
            "shards that it was given. If that list is this rank's own already, pass "
            "nodesplitter=None; if all ranks have the same list, nodesplitter=wds.split_by_node "
            "says so, and this is not said again"
        )
    draws_alike = isinstance(source, ResampledShards) and not (source.entropy or is_asked)
    unused = unused_world_size() if ranks.world_size == 1 and (splits or draws_alike) else None
    if unused is not None:
        what = (
            "draws what the others draw" if draws_alike else f"reads all {num} shards of its list"
        )
        return (
            f"{unused}, but neither is torch.distributed initialised nor are RANK and WORLD_SIZE "
            f"both set, so that nothing is divided among tasks: this one {what}. If the list is "
            "this task's own, nodesplitter=None says so; if all tasks have the same list, call "
            "torch.distributed.init_process_group first, or set RANK and WORLD_SIZE in each task "
            "(with srun: export RANK=$SLURM_PROCID WORLD_SIZE=$SLURM_NTASKS)"
        )
    is_whole = isinstance(source, SimpleShardList) and readers.split_by_worker not in stages
    num_readers = ranks.world_size * reader.num_workers
    if is_whole and not splits and not is_asked and num > 1 and num_readers > 1:
        return (
            f"a SimpleShardList of {num} shards as urls is not divided, as in WebDataset 0.2: each "
            f"of {num_readers} readers (ranks times workers) reads all of it. Pass the list of "
            "shards itself to have it divided"
        )
    return None


def is_steered(stages: list[Any]) -> bool:
    """Whether a program's own objects, such as open_clip's, choose the shards or their order."""
    dividers = (readers.split_by_node, readers.split_by_worker)
    splits = [i for i, stage in enumerate(stages) if stage in dividers]
    chosen = stages[: splits[-1]] if splits else []
    if stages and isinstance(getattr(stages[0], "urls", None), list):
        chosen = chosen or stages[:1]
    package = __name__.rpartition(".")[0]
    return any(
        isinstance(stage, PipelineStage | IterableDataset)
        and not type(stage).__module__.startswith(package)
        for stage in chosen
    )
