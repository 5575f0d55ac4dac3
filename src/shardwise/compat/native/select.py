"""Which samples a pipeline's `select` keeps, found before they are read for training.

Keeps I2: what is left is a subset, so that ranks take equal steps.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import numpy as np
from numpy.typing import NDArray

from shardwise.compat.native.samples import Collate
from shardwise.dataset import Dataset
from shardwise.sources.tar.source import TarSource


class _ValueNeededError(Exception):
    """A predicate looks at a value."""


class _Names(dict[str, Any]):
    """A sample whose fields are known, and not their values."""

    def __getitem__(self, name: str) -> Any:
        if name in self:
            raise _ValueNeededError
        return super().__getitem__(name)

    def get(self, name: str, default: Any = None) -> Any:
        if name in self:
            raise _ValueNeededError
        return default

    def _refuse(self, *_: Any) -> Any:
        raise _ValueNeededError

    items = values = pop = copy = __eq__ = __or__ = _refuse


def chosen(
    dataset: Dataset, predicate: Callable[[Any], Any], names: tuple[str, ...] | None
) -> NDArray[np.bool_]:
    """For each sample, whether the predicate holds: bool `[num_samples]`."""
    mask = np.empty(len(dataset), np.bool_)
    # By the fields that a sample has; None where its values are needed.
    answers: dict[frozenset[str] | None, bool | None] = {None: None}
    for row, fields in enumerate(_fields_of_samples(dataset, names)):
        if fields not in answers:
            assert fields is not None
            try:
                answers[fields] = bool(predicate(_Names.fromkeys(fields)))
            except _ValueNeededError:
                answers[fields] = None
        answer = answers[fields]
        if answer is None:
            (sample,) = Collate(None, names)([dataset[row]])
            answer = bool(predicate(sample))
        mask[row] = answer
    return mask


def _fields_of_samples(
    dataset: Dataset, names: tuple[str, ...] | None
) -> Iterator[frozenset[str] | None]:
    """The fields of each sample, by the index; None where that does not know."""
    source, indices = dataset.source, dataset.transforms.indices
    if names is not None or dataset.is_mapped or not isinstance(source, TarSource):
        yield from (None for _ in range(len(dataset)))
        return
    known = dataset.fields
    ids = range(len(dataset)) if indices is None else indices.tolist()
    for sample in ids:
        shard, row = source.shards.locate(sample)
        index = source.shards.index(shard)
        there = [
            name
            for (_, size), name in zip(index.locate_one(known, row), known, strict=True)
            if size >= 0
        ]
        yield frozenset({"__key__", *there})
