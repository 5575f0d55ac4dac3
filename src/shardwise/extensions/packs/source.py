"""Packs of documents as samples: a source over a dataset of token arrays."""

from __future__ import annotations

import hashlib
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from typing import Any, Literal

import numpy as np
from numpy.typing import NDArray

from shardwise.base.columns import Columns, Layout, mask_of, values_of
from shardwise.base.errors import DataError
from shardwise.dataset import Dataset
from shardwise.extensions.packs.packing import Packs
from shardwise.sources.manifest import Manifest, Shard
from shardwise.sources.protocol import SourceTraits, traits_of

# The fields that a pack has beside its tokens.
MADE_FIELDS = (
    "position_ids",
    "document_ids",
    "loss_mask",
    "cu_seqlens",
    "max_seqlen",
    "documents",
)


@dataclass(frozen=True)
class PackOptions:
    """The options that define a pack.

    Attributes:
        fields: token fields of the documents, all of a document of one length.
        pad: the value of a field's positions without a token.
        window: neighbours that were packed with each other.
        dtype: of the token fields.
        max_documents: the room for documents in "cu_seqlens" and "documents"; None for as many as
            the fullest pack has.
        along: fields that ride along, a value per document; not in the repr, which is part of
            fingerprints.
    """

    fields: tuple[str, ...]
    pad: Mapping[str, int]
    window: int
    dtype: np.dtype[Any]
    max_documents: int | None = None
    along: tuple[str, ...] = field(default=(), repr=False)


