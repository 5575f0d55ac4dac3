"""`sw.pack`: a dataset of documents as a dataset of packs."""

from __future__ import annotations

import hashlib
from collections.abc import Mapping, Sequence
from contextlib import nullcontext
from dataclasses import replace
from functools import partial
from typing import Any, SupportsIndex

import numpy as np
from numpy.typing import ArrayLike, DTypeLike, NDArray

from shardwise.base.arguments import no_such_field, suggest_names
from shardwise.base.errors import DataError
from shardwise.base.progress_bar import progress as progress_bar
from shardwise.dataset import Dataset
from shardwise.dataset.column import Progress, kept_place
from shardwise.dataset.field import RESERVED
from shardwise.dataset.kept_arrays import kept_or_made
from shardwise.extensions.packs.packing import LongDocuments, Packs, checked_lengths, pack_documents
from shardwise.extensions.packs.source import MADE_FIELDS, PackOptions, PackSource, narrowed
from shardwise.plan.arguments import whole
from shardwise.plan.lengths import as_lengths

# The default token field: the first of this list that the documents have.
_TOKEN_FIELDS = ("tokens", "input_ids")
# 16.8 M tokens, longer than models read: a pack of them takes 300 MB with its positions and masks.
_MAX_LENGTH = 1 << 24
# More documents than a dataset has.
_MAX_WINDOW = 1 << 40


