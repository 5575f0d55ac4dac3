"""A pipeline's stages on one sample, and samples as the pipeline would have them.

What `select` keeps is found before training, as a subset, so that ranks take equal steps (I2).
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from itertools import islice
from typing import Any

import numpy as np
from numpy.typing import NDArray

from shardwise.base.errors import DataError
from shardwise.dataset import Dataset
from shardwise.sources.tar.source import TarSource

Stage = Callable[[Iterator[Any]], Any]


@dataclass(eq=False, repr=False)
class RunStages:
    """A transform of a dataset: a sample dict through stages, and back to a dict."""

    stages: Sequence[Stage]
    names: tuple[str, ...] | None
    outer_names: tuple[str, ...] | None

    def __repr__(self) -> str:
        return f"RunStages({', '.join(map(repr, self.stages))})"

    def __call__(self, sample: dict[str, Any]) -> dict[str, Any]:
        item: Any = sample if self.names is None else tuple(sample[name] for name in self.names)
        for stage in self.stages:
            found = list(islice(iter(stage(iter([item]))), 2))
            if len(found) != 1:
                raise DataError(
                    f"{stage!r} made {'no sample' if not found else 'several samples'} of one: "
                    "leave samples out by Dataset.subset, or with on_error='skip'"
                )
            (item,) = found
        return self._as_fields(item)

    def _as_fields(self, item: Any) -> dict[str, Any]:
        if isinstance(item, dict):
            kept = {"__key__"} & item.keys()
            kept.update(name for name in item if not str(name).startswith("__"))
            return {str(name): value for name, value in item.items() if name in kept}
        if not isinstance(item, tuple | list):
            return {"value": item}
        names: Sequence[str] = self.outer_names or ()
        if len(names) != len(item):
            names = [str(place) for place in range(len(item))]
        return dict(zip(names, item, strict=True))


@dataclass(eq=False, repr=False)
class DecodeField:
    """A field's decoder that asks a pipeline's `Decoder`."""

    decode1: Callable[[str, bytes], Any]
    name: str

    def __repr__(self) -> str:
        return f"DecodeField({self.name!r})"

    def __call__(self, data: bytes) -> Any:
        return self.decode1(self.name, bytes(data))


@dataclass(eq=False, repr=False)
class Collate:
    """A loader's `collate` that calls a pipeline's, with samples as the pipeline has them."""

    function: Callable[[list[Any]], Any] | None
    names: tuple[str, ...] | None

    def __call__(self, samples: list[dict[str, Any]]) -> Any:
        items: list[Any] = samples
        if self.names is not None:
            items = [tuple(sample[name] for name in self.names) for sample in samples]
        return items if self.function is None else self.function(items)


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
