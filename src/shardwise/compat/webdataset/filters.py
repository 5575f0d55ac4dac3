"""The stages of a pipeline, as WebDataset names them.

`shuffle(1000)` is a stage; `_shuffle(source, 1000)` is the stage's function. In a pipeline a
shuffle has a key of (seed, pass, stage): another order every epoch, the same in every run. Shards
are shuffled alike on all readers, because they are divided afterwards; samples are not.
"""

from __future__ import annotations

import math
import random
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from functools import reduce
from itertools import chain, islice
from typing import TYPE_CHECKING, Any

import numpy as np
import torch

from shardwise.compat.webdataset import mapping
from shardwise.compat.webdataset.cache import Cached, LMDBCached
from shardwise.compat.webdataset.handlers import reraise_exception
from shardwise.compat.webdataset.pytorch import TorchTensor
from shardwise.compat.webdataset.readers import CURRENT_PASS, generators
from shardwise.compat.webdataset.utils import (
    FilterFunction,
    PipelineStage,
    RestCurried,
    pipelinefilter,
)


def combine_values(b: Any, combine_tensors: bool = True, combine_scalars: bool = True) -> Any:
    first = b[0]
    if isinstance(first, int | float):
        return np.array(list(b)) if combine_scalars else list(b)
    if combine_tensors and isinstance(first, TorchTensor | np.ndarray):
        shapes = {tuple(x.shape) for x in b}
        if len(shapes) != 1:
            raise ValueError(
                f"samples of different shapes can't be stacked: {sorted(shapes)[:5]}; make them "
                "equal in a map, or pass a collation_fn"
            )
        return np.stack(b) if isinstance(first, np.ndarray) else torch.stack(list(b))
    return list(b)


def default_collation_fn(
    samples: list[Any], combine_tensors: bool = True, combine_scalars: bool = True
) -> Any:
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
    batchsize: float = 20,
    collation_fn: Callable[[list[Any]], Any] | None = default_collation_fn,
    partial: bool = True,
) -> Iterator[Any]:
    """Gather `batchsize` samples into a batch; with `partial`, the last may be smaller."""
    # Programs write `batched(size / world_size)`.
    if not 0 < batchsize < math.inf:
        raise ValueError(f"batchsize={batchsize}: a batch has at least one sample")
    batchsize = math.ceil(batchsize)
    items = iter(data)
    # A batch leaves as soon as it is full: nothing is read ahead.
    while batch := list(islice(items, batchsize)):
        if len(batch) < batchsize and not partial:
            return
        yield batch if collation_fn is None else collation_fn(batch)


def _unlisted(data: Iterable[Any]) -> Iterator[Any]:
    for batch in data:
        if not isinstance(batch, list):
            raise TypeError(f"unlisted needs lists, not {type(batch).__name__}; try unbatched")
        yield from batch


def _unbatched(data: Iterable[Any]) -> Iterator[Any]:
    for batch in data:
        if not isinstance(batch, dict | list | tuple):
            raise TypeError(f"unbatched needs tuples, lists or dicts, not {type(batch).__name__}")
        lengths = {_length(v) for v in (batch.values() if isinstance(batch, dict) else batch)}
        if len(lengths) != 1:
            raise ValueError(f"the fields of a batch have different lengths: {sorted(lengths)}")
        for i in range(lengths.pop()):
            yield _row(batch, i) if isinstance(batch, dict) else tuple([_row(v, i) for v in batch])


def _length(field: Any) -> int:
    return _length(next(iter(field.values()))) if isinstance(field, dict) else len(field)


def _row(field: Any, i: int) -> Any:
    return {k: _row(v, i) for k, v in field.items()} if isinstance(field, dict) else field[i]


def pick(buf: list[Any], rng: random.Random) -> Any:
    return _take(buf, rng.randrange(len(buf)))


def _take(buf: list[Any], k: int) -> Any:
    buf[k], sample = buf[-1], buf[k]
    buf.pop()
    return sample


