"""Reads the values of a column: one number or text of each sample, checked."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from typing import Any, Protocol

import numpy as np
from numpy.typing import NDArray

from shardwise.columns import Column, values_of
from shardwise.dataset.function_digest import described_function
from shardwise.dataset.raw_rows import name_of
from shardwise.dataset.transforms import Transforms
from shardwise.errors import DataError, ShardwiseError, message_of
from shardwise.sources.protocol import Source
from shardwise.storage import is_local, local_path

__all__ = ["ColumnReader", "ColumnSamples", "split_member"]


class ColumnSamples(Protocol):
    """What a column is made of; `shardwise.Dataset` is one."""

    def __len__(self) -> int:
        """The number of samples."""
        ...

    def __getitems__(self, indices: Any, /) -> list[dict[str, Any]]:
        """Samples by index, as dicts."""
        ...

    def load(self, ids: NDArray[np.int64], /) -> Mapping[str, Sequence[Any]]:
        """Samples by index, as columns."""
        ...

    def url_of(self, index: int, /) -> str:
        """The url of a sample's shard."""
        ...

    @property
    def source(self) -> Source:
        """Where the samples lie."""
        ...

    @property
    def transforms(self) -> Transforms:
        """What is done to them."""
        ...

    @property
    def fingerprint(self) -> str:
        """Which samples these are."""
        ...


@dataclass(frozen=True)
class ColumnReader:
    """Reads the values of a column, some samples at a time; pickles with its dataset.

    Attributes:
        name: the column's name, for messages.
        samples: the dataset, of which only what is needed is read.
        field: the field that has the values; None where `fn` makes them of whole samples.
        path: names of members inside a field of documents.
        fn: sample -> value.
    """

    name: str
    samples: ColumnSamples
    field: str | None
    path: tuple[str, ...] = ()
    fn: Callable[[dict[str, Any]], Any] | None = None

    def origin(self) -> str:
        """All that the values are made of, as text."""
        transforms = self.samples.transforms
        decoders = [f"{n} {described_function(d)}" for n, d in sorted(transforms.decoders.items())]
        return "\n".join([
            f"{self.name!r} {self.field!r} {self.path!r}",
            f"{self.samples.fingerprint} {_version(self.samples.source)}",
            *decoders,
            *(f"map {described_function(each.fn)}" for each in transforms.maps),
            "" if self.fn is None else described_function(self.fn),
        ])  # fmt: skip

    def read(self, rows: range) -> NDArray[Any]:
        """The values of some samples: bool, int64, float64, a number's own dtype, or str.

        Raises:
            DataError: a value is missing, no number or text, or of another kind than the others;
                or `fn` raised.
        """
        ids = np.arange(rows.start, rows.stop, dtype=np.int64)
        made: Iterable[Any]
        if self.fn is None and self.field is not None:
            columns = self.samples.load(ids)
            if self.field not in columns:
                there = ", ".join(map(repr, columns))
                raise self._error(f"the samples have {there}", rows.start, columns["__key__"][0])
            column: Column = columns[self.field]
            if not self.path and isinstance(column, np.ndarray) and _is_of_numbers(column):
                return column
            keys, made = columns["__key__"], map(self._member, values_of(column))
        else:
            samples = self.samples.__getitems__(ids)
            keys = [sample["__key__"] for sample in samples]
            made = (self._called(sample, rows.start + row) for row, sample in enumerate(samples))
        values: list[Any] = []
        first = ""
        for row, value in enumerate(made):
            plain, kind = _plain(value)
            first = first or kind
            if kind == "" or (kind != first and {kind, first} != {"int", "float"}):
                reason = _wrong(value) if kind == "" else f"{plain!r:.40} is {kind}, others {first}"
                raise self._error(reason, rows.start + row, keys[row])
            if kind == "int" and not -(2**63) <= plain < 2**63:
                reason = f"{plain} does not fit into 64 bits"
                raise self._error(reason, rows.start + row, keys[row])
            if kind == "str" and plain.endswith("\0"):  # numpy would drop it
                reason = f"{plain!r:.40} ends in a NUL, which an array of texts can't hold"
                raise self._error(reason, rows.start + row, keys[row])
            values.append(plain)
        return _array(values)

    def read_parts(self, rows: range, step: int) -> list[NDArray[Any]]:
        """The values of many samples, `step` at a time: the task of a process."""
        return [self.read(rows[at : at + step]) for at in range(0, len(rows), step)]

    def _member(self, value: Any) -> Any:
        for name in self.path:
            if not isinstance(value, Mapping) or name not in value:
                # `_wrong` says that there is no value.
                return None
            value = value[name]
        return value

    def _called(self, sample: dict[str, Any], index: int) -> Any:
        assert self.fn is not None
        key = sample["__key__"]
        try:
            return self.fn(sample)
        except Exception as exc:
            if isinstance(exc, ShardwiseError) and not isinstance(exc, DataError):
                raise
            reason = f"{name_of(self.fn)} raised {type(exc).__name__}: {message_of(exc)}"
            raise self._error(reason, index, key) from exc

    def _error(self, reason: str, index: int, key: str) -> DataError:
        url = self.samples.url_of(index)
        return DataError(
            f"column({self.name!r}): {reason}", url=url, key=key, field=self.field, index=index
        )


def split_member(name: str, fields: Sequence[str]) -> list[str]:
    """A field, and the names of members inside of it: "json.n_frames" is ["json", "n_frames"].

    Raises:
        ValueError: there is no such field.
    """
    field, *path = [name] if name in fields else name.split(".")
    if field not in fields:
        there = ", ".join(map(repr, fields)) or "none"
        raise ValueError(
            f"column({name!r}): no field {field!r}: the fields are {there}; give a function "
            "that makes the values, as column(name, lambda sample: ...)"
        )
    return [field, *path]


def _is_of_numbers(column: NDArray[Any]) -> bool:
    return column.ndim == 1 and column.dtype.kind in "biuf"


def _plain(value: Any) -> tuple[Any, str]:
    """A value as Python's own, and its kind; "" where it is none of a column's."""
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


def _version(source: Source) -> str:
    """What tells versions of the shards apart, beside the fingerprint of their names and sizes."""
    own = getattr(source, "version", None)
    if callable(own):
        return str(own())
    times = []
    for shard in source.manifest.shards:
        if is_local(shard.url):
            with suppress(OSError):
                times.append(os.stat(local_path(shard.url)).st_mtime_ns)  # noqa: PTH116 - a URL
    return str(hash(tuple(times)))
