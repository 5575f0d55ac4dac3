"""One value a sample, of all samples, as an array: computed in parallel once, and kept.

A column is a pure function of the samples and of what is asked of them; both are in the digest
under which it is kept, so that a column of other data is never used.
"""

from __future__ import annotations

import os
import pickle
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from functools import partial
from typing import Any

import numpy as np
from numpy.typing import NDArray

from shardwise.base.abilities import having
from shardwise.base.arguments import no_such_field
from shardwise.base.columns import values_of
from shardwise.base.errors import DataError, ShardwiseError, message_of
from shardwise.base.foreign_bytes import is_signal
from shardwise.base.parallel import in_processes, in_threads, usable_cores
from shardwise.base.progress_bar import progress as progress_bar
from shardwise.codecs import default_decoder
from shardwise.dataset.code_digest import held_digest
from shardwise.dataset.indexed_samples import IndexedSamples
from shardwise.dataset.kept_arrays import KeptArrays, kept_or_made
from shardwise.dataset.raw_rows import name_of
from shardwise.dataset.recipe_digest import recipe_digest
from shardwise.sources.protocol import (
    HasVersion,
    Source,
    directory_of,
    parts_of,
    traits_of,
    value_fields_of,
)
from shardwise.storage import is_local, local_path

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
    """Refuse invalid arguments of `Dataset.column`."""
    if not isinstance(name, str):
        raise TypeError(f"column({name!r}): the name of a field, or with a function any name")
    if fn is not None and not callable(fn):
        raise TypeError(f"column({name!r}, {fn!r:.40}): a function of a sample")
    if isinstance(num_workers, bool) or not isinstance(num_workers, int) or num_workers < 0:
        raise ValueError(f"num_workers={num_workers!r}: processes, or 0 for threads")


def split_member(name: str, fields: Sequence[str]) -> list[str]:
    """A field, and the names of members inside of it: "json.n_frames" is ["json", "n_frames"]."""
    field, *path = [name] if name in fields else name.split(".")
    if field not in fields:
        raise ValueError(
            f"column({name!r}): {no_such_field(field, fields)}; or give a function that makes the "
            "values, as column(name, lambda sample: ...)"
        )
    return [field, *path]


@dataclass(frozen=True)
class ColumnReader:
    """Reads a column: `fn` of samples, or a field (and members in it, by `path`); pickles."""

    name: str
    samples: IndexedSamples
    field: str | None
    path: tuple[str, ...] = ()
    fn: Callable[[dict[str, Any]], Any] | None = None

    def origin(self) -> str:
        """All that the values are made of, as text."""
        return "\n".join([
            f"{self.name!r} {self.field!r} {self.path!r}",
            f"{self.samples.fingerprint} {version_of(self.samples.source)}",
            recipe_digest(self.samples, digest=held_digest),
            "" if self.fn is None else held_digest(self.fn),
        ])  # fmt: skip

    def read(self, rows: range) -> NDArray[Any]:
        """The values of some samples: bool, int64, float64, a number's own dtype, or str.

        Those of removed samples are 0, False or "".
        """
        ids = np.arange(rows.start, rows.stop, dtype=np.int64)
        kept = np.setdiff1d(ids, self.samples.removed)
        read = self._read(kept)
        if len(kept) == len(ids):
            return read
        values = np.zeros(len(ids), read.dtype)
        values[kept - rows.start] = read
        return values

    def _read(self, ids: NDArray[np.int64]) -> NDArray[Any]:
        made: Iterable[Any]
        if self.fn is None and self.field is not None:
            columns = self.samples.load(ids)
            if self.field not in columns:
                there = ", ".join(map(repr, columns))
                raise self._error(f"the samples have {there}", int(ids[0]), columns["__key__"][0])
            column: Any = columns[self.field]
            if not self.path and getattr(column, "ndim", 0) == 1 and column.dtype.kind in "biuf":
                return np.asarray(column)
            keys, made = columns["__key__"], map(self._member, values_of(column))
        else:
            samples = self.samples.__getitems__(ids)
            keys = [sample["__key__"] for sample in samples]
            made = map(self._call_function, samples, ids.tolist())
        values: list[Any] = []
        first = ""
        for row, value in enumerate(made):
            plain, kind = _plain(value)
            first = first or kind
            if kind == "" or (kind != first and {kind, first} != {"int", "float"}):
                reason = _wrong(value) if kind == "" else f"{plain!r:.40} is {kind}, others {first}"
                raise self._error(reason, int(ids[row]), keys[row])
            if kind == "int" and not -(2**63) <= plain < 2**63:
                reason = f"{plain} does not fit into 64 bits"
                raise self._error(reason, int(ids[row]), keys[row])
            if kind == "str" and plain.endswith("\0"):  # numpy would drop it
                reason = f"{plain!r:.40} ends in a NUL, which an array of texts can't hold"
                raise self._error(reason, int(ids[row]), keys[row])
            values.append(plain)
        return _array(values)

    def read_parts(self, rows: range, step: int) -> list[NDArray[Any]]:
        """The values of many samples, `step` at a time: the task of a process."""
        return [self.read(rows[at : at + step]) for at in range(0, len(rows), step)]

    def _member(self, value: Any) -> Any:
        for name in self.path:
            if not isinstance(value, Mapping) or name not in value:
                # `_wrong` reports the missing value.
                return None
            value = value[name]
        return value

    def _call_function(self, sample: dict[str, Any], index: int) -> Any:
        assert self.fn is not None
        key = sample["__key__"]
        try:
            return self.fn(sample)
        except BaseException as exc:
            is_ours = isinstance(exc, ShardwiseError) and not isinstance(exc, DataError)
            if is_ours or is_signal(exc):
                raise
            reason = f"{name_of(self.fn)} raised {type(exc).__name__}: {message_of(exc)}"
            raise self._error(reason, index, key) from exc

    def _error(self, reason: str, index: int, key: str) -> DataError:
        url = self.samples.url_of(index)
        return DataError(
            f"column({self.name!r}): {reason}", url=url, key=key, field=self.field, index=index
        )


