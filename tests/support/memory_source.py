"""A source that lives in memory: small, exact, counts its reads, fails where it is told to."""

from __future__ import annotations

import copy
from collections.abc import Mapping, Sequence

import numpy as np
from numpy.typing import NDArray

from shardwise.base.columns import BytesColumn, Columns
from shardwise.base.errors import DataError
from shardwise.sources.manifest import Manifest, Shard


def numbered_samples(num_samples: int) -> list[dict[str, bytes | str]]:
    """Samples `key-00003` with `cls` b"3", `txt` b"text 3" and `bin`, the id as 8 raw bytes."""
    return [
        {
            "__key__": f"key-{i:05d}",
            "cls": str(i).encode(),
            "txt": f"text {i}".encode(),
            "bin": np.int64(i).tobytes(),
        }
        for i in range(num_samples)
    ]


class MemorySource:
    """Satisfies `shardwise.sources.protocol.Source` over a list of samples.

    Args:
        samples: dicts of bytes; "__key__" (str) is the sample's key, else its id in six digits.
            A field that a dict lacks, or that is None, is missing in that sample.
        shard_sizes: samples a shard; they must sum to len(samples). One shard when None.
        default_shuffle: what `shuffle=True` means.
        name: the shards are called `memory://<name>/<shard>.mem`.

    Attributes:
        reads: one `(ids, fields)` a call of `read`, in order.
        failures: id -> exception: `read` raises it when that id is asked for.
    """

    def __init__(
        self,
        samples: Sequence[Mapping[str, bytes | str | None]],
        shard_sizes: Sequence[int] | None = None,
        *,
        default_shuffle: str = "window",
        name: str = "set",
    ) -> None:
        sizes = [len(samples)] if shard_sizes is None else list(shard_sizes)
        assert sum(sizes) == len(samples), f"shard_sizes {sizes} of {len(samples)} samples"
        self.default_shuffle = default_shuffle
        self.reads: list[tuple[tuple[int, ...], tuple[str, ...] | None]] = []
        self.failures: dict[int, Exception] = {}
        self._keys = [str(s.get("__key__", f"{i:06d}")) for i, s in enumerate(samples)]
        self._samples = [{k: v for k, v in s.items() if k != "__key__"} for s in samples]
        self.fields = tuple(dict.fromkeys(name for s in self._samples for name in s))
        shards, first = [], 0
        for number, size in enumerate(sizes):
            members = self._samples[first : first + size]
            num_bytes = sum(len(v) for s in members for v in s.values() if v is not None)
            shards.append(Shard(f"memory://{name}/{number:03d}.mem", size, num_bytes))
            first += size
        self.manifest = Manifest("memory", shards)

    def fail_at(self, sample_id: int, error: Exception | None = None) -> None:
        """Let every later read of this sample raise `error`, else a DataError that names it."""
        shard, _ = self.manifest.locate(np.array([sample_id]))
        self.failures[sample_id] = error or DataError(
            "the sample is damaged, as the test wants it",
            url=self.manifest.shards[int(shard[0])].url,
            key=self._keys[sample_id],
            index=sample_id,
        )

    def read(self, ids: NDArray[np.int64], fields: tuple[str, ...] | None = None) -> Columns:
        wanted = [int(i) for i in ids]
        self.reads.append((tuple(wanted), fields))
        for i in wanted:
            assert 0 <= i < len(self._samples), f"id {i} of {len(self._samples)} samples"
            if i in self.failures:
                # A new one each time: who catches it may add to it.
                raise copy.copy(self.failures[i])
        names = self.fields if fields is None else fields
        assert set(names) <= set(self.fields), f"fields {names}, there are {self.fields}"
        columns = {
            name: BytesColumn.of([self._samples[i].get(name) for i in wanted]) for name in names
        }
        num_bytes = sum(int(np.maximum(c.lengths, 0).sum()) for c in columns.values())
        return Columns(np.asarray(ids), [self._keys[i] for i in wanted], columns, num_bytes)