@suggest_names
def pack(
    dataset: Dataset,
    *,
    length: SupportsIndex,
    lengths: str | ArrayLike | None = None,
    fields: str | Sequence[str] | None = None,
    pad: int | Mapping[str, int] = 0,
    window: SupportsIndex = 4096,
    long: LongDocuments = "split",
    limits: Mapping[str, float | tuple[float, ArrayLike]] | None = None,
    max_documents: SupportsIndex | None = None,
    dtype: DTypeLike = np.int64,
    progress: Progress = None,
) -> Dataset:
    """Documents put together into packs of `length` tokens; a pack is a sample.

    Best fit in windows of neighbours: at a window of 4,096 more than 99.5 % of the slots hold a
    token. Packs are made once, and kept as columns are (`Dataset.column`); every epoch shuffles the
    packs, and a resume costs nothing. Each document is in one pack, or in several if it is longer
    than a pack. Documents without a token are in none. A pack has these fields:

    | field | form | content |
    |---|---|---|
    | the token fields | dtype `[length]` | the documents' tokens, then `pad` |
    | "position_ids" | int64 `[length]` | places in the document's piece, from 0 |
    | "document_ids" | int32 `[length]` | 0, 1, ... for the pack's documents; -1 for padding |
    | "loss_mask" | bool `[length]` | False for padding |
    | "cu_seqlens" | int32 `[most + 2]` | 0, the documents' ends, and `length` up to the end |
    | "max_seqlen" | int32 | the longest piece, or the padding if that is longer |
    | "documents" | int64 `[most]` | indices in `dataset`, then -1 |

    `most` is `max_documents`, or what the fullest pack has. docs/packing.md shows what to give to
    attention kernels and trainers. `select` keeps some of the fields; others are not made.

    A `map` of the dataset, such as a tokenizer, runs for every pack that is read. Its randomness is
    that of epoch 0: a document has the same length in every epoch.

    Args:
        dataset: the documents; token fields are rows of whole numbers.
        length: tokens of a pack.
        lengths: tokens of each document: an array, or the name of a column. None counts them, which
            reads every document once.
        fields: the token fields, of one length in a document; the first one is counted. None for
            "tokens", "input_ids", or the only field.
        pad: the value after the last token: one number, or one for each field
            (`{"input_ids": 0, "labels": -100}`).
        window: neighbours in storage order that are packed with each other.
        long: what becomes of documents with more than `length` tokens: "split" cuts them, "drop"
            leaves them out, "error" refuses them. `ds.source.packs.num_dropped` counts.
        limits: what a pack holds at most, beside tokens: `{"images": 30}` with a field that is a
            number or a list of things to count, or `{"pixels": (4e6, column)}`. A document that
            needs some is never cut. All other fields ride along then: lists with one value per
            entry of "documents"; numbers, padded with 0, are arrays in a batch.
        max_documents: the room for documents in "cu_seqlens" and "documents". None for as many as
            the fullest pack has. Packs that are mixed stack in a batch if they have the same.
        dtype: of the token fields: integers.
        progress: as for `Dataset.column`.

    Raises:
        ValueError: a length is negative, there are not as many as documents, or one fits in no
            pack by `long`; the field does not exist; a pack has more than `max_documents`.
        TypeError: lengths or dtype are not whole numbers.
        DataError: a document is damaged or not a row of whole numbers. Also when packs are read: a
            document has another length than the one that was packed.

    Examples:
        >>> import numpy as np
        >>> import shardwise as sw
        >>> ds = sw.wrap([{"tokens": np.arange(n)} for n in (3, 2, 4)])
        >>> packs = sw.pack(ds, length=6)
        >>> packs[1]["tokens"], packs[1]["cu_seqlens"]
        (array([0, 1, 0, 1, 2, 3]), array([0, 2, 6, 6], dtype=int32))
    """
    if not isinstance(dataset, Dataset):
        raise TypeError(f"pack({dataset!r:.60}): wrap it with sw.wrap")
    size = whole("length", length, least=1, most=_MAX_LENGTH)
    width = whole("window", window, least=1, most=_MAX_WINDOW)
    if limits is not None and not isinstance(limits, Mapping):
        raise TypeError(f"limits={limits!r:.60}: give numbers by name, such as {{'images': 30}}")
    names, kind = _fields(dataset, fields), _dtype(dtype)
    along = () if limits is None else _along(dataset, names)
    clash = [name for name in (*names, *along) if name in MADE_FIELDS]
    if clash:
        raise ValueError(f"pack() makes {clash[0]!r} itself: rename that field with a map()")
    options = PackOptions(names, _pad(pad, names, kind), width, kind, along=along)
    counts = _lengths(dataset, lengths, names[0], progress)
    digest = hashlib.sha256(np.ascontiguousarray(counts, "<i8").data).hexdigest()
    origin = f"packs 2 {dataset.fingerprint} {size} {width} {long} {digest}"
    needs = {name: _limit(dataset, name, each, progress) for name, each in (limits or {}).items()}
    for name, (limit, column) in needs.items():
        digest = hashlib.sha256(np.ascontiguousarray(column, "<f8").data).hexdigest()
        origin += f" {name!r} {limit} {digest}"

    def make() -> Packs:
        bar = progress_bar("packing", len(counts), unit="documents")
        with bar if progress in (None, True) else nullcontext() as report:
            return pack_documents(
                counts, length=size, window=width, long=long, limits=needs, report=report
            )

    packs = kept_or_made(kept_place(dataset, "packs", origin), Packs, make)
    if max_documents is not None:
        room = whole("max_documents", max_documents, least=1, most=size)
        if packs.max_documents > room:
            raise ValueError(
                f"max_documents={room}, and the fullest pack has {packs.max_documents} documents: "
                f"use {packs.max_documents} or more, or a smaller length"
            )
        options = replace(options, max_documents=room)
    return Dataset(PackSource(narrowed(dataset, (*names, *along)), packs, options))


def _fields(dataset: Dataset, fields: str | Sequence[str] | None) -> tuple[str, ...]:
    names = (fields,) if isinstance(fields, str) else fields
    if names is not None and not isinstance(names, Sequence):
        raise TypeError(f"fields={fields!r:.60}: the names of one token field or more")
    known = dataset.fields
    if names is None:
        named = [name for name in _TOKEN_FIELDS if name in known]
        if not named and not dataset.is_mapped and len(known) > 1:
            raise ValueError(
                f"pack(): which field has the tokens? Give fields=..., one of "
                f"{', '.join(map(repr, known))}"
            )
        # A map() makes a field called "tokens", unless the call names another.
        names = named[:1] or (("tokens",) if dataset.is_mapped or not known else known[:1])
    if not names or not all(isinstance(name, str) for name in names):
        raise TypeError(f"fields={fields!r}: the names of one token field or more")
    if not dataset.is_mapped and len(dataset):
        for name in names:
            if name not in known:
                raise ValueError(f"pack(): {no_such_field(name, known)}")
    return tuple(dict.fromkeys(names))