def _shuffle(
    data: Iterable[Any],
    bufsize: int = 1000,
    initial: int = 100,
    rng: random.Random | None = None,
    seed: Any = None,
    handler: Any = None,  # noqa: ARG001 - an argument of WebDataset's, without effect there too
) -> Iterator[Any]:
    """Shuffle through a buffer of `bufsize` items; the first comes out when `initial` are there.

    Without `rng` the numbers come from the pipeline's key, to which `seed` is added; outside of a
    pipeline it is the seed. With the same `rng` the order is WebDataset's.
    """
    if rng is not None and seed is not None:
        raise ValueError("shuffle takes rng or seed, not both")
    pair = generators(seed) if rng is None else None
    return _shuffle_samples(iter(data), bufsize, min(initial, bufsize), rng, pair)


def _shuffle_samples(
    data: Iterator[Any],
    bufsize: int,
    initial: int,
    rng: random.Random | None,
    pair: tuple[random.Random, random.Random] | None,
) -> Iterator[Any]:
    first = next(data, data)
    if first is data:
        return
    if pair is not None:
        is_shard = isinstance(first, dict) and "url" in first and "__key__" not in first
        alike, own = pair
        draw = (alike if is_shard else own).random
        below: Callable[[int], int] = lambda num: int(draw() * num)  # noqa: E731
    else:
        # As WebDataset draws: programs that bring their generator get the order that they had.
        assert rng is not None
        below = rng.randrange
    buf: list[Any] = []
    append = buf.append
    data = chain([first], data)
    for sample in data:
        append(sample)
        if len(buf) < bufsize:
            # Until it is full, the buffer grows by one for each item that comes out.
            for another in data:
                append(another)
                break
        if len(buf) >= initial:
            yield _take(buf, below(len(buf)))
    while buf:
        yield _take(buf, below(len(buf)))


def _shuffle_shards(source: Iterable[Any]) -> Iterator[Any]:
    """Permute a list of shards as a whole, in another order each pass."""
    rng, _ = generators()
    shards = list(source)
    rng.shuffle(shards)
    return iter(shards)


@dataclass(eq=False, repr=False)
class detshuffle(PipelineStage):  # noqa: N801 - WebDataset's name
    """A shuffle by `seed` and `epoch` alone; each run takes the next epoch (or the pipeline's)."""

    bufsize: int = 1000
    initial: int = 100
    seed: Any = 0
    epoch: int = -1

    def __post_init__(self) -> None:
        self._first = self.epoch + 1

    def run(self, src: Iterable[Any]) -> Iterator[Any]:
        self.epoch += 1
        current = CURRENT_PASS.get()
        if current is not None:
            self.epoch = max(self.epoch, self._first + current.number)
        rng = random.Random(f"{self.seed},{self.epoch}")  # noqa: S311
        return _shuffle(src, self.bufsize, self.initial, rng)


def _rsample(data: Iterable[Any], p: float = 0.5) -> Iterator[Any]:
    if not 0.0 <= p <= 1.0:
        raise ValueError(f"p={p}: a probability lies in [0, 1]")
    draw = generators()[1].random
    return (sample for sample in data if draw() < p)


def compose2(f: Callable[[Any], Any], g: Callable[[Any], Any]) -> Callable[[Any], Any]:
    return lambda x: g(f(x))


def compose(*args: Callable[[Any], Any]) -> Callable[[Any], Any]:
    return reduce(compose2, args)


def pipeline(source: Any, *args: Callable[[Any], Any]) -> Any:
    return compose(*args)(source) if args else source


def parse_field_spec(fields: str | list[str]) -> list[list[str]]:
    fields = fields.split() if isinstance(fields, str) else fields
    return [field.split(";") for field in fields]


# A name with an underscore is a function of a source, and without it the stage.
_NAMES = (
    "_associate _decode _extract_keys _info _log_keys _map _map_dict _map_tuple _rename "
    "_rename_keys _select _to_tuple _xdecode decode_bin decode_pickle decode_text default_decoders "
    "find_decoder getfirst transform_with"
)
for _name in _NAMES.split():
    globals()[_name] = getattr(mapping, _name)
    if _name.startswith("_"):
        globals()[_name[1:]] = pipelinefilter(getattr(mapping, _name))

batched = pipelinefilter(_batched)
rsample = pipelinefilter(_rsample)
shuffle = pipelinefilter(_shuffle)
shuffle_shards = pipelinefilter(_shuffle_shards)
unbatched = pipelinefilter(_unbatched)
unlisted = pipelinefilter(_unlisted)
slice = pipelinefilter(islice)  # noqa: A001 - WebDataset's name


if TYPE_CHECKING:

    def __getattr__(name: str) -> Any: ...
