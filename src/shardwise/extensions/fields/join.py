"""`sw.join`: the fields of one dataset beside those of another one."""

from __future__ import annotations

import logging
from dataclasses import dataclass, replace
from typing import Any, Literal

import numpy as np
from numpy.typing import NDArray

from shardwise.base.arguments import check_choice, suggest_names
from shardwise.base.errors import DataError
from shardwise.codecs import optional
from shardwise.dataset import Dataset
from shardwise.dataset.column import column_reader, kept_place
from shardwise.dataset.kept_arrays import kept_or_made
from shardwise.extensions.fields.sources import JoinSource
from shardwise.sources.samples import removed_of

_Ids = NDArray[np.int64]
_logger = logging.getLogger("shardwise")


@suggest_names
def join(
    left: Dataset,
    right: Dataset,
    *,
    how: Literal["inner", "left", "error"] = "inner",
    by: str | tuple[str, str] = "__key__",
) -> Dataset:
    """The samples of `left` with the fields of the samples of `right` that have the same key.

    Ids, keys and order are the left's, so a state of `left`, or of its join with other captions,
    resumes; with how="inner" only if these have the same keys. Matches are kept as columns are.

    Args:
        left: its samples have distinct keys.
        right: its samples have distinct keys, too. A field of both is an error, unless `select` or
            `decode` names it on the right alone: then it replaces the left's.
        how: "inner" leaves out samples of `left` without a match, and logs their number; "left"
            keeps them, with the right's fields as `sw.optional` has them; "error" is a DataError.
        by: the column that has the keys, texts or whole numbers, such as "id" or "json.id"; a pair
            where the right's has another name.

    Raises:
        DataError: a key is doubled or missing, or with how="error" a sample has no match.
        ValueError: no sample has a match; a field is in both; a dataset is mapped, or a mixture.

    Examples:
        >>> import shardwise as sw
        >>> images = sw.wrap([{"__key__": "a", "image": 1}, {"__key__": "b", "image": 2}])
        >>> sw.join(images, sw.wrap([{"__key__": "b", "txt": "two"}]))[0]
        {'__key__': 'b', 'image': 2, 'txt': 'two'}
    """
    check_choice("how", how, ("inner", "left", "error"))
    names = (by, by) if isinstance(by, str) else by
    if not (isinstance(names, tuple) and len(names) == 2 and {*map(type, names)} == {str}):
        raise TypeError(f"join(by={by!r:.60}): the name of a column, or one of each dataset")
    for dataset, side in ((left, "left"), (right, "right")):
        if not isinstance(dataset, Dataset):
            raise TypeError(f"join(): the {side} one is {dataset!r:.60}: wrap it with sw.wrap")
        if dataset.sampler is not None or dataset.is_mapped:
            raise ValueError(
                f"join(): the {side} dataset is a mixture, or has a map(): join the datasets of a "
                "mixture before, and call map() on the join"
            )
    taken = _fields(left, right, names)
    matches = _find_matches(left, right, names)
    _tell_lost(left, len(right), matches.ids, how)
    key = f"join {right.fingerprint} {names}"
    source = JoinSource((left.source, right.source), matches.rows, taken, key)
    own, other = left.transforms, right.transforms
    added = {name: fn for name, fn in other.decoders.items() if name in taken[1]}
    required = other.required.intersection(taken[1])
    if how == "left":
        added = {name: optional(added.get(name)) for name in taken[1]}
        required = frozenset(added)
    transforms = replace(
        own,
        selected=None,
        required=own.required.intersection(taken[0]) | required,
        decoders={n: f for n, f in own.decoders.items() if n in taken[0]} | added,
        indices=matches.ids if how == "inner" and len(matches.ids) < len(left) else own.indices,
    )
    return Dataset(source, _transforms=transforms)


def _fields(left: Dataset, right: Dataset, by: tuple[str, str]) -> list[tuple[str, ...]]:
    """The fields that are taken of each."""
    # The key is the same in both.
    key = {by[0]} if by[0] == by[1] else set()
    both = {*left.fields}.intersection(right.fields)
    renewed = (both & right.transforms.required) - left.transforms.required - key
    for name in sorted(both - renewed - key):
        raise ValueError(
            f"join(): both datasets have a field {name!r}: leave it out of one by select(); the "
            "right's select() of a field that the left's does not name replaces it"
        )
    kept = both - renewed
    return [tuple(n for n in left.fields if n not in renewed),
            tuple(n for n in right.fields if n not in kept)]  # fmt: skip


