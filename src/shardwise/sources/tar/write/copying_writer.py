"""One tar shard, of samples that are encoded already or stand in other shards."""

from __future__ import annotations

from typing import Any

from shardwise.sources.tar.write.encode import encode_sample
from shardwise.sources.tar.write.stored import StoredRun
from shardwise.sources.tar.write.writer import TarWriter
from shardwise.storage import StorageOptions

# A key, the members of an encoded sample, and the sidecar's blocks for them.
Encoded = tuple[str, list[tuple[str, bytes]], dict[str, bytes] | None]


class CopyingWriter(TarWriter):
    """Writes one shard, which is replaced if it exists. Keys are the caller's to check."""

    def __init__(self, path: str, *, media: bool, storage: StorageOptions) -> None:
        pattern = path.replace("{", "{{").replace("}", "}}")
        super().__init__(pattern, overwrite=True, media=media, storage=storage)
        self._num_bytes = 0

    def encode(self, sample: dict[str, Any]) -> tuple[str, Encoded]:
        """A sample's key, and what `add` takes; DataError if a media file can't be used."""
        key, members = encode_sample(sample)
        return key, (key, members, self._blocks_of(key, members))

    def add(self, encoded: Encoded) -> None:
        """Write an encoded sample."""
        self._write_members(*encoded)
        self._num_bytes += sum(len(data) for _, data in encoded[1])

    def copy(self, run: StoredRun) -> None:
        """Write the samples of a run, in the bytes that they have."""
        self._append(run.data, run.members, run.keys, run.fields)
        self._num_bytes += run.num_bytes

    def finish(self) -> int:
        """Close the shard; returns the bytes of its payloads."""
        self.close()
        return self._num_bytes
