"""A dataset for tests, and repetition as objects."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from typing import Any

from shardwise.compat.webdataset import utils
from shardwise.compat.webdataset.pytorch import IterableDataset
from shardwise.compat.webdataset.utils import PipelineStage


@dataclass(eq=False, repr=False)
class MockDataset(IterableDataset[Any]):
    """The same sample, `length` times."""

    sample: Any
    length: int

    def __iter__(self) -> Iterator[Any]:
        return (self.sample for _ in range(self.length))


@dataclass(eq=False, repr=False)
class repeatedly(IterableDataset[Any], PipelineStage):  # noqa: N801 - WebDataset's name
    """A dataset again and again, for `nepochs` or `nbatches`."""

    source: Iterable[Any]
    nepochs: int | None = None
    nbatches: int | None = None
    length: int | None = None

    def __iter__(self) -> Iterator[Any]:
        return self.invoke(self.source)

    def invoke(self, source: Iterable[Any]) -> Iterator[Any]:
        """Repeat a source."""
        return utils.repeatedly(source, nepochs=self.nepochs, nbatches=self.nbatches)

    run = invoke


@dataclass(eq=False, repr=False)
class with_epoch(IterableDataset[Any]):  # noqa: N801 - WebDataset's name
    """Epochs of `length` samples; each continues where the last one stopped."""

    dataset: Iterable[Any]
    length: int
    source: Iterator[Any] | None = field(default=None, init=False)

    def __getstate__(self) -> dict[str, Any]:
        return self.__dict__ | {"source": None}

    def __iter__(self) -> Iterator[Any]:
        return self.invoke(self.dataset)

    def invoke(self, dataset: Iterable[Any]) -> Iterator[Any]:
        """One epoch of a dataset."""
        num = 0
        was_empty = False
        while num < self.length and not was_empty:
            if self.source is None:
                self.source, was_empty = iter(dataset), True
            for sample in self.source:
                was_empty = False
                num += 1
                yield sample
                if num == self.length:
                    return
            self.source = None


@dataclass(eq=False, repr=False)
class with_length(IterableDataset[Any], PipelineStage):  # noqa: N801 - WebDataset's name
    """A dataset that states a length."""

    dataset: Iterable[Any]
    length: int

    def __iter__(self) -> Iterator[Any]:
        return iter(self.dataset)

    def invoke(self, dataset: Iterable[Any]) -> Iterator[Any]:
        """The dataset as it is."""
        return iter(dataset)

    run = invoke

    def __len__(self) -> int:
        return self.length
