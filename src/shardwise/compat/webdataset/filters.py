"""The stages of a pipeline, as WebDataset names them.

`shuffle(1000)` is a stage; `_shuffle(source, 1000)` is the function behind it.
"""

from __future__ import annotations

import functools
import importlib
import itertools
import pickle
from collections.abc import Callable, Iterable, Iterator
from itertools import islice
from typing import TYPE_CHECKING, Any

from shardwise.compat.webdataset import batches, mapping, order
from shardwise.compat.webdataset.handlers import reraise_exception
from shardwise.compat.webdataset.pytorch import TorchTensor
from shardwise.compat.webdataset.readers import find_reader
from shardwise.compat.webdataset.utils import (
    FilterFunction,
    PipelineStage,
    RestCurried,
    identity,
    pipelinefilter,
)


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
    batches: "_batched _unbatched _unlisted combine_values default_collation_fn dict2tuple "
    "tuple2dict",
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

slice = pipelinefilter(itertools.islice)  # noqa: A001 - WebDataset's name


def compose2(f: Callable[[Any], Any], g: Callable[[Any], Any]) -> Callable[[Any], Any]:
    """First f, then g."""
    return lambda x: g(f(x))


def compose(*args: Callable[[Any], Any]) -> Callable[[Any], Any]:
    """Functions one after the other, the first one first."""
    return functools.reduce(compose2, args)


def pipeline(source: Any, *args: Callable[[Any], Any]) -> Any:
    """A source with stages behind it."""
    return compose(*args)(source) if args else source


def parse_field_spec(fields: str | list[str]) -> list[list[str]]:
    """Fields with alternatives: "jpg;png cls" is [["jpg", "png"], ["cls"]]."""
    names = fields.split() if isinstance(fields, str) else fields
    return [name.split(";") for name in names]


if TYPE_CHECKING:

    def __getattr__(name: str) -> Any: ...
