"""The manifest: ordered shards with exact counts, and the fingerprint of them.

Sample ids are 0..N-1 in manifest order. The fingerprint depends on what the shards are called
(base name), how many samples and bytes they hold, not on where they lie: a state taken from a
local copy resumes on the bucket.

The shards are columns: a million of them take 24 MB beside their names.
"""

from __future__ import annotations

import functools
import hashlib
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, overload

import numpy as np
from numpy.typing import ArrayLike, NDArray

from shardwise.base.shown import base_name, shown
from shardwise.sources.shard_names import ShardNames

# Shards that are made into objects at a time.
_BLOCK = 4096


@dataclass(frozen=True, slots=True)
class Shard:
    """One shard: its URL, and its counts of samples and bytes."""

    url: str
    num_samples: int
    num_bytes: int

    def __repr__(self) -> str:
        return f"Shard({shown(self.url)!r}, {self.num_samples}, {self.num_bytes})"


class Manifest:
    """Ordered shards; columns are `[shards]`.

    Attributes:
        urls: the shards' URLs, in the order of their samples' ids.
        sizes, shard_bytes: int64, samples and bytes per shard.
        ends: int64, the id after each shard's last.

    `kind` is the format, and whatever else distinguishes datasets; or a function that returns it,
    called for the first fingerprint.
    """

    def __init__(self, kind: str | Callable[[], str], shards: Sequence[Shard]) -> None:
        self._set(
            kind,
            [shard.url for shard in shards],
            np.array([shard.num_samples for shard in shards], dtype=np.int64),
            np.array([shard.num_bytes for shard in shards], dtype=np.int64),
        )

    @classmethod
    def of_columns(
        cls,
        kind: str | Callable[[], str],
        urls: Sequence[str],
        sizes: NDArray[Any],
        shard_bytes: NDArray[Any],
    ) -> Manifest:
        """A manifest of columns `[shards]`, without an object per shard."""
        manifest = cls.__new__(cls)
        manifest._set(kind, urls, sizes.astype(np.int64), shard_bytes.astype(np.int64))
        return manifest

    @classmethod
    def joined(cls, kind: str | Callable[[], str], manifests: Sequence[Manifest]) -> Manifest:
        """The shards of several manifests, one after the other."""
        return cls.of_columns(
            kind,
            ShardNames.joined([manifest.urls for manifest in manifests]),
            np.concatenate([manifest.sizes for manifest in manifests]),
            np.concatenate([manifest.shard_bytes for manifest in manifests]),
        )

    def _set(
        self,
        kind: str | Callable[[], str],
        urls: Sequence[str],
        sizes: NDArray[np.int64],
        shard_bytes: NDArray[np.int64],
    ) -> None:
        self.kind = kind
        self.urls = urls
        self.sizes = sizes
        self.shard_bytes = shard_bytes
        self.ends: NDArray[np.int64] = np.cumsum(sizes, dtype=np.int64)
        self.num_samples = int(self.ends[-1]) if len(urls) else 0

    def __getstate__(self) -> dict[str, Any]:
        """Names as patterns, and numbers as narrow as they are: 100,000 shards take 0.6 MB."""
        state = dict(self.__dict__)
        del state["ends"], state["num_samples"]
        columns = {name: narrow(state[name]) for name in ("sizes", "shard_bytes")}
        return state | columns | {"urls": ShardNames.of(self.urls)}

    def __setstate__(self, state: dict[str, Any]) -> None:
        self.__dict__.update(state)
        sizes, shard_bytes = (state[name].astype(np.int64) for name in ("sizes", "shard_bytes"))
        self._set(state["kind"], state["urls"], sizes, shard_bytes)

    @property
    def shards(self) -> ShardView:
        """The shards as objects, each made on request."""
        return ShardView(self)

    @property
    def num_bytes(self) -> int:
        """Bytes of all shards."""
        return int(self.shard_bytes.sum())

    @functools.cached_property
    def fingerprint(self) -> str:
        """16 hex digits."""
        kind = self.kind if isinstance(self.kind, str) else self.kind()
        digest = hashlib.sha256(f"shardwise manifest 1 {kind}\n".encode())
        for shard in self.shards:
            url = shard.url
            if url.startswith(("http://", "https://")):
                # A signature in the query changes every day.
                url = url.partition("?")[0]
            name = url.rstrip("/").rpartition("/")[2]
            digest.update(f"{name}\0{shard.num_samples}\0{shard.num_bytes}\n".encode())
        return digest.hexdigest()[:16]

    def first(self, count: int) -> Manifest:
        """The first shards."""
        columns = (self.urls[:count], self.sizes[:count], self.shard_bytes[:count])
        return Manifest.of_columns(self.kind, *columns)

    def check(self, ids: NDArray[np.int64]) -> None:
        """Refuse ids outside of [0, num_samples).

        Raises:
            IndexError: one is not in [0, num_samples).
        """
        if len(ids) and not 0 <= ids.min() <= ids.max() < self.num_samples:
            raise IndexError(
                f"sample ids from {ids.min()} to {ids.max()}: they must lie in "
                f"[0, {self.num_samples})"
            )

    def locate(self, ids: NDArray[np.int64]) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
        """Find samples by id: `(shard, row)`, each int64 of the shape of `ids`.

        Ids must lie in [0, num_samples); empty shards are skipped.
        """
        # side="right" skips empty shards.
        shard = np.searchsorted(self.ends, ids, side="right")
        return shard, ids - (self.ends[shard] - self.sizes[shard])

    def ids_of(self, rows: Mapping[int, Sequence[int]]) -> NDArray[np.int64]:
        """The ids of rows by shard, int64, ascending by shard."""
        firsts = self.ends - self.sizes
        ids = [firsts[shard] + np.array(rows[shard], np.int64) for shard in sorted(rows)]
        return np.concatenate([np.empty(0, np.int64), *ids])

    def row_keys(self, shards: NDArray[np.int64], rows: NDArray[np.int64]) -> list[str]:
        """Keys of samples that have no names: the shard's base name, and the row in it."""
        names = {shard: base_name(self.urls[shard]) for shard in set(shards.tolist())}
        places = zip(shards.tolist(), rows.tolist(), strict=True)
        return [f"{names[shard]}:{row}" for shard, row in places]