def _plain(value: Any) -> tuple[Any, str]:
    """A value as Python's own, and its kind; "" if a column can't hold it."""
    if type(value) in (int, float, bool, str):
        return value, type(value).__name__
    if getattr(value, "ndim", None) == 0 and hasattr(value, "item"):
        value = value.item()
    kind = next((k for k in (bool, int, float, str) if isinstance(value, k)), None)
    return value, "" if kind is None else kind.__name__


def _wrong(value: Any) -> str:
    if value is None:
        return "the sample has no value: give a function that returns one for it, or filter first"
    shape = getattr(value, "shape", None)
    if shape is not None:
        return f"an array of shape {tuple(shape)}: a column has one number or text a sample"
    hint = ": decode the field, or give a function" if isinstance(value, bytes) else ""
    return f"{value!r:.40} is a {type(value).__name__}, no number or text{hint}"


def _array(values: list[Any]) -> NDArray[Any]:
    if values and isinstance(values[0], str):
        return np.array(values, dtype=f"U{max(1, *map(len, values))}")
    if values and isinstance(values[0], bool):
        return np.array(values, np.bool_)
    return np.array(values, np.float64 if any(type(v) is float for v in values) else np.int64)


def version_of(source: Source) -> str:
    """The version of the shards, beside the fingerprint of their names and sizes."""
    own = having(source, HasVersion)
    if own is not None:
        return own.version()
    if parts_of(source):
        return " ".join(map(version_of, parts_of(source)))
    times = []
    for shard in source.manifest.shards:
        if is_local(shard.url):
            with suppress(OSError):
                times.append(os.stat(local_path(shard.url)).st_mtime_ns)  # noqa: PTH116 - a URL
    return str(hash(tuple(times)))


def kept_place(samples: IndexedSamples, name: str, origin: str) -> KeptArrays | None:
    """The store for arrays made of the samples; None if none may be stored.

    The fingerprint of a wrapped dataset is made of three samples, which is too little to trust a
    file of another run.
    """
    if _holds_objects(samples.source):
        return None
    return KeptArrays(directory_of(samples.source), name=name, origin=origin)


def _holds_objects(source: Any) -> bool:
    return traits_of(source).holds_objects or any(map(_holds_objects, parts_of(source)))


def column_reader(dataset: Any, name: str, fn: Any = None) -> ColumnReader:
    """Make the reader of a column of a `Dataset`."""
    if fn is not None or dataset.is_mapped:
        return ColumnReader(name, dataset, name if fn is None else None, fn=fn)
    if name == "__key__":
        return ColumnReader(name, dataset.select(), name)
    source, transforms = dataset.source, dataset.transforms
    parts = () if transforms.selected is not None else traits_of(source).parts
    field, *path = split_member(name, (*dataset.fields, *parts))
    read, decoder = dataset.select(field), default_decoder(field)
    is_stored = field not in value_fields_of(source)
    if is_stored and decoder is not None and field not in transforms.decoders:
        read = read.decode(**{field: decoder})
    return ColumnReader(name, read, field, tuple(path))


def computed_column(reader: ColumnReader, progress: Progress, num_workers: int) -> NDArray[Any]:
    """The values of all samples, read-only: the kept ones, else computed and kept."""
    place = kept_place(reader.samples, reader.name, reader.origin())

    def make() -> _Column:
        return _Column(_join_parts(reader, list(_parts(reader, progress, num_workers))))

    values = kept_or_made(place, _Column, make).values
    values.flags.writeable = False
    return values


@dataclass(frozen=True)
class _Column:
    values: NDArray[Any]


def _parts(reader: ColumnReader, progress: Progress, num_workers: int) -> Iterator[NDArray[Any]]:
    num_samples, step = len(reader.samples), _rows_of(reader.samples.source)
    done = 0
    with _reporter(reader.name, num_samples, progress) as report:
        for part in _compute_parts(reader, num_samples, step, num_workers):
            yield part
            done += len(part)
            report(done)


def _compute_parts(
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


def _join_parts(reader: ColumnReader, parts: list[NDArray[Any]]) -> NDArray[Any]:
    if not parts:
        return np.empty(0, np.int64)
    kinds = {"number" if part.dtype.kind in "iuf" else part.dtype.kind for part in parts}
    if len(kinds) > 1:
        odd = next(n for n, part in enumerate(parts) if part.dtype.kind != parts[0].dtype.kind)
        start = sum(map(len, parts[:odd]))
        raise DataError(
            f"column({reader.name!r}): from sample {start} on the values are {parts[odd].dtype}, "
            f"and {parts[0].dtype} before",
            url=reader.samples.url_of(start),
            index=start,
        )
    return np.concatenate(parts)