class PackSource:
    """Packs of a dataset's documents; satisfies `shardwise.sources.protocol.Source`.

    A pack is a sample. Its documents are neighbours in storage, and those of all packs of a batch
    are read by one call of the dataset, in storage order. The plan costs 20 bytes a piece, which
    travel with the pickled source.
    """

    def __init__(self, dataset: Dataset, packs: Packs, options: PackOptions) -> None:
        self.dataset, self.sources = dataset, [dataset.source]
        self.packs = packs
        self.options = options
        self.fields = (*options.fields, *MADE_FIELDS, *options.along)

    def __repr__(self) -> str:
        return f"PackSource({self.dataset!r}, {len(self.packs)} packs of {self.packs.length})"

    @property
    def default_shuffle(self) -> Literal["full", "window"]:
        return self.dataset.default_shuffle

    @cached_property
    def traits(self) -> SourceTraits:
        """All fields are arrays of a fixed shape, but those that ride along."""
        inner = traits_of(self.dataset.source)
        return SourceTraits(
            value_fields=self.fields,
            layouts=self._layouts,
            padding={
                **dict.fromkeys(self.options.along, 0),
                **self.options.pad,
                **dict.fromkeys(("position_ids", "loss_mask"), 0),
                **dict.fromkeys(("document_ids", "documents"), -1),
                "cu_seqlens": "edge",
            },
            random_reads_are_requests=inner.random_reads_are_requests,
        )

    @property
    def _most(self) -> int:
        return self.options.max_documents or self.packs.max_documents

    @cached_property
    def _layouts(self) -> dict[str, Layout]:
        length, most = self.packs.length, self._most
        return {
            **dict.fromkeys(self.options.fields, ((length,), self.options.dtype)),
            "position_ids": ((length,), np.dtype(np.int64)),
            "document_ids": ((length,), np.dtype(np.int32)),
            "loss_mask": ((length,), np.dtype(np.bool_)),
            "cu_seqlens": ((most + 2,), np.dtype(np.int32)),
            "max_seqlen": ((), np.dtype(np.int32)),
            "documents": ((most,), np.dtype(np.int64)),
        }

    @cached_property
    def manifest(self) -> Manifest:
        """The documents' shards, by where a pack's window starts; lengths and options count."""
        packs, data = self.packs, self.dataset
        sizes = data.shard_sizes
        inner = data.manifest.shards
        shards = inner if len(inner) == len(sizes) else inner[:1]
        windows = packs.documents[packs.starts[:-1]] // self.options.window * self.options.window
        owners = np.searchsorted(np.cumsum(sizes), windows, side="right")
        counts = np.bincount(owners, minlength=len(shards)).tolist()
        digest = hashlib.sha256(f"{packs.length} {self.options}\n".encode())
        for array in (packs.starts, packs.documents, packs.begins, packs.sizes):
            digest.update(np.ascontiguousarray(array).data)
        kind = f"packs {data.fingerprint} {digest.hexdigest()[:16]}"
        return Manifest(
            kind,
            [Shard(s.url, n, s.num_bytes) for s, n in zip(shards, counts, strict=True)],
        )

    @property
    def removed(self) -> NDArray[np.int64]:
        """The packs that have a part of a removed document."""
        pieces = np.flatnonzero(np.isin(self.packs.documents, self.dataset.removed))
        return np.unique(np.searchsorted(self.packs.starts, pieces, side="right") - 1)

    def costs(self, hidden: int) -> NDArray[np.float64]:
        sizes = self.packs.sizes.astype(np.float64)
        # Exact: every sum is a whole number below 2**53.
        squares = np.add.reduceat(sizes**2, self.packs.starts[:-1]) if len(self.packs) else sizes
        return 6.0 * hidden * self.packs.length + squares

    def read(self, ids: NDArray[np.int64], fields: tuple[str, ...] | None = None) -> Columns:
        names = self.fields if fields is None else fields
        ids = np.asarray(ids, dtype=np.int64)
        starts = self.packs.starts
        counts = starts[ids + 1] - starts[ids]
        rows = np.repeat(np.arange(len(ids)), counts)
        ends = np.cumsum(counts)
        pieces = np.arange(len(rows)) + np.repeat(starts[ids] - (ends - counts), counts)
        sizes = self.packs.sizes[pieces].astype(np.int64)
        totals = np.cumsum(sizes)
        firsts = np.concatenate([[0], totals])[(ends - counts)[rows]]
        piece_of = _Pieces(ids, rows, pieces, np.arange(len(rows)) - (ends - counts)[rows],
                           totals - sizes - firsts, sizes)  # fmt: skip
        columns: dict[str, Any] = self._make_columns(piece_of, names)
        tokens = [name for name in self.options.fields if name in names]
        num_bytes = int(sizes.sum()) * self.options.dtype.itemsize * len(tokens)
        along = [name for name in self.options.along if name in names]
        if tokens or along:
            columns |= self._lay_rows(piece_of, tokens, along)
        return Columns(ids, list(map(str, ids.tolist())), {n: columns[n] for n in names}, num_bytes)

    def _make_columns(self, of: _Pieces, names: Sequence[str]) -> dict[str, NDArray[Any]]:
        """The fields that follow from the plan alone."""
        num_rows, length, most = len(of.ids), self.packs.length, self._most
        made: dict[str, NDArray[Any]] = {}
        # Repeated ends are empty segments; the padding is a separate segment.
        bounds = np.full((num_rows, most + 2), length, np.int32)
        bounds[:, 0] = 0
        bounds[of.rows, of.numbers + 1] = of.places + of.sizes
        made["cu_seqlens"] = bounds
        made["max_seqlen"] = np.diff(bounds, axis=1).max(axis=1, initial=0)
        if "documents" in names:
            documents = np.full((num_rows, most), -1, np.int64)
            documents[of.rows, of.numbers] = self.packs.documents[of.pieces]
            made["documents"] = documents
        if not {"position_ids", "document_ids", "loss_mask"}.isdisjoint(names):
            segments = np.diff(bounds, axis=1).reshape(-1)
            numbers = np.tile(np.arange(most + 1, dtype=np.int32), num_rows)
            segment = np.repeat(numbers, segments).reshape(num_rows, length)
            rows = np.arange(num_rows)[:, None]
            num_documents = np.bincount(of.rows, minlength=num_rows)[:, None]
            is_token = segment < num_documents
            made["loss_mask"] = is_token
            made["document_ids"] = np.where(is_token, segment, np.int32(-1))
            made["position_ids"] = np.arange(length, dtype=np.int64) - bounds[rows, segment]
        return made

    def _lay_rows(self, of: _Pieces, tokens: Sequence[str], along: Sequence[str]) -> dict[str, Any]:
        documents = self.packs.documents[of.pieces]
        unique, inverse = np.unique(documents, return_inverse=True)
        try:
            loaded = narrowed(self.dataset, (*tokens, *along)).load(unique)
        except DataError as error:
            found = np.flatnonzero(documents == error.index)
            error.index = int(of.ids[of.rows[found[0]]]) if len(found) else None
            raise
        begins = self.packs.begins[of.pieces].tolist()
        out: dict[str, Any] = {}
        where = list(zip(inverse.tolist(), of.rows.tolist(), of.places.tolist(), begins,
                         of.sizes.tolist(), strict=True))  # fmt: skip
        wholes = np.zeros(len(unique), np.int64)
        wholes[inverse] = self.packs.wholes[of.pieces]
        for name in tokens:
            column = loaded.get(name)
            values = [None] * len(unique) if column is None else list(values_of(column))
            for i, reason in self._odd(values, name, wholes, loaded):
                row = int(of.rows[np.flatnonzero(inverse == i)[0]])
                raise DataError(
                    reason,
                    url=self.dataset.url_of(int(unique[i])),
                    key=loaded["__key__"][i],
                    field=name,
                    index=int(of.ids[row]),
                )
            shape = (len(of.ids), self.packs.length)
            filled = out[name] = np.full(shape, self.options.pad[name], self.options.dtype)
            for document, row, place, begin, size in where:
                filled[row, place : place + size] = values[document][begin : begin + size]
        for name in along:
            if name not in loaded:
                raise DataError(f"the documents have no field {name!r}, unlike the first one")
            values, lists = values_of(loaded[name]), list[list[Any]]([] for _ in of.ids)
            for document, row, *_ in where:
                lists[row].append(values[document])
            out[name] = lists
        return out

    def _odd(
        self,
        values: list[Any],
        name: str,
        wholes: NDArray[np.int64],
        loaded: Mapping[str, Sequence[Any]],
    ) -> Iterator[tuple[int, str]]:
        """Yield the faults in a field of documents, by row; right values become arrays."""
        dtype = self.options.dtype
        for i, (value, length) in enumerate(zip(values, wholes.tolist(), strict=True)):
            if value is None:
                there = ", ".join(map(repr, loaded))
                yield i, f"the document has no field {name!r}: it has {there}"
                continue
            tokens = values[i] = np.asarray(value)
            if tokens.ndim != 1 or tokens.dtype.kind not in "iub":
                form = f"{tokens.dtype} of shape {list(tokens.shape)}"
                yield i, f"tokens are one row of whole numbers, and {name!r} is {form}"
            elif len(tokens) != length:
                now = f"the document has {len(tokens)} tokens in {name!r}"
                yield i, f"{now}, and was packed as one of {length}: make the lengths anew"
            elif not np.can_cast(tokens.dtype, dtype) and _exceeds(tokens, dtype):
                yield i, f"tokens from {tokens.min()} to {tokens.max()} do not fit into {dtype}"


