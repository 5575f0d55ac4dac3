"""WebDataset's helpers: the reader's place, repetition, marks for old names, the security switch.

Programs assign `enforce_security`, so it is looked at when it counts.
"""

from __future__ import annotations

import fnmatch
import functools
import glob
import importlib
import itertools
import re
import sys
import warnings
from collections.abc import Callable, Iterable, Iterator
from typing import Any

import numpy as np
from numpy.typing import NDArray

from shardwise.compat.webdataset.environment import is_on
from shardwise.storage.braces import expand_braces

# Whether pickles, shells and local files are refused. Programs assign it.
enforce_security = is_on("WDS_SECURE")


def glob_with_braces(pattern: str) -> list[str]:
    """The files that a glob with braces matches."""
    return [name for part in expand_braces(pattern) for name in glob.glob(part)]  # noqa: PTH207


def fnmatch_with_braces(filename: str, pattern: str) -> bool:
    """Whether a name matches a glob with braces."""
    return any(fnmatch.fnmatch(filename, part) for part in expand_braces(pattern))


def make_seed(*args: Any) -> int:
    """Mix whole numbers and other values into one seed of 31 bits.

    Whole numbers and text give the same seed in every process and on every machine.
    """
    from shardwise.compat.webdataset.run import as_seed
    from shardwise.plan.permute import mix

    return mix(*map(as_seed, args)) >> 33


def is_iterable(obj: Any) -> bool:
    """Whether it can be iterated; text and bytes count as one value."""
    return isinstance(obj, Iterable) and not isinstance(obj, str | bytes)


class PipelineStage:
    """A stage of a pipeline as an object: its method `run(source)` returns an iterator."""

    def invoke(self, *args: Any, **kw: Any) -> Any:
        """Run the stage; pipelines call `run`."""
        raise NotImplementedError(f"{type(self).__name__} has no method run(source)")


def identity(x: Any) -> Any:
    """The argument itself."""
    return x


def safe_eval(s: str, expr: str = "{}") -> Any:
    """Look up a name of letters, digits and underscores in `expr`, by getattr and builtins only."""
    if re.fullmatch(r"[A-Za-z0-9_]*", s) is None:
        raise ValueError(f"safe_eval: {s!r} holds more than letters, digits and underscores")
    return eval(expr.format(s))  # noqa: S307 - the name is checked, the rest is the caller's


def lookup_sym(sym: str, modules: Iterable[str]) -> Any:
    """The first attribute `sym` of the modules (`.name` for those of this package), or None."""
    package = __name__.rpartition(".")[0]
    for name in modules:
        found = getattr(importlib.import_module(name, package=package), sym, None)
        if found is not None:
            return found
    return None


def repeatedly0(
    loader: Iterable[Any], nepochs: int = sys.maxsize, nbatches: int = sys.maxsize
) -> Iterator[Any]:
    """Iterate `nepochs` times, and take at most `nbatches` items each time."""
    for _ in range(nepochs):
        yield from itertools.islice(loader, nbatches)


def guess_batchsize(batch: Any) -> int:
    """The length of a batch's first field."""
    return len(batch[0])


def repeatedly(
    source: Iterable[Any],
    nepochs: int | None = None,
    nbatches: int | None = None,
    nsamples: int | None = None,
    batchsize: Callable[[Any], int] = guess_batchsize,
) -> Iterator[Any]:
    """Iterate again and again, until so many epochs, batches or samples have gone by.

    It also ends where an epoch is empty, since it would never end otherwise.
    """
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


def pytorch_worker_info(group: Any = None) -> tuple[int, int, int, int]:
    """Rank, world size, worker and number of workers of this process.

    A group wins, then torch.distributed, then what the parent of this worker found, then the
    environment. It holds in workers that were spawned, too.
    """
    from shardwise.compat.webdataset.place import find_place

    place = find_place(group)
    return place.rank, place.world_size, place.worker, place.num_workers


def pytorch_worker_seed(group: Any = None) -> int:
    """A number that no other reader has."""
    rank, _, worker, num_workers = pytorch_worker_info(group)
    return rank * max(1000, num_workers) + worker


def deprecated(arg: Any = None) -> Any:
    """Mark a function: calls give a DeprecationWarning. With or without a reason in brackets."""
    if callable(arg):
        return _warning(arg, None)
    return lambda function: _warning(function, arg)


def _warning(function: Callable[..., Any], reason: str | None) -> Callable[..., Any]:
    @functools.wraps(function)
    def call(*args: Any, **kw: Any) -> Any:
        because = "" if reason is None else f": {reason}"
        warnings.warn(
            f"{function.__name__} is deprecated{because}", DeprecationWarning, stacklevel=2
        )
        return function(*args, **kw)

    return call


class ObsoleteException(Exception):  # noqa: N818 - WebDataset's name
    """Something that is gone; `ALLOW_OBSOLETE=1` in the environment permits it."""


def obsolete(func: Callable[..., Any] | None = None, *, reason: str | None = None) -> Any:
    """Mark a function as gone: calls raise `ObsoleteException` unless `ALLOW_OBSOLETE=1` is set."""
    if func is None:
        return functools.partial(obsolete, reason=reason)

    @functools.wraps(func)
    def call(*args: Any, **kw: Any) -> Any:
        if not is_on("ALLOW_OBSOLETE"):
            because = "" if reason is None else f" ({reason})"
            raise ObsoleteException(
                f"{func.__name__} is obsolete{because}; set ALLOW_OBSOLETE=1 to use it still"
            )
        return func(*args, **kw)

    return call


def compute_sample_weights(n_w_pairs: Iterable[tuple[float, float]]) -> NDArray[np.float64]:
    """Weights of samples from (number of samples, weight) of their sets; the largest is 1."""
    pairs = np.array(list(n_w_pairs), dtype=np.float64)
    weighted = pairs[:, 0] * pairs[:, 1]
    scaled: NDArray[np.float64] = weighted / weighted.max()
    return scaled
