"""The stages of a pipeline, as WebDataset names them.

`shuffle(1000)` is a stage; `_shuffle(source, 1000)` is the function behind it. Those of batches and
of caches (in memory, or in an LMDB database, used once a whole pass is kept) are here, too.
"""

from __future__ import annotations

import importlib
import pickle
from collections.abc import Callable, Iterable, Iterator
from itertools import islice
from typing import TYPE_CHECKING, Any

import numpy as np
import torch

from shardwise.compat.webdataset import mapping, order
from shardwise.compat.webdataset.handlers import reraise_exception
from shardwise.compat.webdataset.pytorch import TorchTensor
from shardwise.compat.webdataset.readers import find_reader
from shardwise.compat.webdataset.utils import (
    FilterFunction,
    PipelineStage,
    RestCurried,
    pipelinefilter,
)


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
        return torch.stack(list(b))
    return list(b)


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


class Cached(PipelineStage):
    """Keeps all samples in memory; from the second pass on they come from there."""

    def __init__(self) -> None:
        self.cached: list[Any] | None = None

    def run(self, source: Iterable[Any]) -> Iterator[Any]:
        """The samples, from the source or from memory."""
        if self.cached is None:
            samples = []
            for sample in source:
                samples.append(sample)
                yield sample
            self.cached = samples
        else:
            yield from self.cached


class LMDBCached(PipelineStage):
    """Keeps all samples in an LMDB database; once it is complete they come from there.

    Each reader (rank and worker) has keys of its own, so that several can share a database.
    """

    def __init__(
        self, fname: str, map_size: float = 1e12, pickler: Any = pickle, chunksize: int = 500
    ) -> None:
        self.fname = fname
        self.map_size = int(map_size)
        self.pickler = pickler
        self.chunksize = chunksize
        self._db: Any = None

    @property
    def db(self) -> Any:
        """The open database."""
        if self._db is None:
            self._db = importlib.import_module("lmdb").open(
                self.fname, readonly=False, map_size=self.map_size
            )
        return self._db

    def __getstate__(self) -> dict[str, Any]:
        return self.__dict__ | {"_db": None}

    def close(self) -> None:
        """Close the database."""
        if self._db is not None:
            self._db.close()
            self._db = None

    def is_complete(self) -> bool:
        """Whether a whole pass of this reader is kept."""
        with self.db.begin(write=False) as transaction:
            return transaction.get(self._end()) is not None

    def add_samples(self, samples: Iterable[tuple[str, Any]]) -> None:
        """Write samples under their keys."""
        with self.db.begin(write=True) as transaction:
            for key, sample in samples:
                transaction.put(key.encode(), self.pickler.dumps(sample))

    def run(self, source: Iterable[Any]) -> Iterator[Any]:
        """The samples, from the source or from the database."""
        prefix = self._prefix()
        if self.is_complete():
            with self.db.begin(write=False) as transaction:
                cursor = transaction.cursor()
                found = cursor.set_range(prefix.encode())
                while found and cursor.key().startswith(prefix.encode()):
                    yield self.pickler.loads(cursor.value())
                    found = cursor.next()
            return
        samples = enumerate(source)
        while chunk := list(islice(samples, self.chunksize)):
            self.add_samples((f"{prefix}{i:012d}", sample) for i, sample in chunk)
            for _, sample in chunk:
                yield sample
        with self.db.begin(write=True) as transaction:
            transaction.put(self._end(), b"1")

    def _prefix(self) -> str:
        reader = find_reader()
        return f"s{reader.rank}.{reader.world_size}.{reader.worker}.{reader.num_workers}/"

    def _end(self) -> bytes:
        return ("_" + self._prefix()).encode()


# A name with an underscore is a function of a source, and without it the stage.
_NAMES = {
    mapping: "_associate _decode _extract_keys _info _log_keys _map _map_dict _map_tuple _rename "
    "_rename_keys _select _to_tuple _xdecode decode_bin decode_pickle decode_text default_decoders "
    "find_decoder getfirst transform_with",
    order: "_rsample _shuffle detshuffle pick",
}
for _module, _names in _NAMES.items():
    for _name in _names.split():
        globals()[_name] = getattr(_module, _name)
        if _name.startswith("_"):
            globals()[_name[1:]] = pipelinefilter(getattr(_module, _name))

batched = pipelinefilter(_batched)
unbatched = pipelinefilter(_unbatched)
unlisted = pipelinefilter(_unlisted)
slice = pipelinefilter(islice)  # noqa: A001 - WebDataset's name


if TYPE_CHECKING:

    def __getattr__(name: str) -> Any: ...
