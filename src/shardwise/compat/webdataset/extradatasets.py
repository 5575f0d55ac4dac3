"""A dataset for tests, and epochs and lengths as objects."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from functools import partial
from typing import Any

from shardwise.compat.webdataset.pipeline import DataPipeline
from shardwise.compat.webdataset.pytorch import IterableDataset


@dataclass(eq=False, repr=False)
class MockDataset(IterableDataset[Any]):
    """The same sample, `length` times."""

    sample: Any
    length: int

    def __iter__(self) -> Iterator[Any]:
        return (self.sample for _ in range(self.length))


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
