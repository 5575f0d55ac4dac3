"""Concatenated datasets, as one dataset.

The sources are concatenated; what is done to the samples (fields, decoders, functions) must
be the same for all, and stays the dataset's.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterable, Sequence
from dataclasses import replace
from functools import cached_property
from itertools import pairwise
from typing import Literal

import numpy as np
from numpy.typing import NDArray

from shardwise.base.arguments import suggest_names
from shardwise.base.columns import Columns, merge_columns
from shardwise.base.errors import DataError
from shardwise.dataset import Dataset
from shardwise.dataset.samples import rows_by_part
from shardwise.sources.manifest import Manifest
from shardwise.sources.protocol import (
    ReadsEpochs,
    Source,
    SourceTraits,
    common_costs,
    costs_of,
    joined_ranges,
    own_names_of,
    ranges_of,
    read_rows,
    traits_of,
    value_fields_of,
)
from shardwise.sources.samples import joined_removed
from shardwise.storage import PoolRanges


@suggest_names
def concat(datasets: Sequence[Dataset]) -> Dataset:
    """Concatenate datasets: the samples of the first, then those of the second, and so on.

    They have the same fields, decoders and transforms, of any formats; one may come twice.

    Raises:
        ValueError: no dataset is given, or two of them differ; the message has the difference.
        TypeError: one is not a dataset.

    Examples:
        >>> import shardwise as sw
        >>> ds = sw.concat([sw.wrap([1, 2]), sw.wrap([3])])
        >>> len(ds), ds[-1]["value"]
        (3, 3)
    """
    parts = list(datasets)
    if not parts:
        raise ValueError("concat([]): give one dataset or more")
    for number, part in enumerate(parts):
        if not isinstance(part, Dataset):
            raise TypeError(f"dataset {number} of concat() is {part!r:.80}: wrap it with sw.wrap")
        if part.sampler is not None:
            raise ValueError(
                f"dataset {number} of concat() brings an order of its own, which a part could not "
                "keep: concatenate what it is made of, or mix() it with the others"
            )
    first = parts[0]
    for number, part in enumerate(parts[1:], 1):
        difference = _difference(first, part)
        if difference is not None:
            raise ValueError(f"concat(): datasets 0 and {number} differ: {difference}")
    required = first.transforms.required.union(*(part.transforms.required for part in parts))
    source = ConcatSource([part.source for part in parts], first.fields)
    indices = [part.transforms.indices for part in parts]
    whole = None
    if any(ids is not None for ids in indices):
        starts = [0, *source.ends.tolist()]
        whole = np.concatenate([
            np.arange(start, stop) if ids is None else start + ids
            for ids, (start, stop) in zip(indices, pairwise(starts), strict=True)
        ])  # fmt: skip
    transforms = replace(first.transforms, required=required, indices=whole)
    return Dataset(source, _transforms=transforms)


def _difference(one: Dataset, other: Dataset) -> str | None:
    """The difference that keeps two datasets from being concatenated; None if they match."""
    odd = sorted(set(one.fields) ^ set(other.fields))
    if odd:
        names = ", ".join(map(repr, odd))
        return f"one of them alone has {names}; select() the fields that both have"
    for name in one.fields:
        forms = [_form(dataset, name) for dataset in (one, other)]
        if len(set(forms)) > 1:
            return f"{name!r} is {forms[0]} in one and {forms[1]} in the other"
        decoders = [dataset.transforms.decoders.get(name) for dataset in (one, other)]
        if decoders[0] != decoders[1]:
            return (
                f"{name!r} is decoded by {decoders[0]!r} and by {decoders[1]!r}; call decode() on "
                "the concatenation"
            )
    if [t.fn for t in one.transforms.maps] != [t.fn for t in other.transforms.maps]:
        return "their map() functions are not the same; call map() on the concatenation"
    return None


def _form(dataset: Dataset, name: str) -> str:
    source = dataset.source
    layout = traits_of(source).layouts.get(name)
    if layout is not None:
        return f"{layout[1]} {list(layout[0])}"
    return "values" if name in value_fields_of(source) else "bytes"


class ConcatSource(ReadsEpochs):
    """Concatenated sources, with the fields that are bytes, or values, in all of them."""

    def __init__(self, sources: Sequence[Source], fields: tuple[str, ...]) -> None:
        self.sources = tuple(sources)
        self.fields = fields
        self.own_names = {name for source in sources for name in own_names_of(source)}

    def __repr__(self) -> str:
        return f"concat({', '.join(map(repr, self.sources))})"

    @property
    def default_shuffle(self) -> Literal["full", "window"]:
        """The default shuffle: in windows if that suits one of the sources."""
        kinds = {source.default_shuffle for source in self.sources}
        return "window" if "window" in kinds else "full"

    @cached_property
    def traits(self) -> SourceTraits:
        """The layouts on which all sources agree, and the largest window."""
        every = [traits_of(source) for source in self.sources]
        shapes = [traits.window_shape for traits in every if traits.window_shape is not None]
        return replace(
            common_costs(every),
            value_fields=set(value_fields_of(self.sources[0])).intersection(self.fields),
            layouts={
                name: layout
                for name, layout in every[0].layouts.items()
                if name in self.fields and all(t.layouts.get(name) == layout for t in every)
            },
            padding=every[0].padding,
            window_shape=max(shapes, key=lambda shape: shape.window, default=None),
        )

    @cached_property
    def manifest(self) -> Manifest:
        manifests = [source.manifest for source in self.sources]
        manifest = Manifest.joined("concat", manifests)
        parts = "".join(f"{m.fingerprint}\n" for m in manifests)
        digest = hashlib.sha256(f"shardwise concat 1\n{parts}".encode())
        manifest.fingerprint = digest.hexdigest()[:16]
        return manifest

    @cached_property
    def ends(self) -> NDArray[np.int64]:
        """int64 `[sources]`, the id after each source's last sample."""
        sizes = [source.manifest.num_samples for source in self.sources]
        return np.cumsum(sizes, dtype=np.int64)

    def owner_of(self, sample_id: int, *_: object) -> tuple[Source, int]:
        number = int(np.searchsorted(self.ends, sample_id, side="right"))
        return self.sources[number], sample_id - int(self.ends[number - 1] if number else 0)

    @property
    def removed(self) -> NDArray[np.int64]:
        return joined_removed(self.sources, self.ends)

    def costs(self, hidden: int) -> NDArray[np.float64]:
        return np.concatenate([costs_of(source, hidden) for source in self.sources])

    def ranges(
        self, ids: NDArray[np.int64], fields: tuple[str, ...] | None = None, **epoch: int
    ) -> Iterable[PoolRanges] | None:
        names = self.fields if fields is None else fields
        return joined_ranges(
            ranges_of(self.sources[number], ids[rows] - start, names, **epoch)
            for number, rows, start in rows_by_part(ids, self.ends)
        )

    def read_epoch(
        self,
        ids: NDArray[np.int64],
        fields: tuple[str, ...] | None = None,
        *,
        epoch: int,
        seed: int,
    ) -> Columns:
        """Read samples of each source together, as an epoch has them."""
        names = self.fields if fields is None else fields
        parts: list[tuple[NDArray[np.intp], Columns]] = []
        for number, rows, start in rows_by_part(ids, self.ends):
            source, own = self.sources[number], ids[rows] - start
            try:
                parts.append((rows, read_rows(source, own, names, epoch=epoch, seed=seed)))
            except DataError as error:
                # The source knows its own ids.
                error.index = None if error.index is None else error.index + start
                raise
        if len(parts) == 1:
            columns = parts[0][1]
            return Columns(ids, columns.keys, columns.fields, columns.num_bytes)
        keys = merge_columns([(rows, columns.keys) for rows, columns in parts], len(ids))
        merged = {
            name: merge_columns([(rows, c.fields[name]) for rows, c in parts], len(ids))
            for name in names
        }
        num_bytes = sum(columns.num_bytes for _, columns in parts)
        return Columns(ids, list(keys), merged, num_bytes)
