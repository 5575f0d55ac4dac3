"""Where the payloads of all samples lie, in flat arrays: the fast way for samples by id.

A batch of a shuffled epoch has rows from as many shards as it has rows. Asking each shard's index
costs up to ten numpy calls a shard; asking one array costs one for the batch. The arrays are filled
shard by shard at first use, and there are none for data sets where they would exceed 64 MiB.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

import numpy as np
from numpy.typing import NDArray

from shardwise.sources.manifest import Manifest
from shardwise.sources.tar.index.shard_index import ShardIndex, keys_of_one_length
from shardwise.sources.tar.scan.headers import BLOCK

__all__ = ["OffsetTable"]

# 64 MiB a process and set of fields: about 3 million samples of two fields.
_MAX_BYTES = 64 << 20
_MAX_KEY_BYTES = 64


class OffsetTable:
    """Offsets and sizes of some fields of all samples. Safe in threads.

    Args:
        manifest: the shards.
        names: the fields.
        index: from a shard's number to its index; called once a shard.
        key_length: bytes of a key where all keys of all shards have one length; else None.
    """

    def __init__(
        self,
        manifest: Manifest,
        names: Sequence[str],
        *,
        index: Callable[[int], ShardIndex],
        key_length: int | None,
    ) -> None:
        num_samples = manifest.num_samples
        size_dtype, key_bytes = _dtype_of_sizes(manifest), _key_bytes(key_length)
        self._names = tuple(names)
        self._manifest = manifest
        self._index = index
        self._blocks = np.empty((len(names), num_samples), np.uint32)
        self._sizes = np.empty((len(names), num_samples), size_dtype)
        self._keys = np.empty((num_samples, key_bytes), np.uint8) if key_bytes else None
        self._is_filled = np.zeros(len(manifest.sizes), np.bool_)

    @staticmethod
    def fit(manifest: Manifest, num_fields: int, key_length: int | None) -> bool:
        """Whether the arrays are small enough to have, and wide enough for these shards."""
        most = int(manifest.shard_bytes.max(initial=0))
        a_field = np.dtype(np.uint32).itemsize + _dtype_of_sizes(manifest).itemsize
        a_sample = num_fields * a_field + _key_bytes(key_length)
        return most < BLOCK << 32 and a_sample * manifest.num_samples <= _MAX_BYTES

    def locate(
        self, ids: NDArray[np.int64]
    ) -> tuple[NDArray[np.int64], NDArray[np.int64], NDArray[np.int64], list[str]]:
        """Where the payloads of samples lie.

        Args:
            ids: int64 `[rows]`, each in [0, N).

        Returns:
            The shard of each sample, int64 `[rows]`; offsets and sizes in bytes, int64
            `[fields, rows]`, the size -1 where the sample lacks the field; the samples' keys.

        Raises:
            StaleIndexError: a shard is not the one that was opened.
            DataError: its index is damaged.
        """
        shard_of, row_of = self._manifest.locate(ids)
        if not self._is_filled[shard_of].all():
            for shard in np.unique(shard_of[~self._is_filled[shard_of]]).tolist():
                self._fill(shard)
        offsets = self._blocks.take(ids, axis=1).astype(np.int64)
        offsets *= BLOCK
        stored = self._sizes.take(ids, axis=1)
        sizes = stored.astype(np.int64)
        if stored.dtype == np.uint32:
            sizes[stored == _MISSING] = -1
        return shard_of, offsets, sizes, self._keys_of(ids, shard_of, row_of)

    def _fill(self, shard: int) -> None:
        index = self._index(shard)
        stop = int(self._manifest.ends[shard])
        rows = slice(stop - index.num_samples, stop)
        every = np.arange(index.num_samples, dtype=np.int64)
        for i, name in enumerate(self._names):
            if name in index.fields:
                offsets, sizes = index.locate(name, every)
                self._blocks[i, rows] = offsets // BLOCK
                # -1 becomes the largest number.
                self._sizes[i, rows] = sizes.astype(self._sizes.dtype)
            else:
                self._blocks[i, rows] = 0
                self._sizes[i, rows] = np.array(-1).astype(self._sizes.dtype)
        if self._keys is not None:
            self._keys[rows] = index.keys.as_rows()
        # Last, for threads that read meanwhile. Two that fill one shard write the same values.
        self._is_filled[shard] = True

    def _keys_of(
        self, ids: NDArray[np.int64], shard_of: NDArray[np.int64], row_of: NDArray[np.int64]
    ) -> list[str]:
        if self._keys is None:
            at = zip(shard_of.tolist(), row_of.tolist(), strict=True)
            return [self._index(shard).keys[row] for shard, row in at]
        return keys_of_one_length(self._keys.take(ids, axis=0))


_MISSING = np.uint32(0xFFFFFFFF)


def _dtype_of_sizes(manifest: Manifest) -> np.dtype[np.uint32] | np.dtype[np.int64]:
    most = manifest.shard_bytes.max(initial=0)
    return np.dtype(np.uint32) if most < int(_MISSING) else np.dtype(np.int64)


def _key_bytes(key_length: int | None) -> int:
    return key_length if key_length is not None and key_length <= _MAX_KEY_BYTES else 0