def _exceeds(tokens: NDArray[Any], dtype: np.dtype[Any]) -> bool:
    bounds = np.iinfo(dtype)
    return bool(len(tokens)) and not bounds.min <= tokens.min() <= tokens.max() <= bounds.max


def narrowed(dataset: Dataset, names: Sequence[str]) -> Dataset:
    """Read these fields alone, which samples may lack as before; a `map()` reads what it needs."""
    known = [name for name in dataset.fields if not {name, mask_of(name)}.isdisjoint(names)]
    if dataset.is_mapped or len(known) == len(dataset.fields):
        return dataset
    if type(dataset) is not Dataset:
        return dataset.select(*known)
    transforms = dataset.transforms
    selected = replace(transforms.select(known, known), required=transforms.required)
    return Dataset(dataset.source, _transforms=selected)


@dataclass(frozen=True, eq=False)
class _Pieces:
    """The pieces of some packs, one after the other.

    Attributes:
        ids: int64 `[rows]`, the packs.
        rows: int64 `[pieces]`, the row that a piece is in.
        pieces: int64 `[pieces]`, its number in the plan.
        numbers: int64 `[pieces]`, its number in its pack.
        places: int64 `[pieces]`, its first token's place in the pack.
        sizes: int64 `[pieces]`, its tokens.
    """

    ids: NDArray[np.int64]
    rows: NDArray[np.int64]
    pieces: NDArray[np.int64]
    numbers: NDArray[np.int64]
    places: NDArray[np.int64]
    sizes: NDArray[np.int64]
