"""Stages that gather samples into batches, and take batches apart."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping
from itertools import islice
from typing import Any

import numpy as np

from shardwise.compat.webdataset.pytorch import TorchTensor


def combine_values(b: Any, combine_tensors: bool = True, combine_scalars: bool = True) -> Any:
    """One field of a batch: numbers to an array, tensors and arrays of one shape stacked."""
    first = b[0]
    if isinstance(first, int | float):
        return np.array(list(b)) if combine_scalars else list(b)
    if isinstance(first, TorchTensor | np.ndarray):
        if not combine_tensors:
            return list(b)
        shapes = {tuple(x.shape) for x in b}
        if len(shapes) != 1:
            raise ValueError(
                f"samples of different shapes can't be stacked: {sorted(shapes)[:5]}; make them "
                "equal in a map, or pass a collation_fn"
            )
        if isinstance(first, np.ndarray):
            return np.stack(b)
        import torch

        return torch.stack(list(b))
    return list(b)


def tuple2dict(sample: Any) -> dict[Any, Any]:
    """A tuple as a dict by place; a dict as it is."""
    return sample if isinstance(sample, dict) else dict(enumerate(sample))


def dict2tuple(d: Mapping[int, Any]) -> tuple[Any, ...]:
    """The reverse: a dict by place as a tuple."""
    return tuple(d[i] for i in range(1 + max(d)))


def default_collation_fn(
    samples: list[Any], combine_tensors: bool = True, combine_scalars: bool = True
) -> Any:
    """Make a batch of samples, which are all tuples or all dicts with the same fields."""
    first = samples[0]
    if isinstance(first, dict):
        if any(row.keys() != first.keys() for row in samples):
            wrong = next(row for row in samples if row.keys() != first.keys())
            raise ValueError(
                f"samples with different fields can't be a batch: {list(first)} and {list(wrong)}; "
                "pick the fields by to_tuple or rename(keep=False)"
            )
        return {
            k: combine_values([row[k] for row in samples], combine_tensors, combine_scalars)
            for k in first
        }
    lengths = {len(row) for row in samples}
    if len(lengths) != 1:
        raise ValueError(f"samples of {sorted(lengths)} items can't be a batch")
    return tuple(
        combine_values(column, combine_tensors, combine_scalars)
        for column in zip(*samples, strict=True)
    )


def _batched(
    data: Iterable[Any],
    batchsize: int = 20,
    collation_fn: Callable[[list[Any]], Any] | None = default_collation_fn,
    partial: bool = True,
) -> Iterator[Any]:
    """Gather `batchsize` samples into a batch; with `partial`, the last may be smaller."""
    if batchsize < 1:
        raise ValueError(f"batchsize={batchsize}: a batch has at least one sample")
    items = iter(data)
    # A batch leaves as soon as it is full: nothing is read ahead.
    while batch := list(islice(items, batchsize)):
        if len(batch) < batchsize and not partial:
            return
        yield batch if collation_fn is None else collation_fn(batch)


def _unlisted(data: Iterable[Any]) -> Iterator[Any]:
    """Take lists of samples apart."""
    for batch in data:
        if not isinstance(batch, list):
            raise TypeError(f"unlisted needs lists, not {type(batch).__name__}; try unbatched")
        yield from batch


def _unbatched(data: Iterable[Any]) -> Iterator[Any]:
    """Take batches apart: tuples, lists or dicts of fields, which may be dicts themselves."""
    for batch in data:
        if isinstance(batch, dict):
            lengths = {_length(v) for v in batch.values()}
        elif isinstance(batch, list | tuple):
            lengths = {_length(v) for v in batch}
        else:
            raise TypeError(f"unbatched needs tuples, lists or dicts, not {type(batch).__name__}")
        if len(lengths) != 1:
            raise ValueError(f"the fields of a batch have different lengths: {sorted(lengths)}")
        for i in range(lengths.pop()):
            if isinstance(batch, dict):
                yield {k: _row(v, i) for k, v in batch.items()}
            else:
                yield tuple([_row(v, i) for v in batch])


def _length(field: Any) -> int:
    return _length(next(iter(field.values()))) if isinstance(field, dict) else len(field)


def _row(field: Any, i: int) -> Any:
    return {k: _row(v, i) for k, v in field.items()} if isinstance(field, dict) else field[i]
