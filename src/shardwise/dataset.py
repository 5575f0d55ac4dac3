"""Dataset: a source, and what is done to its samples.

Map-style and immutable: every method returns a new dataset, and sample i is the same sample for
every reader. A dataset owns no position, no file and no process: it says what sample i is, and the
loader says who gets it when. Imports sources, codecs and the plan's mixer; never torch.
"""

from __future__ import annotations

import operator
import time
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from functools import cached_property
from typing import Any, Literal, Protocol

import numpy as np
from numpy.typing import ArrayLike, NDArray

from shardwise.errors import DataError
from shardwise.fields import (
    Block,
    Field,
    Layout,
    decode_columns,
    decode_row,
    decode_rows,
    in_place,
    is_plain_function,
)
from shardwise.plan import WindowShape
from shardwise.recipe import Recipe
from shardwise.shown import shown
from shardwise.sources.manifest import Manifest
from shardwise.sources.protocol import Source
from shardwise.subset import (
    checked_ids,
    subset_fingerprint,
    subset_indices,
    subset_shard_sizes,
)
from shardwise.transform import columns_of

__all__ = ["Dataset"]

# Iteration reads blocks: few rows at first, then as many as hold about this many bytes.
_FIRST_BLOCK_ROWS, _MAX_BLOCK_ROWS = 16, 1024
_BLOCK_BYTES = 16 << 20


class _StageStats(Protocol):
    """Who counts the seconds of `Dataset.load`."""

    def add(self, stage: str, seconds: float, num_bytes: int = 0) -> None:
        """Count what "read", "decode" or "transform" took, and the bytes read."""
        ...


