"""Dataset: a source, and what is done to its samples.

Map-style and immutable: every method returns a new dataset, and sample i is the same sample for
every reader. A dataset owns no position, no file and no process: it says what sample i is, and the
loader says who gets it when.
"""

from __future__ import annotations

import operator
import os
from collections.abc import Callable, Iterator, Sequence
from functools import cached_property
from typing import TYPE_CHECKING, Any, Literal, Never, overload

import numpy as np
from numpy.typing import ArrayLike, NDArray

from shardwise.collate import collate
from shardwise.columns import Columns
from shardwise.dataset.display import Sample, gallery
from shardwise.dataset.fields import RawRows, decode_row, decode_rows, is_plain_function
from shardwise.dataset.samples import LoadedSamples
from shardwise.dataset.subset import (
    checked_ids,
    filter_mask,
    subset_fingerprint,
    subset_indices,
    subset_shard_sizes,
)
from shardwise.dataset.transforms import Transforms
from shardwise.errors import ShardwiseError
from shardwise.hints import DECODE_HINT, call_for, hint_for
from shardwise.markup import table
from shardwise.plan import WindowShape
from shardwise.sources.protocol import Source, value_fields_of

__all__ = ["Dataset"]

# Iteration reads 16 rows at first, so that the first comes at once; then twice as many each time,
# up to 1,024 rows or 16 MiB.
_FIRST_ROWS, _MAX_ROWS = 16, 1024
_READ_BYTES = 16 << 20
# Samples whose pictures a notebook shows.
_NUM_SHOWN = 8