def _tell_lost(left: Dataset, num_right: int, matched: NDArray[np.int64], how: str) -> None:
    """Log the number of samples without a match; refuse too many of them."""
    num_lost = len(left) - len(matched)
    lost = f"join(how={how!r}): {num_lost} of {len(left)} samples have no match among {num_right}"
    if len(left) and num_right and not len(matched):
        raise ValueError(f"{lost}: are they of one dataset, and is by= the key of both?")
    if num_lost and how == "error":
        ids = left.transforms.indices
        is_lost = ~np.isin(np.arange(len(left)) if ids is None else ids, matched)
        first = int(np.argmax(is_lost))
        key, hint = left.select()[first]["__key__"], "'inner' leaves them out, 'left' has None"
        raise DataError(f"{lost}; {hint}", url=left.url_of(first), key=key, index=first)
    if num_lost:
        _logger.warning("%s, and are %s", lost, "kept" if how == "left" else "left out")


@dataclass(frozen=True, eq=False)
class _Matches:
    """The right's id for each of the left's, -1 for none; and the left's with one, in its order."""

    rows: NDArray[Any]
    ids: _Ids


def _find_matches(left: Dataset, right: Dataset, by: tuple[str, str]) -> _Matches:
    """Find the matches of two datasets by columns; DataError if a key is doubled."""
    sides = (_all_of(left), by[0]), (_all_of(right), by[1])
    origin = "\n".join(
        ["join 1", left.fingerprint, *(column_reader(s, n).origin() for s, n in sides)]
    )
    places = [kept_place(side, "join", origin) for side, _ in sides]
    place = None if None in places else places[0]
    return kept_or_made(place, _Matches, lambda: _match(sides, _ids_of(left)))


def _match(sides: tuple[tuple[Dataset, str], ...], asked: _Ids) -> _Matches:
    wanted, keys = (side.column(name, progress=False) for side, name in sides)
    kinds = {"i" if part.dtype.kind in "iu" else part.dtype.kind for part in (wanted, keys)}
    if len(wanted) and len(keys) and kinds not in ({"i"}, {"U"}):
        raise TypeError(
            f"join(): the keys are {wanted.dtype} on the left and {keys.dtype} on the right: take "
            "texts, or whole numbers, for both"
        )
    left_ids, right_ids = (_ids_of(side) for side, _ in sides)
    left, right = (side.manifest.num_samples for side, _ in sides)
    rows = np.full(left, -1, np.int32 if right < 2**31 else np.int64)
    order = np.argsort(keys, kind="stable")
    keys = keys[order]
    _refuse_doubled("right", *sides[1], order[1:][keys[1:] == keys[:-1]])
    if len(keys):
        places = np.minimum(np.searchsorted(keys, wanted), len(keys) - 1)
        found = np.flatnonzero(keys[places] == wanted)
        places = places[found]
        _refuse_doubled("left", *sides[0], found[np.bincount(places)[places] > 1])
        rows[left_ids[found]] = right_ids[order[places]]
    # A removed sample of the left keeps its id, whatever it matched.
    gone = np.isin(asked, removed_of(sides[0][0].source))
    return _Matches(rows, asked[np.greater_equal(rows[asked], 0) | gone])


def _refuse_doubled(side: str, data: Dataset, by: str, indices: _Ids) -> None:
    if len(indices):
        key = data.column(by, progress=False)[indices[0]].item()
        raise DataError(
            f"join(by={by!r}): more than one sample of the {side} dataset has the key {key!r} "
            f"({len(indices)} samples are doubled): leave them out with subset(), or join by a "
            "field that tells them apart",
            url=data.url_of(int(indices[0])),
        )


def _all_of(dataset: Dataset) -> Dataset:
    """Each sample once, with the fields that select() left out: one of them may have the keys.

    Without removed samples, whose keys no column has.
    """
    indices = dataset.transforms.indices
    if indices is not None and (np.diff(indices) <= 0).any():
        indices = np.unique(indices)
    made = replace(dataset.transforms, selected=None, required=frozenset(), indices=indices)
    every = Dataset(dataset.source, _transforms=made)
    gone = every.removed
    return every.subset(np.delete(np.arange(len(every)), gone)) if len(gone) else every


def _ids_of(dataset: Dataset) -> _Ids:
    indices = dataset.transforms.indices
    return np.arange(len(dataset)) if indices is None else indices
