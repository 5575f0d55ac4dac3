"""Subsets of a dataset's samples. Pure: numpy in, numpy out."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import numpy as np
from numpy.typing import ArrayLike, NDArray

from shardwise.plan import Sampler
from shardwise.plan.arguments import digest_of_array
from shardwise.sources.manifest import checked_ids

# Rows a call of the function: few enough for memory, whatever the fields are.
_FILTER_ROWS = 512
_BLOCK = 1 << 20


def refuse_part(sampler: Sampler | None) -> None:
    """Refuse to take a part of samples that bring their own order."""
    if sampler is not None:
        raise TypeError(
            "a mixture has an order of its own, which a part of it could not keep: take the subset "
            "of its datasets before, such as sw.mix({'web': (web.subset(indices), 0.7), ...})"
        )


def subset_indices(
    indices: ArrayLike, num_samples: int, inner: NDArray[np.int64] | None
) -> NDArray[np.int64]:
    """Indices or a mask of a dataset's samples as the source's ids; read-only ones as they are."""
    chosen = np.asarray(indices)
    if chosen.dtype == np.bool_:
        if chosen.shape != (num_samples,):
            raise ValueError(
                f"a mask of shape {chosen.shape} for {num_samples} samples: give each sample one "
                "boolean"
            )
        chosen = np.flatnonzero(chosen)
    ids = checked_ids(chosen, num_samples)
    if inner is not None:
        return inner[ids]
    return ids.copy() if ids.flags.writeable else ids


def rows_of(
    columns: Mapping[str, ArrayLike], num_samples: int
) -> Callable[[NDArray[np.int64]], dict[str, Any]]:
    """Make a function that gives some rows of each column, which has one value per sample."""
    arrays = {name: np.asarray(column) for name, column in columns.items()}
    for name, array in arrays.items():
        if array.shape[:1] != (num_samples,):
            raise ValueError(
                f"filter(): the column {name!r} has shape {list(array.shape)}, for {num_samples} "
                "samples: give one value each, as column() does"
            )
    return lambda ids: {name: array[ids] for name, array in arrays.items()}


def filter_mask(
    where: Callable[[dict[str, Any]], ArrayLike],
    load: Callable[[NDArray[np.int64]], dict[str, Any]],
    num_samples: int,
    removed: NDArray[np.int64],
) -> NDArray[np.bool_]:
    """For which samples a function of columns, which `load` gives by id, holds: bool.

    Removed samples stay, which nobody gets: what they were is unknown.
    """
    mask = np.ones(num_samples, dtype=np.bool_)
    for start in range(0, num_samples, _FILTER_ROWS):
        rows = np.arange(start, min(start + _FILTER_ROWS, num_samples), dtype=np.int64)
        rows = np.setdiff1d(rows, removed)
        if not len(rows):
            continue
        kept = np.asarray(where(load(rows)))
        if kept.dtype != np.bool_ or kept.shape != rows.shape:
            raise TypeError(
                f"filter(): the function returned {kept.dtype} of shape {list(kept.shape)} for "
                f"{len(rows)} samples: return one boolean each, such as columns['cls'] > 3, or of "
                "texts, which are a list, [text != '' for text in columns['txt']]"
            )
        mask[rows] = kept
    return mask


def subset_fingerprint(fingerprint: str, indices: NDArray[np.int64]) -> str:
    """The fingerprint of a source's samples at `indices`, in this order: 16 hex digits."""
    return digest_of_array(indices, "<i8", f"shardwise subset 1 {fingerprint}\n".encode())


def subset_shard_sizes(sizes: NDArray[np.int64], indices: NDArray[Any]) -> NDArray[np.int64]:
    """Samples that are left of each shard, int64 `[shards]`, if the indices ascend.

    Others jump between shards, so that no run of them is a shard's: they count as one shard.
    """
    blocks = (indices[begin : begin + _BLOCK + 1] for begin in range(0, len(indices), _BLOCK))
    if any((block[1:] < block[:-1]).any() for block in blocks):
        return np.array([len(indices)], dtype=np.int64)
    ends = np.searchsorted(indices, np.cumsum(sizes), side="left")
    return np.diff(ends, prepend=0).astype(np.int64)
