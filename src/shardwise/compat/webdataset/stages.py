"""A list of stages, and one pass through it.

A pass depends on (seed, number of the pass, rank, worker) alone: each stage that draws random
numbers gets its key while the pass is built.
"""

from __future__ import annotations

import warnings
from collections.abc import Iterator
from itertools import count, islice
from typing import Any, Self

from shardwise.compat.webdataset.environment import variable
from shardwise.compat.webdataset.place import Place
from shardwise.compat.webdataset.positions import PASSES_APART, At
from shardwise.compat.webdataset.pytorch import DataLoader, IterableDataset
from shardwise.compat.webdataset.run import CURRENT, Run, as_seed
from shardwise.compat.webdataset.steady import is_steady
from shardwise.compat.webdataset.utils import PipelineStage
from shardwise.errors import StateError


class StageList(IterableDataset[Any], PipelineStage):
    """A source, and stages that each take an iterator and return one."""

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
        """Run one stage on the iterator before it, if there is one."""
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
        steady = self._steady()
        return self._run(at, place, self._prefix(at, place, skip, steady), steady)

    def _joined_passes(self, at: At, place: Place, first: int, skip: int) -> Iterator[Any]:
        """Passes as one stream: what the last stages gather goes on behind the end of a pass."""
        steady = self._steady()

        def prefixes() -> Iterator[Any]:
            for at.turn in count(first % PASSES_APART):
                at.number = first - first % PASSES_APART + at.turn
                yield from self._prefix(at, place, skip if at.number == first else 0, steady)
                if not at.taken:
                    # Nothing came, so nothing will come.
                    return

        return self._run(at, place, prefixes(), steady)

    def _steady(self) -> int:
        """Where the stages begin that keep nothing back."""
        steady = len(self.pipeline)
        while steady > 1 and is_steady(self.pipeline[steady - 1]):
            steady -= 1
        return steady

    def _prefix(self, at: At, place: Place, skip: int, steady: int) -> Iterator[Any]:
        """What goes into the steady stages in a pass."""
        return _counted(self._run(at, place, None, 0, steady), at, skip)

    def _run(
        self, at: At, place: Place, source: Any, first: int, end: int | None = None
    ) -> Iterator[Any]:
        """Some of the stages, as those of the pass `at.number`."""
        token = CURRENT.set(Run(as_seed(self.seed), at.number, place, at.turn))
        try:
            for stage in self.pipeline[first:end]:
                source = self.invoke(stage) if source is None else self.invoke(stage, source)
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