class Dataset(LoadedSamples):
    """Samples by index, decoded and transformed.

    A sample is a dict: "__key__" (str) and one entry a field, bytes until decoded. `ds[i]` is one
    sample (i may be negative), `ds[[i, j]]` and `ds[2:5]` are lists of samples, iteration goes in
    storage order. Made by `sw.tar`, `sw.wrap` and the like; pickles without open files.

    A field that a sample lacks is not in its dict. If `select` or `decode` names that field, the
    sample is a `DataError` instead.

    Args:
        source: where the samples lie; satisfies `shardwise.sources.protocol.Source`.

    Examples:
        >>> import shardwise as sw
        >>> ds = sw.wrap([("a", 1), ("b", 2)]).decode(**{"0": str.upper})
        >>> len(ds), ds[-1]
        (2, {'__key__': '1', '0': 'B', '1': 2})
    """

    def __init__(self, source: Source, *, _transforms: Transforms | None = None) -> None:
        if not callable(getattr(source, "read", None)) or isinstance(source, os.PathLike):
            call = call_for(source) or "sw.wrap(...)"
            raise TypeError(f"Dataset({type(source).__name__}): use {call}, which makes a Dataset")
        super().__init__(source, _transforms)

    if not TYPE_CHECKING:  # to a type checker, these would make every name an attribute

        def __getattr__(self, name):
            # A property that raised AttributeError ends here, too: raise its own error.
            if hasattr(type(self), name):
                return object.__getattribute__(self, name)
            hint = hint_for(name) or f"{type(self).__name__!r} object has no attribute {name!r}"
            raise AttributeError(hint, name=name, obj=self)

        def __add__(self, other):
            raise TypeError("datasets are not added: write\n    ds = sw.concat([a, b])")

    def __repr__(self) -> str:
        return f"Dataset({'.'.join([repr(self._source), *self._transforms.steps()])})"

    def _repr_html_(self) -> str:
        """The facts, and the pictures of the first samples."""
        rows: list[tuple[str, object]] = [("dataset", self)]
        shown = ""
        try:
            rows += [("samples", f"{len(self):,}"), ("shards", f"{len(self.shard_sizes):,}")]
            rows.append(("fields", ", ".join(self.fields)))
            shown = gallery(self[i] for i in range(min(_NUM_SHOWN, len(self))))
        except ShardwiseError as error:
            rows.append((type(error).__name__, error))
        return table("Dataset", rows) + shown

    # What it is.

    @property
    def default_shuffle(self) -> Literal["full", "window"]:
        """What `shuffle=True` means here: "full" or "window"."""
        return self._source.default_shuffle

    @cached_property
    def fingerprint(self) -> str:
        """Which samples these are, in which order: 16 hex digits of the shards and the subset.

        Decoders and transforms do not count: a state may be resumed with other ones.
        """
        indices = self._transforms.indices
        whole = self.manifest.fingerprint
        return whole if indices is None else subset_fingerprint(whole, indices)

    @cached_property
    def shard_sizes(self) -> NDArray[np.int64]:
        """Samples a shard: int64 `[shards]`, in the source's order; a subset's shards may be empty.

        A subset whose indices do not ascend jumps between shards: it counts as one shard.
        """
        indices = self._transforms.indices
        sizes = self.manifest.sizes
        return sizes if indices is None else subset_shard_sizes(sizes, indices)

    @property
    def window_shape(self) -> WindowShape | None:
        """How a window shuffle goes through the shards; None for the default way."""
        return self._traits.window_shape

    # Other datasets made from it.

    def select(self, *fields: str) -> Dataset:
        """Keep these fields, in this order; others are not read. With no names, only keys are left.

        Raises:
            ValueError: a field is not there, or a `map()` comes before.
        """
        known = (*self.fields, *self._parts)
        return Dataset(self._source, _transforms=self._transforms.select(fields, known))

    def decode(self, /, *specs: Never, **decoders: Callable[[Any], Any] | Any) -> Dataset:
        """Decode fields: `field=decoder`, where a decoder is a codec or any callable of bytes.

        `int`, `float` and `str` read text. A later decoder of a field takes the place of an
        earlier one; fields whose name is no Python name are given as `**{"seg.png": ...}`.
        Without arguments every field that has a default decoder (by its extension; never pickle)
        and no other one yet is decoded with it.

        Raises:
            ValueError: a field is not there or not selected, or a `map()` comes before.
            TypeError: a decoder can't be called, or stands without a field.
        """
        if specs:
            raise TypeError(DECODE_HINT)
        values = value_fields_of(self._source)
        source, transforms, fields = self._source, self._transforms, self.fields
        if not decoders:
            return Dataset(source, _transforms=transforms.decode_by_default(fields, values=values))
        parts = [name for name in decoders if name in self._parts]
        if parts:
            transforms = transforms.with_parts(parts, fields)
            fields = transforms.selected or ()
        transforms = transforms.decode(decoders, fields, values=values)
        undecoded = getattr(source, "undecoded", None)
        if undecoded is not None:
            resolved = transforms.decoders
            source = undecoded([n for n in decoders if not is_plain_function(resolved[n])])
        return Dataset(source, _transforms=transforms)

    def map(self, fn: Callable[..., dict[str, Any]]) -> Dataset:
        """Transform samples: fn(sample) -> sample, or fn(sample, rng) if it has a parameter `rng`.

        `rng` is a numpy Generator keyed by (seed, epoch, sample, place of this map): the same for
        a sample on every cluster and in every subset. `ds[i]` and iteration use seed 0, epoch 0.
        All samples must come back with the same fields; "__key__" is put back if it is dropped.

        Raises:
            TypeError: fn can't be called so.
        """
        return Dataset(self._source, _transforms=self._transforms.map(fn))

    def subset(self, indices: ArrayLike) -> Dataset:
        """Take samples by index (an int array) or by a boolean mask.

        The given order becomes the storage order, and repeats are samples of their own. Costs 8
        bytes a sample, which travel with the pickled dataset. Ascending indices read fastest.

        Raises:
            IndexError: an index is negative or past the end.
            ValueError: a mask of another length, or more dimensions than one.
            TypeError: neither integers nor booleans.
        """
        source_ids = subset_indices(indices, len(self), self._transforms.indices)
        return Dataset(self._source, _transforms=self._transforms.take(source_ids))

    def filter(
        self,
        where: ArrayLike | Callable[[dict[str, Any]], ArrayLike],
        *,
        columns: Sequence[str] | None = None,
    ) -> Dataset:
        """Keep the samples for which something holds: a subset, with equal steps on all ranks.

        Args:
            where: one boolean a sample; or a function of columns, which gets a dict of some
                samples' values, decoded and stacked as in a batch, with "__key__", and returns one
                boolean for each. It is called for 512 samples at a time, in each process that
                makes the dataset, and must return the same in all of them.
            columns: the fields that the function gets; others are not read.

        Raises:
            ValueError: a field is not there, a `map()` comes before a function, or a mask of
                another length.
            TypeError: no booleans, or a function without columns.
            DataError: a sample is damaged or lacks one of the columns.

        Examples:
            >>> import shardwise as sw
            >>> ds = sw.wrap([{"n": n} for n in range(100)])
            >>> len(ds.filter(lambda c: c["n"] > 16, columns=["n"]))
            83
        """
        if callable(where):
            if columns is None or isinstance(columns, str):
                raise TypeError(
                    f"filter(function, columns={columns!r}): name the fields that it gets, such "
                    "as columns=['cls']"
                )
            self._transforms.check("filter", columns, self.fields)
            read = self.select(*columns)
            mask = filter_mask(where, lambda ids: collate(read.load(ids)), len(self))
        else:
            mask = np.asarray(where)
            if mask.dtype != np.bool_:
                raise TypeError(f"filter() takes booleans, not {mask.dtype}: use subset(indices)")
        return self.subset(mask)

    # Samples.

    @overload
    def __getitem__(self, index: int | np.integer[Any]) -> dict[str, Any]: ...

    @overload
    def __getitem__(
        self, index: slice | Sequence[int] | NDArray[np.integer[Any]]
    ) -> list[dict[str, Any]]: ...

    def __getitem__(self, index: Any) -> Any:
        if type(index) is not int:
            if isinstance(index, slice):
                return self.__getitems__(range(*index.indices(len(self))))
            if hasattr(index, "__len__") and getattr(index, "ndim", None) != 0:
                return self.__getitems__(index)
            if isinstance(index, bool):
                raise TypeError(f"ds[{index}]: a sample's index is an int")
            index = operator.index(index)
        num_samples = len(self)
        if not -num_samples <= index < num_samples:
            raise IndexError(f"sample {index} of {num_samples}")
        index %= num_samples
        if self._read_sample is not None:
            sample = self._sample(index)
            if sample is not None:
                return Sample(sample)
        rows = self._read(np.array([index], dtype=np.int64))
        return Sample(self._mapped(rows, 0, decode_row(rows, 0, self._fields), 0, 0))

    def __getitems__(self, indices: ArrayLike) -> list[dict[str, Any]]:
        """Samples by index, read together; torch's DataLoader calls this for a batch."""
        ids = checked_ids(indices, len(self), from_end=True)
        return list(self._samples(self._read(ids))) if len(ids) else []

    def __iter__(self) -> Iterator[dict[str, Any]]:
        num_samples = len(self)
        # Objects gain nothing from being read together, and may be large.
        most = 1 if self._traits.holds_objects else _MAX_ROWS
        start, num_rows = 0, min(most, _FIRST_ROWS)
        while start < num_samples:
            stop = min(start + num_rows, num_samples)
            rows = self._read(np.arange(start, stop, dtype=np.int64))
            yield from self._samples(rows)
            row_bytes = max(1, rows.columns.num_bytes // (stop - start))
            start, num_rows = stop, max(1, min(most, 2 * num_rows, _READ_BYTES // row_bytes))

    # Inner parts.

    @property
    def _parts(self) -> tuple[str, ...]:
        """Fields that are not read yet, and may be named."""
        return () if self._transforms.selected is not None else self._traits.parts

    @cached_property
    def _read_sample(self) -> Callable[..., tuple[str, list[Any]] | None] | None:
        """The source's quick way to one sample, if it has one and no function follows."""
        return None if self.is_mapped else getattr(self._source, "read_sample", None)

    def _sample(self, index: int) -> dict[str, Any] | None:
        """One sample by the quick way; None if something is wrong: the other way raises it."""
        transforms = self._transforms
        source_id = index if transforms.indices is None else int(transforms.indices[index])
        assert self._read_sample is not None
        stored = self._read_sample(source_id, transforms.selected)
        if stored is None:
            return None
        key, values = stored
        sample: dict[str, Any] = {"__key__": key}
        for field, value in zip(self._fields, values, strict=True):
            if value is None:
                if field.required:
                    return None
            elif field.decoder is None:
                sample[field.name] = value
            else:
                try:
                    sample[field.name] = field.decoder(value)
                except Exception as exc:  # noqa: BLE001 - decoders are the user's code
                    columns = Columns(np.array([source_id]), [key], {})
                    rows = RawRows(np.array([index]), columns, self._url_in_source)
                    rows.blame(0, field.decoder, exc, field=field.name)
        return sample

    def _samples(self, rows: RawRows) -> Iterator[dict[str, Any]]:
        """Finish samples one by one, as epoch 0 of seed 0 has them."""
        samples = decode_rows(rows, self._fields)
        if not self.is_mapped:
            return samples
        return (self._mapped(rows, row, sample, 0, 0) for row, sample in enumerate(samples))
