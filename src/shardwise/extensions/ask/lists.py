"""Lists of samples: arrays, keys, and files of either, as ids of a dataset."""

from __future__ import annotations

import io
import os
from collections.abc import Iterable
from dataclasses import replace
from typing import Any

import numpy as np
from numpy.typing import NDArray

from shardwise.base.abilities import having
from shardwise.base.errors import DataError
from shardwise.base.foreign_bytes import as_data_error
from shardwise.base.shown import shown
from shardwise.dataset import Dataset
from shardwise.sources.samples import MixedSamples
from shardwise.storage.open import read_whole

Ids = NDArray[np.int64]
_SHOWN, _LONGEST_ID = 3, 19


def read_order(path: str | os.PathLike[str]) -> NDArray[Any]:
    """Read the array of a `.npy` file; TypeError for a path with another suffix."""
    url = os.fspath(path)
    if not url.endswith(".npy"):
        raise TypeError(f"sampler={url!r:.80}: a path is one of a .npy file of sample ids")
    with as_data_error("no array can be read of it", url=url):
        return np.lib.format.read_array(io.BytesIO(read_whole(url)), allow_pickle=False)


def ids_of(listed: Any, dataset: object) -> NDArray[Any]:
    """Return the ids of samples that are named by ids, by keys, or in a file of either.

    A file is a `.npy`, or has one id or key per line: ids, if all are numbers and none is a key.
    """
    if isinstance(listed, str | os.PathLike):
        return _ids_of_file(os.fspath(listed), dataset)
    values = np.asarray(list(listed) if isinstance(listed, set | frozenset) else listed)
    if values.size and values.dtype.kind not in "iuU":
        raise TypeError(
            f"exclude={listed!r:.60}: give ids (whole numbers) or keys (texts) of samples, or the "
            "path of a file with one of them a line"
        )
    return ids_of_keys(values.tolist(), dataset) if values.dtype.kind == "U" else values


def ids_of_keys(keys: Iterable[str], dataset: object) -> Ids:
    """Return the ids of all samples that have any of the keys, int64, ascending."""
    wanted = np.unique(np.array(list(keys), dtype=np.str_))
    known = keys_of(dataset)
    missing = np.setdiff1d(wanted, known)
    if len(missing):
        raise ValueError(
            f"no sample has the key {', '.join(map('{!r:.60}'.format, missing[:_SHOWN].tolist()))}"
            f"{' and others' if len(missing) > _SHOWN else ''} ({len(missing)} of {len(wanted)} "
            f"keys); the dataset's first key is {next(iter(known[:1].tolist()), None)!r}: is it "
            "the list of another dataset?"
        )
    return np.flatnonzero(np.isin(known, wanted))


def keys_of(dataset: object) -> NDArray[np.str_]:
    """Return the keys of all samples as stored, whatever a `map()` makes of them; kept on disk."""
    if not isinstance(dataset, Dataset):
        raise TypeError(f"{type(dataset).__name__} has no keys to look up: name samples by ids")
    source, mixed = dataset.source, having(dataset, MixedSamples)
    if mixed is not None:
        return np.concatenate([keys_of(part) for part in mixed.parts.values()])
    bare = replace(dataset.transforms, selected=(), required=frozenset(), decoders={}, maps=())
    return Dataset(source, _transforms=bare).column("__key__").astype(np.str_)


def _ids_of_file(url: str, dataset: object) -> NDArray[Any]:
    if url.endswith(".npy"):
        return ids_of(read_order(url), dataset)
    try:
        lines = read_whole(url).decode("utf-8-sig").split("\n")
    except UnicodeDecodeError as error:
        raise DataError(f"it is no text of ids or keys: {error}", url=url) from None
    entries = [line.strip() for line in lines if line.strip()]
    are_ids = all(entry.isdecimal() and len(entry) < _LONGEST_ID for entry in entries)
    if are_ids and not np.isin(entries, keys_of(dataset)).any():
        return np.array(list(map(int, entries)), dtype=np.int64)
    try:
        return ids_of_keys(entries, dataset)
    except ValueError as error:
        raise ValueError(f"exclude={shown(url)!r}: {error}") from None