class ShardView(Sequence[Shard]):
    """The shards of a manifest as a sequence of objects that are made on request.

    >>> manifest = Manifest("tar", [Shard("a.tar", 3, 10240), Shard("b.tar", 4, 10240)])
    >>> manifest.shards[1], len(manifest.shards)
    (Shard('b.tar', 4, 10240), 2)
    """

    __slots__ = ("_manifest",)

    def __init__(self, manifest: Manifest) -> None:
        self._manifest = manifest

    def __len__(self) -> int:
        return len(self._manifest.sizes)

    @overload
    def __getitem__(self, number: int) -> Shard: ...

    @overload
    def __getitem__(self, number: slice) -> tuple[Shard, ...]: ...

    def __getitem__(self, number: int | slice) -> Shard | tuple[Shard, ...]:
        manifest, place = self._manifest, range(len(self))[number]
        if isinstance(place, range):
            return tuple(map(self.__getitem__, place))
        return Shard(
            manifest.urls[place], manifest.sizes.item(place), manifest.shard_bytes.item(place)
        )

    def __iter__(self) -> Iterator[Shard]:
        manifest, urls = self._manifest, iter(self._manifest.urls)
        for start in range(0, len(self), _BLOCK):
            block = slice(start, start + _BLOCK)
            sizes, lengths = manifest.sizes[block].tolist(), manifest.shard_bytes[block].tolist()
            for num_samples, num_bytes in zip(sizes, lengths, strict=True):
                yield Shard(next(urls), num_samples, num_bytes)

    def __eq__(self, other: object) -> bool:
        if not isinstance(other, Sequence):
            return NotImplemented
        return len(self) == len(other) and all(map(Shard.__eq__, self, other))

    __hash__ = None  # type: ignore[assignment]

    def __repr__(self) -> str:
        shards = [repr(shard) for shard in self[:3]]
        return f"[{', '.join(shards)}{', ...' if len(self) > len(shards) else ''}]"


def checked_ids(
    indices: ArrayLike, num_samples: int, *, from_end: bool = False
) -> NDArray[np.int64]:
    """Check ids, int64 `[rows]` in [0, num_samples); with `from_end` -1 is the last sample."""
    ids = np.asarray(indices)
    if ids.dtype.kind not in "iu" and ids.size:
        hint = ": take samples by a mask with subset()" if ids.dtype == np.bool_ else ""
        raise TypeError(f"indices are integers, such as range(100), not {ids.dtype}{hint}")
    if ids.ndim != 1:
        raise ValueError(f"indices of shape {ids.shape}: give one dimension")
    if not len(ids):
        return np.empty(0, dtype=np.int64)
    lowest = -num_samples if from_end else 0
    if ids.min() < lowest or ids.max() >= num_samples:
        place = int(((ids < lowest) | (ids >= num_samples)).argmax())
        raise IndexError(
            f"index {ids[place]}, number {place} of {len(ids)}, is not in [{lowest}, {num_samples})"
        )
    ids = ids.astype(np.int64, copy=False)
    return np.where(ids < 0, ids + num_samples, ids) if from_end else ids


def narrow(column: NDArray[Any]) -> NDArray[Any]:
    """A column of numbers from 0 on, in the smallest unsigned type that holds them."""
    dtype = np.min_scalar_type(int(column.max())) if len(column) else np.dtype(np.uint8)
    return column.astype(dtype, copy=False)
