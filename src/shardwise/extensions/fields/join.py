"""`sw.join`: the fields of one dataset beside those of another one."""

from __future__ import annotations

import logging
from dataclasses import dataclass, replace
from typing import Any, Literal

import numpy as np
from numpy.typing import NDArray

from shardwise.base.arguments import check_choice, suggest_names
from shardwise.base.columns import Layout
from shardwise.base.errors import DataError
from shardwise.codecs import optional
from shardwise.dataset import Dataset
from shardwise.extensions.fields.join_source import JoinSource
from shardwise.extensions.fields.matches import Matches
from shardwise.sources.protocol import traits_of

How = Literal["inner", "left", "error"]
_logger = logging.getLogger("shardwise")


@suggest_names
def join(
    left: Dataset, right: Dataset, *, how: How = "inner", by: str | tuple[str, str] = "__key__"
) -> Dataset:
    """The samples of `left` with the fields of the samples of `right` that have the same key.

    Such as new captions, latents or embeddings in shards of their own, in any order and of any
    size. Ids, keys, order and epochs are the left's, so a state of `left` or of its join with other
    captions resumes; with how="inner" only if these have the same keys. Which samples match is
    found once, kept as columns are (`Dataset.column`), and mapped by all processes.

    A field of both is a ValueError, unless `select` or `decode` names it on the right alone: then
    it replaces the left's. Call `map` on the join.

    Args:
        left: each of its samples has another key.
        right: so has each of these.
        how: "inner" leaves out the samples of `left` without a match, and logs their number;
            "left" keeps them, with the right's fields as `sw.optional` has them: None, or zeros
            and "<field>.mask"; "error" is a DataError if there are any.
        by: the column that has the keys, texts or whole numbers, such as "__key__" or "json.id"; a
            pair where the right's has another name.

    Raises:
        DataError: a key is doubled or missing, or a sample has no match.
        ValueError: no key of one dataset is in the other, a field is in both, or a dataset is a
            mixture or mapped.
        TypeError: what is joined is no dataset, or keys are neither texts nor whole numbers.

    Examples:
        >>> import shardwise as sw
        >>> images = sw.wrap([{"__key__": "a", "image": 1}, {"__key__": "b", "image": 2}])
        >>> texts = sw.wrap([{"__key__": "b", "txt": "two"}])
        >>> sw.join(images, texts)[0]
        {'__key__': 'b', 'image': 2, 'txt': 'two'}
        >>> sw.join(images, texts, how="left")[0]
        {'__key__': 'a', 'image': 1}
    """
    check_choice("how", how, ("inner", "left", "error"))
    names = (by, by) if isinstance(by, str) else by
    if not (isinstance(names, tuple) and len(names) == 2 and {*map(type, names)} == {str}):
        raise TypeError(f"join(by={by!r:.60}): the name of a column, or one of each dataset")
    for dataset, side in ((left, "left"), (right, "right")):
        if not isinstance(dataset, Dataset):
            raise TypeError(f"join(): the {side} one is {dataset!r:.60}: wrap it with sw.wrap")
        if dataset.sampler is not None:
            raise ValueError(
                f"join(): the {side} dataset is a mixture, which has an order of its own: join "
                "its datasets, and mix the joins"
            )
        if dataset.is_mapped:
            raise ValueError(f"join(): the {side} dataset has a map(): call it on the join")
    fields = _fields(left, right, names)
    matches = Matches(_all_fields(left), _all_fields(right), names)
    key = ("join", right.fingerprint, names)
    source = JoinSource(left.source, right.source, matches, fields, key)
    own, other = left.transforms, right.transforms
    decoders = {name: fn for name, fn in own.decoders.items() if name in fields[0]}
    required = own.required.intersection(fields[0])
    added = {name: fn for name, fn in other.decoders.items() if name in fields[1]}
    if how == "left":
        added = _optional(added, fields[1], traits_of(right.source).layouts)
        required = required.union(added)
    else:
        required = required.union(other.required.intersection(fields[1]))
    indices = _matched(left, matches.rows, len(right), how)
    transforms = replace(
        own, selected=None, required=required, decoders={**decoders, **added}, indices=indices
    )
    return Dataset(source, _transforms=transforms)


def _fields(
    left: Dataset, right: Dataset, by: tuple[str, str]
) -> tuple[tuple[str, ...], tuple[str, ...]]:
    """The fields that are taken of each."""
    # The key is the same in both.
    own = {by[0]} if by[0] == by[1] else set()
    both = {*left.fields}.intersection(right.fields)
    renewed = (both & right.transforms.required) - left.transforms.required - own
    for name in sorted(both - renewed - own):
        raise ValueError(
            f"join(): both datasets have a field {name!r}: leave it out of one by select(); the "
            "right's select() of a field that the left's does not name replaces it"
        )
    return (
        tuple(name for name in left.fields if name not in renewed),
        tuple(name for name in right.fields if name not in both - renewed),
    )


def _all_fields(dataset: Dataset) -> Dataset:
    """Each sample once, with the fields that select() left out, of which one may have the keys."""
    transforms, indices = dataset.transforms, dataset.transforms.indices
    if indices is not None and (np.diff(indices) <= 0).any():
        indices = np.unique(indices)
    made = replace(transforms, selected=None, required=frozenset(), indices=indices)
    return Dataset(dataset.source, _transforms=made)


@dataclass(frozen=True)
class _Stored:
    """A decoder of values that are arrays of one form: they stay as they are."""

    row: Layout

    def __call__(self, value: Any) -> Any:
        return value

    def decode_into(self, value: Any, out: NDArray[Any]) -> None:
        out[...] = value


def _optional(decoders: dict[str, Any], fields: tuple[str, ...], layouts: Any) -> dict[str, Any]:
    stored = {name: _Stored(layouts[name]) for name in fields if name in layouts}
    return {name: optional(decoder) for name, decoder in {**stored, **decoders}.items()}


def _matched(
    left: Dataset, rows: NDArray[Any], num_right: int, how: How
) -> NDArray[np.int64] | None:
    """The ids of the samples that the join has; None for all. Say what has no match."""
    indices = left.transforms.indices
    is_matched = (rows if indices is None else rows[indices]) >= 0
    num_left, num_matched = len(is_matched), int(np.count_nonzero(is_matched))
    if num_left and num_right and not num_matched:
        raise ValueError(
            f"join(): none of {num_left} samples of the left has its key on the right, which has "
            f"{num_right}: are they of one dataset, and is by= the key of both?"
        )
    if num_matched < num_left:
        lost = f"{num_left - num_matched} of {num_left} samples have no match among {num_right}"
        if how == "error":
            first = int(np.argmin(is_matched))
            url, key = left.url_of(first), left.select()[first]["__key__"]
            raise DataError(
                f"join(how='error'): {lost}; how='inner' leaves them out, 'left' has None",
                url=url, key=key, index=first,
            )  # fmt: skip
        kept = "; they are left out" if how == "inner" else ": their fields of the right are None"
        _logger.warning("join(how=%r): %s%s", how, lost, kept)
        if how == "inner":
            return np.flatnonzero(is_matched) if indices is None else indices[is_matched]
    return indices
