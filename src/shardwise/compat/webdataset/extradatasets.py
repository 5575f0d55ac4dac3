"""A dataset for tests, and epochs, lengths and repetition as objects."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from functools import partial
from typing import Any

from shardwise.compat.webdataset import utils
from shardwise.compat.webdataset.pipeline import DataPipeline
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


class with_length(DataPipeline):  # noqa: N801 - WebDataset's name
    """A dataset that states a length."""

    def __init__(self, dataset: Iterable[Any], length: int) -> None:
        super().__init__(partial(iter, dataset))
        self.dataset, self.length = dataset, length


class with_epoch(DataPipeline):  # noqa: N801 - WebDataset's name
    """Epochs of `length` samples, without a `len()`; each continues where the last one stopped."""

    def __init__(self, dataset: Iterable[Any], length: int) -> None:
        super().__init__(partial(iter, dataset))
        self.dataset = dataset
        self.with_epoch(length)
