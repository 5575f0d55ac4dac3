"""WebDataset's helpers: the reader, repetition, stages that pickle, the security switch."""

from __future__ import annotations

import functools
import importlib
import itertools
import sys
import zlib
from collections.abc import Callable, Iterable, Iterator
from typing import Any

from shardwise.compat.environment import is_on
from shardwise.compat.webdataset.readers import find_reader

# Whether pickles, shells and local files are refused. Programs assign it: read it when it counts.
enforce_security = is_on("WDS_SECURE")


def refuse_unsafe(what: str) -> None:
    if enforce_security:
        raise ValueError(
            f"{what} is not allowed for security reasons when enforce_security is set."
        )


class PipelineStage:
    """A stage of a pipeline as an object: its method `run(source)` returns an iterator."""

    def invoke(self, *args: Any, **kw: Any) -> Any:
        raise NotImplementedError(f"{type(self).__name__} has no method run(source)")


def identity(x: Any) -> Any:
    return x


def guess_batchsize(batch: Any) -> int:
    return len(batch[0])


def repeatedly(
    source: Iterable[Any],
    nepochs: int | None = None,
    nbatches: int | None = None,
    nsamples: int | None = None,
    batchsize: Callable[[Any], int] = guess_batchsize,
) -> Iterator[Any]:
    """Iterate until there were `nepochs`, `nbatches` or `nsamples`, or an empty epoch."""
    num_batches = num_samples = 0
    for epoch in itertools.count(1):
        before = num_batches
        for batch in source:
            yield batch
            num_batches += 1
            if nbatches is not None and num_batches >= nbatches:
                return
            if nsamples is not None:
                num_samples += batchsize(batch)
                if num_samples >= nsamples:
                    return
        if num_batches == before or (nepochs is not None and epoch >= nepochs):
            return


def repeatedly0(
    loader: Iterable[Any], nepochs: int = sys.maxsize, nbatches: int = sys.maxsize
) -> Iterator[Any]:
    return (batch for _ in range(nepochs) for batch in itertools.islice(loader, nbatches))


def make_seed(*args: Any) -> int:
    """Make a seed of numbers and texts: 31 bits, the same in every process."""
    seed = 0
    for arg in args:
        word = arg if isinstance(arg, int) else zlib.crc32(repr(arg).encode())
        seed = (seed * 31 + word) & 0x7FFFFFFF
    return seed


def lookup_sym(sym: str, modules: Iterable[str]) -> Any:
    """The first of some modules' attributes with this name; None if none has it."""
    found = (getattr(importlib.import_module(name, __package__), sym, None) for name in modules)
    return next((each for each in found if each is not None), None)


def pytorch_worker_info(group: Any = None) -> tuple[int, int, int, int]:
    """Rank, world size, worker and number of workers of this process; see `find_ranks`."""
    reader = find_reader(group)
    return reader.rank, reader.world_size, reader.worker, reader.num_workers


def pytorch_worker_seed(group: Any = None) -> int:
    rank, _, worker, num_workers = pytorch_worker_info(group)
    return rank * max(1000, num_workers) + worker


class FilterFunction:
    """A stage: a function `f` of a source, and its other arguments; it pickles if `f` does."""

    def __init__(self, f: Callable[..., Any], *args: Any, **kw: Any) -> None:
        self.f = f
        self.args = args
        self.kw = kw

    def __call__(self, data: Any) -> Any:
        return self.f(data, *self.args, **self.kw)

    def __repr__(self) -> str:
        return f"<{getattr(self.f, '__name__', self.f)} {self.args} {self.kw}>"

    def __reduce__(self) -> tuple[Any, ...]:
        module = sys.modules.get(getattr(self.f, "__module__", ""))
        named: Any = getattr(module, getattr(self.f, "__name__", ""), None)
        is_decorated = isinstance(named, RestCurried) and named.f is self.f
        make = named if is_decorated else functools.partial(FilterFunction, self.f)
        return functools.partial(make, *self.args, **self.kw), ()


class RestCurried:
    """Makes stages of a function `f` whose first argument is the source; also as a decorator."""

    def __init__(self, f: Callable[..., Any]) -> None:
        self.f = f
        functools.update_wrapper(self, f)

    def __call__(self, *args: Any, **kw: Any) -> FilterFunction:
        return FilterFunction(self.f, *args, **kw)

    def __reduce__(self) -> str:
        # Pickled by name, as a function is.
        return str(self.f.__name__)


pipelinefilter = RestCurried
