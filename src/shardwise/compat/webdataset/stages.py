"""A list of stages, and one pass through it.

A pass depends on (seed, number of the pass, rank, worker) alone: each stage that draws random
numbers gets its key while the pass is built. Imports this package.
"""

from __future__ import annotations

import warnings
from collections.abc import Iterator
from itertools import islice
from typing import Any, Self

from shardwise.compat.webdataset.environment import variable
from shardwise.compat.webdataset.place import Place
from shardwise.compat.webdataset.positions import At
from shardwise.compat.webdataset.pytorch import DataLoader, IterableDataset
from shardwise.compat.webdataset.run import CURRENT, Run, as_seed
from shardwise.compat.webdataset.steady import is_steady
from shardwise.compat.webdataset.utils import PipelineStage
from shardwise.errors import StateError

__all__ = ["StageList"]


class StageList(IterableDataset[Any], PipelineStage):
    """A source, and stages that each take an iterator and return one.

    Attributes:
        pipeline: the stages, as a list that may be changed.
        seed: what all random stages draw from.
        length: what `len()` says; below 0 it says nothing.
    """

    def __init__(self, *args: Any, seed: Any = None) -> None:
        super().__init__()
        self.pipeline: list[Any] = []
        self.length = -1
        self.seed = (variable("WDS_SEED") or 0) if seed is None else seed
        for arg in args:
            if isinstance(arg, list):
                self.pipeline.extend(arg)
            elif arg is not None:
                self.pipeline.append(arg)

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
        """The stage at a place."""
        return self.pipeline[i]

    def append(self, f: Any) -> None:
        """Add a stage to this pipeline."""
        self.pipeline.append(f)

    def invoke(self, f: Any, *args: Any, **kwargs: Any) -> Any:
        """Run one stage on the iterator before it, if there is one.

        Raises:
            TypeError: it is no stage.
        """
        if isinstance(f, IterableDataset | DataLoader) and not args:
            return iter(f)
        if isinstance(f, PipelineStage):
            # Stages have a method `run`; the base class knows nothing of it.
            run: Any = f
            return run.run(*args, **kwargs)
        if isinstance(f, list):
            return iter(f)
        if callable(f):
            return f(*args, **kwargs)
        raise TypeError(f"{f!r} is no stage: neither a function, a dataset, a list nor a stage")

    def _pass(self, at: At, place: Place, skip: int = 0) -> Iterator[Any]:
        """One pass, without the first `skip` items of its prefix."""
        run = Run(as_seed(self.seed), at.number, place)
        token = CURRENT.set(run)
        try:
            source = self.invoke(self.pipeline[0])
            steady = len(self.pipeline)
            while steady > 1 and is_steady(self.pipeline[steady - 1]):
                steady -= 1
            for stage in self.pipeline[1:steady]:
                source = self.invoke(stage, source)
            source = _counted(source, at, skip)
            for stage in self.pipeline[steady:]:
                source = self.invoke(stage, source)
        finally:
            CURRENT.reset(token)
        result: Iterator[Any] = source
        return result


def _counted(source: Any, at: At, skip: int) -> Iterator[Any]:
    """Count what comes out of the prefix, and leave out the first items."""
    items = iter(source)
    at.taken = sum(1 for _ in islice(items, skip))
    if at.taken < skip:
        raise StateError(
            f"the state was taken behind {skip} samples of a pass that has {at.taken} now: are the "
            "shards and the stages the same?"
        )
    for item in items:
        at.taken += 1
        yield item