def _along(dataset: Dataset, tokens: Sequence[str]) -> tuple[str, ...]:
    """The fields beside those of tokens; of a `map()`, those of the first sample."""
    mapped = dataset[0] if dataset.is_mapped and len(dataset) else ()
    names = mapped or (*dataset.fields, *dataset.mask_fields)
    return tuple(name for name in names if name not in tokens and name not in RESERVED)


def _limit(
    dataset: Dataset, name: str, given: Any, progress: Progress
) -> tuple[float, NDArray[np.float64]]:
    """A limit, and what each document needs of it."""
    limit, column = given if isinstance(given, tuple) and len(given) == 2 else (given, None)
    is_number = isinstance(limit, int | float | np.number) and not isinstance(limit, bool)
    if not is_number or not 0 < limit < 1e300:
        raise ValueError(f"limits[{name!r}]={given!r:.60}: a number above 0, or (number, column)")
    if column is None and (dataset.is_mapped or name in dataset.fields or not len(dataset)):
        read = narrowed(dataset, (name,))
        column = read.column(f"{name} amount", partial(_amount, name), progress=progress)
    elif column is None:
        column = dataset.column(name, progress=progress)
    needs = as_lengths(column, name=f"limits[{name!r}]")
    if len(needs) != len(dataset):
        raise ValueError(f"limits[{name!r}]: {len(needs)} numbers for {len(dataset)} documents")
    return float(limit), needs


def _dtype(dtype: DTypeLike) -> np.dtype[Any]:
    try:
        made = np.dtype(dtype)
    except (TypeError, ValueError):
        made = np.dtype(object)
    if made.kind not in "iu":
        raise TypeError(f"dtype={dtype!r:.60}: tokens are integers, such as 'int64'")
    return made


def _pad(
    pad: int | Mapping[str, int], fields: Sequence[str], dtype: np.dtype[Any]
) -> dict[str, int]:
    if isinstance(pad, Mapping):
        odd = [name for name in pad if name not in fields]
        if odd:
            raise ValueError(f"pad names {odd[0]!r}, and the token fields are {fields}")
        pads = {name: whole(f"pad[{name!r}]", pad.get(name, 0)) for name in fields}
    else:
        pads = dict.fromkeys(fields, whole("pad", pad))
    bounds = np.iinfo(dtype)
    for value in pads.values():
        if not bounds.min <= value <= bounds.max:
            raise ValueError(f"pad={value} does not fit into {dtype}")
    return pads


def _lengths(
    dataset: Dataset, lengths: str | ArrayLike | None, field: str, progress: Progress
) -> NDArray[np.int64]:
    if isinstance(lengths, str):
        column: Any = dataset.column(lengths, progress=progress)
        name = f"lengths={lengths!r}"
    elif lengths is None:
        read = narrowed(dataset, (field,))
        column = read.column(f"{field} count", _Count(field), progress=progress)
        name = f"the tokens in {field!r}"
    else:
        column, name = lengths, "lengths"
    try:
        return checked_lengths(column, len(dataset))
    except (TypeError, ValueError) as error:
        raise type(error)(f"{name}: {error}") from None


class _Count:
    __module__ = "shardwise.dataset.packing"  # as it was: kept counts are found by it

    def __init__(self, field: str) -> None:
        self.field = field

    def __repr__(self) -> str:
        return f"tokens of {self.field!r}"

    def __call__(self, sample: Mapping[str, Any]) -> int:
        if self.field not in sample:
            there = ", ".join(map(repr, sample))
            raise DataError(
                f"the document has no field {self.field!r}: it has {there}; name the tokens by "
                "fields=, such as ('input_ids',)"
            )
        tokens = np.asarray(sample[self.field])
        if tokens.ndim != 1 or (tokens.dtype.kind not in "iub" and tokens.size):
            form = f"{tokens.dtype} of shape {list(tokens.shape)}"
            raise DataError(
                f"tokens are one row of whole numbers, and this is {form}; ds.map(tokenize) makes "
                "some of texts"
            )
        return len(tokens)


def _amount(field: str, sample: Mapping[str, Any]) -> Any:
    """A number of a sample, or how many things its list has; 0 where it lacks the field."""
    value: Any = sample.get(field)
    is_list = isinstance(value, list | tuple) or np.ndim(value) > 0
    return 0 if value is None else len(value) if is_list else value
