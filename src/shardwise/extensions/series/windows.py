"""`sw.windows`: the rows of series with the rows around them, a source over a dataset of rows."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from typing import Any
from zlib import crc32

import numpy as np
from numpy.typing import NDArray

from shardwise.base.arguments import no_such_field, suggest_names
from shardwise.base.columns import Column, Columns, mask_of, values_of
from shardwise.base.counters import Stages
from shardwise.dataset import Dataset
from shardwise.dataset.code_digest import held_digest
from shardwise.extensions.series.series import cut_series, find_rate, row_offsets, rows_around
from shardwise.sources.manifest import Manifest
from shardwise.sources.protocol import ReadsEpochs, joined_ranges, traits_of, value_fields_of
from shardwise.storage import PoolRanges


@suggest_names
def windows(
    dataset: Dataset,
    *,
    by: str,
    deltas: Mapping[str, Sequence[float]],
    fps: float | str = "timestamp",
) -> Dataset:
    """Rows of series with the rows around them: a sample per row.

    Fields of `deltas` are stacked along a new first axis. Beyond the ends of a series its first or
    last row is repeated, where "<field>.mask", bool `[T]`, is False. Other fields are the row's.

    Args:
        dataset: the rows, those of a series one after the other, in the order of time.
        by: the field that differs between series.
        deltas: by field the seconds from a sample's row to the rows of its window.
        fps: rows per second, or the field with the seconds of each row, at a constant step. With
            `fps=1` deltas count rows.

    Raises:
        ValueError: a field does not exist, or a delta or a series does not fit the rows.

    Examples:
        >>> import shardwise as sw
        >>> ds = sw.wrap([{"run": n // 3, "x": n} for n in range(6)])
        >>> sw.windows(ds, by="run", deltas={"x": [-1, 0, 1]}, fps=1)[3]["x"]
        array([3, 3, 4])
    """
    if not isinstance(dataset, Dataset) or dataset.sampler is not None:
        raise TypeError(f"windows({dataset!r:.60}): wrap it with sw.wrap, or mix() its windows")
    dataset.transforms.check("windows", [by], dataset.fields)
    bounds = cut_series(dataset.column(by), by, dataset.removed)
    if isinstance(fps, str):
        if fps not in dataset.fields:
            missing = no_such_field(fps, dataset.fields)
            raise ValueError(f"windows(fps={fps!r}): {missing}; or give the rows per second")
        fps = find_rate(bounds, dataset.column(fps), fps)
    if not isinstance(fps, int | float | np.number) or not 1e-9 <= fps <= 1e9:
        raise ValueError(f"windows(fps={fps!r:.60}): rows per second, or the field of their times")
    return Dataset(WindowSource(dataset, bounds, row_offsets(deltas, float(fps))))


class WindowSource(ReadsEpochs):
    """Windows around the rows of a dataset; satisfies `shardwise.sources.protocol.Source`.

    All values of a batch are one read of the dataset; fields that are decoded, or bytes, are one
    for each of the `offsets`, int64 `[T]`. `aliases` are fields with the values of others.
    """

    def __init__(
        self,
        dataset: Dataset,
        bounds: NDArray[np.int64],
        offsets: Mapping[str, NDArray[np.int64]],
        cameras: Mapping[str, Any] | None = None,
        aliases: Mapping[str, str] | None = None,
    ) -> None:
        self.dataset, self.offsets, self.default_shuffle = dataset, offsets, dataset.default_shuffle
        self._bounds, self._cameras, self._aliases = bounds, cameras or {}, aliases or {}
        names = (*dataset.fields, *dataset.mask_fields, *self._cameras)
        self._masks = {mask_of(name): name for name in offsets}
        for mask, name in self._masks.items():
            if name not in names:
                raise ValueError(f"deltas: {no_such_field(name, names)}")
            if mask in names and mask not in dataset.mask_fields:
                raise ValueError(f"deltas: a field is called {mask!r} already: leave it out before")
        self.fields = tuple(dict.fromkeys((*names, *self._aliases, *self._masks)))
        inner, traits = dataset.manifest, traits_of(dataset.source)
        self._values = {*value_fields_of(dataset.source)}.difference(dataset.transforms.decoders)
        self.traits = replace(
            traits, value_fields=self.fields, layouts={}, parts=(), padding={},
            reads_pieces=traits.reads_pieces and not cameras, read_is_one_request=True,
        )  # fmt: skip
        # Bytes are unknown where decoders run below.
        sizes, is_known = dataset.shard_sizes, dataset.cost.row_bytes is not None
        urls, lengths = inner.urls[: len(sizes)], inner.shard_bytes[: len(sizes)] * is_known
        self.manifest = Manifest.of_columns(f"windows {dataset.fingerprint}", urls, sizes, lengths)
        # Kept columns depend on this beside the rows.
        made = [f"{name} {held_digest(each)}" for name, each in dataset.transforms.decoders.items()]
        made += [f"{name} {rows.tolist()}" for name, rows in offsets.items()]
        self.content_key, self.sources = (*made, crc32(bounds.tobytes())), (dataset.source,)

    def __repr__(self) -> str:
        return f"WindowSource({self.dataset!r}, {len(self._bounds) - 1} series)"

    @property
    def removed(self) -> NDArray[np.int64]:
        return self.dataset.removed

    def owner_of(self, row: int, field: str | None = None) -> Any:
        if (camera := self._cameras.get(field or "")) is not None:
            return camera.owner_of(row)
        indices = self.dataset.transforms.indices
        return self.dataset.source, row if indices is None else int(indices[row])

    def read_epoch(
        self, ids: NDArray[np.int64], fields: tuple[str, ...] | None = None, **epoch: Any
    ) -> Columns:
        names = self.fields if fields is None else fields
        columns, stats = dict[str, Any](), Stages()
        for part, group, rows in self._reads(names, ids):
            unique, places = np.unique(
                np.concatenate([r.ravel() for r in rows]), return_inverse=True
            )
            loaded = part.load(unique, stats=stats, **epoch)
            for name, own in zip(group, rows, strict=True):
                at, places = places[: own.size].reshape(own.shape), places[own.size :]
                columns[name] = _pick_rows(loaded.get(name, [None] * len(unique)), at)
        for name in names:
            if name in self._masks:
                inside = rows_around(self._bounds, ids, self.offsets[self._masks[name]])[1]
                # A decoder's mask, as of sw.optional, may have axes of its own.
                own = np.asarray(columns.get(name, inside), np.bool_)
                columns[name] = own & inside.reshape(*inside.shape, *[1] * (own.ndim - inside.ndim))
            elif name in self._aliases:
                columns[name] = columns[self._aliases[name]]
            elif name in self._cameras:
                own = self._rows(name, ids).reshape(len(ids), -1)
                columns[name], num_bytes = self._cameras[name].read(own)
                stats.num_bytes += num_bytes
        keys, num_bytes = columns["__key__"], stats.num_bytes
        return Columns(ids, keys, {name: columns[name] for name in names}, num_bytes)

    def ranges(
        self, ids: NDArray[np.int64], fields: tuple[str, ...] | None = None, **epoch: Any
    ) -> Iterable[PoolRanges] | None:
        names = self.fields if fields is None else fields
        parts = [
            part.ranges(np.unique(np.concatenate([own.ravel() for own in rows])), **epoch)
            for part, _, rows in self._reads(names, ids)
        ]
        parts += [
            self._cameras[name].ranges(self._rows(name, ids).reshape(len(ids), -1))
            for name in names
            if name in self._cameras
        ]
        return joined_ranges(parts)

    def _reads(
        self, names: Sequence[str], ids: NDArray[np.int64]
    ) -> Iterator[tuple[Dataset, tuple[str, ...], list[NDArray[np.int64]]]]:
        data = self.dataset
        for group in self._groups(names):
            owners = [n.removesuffix(".mask") if n in data.mask_fields else n for n in group]
            chosen = data.transforms.select([n for n in owners if n != "__key__"], data.fields)
            chosen = replace(chosen, required=data.transforms.required)
            rows = [self._rows(name, ids) for name in group]
            yield Dataset(data.source, _transforms=chosen), group, rows

    def _rows(self, name: str, ids: NDArray[np.int64]) -> NDArray[np.int64]:
        offsets = self.offsets.get(self._masks.get(name, name))
        return ids if offsets is None else rows_around(self._bounds, ids, offsets)[0]

    def _groups(self, names: Sequence[str]) -> list[tuple[str, ...]]:
        groups: dict[Any, dict[str, None]] = {None: {"__key__": None}}
        for name in names:
            own = self._aliases.get(name, name)
            if own in self.dataset.mask_fields or own not in (*self._cameras, *self._masks):
                offsets = self.offsets.get(self._masks.get(own, own), ())
                key = None if own in self._values else tuple(offsets)
                groups.setdefault(key, {})[own] = None
        return [tuple(group) for group in groups.values()]


def _pick_rows(column: Column, at: NDArray[np.intp]) -> Column:
    """The rows of a column by position: `[rows]`, or `[rows, T]` for windows."""
    if isinstance(column, np.ndarray):
        return column[at]
    values = values_of(column)
    if at.ndim == 1:
        return [values[place] for place in at.tolist()]
    return [_window([values[place] for place in row]) for row in at.tolist()]


def _window(values: list[Any]) -> Any:
    """An array; a list unless the values are numbers of one form; None if a row lacks the field."""
    if any(value is None for value in values):
        return None
    try:
        arrays = [np.asarray(value) for value in values]
    except ValueError:  # a ragged list
        return values
    forms = {(array.shape, array.dtype) for array in arrays}
    return np.stack(arrays) if len(forms) == 1 and arrays[0].dtype.kind in "biuf" else values