class Dataset:
    """Samples by index, decoded and transformed.

    A sample is a dict: "__key__" (str) and one entry a field, bytes until decoded. `ds[i]` is one
    sample (i may be negative), `ds[[i, j]]` and `ds[2:5]` are lists of samples, iteration goes in
    storage order. Made by `sw.tar`, `sw.wrap` and the like; pickles without open files.

    A field that a sample lacks is not in its dict. If `select` or `decode` names that field, the
    sample is a `DataError` instead.

    Args:
        source: where the samples lie; satisfies `shardwise.sources.protocol.Source`.

    Example:
        >>> import shardwise as sw
        >>> ds = sw.wrap([("a", 1), ("b", 2)]).decode(**{"0": str.upper})
        >>> len(ds), ds[-1]
        (2, {'__key__': '1', '0': 'B', '1': 2})
    """

    def __init__(self, source: Source, *, _recipe: Recipe | None = None) -> None:
        self._source = source
        self._recipe = _recipe or Recipe()

    def __getstate__(self) -> dict[str, Any]:
        """Pickle what it is; what was worked out from it is worked out again."""
        return {"_source": self._source, "_recipe": self._recipe}

    def __repr__(self) -> str:
        return f"Dataset({'.'.join([repr(self._source), *self._recipe.steps()])})"

    # What it is.

    @property
    def source(self) -> Source:
        """Where the samples lie."""
        return self._source

    @property
    def manifest(self) -> Manifest:
        """The source's shards, whatever subset of their samples this is."""
        return self._source.manifest

    @property
    def fields(self) -> tuple[str, ...]:
        """The fields that are read: the selected ones, else all that any sample has."""
        selected = self._recipe.selected
        return self._source.fields if selected is None else selected

    @property
    def default_shuffle(self) -> Literal["full", "window"]:
        """What `shuffle=True` means here: "full" or "window"."""
        return self._source.default_shuffle

    @cached_property
    def fingerprint(self) -> str:
        """Which samples these are, in which order: 16 hex digits of the shards and the subset.

        Decoders and transforms do not count: a state may be resumed with other ones.
        """
        indices = self._recipe.indices
        whole = self.manifest.fingerprint
        return whole if indices is None else subset_fingerprint(whole, indices)

    @cached_property
    def shard_sizes(self) -> NDArray[np.int64]:
        """Samples a shard: int64 `[shards]`, in the source's order; a subset's shards may be empty.

        A subset whose indices do not ascend jumps between shards: it counts as one shard.
        """
        indices = self._recipe.indices
        sizes = self.manifest.sizes
        return sizes if indices is None else subset_shard_sizes(sizes, indices)

    @property
    def window_shape(self) -> WindowShape | None:
        """How a window shuffle goes through the shards; None for the default way."""
        shape: WindowShape | None = getattr(self._source, "window_shape", None)
        return shape

    def url_of(self, index: int) -> str:
        """The url of the shard that holds sample `index`."""
        indices = self._recipe.indices
        return self._url_in_source(index if indices is None else int(indices[index]))

    def describe(self, index: int) -> str:
        """Where sample `index` lies, for messages; reads no sample."""
        return f"sample {index} of {shown(self.url_of(index))}"

    # Other datasets made from it.

    def select(self, *fields: str) -> Dataset:
        """Keep these fields, in this order; others are not read. With no names, only keys are left.

        Raises:
            ValueError: a field is not there, or a `map()` comes before.
        """
        known = (*self.fields, *self._parts)
        return Dataset(self._source, _recipe=self._recipe.select(fields, known))

    def decode(self, /, **decoders: Callable[[Any], Any] | Any) -> Dataset:
        """Decode fields: `field=decoder`, where a decoder is a codec or any callable of bytes.

        `int`, `float` and `str` read text. A later decoder of a field takes the place of an
        earlier one; fields whose name is no Python name are given as `**{"seg.png": ...}`.
        Without arguments every field that has a default decoder (by its extension; never pickle)
        and no other one yet is decoded with it.

        Raises:
            ValueError: a field is not there or not selected, or a `map()` comes before.
            TypeError: a decoder can't be called.
        """
        values = self._values
        source, recipe, fields = self._source, self._recipe, self.fields
        if not decoders:
            return Dataset(source, _recipe=recipe.decode_by_default(fields, values=values))
        parts = [name for name in decoders if name in self._parts]
        if parts:
            recipe = recipe.with_parts(parts, fields)
            fields = recipe.selected or ()
        recipe = recipe.decode(decoders, fields, values=values)
        undecoded = getattr(source, "undecoded", None)
        if undecoded is not None:
            of_bytes = [name for name in decoders if not is_plain_function(recipe.decoders[name])]
            source = undecoded(of_bytes)
        return Dataset(source, _recipe=recipe)

    def map(self, fn: Callable[..., dict[str, Any]]) -> Dataset:
        """Transform samples: fn(sample) -> sample, or fn(sample, rng) if it has a parameter `rng`.

        `rng` is a numpy Generator keyed by (seed, epoch, sample, place of this map): the same for
        a sample on every cluster and in every subset. `ds[i]` and iteration use seed 0, epoch 0.
        All samples must come back with the same fields; "__key__" is put back if it is dropped.

        Raises:
            TypeError: fn can't be called so.
        """
        return Dataset(self._source, _recipe=self._recipe.map(fn))

    def subset(self, indices: ArrayLike) -> Dataset:
        """Take samples by index (an int array) or by a boolean mask.

        The given order becomes the storage order, and repeats are samples of their own. Costs 8
        bytes a sample, which travel with the pickled dataset. Ascending indices read fastest.

        Raises:
            IndexError: an index is negative or past the end.
            ValueError: a mask of another length, or more dimensions than one.
            TypeError: neither integers nor booleans.
        """
        taken = subset_indices(indices, len(self), self._recipe.indices)
        return Dataset(self._source, _recipe=self._recipe.take(taken))

    # Samples.

    def __len__(self) -> int:
        indices = self._recipe.indices
        return self._source.manifest.num_samples if indices is None else len(indices)

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
                return sample
        ids = np.array([index], dtype=np.int64)
        block = self._read(ids)
        return self._transformed(block, 0, decode_row(block, 0, self._fields), 0, 0)

    def __getitems__(self, indices: ArrayLike) -> list[dict[str, Any]]:
        """Samples by index, read together; torch's DataLoader calls this for a batch."""
        ids = checked_ids(indices, len(self), from_end=True)
        return list(self._samples(self._read(ids))) if len(ids) else []

    def __iter__(self) -> Iterator[dict[str, Any]]:
        num_samples = len(self)
        # Objects gain nothing from being read together, and may be large.
        most = 1 if self._holds_objects else _MAX_BLOCK_ROWS
        at, rows = 0, min(most, _FIRST_BLOCK_ROWS)
        while at < num_samples:
            block = self._read(np.arange(at, min(at + rows, num_samples), dtype=np.int64))
            yield from self._samples(block)
            at += len(block.ids)
            row_bytes = max(1, block.columns.num_bytes // len(block.ids))
            rows = max(1, min(most, 2 * rows, _BLOCK_BYTES // row_bytes))

    # What the engine uses.

    def layout(self) -> dict[str, Layout]:
        """Shape and dtype of the fields that `load` can decode straight into the rows of `out`."""
        if self._recipe.transforms or self._holds_objects:
            return {}
        layouts = {field.name: in_place(field) for field in self._fields}
        return {name: layout for name, layout in layouts.items() if layout is not None}

    @cached_property
    def light_row_bytes(self) -> float | None:
        """Mean bytes of a sample in storage, if reading is all it costs; None where it costs more.

        So it is where every field stays bytes or is decoded by whole columns, without a `map()`.
        """
        if self._recipe.transforms or self._holds_objects:
            return None
        decoders = self._decoders
        if not all(hasattr(decoder, "decode_column") for decoder in decoders):
            return None
        manifest = self.manifest
        num_bytes = sum(shard.num_bytes for shard in manifest.shards)
        # A source may not know: its samples may be of any size.
        return num_bytes / max(1, manifest.num_samples) if num_bytes else None

    @property
    def asks_a_store(self) -> bool:
        """Whether a sample out of order is a request to a store."""
        return getattr(self.source, "asks_a_store", False)

    @property
    def one_thread_will_do(self) -> bool:
        """Whether one thread loads as quickly as several, unless reads have to wait.

        So it is where a sample costs nothing but Python's part of reading it, which no two threads
        do at a time, and where storage counts the reads that wait.
        """
        counts_waits = getattr(self.source, "counts_waits", False)
        return counts_waits and self.light_row_bytes is not None

    @property
    def runs_python(self) -> bool:
        """Whether functions of the user's run for each sample: they hold the GIL, as a rule.

        They are a `map()`, and decoders that are plain functions. What a source of Python objects
        does is not known, and does not count.
        """
        decoders = self._decoders
        return not self._holds_objects and (
            bool(self._recipe.transforms) or any(map(is_plain_function, decoders))
        )

    def load(
        self,
        ids: NDArray[np.int64],
        *,
        epoch: int = 0,
        seed: int = 0,
        out: Mapping[str, NDArray[Any]] | None = None,
        stats: _StageStats | None = None,
    ) -> dict[str, Sequence[Any]]:
        """Read, decode and transform samples: a column a field. Several threads may call it.

        Args:
            ids: int64 `[rows]`, each in [0, len(self)), in any order.
            epoch: with `seed` and the sample, keys the randomness of transforms.
            seed: see `epoch`.
            out: arrays `[rows, *shape]` of fields in `layout()`: filled, and returned as columns.
            stats: counts the seconds of "read", "decode" and "transform", and the bytes read.

        Returns:
            "__key__": list of str, and for each field an array `[rows, ...]` or a list of values
            (None where a sample lacks the field). With no rows after a `map()`, "__key__" alone:
            what the fields would be is not known.

        Raises:
            DataError: a sample is damaged, lacks a field that was asked for, or a decoder or
                transform raised; url, key, field and index say where.
            StorageError: bytes could not be read.
        """
        started = time.perf_counter()
        block = self._read(checked_ids(ids, len(self)))
        read = time.perf_counter()
        samples: list[dict[str, Any]] = []
        columns: dict[str, Any] = {}
        transforms = self._recipe.transforms
        if transforms:
            samples = list(decode_rows(block, self._fields))
        else:
            columns = decode_columns(block, self._fields, out or {})
        decoded = time.perf_counter()
        if transforms:
            for row, sample in enumerate(samples):
                samples[row] = self._transformed(block, row, sample, epoch, seed)
            columns = columns_of(block, samples)
        if stats is not None:
            stats.add("read", read - started, block.columns.num_bytes)
            stats.add("decode", decoded - read)
            if transforms:
                stats.add("transform", time.perf_counter() - decoded)
        return columns

    # Inner parts.

    @property
    def _holds_objects(self) -> bool:
        """Whether the source's samples are objects, which are had one by one."""
        return bool(getattr(self._source, "holds_objects", False))

    @property
    def _values(self) -> Collection[str]:
        """The fields whose columns are values, not bytes."""
        if self._holds_objects:
            return self._source.fields
        values: Collection[str] = getattr(self._source, "value_fields", ())
        return values

    @property
    def _parts(self) -> tuple[str, ...]:
        """Fields that are not read yet, and may be named."""
        return () if self._recipe.selected is not None else getattr(self._source, "parts", ())

    @cached_property
    def _fields(self) -> tuple[Field, ...]:
        return self._recipe.fields(self.fields, getattr(self._source, "layouts", {}))

    @cached_property
    def _read_sample(self) -> Callable[..., tuple[str, list[Any]] | None] | None:
        """The source's quick way to one sample, if it has one and no transform follows."""
        return None if self._recipe.transforms else getattr(self._source, "read_sample", None)

    def _sample(self, index: int) -> dict[str, Any] | None:
        """One sample by the quick way; None if something is wrong: the other way says what."""
        recipe = self._recipe
        source_id = index if recipe.indices is None else int(recipe.indices[index])
        assert self._read_sample is not None
        found = self._read_sample(source_id, recipe.selected)
        if found is None:
            return None
        key, values = found
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
                except Exception:  # noqa: BLE001 - the user's code; called again, it is told of
                    return None
        return sample

    @property
    def _decoders(self) -> list[Callable[[Any], Any]]:
        """The decoders that are called: numbers that only change their dtype need none."""
        return [
            field.decoder
            for field in self._fields
            if field.decoder is not None and field.cast is None
        ]

    def _url_in_source(self, source_id: int) -> str:
        manifest = self._source.manifest
        shard, _ = manifest.locate(np.array([source_id], dtype=np.int64))
        return manifest.shards[int(shard[0])].url

    def _read(self, ids: NDArray[np.int64]) -> Block:
        """Read samples by their ids in this dataset."""
        indices = self._recipe.indices
        source_ids = ids if indices is None else indices[ids]
        try:
            columns = self._source.read(source_ids, self._recipe.selected)
        except DataError as error:
            # The source knows its own ids: say which sample of this dataset it is.
            if indices is not None and error.index is not None:
                rows = np.flatnonzero(source_ids == error.index)
                error.index = int(ids[rows[0]]) if len(rows) else None
            raise
        return Block(ids, columns, self._url_in_source)

    def _samples(self, block: Block) -> Iterator[dict[str, Any]]:
        """Finish the samples of a block one by one, as epoch 0 of seed 0 has them."""
        samples = decode_rows(block, self._fields)
        if not self._recipe.transforms:
            return samples
        return (self._transformed(block, row, sample, 0, 0) for row, sample in enumerate(samples))

    def _transformed(
        self, block: Block, row: int, sample: dict[str, Any], epoch: int, seed: int
    ) -> dict[str, Any]:
        for transform in self._recipe.transforms:
            sample = transform(sample, block, row, epoch=epoch, seed=seed)
        return sample
