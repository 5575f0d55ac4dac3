"""One value a sample, of all samples, as an array: computed in parallel once, and kept.

A column is a pure function of the samples and of what is asked of them; both are in the digest
under which it is kept, so that a column of other data is never used.
"""

from __future__ import annotations

import pickle
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from functools import partial
from typing import Any

import numpy as np
from numpy.typing import NDArray

from shardwise.cores import usable_cores
from shardwise.dataset.column_reader import ColumnReader, ColumnSamples
from shardwise.dataset.kept_arrays import KeptArrays
from shardwise.errors import DataError, message_of
from shardwise.parallel import in_processes, in_threads
from shardwise.progress_bar import progress as progress_bar
from shardwise.sources.protocol import Source, traits_of

__all__ = ["Progress", "check_column", "computed_column", "kept_place"]

# True or None: a bar where standard error is a terminal; a function of (done, total) samples.
Progress = bool | Callable[[int, int], object] | None

# A read of one thread: 16 MiB of samples, and few enough of them to share the work.
_READ_BYTES, _MAX_ROWS = 16 << 20, 4096
# Objects of a wrapped dataset, whose size is unknown.
_OBJECT_ROWS = 256
# Threads where reads are requests: they wait, and hardly compute.
_REMOTE_THREADS = 16
# Tasks a process: the last one to end is late by a tenth of the whole at most.
_TASKS_EACH = 10


def check_column(name: str, fn: object, num_workers: int) -> None:
    """Refuse arguments of `Dataset.column` that are none."""
    if not isinstance(name, str):
        raise TypeError(f"column({name!r}): the name of a field, or with a function any name")
    if fn is not None and not callable(fn):
        raise TypeError(f"column({name!r}, {fn!r:.40}): a function of a sample")
    if isinstance(num_workers, bool) or not isinstance(num_workers, int) or num_workers < 0:
        raise ValueError(f"num_workers={num_workers!r}: processes, or 0 for threads")


def kept_place(samples: ColumnSamples, name: str, origin: str) -> KeptArrays | None:
    """Where something made of these samples is kept; None where nothing may be.

    The fingerprint of a wrapped dataset is made of three samples, which is too little to trust a
    file of another run.
    """
    if traits_of(samples.source).holds_objects:
        return None
    directory = getattr(samples.source, "directory", None)
    return KeptArrays(directory, name=name, origin=origin)


def computed_column(
    reader: ColumnReader, *, progress: Progress = None, num_workers: int = 0
) -> NDArray[Any]:
    """The values of all samples, read-only: the kept ones, else computed and kept.

    Raises:
        DataError: as `ColumnReader.read` says.
        WorkerError: a process died.
        TypeError: with processes, something of it does not pickle.
    """
    place = kept_place(reader.samples, reader.name, reader.origin())
    kept = None if place is None else place.load()
    if kept is not None and len(kept["values"]) == len(reader.samples):
        return kept["values"]
    values = _joined(reader, list(_parts(reader, progress, num_workers)))
    if place is not None:
        place.save({"values": values})
    values.flags.writeable = False
    return values


def _parts(reader: ColumnReader, progress: Progress, num_workers: int) -> Iterator[NDArray[Any]]:
    """The values of runs of samples, in their order."""
    num_samples, step = len(reader.samples), _rows_of(reader.samples.source)
    done = 0
    with _reporter(reader.name, num_samples, progress) as report:
        for part in _computed(reader, num_samples, step, num_workers):
            yield part
            done += len(part)
            report(done)


def _computed(
    reader: ColumnReader, num_samples: int, step: int, num_workers: int
) -> Iterable[NDArray[Any]]:
    if num_workers:
        _refuse_unpicklable(reader)
        run = -(-num_samples // (num_workers * _TASKS_EACH * step) or -1) * step
        died = (
            f"column({reader.name!r}): a process died, maybe for lack of memory; use less than "
            f"num_workers={num_workers}"
        )
        read, tasks = partial(reader.read_parts, step=step), _runs(num_samples, max(step, run))
        for parts in in_processes(read, tasks, num_workers, if_one_dies=died):
            yield from parts
        return
    tasks = _runs(num_samples, step)
    is_remote = traits_of(reader.samples.source).random_reads_are_requests
    threads = min(_REMOTE_THREADS if is_remote else usable_cores(), len(tasks))
    if threads <= 1:
        yield from map(reader.read, tasks)
        return
    yield from in_threads(reader.read, tasks, threads)


@contextmanager
def _reporter(name: str, num_samples: int, progress: Progress) -> Iterator[Callable[[int], object]]:
    if callable(progress):
        function = progress
        yield lambda done: function(done, num_samples)
    elif progress is False:
        yield lambda _done: None
    else:
        with progress_bar(f"column {name}", num_samples, unit="samples") as report:
            yield report


def _runs(num_samples: int, step: int) -> list[range]:
    return [range(at, min(at + step, num_samples)) for at in range(0, num_samples, step)]


def _rows_of(source: Source) -> int:
    if traits_of(source).holds_objects:
        return _OBJECT_ROWS
    manifest = source.manifest
    num_bytes = sum(shard.num_bytes for shard in manifest.shards)
    mean = num_bytes / max(1, manifest.num_samples)
    return int(min(_MAX_ROWS, max(1, _READ_BYTES // max(1, mean))))


def _refuse_unpicklable(reader: ColumnReader) -> None:
    try:
        pickle.dumps(reader)
    except Exception as error:  # noqa: BLE001 - pickling foreign objects may raise anything
        raise TypeError(
            f"column({reader.name!r}, num_workers=...): worker processes get the dataset and the "
            f"function pickled, and that failed ({message_of(error)}): define the function at the "
            "top level of a module, or use num_workers=0"
        ) from None


def _joined(reader: ColumnReader, parts: list[NDArray[Any]]) -> NDArray[Any]:
    if not parts:
        return np.empty(0, np.int64)
    kinds = {"number" if part.dtype.kind in "iuf" else part.dtype.kind for part in parts}
    if len(kinds) > 1:
        start = 0
        for part in parts:
            if part.dtype.kind != parts[0].dtype.kind:
                break
            start += len(part)
        raise DataError(
            f"column({reader.name!r}): from sample {start} on the values are {part.dtype}, and "
            f"{parts[0].dtype} before",
            url=reader.samples.url_of(start),
            index=start,
        )
    return np.concatenate(parts)
